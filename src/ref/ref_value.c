/* ref_value.c - owns reading of elements, roundings, and the matrix product of the oracle.  It must never
 * call the library: the conversions here are written from the formats' definitions. */
#include "ref.h"

#include <math.h>

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

double ref_load(const void *p, int32_t dtype)
{
    uint32_t word;
    uint16_t half;

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

double ref_element(const moewe_matrix *m, int32_t rows, int32_t cols, int32_t expert, int32_t row, int32_t col)
{
    int32_t dtype = m->dtype == MOEWE_DTYPE_DEFAULT ? MOEWE_DTYPE_F32 : m->dtype;
    int64_t size = dtype == MOEWE_DTYPE_F32 ? 4 : 2;
    int64_t col_stride = m->col_stride ? m->col_stride : size;
    int64_t row_stride = m->row_stride ? m->row_stride : cols * size;
    int64_t expert_stride = m->expert_stride ? m->expert_stride : rows * row_stride;
    const char *base = m->experts ? m->experts[expert] : (const char *)m->data + expert * expert_stride;

    return ref_load(base + row * row_stride + col * col_stride, dtype);
}

double ref_error_bound(double terms, double sum_abs)
{
    double nu = terms * ref_unit(MOEWE_DTYPE_F32);

    return nu / (1.0 - nu) * sum_abs + terms * tiny;
}

void ref_gemv(const moewe_matrix *m, int32_t expert, int32_t rows, int32_t cols, const ref_value *x, ref_value *y)
{
    for (int32_t r = 0; r < rows; r++) {
        double sum = 0.0, sum_abs = 0.0, inherited = 0.0;

        for (int32_t c = 0; c < cols; c++) {
            double a = ref_element(m, rows, cols, expert, r, c);

            sum += a * x[c].v;
            sum_abs += fabs(a) * (fabs(x[c].v) + x[c].e);
            inherited += fabs(a) * x[c].e;
        }
        if (m->bias) {
            double b = ref_load(m->bias + (int64_t)expert * rows + r, MOEWE_DTYPE_F32);

            sum += b;
            sum_abs += fabs(b);
        }
        /* cols products, cols - 1 additions on the longest path, one for the bias */
        y[r].v = sum;
        y[r].e = inherited + ref_error_bound(cols + 1.0, sum_abs);
    }
}
