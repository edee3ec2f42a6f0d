/* tile_ints.c - AMX: rows in int8 by whole-number weights through tdpbssd; the arithmetic is that of rounded.h.
 *
 * Shapes   as in kernels_amx.c.  An instruction is one chain: CPU_STEP K's, or 16 where scales are for 16.
 * Reads    bytes where they lie; nibbles are decoded to bytes, a span at a time.
 * Results  of chains are stored, and read back as int32 two chains later; sums of 16 columns stay in registers.
 *          Few rows go through VNNI instead, which gives the same bits and needs no tiles. */
#include "amx.h"

typedef struct span {
    const int8_t  *q;      /* of the band's first row */
    const float   *x_scale, *x_sum;
    const uint8_t *w;      /* bytes [k / 4][width][4] */
    const float   *scale, *min; /* [chains][CPU_COLS]; min NULL: none */
    int32_t        width, rows, chains, chain, add;
} span;

/* Where sums and scales of x are: two chains of 16 K's have one. */
static inline int32_t block_of(const span *s, int32_t i)
{
    return i * s->chain / CPU_STEP;
}

static inline __m512 add_chain(const span *s, int32_t i, int32_t r, int32_t j, __m512 scale, const int32_t *part, __m512 sum)
{
    int32_t b = r * INT_STEPS + block_of(s, i);
    __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(s->x_scale[b]));
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(part)), by, sum);
    if (s->min) sum = _mm512_fnmadd_ps(_mm512_load_ps(s->min + i * CPU_COLS + j), _mm512_set1_ps(s->x_sum[b]), sum);
    return sum;
}

#define ONE_CHAIN(n, q, w, to)                                                                                         \
    do {                                                                                                               \
        _tile_zero(n);                                                                                                 \
        _tile_loadd(4, q, INT_SPAN);                                                                                   \
        _tile_loadd(5, w, s->width * 4);                                                                               \
        _tile_dpbssd(n, 4, 5);                                                                                         \
        _tile_stored(n, to, 64);                                                                                       \
    } while (0)

/* Chains of all columns in one sequence: while those of 16 columns end, those of the next begin. */
static __attribute__((noinline)) void band_chains(const span *s, float *c)
{
    _Alignas(64) int32_t part[4][AMX_BAND * AMX_COLS];
    __m512 acc[AMX_BAND];
    int32_t chains = s->chains, all = chains * (s->width / AMX_COLS), i = 0, j = 0, done = 0, at = 0;
    UNROLL16 for (int r = 0; r < AMX_BAND; r++) acc[r] = _mm512_setzero_ps();
    for (int32_t n = 0; n < all + 2; n++) {
        if (n < all) {
            const int8_t *q = s->q + i * s->chain;
            const uint8_t *w = s->w + (i * s->chain / 4 * s->width + j) * 4;
            switch (n & 3) {
            case 0: ONE_CHAIN(0, q, w, part[0]); break;
            case 1: ONE_CHAIN(1, q, w, part[1]); break;
            case 2: ONE_CHAIN(2, q, w, part[2]); break;
            default: ONE_CHAIN(3, q, w, part[3]); break;
            }
            if (++i == chains) {
                i = 0;
                j += AMX_COLS;
            }
        }
        if (n < 2) continue;
        const int32_t *from = part[(n - 2) & 3];
        float *to = c + at;
        __m512 scale = _mm512_load_ps(s->scale + done * CPU_COLS + at);
        if (done == 0 && s->add) UNROLL16 for (int r = 0; r < AMX_BAND; r++) acc[r] =
            r < s->rows ? _mm512_loadu_ps(to + r * CPU_COLS) : _mm512_setzero_ps();
        if (done == 0 && !s->add) UNROLL16 for (int r = 0; r < AMX_BAND; r++) acc[r] = _mm512_setzero_ps();
        UNROLL16 for (int r = 0; r < AMX_BAND; r++) acc[r] = add_chain(s, done, r, at, scale, from + r * AMX_COLS, acc[r]);
        if (++done == chains) {
            UNROLL16 for (int r = 0; r < AMX_BAND; r++) if (r < s->rows) _mm512_storeu_ps(to + r * CPU_COLS, acc[r]);
            done = 0;
            at += AMX_COLS;
        }
    }
}

void amx_tile_ints(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panels, int32_t n_panels, int32_t k,
                   float *const *c)
{
    _Alignas(64) int8_t q[AMX_ROWS * INT_SPAN];
    _Alignas(64) uint8_t room[INT_SPAN * CPU_COLS], bytes[INT_SPAN * CPU_COLS];
    _Alignas(64) float scale[INT_SPAN / 16 * CPU_COLS], min[INT_SPAN / 16 * CPU_COLS];
    float x_scale[AMX_ROWS * INT_STEPS], x_sum[AMX_ROWS * INT_STEPS];
    const int_rows to = {q, x_scale, x_sum, NULL};
    const cpu_format *f = &panels[0].format;
    int32_t bands = (rows + AMX_BAND - 1) / AMX_BAND, band = (rows + bands - 1) / bands;
    span s = {.chain = cpu_chain(f), .scale = scale,
              .min = f->scales == CPU_SCALES_K4 ? min : NULL};
    __m512i table = int_table(f->values, 0);
    amx_configure(band, s.chain);
    for (int32_t at = 0; at < k; at += INT_SPAN) {
        int32_t n = k - at < INT_SPAN ? k - at : INT_SPAN, padded = (n + CPU_STEP - 1) / CPU_STEP * CPU_STEP;
        take_rows(x, x_dtype, rows, k, at, n, f, 0, &to);
        for (int32_t r = rows; r < bands * band; r++) memset(q + r * INT_SPAN, 0, INT_SPAN);
        s.chains = (n + s.chain - 1) / s.chain; /* none of padding alone: it has no scales */
        s.add = at > 0;
        for (int32_t p = 0; p < n_panels; p++) {
            lines_ahead next = next_lines(panels, n_panels, p, at, k, INT_SPAN);
            const uint8_t *codes = room;
            s.width = cpu_padded(panels[p].cols);
            ask_ahead(&next, 0);
            if (panels[p].packed)
                codes = panels[p].data + cpu_element_bytes(f, s.width, at);
            else
                cpu_pack_block(&panels[p], s.width, at, n, room);
            s.w = codes;
            if (f->values != CPU_I8) int_decode(table, codes, s.width, padded, bytes);
            if (f->values != CPU_I8) s.w = bytes;
            chain_scales(&cpu_kernels_avx512bf16, &panels[p], s.width, k, at, s.chain, s.chains, scale, min);
            for (int32_t b = 0; b < bands; b++) {
                s.rows = rows - b * band < band ? rows - b * band : band;
                s.q = q + b * band * INT_SPAN;
                s.x_scale = x_scale + b * band * INT_STEPS;
                s.x_sum = x_sum + b * band * INT_STEPS;
                band_chains(&s, c[p] + b * band * CPU_COLS);
            }
        }
    }
    _tile_release();
}
