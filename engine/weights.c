/* weights.c - the checkpoint's tensors of a decoder, packed for the kernels into the weights arena.  Owns the walk
 * that counts and fills it; expert blocks come from formats/.  Never keeps memory of its own and never reads a
 * tensor whose shape was not checked. */
#include <stdlib.h>

#include "internal.h"
#include "weights.h"

/* dtype of t as moewe knows it; 0 with a sentence when it is one that cannot be computed with. */
static int32_t usable_dtype(const st_tensor *t, fmt_error *e)
{
    int32_t dtype = st_dtype_moewe(t->dtype);
    if (dtype == 0)
        fmt_fail(e, "%s: tensor %s has dtype %s, expected F32, F16 or BF16", t->file, t->name, st_dtype_name(t->dtype));
    return dtype;
}

static int missing(const engine *g, model_part part, int32_t layer, fmt_error *e)
{
    return fmt_fail(e, "%s: a %s decoder has no tensor for part %d of layer %d, which the engine needs", g->config.file,
                    g->config.model_type, (int)part, (int)layer);
}

/* A vector as f32 in the arena; *out is NULL when the walk counts or the config has no such part. */
static int take_vector(engine_arena *a, const st_tensor *t, const float **out, fmt_error *e)
{
    int32_t dtype = usable_dtype(t, e);
    float *v;
    if (!dtype) return -1;
    v = arena_array(a, (uint64_t)t->shape[0], sizeof *v);
    if (v) engine_widen(t->data, dtype, v, t->shape[0]);
    *out = v;
    return 0;
}

static int take_vector_part(engine *g, engine_arena *a, model_part part, int32_t layer, const float **out, fmt_error *e)
{
    int absent = 0;
    const st_tensor *t = model_part_find(&g->config, g->store, part, layer, &absent, e);
    *out = NULL;
    if (!t) return absent ? 0 : -1;
    return take_vector(a, t, out, e);
}

/* A norm that every decoder here has. */
static int take_norm(engine *g, engine_arena *a, model_part part, int32_t layer, const float **out, fmt_error *e)
{
    uint64_t before = a->used;
    if (take_vector_part(g, a, part, layer, out, e)) return -1;
    return a->used > before || a->overflow ? 0 : missing(g, part, layer, e);
}

/* A projection, where its bias stands or NULL, and where its factor is to stand; y_dtype 0 = that of the activations. */
static int take_linear(engine *g, engine_arena *a, const model_matrix *m, const float *bias, int32_t y_dtype, float *factor,
                       moewe_linear *out, fmt_error *e)
{
    moewe_linear src;
    moewe_need need;
    moewe_span mem;
    MOEWE_INIT(src);
    src.rows = m->rows;
    src.cols = m->cols;
    src.x_dtype = g->opt.dtype;
    src.y_dtype = y_dtype ? y_dtype : g->opt.dtype;
    src.matrix = m->m;
    src.matrix.bias = bias;
    *factor = m->factor;
    if (m->has_factor) src.matrix.scale.tensor = factor;
    if (moewe_linear_need(g->dev, &src, &need)) return fmt_fail(e, "%s: %s: %s", m->t->file, m->t->name, moewe_last_error());
    mem.bytes = need.bytes;
    mem.ptr = arena_take(a, need.bytes, need.align);
    *out = src;
    if (m->owned && !need.bytes)
        return fmt_fail(e, "%s: tensor %s must be packed to be used, and %s packs nothing", m->t->file, m->t->name,
                        moewe_device_backend(g->dev));
    if (!a->base || !need.bytes) return 0;
    if (moewe_linear_pack(g->dev, &src, mem, NULL, out))
        return fmt_fail(e, "%s: %s: %s", m->t->file, m->t->name, moewe_last_error());
    return 0;
}

/* bias_part: MODEL_PART_COUNT = no projection of this kind has one. */
static int take_part(engine *g, engine_arena *a, model_part part, model_part bias_part, int32_t layer, float *factor,
                     moewe_linear *out, fmt_error *e)
{
    int absent = 0;
    const float *bias = NULL;
    model_matrix m;
    if (model_part_matrix(&g->config, g->store, part, layer, &m, &absent, e)) return absent ? missing(g, part, layer, e) : -1;
    int failed = bias_part != MODEL_PART_COUNT && take_vector_part(g, a, bias_part, layer, &bias, e);
    if (!failed) failed = take_linear(g, a, &m, bias, 0, factor, out, e);
    free(m.owned);
    return failed;
}

static int take_moe(engine *g, engine_arena *a, int32_t index, fmt_error *e)
{
    engine_layer *l = &g->layers[index];
    moewe_need need;
    moewe_span mem;
    if (moewe_weights_need(l->plan, &l->block.w, &need))
        return fmt_fail(e, "MoE block of layer %d: %s", (int)index, moewe_last_error());
    mem.bytes = need.bytes;
    mem.ptr = arena_take(a, need.bytes, need.align);
    l->moe = l->block.w;
    if (!a->base || !need.bytes) return 0;
    if (moewe_weights_pack(l->plan, &l->block.w, mem, NULL, &l->moe))
        return fmt_fail(e, "MoE block of layer %d: %s", (int)index, moewe_last_error());
    return 0;
}

static int take_layer(engine *g, engine_arena *a, int32_t i, fmt_error *e)
{
    engine_layer *l = &g->layers[i];
    const struct {
        model_part part, bias;
        moewe_linear *to;
    } parts[] = {{MODEL_Q, MODEL_Q_BIAS, &l->q},
                 {MODEL_K, MODEL_K_BIAS, &l->k},
                 {MODEL_V, MODEL_V_BIAS, &l->v},
                 {MODEL_O, MODEL_O_BIAS, &l->o},
                 {MODEL_DENSE_GATE, MODEL_PART_COUNT, &l->gate},
                 {MODEL_DENSE_UP, MODEL_PART_COUNT, &l->up},
                 {MODEL_DENSE_DOWN, MODEL_PART_COUNT, &l->down}};
    enum { OF_ATTENTION = 4, ALL = sizeof parts / sizeof *parts };
    if (take_norm(g, a, MODEL_ATTN_NORM, i, &l->attn_norm, e) || take_norm(g, a, MODEL_MLP_NORM, i, &l->mlp_norm, e) ||
        take_vector_part(g, a, MODEL_Q_NORM, i, &l->q_norm, e) || take_vector_part(g, a, MODEL_K_NORM, i, &l->k_norm, e))
        return -1;
    for (int p = 0; p < (l->plan ? OF_ATTENTION : ALL); p++)
        if (take_part(g, a, parts[p].part, parts[p].bias, i, &l->factors[p], parts[p].to, e)) return -1;
    return l->plan ? take_moe(g, a, i, e) : 0;
}

int engine_take_weights(engine *g, engine_arena *a, fmt_error *e)
{
    int absent = 0, failed;
    model_matrix head;

    g->embed = model_part_find(&g->config, g->store, MODEL_EMBED, 0, &absent, e);
    if (!g->embed) return absent ? missing(g, MODEL_EMBED, 0, e) : -1;
    if (!usable_dtype(g->embed, e)) return -1;
    for (int32_t i = 0; i < g->config.n_layers; i++)
        if (take_layer(g, a, i, e)) return -1;
    if (take_norm(g, a, MODEL_FINAL_NORM, 0, &g->final_norm, e)) return -1;

    absent = 0;
    failed = model_part_matrix(&g->config, g->store, MODEL_LM_HEAD, 0, &head, &absent, e);
    if (failed && absent) failed = model_part_matrix(&g->config, g->store, MODEL_EMBED, 0, &head, &absent, e);
    if (failed) return -1;
    failed = take_linear(g, a, &head, NULL, MOEWE_DTYPE_F32, &g->head_factor, &g->lm_head, e);
    free(head.owned);
    return failed;
}
