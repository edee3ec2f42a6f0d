/* rounded.h - rows in int8, for weights whose codes are small whole numbers.  Every level computes with them alike and
 * so gives the same bits: x is rounded in blocks of CPU_STEP, each with a scale of its own; products of one chain
 * (CPU_STEP K's, or a block of 16) are added exactly in int32; then, chain after chain in order of K,
 *     c = c + (scale of weights * scale of x) * chain            [and c = c - minimum * sum of x]
 * in f32 with fused multiply-adds. */
#ifndef MOEWE_CPU_ROUNDED_H
#define MOEWE_CPU_ROUNDED_H

#include "values.h"

enum {
    INT_SPAN = 256, /* K's of x at a time */
    INT_STEPS = INT_SPAN / CPU_STEP,
    INT_CHAINS = 2 * INT_STEPS, /* at most: a block has 16 K's at least */
};

static inline int cpu_ints(const cpu_format *f)
{
    return f->values > CPU_E4M3;
}

/* Where a rounded row (cpu_kernels.round) has what: elements, a scale for each block, a sum of elements for each half
 * of a block. */
typedef struct rounded_row { int8_t *q; float *scale; int16_t *total; } rounded_row;

static inline rounded_row rounded_row_at(const void *row, int32_t k)
{
    int32_t padded = (k + CPU_STEP - 1) / CPU_STEP * CPU_STEP;
    uint8_t *at = (uint8_t *)(uintptr_t)row;
    return (rounded_row){(int8_t *)at, (float *)(void *)(at + padded), (int16_t *)(void *)(at + padded + padded / 8)};
}

typedef int8_t block_bytes __attribute__((vector_size(CPU_STEP)));

/* Each eight K's as a dword or two of codes has them: nibbles 0 4 1 5 2 6 3 7, bytes 0 2 1 3 4 6 5 7 (cpu_panel). */
static inline void in_order(block_bytes *b, int32_t order)
{
    const block_bytes nibbles = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15,
                                 16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31};
    const block_bytes bytes = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15,
                               16, 18, 17, 19, 20, 22, 21, 23, 24, 26, 25, 27, 28, 30, 29, 31};
    *b = __builtin_shuffle(*b, order == CPU_ORDER_NIBBLES ? nibbles : bytes);
}

/* A block that is nothing but smaller than 2^-100 counts as 0; one with NaN or Inf gets NaN for a scale.  Whole loops
 * without branches, so that they vectorise; magnitudes are compared as bits, which a compiler may reorder. */
static inline void round_block(const float x[CPU_STEP], int32_t order, rounded_row to)
{
    block_bytes b;
    int32_t q[CPU_STEP], most = 0;
    for (int i = 0; i < CPU_STEP; i++) {
        int32_t u = (int32_t)(f32_bits(x[i]) & 0x7fffffff);
        most = u > most ? u : most;
    }
    float top = bits_f32((uint32_t)most), times = top < 0x1p-100f ? 0.0f : 127.0f / top;
    if (most >= 0x7f800000) {
        memset(to.q, 0, CPU_STEP);
        to.total[0] = to.total[1] = 0;
        *to.scale = bits_f32(0x7fc00000);
        return;
    }
    /* Adding 1.5 * 2^23 rounds to nearest even and leaves the whole number in the low bits. */
    for (int i = 0; i < CPU_STEP; i++) q[i] = (int32_t)(f32_bits(x[i] * times + 12582912.0f) - 0x4b400000u);
    for (int half = 0; half < 2; half++) {
        int32_t sum = 0;
        for (int i = 0; i < CPU_STEP / 2; i++) sum += q[half * (CPU_STEP / 2) + i];
        to.total[half] = (int16_t)sum;
    }
    for (int i = 0; i < CPU_STEP; i++) ((int8_t *)&b)[i] = (int8_t)q[i];
    in_order(&b, order);
    memcpy(to.q, &b, sizeof b);
    *to.scale = top < 0x1p-100f ? 0.0f : top * (1.0f / 127.0f);
}

/* n values of a row of x from at on, padded with zeros to whole blocks. */
static inline void round_values(const void *x, int32_t x_dtype, int32_t at, int32_t n, int32_t order, rounded_row to)
{
    const uint8_t *from = (const uint8_t *)x + (uint64_t)at * moewe_dtype_bytes(x_dtype);
    for (int32_t i = 0; i < n; i += CPU_STEP, from += CPU_STEP * moewe_dtype_bytes(x_dtype)) {
        float block[CPU_STEP] = {0};
        to_f32(block, from, x_dtype, n - i < CPU_STEP ? n - i : CPU_STEP);
        round_block(block, order, to);
        to = (rounded_row){to.q + CPU_STEP, to.scale + 1, to.total + 2};
    }
}

/* cpu_kernels.round */
static inline void round_row(void *row, int32_t k, int32_t at, const void *x, int32_t x_dtype, int32_t n, int32_t order)
{
    rounded_row r = rounded_row_at(row, k);
    round_values(x, x_dtype, 0, n, order,
                 (rounded_row){r.q + at, r.scale + at / CPU_STEP, r.total + at / CPU_STEP * 2});
}

/* ---- a span of rows ------------------------------------------------------------------------------ */

typedef struct int_rows {
    int8_t  *q;     /* [rows][INT_SPAN] */
    float   *scale; /* [rows][INT_STEPS]; halved for E2M1, whose codes count halves */
    float   *sum;   /* [rows][INT_STEPS]: of x as rounded; only for weights with minima */
    int32_t *start; /* [rows][INT_CHAINS]: where the sum of a chain starts when codes have an offset that makes them
                       unsigned: minus offset times the chain's elements.  NULL: no level's need */
} int_rows;

/* K's of a chain. */
static inline int32_t cpu_chain(const cpu_format *f)
{
    return f->block < CPU_STEP ? f->block : CPU_STEP;
}

/* n K's from at on of rows of k in all, which are rounded already (CPU_X_ROUNDED) or here. */
static inline void take_rows(const void *const *x, int32_t x_dtype, int32_t rows, int32_t k, int32_t at, int32_t n,
                             const cpu_format *f, int32_t offset, const int_rows *to)
{
    int32_t blocks = (n + CPU_STEP - 1) / CPU_STEP, halves = cpu_chain(f) / (CPU_STEP / 2), chains = blocks * 2 / halves;
    for (int32_t r = 0; r < rows; r++) {
        int16_t room[2 * INT_STEPS];
        rounded_row row = {to->q + r * INT_SPAN, to->scale + r * INT_STEPS, room};
        if (x_dtype == CPU_X_ROUNDED) {
            rounded_row from = rounded_row_at(x[r], k);
            memcpy(row.q, from.q + at, (size_t)blocks * CPU_STEP);
            memcpy(row.scale, from.scale + at / CPU_STEP, (size_t)blocks * sizeof *row.scale);
            row.total = from.total + at / CPU_STEP * 2;
        } else {
            round_values(x[r], x_dtype, at, n, cpu_order(f->values), row);
        }
        for (int32_t b = 0; b < blocks && f->scales == CPU_SCALES_K4; b++)
            to->sum[r * INT_STEPS + b] = row.scale[b] * (float)(row.total[2 * b] + row.total[2 * b + 1]);
        for (int32_t b = 0; b < blocks && f->values == CPU_E2M1; b++) row.scale[b] *= 0.5f;
        for (int32_t i = 0; i < chains && to->start; i++)
            to->start[r * INT_CHAINS + i] = -offset * (halves == 2 ? row.total[2 * i] + row.total[2 * i + 1] : row.total[i]);
    }
}

/* ---- scales of weights ------------------------------------------------------------------------- */

/* Scales and minima of the chains of `each` K's from at on: [chains][CPU_COLS].  Values as cpu_kernels.scales has. */
static inline void chain_scales(const cpu_kernels *k, const cpu_panel *p, int32_t width, int32_t all, int32_t at, int32_t each,
                                int32_t chains, float *scale, float *min)
{
    int32_t held = -1;
    for (int32_t i = 0; i < chains; i++, scale += CPU_COLS, min += CPU_COLS) {
        int32_t block = (at + i * each) / p->format.block;
        if (block == held) {
            memcpy(scale, scale - CPU_COLS, CPU_COLS * sizeof *scale);
            continue;
        }
        k->scales(p, width, all, held = block, scale, min);
    }
}

#endif
