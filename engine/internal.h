/* internal.h - what the files of engine/ share: the engine's parts, the one arena walk that counts and carves, and
 * the conversions between stored and computed values.  Never included outside engine/ and never a second size formula:
 * whoever takes memory from an arena is also who counts it. */
#ifndef MOEWE_ENGINE_INTERNAL_H
#define MOEWE_ENGINE_INTERNAL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../formats/clones.h"
#include "engine.h"

enum {
    ENGINE_MAX_HEAD_DIM = 512, /* a head's query and sum live on the stack of the thread that computes it */
    ENGINE_BLOCK = 32,         /* positions that attention takes at once, counted from position 0 of the sequence */
    ENGINE_ALIGN = 64
};

#define ENGINE_CLONES FMT_CLONES
#define ENGINE_INLINE static inline __attribute__((always_inline))

/* ---- arenas ------------------------------------------------------------------- */

/* With a null base a walk counts, with a base it yields pointers. */
typedef struct engine_arena {
    uint8_t *base;
    uint64_t used;
    uint32_t align; /* the largest asked for */
    int overflow;
} engine_arena;

static inline void *arena_take(engine_arena *a, uint64_t bytes, uint32_t align)
{
    uint64_t at, end;
    if (align < 1) align = 1;
    if (align > a->align) a->align = align;
    if (__builtin_add_overflow(a->used, (uint64_t)align - 1, &at)) a->overflow = 1;
    at &= ~((uint64_t)align - 1);
    if (__builtin_add_overflow(at, bytes, &end)) a->overflow = 1;
    if (a->overflow) return NULL;
    a->used = end;
    return a->base ? a->base + at : NULL;
}

/* count items of size bytes, on a cache line of their own. */
static inline void *arena_array(engine_arena *a, uint64_t count, uint64_t size)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        a->overflow = 1;
        return NULL;
    }
    return arena_take(a, bytes, ENGINE_ALIGN);
}

/* ---- the engine --------------------------------------------------------------- */

/* Plans by dtypes of the weights: all else is the same in every layer. */
typedef struct engine_plan {
    int32_t w_dtype, down_dtype;
    moewe_plan *plan;
} engine_plan;
enum { ENGINE_PLANS = 16 };

typedef struct engine_layer {
    const float *attn_norm, *mlp_norm; /* [hidden], f32 */
    const float *q_norm, *k_norm;      /* [head_dim], or NULL */
    moewe_linear q, k, v, o;
    moewe_linear gate, up, down; /* of a dense layer */
    float factors[7];            /* of the seven, what their scale.tensor points at */
    const moewe_plan *plan;      /* of a MoE layer, else NULL */
    moewe_weights moe;
    model_block block;
    int block_open;
} engine_layer;

struct engine {
    model_config config;
    int config_loaded;
    engine_options opt;
    st_store *store;
    moewe_device *dev;
    engine_plan plans[ENGINE_PLANS];
    int32_t n_plans;
    moewe_workspace *workspace;
    moewe_lane lane;
    int lane_out;
    engine_layer *layers; /* [n_layers] */
    engine_memory memory;
    moewe_span weights_mem, kv_mem, workspace_mem, act_mem;

    const float *final_norm;
    const st_tensor *embed;
    moewe_linear lm_head;
    float head_factor;

    int32_t threads;
    uint64_t act_bytes; /* of one activation: 4 or 2 */
    int64_t kv_rows;    /* context in whole blocks */

    /* Activations: [max_batch][width] each, in the dtype of the activations. */
    void *h;          /* residual stream */
    void *x;          /* normed input of a block */
    void *y;          /* output of a block */
    void *q, *k, *v;  /* projections; q and k are normed and rotated in place */
    void *a;          /* attention's output */
    void *gate, *up;  /* of dense layers, else NULL */
    void *xw;         /* [max_logits][hidden]: rows whose logits are wanted */
    float *logits;    /* [max_logits][vocab] */
    float *cos, *sin; /* [context][head_dim / 2] */
    int32_t *wanted;  /* [max_logits] row numbers */
    int32_t *length;  /* [max_sequences] positions that the KV cache holds */
    int32_t *next;    /* [max_sequences] scratch of the batch check */
    int32_t *first;   /* likewise: position of the sequence's first row in the batch, or -1 */
};

/* Element offset of one (layer, sequence, kv head) in the KV cache; K comes first, V of the layer follows it.
 * K: [kv_rows / BLOCK][head_dim][BLOCK], so that a block's scores need no sum across a vector.  V: [kv_rows][head_dim]. */
static inline uint64_t engine_kv_at(const engine *g, int32_t layer, int is_v, int32_t seq, int32_t kv_head)
{
    const model_config *c = &g->config;
    uint64_t unit = (uint64_t)g->kv_rows * (uint64_t)c->head_dim;
    uint64_t index = ((uint64_t)layer * 2 + (uint64_t)is_v) * (uint64_t)g->opt.max_sequences + (uint64_t)seq;
    return (index * (uint64_t)c->n_kv_heads + (uint64_t)kv_head) * unit;
}

/* Runs fn(ctx, from, to) over [0, n) in parts on the device's threads, or at once on this one when n items of about
 * cost operations each are too little to share out.  How it is cut never shows in the result. */
typedef void (*engine_range_fn)(void *ctx, int64_t from, int64_t to);
moewe_status engine_spread(const engine *g, engine_range_fn fn, void *ctx, int64_t n, int64_t cost);

/* Norms, rotates and stores the batch's k and v, then attends: g->q, k, v -> g->a. */
moewe_status engine_attention(engine *g, int32_t layer, const engine_batch *b);

/* ---- values ------------------------------------------------------------------- */

static inline float engine_bits_float(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = u};
    return v.f;
}

static inline uint32_t engine_float_bits(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f};
    return v.u;
}

static inline float engine_bf16_float(uint16_t b)
{
    return engine_bits_float((uint32_t)b << 16);
}

/* Nearest, ties to even; a NaN stays one. */
static inline uint16_t engine_float_bf16(float f)
{
    uint32_t u = engine_float_bits(f);
    uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

float engine_f16_float(uint16_t h);

/* n stored values of a moewe_dtype, at any alignment, to f32. */
void engine_widen(const void *src, int32_t dtype, float *dst, int64_t n);

/* Element i of a row of activations; bf16 is a constant where these are used, so the choice is made at compile time. */
ENGINE_INLINE float act_load(const void *row, int64_t i, int bf16)
{
    return bf16 ? engine_bf16_float(((const uint16_t *)row)[i]) : ((const float *)row)[i];
}

ENGINE_INLINE void act_store(void *row, int64_t i, float value, int bf16)
{
    if (bf16)
        ((uint16_t *)row)[i] = engine_float_bf16(value);
    else
        ((float *)row)[i] = value;
}

/* value as the activations' dtype holds it. */
ENGINE_INLINE float act_round(float value, int bf16)
{
    return bf16 ? engine_bf16_float(engine_float_bf16(value)) : value;
}

/* Sum of 16 partial sums in the one order that every sum of squares uses. */
ENGINE_INLINE float engine_sum16(float *s)
{
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; j++) s[j] += s[j + width];
    return s[0];
}

/* y = w * round(x / rms(x)), as transformers computes it; x and y may be one. */
ENGINE_INLINE void engine_norm_row(const void *x, const float *w, void *y, int32_t n, float eps, int bf16)
{
    float s[16] = {0}, scale;
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) {
            float v = act_load(x, i + j, bf16);
            s[j] += v * v;
        }
    for (int j = 0; i + j < n; j++) {
        float v = act_load(x, i + j, bf16);
        s[j] += v * v;
    }
    scale = 1.0f / sqrtf(engine_sum16(s) / (float)n + eps);
    for (i = 0; i < n; i++) act_store(y, i, w[i] * act_round(act_load(x, i, bf16) * scale, bf16), bf16);
}

#endif
