/* gguf_blocks.c - rows in blocks to f32, for tables that are looked up and not multiplied with.  Never encodes. */
#include <string.h>

#include <moewe.h>

#include "gguf.h"

static float f16(const uint8_t *at)
{
    uint32_t half = (uint32_t)at[0] | (uint32_t)at[1] << 8, exponent = half >> 10 & 31, mantissa = half & 1023;
    uint32_t bits = (half & 0x8000u) << 16 | (exponent == 31 ? 0xffu : exponent + 112) << 23 | mantissa << 13;
    float value;
    if (exponent == 0) return (half & 0x8000u ? -1.0f : 1.0f) * (float)mantissa * 0x1p-24f;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* d, 32 signed bytes. */
static void q8_0(const uint8_t *b, float *out)
{
    float d = f16(b);
    for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)b[2 + i];
}

/* d, 16 bytes: elements 0 to 15 in the low halves, 16 to 31 in the high ones, each 8 more than it is. */
static void q4_0(const uint8_t *b, float *out)
{
    float d = f16(b);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((b[2 + i] & 15) - 8);
        out[16 + i] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

/* Scale and minimum i of the eight, 6 bits each, in 12 bytes. */
static void k4_scale(const uint8_t *s, int i, int *scale, int *least)
{
    if (i < 4) {
        *scale = s[i] & 63;
        *least = s[i + 4] & 63;
    } else {
        *scale = (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
        *least = (s[i + 4] >> 4) | (s[i] >> 6) << 4;
    }
}

/* d, dmin, scales, 128 bytes: 32 of them hold two runs of 32 elements. */
static void q4_k(const uint8_t *b, float *out)
{
    float d = f16(b), m = f16(b + 2);
    for (int i = 0; i < 8; i++) {
        const uint8_t *codes = b + 16 + 32 * (i / 2);
        int scale, least;
        k4_scale(b + 4, i, &scale, &least);
        float by = d * (float)scale, from = m * (float)least;
        for (int k = 0; k < 32; k++) out[32 * i + k] = by * (float)(i % 2 ? codes[k] >> 4 : codes[k] & 15) - from;
    }
}

/* 128 bytes of low halves, 64 of two bits more, 16 signed scales, d. */
static void q6_k(const uint8_t *b, float *out)
{
    float d = f16(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, run = i % 128 / 32, k = i % 32;
        const uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half;
        int code = (run < 2 ? low[32 * run + k] & 15 : low[32 * (run - 2) + k] >> 4) | (high[k] >> 2 * run & 3) << 4;
        out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)(code - 32);
    }
}

int gguf_row_floats(int32_t dtype, const void *row, int64_t n, float *out)
{
    static const struct {
        int32_t dtype, elements, bytes;
        void (*read)(const uint8_t *block, float *out);
    } kinds[] = {{MOEWE_DTYPE_Q8_0, 32, 34, q8_0},
                 {MOEWE_DTYPE_Q4_0, 32, 18, q4_0},
                 {MOEWE_DTYPE_Q4_K, 256, 144, q4_k},
                 {MOEWE_DTYPE_Q6_K, 256, 210, q6_k}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].dtype != dtype || n % kinds[i].elements) continue;
        const uint8_t *at = row;
        for (int64_t k = 0; k < n; k += kinds[i].elements, at += kinds[i].bytes) kinds[i].read(at, out + k);
        return 0;
    }
    return -1;
}
