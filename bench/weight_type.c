/* weight_type.c - weight types by name, and random codes with sane scales.  Values do not matter here, only that they
 * take the time that ordinary ones take. */
#include "weight_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers --------------------------------------------------------------------- */

uint64_t bench_random(uint64_t *rng)
{
    uint64_t x = *rng;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *rng = x;
    return x * 0x2545f4914f6cdd1dull;
}

double bench_uniform(uint64_t *rng)
{
    return ((double)(bench_random(rng) >> 11) + 0.5) * 0x1p-53;
}

/* ---- names --------------------------------------------------------------------------------- */

static const bench_type types[] = {
    {"f32", MOEWE_DTYPE_F32, 0, 0, 0, 0},
    {"bf16", MOEWE_DTYPE_BF16, 0, 0, 0, 0},
    {"f16", MOEWE_DTYPE_F16, 0, 0, 0, 0},
    {"fp8", MOEWE_DTYPE_E4M3, MOEWE_DTYPE_F32, 128, 128, 0},
    {"nvfp4", MOEWE_DTYPE_E2M1, MOEWE_DTYPE_E4M3, 1, 16, 1},
    {"mxfp4", MOEWE_DTYPE_E2M1, MOEWE_DTYPE_E8M0, 1, 32, 0},
    {"int8-g", MOEWE_DTYPE_I8, MOEWE_DTYPE_BF16, 1, 0, 0}, /* with the group's width behind the name */
    {"int4-g", MOEWE_DTYPE_I4, MOEWE_DTYPE_BF16, 1, 0, 0},
    {"q8_0", MOEWE_DTYPE_Q8_0, 0, 0, 0, 0},
    {"q4_0", MOEWE_DTYPE_Q4_0, 0, 0, 0, 0},
    {"q4_k", MOEWE_DTYPE_Q4_K, 0, 0, 0, 0},
    {"q6_k", MOEWE_DTYPE_Q6_K, 0, 0, 0, 0},
};

static int grouped(const bench_type *t)
{
    return t->scale_dtype && !t->scale_cols;
}

int bench_type_find(const char *name, bench_type *out, fmt_error *e)
{
    char known[160];
    size_t at = 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const bench_type *t = &types[i];
        size_t n = strlen(t->name);
        if (!grouped(t)) {
            if (strcmp(name, t->name)) continue;
            *out = *t;
            return 0;
        }
        if (strncmp(name, t->name, n) || name[n] < '1' || name[n] > '9') continue;
        char *end;
        long cols = strtol(name + n, &end, 10);
        if (*end || cols > 1 << 20 || (cols != 16 && cols != 32 && cols % 64))
            return fmt_fail(e, "type '%.40s': groups are 16, 32 or a multiple of 64 wide", name);
        *out = *t;
        out->scale_cols = (int32_t)cols;
        snprintf(out->name, sizeof out->name, "%s%d", t->name, (int)out->scale_cols);
        return 0;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s%s", i ? ", " : "", types[i].name,
                               grouped(&types[i]) ? "N" : "");
    return fmt_fail(e, "type '%.40s' is none that can be timed, expected one of %s", name, known);
}

/* ---- sizes --------------------------------------------------------------------------------- */

static int32_t blocks(int32_t n, int32_t each)
{
    return each ? (n + each - 1) / each : 1;
}

int bench_plain_bytes(const bench_type *t, int32_t n, int32_t rows, int32_t cols, bench_plain *out, fmt_error *e)
{
    uint64_t row = moewe_dtype_row_bytes(t->dtype, cols);
    uint64_t scales = (uint64_t)blocks(rows, t->scale_rows) * (uint64_t)blocks(cols, t->scale_cols);
    if (!row) return fmt_fail(e, "type %s: %d columns are no whole number of its blocks", t->name, (int)cols);
    out->elements = (uint64_t)n * (uint64_t)rows * row;
    out->scales = t->scale_dtype ? (uint64_t)n * scales * moewe_dtype_bytes(t->scale_dtype) : 0;
    out->scales = (out->scales + 3) / 4 * 4;
    out->elements = (out->elements + 3) / 4 * 4;
    return 0;
}

/* ---- contents ------------------------------------------------------------------------------ */

/* Up to 65504 and from 2^-14 on. */
static uint16_t f16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 0x3ff));
}

static uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Of magnitude size to 2 * size and either sign. */
static float some_float(uint64_t random, float size)
{
    float magnitude = size * (1 + (float)(random >> 41) * 0x1p-23f);
    return random & 1 ? -magnitude : magnitude;
}

static void fill_floats(int32_t dtype, void *mem, uint64_t n, float size, uint64_t *rng)
{
    float *f32 = mem;
    uint16_t *b16 = mem;
    for (uint64_t i = 0; i < n; i++) {
        float value = some_float(bench_random(rng), size);
        if (dtype == MOEWE_DTYPE_F32) f32[i] = value;
        if (dtype == MOEWE_DTYPE_BF16) b16[i] = bf16_of(value);
        if (dtype == MOEWE_DTYPE_F16) b16[i] = f16_of(value);
    }
}

static void fill_bytes(uint8_t *mem, uint64_t bytes, uint64_t *rng)
{
    uint64_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t r = bench_random(rng);
        memcpy(mem + i, &r, 8);
    }
    for (; i < bytes; i++) mem[i] = (uint8_t)bench_random(rng);
}

/* Where a GGUF block has its f16 factors, and how large its other codes can get. */
static void set_factors(int32_t dtype, uint8_t *mem, uint64_t bytes, float size)
{
    static const struct {
        int32_t dtype, bytes, factor_at, second_at;
        float largest;
    } kinds[] = {{MOEWE_DTYPE_Q8_0, 34, 0, -1, 127},
                 {MOEWE_DTYPE_Q4_0, 18, 0, -1, 8},
                 {MOEWE_DTYPE_Q4_K, 144, 0, 2, 15 * 63},
                 {MOEWE_DTYPE_Q6_K, 210, 208, -1, 32 * 127}};
    size_t k = 0;
    while (kinds[k].dtype != dtype) k++;
    float factor = 2 * size / kinds[k].largest;
    uint16_t half = f16_of(factor < 0x1p-14f ? 0x1p-14f : factor), second = f16_of(size / 63 + 0x1p-14f);
    for (uint64_t at = 0; at < bytes; at += (uint64_t)kinds[k].bytes) {
        memcpy(mem + at + kinds[k].factor_at, &half, sizeof half);
        if (kinds[k].second_at >= 0) memcpy(mem + at + kinds[k].second_at, &second, sizeof second);
    }
}

static void fill_elements(const bench_type *t, uint8_t *mem, uint64_t bytes, float size, uint64_t *rng)
{
    int whole = t->dtype == MOEWE_DTYPE_F32 || t->dtype == MOEWE_DTYPE_BF16 || t->dtype == MOEWE_DTYPE_F16;
    if (whole) {
        fill_floats(t->dtype, mem, bytes / moewe_dtype_bytes(t->dtype), size, rng);
        return;
    }
    fill_bytes(mem, bytes, rng);
    if (t->dtype == MOEWE_DTYPE_E4M3)
        for (uint64_t i = 0; i < bytes; i++) mem[i] &= 0xbf; /* below 2: no NaN */
    if (!t->scale_dtype) set_factors(t->dtype, mem, bytes, size);
}

static float largest_code(int32_t dtype)
{
    return dtype == MOEWE_DTYPE_E4M3 ? 2 : dtype == MOEWE_DTYPE_E2M1 ? 6 : dtype == MOEWE_DTYPE_I8 ? 127 : 7;
}

static void fill_scales(const bench_type *t, uint8_t *mem, uint64_t bytes, float size, uint64_t *rng)
{
    float scale = 2 * size / largest_code(t->dtype);
    int exponent;
    frexpf(scale, &exponent);
    if (t->scale_dtype == MOEWE_DTYPE_E8M0)
        for (uint64_t i = 0; i < bytes; i++) mem[i] = (uint8_t)(126 + exponent + (int)(bench_random(rng) & 1));
    else if (t->scale_dtype == MOEWE_DTYPE_E4M3)
        for (uint64_t i = 0; i < bytes; i++) mem[i] = (uint8_t)(0x38 | (bench_random(rng) & 7)); /* 1 to 1.875 */
    else
        fill_floats(t->scale_dtype, mem, bytes / moewe_dtype_bytes(t->scale_dtype), scale, rng);
}

moewe_matrix bench_plain_fill(const bench_type *t, int32_t n, int32_t rows, int32_t cols, void *mem, float *tensor,
                              uint64_t *rng)
{
    bench_plain b;
    uint8_t *at = mem;
    float size = 1 / sqrtf((float)cols);
    moewe_matrix m = {.data = mem, .dtype = t->dtype};
    if (bench_plain_bytes(t, n, rows, cols, &b, NULL)) return m;
    fill_elements(t, at, (uint64_t)n * (uint64_t)rows * moewe_dtype_row_bytes(t->dtype, cols), size, rng);
    if (!t->scale_dtype) return m;
    m.scale = (moewe_scale){.data = at + b.elements, .dtype = t->scale_dtype, .rows = t->scale_rows,
                            .cols = t->scale_cols};
    fill_scales(t, at + b.elements, b.scales, size, rng);
    if (t->tensor_scaled) {
        for (int32_t i = 0; i < n; i++) tensor[i] = 2 * size / largest_code(t->dtype);
        m.scale.tensor = tensor;
    }
    return m;
}
