/* weights.c - the checkpoint's tensors of a decoder, packed for the kernels into the weights arena.  Owns the walk
 * that counts and fills it; expert blocks come from formats/.  Never keeps memory of its own and never reads a
 * tensor whose shape was not checked. */
#include <stdio.h>

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

static int take_norm(engine *g, engine_arena *a, model_part part, int32_t layer, const float **out, fmt_error *e)
{
    int absent = 0;
    const st_tensor *t = model_part_find(&g->config, g->store, part, layer, &absent, e);
    *out = NULL;
    if (!t) return absent ? 0 : -1;
    return take_vector(a, t, out, e);
}

/* The bias beside a projection: "….q_proj.weight" has "….q_proj.bias". */
static int take_bias(engine *g, engine_arena *a, const st_tensor *weight, const float **out, fmt_error *e)
{
    static const char suffix[] = ".weight";
    char name[512];
    const st_tensor *t;
    size_t length = strlen(weight->name);
    int64_t shape[1] = {weight->shape[0]};
    int n;
    if (length < sizeof suffix - 1 || strcmp(weight->name + length - (sizeof suffix - 1), suffix) != 0)
        return fmt_fail(e, "%s: tensor %s has no name ending in .weight, so its bias cannot be named", weight->file,
                        weight->name);
    n = snprintf(name, sizeof name, "%.*s.bias", (int)(length - (sizeof suffix - 1)), weight->name);
    if (n < 0 || (size_t)n >= sizeof name)
        return fmt_fail(e, "%s: a tensor name of %zu bytes is too long, the most is %zu", weight->file, length,
                        sizeof name - 1);
    t = st_need(g->store, name, 1, shape, e);
    return t ? take_vector(a, t, out, e) : -1;
}

/* A projection; y_dtype 0 = that of the activations. */
static int take_linear(engine *g, engine_arena *a, const st_tensor *t, int biased, int32_t y_dtype, moewe_linear *out,
                       fmt_error *e)
{
    moewe_linear src;
    moewe_need need;
    moewe_span mem;
    MOEWE_INIT(src);
    if (t->rank != 2 || t->shape[0] > INT32_MAX || t->shape[1] > INT32_MAX)
        return fmt_fail(e, "%s: tensor %s has rank %d, expected a matrix", t->file, t->name, (int)t->rank);
    src.rows = (int32_t)t->shape[0];
    src.cols = (int32_t)t->shape[1];
    src.x_dtype = g->opt.dtype;
    src.y_dtype = y_dtype ? y_dtype : g->opt.dtype;
    src.matrix.data = t->data;
    src.matrix.dtype = usable_dtype(t, e);
    if (!src.matrix.dtype || (biased && take_bias(g, a, t, &src.matrix.bias, e))) return -1;
    if (moewe_linear_need(g->dev, &src, &need)) return fmt_fail(e, "%s: %s: %s", t->file, t->name, moewe_last_error());
    mem.bytes = need.bytes;
    mem.ptr = arena_take(a, need.bytes, need.align);
    *out = src;
    if (!a->base || !need.bytes) return 0;
    if (moewe_linear_pack(g->dev, &src, mem, NULL, out))
        return fmt_fail(e, "%s: %s: %s", t->file, t->name, moewe_last_error());
    return 0;
}

static int take_part(engine *g, engine_arena *a, model_part part, int32_t layer, int biased, moewe_linear *out,
                     fmt_error *e)
{
    int absent = 0;
    const st_tensor *t = model_part_find(&g->config, g->store, part, layer, &absent, e);
    if (t) return take_linear(g, a, t, biased, 0, out, e);
    return absent ? fmt_fail(e, "%s: a %s decoder has no tensor for part %d of layer %d, which the engine needs",
                             g->config.file, g->config.model_type, (int)part, (int)layer)
                  : -1;
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
    int biased = g->config.attention_bias;
    if (take_norm(g, a, MODEL_ATTN_NORM, i, &l->attn_norm, e) || take_norm(g, a, MODEL_MLP_NORM, i, &l->mlp_norm, e) ||
        take_norm(g, a, MODEL_Q_NORM, i, &l->q_norm, e) || take_norm(g, a, MODEL_K_NORM, i, &l->k_norm, e) ||
        take_part(g, a, MODEL_Q, i, biased, &l->q, e) || take_part(g, a, MODEL_K, i, biased, &l->k, e) ||
        take_part(g, a, MODEL_V, i, biased, &l->v, e) || take_part(g, a, MODEL_O, i, biased, &l->o, e))
        return -1;
    if (l->plan) return take_moe(g, a, i, e);
    return take_part(g, a, MODEL_DENSE_GATE, i, 0, &l->gate, e) || take_part(g, a, MODEL_DENSE_UP, i, 0, &l->up, e) ||
                   take_part(g, a, MODEL_DENSE_DOWN, i, 0, &l->down, e)
               ? -1
               : 0;
}

int engine_take_weights(engine *g, engine_arena *a, fmt_error *e)
{
    int absent = 0;
    const st_tensor *head;

    g->embed = model_part_find(&g->config, g->store, MODEL_EMBED, 0, &absent, e);
    if (!g->embed)
        return absent ? fmt_fail(e, "%s: a %s decoder has no token embedding", g->config.file, g->config.model_type)
                      : -1;
    if (!usable_dtype(g->embed, e)) return -1;
    for (int32_t i = 0; i < g->config.n_layers; i++)
        if (take_layer(g, a, i, e)) return -1;
    if (take_norm(g, a, MODEL_FINAL_NORM, 0, &g->final_norm, e)) return -1;

    absent = 0;
    head = model_part_find(&g->config, g->store, MODEL_LM_HEAD, 0, &absent, e);
    if (!head && !absent) return -1;
    return take_linear(g, a, head ? head : g->embed, 0, MOEWE_DTYPE_F32, &g->lm_head, e);
}
