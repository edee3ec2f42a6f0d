/* kernels_amx.c - AMX: tiles of 16 rows by 16 columns through tdpbf16ps, for bf16 rows on bf16 weights and for E4M3
 * codes.  Whole-number codes are tile_ints.c's, or by few rows VNNI's; the rest goes to the AVX-512 level with BF16.
 *
 * Shapes   rows of x in one to four bands of up to 16; 64 columns of a panel in four tiles; K in spans of
 *          SPAN, so that a span of x for all bands, and of weights, stay in L1 and L2 while every band and
 *          panel uses them.
 * Reads    bf16 weights where they lie; E4M3 is decoded to bf16, exactly, DECODED K's at a time, and x is rounded
 *          to bf16 for it.
 * Order    bf16: one chain of tdpbf16ps over K.  E4M3: a chain for each block, or for 128 K's of a larger one, then
 *          c = c + scale * chain in f32.  A row's chain is the same whatever other rows there are, since the
 *          instruction computes rows apart.
 * Tiles    tdpbf16ps takes subnormals for zero. */
#include "amx.h"

enum { SPAN = 256 };

static const cpu_kernels *rest(void)
{
    return &cpu_kernels_avx512bf16;
}

/* ---- one call -------------------------------------------------------------------------------- */

typedef struct call {
    int32_t  rows, bands, band; /* bands of band rows, the last perhaps with rows of zeros */
    int32_t  width, k, kstep;   /* K's of one instruction */
    uint16_t *x;                /* [bands * band][SPAN] */
} call;

/* k columns of each row as bf16, zeros up to SPAN rounded to CPU_STEP and in rows that are not there. */
static void gather(const call *t, const void *const *x, int32_t x_dtype, int32_t at, int32_t k)
{
    int32_t padded = (k + CPU_STEP - 1) / CPU_STEP * CPU_STEP;
    for (int32_t r = 0; r < t->rows; r++) {
        uint16_t *to = t->x + r * SPAN;
        int32_t i = 0;
        if (x_dtype == MOEWE_DTYPE_BF16) {
            const uint16_t *from = (const uint16_t *)x[r] + at;
            for (; i + 32 <= k; i += 32) _mm512_store_si512(to + i, _mm512_loadu_si512(from + i));
            if (i < k) _mm512_store_si512(to + i, _mm512_maskz_loadu_epi16((1u << (k - i)) - 1, from + i));
        } else {
            const float *from = (const float *)x[r] + at;
            for (; i + 32 <= k; i += 32) {
                __m512bh h = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
                _mm512_store_si512(to + i, (__m512i)h);
            }
            if (i < k) {
                uint32_t m = (1u << (k - i)) - 1;
                __m512bh h = _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps((__mmask16)(m >> 16), from + i + 16),
                                                 _mm512_maskz_loadu_ps((__mmask16)m, from + i));
                _mm512_store_si512(to + i, (__m512i)h);
            }
        }
    }
    for (int32_t r = t->rows; r < t->bands * t->band; r++) memset(t->x + r * SPAN, 0, (size_t)padded * 2);
}

/* ---- decoding ----------------------------------------------------------------------------------- */

/* Codes in the low bytes of words.  Normal ones get another exponent bias; subnormal ones, and NaN, come by table. */
static inline __m512i e4m3_bf16(__m512i v, __m512i small)
{
    __m512i u = _mm512_and_si512(v, _mm512_set1_epi16(0x7f));
    __m512i bits = _mm512_add_epi16(_mm512_slli_epi16(u, 4), _mm512_set1_epi16(120 << 7));
    bits = _mm512_mask_permutexvar_epi16(bits, _mm512_cmplt_epu16_mask(u, _mm512_set1_epi16(8)), u, small);
    bits = _mm512_mask_mov_epi16(bits, _mm512_cmpeq_epi16_mask(u, _mm512_set1_epi16(0x7f)), _mm512_set1_epi16(0x7fc0));
    return _mm512_or_si512(bits, _mm512_slli_epi16(_mm512_and_si512(v, _mm512_set1_epi16(0x80)), 8));
}

static void decode_e4m3(const uint8_t *w, int32_t width, int32_t k, uint16_t *out)
{
    /* 0 to 7 times 2^-9 */
    static const uint16_t table[32] = {0x0000, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    __m512i small = _mm512_loadu_si512(table), low = _mm512_set1_epi16(0xff);
    for (int32_t i = 0; i < k; i += 4, w += width * 4, out += width * 4)
        for (int32_t j = 0; j < width; j += 16) {
            __m512i d = _mm512_loadu_si512(w + j * 4);
            _mm512_store_si512(out + j * 2, e4m3_bf16(_mm512_and_si512(d, low), small));
            _mm512_store_si512(out + j * 2 + width * 2, e4m3_bf16(_mm512_srli_epi16(d, 8), small));
        }
}

/* ---- unscaled ------------------------------------------------------------------------------------- */

/* One band of x by the tiles of a panel over steps * CPU_STEP K's from w on; c is loaded (add) and stored. */
#define CHAIN(cols)                                                                                                    \
    static __attribute__((noinline)) void chain_##cols(const uint16_t *x, const uint8_t *w, int32_t steps, lines_ahead a,    \
                                                       float *c, int add)                                              \
    {                                                                                                                  \
        if (add) {                                                                                                     \
            _tile_loadd(0, c, CPU_COLS * 4);                                                                           \
            if (cols > 1) _tile_loadd(1, c + 16, CPU_COLS * 4);                                                        \
            if (cols > 2) _tile_loadd(2, c + 32, CPU_COLS * 4);                                                        \
            if (cols > 3) _tile_loadd(3, c + 48, CPU_COLS * 4);                                                        \
        } else {                                                                                                       \
            _tile_zero(0);                                                                                             \
            _tile_zero(1);                                                                                             \
            _tile_zero(2);                                                                                             \
            _tile_zero(3);                                                                                             \
        }                                                                                                              \
        for (int32_t i = 0; i < steps; i++, w += cols * 1024, x += CPU_STEP) {                                         \
            ask_ahead(&a, i);                                                                                                \
            _tile_loadd(4, x, SPAN * 2);                                                                               \
            _tile_loadd(5, w, cols * 64);                                                                              \
            _tile_dpbf16ps(0, 4, 5);                                                                                   \
            if (cols > 1) _tile_loadd(6, w + 64, cols * 64);                                                           \
            if (cols > 1) _tile_dpbf16ps(1, 4, 6);                                                                     \
            if (cols > 2) _tile_loadd(5, w + 128, cols * 64);                                                          \
            if (cols > 2) _tile_dpbf16ps(2, 4, 5);                                                                     \
            if (cols > 3) _tile_loadd(6, w + 192, cols * 64);                                                          \
            if (cols > 3) _tile_dpbf16ps(3, 4, 6);                                                                     \
        }                                                                                                              \
        _tile_stored(0, c, CPU_COLS * 4);                                                                              \
        if (cols > 1) _tile_stored(1, c + 16, CPU_COLS * 4);                                                           \
        if (cols > 2) _tile_stored(2, c + 32, CPU_COLS * 4);                                                           \
        if (cols > 3) _tile_stored(3, c + 48, CPU_COLS * 4);                                                           \
    }

CHAIN(1)
CHAIN(2)
CHAIN(3)
CHAIN(4)

static void (*const chain_of_width[])(const uint16_t *, const uint8_t *, int32_t, lines_ahead, float *, int) = {chain_1, chain_2, chain_3,
                                                                                                         chain_4};

static void plain_span(const call *t, const cpu_panel *panel, int32_t at, int32_t k, lines_ahead next, float *c)
{
    _Alignas(64) uint8_t room[SPAN * CPU_COLS * 2];
    int32_t padded = (k + CPU_STEP - 1) / CPU_STEP * CPU_STEP, steps = padded / CPU_STEP;
    const uint8_t *w = room;
    if (panel->packed) w = panel->data + cpu_element_bytes(&panel->format, t->width, at);
    if (!panel->packed) cpu_pack_block(panel, t->width, at, k, room);
    if (k != padded) { /* what follows in memory is not zero, and may be NaN */
        uint64_t bytes = cpu_element_bytes(&panel->format, t->width, k + (k & 1));
        if (panel->packed) memcpy(room, w, bytes);
        memset(room + bytes, 0, cpu_element_bytes(&panel->format, t->width, padded) - bytes);
        w = room;
    }
    int32_t lines = next.lines / (t->bands * steps);
    for (int32_t b = 0; b < t->bands; b++) {
        lines_ahead a = {next.from + (int64_t)b * steps * lines * 64, lines};
        chain_of_width[t->width / AMX_COLS - 1](t->x + b * t->band * SPAN, w, steps, a, c + b * t->band * CPU_COLS, at > 0);
    }
}

/* ---- scaled ------------------------------------------------------------------------------------------ */

/* Decoded weights of DECODED K's at a time: they and x stay in L1. */
enum { DECODED = 128, MOST_CHAINS = DECODED / 16 };

typedef struct decoded {
    const uint16_t *w;         /* pairs of K's by width columns */
    const float *scale;        /* [chains][CPU_COLS] */
    int32_t chains, steps;     /* steps: instructions of a chain */
} decoded;

/* to = chain i of the 16 columns from j on, in result tile n. */
#define CHAIN_OF(n, i, j, to)                                                                                          \
    do {                                                                                                               \
        _tile_zero(n);                                                                                                 \
        for (int32_t s_ = 0; s_ < d->steps; s_++) {                                                                    \
            int32_t k_ = ((i) * d->steps + s_) * t->kstep;                                                             \
            _tile_loadd(4, x + k_, SPAN * 2);                                                                          \
            _tile_loadd(5, d->w + k_ * t->width + (j) * 2, t->width * 4);                                              \
            _tile_dpbf16ps(n, 4, 5);                                                                                   \
        }                                                                                                              \
        _tile_stored(n, to, 64);                                                                                       \
    } while (0)

/* c (+)= scale * chain, one after another, for 16 columns of a band whose sums stay in registers.  A chain is read back
 * two chains later, when its tile has long been stored. */
static void scaled_many(const call *t, const decoded *d, const uint16_t *x, int32_t j, float *c, int add)
{
    _Alignas(64) float part[4][AMX_BAND * AMX_COLS];
    __m512 acc[AMX_BAND];
    UNROLL16 for (int r = 0; r < AMX_BAND; r++) acc[r] =
        add && r < t->band ? _mm512_loadu_ps(c + r * CPU_COLS + j) : _mm512_setzero_ps();
    for (int32_t i = 0; i < d->chains + 2; i++) {
        if (i < d->chains) {
            switch (i & 3) {
            case 0: CHAIN_OF(0, i, j, part[0]); break;
            case 1: CHAIN_OF(1, i, j, part[1]); break;
            case 2: CHAIN_OF(2, i, j, part[2]); break;
            default: CHAIN_OF(3, i, j, part[3]); break;
            }
        }
        if (i < 2) continue;
        const float *from = part[(i - 2) & 3];
        __m512 s = _mm512_load_ps(d->scale + (i - 2) * CPU_COLS + j);
        UNROLL16 for (int r = 0; r < AMX_BAND; r++) acc[r] = _mm512_fmadd_ps(s, _mm512_load_ps(from + r * AMX_COLS), acc[r]);
    }
    UNROLL16 for (int r = 0; r < AMX_BAND; r++) if (r < t->band) _mm512_storeu_ps(c + r * CPU_COLS + j, acc[r]);
}

/* Chain i of all columns, with a band of few rows. */
#define CHAINS_OF(cols, i, to)                                                                                         \
    do {                                                                                                               \
        _tile_zero(0);                                                                                                 \
        _tile_zero(1);                                                                                                 \
        _tile_zero(2);                                                                                                 \
        _tile_zero(3);                                                                                                 \
        for (int32_t s_ = 0; s_ < d->steps; s_++) {                                                                    \
            int32_t k_ = ((i) * d->steps + s_) * t->kstep;                                                             \
            const uint16_t *w_ = d->w + k_ * t->width;                                                                 \
            _tile_loadd(4, x + k_, SPAN * 2);                                                                          \
            _tile_loadd(5, w_, (cols)*64);                                                                             \
            _tile_dpbf16ps(0, 4, 5);                                                                                   \
            if ((cols) > 1) _tile_loadd(6, w_ + 32, (cols)*64);                                                        \
            if ((cols) > 1) _tile_dpbf16ps(1, 4, 6);                                                                   \
            if ((cols) > 2) _tile_loadd(5, w_ + 64, (cols)*64);                                                        \
            if ((cols) > 2) _tile_dpbf16ps(2, 4, 5);                                                                   \
            if ((cols) > 3) _tile_loadd(6, w_ + 96, (cols)*64);                                                        \
            if ((cols) > 3) _tile_dpbf16ps(3, 4, 6);                                                                   \
        }                                                                                                              \
        _tile_stored(0, to, (cols)*64);                                                                                \
        if ((cols) > 1) _tile_stored(1, (to) + 16, (cols)*64);                                                         \
        if ((cols) > 2) _tile_stored(2, (to) + 32, (cols)*64);                                                         \
        if ((cols) > 3) _tile_stored(3, (to) + 48, (cols)*64);                                                         \
    } while (0)

static inline __attribute__((always_inline)) void scaled_few_of(const call *t, const decoded *d, const uint16_t *x,
                                                                const int cols, float *c, int add)
{
    _Alignas(64) float part[2][AMX_FEW * CPU_COLS];
    for (int32_t i = 0; i < d->chains + 1; i++) {
        if (i < d->chains) CHAINS_OF(cols, i, part[i & 1]);
        if (!i) continue;
        const float *from = part[(i - 1) & 1];
        for (int32_t r = 0; r < t->band; r++)
            for (int v = 0; v < cols; v++) {
                float *to = c + r * CPU_COLS + v * 16;
                __m512 sum = add || i > 1 ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
                sum = _mm512_fmadd_ps(_mm512_load_ps(d->scale + (i - 1) * CPU_COLS + v * 16),
                                      _mm512_load_ps(from + (r * cols + v) * 16), sum);
                _mm512_storeu_ps(to, sum);
            }
    }
}

static void scaled_few(const call *t, const decoded *d, const uint16_t *x, float *c, int add)
{
    switch (t->width / AMX_COLS) {
    case 4: scaled_few_of(t, d, x, 4, c, add); break;
    case 3: scaled_few_of(t, d, x, 3, c, add); break;
    case 2: scaled_few_of(t, d, x, 2, c, add); break;
    default: scaled_few_of(t, d, x, 1, c, add); break;
    }
}

/* K's of a chain: all of these, when they are within one block, else a block or a part of one. */
static int32_t chain_of(int32_t block, int32_t padded)
{
    if (block % DECODED == 0 || block >= 1 << 20) return padded;
    if (block < CPU_BLOCK) return block;
    return padded % CPU_BLOCK ? CPU_STEP : CPU_BLOCK;
}

static void scaled_span(const call *t, const cpu_panel *panel, int32_t at, int32_t k, float *c)
{
    _Alignas(64) uint16_t w[DECODED * CPU_COLS];
    _Alignas(64) uint8_t room[DECODED * CPU_COLS];
    _Alignas(64) float scale[MOST_CHAINS * CPU_COLS], min[MOST_CHAINS * CPU_COLS];
    const cpu_format *f = &panel->format;
    for (int32_t in = 0; in < k; in += DECODED) {
        int32_t n = k - in < DECODED ? k - in : DECODED, padded = (n + CPU_STEP - 1) / CPU_STEP * CPU_STEP;
        int32_t chain = chain_of(f->block, padded), first = at + in;
        const uint8_t *codes = room;
        if (panel->packed) {
            codes = panel->data + cpu_element_bytes(f, t->width, first);
            lines_ahead next = next_lines(panel, 1, 0, first, t->k, DECODED);
            ask_ahead(&next, 0);
        } else {
            cpu_pack_block(panel, t->width, first, n, room);
        }
        decode_e4m3(codes, t->width, padded, w);
        decoded d = {.w = w, .scale = scale, .chains = (n + chain - 1) / chain, .steps = chain / t->kstep};
        chain_scales(rest(), panel, t->width, t->k, first, chain, d.chains, scale, min);
        for (int32_t b = 0; b < t->bands; b++) {
            const uint16_t *x = t->x + b * t->band * SPAN + in;
            float *cb = c + b * t->band * CPU_COLS;
            if (t->band <= AMX_FEW)
                scaled_few(t, &d, x, cb, first > 0);
            else
                for (int32_t j = 0; j < t->width; j += AMX_COLS) scaled_many(t, &d, x, j, cb, first > 0);
        }
    }
}

/* ---- the tile --------------------------------------------------------------------------------------- */

static void tile(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panels, int32_t n_panels, int32_t k,
                 float *const *c)
{
    _Alignas(64) uint16_t xb[AMX_ROWS * SPAN];
    const cpu_format *f = &panels[0].format;
    int scaled = cpu_scaled(f);
    if (n_panels > 1 && !cpu_same_format(f, &panels[1].format)) {
        for (int32_t p = 0; p < n_panels; p++) tile(x, x_dtype, rows, panels + p, 1, k, c + p);
        return;
    }
    if (cpu_ints(f) && rows <= AMX_FEW) {
        rest()->tile(x, x_dtype, rows, panels, n_panels, k, c);
        return;
    }
    if (cpu_ints(f)) {
        amx_tile_ints(x, x_dtype, rows, panels, n_panels, k, c);
        for (int32_t p = 0; p < n_panels; p++) cpu_apply_factor(&panels[p], rows, c[p]);
        return;
    }
    if (!scaled && (f->values != CPU_BF16 || x_dtype != MOEWE_DTYPE_BF16)) {
        for (int32_t r = 0; r < rows; r += CPU_ROWS) {
            float *part[2 * CPU_MOST_PANELS];
            for (int32_t p = 0; p < n_panels; p++) part[p] = c[p] + r * CPU_COLS;
            rest()->tile(x + r, x_dtype, rows - r < CPU_ROWS ? rows - r : CPU_ROWS, panels, n_panels, k, part);
        }
        return;
    }
    call t = {.rows = rows, .bands = (rows + AMX_BAND - 1) / AMX_BAND, .k = k, .x = xb,
              .kstep = f->block < CPU_STEP ? f->block : CPU_STEP};
    t.band = (rows + t.bands - 1) / t.bands;
    amx_configure(t.band, t.kstep * 2);
    for (int32_t at = 0; at < k; at += SPAN) {
        int32_t n = k - at < SPAN ? k - at : SPAN;
        gather(&t, x, x_dtype, at, n);
        for (int32_t p = 0; p < n_panels; p++) {
            t.width = cpu_padded(panels[p].cols);
            if (scaled)
                scaled_span(&t, &panels[p], at, n, c[p]);
            else
                plain_span(&t, &panels[p], at, n, next_lines(panels, n_panels, p, at, k, SPAN), c[p]);
        }
    }
    _tile_release();
    for (int32_t p = 0; p < n_panels; p++) cpu_apply_factor(&panels[p], rows, c[p]);
}

/* ---- the rest of the table ---------------------------------------------------------------------------- */

static void act(const cpu_act *a, const float *g, float *u, int32_t n)
{
    rest()->act(a, g, u, n);
}

static void add_scaled(float *y, float w, const float *x, int32_t n)
{
    rest()->add_scaled(y, w, x, n);
}

static void from_f32(void *y, int32_t dtype, const float *x, int32_t n)
{
    rest()->from_f32(y, dtype, x, n);
}

static void scales(const cpu_panel *panel, int32_t width, int32_t k, int32_t b, float *scale, float *min)
{
    rest()->scales(panel, width, k, b, scale, min);
}

const cpu_kernels cpu_kernels_amx = {.rows = AMX_ROWS, .tile = tile, .round = round_row, .act = act, .add_scaled = add_scaled,
                                     .to_f32 = to_f32, .from_f32 = from_f32, .scales = scales};
