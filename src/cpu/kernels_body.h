/* kernels_body.h - what every level compiles for itself, with its own -m flags: activations, row
 * helpers, and the walk of one tile over K.  Included once by each kernels_*.c, which defines
 *     block_f32/bf16/f16(xb, rows, panel, width, k, c, add)
 * before it: c[r][j] (+)= sum over k of xb[r][k] * panel[k][j], one chain of additions in order of k, and
 *     tile_ints(x, x_dtype, rows, panels, n_panels, k, c)
 * for whole-number codes of one format, without the panels' factors (rounded.h).  A level that has more also defines
 * CPU_BF16_PAIRS, with block_pairs for bf16 by bf16.
 *
 * Loops here use no fused multiply-add (-ffp-contract=off), so they give the same bits at every level. */
#include <math.h>

#include "rounded.h"

/* ---- rows --------------------------------------------------------------------------- */

static void from_f32(void *y, int32_t dtype, const float *x, int32_t n)
{
    if (dtype == MOEWE_DTYPE_F32) {
        memcpy(y, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *h = y;
    for (int32_t i = 0; i < n; i++) h[i] = f32_bf16(x[i]);
}

static void add_scaled(float *y, float w, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) y[i] += w * x[i];
}

/* ---- activations -------------------------------------------------------------------- */

/* e^x to about 1 ulp, without branches so that loops vectorise: x = n ln 2 + r, polynomial in r.
 * 2^n is applied in two halves, which reaches denormals and overflows to Inf by itself. */
static inline float exp_f32(float x)
{
    float t = x < -104.0f ? -104.0f : x;
    t = t > 89.0f ? 89.0f : t;
    float shifted = t * 1.44269504f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = t - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = (p * r) * r + r;
    p = p + 1.0f;
    int32_t k = (int32_t)(f32_bits(shifted) - 0x4b400000u); /* the bits of 12582912 + n */
    int32_t half = k >> 1;
    float a = bits_f32((uint32_t)(half + 127) << 23), b = bits_f32((uint32_t)(k - half + 127) << 23);
    return x != x ? x : p * a * b;
}

static inline float sigmoid_f32(float x)
{
    return 1.0f / (1.0f + exp_f32(-x));
}

static inline float silu_f32(float x)
{
    return x / (1.0f + exp_f32(-x));
}

static inline float gelu_f32(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

/* 0.5 x (1 + tanh z) is x * sigmoid(2 z). */
static inline float gelu_tanh_f32(float x)
{
    return x * sigmoid_f32(1.59576912f * (x + 0.044715f * x * x * x));
}

/* Comparisons that are false for NaN keep it. */
static inline float at_most(float x, float limit)
{
    return x > limit ? limit : x;
}

static inline float within(float x, float limit)
{
    float t = x > limit ? limit : x;
    return t < -limit ? -limit : t;
}

static inline float positive(float x)
{
    return x < 0.0f ? 0.0f : x;
}

#define GATED(value)                                                                                                   \
    for (int32_t i = 0; i < n; i++) {                                                                                  \
        float raw = g[i], gate = at_most(raw, limit), up = within(u[i], limit);                                        \
        (void)raw;                                                                                                     \
        (void)gate;                                                                                                    \
        u[i] = (value);                                                                                                \
    }                                                                                                                  \
    break

#define UNGATED(value)                                                                                                 \
    for (int32_t i = 0; i < n; i++) {                                                                                  \
        float up = at_most(u[i], limit);                                                                               \
        u[i] = (value);                                                                                                \
    }                                                                                                                  \
    break

static void act(const cpu_act *a, const float *g, float *u, int32_t n)
{
    const float limit = a->limit > 0 ? a->limit : INFINITY, alpha = a->alpha, beta = a->beta;
    switch (a->kind) {
    case MOEWE_ACT_SWIGLU: GATED(silu_f32(gate) * up);
    case MOEWE_ACT_SWIGLU_STEP: GATED(at_most(silu_f32(raw), limit) * up);
    case MOEWE_ACT_SWIGLU_OAI: GATED(gate * sigmoid_f32(alpha * gate) * (up + beta));
    case MOEWE_ACT_GEGLU: GATED(gelu_f32(gate) * up);
    case MOEWE_ACT_GEGLU_TANH: GATED(gelu_tanh_f32(gate) * up);
    case MOEWE_ACT_REGLU: GATED(positive(gate) * up);
    case MOEWE_ACT_RELU2: UNGATED(positive(up) * positive(up));
    case MOEWE_ACT_RELU: UNGATED(positive(up));
    case MOEWE_ACT_SILU: UNGATED(silu_f32(up));
    case MOEWE_ACT_GELU: UNGATED(gelu_f32(up));
    default: UNGATED(gelu_tanh_f32(up));
    }
}

/* ---- codes and scales ------------------------------------------------------------------- */

/* k K's (a multiple of 4) of packed E4M3 as f32, without scales: out[k][width]. */
static void decode(const uint32_t *w, int32_t width, int32_t k, float *out)
{
    for (int32_t i = 0; i < k; i++, out += width) {
        const uint32_t *d = w + (int64_t)(i / 4) * width;
        int32_t shift = (i & 1) * 16 + (i & 2) * 4; /* as cpu_panel says */
        for (int32_t j = 0; j < width; j++) out[j] = e4m3_f32(d[j] >> shift & 0xff);
    }
}

/* Scale and, of K quants with minima, minimum of block b for all columns. */
static void block_scales(const cpu_panel *p, int32_t width, int32_t k, int32_t b, float *scale, float *min)
{
    cpu_scale_room room;
    cpu_raw_scales raw = cpu_scales_of(p, width, k, b, &room);
    const uint8_t *bytes = raw.inner;
    uint16_t half[CPU_COLS];
    float outer[2 * CPU_COLS];
    switch (p->format.scales) {
    case CPU_SCALES_F32: memcpy(scale, bytes, (size_t)width * sizeof *scale); break;
    case CPU_SCALES_BF16:
        memcpy(half, bytes, (size_t)width * sizeof *half);
        for (int32_t j = 0; j < width; j++) scale[j] = bf16_f32(half[j]);
        break;
    case CPU_SCALES_F16:
        memcpy(half, bytes, (size_t)width * sizeof *half);
        halves_f32(scale, half, width);
        break;
    case CPU_SCALES_E4M3:
        for (int32_t j = 0; j < width; j++) scale[j] = e4m3_f32(bytes[j]);
        break;
    case CPU_SCALES_E8M0:
        for (int32_t j = 0; j < width; j++) scale[j] = e8m0_f32(bytes[j]);
        break;
    case CPU_SCALES_K4:
        halves_f32(outer, raw.outer, 2 * width);
        for (int32_t j = 0; j < width; j++) scale[j] = outer[2 * j] * (float)bytes[2 * j];
        for (int32_t j = 0; j < width; j++) min[j] = outer[2 * j + 1] * (float)bytes[2 * j + 1];
        break;
    case CPU_SCALES_K6:
        halves_f32(outer, raw.outer, width);
        for (int32_t j = 0; j < width; j++) scale[j] = outer[j] * (float)(int8_t)bytes[j];
        break;
    default:
        for (int32_t j = 0; j < width; j++) scale[j] = 1.0f;
    }
}

/* ---- one tile over K ------------------------------------------------------------------- */

/* The elements of k of K columns from column at, in the packed order. */
static const void *packed_block(const cpu_panel *p, int32_t width, int32_t at, int32_t k, void *buf)
{
    if (p->packed) return p->data + cpu_element_bytes(&p->format, width, at);
    cpu_pack_block(p, width, at, k, buf);
    return buf;
}

#ifdef CPU_BF16_PAIRS
#define PAIRS_OF_BF16 1
#else
#define PAIRS_OF_BF16 0
#endif

/* k columns of rows of x as f32, zeros up to padded. */
static void x_block(const void *const *x, int32_t x_dtype, int32_t rows, int32_t at, int32_t k, int32_t padded, float *xb)
{
    for (int32_t r = 0; r < rows; r++) {
        float *to = xb + r * CPU_BLOCK;
        to_f32(to, (const uint8_t *)x[r] + (uint64_t)at * moewe_dtype_bytes(x_dtype), x_dtype, k);
        for (int32_t i = k; i < padded; i++) to[i] = 0.0f;
    }
}

/* c (+)= scale * t, for each row. */
static void add_block(const float *t, const float *scale, int32_t rows, int32_t width, float *c, int add)
{
    for (int32_t r = 0; r < rows; r++) {
        float *to = c + r * CPU_COLS;
        const float *from = t + r * CPU_COLS;
        for (int32_t j = 0; j < width; j++) to[j] = (add ? to[j] : 0.0f) + scale[j] * from[j];
    }
}

/* E4M3: codes are computed with as they are, in chains of at most a block, and each chain is scaled. */
static void tile_scaled(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panel, int32_t k, float *c)
{
    _Alignas(64) float xb[CPU_ROWS * CPU_BLOCK], wf[CPU_BLOCK * CPU_COLS], t[CPU_ROWS * CPU_COLS];
    _Alignas(64) uint8_t wb[CPU_BLOCK * CPU_COLS];
    float scale[CPU_COLS], none[CPU_COLS];
    int32_t width = cpu_padded(panel->cols), block = panel->format.block, step = block < CPU_BLOCK ? block : CPU_BLOCK;
    int32_t held = -1;
    for (int32_t at = 0; at < k; at += CPU_BLOCK) {
        int32_t kn = k - at < CPU_BLOCK ? k - at : CPU_BLOCK, padded = (kn + CPU_STEP - 1) / CPU_STEP * CPU_STEP;
        decode(packed_block(panel, width, at, kn, wb), width, padded, wf);
        x_block(x, x_dtype, rows, at, kn, padded, xb);
        for (int32_t in = 0; in < kn; in += step) {
            int32_t n = padded - in < step ? padded - in : step, b = (at + in) / block;
            if (b != held) block_scales(panel, width, k, held = b, scale, none);
            block_f32(xb + in, rows, wf + (int64_t)in * width, width, n, t, 0);
            add_block(t, scale, rows, width, c, at + in > 0);
        }
    }
    cpu_apply_factor(panel, rows, c);
}

static void tile_panel(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panel, int32_t k, float *c)
{
    _Alignas(64) float xb[CPU_ROWS * CPU_BLOCK];
    _Alignas(64) uint8_t wb[CPU_BLOCK * CPU_COLS * sizeof(float)];
    int32_t width = cpu_padded(panel->cols), values = panel->format.values;
    int pairs = PAIRS_OF_BF16 && x_dtype == MOEWE_DTYPE_BF16 && values == CPU_BF16;
    if (cpu_scaled(&panel->format)) {
        tile_scaled(x, x_dtype, rows, panel, k, c);
        return;
    }
    for (int32_t at = 0; at < k; at += CPU_BLOCK) {
        int32_t kn = k - at < CPU_BLOCK ? k - at : CPU_BLOCK, even = kn + (kn & 1);
        const void *w = packed_block(panel, width, at, kn, wb);
        int add = at > 0;
#ifdef CPU_BF16_PAIRS
        if (pairs) {
            for (int32_t r = 0; r < rows; r++) {
                uint16_t *to = (uint16_t *)xb + r * CPU_BLOCK;
                memcpy(to, (const uint16_t *)x[r] + at, (size_t)kn * sizeof *to);
                if (even > kn) to[kn] = 0;
            }
            block_pairs((const uint16_t *)xb, rows, w, width, even, c, add);
            continue;
        }
#endif
        (void)pairs;
        x_block(x, x_dtype, rows, at, kn, even, xb);
        switch (values) {
        case CPU_F32: block_f32(xb, rows, w, width, kn, c, add); break;
        case CPU_BF16: block_bf16(xb, rows, w, width, even, c, add); break;
        default: block_f16(xb, rows, w, width, kn, c, add); break;
        }
    }
}

static void tile_each(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panels, int32_t n_panels,
                      int32_t k, float *const *c)
{
    for (int32_t p = 0, n; p < n_panels; p += n) {
        for (n = 1; p + n < n_panels && cpu_same_format(&panels[p].format, &panels[p + n].format);) n++;
        if (cpu_ints(&panels[p].format)) {
            tile_ints(x, x_dtype, rows, panels + p, n, k, c + p);
            for (int32_t i = p; i < p + n; i++) cpu_apply_factor(&panels[i], rows, c[i]);
        } else {
            for (int32_t i = p; i < p + n; i++) tile_panel(x, x_dtype, rows, &panels[i], k, c[i]);
        }
    }
}

#define CPU_KERNELS(name)                                                                                              \
    const cpu_kernels name = {                                                                                         \
        .rows = CPU_ROWS, .tile = tile_each, .round = round_row, .act = act, .add_scaled = add_scaled, .to_f32 = to_f32, \
        .from_f32 = from_f32, .scales = block_scales}
