/* ref_value.c - owns reading of elements, roundings, and the matrix product of the oracle.  It must never
 * call the library: the conversions here are written from the formats' definitions. */
#include "ref.h"

#include <math.h>

/* Dtypes that activations are rounded to before they meet E4M3 and other scaled weights. */
static int32_t e4m3_operand = MOEWE_DTYPE_F32, code_operand = MOEWE_DTYPE_F32;

/* Least positive normal f32: hardware that flushes subnormals may lose this much an operation. */
static const double tiny = 1.1754943508222875e-38;

double ref_unit(int32_t dtype)
{
    switch (dtype) {
    case MOEWE_DTYPE_BF16:
        return ldexp(1.0, -8);
    case MOEWE_DTYPE_F16:
        return ldexp(1.0, -11);
    default:
        return ldexp(1.0, -24);
    }
}

/* sign, exponent of e bits, mantissa of m bits, as IEEE 754 lays them out. */
static double decode(uint32_t bits, int e, int m)
{
    int bias = (1 << (e - 1)) - 1;
    uint32_t mantissa = bits & ((1u << m) - 1u);
    int exponent = (int)((bits >> m) & ((1u << e) - 1u));
    double sign = (bits >> (e + m)) & 1u ? -1.0 : 1.0;

    if (exponent == (1 << e) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp((double)mantissa, 1 - bias - m);
    return sign * ldexp((double)(mantissa | (1u << m)), exponent - bias - m);
}

/* The small formats have no infinities: all ones is a number like others, where the caller does not say NaN. */
static double decode_finite(uint32_t bits, int e, int m, int bias)
{
    uint32_t mantissa = bits & ((1u << m) - 1u), exponent = (bits >> m) & ((1u << e) - 1u);
    double sign = (bits >> (e + m)) & 1u ? -1.0 : 1.0;

    if (exponent == 0) return sign * ldexp((double)mantissa, 1 - bias - m);
    return sign * ldexp((double)(mantissa | (1u << m)), (int)exponent - bias - m);
}

/* OFP8 E4M3: bias 7, S.1111.111 is NaN.  OCP MX: E2M1 has bias 1, E8M0 is a bare exponent. */
static double e4m3(uint8_t bits)
{
    return (bits & 0x7f) == 0x7f ? NAN : decode_finite(bits, 4, 3, 7);
}

static double e2m1(uint32_t bits)
{
    return decode_finite(bits, 2, 1, 1);
}

static double e8m0(uint8_t bits)
{
    return bits == 0xff ? NAN : ldexp(1.0, bits - 127);
}

double ref_load(const void *p, int32_t dtype)
{
    uint32_t word;
    uint16_t half;

    if (dtype == MOEWE_DTYPE_E4M3) return e4m3(*(const uint8_t *)p);
    if (dtype == MOEWE_DTYPE_E8M0) return e8m0(*(const uint8_t *)p);
    if (dtype == MOEWE_DTYPE_F32) {
        memcpy(&word, p, sizeof word);
        return decode(word, 8, 23);
    }
    memcpy(&half, p, sizeof half);
    return dtype == MOEWE_DTYPE_BF16 ? decode(half, 8, 7) : decode(half, 5, 10);
}

int ref_absent(const moewe_matrix *m)
{
    return m->data == NULL && m->experts == NULL;
}

/* ---- elements ---- */

/* How many elements lie together in how many bytes. */
static int32_t packing(int32_t dtype, int32_t *bytes)
{
    switch (dtype) {
    case MOEWE_DTYPE_F32: *bytes = 4; return 1;
    case MOEWE_DTYPE_E4M3:
    case MOEWE_DTYPE_E8M0:
    case MOEWE_DTYPE_I8: *bytes = 1; return 1;
    case MOEWE_DTYPE_E2M1:
    case MOEWE_DTYPE_I4: *bytes = 1; return 2;
    case MOEWE_DTYPE_Q8_0: *bytes = 2 + 32; return 32;
    case MOEWE_DTYPE_Q4_0: *bytes = 2 + 16; return 32;
    case MOEWE_DTYPE_Q4_K: *bytes = 2 + 2 + 12 + 128; return 256;
    case MOEWE_DTYPE_Q6_K: *bytes = 128 + 64 + 16 + 2; return 256;
    default: *bytes = 2; return 1;
    }
}

/* The 6-bit scale and minimum of the 32 elements `group` (0 to 7) of a Q4_K block: of groups 0 to 3 in the low bits
 * of bytes 0 to 3 and 4 to 7; of groups 4 to 7 the low four bits are the halves of bytes 8 to 11, the high two are
 * on top of the others'. */
static void q4_k_pair(const uint8_t packed[12], int group, int *scale, int *min)
{
    if (group < 4) {
        *scale = packed[group] % 64;
        *min = packed[4 + group] % 64;
    } else {
        *scale = packed[4 + group] % 16 + 16 * (packed[group - 4] / 64);
        *min = packed[4 + group] / 16 + 16 * (packed[group] / 64);
    }
}

/* Element i of a block of a GGUF dtype. */
static ref_weight block_element(const uint8_t *b, int32_t dtype, int32_t i)
{
    ref_weight w = {0.0, 0.0, 0.0};
    double d;
    int q, scale, min;

    switch (dtype) {
    case MOEWE_DTYPE_Q8_0: /* f16 d; int8 q[32] */
        w.reach = ref_load(b, MOEWE_DTYPE_F16);
        w.v = w.reach * (b[2 + i] < 128 ? b[2 + i] : b[2 + i] - 256);
        break;
    case MOEWE_DTYPE_Q4_0: /* f16 d; 16 bytes: elements 0 to 15 are the low halves, 16 to 31 the high ones */
        w.reach = ref_load(b, MOEWE_DTYPE_F16);
        q = i < 16 ? b[2 + i] % 16 : b[2 + i - 16] / 16;
        w.v = w.reach * (q - 8);
        break;
    case MOEWE_DTYPE_Q4_K: /* f16 d, dmin; 12 bytes of scales; 4 times 32 bytes: 32 low halves, then 32 high ones */
        q4_k_pair(b + 4, i / 32, &scale, &min);
        q = b[16 + i / 64 * 32 + i % 32];
        q = i / 32 % 2 ? q / 16 : q % 16;
        w.reach = ref_load(b, MOEWE_DTYPE_F16) * scale;
        d = ref_load(b + 2, MOEWE_DTYPE_F16) * min;
        w.v = w.reach * q - d;
        w.size = fabs(w.reach * q) + fabs(d);
        w.reach = fabs(w.reach) + fabs(d);
        return w;
    default: /* Q6_K: 128 bytes of low halves, 64 of two more bits each, int8 scales[16], f16 d; two halves of 128
              * elements in 64 and 32 bytes, quarters of 32 in the low halves, the low halves, the high, the high */
        q = b[i / 128 * 64 + i % 64];
        q = i % 128 < 64 ? q % 16 : q / 16;
        q += 16 * (b[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3);
        scale = b[192 + i / 16] < 128 ? b[192 + i / 16] : b[192 + i / 16] - 256;
        w.reach = ref_load(b + 208, MOEWE_DTYPE_F16) * scale;
        w.v = w.reach * (q - 32);
    }
    w.size = fabs(w.v);
    return w;
}

static double code_value(const uint8_t *p, int32_t dtype, int32_t col)
{
    switch (dtype) {
    case MOEWE_DTYPE_E4M3: return e4m3(*p);
    case MOEWE_DTYPE_I8: return *p < 128 ? *p : *p - 256;
    case MOEWE_DTYPE_E2M1: return e2m1(col % 2 ? *p / 16u : *p % 16u);
    default: return (col % 2 ? *p / 16 : *p % 16) - 8; /* I4 */
    }
}

static int scaled(int32_t dtype)
{
    return dtype >= MOEWE_DTYPE_E4M3 && dtype <= MOEWE_DTYPE_Q6_K;
}

static int64_t blocks(int32_t n, int32_t each)
{
    return ((int64_t)n + each - 1) / each;
}

/* What moewe_scale multiplies (row, col) with, without the factor of the whole matrix. */
static double block_scale(const moewe_scale *s, int32_t rows, int32_t cols, int32_t expert, int32_t row, int32_t col)
{
    int32_t size, high = s->rows ? s->rows : rows, wide = s->cols ? s->cols : cols;
    int64_t col_stride, row_stride, expert_stride;
    const char *base;

    if (!s->data && !s->experts) return 1.0;
    packing(s->dtype, &size);
    col_stride = s->col_stride ? s->col_stride : size;
    row_stride = s->row_stride ? s->row_stride : col_stride * blocks(cols, wide);
    expert_stride = s->expert_stride ? s->expert_stride : row_stride * blocks(rows, high);
    base = s->experts ? s->experts[expert] : (const char *)s->data + expert * expert_stride;
    return ref_load(base + row / high * row_stride + col / wide * col_stride, s->dtype);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

ref_weight ref_weight_at(const moewe_matrix *m, int32_t rows, int32_t cols, int32_t expert, int32_t row, int32_t col)
{
    int32_t dtype = m->dtype == MOEWE_DTYPE_DEFAULT ? MOEWE_DTYPE_F32 : m->dtype;
    int32_t bytes, together = packing(dtype, &bytes);
    int64_t col_stride = m->col_stride ? m->col_stride : bytes;
    int64_t row_stride = m->row_stride ? m->row_stride : cols / together * col_stride;
    int64_t expert_stride = m->expert_stride ? m->expert_stride : rows * row_stride;
    const char *base = m->experts ? m->experts[expert] : (const char *)m->data + expert * expert_stride;
    const void *p = base + row * row_stride + col / together * col_stride;
    double scale, factor;
    ref_weight w;

    if (together > 2) {
        w = block_element(p, dtype, col % together);
        w.reach = larger(1.0, fabs(w.reach));
        return w;
    }
    if (!scaled(dtype)) {
        w.v = ref_load(p, dtype);
        w.size = fabs(w.v);
        w.reach = 1.0;
        return w;
    }
    scale = block_scale(&m->scale, rows, cols, expert, row, col);
    factor = m->scale.tensor ? (double)m->scale.tensor[expert] : 1.0;
    w.v = code_value(p, dtype, col) * scale * factor;
    w.size = fabs(w.v);
    w.reach = larger(1.0, fabs(scale)) * larger(1.0, fabs(factor));
    return w;
}

double ref_element(const moewe_matrix *m, int32_t rows, int32_t cols, int32_t expert, int32_t row, int32_t col)
{
    return ref_weight_at(m, rows, cols, expert, row, col).v;
}

/* ---- products ---- */

double ref_error_bound(double terms, double sum_abs)
{
    double nu = terms * ref_unit(MOEWE_DTYPE_F32);

    return nu / (1.0 - nu) * sum_abs + terms * tiny;
}

void ref_operands(int32_t of_e4m3, int32_t of_codes)
{
    e4m3_operand = of_e4m3;
    code_operand = of_codes;
}

/* What rounding x[c] of a row of cols may take from it, and hardware that flushes: bf16 keeps 8 bits; a block of 32
 * rounded to -127 .. 127 is off by half a step of its largest, and counts as 0 below 2^-100. */
static double rounding(int32_t dtype, const ref_value *x, int32_t cols, int32_t c)
{
    int32_t operand = !scaled(dtype) ? MOEWE_DTYPE_F32 : dtype == MOEWE_DTYPE_E4M3 ? e4m3_operand : code_operand;
    double most = 0.0;

    if (operand == MOEWE_DTYPE_BF16) return ref_unit(operand) * (fabs(x[c].v) + x[c].e) + tiny;
    if (operand != MOEWE_DTYPE_I8) return 0.0;
    for (int32_t i = c / 32 * 32; i < cols && i < c / 32 * 32 + 32; i++) most = larger(most, fabs(x[i].v) + x[i].e);
    return (0.5 / 127.0 + 4.0 * ref_unit(MOEWE_DTYPE_F32)) * most + ldexp(1.0, -100);
}

ref_value ref_gemv_row(const moewe_matrix *m, int32_t expert, int32_t rows, int32_t cols, int32_t row,
                       const ref_value *x)
{
    /* cols products, cols - 1 additions on the longest path, one for the bias; where there are scales, three more: a
     * block's, that of the whole, and the minimum */
    double sum = 0.0, sum_abs = 0.0, inherited = 0.0, reach = 1.0, terms = cols + (scaled(m->dtype) ? 4.0 : 1.0);
    ref_value y;

    for (int32_t c = 0; c < cols; c++) {
        ref_weight a = ref_weight_at(m, rows, cols, expert, row, c);
        double e = x[c].e + rounding(m->dtype, x, cols, c);

        sum += a.v * x[c].v;
        sum_abs += a.size * (fabs(x[c].v) + e);
        inherited += a.size * e;
        reach = larger(reach, a.reach);
    }
    if (m->bias) {
        double b = ref_load(m->bias + (int64_t)expert * rows + row, MOEWE_DTYPE_F32);

        sum += b;
        sum_abs += fabs(b);
    }
    y.v = sum;
    y.e = inherited + ref_error_bound(terms, sum_abs) + terms * (reach - 1.0) * tiny;
    return y;
}

void ref_gemv(const moewe_matrix *m, int32_t expert, int32_t rows, int32_t cols, const ref_value *x, ref_value *y)
{
    for (int32_t r = 0; r < rows; r++) y[r] = ref_gemv_row(m, expert, rows, cols, r, x);
}
