/* values.h - numbers of each dtype as f32, and back: what the kernels of every level compile for themselves. */
#ifndef MOEWE_CPU_VALUES_H
#define MOEWE_CPU_VALUES_H

#include "cpu.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

static inline float bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bf16_f32(uint16_t h)
{
    return bits_f32((uint32_t)h << 16);
}

/* Round to nearest even; a NaN stays one. */
static inline uint16_t f32_bf16(float f)
{
    uint32_t u = f32_bits(f);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

static inline float f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    /* Scaling by 2^112 moves the exponent and makes denormals exact; Inf and NaN are put back after. */
    float f = bits_f32(rest) * 0x1p112f;
    uint32_t u = rest >= 0x0f800000 ? rest | 0x7f800000 : f32_bits(f);
    return bits_f32(sign | u);
}

/* n halves, as the hardware has it where it does. */
static inline void halves_f32(float *y, const uint16_t *h, int32_t n)
{
    int32_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(h + i))));
#endif
    for (; i < n; i++) y[i] = f16_f32(h[i]);
}

static inline void to_f32(float *y, const void *x, int32_t dtype, int32_t n)
{
    if (dtype == MOEWE_DTYPE_F32) {
        memcpy(y, x, (size_t)n * sizeof *y);
        return;
    }
    const uint16_t *h = x;
    if (dtype == MOEWE_DTYPE_BF16)
        for (int32_t i = 0; i < n; i++) y[i] = bf16_f32(h[i]);
    else
        halves_f32(y, h, n);
}

static inline float e4m3_f32(uint32_t b)
{
    /* By masks and not by branches, which data would mislead. */
    uint32_t u = b & 0x7f, small = 0u - (uint32_t)(u < 8), nan = 0u - (uint32_t)(u == 0x7f);
    uint32_t bits = (f32_bits((float)(int32_t)u * 0x1p-9f) & small) | (((u << 20) + (120u << 23)) & ~small);
    return bits_f32(bits | (0x7fc00000u & nan) | (b & 0x80) << 24);
}

static inline float e8m0_f32(uint32_t b)
{
    return bits_f32(b == 255 ? 0x7fc00000u : b ? b << 23 : 0x00400000u);
}

#endif
