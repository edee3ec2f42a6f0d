/* attention.c - from the q, k and v projections of a batch to attention's output: head norms, rotary positions, the
 * KV cache, causal grouped-query attention.  Owns the layout of the cache.  Must never let a sum depend on what else
 * is in the batch: one (row, head) walks its sequence's positions in blocks counted from position 0, in one order. */
#include "internal.h"

typedef struct attention_task {
    const engine *g;
    const engine_batch *b;
    const engine_layer *layer;
    int32_t index; /* of the layer */
} attention_task;

/* ---- norms, rotation, cache --------------------------------------------------- */

/* Element i pairs with i + half (rotate_half of transformers); every product is rounded as its own operation there. */
ENGINE_INLINE void rotate(void *head, const float *cosines, const float *sines, int32_t half, int bf16)
{
    for (int32_t i = 0; i < half; i++) {
        float a = act_load(head, i, bf16), b = act_load(head, i + half, bf16);
        float ac = act_round(a * cosines[i], bf16), bs = act_round(b * sines[i], bf16);
        float bc = act_round(b * cosines[i], bf16), as = act_round(a * sines[i], bf16);
        act_store(head, i, ac - bs, bf16);
        act_store(head, i + half, bc + as, bf16);
    }
}

ENGINE_INLINE void *element(const void *base, uint64_t index, int bf16)
{
    return (char *)(uintptr_t)base + index * (bf16 ? 2 : 4);
}

ENGINE_INLINE void prepare_rows(const attention_task *t, int64_t from, int64_t to, int bf16)
{
    const engine *g = t->g;
    const model_config *c = &g->config;
    int32_t dim = c->head_dim, half = dim / 2;

    for (int64_t row = from; row < to; row++) {
        int32_t pos = t->b->pos[row], seq = t->b->seq[row];
        const float *cosines = g->cos + (int64_t)pos * half, *sines = g->sin + (int64_t)pos * half;
        for (int32_t head = 0; head < c->n_heads; head++) {
            void *q = element(g->q, ((uint64_t)row * (uint64_t)c->n_heads + (uint64_t)head) * (uint64_t)dim, bf16);
            if (t->layer->q_norm) engine_norm_row(q, t->layer->q_norm, q, dim, c->rms_eps, bf16);
            rotate(q, cosines, sines, half, bf16);
        }
        for (int32_t head = 0; head < c->n_kv_heads; head++) {
            uint64_t at = ((uint64_t)row * (uint64_t)c->n_kv_heads + (uint64_t)head) * (uint64_t)dim;
            void *k = element(g->k, at, bf16);
            const void *v = element(g->v, at, bf16);
            void *k_block = element(g->kv_mem.ptr,
                                    engine_kv_at(g, t->index, 0, seq, head) +
                                        (uint64_t)(pos / ENGINE_BLOCK) * (uint64_t)dim * ENGINE_BLOCK,
                                    bf16);
            void *v_row =
                element(g->kv_mem.ptr, engine_kv_at(g, t->index, 1, seq, head) + (uint64_t)pos * (uint64_t)dim, bf16);
            if (t->layer->k_norm) engine_norm_row(k, t->layer->k_norm, k, dim, c->rms_eps, bf16);
            rotate(k, cosines, sines, half, bf16);
            for (int32_t i = 0; i < dim; i++)
                act_store(k_block, (int64_t)i * ENGINE_BLOCK + pos % ENGINE_BLOCK, act_load(k, i, bf16), bf16);
            memcpy(v_row, v, (size_t)dim * (bf16 ? 2 : 4));
        }
    }
}

static void prepare_f32(void *task, int64_t from, int64_t to)
{
    prepare_rows(task, from, to, 0);
}

static void prepare_bf16(void *task, int64_t from, int64_t to)
{
    prepare_rows(task, from, to, 1);
}

/* ---- attention ---------------------------------------------------------------- */

/* exp(x) for x <= 0 to about one unit in the last place, in operations that vectorise; below -87 it stays at e^-87. */
ENGINE_INLINE float exp_negative(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    float n, r, p;
    uint32_t scale;
    x = x < -87.0f ? -87.0f : x;
    n = x * 1.44269504f + magic;
    scale = (engine_float_bits(n) - engine_float_bits(magic) + 127u) << 23;
    n -= magic;
    r = x - n * 0.693359375f;
    r -= n * -2.12194440e-4f;
    p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * engine_bits_float(scale);
}

/* s[j] = q . k[j] over one block, each in ascending dimension. */
ENGINE_INLINE void block_scores(const float *q, const void *k_block, int32_t dim, float *s, int bf16)
{
    float sum[ENGINE_BLOCK] = {0};
    for (int32_t i = 0; i < dim; i++)
        for (int j = 0; j < ENGINE_BLOCK; j++) sum[j] += q[i] * act_load(k_block, (int64_t)i * ENGINE_BLOCK + j, bf16);
    for (int j = 0; j < ENGINE_BLOCK; j++) s[j] = sum[j];
}

/* o[i] += p[j] * v[j][i] for j in [from, to] ascending, width columns that stay in registers. */
ENGINE_INLINE void block_values(const float *p, const void *v, int32_t dim, int from, int to, float *o, int32_t at,
                                int width, int bf16)
{
    float sum[ENGINE_BLOCK];
    for (int i = 0; i < width; i++) sum[i] = o[at + i];
    for (int j = from; j <= to; j++)
        for (int i = 0; i < width; i++) sum[i] += p[j] * act_load(v, (int64_t)j * dim + at + i, bf16);
    for (int i = 0; i < width; i++) o[at + i] = sum[i];
}

/* Softmax and the sum over values are carried from block to block: the sum is rescaled when the maximum grows. */
ENGINE_INLINE void attend(const float *q, const void *k, const void *v, int32_t first, int32_t pos, int32_t dim,
                          float *o, int bf16)
{
    float maximum = -INFINITY, total = 0.0f;
    for (int32_t i = 0; i < dim; i++) o[i] = 0.0f;

    for (int32_t block = first / ENGINE_BLOCK; block <= pos / ENGINE_BLOCK; block++) {
        int32_t start = block * ENGINE_BLOCK, at = 0;
        int from = first > start ? (int)(first - start) : 0;
        int to = pos - start < ENGINE_BLOCK - 1 ? (int)(pos - start) : ENGINE_BLOCK - 1;
        const void *v_block = element(v, (uint64_t)start * (uint64_t)dim, bf16);
        float s[ENGINE_BLOCK], p[ENGINE_BLOCK], high = -INFINITY;

        block_scores(q, element(k, (uint64_t)start * (uint64_t)dim, bf16), dim, s, bf16);
        for (int j = from; j <= to; j++) high = s[j] > high ? s[j] : high;
        if (high > maximum) {
            float scale = maximum == -INFINITY ? 0.0f : exp_negative(maximum - high);
            for (int32_t i = 0; i < dim; i++) o[i] *= scale;
            total *= scale;
            maximum = high;
        }
        for (int j = 0; j < ENGINE_BLOCK; j++) p[j] = exp_negative(s[j] - maximum);
        for (int j = from; j <= to; j++) total += p[j];
        for (; at + ENGINE_BLOCK <= dim; at += ENGINE_BLOCK)
            block_values(p, v_block, dim, from, to, o, at, ENGINE_BLOCK, bf16);
        for (; at + 8 <= dim; at += 8) block_values(p, v_block, dim, from, to, o, at, 8, bf16);
        for (; at < dim; at++) block_values(p, v_block, dim, from, to, o, at, 1, bf16);
    }
    for (int32_t i = 0; i < dim; i++) o[i] /= total;
}

/* Items are (row, head), heads of one row next to each other since those of a group read the same k and v. */
ENGINE_INLINE void attend_items(const attention_task *t, int64_t from, int64_t to, int bf16)
{
    const engine *g = t->g;
    const model_config *c = &g->config;
    int32_t dim = c->head_dim, group = c->n_heads / c->n_kv_heads, window = c->sliding_window;
    float scale = 1.0f / sqrtf((float)dim);
    float q[ENGINE_MAX_HEAD_DIM], o[ENGINE_MAX_HEAD_DIM];

    for (int64_t item = from; item < to; item++) {
        int64_t row = item / c->n_heads;
        int32_t kv_head = (int32_t)(item % c->n_heads) / group;
        int32_t pos = t->b->pos[row], seq = t->b->seq[row];
        int32_t first = window > 0 && pos >= window ? pos - window + 1 : 0;
        uint64_t at = (uint64_t)item * (uint64_t)dim;
        for (int32_t i = 0; i < dim; i++) q[i] = act_load(g->q, (int64_t)at + i, bf16) * scale;
        attend(q, element(g->kv_mem.ptr, engine_kv_at(g, t->index, 0, seq, kv_head), bf16),
               element(g->kv_mem.ptr, engine_kv_at(g, t->index, 1, seq, kv_head), bf16), first, pos, dim, o, bf16);
        for (int32_t i = 0; i < dim; i++) act_store(g->a, (int64_t)at + i, o[i], bf16);
    }
}

ENGINE_CLONES static void attend_f32(void *task, int64_t from, int64_t to)
{
    attend_items(task, from, to, 0);
}

ENGINE_CLONES static void attend_bf16(void *task, int64_t from, int64_t to)
{
    attend_items(task, from, to, 1);
}

moewe_status engine_attention(engine *g, int32_t layer, const engine_batch *b)
{
    const model_config *c = &g->config;
    attention_task t = {g, b, &g->layers[layer], layer};
    int bf16 = g->opt.dtype == MOEWE_DTYPE_BF16;
    int64_t positions = 0;
    moewe_status s;

    s = engine_spread(g, bf16 ? prepare_bf16 : prepare_f32, &t, b->n_tokens,
                      4 * (int64_t)(c->n_heads + 2 * c->n_kv_heads) * c->head_dim);
    if (s) return s;
    for (int32_t i = 0; i < b->n_tokens; i++) positions += b->pos[i] + 1;
    return engine_spread(g, bf16 ? attend_bf16 : attend_f32, &t, (int64_t)b->n_tokens * c->n_heads,
                         b->n_tokens ? positions / b->n_tokens * c->head_dim / 2 : 0);
}
