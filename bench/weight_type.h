/* weight_type.h - the weight types that can be timed: dtype and scales of a matrix, how much memory it takes in plain
 * form, and random contents that no kernel stumbles over. */
#ifndef MOEWE_BENCH_WEIGHT_TYPE_H
#define MOEWE_BENCH_WEIGHT_TYPE_H

#include <stdint.h>

#include <moewe.h>

#include "../formats/error.h"

typedef struct bench_type {
    char    name[24]; /* "int4-g32" */
    int32_t dtype;
    int32_t scale_dtype, scale_rows, scale_cols; /* as in moewe_scale; scale_dtype 0 = none beside the elements */
    int32_t tensor_scaled; /* one f32 an expert as well */
} bench_type;

int bench_type_find(const char *name, bench_type *out, fmt_error *e);

/* n matrices of rows x cols, one after another, and behind them their scales. */
typedef struct bench_plain {
    uint64_t elements, scales; /* bytes, multiples of 4 */
} bench_plain;
int bench_plain_bytes(const bench_type *t, int32_t n, int32_t rows, int32_t cols, bench_plain *out, fmt_error *e);

/* Fills mem, which has room for both, and tensor[n], and views them; elements are about 1 / sqrt(cols), none is NaN or
 * denormal. */
moewe_matrix bench_plain_fill(const bench_type *t, int32_t n, int32_t rows, int32_t cols, void *mem, float *tensor,
                              uint64_t *rng);

uint64_t bench_random(uint64_t *rng);     /* *rng is not 0 */
double bench_uniform(uint64_t *rng);      /* in (0, 1) */

#endif
