/* ints.h - scaled weights whose codes are small whole numbers, by rows in int8: what VNNI and AMX share, so that
 * both give the same bits.  x is rounded to int8 in blocks of CPU_STEP, each with a scale of its own; products of
 * one chain (CPU_STEP K's, or a block of 16) are added exactly in int32; then, chain after chain in order of K,
 *     c = c + (scale of weights * scale of x) * chain            [and c = c - minimum * sum of x]
 * in f32 with fused multiply-adds. */
#ifndef MOEWE_CPU_AVX512_INTS_H
#define MOEWE_CPU_AVX512_INTS_H

#include <float.h>
#include <immintrin.h>

#include "../cpu.h"

enum {
    INT_SPAN = 256, /* K's of x at a time */
    INT_STEPS = INT_SPAN / CPU_STEP,
    INT_CODES = 128 /* K's of weights at a time: decoded, they stay in L1 */
};

static inline int cpu_ints(const cpu_format *f)
{
    return f->values > CPU_E4M3;
}

/* Rows of a span. */
typedef struct int_rows {
    int8_t *q;      /* [rows][INT_SPAN], K's in the order in which the codes have them */
    float  *scale;  /* [rows][INT_STEPS]; halved for E2M1, whose codes count halves */
    float  *sum;    /* [rows][INT_STEPS]: of x as rounded */
    int32_t *total; /* [rows][2 * INT_STEPS]: of q, over every 16 K's */
} int_rows;

static inline __m512 load16(const void *x, int32_t dtype, int64_t i, __mmask16 m)
{
    if (dtype == MOEWE_DTYPE_F32) return _mm512_maskz_loadu_ps(m, (const float *)x + i);
    __m256i h = _mm256_maskz_loadu_epi16(m, (const uint16_t *)x + i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Where the eight K's of a group are: nibbles 0 4 1 5 2 6 3 7, bytes 0 2 1 3 4 6 5 7 (cpu_panel). */
static inline __m256i int_order(int nibbles)
{
    const __m128i n = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const __m128i b = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    return _mm256_broadcastsi128_si256(nibbles ? n : b);
}

/* Rounds CPU_STEP K's of a row.  A block that is nothing but smaller than 2^-100 counts as 0; one with NaN or Inf
 * gets NaN for a scale. */
static inline void round_block(const void *x, int32_t dtype, int64_t at, int32_t k, __m256i order, float unit, int totals,
                               int8_t *q, float *scale, float *sum, int32_t *total)
{
    uint32_t m = k < 32 ? (1u << k) - 1 : ~0u;
    __m512 a = load16(x, dtype, at, (__mmask16)m), b = load16(x, dtype, at + 16, (__mmask16)(m >> 16));
    __mmask16 nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
    float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    if (nan || most > FLT_MAX) {
        _mm256_store_si256((__m256i *)(void *)q, _mm256_setzero_si256());
        total[0] = total[1] = 0;
        *scale = *sum = __builtin_nanf("");
        return;
    }
    float to = most < 0x1p-100f ? 0.0f : 127.0f / most;
    __m512i qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(to)));
    __m512i qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, _mm512_set1_ps(to)));
    __m256i bytes = _mm256_set_m128i(_mm512_cvtsepi32_epi8(qb), _mm512_cvtsepi32_epi8(qa));
    _mm256_store_si256((__m256i *)(void *)q, _mm256_shuffle_epi8(bytes, order));
    float s = most < 0x1p-100f ? 0.0f : most * (1.0f / 127.0f);
    *scale = s * unit;
    if (!totals) return;
    total[0] = _mm512_reduce_add_epi32(qa);
    total[1] = _mm512_reduce_add_epi32(qb);
    *sum = s * (float)(total[0] + total[1]);
}

/* k K's of each row from column at on, zeros up to a multiple of CPU_STEP; sums and totals only when asked for. */
static inline void round_rows(const void *const *x, int32_t dtype, int32_t rows, int32_t at, int32_t k, int32_t values,
                              int totals, const int_rows *to)
{
    __m256i order = int_order(values != CPU_I8);
    float unit = values == CPU_E2M1 ? 0.5f : 1.0f;
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < k; i += CPU_STEP) {
            int32_t b = r * INT_STEPS + i / CPU_STEP;
            round_block(x[r], dtype, at + i, k - i < CPU_STEP ? k - i : CPU_STEP, order, unit, totals, to->q + r * INT_SPAN + i,
                        &to->scale[b], &to->sum[b], &to->total[2 * b]);
        }
}

/* Whole numbers that codes of nibbles stand for, plus offset. */
static inline __m512i int_table(int32_t values, int8_t offset)
{
    const __m128i e2m1 = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i u4 = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m128i t = values == CPU_E2M1 ? e2m1 : values == CPU_I4 ? _mm_sub_epi8(u4, _mm_set1_epi8(8)) : u4;
    return _mm512_broadcast_i32x4(_mm_add_epi8(t, _mm_set1_epi8(offset)));
}

/* k K's (a multiple of 8) of nibbles to bytes: out[k / 4][width][4]. */
static inline void int_decode(__m512i table, const uint8_t *w, int32_t width, int32_t k, uint8_t *out)
{
    const __m512i low = _mm512_set1_epi8(15);
    for (int32_t i = 0; i < k; i += 8, w += width * 4, out += width * 8)
        for (int32_t j = 0; j < width * 4; j += 64) {
            __m512i d = _mm512_loadu_si512(w + j);
            _mm512_store_si512(out + j, _mm512_shuffle_epi8(table, _mm512_and_si512(d, low)));
            _mm512_store_si512(out + width * 4 + j,
                               _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(d, 4), low)));
        }
}

/* ---- asking for lines ahead --------------------------------------------------------------------- */

/* Asked for a few with every step: from, then lines more each time. */
typedef struct lines_ahead { const uint8_t *from; int32_t lines; } lines_ahead;

static inline void ask_ahead(const lines_ahead *a, int32_t step)
{
    const uint8_t *p = a->from + (int64_t)step * a->lines * 64;
    for (int32_t i = 0; i < a->lines; i++) _mm_prefetch(p + i * 64, _MM_HINT_T0);
}

/* The elements of span K's that are read after those of panel p from column at: of the next panel, or of the first
 * one further on.  from NULL, lines 0: none; else as many lines as they are. */
static inline lines_ahead next_lines(const cpu_panel *panels, int32_t n_panels, int32_t p, int32_t at, int32_t k, int32_t span)
{
    const cpu_panel *next = p + 1 < n_panels ? &panels[p + 1] : panels;
    int32_t from = p + 1 < n_panels ? at : at + span, n = k - from < span ? k - from : span;
    int32_t width = cpu_padded(next->cols);
    if (!next->packed || n <= 0) return (lines_ahead){NULL, 0};
    return (lines_ahead){next->data + cpu_element_bytes(&next->format, width, from),
                         (int32_t)(cpu_element_bytes(&next->format, width, n) / 64)};
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
