/* test_quantize.c - codes and scales of every type, decoded here by the published encodings: the error that is left
 * against that of the gguf package's quantizers (tools/make_quantize_bounds.py) and against what a uniform or a
 * floating code leaves by arithmetic; numbers that have an exact code; blocks of zeros, of one number, and tiny ones. */
#include <math.h>

#include "files.h"
#include "formats/quantize.h"

enum { ROWS = 64, COLS = 512, N = ROWS * COLS };

/* As in tools/make_quantize_bounds.py. */
static void numbers(float *w)
{
    uint32_t state = 12345;
    for (int i = 0; i < N; i++) {
        int32_t total = 0;
        for (int k = 0; k < 4; k++) {
            state = state * 1664525u + 1013904223u;
            total += (int32_t)(state >> 16);
        }
        w[i] = (float)(total - 131070) * 0x1p-20f;
    }
}

/* ---- decoding ----------------------------------------------------------------------------------------------------- */

static double half(const uint8_t *p)
{
    unsigned h = p[0] | (unsigned)p[1] << 8;
    int e = h >> 10 & 31, m = h & 1023;
    double v = ldexp(e ? m + 1024 : m, (e ? e : 1) - 25);
    return h & 0x8000 ? -v : v;
}

static double e4m3(uint8_t c)
{
    int e = c >> 3 & 15, m = c & 7;
    double v = ldexp(e ? m + 8 : m, (e ? e : 1) - 10);
    return c & 128 ? -v : v;
}

static double e2m1(int c)
{
    static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return c & 8 ? -values[c & 7] : values[c];
}

static double scale_of(const quantize_type *t, const uint8_t *s, int64_t i)
{
    float f;
    uint32_t bits;
    switch (t->scale_dtype) {
    case MOEWE_DTYPE_F32: memcpy(&f, s + 4 * i, 4); return (double)f;
    case MOEWE_DTYPE_BF16:
        bits = (uint32_t)s[2 * i] << 16 | (uint32_t)s[2 * i + 1] << 24;
        memcpy(&f, &bits, 4);
        return (double)f;
    case MOEWE_DTYPE_E4M3: return e4m3(s[i]);
    case MOEWE_DTYPE_E8M0: return ldexp(1, s[i] - 127);
    default: return 1;
    }
}

/* Scale and minimum i of Q4_K, from 12 bytes. */
static void six_bits(const uint8_t *s, int i, int *scale, int *min)
{
    *scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    *min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
}

static double q4_k(const uint8_t *b, int i)
{
    int scale, min, q = b[16 + i / 64 * 32 + i % 32] >> (i % 64 < 32 ? 0 : 4) & 15;
    six_bits(b + 4, i / 32, &scale, &min);
    return half(b) * scale * q - half(b + 2) * min;
}

static double q6_k(const uint8_t *b, int i)
{
    int side = i / 128, l = i % 32, quarter = i % 128 / 32;
    int low = b[side * 64 + (quarter & 1) * 32 + l] >> (quarter < 2 ? 0 : 4) & 15, high = b[128 + side * 32 + l] >> 2 * quarter & 3;
    return half(b + 208) * (int8_t)b[192 + i / 16] * ((low | high << 4) - 32);
}

static double decoded(const quantize_type *t, const uint8_t *codes, const uint8_t *scales, float factor, int64_t row, int64_t col,
                      int64_t cols)
{
    int64_t at = row * cols + col, wide = t->cols && t->cols < cols ? t->cols : cols, across = (cols + wide - 1) / wide;
    double s = scale_of(t, scales, row / (t->rows ? t->rows : ROWS) * across + col / wide) * (double)factor;
    switch (t->dtype) {
    case MOEWE_DTYPE_E4M3: return s * e4m3(codes[at]);
    case MOEWE_DTYPE_E2M1: return s * e2m1(codes[at / 2] >> (at % 2 ? 4 : 0) & 15);
    case MOEWE_DTYPE_I8: return s * (int8_t)codes[at];
    case MOEWE_DTYPE_I4: return s * ((codes[at / 2] >> (at % 2 ? 4 : 0) & 15) - 8);
    case MOEWE_DTYPE_Q8_0: return half(codes + at / 32 * 34) * (int8_t)codes[at / 32 * 34 + 2 + at % 32];
    case MOEWE_DTYPE_Q4_0:
        return half(codes + at / 32 * 18) * ((codes[at / 32 * 18 + 2 + at % 16] >> (at % 32 < 16 ? 0 : 4) & 15) - 8);
    case MOEWE_DTYPE_Q4_K: return q4_k(codes + at / 256 * 144, (int)(at % 256));
    default: return q6_k(codes + at / 256 * 210, (int)(at % 256));
    }
}

/* Quantises and decodes; the relative error. */
static double error_of(const quantize_type *t, const float *w, int64_t rows, int64_t cols, double *out)
{
    uint64_t code_bytes = quantize_code_bytes(t, rows, cols), scale_bytes = quantize_scale_bytes(t, rows, cols);
    uint8_t *codes = malloc(code_bytes), *scales = malloc(scale_bytes + 1);
    float factor = quantize_factor(t, w, rows * cols);
    double off = 0, all = 0;
    assert_non_null(codes);
    assert_non_null(scales);
    quantize_rows(t, w, rows, cols, factor, codes, scales);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            double v = decoded(t, codes, scales, factor, r, c, cols), d = v - (double)w[r * cols + c];
            if (out) out[r * cols + c] = v;
            off += d * d;
            all += (double)w[r * cols + c] * (double)w[r * cols + c];
        }
    free(codes);
    free(scales);
    return all > 0 ? sqrt(off / all) : off;
}

/* ---- tests --------------------------------------------------------------------------------------------------------- */

static float w[N];

static const quantize_type *type(const char *name)
{
    fmt_error e;
    const quantize_type *t = quantize_type_find(name, &e);
    if (!t) fail_msg("%s", e.text);
    return t;
}

/* Half a step in the mean square: of E4M3 2^-4 / sqrt(3) of the number at most, of E2M1 2^-2 / sqrt(3); of integers up
 * to q the largest number / q / sqrt(12), where the largest sum of four uniform numbers is sqrt(12) times the mean
 * square.  gguf's quantizers leave what tools/make_quantize_bounds.py prints; Q4_K, with minima, less than Q4_0. */
static void errors(void **state)
{
    static const struct {
        const char *name;
        double bound;
    } rows[] = {{"fp8", 0.0361},
                {"fp8-row", 0.0361},
                {"fp8-tensor", 0.0361},
                {"nvfp4", 0.1443},
                {"mxfp4", 0.1443},
                {"int8-g32", 1.0 / 127},
                {"int8-g64", 1.0 / 127},
                {"int8-g128", 1.0 / 127},
                {"int4-g32", 1.0 / 7.5},
                {"int4-g64", 1.0 / 7.5},
                {"int4-g128", 1.0 / 7.5},
                {"q8_0", 0.005057},
                {"q4_0", 0.081675},
                {"q4_k", 0.081675},
                {"q6_k", 1.0 / 31}};
    size_t n = 0;
    (void)state;
    numbers(w);
    for (; n < sizeof rows / sizeof *rows; n++) {
        double error = error_of(type(rows[n].name), w, ROWS, COLS, NULL);
        if (error > rows[n].bound) fail_msg("%s: %.6f, at most %.6f is expected", rows[n].name, error, rows[n].bound);
    }
    assert_non_null(quantize_type_at((int32_t)n - 1));
    assert_null(quantize_type_at((int32_t)n));
    assert_null(quantize_type_at(-1));
}

/* Finer groups and more bits never cost accuracy. */
static void order(void **state)
{
    static const char *const finer[][2] = {{"int8-g32", "int8-g64"}, {"int8-g64", "int8-g128"}, {"int4-g32", "int4-g64"},
                                           {"int4-g64", "int4-g128"}, {"q6_k", "q4_k"},         {"int8-g128", "int4-g32"},
                                           {"fp8-row", "nvfp4"},     {"nvfp4", "mxfp4"}};
    (void)state;
    numbers(w);
    for (size_t i = 0; i < sizeof finer / sizeof *finer; i++)
        if (error_of(type(finer[i][0]), w, ROWS, COLS, NULL) > error_of(type(finer[i][1]), w, ROWS, COLS, NULL))
            fail_msg("%s is worse than %s", finer[i][0], finer[i][1]);
}

/* Numbers that codes hold exactly come back: multiples of a power of two that use the whole range of codes. */
static void exact(void **state)
{
    static double out[N];
    (void)state;
    for (int32_t k = 0; quantize_type_at(k); k++) {
        const quantize_type *t = quantize_type_at(k);
        int four = t->dtype == MOEWE_DTYPE_I4 || t->dtype == MOEWE_DTYPE_Q4_0;
        for (int i = 0; i < 1024; i++) {
            double v = t->dtype == MOEWE_DTYPE_E2M1   ? e2m1(i % 16)
                       : t->dtype == MOEWE_DTYPE_E4M3 ? e4m3((uint8_t)(i % 2 * 128 + 8 + i / 2 % 119))
                       : four                         ? i % 16 - 8
                       : t->dtype == MOEWE_DTYPE_Q4_K ? i % 16
                       : t->dtype == MOEWE_DTYPE_Q6_K ? (i * 7 % 64) - 32
                                                      : (i * 83 % 255) - 127;
            w[i] = (float)(v * 0x1p-7);
        }
        for (int i = 0; i < 1024 && (t->dtype == MOEWE_DTYPE_Q6_K); i += 16) w[i] = -0.25f; /* the largest in each 16 */
        if (t->dtype == MOEWE_DTYPE_I8 || t->dtype == MOEWE_DTYPE_Q8_0)
            for (int i = 0; i < 1024; i += 32) w[i] = 127 * 0x1p-7f;
        if (t->dtype == MOEWE_DTYPE_E4M3)
            for (int i = 0; i < 1024; i += 64) w[i] = 448 * 0x1p-7f;
        double error = error_of(t, w, 2, 512, out);
        double allowed = t->dtype == MOEWE_DTYPE_Q4_K || t->dtype == MOEWE_DTYPE_Q6_K ? 1e-3 : 0; /* scales of scales */
        if (t->dtype == MOEWE_DTYPE_E2M1 || t->dtype == MOEWE_DTYPE_E4M3) allowed = 1e-6; /* 448 / 6, and the like, in f32 */
        if (error > allowed) fail_msg("%s: %.3e, at most %.0e is expected", t->name, error, allowed);
    }
}

static void degenerate(void **state)
{
    static double out[N];
    (void)state;
    for (int32_t k = 0; quantize_type_at(k); k++) {
        const quantize_type *t = quantize_type_at(k);
        memset(w, 0, sizeof w);
        assert_true(error_of(t, w, 2, 512, out) == 0);
        for (int i = 0; i < 1024; i++) assert_true(out[i] == 0);
        for (int i = 0; i < 1024; i++) w[i] = i % 2 ? 1e-42f : -1e-42f; /* below all normal numbers */
        (void)error_of(t, w, 2, 512, out);
        for (int i = 0; i < 1024; i++) assert_true(isfinite(out[i]) && fabs(out[i]) < 1e-30);
        for (int i = 0; i < 1024; i++) w[i] = 3e4f;
        double error = error_of(t, w, 2, 512, out);
        double allowed = t->scale_dtype == MOEWE_DTYPE_E8M0 ? 0.2 : 0.06; /* between codes 4 and 6 */
        if (error > allowed) fail_msg("%s: a constant is off by %.3f", t->name, error);
        for (int i = 0; i < 1024; i++) w[i] = i % 2 ? quantize_most(t) : 0; /* nothing overflows */
        error = error_of(t, w, 2, 512, out);
        if (error > allowed) fail_msg("%s: the largest numbers are off by %.3f", t->name, error);
        for (int i = 0; i < 1024; i++) w[i] = -w[i];
        error = error_of(t, w, 2, 512, out);
        if (error > allowed) fail_msg("%s: the most negative numbers are off by %.3f", t->name, error);
        memset(w, 0, sizeof w);
        w[700] = -1.5f;
        error = error_of(t, w, 2, 512, out);
        if (error > 0.06 || out[0] != 0 || fabs(out[699]) > 2e-3) fail_msg("%s: one number is off by %.3f", t->name, error);
    }
}

/* The last block of rows and of columns may be short. */
static void short_blocks(void **state)
{
    static double out[N];
    (void)state;
    numbers(w);
    assert_int_equal(quantize_scale_bytes(type("fp8"), 130, 150), 2 * 2 * 4);
    assert_int_equal(quantize_scale_bytes(type("fp8-row"), 3, 150), 3 * 4);
    assert_int_equal(quantize_scale_bytes(type("fp8-tensor"), 3, 150), 0);
    assert_int_equal(quantize_code_bytes(type("nvfp4"), 3, 64), 3 * 32);
    assert_int_equal(quantize_code_bytes(type("q6_k"), 2, 512), 2 * 2 * 210);
    assert_true(error_of(type("fp8"), w, 130, 150, out) < 0.0361);
    assert_true(error_of(type("fp8-row"), w, 7, 150, out) < 0.0361);
}

static void unknown(void **state)
{
    fmt_error e = {""};
    (void)state;
    assert_null(quantize_type_find("int3", &e));
    assert_mentions(e.text, (const char *[]){"int3", "nvfp4", "q6_k", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(errors),     cmocka_unit_test(order),        cmocka_unit_test(exact),
                                       cmocka_unit_test(degenerate), cmocka_unit_test(short_blocks), cmocka_unit_test(unknown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
