/* quantize.h - from f32 weights to the codes and scales of a quantised type, with the least squared error that a search
 * over scales finds.  Knows no file and no model. */
#ifndef MOEWE_FORMATS_QUANTIZE_H
#define MOEWE_FORMATS_QUANTIZE_H

#include <stdint.h>

#include <moewe.h>

#include "error.h"

typedef struct quantize_type {
    const char *name;     /* "nvfp4" */
    int32_t dtype;        /* moewe_dtype of the elements */
    int32_t scale_dtype;  /* of blocks; 0 = none beside the elements */
    int32_t rows, cols;   /* of a block; 0 = as many as the matrix has */
    int32_t has_factor;   /* one f32 multiplies the matrix */
    int32_t multiple;     /* what the length of a row must be of */
} quantize_type;

/* NULL and a sentence with the names that are known. */
const quantize_type *quantize_type_find(const char *name, fmt_error *e);
const quantize_type *quantize_type_at(int32_t index); /* NULL past the end */
int quantize_is_gguf(const quantize_type *t);          /* scales are inside the blocks */

/* Bytes of the elements of n rows, and of their scales; rows: n is a multiple of them or ends the matrix. */
uint64_t quantize_code_bytes(const quantize_type *t, int64_t n, int64_t cols);
uint64_t quantize_scale_bytes(const quantize_type *t, int64_t n, int64_t cols);

/* The largest magnitude of a weight that the type takes. */
float quantize_most(const quantize_type *t);

/* The factor of a whole matrix of n elements; 1 for types without. */
float quantize_factor(const quantize_type *t, const float *w, int64_t n);

/* n rows, from one that begins a block on; no weight is beyond quantize_most.  scales may be NULL where there are none. */
void quantize_rows(const quantize_type *t, const float *w, int64_t n, int64_t cols, float factor, void *codes, void *scales);

#endif
