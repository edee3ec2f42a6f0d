/* model_internal.h - what model*.c share: names on disk and tensors in a dtype that moewe computes with. */
#ifndef MOEWE_FORMATS_MODEL_INTERNAL_H
#define MOEWE_FORMATS_MODEL_INTERNAL_H

#include "model.h"

enum { MODEL_NAME_CAP = 192 };

/* {i} or {e} of the template becomes n. */
void model_name_fill(const char *template, int32_t n, char buf[MODEL_NAME_CAP]);

/* Tensors that were taken: a model_block's experts, and those of an unknown family, whose others can so be named. */
typedef struct block_used {
    const st_tensor **list;
    size_t            n, room;
} block_used;

/* ---- stored matrices (model_quant.c) --------------------------------------------------------------------------- */

/* A matrix [rows][cols], or n of them in one tensor, as the checkpoint has it. */
typedef struct stored_shape {
    int64_t n; /* 0 = the tensor has no dimension for experts */
    int64_t rows, cols;
} stored_shape;

typedef struct stored {
    const st_tensor *t;      /* elements */
    stored_shape     shape;
    int32_t          dtype;  /* moewe_dtype */
    int64_t          row_bytes;
    int              offset; /* bytes are 128 more than their I8: what is computed with is a copy */
    moewe_scale      scale;  /* of blocks, of the first matrix; data NULL: none */
    const st_tensor *factor; /* one number for each matrix, or NULL */
    int              divides;
    const st_tensor *beside[4]; /* tensors that belong to it */
    int32_t          n_beside;
    uint64_t         bytes;  /* of all of them */
} stored;

/* t is a tensor of elements, under the name of the matrix or that with _packed or _blocks behind it. */
int   stored_open(const model_config *c, const st_store *s, const st_tensor *t, stored_shape shape, int of_expert,
                  stored *out, fmt_error *e);
float stored_factor(const stored *m, int64_t i); /* 1 where there is none */

/* The view of all rows, or of those from first on, every step-th; but for scale.tensor.  A block of scales that
 * would be cut is an error. */
int stored_view(const stored *m, int64_t first, int64_t step, moewe_matrix *out, fmt_error *e);

/* Whether both can stand in one list: the same elements and blocks. */
int stored_alike(const stored *a, const stored *b);

/* What stored_alike compares: "e2m1, scales in e4m3 for 1 x 16, a factor". */
enum { STORED_WORDS_CAP = 96 };
void stored_words(const stored *m, char buf[STORED_WORDS_CAP]);

/* The elements of an offset matrix as I8: row_bytes times rows (and n) bytes. */
void stored_convert(const stored *m, void *out);

/* F32, BF16 or F16. */
int model_is_plain(const st_tensor *t);

/* Element i of a plain tensor. */
float model_float_at(const st_tensor *t, int64_t i);

/* The quantisation is one that is read, or a sentence that says which are. */
int model_quant_check(const model_config *c, fmt_error *e);

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* One block being opened. */
typedef struct block_reader {
    const model_config *c;
    const st_store     *s;
    int32_t             layer;
    const json_t       *block; /* of the descriptor */
    model_block        *out;
    fmt_error          *e;
    block_used         *used; /* of a family that is not known; else NULL */
} block_reader;

/* Finds the tensor that the block's name ("../x": outside the block) stands for, under whichever prefix the
 * file uses; {e} is the expert.  NULL when there is none. */
const st_tensor *block_find(const block_reader *r, const char *name, int32_t expert);
/* The same with a list of spellings (or one string), of rank and shape as given (-1: any) and plain; absent or other
 * ones are errors. */
const st_tensor *block_need(const block_reader *r, const json_t *names, int32_t expert, int32_t rank, const int64_t *shape);
/* The same for a matrix, which may be quantised. */
int block_stored(const block_reader *r, const json_t *names, int32_t expert, stored_shape shape, int of_expert, stored *out);

/* Memory that the block frees. */
void *block_own(const block_reader *r, uint64_t count, uint64_t size);
/* A tensor of n elements as f32, owned by the block. */
float *block_floats(const block_reader *r, const st_tensor *t, int64_t n);

/* Fills gate, up and down, with their biases. */
int block_experts(const block_reader *r);

/* Of a family that is not known: settles what config.json leaves open by the tensors' names, before anything is
 * opened, and refuses a block with tensors that nothing took, afterwards. */
int unknown_decide(const block_reader *r);
int unknown_check(const block_reader *r);

#endif
