/* quantize_internal.h - what quantize*.c share: the rounding of stored numbers, and the search for a scale. */
#ifndef MOEWE_FORMATS_QUANTIZE_INTERNAL_H
#define MOEWE_FORMATS_QUANTIZE_INTERNAL_H

#include <string.h>

#include "clones.h"
#include "quantize.h"

/* The nearest integer, ties to even, of |x| <= 2^22: adding 1.5 * 2^23 leaves no bits behind the point. */
static inline float quantize_near(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

/* Several elements at once; codes are searched for in groups of multiples of so many, and sums are kept in so many
 * parts, which are added in order. */
enum { QUANTIZE_LANES = 8 };
typedef float quantize_lanes __attribute__((vector_size(4 * QUANTIZE_LANES)));
typedef int32_t quantize_mask __attribute__((vector_size(4 * QUANTIZE_LANES)));
#define QUANTIZE_INLINE static inline __attribute__((always_inline))

QUANTIZE_INLINE void quantize_load(const float *from, quantize_lanes *out)
{
    memcpy(out, from, sizeof *out);
}

/* In place, the nearest integers within [low, high]. */
QUANTIZE_INLINE void quantize_lanes_near(quantize_lanes *x, float low, float high)
{
    quantize_lanes lows = low - (quantize_lanes){0}, highs = high - (quantize_lanes){0}, q = *x;
    quantize_mask below = q < lows;
    q = (quantize_lanes)(((quantize_mask)lows & below) | ((quantize_mask)q & ~below));
    quantize_mask above = q > highs;
    q = (quantize_lanes)(((quantize_mask)highs & above) | ((quantize_mask)q & ~above));
    *x = (q + 0x1.8p23f) - 0x1.8p23f;
}

QUANTIZE_INLINE float quantize_sum(const quantize_lanes *part)
{
    float sum = 0;
    for (int i = 0; i < QUANTIZE_LANES; i++) sum += (*part)[i];
    return sum;
}

/* Nearest, ties to even; too large ones become the largest. */
uint16_t quantize_f16(float x);
float    quantize_f16_value(uint16_t h);

/* How a search rounds the scales that it tries to what can be stored. */
typedef float (*quantize_round_fn)(float);
float quantize_to_f16(float x);
float quantize_to_bf16(float x);
float quantize_to_f32(float x);

/* The scale s (as round leaves it) with which codes in [low, high] come nearest to w[n] in the squares; codes may be
 * NULL.  error: the sum of squares that is left. */
float quantize_search(const float *w, int32_t n, int32_t low, int32_t high, quantize_round_fn round, int8_t *codes,
                      double *error);

/* The nearest codes for a scale, and the sum of squares that is left. */
double quantize_codes(const float *w, int32_t n, int32_t low, int32_t high, float scale, int8_t *codes);

/* Rows of GGUF's blocks. */
void quantize_blocks(int32_t dtype, const float *w, int64_t blocks, void *out);

#endif
