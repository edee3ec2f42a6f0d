/* weight_kind.h - owns random matrices of every dtype and form of scales that weights may have.  It must never take
 * a size or a value from the library. */
#ifndef MOEWE_TESTS_WEIGHT_KIND_H
#define MOEWE_TESTS_WEIGHT_KIND_H

#include "layer_case.h"

typedef struct weight_kind {
    const char *name;
    int32_t dtype;
    int32_t scale_dtype, scale_rows, scale_cols; /* of moewe_scale; dtype 0: no elements */
    int32_t tensor;                              /* 1: a factor for each expert */
    double  frobenius; /* what the whole layer may be off with such weights, relative; by contract (1.2e-2 to two digits where x is int8), not by arithmetic */
} weight_kind;

/* Every dtype that has scales beside or inside it, in the forms that checkpoints have. */
extern const weight_kind weight_kinds[];
extern const int32_t     weight_kind_count;

/* By name; the plain dtypes f32, f16 and bf16 are known too. */
const weight_kind *weight_kind_named(const char *name);
/* What case_build takes for a dtype. */
const weight_kind *weight_kind_of(int32_t dtype);

/* Rows are a multiple of this many elements. */
int32_t weight_kind_unit(const weight_kind *k);

/* n matrices whose elements have a root mean square of about rms.  with: WITH_UNALIGNED, WITH_POINTERS, WITH_STRIDES
 * (rows of elements and of scales are further apart than they are long; the gaps hold 0xff) and, where an element is
 * a byte, WITH_TRANSPOSED. */
moewe_matrix weight_kind_fill(layer_case *c, int32_t n, int32_t rows, int32_t cols, const weight_kind *k, double rms,
                              unsigned with, rng *r);

#endif
