/* tile_maddubs.h - AVX2: rows in int8 by whole-number weights through vpmaddubsw; the arithmetic is that of rounded.h.
 * Included by the levels without VNNI, which define CPU_LEVEL, their table.
 *
 * Nibbles  as bytes plus an offset that makes them unsigned: the largest, 24, lets four products of pairs be added in 16
 *          bits, and the others, 15, eight.  What the offset adds is taken off by the row's total.
 * Bytes    go as magnitudes, their signs to x: a pair makes at most 2 * 128 * 127, which is widened at once.
 * Shapes   n rows by m vectors of 8 columns: 8 of the 16 registers hold sums.  Few rows decode nibbles on their way to
 *          the product; more of them read what was decoded for all. */
#ifndef MOEWE_CPU_AVX2_TILE_MADDUBS_H
#define MOEWE_CPU_AVX2_TILE_MADDUBS_H

#include <immintrin.h>

#include "../ahead.h"
#include "../rounded.h"

enum { MAD_ROWS = 4, MAD_VECTORS = 8, MAD_COLS = 8, MAD_FEW = 3 };
/* What weights a strip reads: bytes, nibbles that were decoded to bytes, nibbles.  The last two have an offset; WIDE ones
 * are up to 24. */
enum { MAD_BYTES, MAD_DECODED, MAD_NIBBLES, MAD_DECODED_WIDE, MAD_NIBBLES_WIDE };

typedef struct mad_span {
    const uint8_t *w;           /* [k / 4][width][4], or nibbles [k / 8][width] */
    const float   *scale, *min; /* [chains][CPU_COLS]; min NULL: none */
    int_rows       x;
    __m256i        table;       /* of nibbles, offset added */
    int32_t        chains, width, add;
} mad_span;

#define UNROLL_MAD _Pragma("GCC unroll 8")
/* Unrolled over K the sums would be added as trees, whose leaves do not fit the registers. */
#define STEP_MAD _Pragma("GCC unroll 1")

/* Four bytes for all columns, by a load: left to the compiler it may go by a general register and the stack. */
static inline __m256i mad_four(const void *q)
{
    __m256i all;
    __asm__("vpbroadcastd %1, %0" : "=x"(all) : "m"(*(const uint8_t(*)[4])q));
    return all;
}

static inline __m256i mad_table(int32_t values, int8_t offset)
{
    const __m128i e2m1 = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i u4 = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m128i t = values == CPU_E2M1 ? e2m1 : values == CPU_I4 ? _mm_sub_epi8(u4, _mm_set1_epi8(8)) : u4;
    return _mm256_broadcastsi128_si256(_mm_add_epi8(t, _mm_set1_epi8(offset)));
}

/* k K's (a multiple of 8) of nibbles to bytes: out[k / 4][width][4]. */
static inline void mad_decode(__m256i table, const uint8_t *w, int32_t width, int32_t k, uint8_t *out)
{
    const __m256i low = _mm256_set1_epi8(15);
    for (int32_t i = 0; i < k; i += 8, w += width * 4, out += width * 8)
        for (int32_t j = 0; j < width * 4; j += 32) {
            __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(w + j));
            __m256i high = _mm256_and_si256(_mm256_srli_epi16(d, 4), low);
            _mm256_store_si256((__m256i *)(void *)(out + j), _mm256_shuffle_epi8(table, _mm256_and_si256(d, low)));
            _mm256_store_si256((__m256i *)(void *)(out + width * 4 + j), _mm256_shuffle_epi8(table, high));
        }
}

/* c (+)= scales * chain [- minimum * sum of x]: chain i of a row, in 8 columns from j on. */
static inline void mad_add(const mad_span *s, int32_t i, int32_t row, int32_t block, int32_t j, __m256i chain, float *c)
{
    int32_t b = row * INT_STEPS + block, at = i * CPU_COLS + j;
    float *to = c + row * CPU_COLS + j;
    __m256 sum = s->add || i ? _mm256_loadu_ps(to) : _mm256_setzero_ps();
    __m256 by = _mm256_mul_ps(_mm256_load_ps(s->scale + at), _mm256_set1_ps(s->x.scale[b]));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(chain), by, sum);
    if (s->min) sum = _mm256_fnmadd_ps(_mm256_load_ps(s->min + at), _mm256_set1_ps(s->x.sum[b]), sum);
    _mm256_storeu_ps(to, sum);
}

/* Products of steps dwords of K's, added in 16 bits. */
static inline __attribute__((always_inline)) void mad_nibbles(const mad_span *s, const uint8_t *w, const int8_t *q, const int n,
                                                              const int m, const int decoded, const int steps,
                                                              __m256i acc[MAD_ROWS][MAD_VECTORS])
{
    const __m256i low = _mm256_set1_epi8(15);
    UNROLL_MAD for (int r = 0; r < n; r++)
    UNROLL_MAD for (int v = 0; v < m; v++) acc[r][v] = _mm256_setzero_si256();
    STEP_MAD for (int k = 0; k < steps; k += decoded ? 1 : 2, w += s->width * 4, q += decoded ? 4 : 8)
        UNROLL_MAD for (int v = 0; v < m; v++)
        {
            __m256i w_ = _mm256_loadu_si256((const __m256i *)(const void *)(w + v * 32)), high = w_;
            if (!decoded) {
                high = _mm256_shuffle_epi8(s->table, _mm256_and_si256(_mm256_srli_epi16(w_, 4), low));
                w_ = _mm256_shuffle_epi8(s->table, _mm256_and_si256(w_, low));
            }
            UNROLL_MAD for (int r = 0; r < n; r++)
            {
                acc[r][v] = _mm256_add_epi16(acc[r][v], _mm256_maddubs_epi16(w_, mad_four(q + r * INT_SPAN)));
                if (!decoded)
                    acc[r][v] = _mm256_add_epi16(acc[r][v], _mm256_maddubs_epi16(high, mad_four(q + r * INT_SPAN + 4)));
            }
        }
}

/* Products of a chain of bytes, added in 32 bits. */
static inline __attribute__((always_inline)) void mad_bytes(const mad_span *s, const uint8_t *w, const int8_t *q, const int n,
                                                            const int m, const int steps,
                                                            __m256i sum[MAD_ROWS][MAD_VECTORS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    UNROLL_MAD for (int r = 0; r < n; r++)
    UNROLL_MAD for (int v = 0; v < m; v++) sum[r][v] = _mm256_setzero_si256();
    STEP_MAD for (int k = 0; k < steps; k++, w += s->width * 4, q += 4)
        UNROLL_MAD for (int v = 0; v < m; v++)
        {
            __m256i w_ = _mm256_loadu_si256((const __m256i *)(const void *)(w + v * 32)), size = _mm256_abs_epi8(w_);
            UNROLL_MAD for (int r = 0; r < n; r++)
            {
                __m256i pair = _mm256_maddubs_epi16(size, _mm256_sign_epi8(mad_four(q + r * INT_SPAN), w_));
                sum[r][v] = _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(pair, ones));
            }
        }
}

/* n rows from row on by m vectors of columns from j on; all but the places are constant in every call. */
static inline __attribute__((always_inline)) void mad_strip(const mad_span *s, int32_t row, int32_t j, const int n, const int m,
                                                            const int form, const int chain, float *c)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int decoded = form == MAD_DECODED || form == MAD_DECODED_WIDE;
    const int part = (form == MAD_DECODED_WIDE || form == MAD_NIBBLES_WIDE) && chain > 16 ? 16 : chain;
    const uint8_t *w = s->w + j * 4;
    const int8_t *q = s->x.q + row * INT_SPAN;
    for (int32_t i = 0; i < s->chains; i++) {
        __m256i sum[MAD_ROWS][MAD_VECTORS], acc[MAD_ROWS][MAD_VECTORS];
        if (form == MAD_BYTES) {
            mad_bytes(s, w, q, n, m, chain / 4, sum);
        } else {
            mad_nibbles(s, w, q, n, m, decoded, part / 4, acc);
            UNROLL_MAD for (int r = 0; r < n; r++)
            UNROLL_MAD for (int v = 0; v < m; v++) sum[r][v] =
                _mm256_add_epi32(mad_four(s->x.start + (row + r) * INT_CHAINS + i), _mm256_madd_epi16(acc[r][v], ones));
        }
        if (form != MAD_BYTES && part < chain) {
            mad_nibbles(s, w + (decoded ? part : part / 2) * s->width, q + part, n, m, decoded, part / 4, acc);
            UNROLL_MAD for (int r = 0; r < n; r++)
            UNROLL_MAD for (int v = 0; v < m; v++) sum[r][v] =
                _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(acc[r][v], ones));
        }
        UNROLL_MAD for (int r = 0; r < n; r++)
        UNROLL_MAD for (int v = 0; v < m; v++)
            mad_add(s, i, row + r, i * chain / CPU_STEP, j + v * MAD_COLS, sum[r][v], c);
        w += (form == MAD_NIBBLES || form == MAD_NIBBLES_WIDE ? chain / 2 : chain) * s->width;
        q += chain;
    }
}

/* All columns of n rows: m vectors at a time, then two, since width is a multiple of 16. */
static inline __attribute__((always_inline)) void mad_columns(const mad_span *s, int32_t row, const int n, const int m,
                                                              const int form, const int chain, float *c)
{
    int32_t j = 0;
    for (; j + m * MAD_COLS <= s->width; j += m * MAD_COLS) mad_strip(s, row, j, n, m, form, chain, c);
    if (m > 2)
        for (; j < s->width; j += 2 * MAD_COLS) mad_strip(s, row, j, n, 2, form, chain, c);
}

static inline __attribute__((always_inline)) void mad_rows_of(const mad_span *s, int32_t rows, const int form, const int chain,
                                                              float *c)
{
    int32_t row = 0;
    if (form != MAD_NIBBLES && form != MAD_NIBBLES_WIDE)
        for (; rows - row >= MAD_ROWS; row += MAD_ROWS) mad_columns(s, row, MAD_ROWS, 2, form, chain, c);
    switch (rows - row) {
    case 3: mad_columns(s, row, 3, 2, form, chain, c); break;
    case 2: mad_columns(s, row, 2, 4, form, chain, c); break;
    case 1: mad_columns(s, row, 1, 4, form, chain, c); break;
    default: break;
    }
}

#define MAD_FORM(name, form, chain)                                                                                    \
    static __attribute__((noinline)) void name(const mad_span *s, int32_t rows, float *c)                              \
    {                                                                                                                  \
        mad_rows_of(s, rows, form, chain, c);                                                                          \
    }

MAD_FORM(mad_bytes_32, MAD_BYTES, 32)
MAD_FORM(mad_bytes_16, MAD_BYTES, 16)
MAD_FORM(mad_decoded_32, MAD_DECODED, 32)
MAD_FORM(mad_decoded_16, MAD_DECODED, 16)
MAD_FORM(mad_decoded_wide_32, MAD_DECODED_WIDE, 32)
MAD_FORM(mad_nibbles_32, MAD_NIBBLES, 32)
MAD_FORM(mad_nibbles_16, MAD_NIBBLES, 16)
MAD_FORM(mad_nibbles_wide_32, MAD_NIBBLES_WIDE, 32)

/* Sixteen products of any nibbles fit 16 bits, so that chains of 16 need no wide form. */
static void (*const mad_forms[3][2][2])(const mad_span *, int32_t, float *) = {
    {{mad_bytes_32, mad_bytes_16}, {mad_bytes_32, mad_bytes_16}},
    {{mad_decoded_32, mad_decoded_16}, {mad_decoded_wide_32, mad_decoded_16}},
    {{mad_nibbles_32, mad_nibbles_16}, {mad_nibbles_wide_32, mad_nibbles_16}},
};

static void tile_ints(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panels, int32_t n_panels,
                      int32_t k, float *const *c)
{
    _Alignas(64) int8_t q[CPU_ROWS * INT_SPAN];
    _Alignas(64) uint8_t room[INT_SPAN * CPU_COLS], bytes[INT_SPAN * CPU_COLS];
    _Alignas(64) float scale[INT_SPAN / 16 * CPU_COLS], min[INT_SPAN / 16 * CPU_COLS];
    float x_scale[CPU_ROWS * INT_STEPS], x_sum[CPU_ROWS * INT_STEPS];
    int32_t start[CPU_ROWS * INT_CHAINS];
    const cpu_format *f = &panels[0].format;
    int32_t offset = f->values == CPU_I4 ? 8 : f->values == CPU_E2M1 ? 12 : 0, nibbles = f->values != CPU_I8;
    int32_t form = !nibbles ? 0 : rows > MAD_FEW ? 1 : 2, chain = cpu_chain(f);
    mad_span s = {.x = {q, x_scale, x_sum, start}, .scale = scale, .min = f->scales == CPU_SCALES_K4 ? min : NULL,
                  .table = mad_table(f->values, (int8_t)offset)};
    for (int32_t at = 0; at < k; at += INT_SPAN) {
        int32_t n = k - at < INT_SPAN ? k - at : INT_SPAN, padded = (n + CPU_STEP - 1) / CPU_STEP * CPU_STEP;
        take_rows(x, x_dtype, rows, k, at, n, f, offset, &s.x);
        s.chains = (n + chain - 1) / chain; /* none of padding alone: it has no scales */
        s.add = at > 0;
        for (int32_t p = 0; p < n_panels; p++) {
            lines_ahead next = next_lines(panels, n_panels, p, at, k, INT_SPAN);
            s.width = cpu_padded(panels[p].cols);
            ask_ahead(&next, 0);
            s.w = room;
            if (panels[p].packed)
                s.w = panels[p].data + cpu_element_bytes(f, s.width, at);
            else
                cpu_pack_block(&panels[p], s.width, at, n, room);
            if (form == 1) {
                mad_decode(s.table, s.w, s.width, padded, bytes);
                s.w = bytes;
            }
            chain_scales(&CPU_LEVEL, &panels[p], s.width, k, at, chain, s.chains, scale, min);
            mad_forms[form][f->values == CPU_E2M1][chain == 16](&s, rows, c[p]);
        }
    }
}

#endif
