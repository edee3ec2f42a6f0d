/* cpu.c - what moewe run and the engine take on a CPU device: the library's own answers for matrices of these shapes, in
 * the order and alignment in which they are taken.  Nothing is packed; no size is computed here but that of a vector. */
#include "internal.h"

enum { ALIGN = 64, KV_BLOCK = 32 }; /* of the engine's arenas and of its KV cache */

static int take(uint64_t *used, uint64_t bytes)
{
    uint64_t at;
    if (__builtin_add_overflow(*used, (uint64_t)ALIGN - 1, &at)) return -1;
    return __builtin_add_overflow(at / ALIGN * ALIGN, bytes, used) ? -1 : 0;
}

static int too_large(const planner_model *m, fmt_error *e)
{
    return fmt_fail(e, "%s: its weights take more than 2^64 bytes on a CPU", m->facts.file);
}

/* ---- MoE layers --------------------------------------------------------------------------------------------- */

moewe_matrix planner_matrix_of(const weight_quant *q, const char *module, int of_expert, int64_t cols)
{
    static const weight_format bf16 = {.name = "bf16", .value_bits = 16};
    const weight_format f = weight_quant_of(q, module, of_expert);
    moewe_matrix out;
    if (weight_format_view(&f, cols, &out) && weight_format_view(&q->plain, cols, &out)) (void)weight_format_view(&bf16, cols, &out);
    out.data = module; /* the size functions look at shapes and dtypes, but they want a pointer */
    return out;
}

/* A matrix of the block under the name at key of o, which may be a list of spellings. */
static moewe_matrix named(const planner_model *m, const weight_quant *q, int32_t layer, const json_t *o, const char *key,
                          int of_expert, int64_t cols)
{
    char module[PLANNER_MODULE_BYTES];
    const json_t *name = json_object_get(o, key);
    if (json_is_array(name)) name = json_array_get(name, 0);
    planner_block_module(m, layer, json_is_string(name) ? json_string_value(name) : "", module);
    moewe_matrix out = planner_matrix_of(q, module, of_expert, cols);
    out.data = m;
    return out;
}

/* Routers and embeddings stay plain whatever a config's targets are, but for a table that names every module. */
static weight_quant tables_only(const weight_quant *q)
{
    weight_quant out = *q; /* a copy that shares the patterns */
    if (!q->layers) out.quantized = 0;
    return out;
}

void planner_expert_matrices(const planner_model *m, const weight_quant *q, int32_t layer, const moewe_config *c,
                             moewe_matrix *up, moewe_matrix *down)
{
    const json_t *form = json_array_get(json_object_get(family_block(m->family), "experts"), 0);
    *up = named(m, q, layer, form, json_object_get(form, "gate_up") ? "gate_up" : "up", 1, c->latent ? c->latent : c->hidden);
    *down = named(m, q, layer, form, "down", 1, c->inter);
}

void planner_expert_dtypes(const planner_model *m, const weight_quant *q, int32_t layer, moewe_config *c)
{
    moewe_matrix up, down;
    planner_expert_matrices(m, q, layer, c, &up, &down);
    c->w_dtype = up.dtype;
    c->down_dtype = down.dtype;
}

static moewe_weights weights_of(const planner_model *m, const weight_quant *q, int32_t layer, const moewe_config *c)
{
    const json_t *block = family_block(m->family), *shared = json_object_get(block, "shared");
    const json_t *latent = json_object_get(block, "latent"), *form = json_array_get(json_object_get(shared, "forms"), 0);
    const char *shared_up = json_object_get(form, "gate_up") ? "gate_up" : "up";
    const weight_quant exact = tables_only(q);
    moewe_weights w;
    MOEWE_INIT(w);
    planner_expert_matrices(m, q, layer, c, &w.up, &w.down);
    w.router = named(m, &exact, layer, block, "router", 0, c->hidden);
    if (m->facts.gated) w.gate = w.up;
    if (c->latent) {
        w.latent_in = named(m, q, layer, latent, "down", 0, c->hidden);
        w.latent_out = named(m, q, layer, latent, "up", 0, c->latent);
    }
    if (!c->shared_inter) return w;
    w.shared_up = named(m, q, layer, form, shared_up, 0, c->hidden);
    w.shared_down = named(m, q, layer, form, "down", 0, c->shared_inter);
    if (m->facts.gated) w.shared_gate = w.shared_up;
    if (json_is_string(json_object_get(shared, "gate_scalar")))
        w.shared_scale = named(m, &exact, layer, shared, "gate_scalar", 0, c->hidden);
    return w;
}

static int packed_layer(const planner_model *m, const weight_quant *q, const planner_cpu_ask *ask, const moewe_device *dev,
                        int32_t layer, planner_cpu *out, fmt_error *e)
{
    static const planner_shard whole = {.tp = 1, .ep = 1, .dp = 1, .expert_tp = 1, .gathered = 1};
    moewe_config c;
    moewe_plan *plan = NULL;
    moewe_need need = {0, 0, 0}, packed = {0, 0, 0};
    if (planner_moe_of(m, &whole, layer, &c, e)) return -1;
    c.max_tokens = ask->tokens;
    c.x_dtype = c.y_dtype = ask->dtype;
    planner_expert_dtypes(m, q, layer, &c);
    c.workspace_limit = ask->workspace_limit;
    moewe_weights w = weights_of(m, q, layer, &c);
    int failed =
        moewe_plan_create(dev, &c, &plan) || moewe_plan_need(plan, &need) || moewe_weights_need(plan, &w, &packed);
    moewe_plan_destroy(plan);
    if (failed) return fmt_fail(e, "%s: layer %d: %s", m->facts.file, (int)layer, moewe_last_error());
    if (packed.bytes > out->packed_layer) out->packed_layer = packed.bytes;
    if (need.bytes > out->workspace) out->workspace = need.bytes;
    return planner_add(&out->packed_layers, packed.bytes) || take(&out->weights, packed.bytes) ? too_large(m, e) : 0;
}

/* ---- the rest of a decoder ------------------------------------------------------------------------------------ */

typedef struct decoder {
    const planner_model *m;
    const weight_quant *q;
    const planner_cpu_ask *ask;
    const moewe_device *dev;
    planner_cpu *out;
    fmt_error *e;
    planner_tensor head, embed; /* seen so far; rows 0: not */
    int other;                  /* a tensor that the engine has no place for */
} decoder;

static int linear(const decoder *d, const planner_tensor *t, int32_t y_dtype)
{
    moewe_linear l;
    moewe_need need;
    if (t->rows > INT32_MAX || t->cols > INT32_MAX) return too_large(d->m, d->e);
    MOEWE_INIT(l);
    l.rows = (int32_t)t->rows;
    l.cols = (int32_t)t->cols;
    l.x_dtype = d->ask->dtype;
    l.y_dtype = y_dtype;
    const weight_quant exact = tables_only(d->q);
    l.matrix = planner_matrix_of(strstr(t->module, "embed") ? &exact : d->q, t->module, 0, t->cols <= INT64_MAX ? (int64_t)t->cols : 0);
    if (moewe_linear_need(d->dev, &l, &need))
        return fmt_fail(d->e, "%s: %s: %s", d->m->facts.file, t->module, moewe_last_error());
    return take(&d->out->weights, need.bytes) ? too_large(d->m, d->e) : 0;
}

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* The tensors of a decoder as the engine runs it; vectors are held as f32. */
static int has_place(const planner_tensor *t)
{
    static const char *const matrices[] = {".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj",
                                           ".self_attn.o_proj", ".mlp.gate_proj",    ".mlp.up_proj",
                                           ".mlp.down_proj"};
    static const char *const vectors[] = {
        ".input_layernorm",       ".post_attention_layernorm", ".self_attn.q_norm",      ".self_attn.k_norm",
        ".self_attn.q_proj.bias", ".self_attn.k_proj.bias",    ".self_attn.v_proj.bias", ".self_attn.o_proj.bias"};
    size_t n = t->matrix ? sizeof matrices / sizeof *matrices : sizeof vectors / sizeof *vectors;
    for (size_t i = 0; i < n; i++)
        if (ends_with(t->module, t->matrix ? matrices[i] : vectors[i]))
            return t->count == 1 && (t->matrix || t->rows == 1);
    return 0;
}

static const char embedding[] = "model.embed_tokens";

static int take_tensor(void *ctx, const planner_tensor *t)
{
    decoder *d = ctx;
    if (t->layer < 0) {
        if (t->part == PLANNER_EMBEDDINGS) {
            planner_tensor *kept = strstr(t->module, "embed") ? &d->embed : &d->head;
            *kept = *t;
            kept->module = strstr(t->module, "embed") ? embedding : "lm_head";
            return 0;
        }
        d->other |= t->rows != 1;
        return take(&d->out->weights, t->cols * sizeof(float)) ? too_large(d->m, d->e) : 0;
    }
    if (t->part == PLANNER_EXPERTS || t->part == PLANNER_ROUTER) {
        d->other |= !t->matrix && !ends_with(t->module, "gate"); /* the engine passes on no biases */
        return 0;                                                /* packed with the MoE layer */
    }
    d->other |= t->part == PLANNER_SHARED || !has_place(t);
    if (d->other) return 0;
    if (t->matrix) return linear(d, t, d->ask->dtype);
    return take(&d->out->weights, t->cols * sizeof(float)) ? too_large(d->m, d->e) : 0;
}

static int kv_bytes(const planner_model *m, const planner_cpu_ask *ask, uint64_t *out, fmt_error *e)
{
    static const planner_shard whole = {.tp = 1, .ep = 1, .dp = 1, .expert_tp = 1, .gathered = 1};
    uint64_t rows = ((uint64_t)ask->context + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
    planner_cache c;
    if (planner_cache_of(m, &whole, ask->context, &c, e)) return -1;
    if (__builtin_mul_overflow(c.per_token, rows, out) || __builtin_mul_overflow(*out, (uint64_t)ask->sequences, out) ||
        __builtin_mul_overflow(*out, (uint64_t)moewe_dtype_bytes(ask->dtype), out))
        return too_large(m, e);
    return 0;
}

int planner_on_cpu(const planner_model *m, const planner_cpu_ask *ask, const moewe_device *dev, planner_cpu *out,
                   fmt_error *e)
{
    static const planner_shard whole = {.tp = 1, .ep = 1, .dp = 1, .expert_tp = 1, .gathered = 1};
    planner_cpu_ask a = *ask;
    planner_cpu c;
    weight_quant q = m->quant; /* a copy that shares the patterns */
    memset(&c, 0, sizeof c);
    if (a.weights) weight_quant_force(&q, a.weights);
    if (!a.dtype) a.dtype = MOEWE_DTYPE_F32;
    for (int32_t i = 0; i < family_layers(m->family); i++)
        if (family_is_moe(m->family, i) && packed_layer(m, &q, &a, dev, i, &c, e)) return -1;
    if (json_is_object(json_object_get(family_descriptor(m->family), "engine"))) {
        decoder d = {.m = m, .q = &q, .ask = &a, .dev = dev, .out = &c, .e = e};
        if (planner_walk(m, &whole, take_tensor, &d, e)) return -1;
        c.engine = !d.other && d.embed.rows;
        if (c.engine && (linear(&d, d.head.rows ? &d.head : &d.embed, MOEWE_DTYPE_F32) || kv_bytes(m, &a, &c.kv, e)))
            return -1;
    }
    if (!c.engine) c.weights = 0;
    *out = c;
    return 0;
}
