/* quantize_model.h - a checkpoint in, the same one with quantised matrices out. */
#ifndef MOEWE_FORMATS_QUANTIZE_MODEL_H
#define MOEWE_FORMATS_QUANTIZE_MODEL_H

#include "model.h"
#include "quantize.h"

typedef struct quantize_ask {
    const char *dir;            /* where config.json and the files beside it are */
    const char *out;            /* a folder that is not there or empty; for GGUF types a file that is not there */
    const quantize_type *type;
    int experts_only;           /* else the projections that the engine runs are quantised too */
    const moewe_device *device; /* whose threads help, or NULL */
    void (*progress)(void *ctx, size_t done, size_t all); /* after each matrix; may be NULL */
    void *ctx;
} quantize_ask;

typedef struct quantize_report {
    size_t matrices, kept;      /* quantised; tensors that stay as they are */
    size_t other_type;          /* of the matrices: in Q8_0 because their rows are no whole blocks of the type */
    uint64_t before, after;     /* bytes of the matrices */
} quantize_report;

/* What stands at out is complete or not there.  Norms, routers, embeddings and shared experts are never touched; a
 * checkpoint that is quantised already is refused. */
int quantize_model(const model_config *c, const st_store *s, const quantize_ask *ask, quantize_report *report, fmt_error *e);

#endif
