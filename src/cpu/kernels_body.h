/* kernels_body.h - what every level compiles for itself, with its own -m flags: activations, row
 * helpers, and the walk of one tile over K.  Included once by each kernels_*.c, which defines
 *     block_f32/bf16/f16(xb, rows, panel, width, k, c, add)
 * before it: c[r][j] (+)= sum over k of xb[r][k] * panel[k][j], one chain of additions in order of k.
 *
 * Loops here use no fused multiply-add (-ffp-contract=off), so they give the same bits at every level. */
#include <math.h>

#include "cpu.h"

/* ---- element conversions --------------------------------------------------------- */

static inline float bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bf16_f32(uint16_t h)
{
    return bits_f32((uint32_t)h << 16);
}

/* Round to nearest even; a NaN stays one. */
static inline uint16_t f32_bf16(float f)
{
    uint32_t u = f32_bits(f);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

static inline float f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    /* Scaling by 2^112 moves the exponent and makes denormals exact; Inf and NaN are put back after. */
    float f = bits_f32(rest) * 0x1p112f;
    uint32_t u = rest >= 0x0f800000 ? rest | 0x7f800000 : f32_bits(f);
    return bits_f32(sign | u);
}

static void to_f32(float *y, const void *x, int32_t dtype, int32_t n)
{
    if (dtype == MOEWE_DTYPE_F32) {
        memcpy(y, x, (size_t)n * sizeof *y);
        return;
    }
    const uint16_t *h = x;
    if (dtype == MOEWE_DTYPE_BF16)
        for (int32_t i = 0; i < n; i++) y[i] = bf16_f32(h[i]);
    else
        for (int32_t i = 0; i < n; i++) y[i] = f16_f32(h[i]);
}

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

/* ---- one tile over K ------------------------------------------------------------------- */

/* Packs k of K columns of a plain panel as pack_panel in cpu_pack.c does a whole one. */
static const void *packed_block(const cpu_panel *p, int32_t dtype, int32_t width, int32_t at, int32_t k, void *buf)
{
    uint32_t each = moewe_dtype_bytes(dtype);
    if (p->packed) return p->data + (uint64_t)at * (uint32_t)width * each;
    cpu_pack_block(p, dtype, width, at, k, buf);
    return buf;
}

#ifdef CPU_BF16_PAIRS
#define PAIRS_OF_BF16 1
#else
#define PAIRS_OF_BF16 0
#endif

static void tile(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panel, int32_t w_dtype, int32_t k,
                 float *c)
{
    _Alignas(64) float xb[CPU_ROWS * CPU_BLOCK];
    _Alignas(64) uint8_t wb[CPU_BLOCK * CPU_COLS * sizeof(float)];
    int32_t width = cpu_padded(panel->cols);
    int pairs = PAIRS_OF_BF16 && x_dtype == MOEWE_DTYPE_BF16 && w_dtype == MOEWE_DTYPE_BF16;
    for (int32_t at = 0; at < k; at += CPU_BLOCK) {
        int32_t kn = k - at < CPU_BLOCK ? k - at : CPU_BLOCK, even = kn + (kn & 1);
        const void *w = packed_block(panel, w_dtype, width, at, kn, wb);
        for (int32_t r = 0; r < rows; r++) {
            const uint8_t *from = (const uint8_t *)x[r] + (uint64_t)at * moewe_dtype_bytes(x_dtype);
            if (pairs) {
                uint16_t *to = (uint16_t *)xb + r * CPU_BLOCK;
                memcpy(to, from, (size_t)kn * sizeof *to);
                if (even > kn) to[kn] = 0;
            } else {
                to_f32(xb + r * CPU_BLOCK, from, x_dtype, kn);
                if (even > kn) xb[r * CPU_BLOCK + kn] = 0.0f;
            }
        }
        int add = at > 0;
#ifdef CPU_BF16_PAIRS
        if (pairs) {
            block_pairs((const uint16_t *)xb, rows, w, width, even, c, add);
            continue;
        }
#endif
        switch (w_dtype) {
        case MOEWE_DTYPE_F32: block_f32(xb, rows, w, width, kn, c, add); break;
        case MOEWE_DTYPE_BF16: block_bf16(xb, rows, w, width, even, c, add); break;
        default: block_f16(xb, rows, w, width, kn, c, add); break;
        }
    }
}

#define CPU_KERNELS(name)                                                                                              \
    const cpu_kernels name = {                                                                                         \
        .tile = tile, .act = act, .add_scaled = add_scaled, .to_f32 = to_f32, .from_f32 = from_f32}
