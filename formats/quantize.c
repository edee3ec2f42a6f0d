/* quantize.c - types with scales beside the elements, and the search for scales that all types share.  For each block a
 * few scales around the one that maps the largest value to the largest code are tried, and the one with the least sum
 * of squared errors stays.  Source of the encodings: the OFP8 and MX specifications, the layouts of compressed-tensors. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "quantize_internal.h"

static const quantize_type types[] = {
    {"fp8", MOEWE_DTYPE_E4M3, MOEWE_DTYPE_F32, 128, 128, 0, 1},
    {"fp8-row", MOEWE_DTYPE_E4M3, MOEWE_DTYPE_F32, 1, 0, 0, 1},
    {"fp8-tensor", MOEWE_DTYPE_E4M3, 0, 0, 0, 1, 1},
    {"nvfp4", MOEWE_DTYPE_E2M1, MOEWE_DTYPE_E4M3, 1, 16, 1, 16},
    {"mxfp4", MOEWE_DTYPE_E2M1, MOEWE_DTYPE_E8M0, 1, 32, 0, 32},
    {"int8-g32", MOEWE_DTYPE_I8, MOEWE_DTYPE_BF16, 1, 32, 0, 32},
    {"int8-g64", MOEWE_DTYPE_I8, MOEWE_DTYPE_BF16, 1, 64, 0, 64},
    {"int8-g128", MOEWE_DTYPE_I8, MOEWE_DTYPE_BF16, 1, 128, 0, 128},
    {"int4-g32", MOEWE_DTYPE_I4, MOEWE_DTYPE_BF16, 1, 32, 0, 32},
    {"int4-g64", MOEWE_DTYPE_I4, MOEWE_DTYPE_BF16, 1, 64, 0, 64},
    {"int4-g128", MOEWE_DTYPE_I4, MOEWE_DTYPE_BF16, 1, 128, 0, 128},
    {"q8_0", MOEWE_DTYPE_Q8_0, 0, 1, 32, 0, 32},
    {"q4_0", MOEWE_DTYPE_Q4_0, 0, 1, 32, 0, 32},
    {"q4_k", MOEWE_DTYPE_Q4_K, 0, 1, 256, 0, 256},
    {"q6_k", MOEWE_DTYPE_Q6_K, 0, 1, 256, 0, 256},
};
enum { TYPES = sizeof types / sizeof *types };

const quantize_type *quantize_type_at(int32_t index)
{
    return index >= 0 && index < TYPES ? &types[index] : NULL;
}

const quantize_type *quantize_type_find(const char *name, fmt_error *e)
{
    char known[256] = "";
    size_t at = 0;
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    for (int i = 0; i < TYPES && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", types[i].name);
    fmt_fail(e, "'%.40s' is no type that weights can be quantised to, expected one of %s", name, known);
    return NULL;
}

int quantize_is_gguf(const quantize_type *t)
{
    return t->dtype >= MOEWE_DTYPE_Q8_0 && t->dtype <= MOEWE_DTYPE_Q6_K;
}

/* Scales of GGUF's blocks are f16, in Q4_K the minimum's too; others compare sums of squares in f32. */
float quantize_most(const quantize_type *t)
{
    const float half = 65504.0f;
    switch (t->dtype) {
    case MOEWE_DTYPE_Q8_0: return half * 127;
    case MOEWE_DTYPE_Q4_0: return half * 7;
    case MOEWE_DTYPE_Q4_K: return half * 63;
    case MOEWE_DTYPE_Q6_K: return half * 127 * 31;
    default: return 0x1p56f;
    }
}

static int64_t block_cols(const quantize_type *t, int64_t cols)
{
    return t->cols && t->cols < cols ? t->cols : cols;
}

uint64_t quantize_code_bytes(const quantize_type *t, int64_t n, int64_t cols)
{
    return (uint64_t)n * moewe_dtype_row_bytes(t->dtype, cols);
}

uint64_t quantize_scale_bytes(const quantize_type *t, int64_t n, int64_t cols)
{
    int64_t width = block_cols(t, cols);
    if (!t->scale_dtype) return 0;
    return (uint64_t)((n + t->rows - 1) / t->rows) * (uint64_t)((cols + width - 1) / width) * moewe_dtype_bytes(t->scale_dtype);
}

/* ---- stored numbers ---------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

float quantize_f16_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    float v = ldexpf((float)(e ? m + 1024 : m), (e ? e : 1) - 25);
    return h & 0x8000 ? -v : v;
}

uint16_t quantize_f16(float x)
{
    float a = fabsf(x);
    uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
    if (a >= 65504.0f) return sign | 0x7bff;
    if (a < 0x1p-14f) return sign | (uint16_t)rintf(a * 0x1p24f); /* 1024 is the smallest normal one */
    uint32_t u = bits_of(a);
    u = (u + 0xfff + (u >> 13 & 1)) >> 13;
    return sign | (uint16_t)(u - (112u << 10));
}

float quantize_to_f16(float x)
{
    return quantize_f16_value(quantize_f16(x));
}

float quantize_to_bf16(float x)
{
    uint32_t u = bits_of(x);
    return float_of((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u);
}

float quantize_to_f32(float x)
{
    return x;
}

/* |x| as E4M3 holds it. */
static inline float e4m3_near(float a)
{
    uint32_t u = bits_of(a);
    float normal = float_of((u + 0x7ffff + (u >> 20 & 1)) & 0xfff00000u);
    float small = quantize_near((a < 0x1p-6f ? a : 0x1p-6f) * 512.0f) * (1.0f / 512.0f);
    float v = a < 0x1p-6f ? small : normal;
    return v < 448.0f ? v : 448.0f;
}

static uint8_t e4m3(float x)
{
    float v = e4m3_near(fabsf(x));
    uint8_t sign = (uint8_t)(bits_of(x) >> 24 & 0x80);
    if (v < 0x1p-6f) return sign | (uint8_t)(v * 512.0f);
    return sign | (uint8_t)((bits_of(v) >> 20) - (120u << 3));
}

static float e4m3_value(uint8_t code)
{
    int e = code >> 3 & 15, m = code & 7;
    return ldexpf((float)(e ? m + 8 : m), (e ? e : 1) - 10);
}

/* |x| as E2M1 holds it. */
static inline float e2m1_near(float a)
{
    float in = a < 8.0f ? a : 8.0f;
    float low = quantize_near(in * 2.0f) * 0.5f, middle = quantize_near(in), high = in <= 5.0f ? 4.0f : 6.0f;
    return in < 2.0f ? low : in < 4.0f ? middle : high;
}

static uint8_t e2m1(float x)
{
    float v = e2m1_near(fabsf(x));
    uint8_t sign = (uint8_t)(bits_of(x) >> 28 & 8);
    return sign | (uint8_t)(v < 2.0f ? v * 2.0f : v < 4.0f ? v + 2.0f : v < 6.0f ? 6.0f : 7.0f);
}

/* ---- floats ------------------------------------------------------------------------------------------------------ */

typedef float (*near_fn)(float);

/* A rectangle of a matrix. */
typedef struct block {
    const float *w;
    int64_t rows, cols, stride;
} block;

static float largest(const block *b)
{
    float most = 0;
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t c = 0; c < b->cols; c++) most = fmaxf(most, fabsf(b->w[r * b->stride + c]));
    return most;
}

/* Sum of squares that is left. */
QUANTIZE_INLINE double float_error(const block *b, near_fn near, float scale)
{
    enum { LANES = QUANTIZE_LANES, AT_ONCE = 256 };
    double sum = 0;
    float inverse = 1.0f / scale;
    for (int64_t r = 0; r < b->rows; r++) {
        const float *w = b->w + r * b->stride;
        for (int64_t at = 0; at < b->cols; at += AT_ONCE) {
            int64_t n = b->cols - at < AT_ONCE ? b->cols - at : AT_ONCE;
            float off[AT_ONCE];
            quantize_lanes part = {0}, x;
            for (int64_t c = 0; c < n; c++) off[c] = fabsf(w[at + c]) - scale * near(fabsf(w[at + c]) * inverse);
            for (int64_t c = n; c % LANES; c++) off[c] = 0;
            for (int64_t c = 0; c < n; c += LANES) {
                quantize_load(off + c, &x);
                part += x * x;
            }
            sum += (double)quantize_sum(&part);
        }
    }
    return sum;
}

/* A scale for E4M3: from a little of the largest value cut off to its code halved. */
FMT_CLONES static float e4m3_scale(const block *b)
{
    enum { LOWER = -2, UPPER = 8 }; /* eighths of a factor of 2 */
    float most = largest(b), best = 1.0f;
    double least = INFINITY;
    if (most < 0x1p-110f) return 1.0f; /* the scale and what it multiplies must be normal numbers */
    for (int i = LOWER; i < UPPER; i++) {
        float scale = most / 448.0f * exp2f((float)(i < 0 ? i * 0.25f : i) / UPPER);
        double error = float_error(b, e4m3_near, scale);
        if (error >= least) continue;
        least = error;
        best = scale;
    }
    return best;
}

static void e4m3_codes(const block *b, float scale, uint8_t *codes)
{
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t c = 0; c < b->cols; c++) codes[r * b->stride + c] = e4m3(b->w[r * b->stride + c] / scale);
}

static void e4m3_rows(const quantize_type *t, const float *w, int64_t n, int64_t cols, float factor, uint8_t *codes,
                      float *scales)
{
    int64_t width = block_cols(t, cols), height = t->rows ? t->rows : n;
    for (int64_t r = 0; r < n; r += height)
        for (int64_t c = 0; c < cols; c += width) {
            const block b = {w + r * cols + c, n - r < height ? n - r : height, cols - c < width ? cols - c : width, cols};
            float scale = t->scale_dtype ? e4m3_scale(&b) : factor;
            if (t->scale_dtype) *scales++ = scale;
            e4m3_codes(&b, scale, codes + r * cols + c);
        }
}

static void e2m1_codes(const float *w, int32_t n, float scale, uint8_t *codes)
{
    for (int32_t i = 0; i < n; i += 2) {
        uint8_t even = scale > 0 ? e2m1(w[i] / scale) : 0, odd = scale > 0 ? e2m1(w[i + 1] / scale) : 0;
        codes[i / 2] = (uint8_t)(even | odd << 4);
    }
}

/* Scales of blocks are E4M3 numbers: those from which the largest value becomes a little more than 6 to 4. */
FMT_CLONES static uint8_t nvfp4_scale(const block *b, float factor)
{
    enum { LOWER = 3, UPPER = 6 };
    float most = largest(b);
    int middle = e4m3(most / 6.0f / factor), best = 0;
    double least = INFINITY;
    if (most == 0) return 0;
    for (int code = middle > LOWER ? middle - LOWER : 1; code <= middle + UPPER && code <= 0x7e; code++) {
        double error = float_error(b, e2m1_near, e4m3_value((uint8_t)code) * factor);
        if (error >= least) continue;
        least = error;
        best = code;
    }
    return (uint8_t)best;
}

/* Exponent + 127 of the power of two. */
FMT_CLONES static uint8_t mxfp4_scale(const block *b)
{
    float most = largest(b);
    double least = INFINITY;
    int exponent, best = 0;
    if (most == 0) return 0;
    (void)frexpf(most, &exponent); /* most < 2^exponent; 4 <= code of most < 8 at exponent - 3 */
    for (int k = exponent - 4; k <= exponent - 2; k++) {
        int at = k < -126 ? -126 : k;
        double error = float_error(b, e2m1_near, ldexpf(1.0f, at));
        if (error >= least) continue;
        least = error;
        best = at + 127;
    }
    return (uint8_t)best;
}

static void e2m1_rows(const quantize_type *t, const float *w, int64_t n, int64_t cols, float factor, uint8_t *codes,
                      uint8_t *scales)
{
    for (int64_t at = 0; at < n * cols; at += t->cols) {
        const block b = {w + at, 1, t->cols, t->cols};
        int nv = t->scale_dtype == MOEWE_DTYPE_E4M3;
        uint8_t code = nv ? nvfp4_scale(&b, factor) : mxfp4_scale(&b);
        float scale = nv ? e4m3_value(code) * factor : code ? ldexpf(1.0f, code - 127) : 0.0f;
        *scales++ = code;
        e2m1_codes(b.w, t->cols, scale, codes + at / 2);
    }
}

float quantize_factor(const quantize_type *t, const float *w, int64_t n)
{
    const block b = {w, 1, n, n};
    if (!t->has_factor) return 1.0f;
    if (t->dtype == MOEWE_DTYPE_E4M3) return e4m3_scale(&b);
    float most = largest(&b);
    return most >= 0x1p-100f ? most / (448.0f * 6.0f) : 1.0f;
}

/* ---- integers ---------------------------------------------------------------------------------------------------- */

FMT_CLONES double quantize_codes(const float *w, int32_t n, int32_t low, int32_t high, float scale, int8_t *codes)
{
    float inverse = scale != 0 ? 1.0f / scale : 0.0f;
    quantize_lanes part = {0};
    for (int32_t at = 0; at < n; at += QUANTIZE_LANES) {
        quantize_lanes x, q;
        quantize_load(w + at, &x);
        q = x * inverse;
        quantize_lanes_near(&q, (float)low, (float)high);
        for (int i = 0; codes && i < QUANTIZE_LANES; i++) codes[at + i] = (int8_t)q[i];
        x -= scale * q;
        part += x * x;
    }
    return (double)quantize_sum(&part);
}

/* With codes as the nearest to w * inverse: the scale with the least squares. */
FMT_CLONES static float fitted(const float *w, int32_t n, int32_t low, int32_t high, float inverse)
{
    quantize_lanes with = {0}, of = {0};
    for (int32_t at = 0; at < n; at += QUANTIZE_LANES) {
        quantize_lanes x, q;
        quantize_load(w + at, &x);
        q = x * inverse;
        quantize_lanes_near(&q, (float)low, (float)high);
        with += x * q;
        of += q * q;
    }
    float squares = quantize_sum(&of);
    return squares > 0 ? quantize_sum(&with) / squares : 0.0f;
}

float quantize_search(const float *w, int32_t n, int32_t low, int32_t high, quantize_round_fn round, int8_t *codes,
                      double *error)
{
    enum { MOST = 12 };
    int steps = high > 64 ? MOST / 2 : MOST; /* each way, */
    float most = 0, best = 0, reach = high > 64 ? 3.0f : high > 16 ? 2.0f : 1.2f; /* over so many codes */
    double least = INFINITY;
    for (int32_t i = 0; i < n; i++)
        if (fabsf(w[i]) > fabsf(most)) most = w[i];
    if (most == 0 || fabsf(most) < 0x1p-110f) {
        *error = quantize_codes(w, n, low, high, 0.0f, codes);
        return 0.0f;
    }
    for (int side = 0; side < (low == -high ? 1 : 2); side++)
        for (int i = -steps; i <= steps; i++) {
            float code = side ? (float)low : (float)high;
            float inverse = (code + (side ? -reach : reach) * (float)i / (float)steps) / most;
            float scales[2] = {round(1.0f / inverse), round(fitted(w, n, low, high, inverse))};
            for (int k = 0; k < 2; k++) {
                double e = scales[k] != 0 ? quantize_codes(w, n, low, high, scales[k], NULL) : INFINITY;
                if (e >= least) continue;
                least = e;
                best = scales[k];
            }
        }
    *error = quantize_codes(w, n, low, high, best, codes);
    return best;
}

static void int_rows(const quantize_type *t, const float *w, int64_t n, int64_t cols, uint8_t *codes, uint16_t *scales)
{
    int8_t q[128];
    double error;
    int four = t->dtype == MOEWE_DTYPE_I4;
    for (int64_t at = 0; at < n * cols; at += t->cols) {
        float scale = quantize_search(w + at, t->cols, four ? -8 : -127, four ? 7 : 127, quantize_to_bf16, q, &error);
        *scales++ = (uint16_t)(bits_of(scale) >> 16);
        if (four)
            for (int32_t i = 0; i < t->cols; i += 2) codes[(at + i) / 2] = (uint8_t)((q[i] + 8) | (q[i + 1] + 8) << 4);
        else
            memcpy(codes + at, q, (size_t)t->cols);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

void quantize_rows(const quantize_type *t, const float *w, int64_t n, int64_t cols, float factor, void *codes, void *scales)
{
    switch (t->dtype) {
    case MOEWE_DTYPE_E4M3: e4m3_rows(t, w, n, cols, factor, codes, scales); break;
    case MOEWE_DTYPE_E2M1: e2m1_rows(t, w, n, cols, factor, codes, scales); break;
    case MOEWE_DTYPE_I8:
    case MOEWE_DTYPE_I4: int_rows(t, w, n, cols, codes, scales); break;
    default: quantize_blocks(t->dtype, w, n * cols / t->cols, codes);
    }
}
