/* tile_vnni.h - AVX-512 with VNNI: rows in int8 by whole-number weights through vpdpbusd, whose unsigned side is the
 * weights plus an offset; the arithmetic is that of rounded.h.  Included by kernels_avx512bf16.c, after strips.h. */
#ifndef MOEWE_CPU_AVX512_TILE_VNNI_H
#define MOEWE_CPU_AVX512_TILE_VNNI_H

#include "ints.h"

enum { VNNI_FEW = 6 };

typedef struct vnni_span {
    const uint8_t *w;           /* bytes [k / 4][width][4], offset added */
    const float   *scale, *min; /* [chains][CPU_COLS]; min NULL: none */
    int_rows       x;
    const uint8_t *ahead;
    int32_t        chains, chain, add;
} vnni_span;

/* Four bytes for all columns, by a load: left to the compiler it may go by a general register, which costs one of the
 * two vector ports each time. */
static inline __m512i four_of(const void *q)
{
    __m512i all;
    __asm__("vpbroadcastd %1, %0" : "=v"(all) : "m"(*(const uint8_t(*)[4])q));
    return all;
}

/* c (+)= scales * chain [- minimum * sum of x]: chain i of a row, in the v-th 16 columns. */
static inline void vnni_add(const vnni_span *s, int32_t i, int32_t row, int32_t block, int v, __m512i chain, float *c)
{
    int32_t b = row * INT_STEPS + block, at = i * CPU_COLS + v * CPU_LANES;
    float *to = c + row * CPU_COLS + v * CPU_LANES;
    __m512 sum = s->add || i ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
    __m512 by = _mm512_mul_ps(_mm512_load_ps(s->scale + at), _mm512_set1_ps(s->x.scale[b]));
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(chain), by, sum);
    if (s->min) sum = _mm512_fnmadd_ps(_mm512_load_ps(s->min + at), _mm512_set1_ps(s->x.sum[b]), sum);
    _mm512_storeu_ps(to, sum);
}

/* n rows from row on by m vectors of columns, both constant in every call. */
static inline __attribute__((always_inline)) void vnni_strip(const vnni_span *s, int32_t row, const int n, const int m, float *c)
{
    const int32_t width = m * CPU_LANES;
    for (int32_t i = 0; i < s->chains; i++) {
        __m512i acc[ROWS][VECTORS];
        int32_t block = i * s->chain / CPU_STEP;
        const uint8_t *w = s->w + i * s->chain * width;
        const int8_t *q = s->x.q + row * INT_SPAN + i * s->chain;
        UNROLL for (int r = 0; r < n; r++)
        {
            __m512i start = four_of(s->x.start + (row + r) * INT_CHAINS + i);
            UNROLL for (int v = 0; v < m; v++) acc[r][v] = start;
        }
        for (int32_t k = 0; k < s->chain; k += 4, w += width * 4) {
            __m512i w_[VECTORS];
            UNROLL for (int v = 0; v < m; v++) w_[v] = _mm512_load_si512(w + v * 64);
            UNROLL for (int r = 0; r < n; r++)
            {
                __m512i x_ = four_of(q + r * INT_SPAN + k);
                UNROLL for (int v = 0; v < m; v++) acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], w_[v], x_);
            }
        }
        UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int v = 0; v < m; v++) vnni_add(s, i, row + r, block, v, acc[r][v], c);
    }
}

/* The same with few rows by a whole panel, which decode codes on their way to the product: nothing is stored between. */
static inline __attribute__((always_inline)) void vnni_few(const vnni_span *s, const uint8_t *codes, const int n,
                                                           const int nibbles, const int chain, __m512i table, float *c)
{
    const int64_t ahead = s->ahead - codes;
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    const int8_t *q = s->x.q;
    for (int32_t i = 0; i < s->chains; i++, q += chain) {
        __m512i acc[VNNI_FEW][VECTORS];
        UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int v = 0; v < VECTORS; v++) acc[r][v] = four_of(s->x.start + r * INT_CHAINS + i);
        UNROLL for (int k = 0; k < chain; k += nibbles ? 8 : 4, codes += CPU_COLS * 4)
            UNROLL for (int v = 0; v < VECTORS; v++)
            {
                __m512i d = _mm512_loadu_si512(codes + v * 64), high = d;
                __builtin_prefetch(codes + v * 64 + ahead, 0, 3);
                if (nibbles) {
                    high = int_high(table, d);
                    d = int_low(table, d);
                } else {
                    d = _mm512_xor_si512(d, flip);
                }
                UNROLL for (int r = 0; r < n; r++)
                {
                    acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], d, four_of(q + r * INT_SPAN + k));
                    if (nibbles) acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], high, four_of(q + r * INT_SPAN + k + 4));
                }
            }
        UNROLL for (int r = 0; r < n; r++)
        UNROLL for (int v = 0; v < VECTORS; v++) vnni_add(s, i, r, i * chain / CPU_STEP, v, acc[r][v], c);
    }
}

#define FEW(n, nibbles, chain)                                                                                         \
    case n:                                                                                                            \
        vnni_few(s, codes, n, nibbles, chain, table, c);                                                               \
        break

#define FEW_ROWS(name, nibbles, chain)                                                                                 \
    static void name(const vnni_span *s, const uint8_t *codes, int32_t rows, __m512i table, float *c)                  \
    {                                                                                                                  \
        switch (rows) {                                                                                                \
            FEW(1, nibbles, chain);                                                                                    \
            FEW(2, nibbles, chain);                                                                                    \
            FEW(3, nibbles, chain);                                                                                    \
            FEW(4, nibbles, chain);                                                                                    \
            FEW(5, nibbles, chain);                                                                                    \
            FEW(6, nibbles, chain);                                                                                    \
        default: break;                                                                                                \
        }                                                                                                              \
    }

FEW_ROWS(few_bytes_32, 0, 32)
FEW_ROWS(few_bytes_16, 0, 16)
FEW_ROWS(few_nibbles_32, 1, 32)
FEW_ROWS(few_nibbles_16, 1, 16)

static void (*const few_rows[2][2])(const vnni_span *, const uint8_t *, int32_t, __m512i, float *) = {
    {few_bytes_32, few_bytes_16}, {few_nibbles_32, few_nibbles_16}};

static inline __attribute__((always_inline)) void vnni_rows(const vnni_span *s, int32_t rows, const int m, float *c)
{
    int32_t row = 0;
    for (; rows - row >= ROWS; row += ROWS) vnni_strip(s, row, ROWS, m, c);
    switch (rows - row) {
    case 5: vnni_strip(s, row, 5, m, c); break;
    case 4: vnni_strip(s, row, 4, m, c); break;
    case 3: vnni_strip(s, row, 3, m, c); break;
    case 2: vnni_strip(s, row, 2, m, c); break;
    case 1: vnni_strip(s, row, 1, m, c); break;
    default: break;
    }
}

/* Bytes plus 128, which makes them unsigned. */
static inline void vnni_bytes(const uint8_t *w, int64_t bytes, uint8_t *out)
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (int64_t i = 0; i < bytes; i += 64) _mm512_store_si512(out + i, _mm512_xor_si512(_mm512_loadu_si512(w + i), flip));
}

static void tile_ints(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panels, int32_t n_panels,
                      int32_t k, float *const *c)
{
    _Alignas(64) int8_t q[CPU_ROWS * INT_SPAN];
    _Alignas(64) uint8_t room[INT_SPAN * CPU_COLS], bytes[INT_SPAN * CPU_COLS];
    _Alignas(64) float scale[INT_SPAN / 16 * CPU_COLS], min[INT_SPAN / 16 * CPU_COLS];
    float x_scale[CPU_ROWS * INT_STEPS], x_sum[CPU_ROWS * INT_STEPS];
    int32_t start[CPU_ROWS * INT_CHAINS];
    const cpu_format *f = &panels[0].format;
    int32_t offset = f->values == CPU_I8 ? 128 : f->values == CPU_I4 ? 8 : f->values == CPU_E2M1 ? 12 : 0;
    vnni_span s = {.x = {q, x_scale, x_sum, start}, .w = bytes, .scale = scale,
                   .min = f->scales == CPU_SCALES_K4 ? min : NULL, .chain = cpu_chain(f)};
    __m512i table = int_table(f->values, (int8_t)offset);
    for (int32_t at = 0; at < k; at += INT_SPAN) {
        int32_t n = k - at < INT_SPAN ? k - at : INT_SPAN, padded = (n + CPU_STEP - 1) / CPU_STEP * CPU_STEP;
        take_rows(x, x_dtype, rows, k, at, n, f, offset, &s.x);
        s.chains = (n + s.chain - 1) / s.chain; /* none of padding alone: it has no scales */
        s.add = at > 0;
        for (int32_t p = 0; p < n_panels; p++) {
            int32_t width = cpu_padded(panels[p].cols);
            lines_ahead next = next_lines(panels, n_panels, p, at, k, INT_SPAN);
            const uint8_t *codes = room;
            if (rows > VNNI_FEW || width != CPU_COLS) ask_ahead(&next, 0);
            if (panels[p].packed)
                codes = panels[p].data + cpu_element_bytes(f, width, at);
            else
                cpu_pack_block(&panels[p], width, at, n, room);
            s.ahead = next.from ? next.from : codes;
            chain_scales(&cpu_kernels_avx512bf16, &panels[p], width, k, at, s.chain, s.chains, scale, min);
            if (rows <= VNNI_FEW && width == CPU_COLS) {
                few_rows[f->values != CPU_I8][s.chain == 16](&s, codes, rows, table, c[p]);
                continue;
            }
            if (f->values == CPU_I8)
                vnni_bytes(codes, (int64_t)padded * width, bytes);
            else
                int_decode(table, codes, width, padded, bytes);
            switch (width / CPU_LANES) {
            case 4: vnni_rows(&s, rows, 4, c[p]); break;
            case 3: vnni_rows(&s, rows, 3, c[p]); break;
            case 2: vnni_rows(&s, rows, 2, c[p]); break;
            default: vnni_rows(&s, rows, 1, c[p]); break;
            }
        }
    }
}

#endif
