/* quantize_job.h - what quantize_model.c and its two writers share: the list of matrices and the one that is held. */
#ifndef MOEWE_FORMATS_QUANTIZE_JOB_H
#define MOEWE_FORMATS_QUANTIZE_JOB_H

#include "model_internal.h"
#include "quantize_model.h"

/* A matrix to quantise. */
typedef struct quantize_matrix {
    char *name;            /* under which an own tensor of it would stand */
    const moewe_matrix *m; /* plain */
    int32_t expert;        /* of m */
    int64_t rows, cols;
    const quantize_type *type;
} quantize_matrix;

typedef struct quantize_job {
    const model_config *c;
    const st_store *s;
    const quantize_ask *ask;
    quantize_report *report;
    fmt_error *e;
    model_block *blocks; /* [n_blocks], open */
    size_t n_blocks;
    model_matrix *dense; /* [n_dense] */
    size_t n_dense;
    quantize_matrix *list;
    size_t n, room;
    const st_tensor **taken; /* what the matrices were made of, by address */
    size_t n_taken;
    /* The matrix that is held: index, and what it became. */
    size_t held, done;
    float *w;
    uint8_t *codes, *scales;
    uint64_t w_room, codes_room, scales_room;
    float factor;
} quantize_job;

/* Quantises matrix i into codes (in j->codes when codes is NULL), j->scales and j->factor. */
int quantize_take(quantize_job *j, size_t i, void *codes);

/* Whether the tensor became a matrix of the list. */
int quantize_is_taken(const quantize_job *j, const st_tensor *t);

int quantize_write_store(quantize_job *j); /* a folder of safetensors and config.json */
int quantize_write_gguf(quantize_job *j);

#endif
