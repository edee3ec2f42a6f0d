/* quantize_blocks.c - GGUF's block types: Q8_0 and Q4_0 by the search that all integers share, Q6_K and Q4_K by fitting
 * scales (and minima) of sub-blocks, then the 6 or 8 bits that hold them, then the two halves that hold these, each by
 * least squares on the codes so far.  Source: the layouts of the block structs of GGUF. */
#include <math.h>
#include <string.h>

#include "quantize_internal.h"

static void put_half(uint8_t *to, float value)
{
    uint16_t h = quantize_f16(value);
    memcpy(to, &h, sizeof h);
}

static void q8_0(const float *w, uint8_t *out)
{
    int8_t q[32];
    double error;
    put_half(out, quantize_search(w, 32, -127, 127, quantize_to_f16, q, &error));
    memcpy(out + 2, q, sizeof q);
}

/* Element i is in the low half of byte i, element i + 16 in the high one. */
static void q4_0(const float *w, uint8_t *out)
{
    int8_t q[32];
    double error;
    put_half(out, quantize_search(w, 32, -8, 7, quantize_to_f16, q, &error));
    for (int i = 0; i < 16; i++) out[2 + i] = (uint8_t)((q[i] + 8) | (q[i + 16] + 8) << 4);
}

/* ---- Q6_K -------------------------------------------------------------------------------------------------------- */

/* 16 sub-blocks of 16 elements: d * scale[s] * q. */
typedef struct q6_block {
    float d;
    int8_t scale[16], q[256];
    double error;
} q6_block;

static float clamp(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

/* The best stored scales for the wanted ones, given d. */
static void q6_scales(const float *w, const float *wanted, float d, q6_block *out)
{
    out->d = d;
    out->error = 0;
    for (int s = 0; s < 16; s++) {
        double least = INFINITY;
        float middle = d != 0 ? rintf(wanted[s] / d) : 0.0f;
        for (int k = -1; k <= 1; k++) {
            float scale = clamp(middle + (float)k, -128.0f, 127.0f);
            double e = quantize_codes(w + 16 * s, 16, -32, 31, d * scale, NULL);
            if (e >= least) continue;
            least = e;
            out->scale[s] = (int8_t)scale;
        }
        out->error += quantize_codes(w + 16 * s, 16, -32, 31, d * (float)out->scale[s], out->q + 16 * s);
    }
}

/* d with the least squares for these codes. */
static float q6_fit(const float *w, const q6_block *b)
{
    double with = 0, of = 0;
    for (int i = 0; i < 256; i++) {
        double a = (double)b->scale[i / 16] * b->q[i];
        with += a * (double)w[i];
        of += a * a;
    }
    return of > 0 ? (float)(with / of) : 0.0f;
}

static void q6_pack(const q6_block *b, uint8_t *out)
{
    uint8_t *ql = out, *qh = out + 128;
    memset(out, 0, 210);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, quarter = i % 128 / 32, l = i % 32, code = b->q[i] + 32;
        ql[half * 64 + l + (quarter & 1) * 32] |= (uint8_t)((code & 15) << (quarter < 2 ? 0 : 4));
        qh[half * 32 + l] |= (uint8_t)(code >> 4 << (2 * quarter));
    }
    memcpy(out + 192, b->scale, 16);
    put_half(out + 208, b->d);
}

static void q6_k(const float *w, uint8_t *out)
{
    float wanted[16], most = 0;
    double error;
    q6_block best = {.error = INFINITY}, b;
    for (int s = 0; s < 16; s++) {
        wanted[s] = quantize_search(w + 16 * s, 16, -32, 31, quantize_to_f32, NULL, &error);
        if (fabsf(wanted[s]) > fabsf(most)) most = wanted[s];
    }
    for (int side = 0; side < 2; side++) {
        float d = quantize_to_f16(most / (side ? 127.0f : -128.0f));
        for (int round = 0; round < 3; round++) {
            q6_scales(w, wanted, d, &b);
            if (b.error < best.error) best = b;
            d = quantize_to_f16(q6_fit(w, &b));
        }
    }
    q6_pack(&best, out);
}

/* ---- Q4_K -------------------------------------------------------------------------------------------------------- */

/* 8 sub-blocks of 32 elements: d * scale[s] * q - dmin * min[s]. */
typedef struct q4_block {
    float d, dmin;
    uint8_t scale[8], min[8], q[256];
    double error;
} q4_block;

/* Nearest codes of 32 elements for scale * q - min, and the sum of squares that is left. */
FMT_CLONES static double q4_codes(const float *w, float scale, float min, uint8_t *q)
{
    float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    quantize_lanes part = {0};
    for (int at = 0; at < 32; at += QUANTIZE_LANES) {
        quantize_lanes x, c;
        quantize_load(w + at, &x);
        c = (x + min) * inverse;
        quantize_lanes_near(&c, 0.0f, 15.0f);
        for (int i = 0; q && i < QUANTIZE_LANES; i++) q[at + i] = (uint8_t)c[i];
        x -= scale * c - min;
        part += x * x;
    }
    return (double)quantize_sum(&part);
}

/* scale and min (at least 0) with the least squares for these codes. */
static void q4_fit_one(const float *w, const uint8_t *q, float *scale, float *min)
{
    double n = 32, sq = 0, sqq = 0, sw = 0, swq = 0;
    for (int i = 0; i < 32; i++) {
        sq += q[i];
        sqq += (double)q[i] * q[i];
        sw += (double)w[i];
        swq += (double)w[i] * q[i];
    }
    double det = n * sqq - sq * sq;
    double s = det > 0 ? (n * swq - sq * sw) / det : 0, m = det > 0 ? (sq * swq - sqq * sw) / det : -sw / n;
    if (m < 0) {
        m = 0;
        s = sqq > 0 ? swq / sqq : 0;
    }
    *scale = s > 0 ? (float)s : 0.0f;
    *min = (float)m;
}

/* Scale and minimum of 32 elements by themselves. */
static void q4_search(const float *w, float *scale, float *min)
{
    enum { STEPS = 10 };
    float low = 0, high = w[0];
    double least = INFINITY;
    uint8_t q[32];
    for (int i = 0; i < 32; i++) {
        low = fminf(low, w[i]);
        high = fmaxf(high, w[i]);
    }
    *scale = 0;
    *min = -low;
    if (high - low < 0x1p-110f) return;
    for (int i = -STEPS; i <= STEPS; i++) {
        float s = (high - low) / (15.0f + 1.5f * (float)i / STEPS), m = -low;
        for (int round = 0; round < 3; round++) {
            double e = q4_codes(w, s, m, q);
            if (e < least) {
                least = e;
                *scale = s;
                *min = m;
            }
            q4_fit_one(w, q, &s, &m);
        }
    }
}

/* The best stored scales and minima near the wanted ones, given d and dmin. */
static void q4_scales(const float *w, const float *scales, const float *mins, float d, float dmin, q4_block *out)
{
    out->d = d;
    out->dmin = dmin;
    out->error = 0;
    for (int s = 0; s < 8; s++) {
        double least = INFINITY;
        float scale = d > 0 ? rintf(scales[s] / d) : 0.0f, min = dmin > 0 ? rintf(mins[s] / dmin) : 0.0f;
        for (int i = 0; i < 15; i++) {
            float sc = clamp(scale + (float)(i / 5 - 1), 0.0f, 63.0f), mn = clamp(min + (float)(i % 5 - 2), 0.0f, 63.0f);
            double e = q4_codes(w + 32 * s, d * sc, dmin * mn, NULL);
            if (e >= least) continue;
            least = e;
            out->scale[s] = (uint8_t)sc;
            out->min[s] = (uint8_t)mn;
        }
        out->error += q4_codes(w + 32 * s, d * (float)out->scale[s], dmin * (float)out->min[s], out->q + 32 * s);
    }
}

/* d and dmin with the least squares for these codes. */
static void q4_fit(const float *w, const q4_block *b, float *d, float *dmin)
{
    double aa = 0, ab = 0, bb = 0, wa = 0, wb = 0;
    for (int i = 0; i < 256; i++) {
        double a = (double)b->scale[i / 32] * b->q[i], m = -(double)b->min[i / 32];
        aa += a * a;
        ab += a * m;
        bb += m * m;
        wa += (double)w[i] * a;
        wb += (double)w[i] * m;
    }
    double det = aa * bb - ab * ab;
    double s = det > 0 ? (wa * bb - wb * ab) / det : aa > 0 ? wa / aa : 0, m = det > 0 ? (wb * aa - wa * ab) / det : 0;
    *d = quantize_to_f16(s > 0 ? (float)s : 0.0f);
    *dmin = quantize_to_f16(m > 0 ? (float)m : 0.0f);
}

static void q4_pack(const q4_block *b, uint8_t *out)
{
    uint8_t *s = out + 4;
    put_half(out, b->d);
    put_half(out + 2, b->dmin);
    for (int i = 0; i < 4; i++) {
        s[i] = (uint8_t)(b->scale[i] | b->scale[i + 4] >> 4 << 6);
        s[i + 4] = (uint8_t)(b->min[i] | b->min[i + 4] >> 4 << 6);
        s[i + 8] = (uint8_t)((b->scale[i + 4] & 15) | (b->min[i + 4] & 15) << 4);
    }
    for (int i = 0; i < 128; i++) {
        int at = i / 32 * 64 + i % 32;
        out[16 + i] = (uint8_t)(b->q[at] | b->q[at + 32] << 4);
    }
}

static void q4_k(const float *w, uint8_t *out)
{
    float scales[8], mins[8], most = 0, deepest = 0;
    q4_block best = {.error = INFINITY}, b;
    for (int s = 0; s < 8; s++) {
        q4_search(w + 32 * s, &scales[s], &mins[s]);
        most = fmaxf(most, scales[s]);
        deepest = fmaxf(deepest, mins[s]);
    }
    float d = quantize_to_f16(most / 63.0f), dmin = quantize_to_f16(deepest / 63.0f);
    for (int round = 0; round < 4; round++) {
        q4_scales(w, scales, mins, d, dmin, &b);
        if (b.error < best.error) best = b;
        q4_fit(w, &b, &d, &dmin);
    }
    q4_pack(&best, out);
}

void quantize_blocks(int32_t dtype, const float *w, int64_t blocks, void *out)
{
    void (*const one)(const float *, uint8_t *) = dtype == MOEWE_DTYPE_Q8_0   ? q8_0
                                                  : dtype == MOEWE_DTYPE_Q4_0 ? q4_0
                                                  : dtype == MOEWE_DTYPE_Q4_K ? q4_k
                                                                              : q6_k;
    int64_t n = dtype == MOEWE_DTYPE_Q8_0 || dtype == MOEWE_DTYPE_Q4_0 ? 32 : 256;
    for (int64_t i = 0; i < blocks; i++) one(w + i * n, (uint8_t *)out + (uint64_t)i * moewe_dtype_row_bytes(dtype, n));
}
