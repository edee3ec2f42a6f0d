/* engine.c - opens and closes an engine: reads the config, plans every byte, checks that the machine has it, takes
 * one block a kind, packs the weights.  Owns everything an engine holds.  After engine_open nothing here allocates. */
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"
#include "weights.h"

/* ---- options ------------------------------------------------------------------- */

static int options_fill(engine *g, const engine_options *given, fmt_error *e)
{
    engine_options *o = &g->opt;
    const model_config *c = &g->config;
    if (given) *o = *given;
    if (o->dtype == 0) o->dtype = MOEWE_DTYPE_F32;
    if (o->dtype != MOEWE_DTYPE_F32 && o->dtype != MOEWE_DTYPE_BF16)
        return fmt_fail(e, "activations of dtype %s are not supported, expected f32 or bf16",
                        moewe_dtype_name(o->dtype));
    if (o->threads < 0 || o->max_sequences < 0 || o->context < 0 || o->max_batch < 0 || o->max_logits < 0)
        return fmt_fail(e,
                        "engine options have a negative number (threads %d, sequences %d, context %d, batch %d, "
                        "logits %d), expected 0 or more",
                        (int)o->threads, (int)o->max_sequences, (int)o->context, (int)o->max_batch, (int)o->max_logits);
    if (o->max_sequences == 0) o->max_sequences = 1;
    if (o->context == 0) o->context = c->max_position;
    if (o->context > c->max_position)
        return fmt_fail(e, "a context of %d tokens was asked for; %s allows %d (max_position_embeddings)",
                        (int)o->context, c->file, (int)c->max_position);
    if (o->max_batch == 0) o->max_batch = o->max_sequences > 512 ? o->max_sequences : 512;
    if (o->max_batch < o->max_sequences)
        return fmt_fail(e, "a batch of %d tokens cannot hold one token of each of %d sequences", (int)o->max_batch,
                        (int)o->max_sequences);
    if (o->max_logits < o->max_sequences) o->max_logits = o->max_sequences;
    if (o->max_logits > o->max_batch) o->max_logits = o->max_batch;
    return 0;
}

/* What the engine's loops take for granted. */
static int config_check(const model_config *c, fmt_error *e)
{
    if (!c->engine)
        return fmt_fail(e, "%s: the engine does not run a %s decoder (its first layer is of kind %s); its MoE blocks can be "
                           "run, verified and planned", c->file, c->model_type, family_mixer(c->family, 0));
    if (c->head_dim < 2 || c->head_dim % 2 || c->head_dim > ENGINE_MAX_HEAD_DIM)
        return fmt_fail(e, "%s: head_dim is %d, expected an even number from 2 to %d", c->file, (int)c->head_dim,
                        (int)ENGINE_MAX_HEAD_DIM);
    if (c->n_layers < 1 || c->n_kv_heads < 1 || c->n_heads < 1 || c->n_heads % c->n_kv_heads)
        return fmt_fail(e,
                        "%s: %d layers, %d attention heads over %d key-value heads; expected at least one layer and "
                        "a whole number of heads for each key-value head",
                        c->file, (int)c->n_layers, (int)c->n_heads, (int)c->n_kv_heads);
    return 0;
}

/* ---- plans and the shared workspace ---------------------------------------------- */

static int device_open(engine *g, fmt_error *e)
{
    moewe_device_desc d;
    MOEWE_INIT(d);
    d.kind = MOEWE_DEVICE_CPU;
    d.n_threads = g->opt.threads;
    d.pin = g->opt.pin;
    d.backend = g->opt.backend;
    if (moewe_device_open(&d, &g->dev)) return fmt_fail(e, "%s", moewe_last_error());
    g->opt.backend = moewe_device_backend(g->dev);
    g->opt.threads = g->threads = moewe_device_threads(g->dev);
    return 0;
}

/* The plan of a layer's block: layers differ in nothing but, perhaps, the dtypes of their weights. */
static int plan_find(engine *g, const model_block *b, const moewe_plan **out, fmt_error *e)
{
    moewe_config m = g->config.moe;
    for (int32_t i = 0; i < g->n_plans; i++)
        if (g->plans[i].w_dtype == b->w_dtype && g->plans[i].down_dtype == b->down_dtype) {
            *out = g->plans[i].plan;
            return 0;
        }
    if (g->n_plans == ENGINE_PLANS)
        return fmt_fail(e, "%s: its layers' experts have more than %d pairs of dtypes, which is all that the engine plans for",
                        g->config.file, (int)ENGINE_PLANS);
    engine_plan *p = &g->plans[g->n_plans];
    m.max_tokens = g->opt.max_batch;
    m.x_dtype = m.y_dtype = g->opt.dtype;
    p->w_dtype = m.w_dtype = b->w_dtype;
    p->down_dtype = m.down_dtype = b->down_dtype;
    m.name = g->config.model_type;
    m.workspace_limit = g->opt.workspace_limit;
    if (moewe_plan_create(g->dev, &m, &p->plan)) return fmt_fail(e, "%s: %s", g->config.file, moewe_last_error());
    g->n_plans++;
    *out = p->plan;
    return 0;
}

static int layers_plan(engine *g, fmt_error *e)
{
    moewe_need need;
    if (moewe_workspace_create(g->dev, 1, &g->workspace)) return fmt_fail(e, "%s", moewe_last_error());
    g->layers = calloc((size_t)g->config.n_layers, sizeof *g->layers);
    if (!g->layers)
        return fmt_fail(e, "%s: no memory for the tables of %d layers", g->config.file, (int)g->config.n_layers);
    for (int32_t i = 0; i < g->config.n_layers; i++) {
        engine_layer *l = &g->layers[i];
        if (!g->config.layer_is_moe[i]) continue;
        if (model_block_open(&g->config, g->store, i, &l->block, e)) return -1;
        l->block_open = 1;
        if (plan_find(g, &l->block, &l->plan, e)) return -1;
        if (moewe_workspace_reserve(g->workspace, l->plan) || moewe_plan_need(l->plan, &need))
            return fmt_fail(e, "MoE block of layer %d: %s", (int)i, moewe_last_error());
        g->memory.workspace_per_layer_sum += need.bytes;
    }
    return 0;
}

/* ---- memory ----------------------------------------------------------------------- */

static void *rows_take(engine_arena *a, const engine *g, int64_t rows, int64_t width)
{
    uint64_t row_bytes;
    if (__builtin_mul_overflow((uint64_t)width, g->act_bytes, &row_bytes)) a->overflow = 1;
    return arena_array(a, (uint64_t)rows, row_bytes);
}

static void take_activations(engine *g, engine_arena *a)
{
    const model_config *c = &g->config;
    const engine_options *o = &g->opt;
    int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    int64_t rows = o->max_batch;
    int dense = 0;
    for (int32_t i = 0; i < c->n_layers; i++) dense |= !c->layer_is_moe[i];

    g->h = rows_take(a, g, rows, c->hidden);
    g->x = rows_take(a, g, rows, c->hidden);
    g->y = rows_take(a, g, rows, c->hidden);
    g->q = rows_take(a, g, rows, q);
    g->k = rows_take(a, g, rows, kv);
    g->v = rows_take(a, g, rows, kv);
    g->a = rows_take(a, g, rows, q);
    g->gate = rows_take(a, g, rows, dense ? c->dense_inter : 0);
    g->up = rows_take(a, g, rows, dense ? c->dense_inter : 0);
    g->xw = rows_take(a, g, o->max_logits, c->hidden);
    g->logits = arena_array(a, (uint64_t)o->max_logits * (uint64_t)c->vocab, sizeof *g->logits);
    g->cos = arena_array(a, (uint64_t)o->context * (uint64_t)(c->head_dim / 2), sizeof *g->cos);
    g->sin = arena_array(a, (uint64_t)o->context * (uint64_t)(c->head_dim / 2), sizeof *g->sin);
    g->wanted = arena_array(a, (uint64_t)o->max_logits, sizeof *g->wanted);
    g->length = arena_array(a, (uint64_t)o->max_sequences, sizeof *g->length);
    g->next = arena_array(a, (uint64_t)o->max_sequences, sizeof *g->next);
    g->first = arena_array(a, (uint64_t)o->max_sequences, sizeof *g->first);
}

static void take_kv(engine *g, engine_arena *a)
{
    const model_config *c = &g->config;
    uint64_t factors[] = {2,
                          (uint64_t)g->opt.max_sequences,
                          (uint64_t)g->kv_rows,
                          (uint64_t)c->n_kv_heads,
                          (uint64_t)c->head_dim,
                          g->act_bytes};
    uint64_t bytes = (uint64_t)c->n_layers;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (__builtin_mul_overflow(bytes, factors[i], &bytes)) a->overflow = 1;
    arena_take(a, bytes, ENGINE_ALIGN);
}

/* Rotary tables as transformers computes them: frequencies and angles in f32. */
static void tables_fill(engine *g)
{
    int32_t half = g->config.head_dim / 2;
    int bf16 = g->opt.dtype == MOEWE_DTYPE_BF16;
    for (int32_t i = 0; i < half; i++) {
        float exponent = (float)(2 * i) / (float)g->config.head_dim;
        float frequency = 1.0f / powf((float)g->config.rope_theta, exponent);
        for (int32_t pos = 0; pos < g->opt.context; pos++) {
            float angle = frequency * (float)pos;
            g->cos[(int64_t)pos * half + i] = act_round(cosf(angle), bf16);
            g->sin[(int64_t)pos * half + i] = act_round(sinf(angle), bf16);
        }
    }
}

/* One number of a file; UINT64_MAX where there is none ("max" is none). */
static uint64_t number_in(const char *path)
{
    unsigned long long value;
    FILE *f = fopen(path, "r");
    if (!f) return UINT64_MAX;
    int found = fscanf(f, "%llu", &value) == 1;
    return fclose(f) || !found ? UINT64_MAX : (uint64_t)value;
}

/* What the control group still allows; page cache that it holds is given back when needed, so this errs
 * on the side of refusing. */
static uint64_t group_available(void)
{
    uint64_t limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    return limit > used ? limit - used : 0;
}

/* Bytes that can be taken without swapping or being killed; UINT64_MAX where the system does not say. */
static uint64_t memory_available(void)
{
    char line[256];
    unsigned long long kib;
    uint64_t available = UINT64_MAX, group = group_available();
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return group;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
            available = kib > UINT64_MAX / 1024 ? UINT64_MAX : (uint64_t)kib * 1024;
            break;
        }
    fclose(f);
    return available < group ? available : group;
}

static int memory_check(const engine *g, fmt_error *e)
{
    const engine_memory *m = &g->memory;
    uint64_t available = memory_available();
    if (m->total <= available) return 0;
    return fmt_fail(e,
                    "%s needs %llu bytes (weights %llu, KV cache %llu for %d sequences of %d tokens, workspace %llu, "
                    "activations %llu) and %llu are available; fewer sequences or a shorter context need less",
                    g->config.file, (unsigned long long)m->total, (unsigned long long)m->weights,
                    (unsigned long long)m->kv_cache, (int)g->opt.max_sequences, (int)g->opt.context,
                    (unsigned long long)m->workspace, (unsigned long long)m->activations,
                    (unsigned long long)available);
}

static int block_take(const engine *g, const char *what, uint64_t bytes, uint32_t align, moewe_span *out, fmt_error *e)
{
    moewe_need need = {bytes, align < ENGINE_ALIGN ? ENGINE_ALIGN : align, MOEWE_PLACE_HOST};
    if (!bytes) return 0;
    if (moewe_device_alloc(g->dev, need, out)) {
        out->ptr = NULL;
        out->bytes = 0;
        return fmt_fail(e, "%s: %llu bytes for the %s: %s", g->config.file, (unsigned long long)bytes, what,
                        moewe_last_error());
    }
    return 0;
}

static int workspace_lock(engine *g, fmt_error *e)
{
    if (!g->memory.workspace) return 0;
    if (moewe_workspace_lock(g->workspace, g->workspace_mem) ||
        moewe_lane_acquire(g->workspace, MOEWE_LANE_ANY, &g->lane))
        return fmt_fail(e, "%s: %s", g->config.file, moewe_last_error());
    g->lane_out = 1;
    return 0;
}

static int memory_take(engine *g, fmt_error *e)
{
    engine_arena weights = {0}, kv = {0}, act = {0};
    engine_memory *m = &g->memory;
    moewe_need ws = {0, ENGINE_ALIGN, MOEWE_PLACE_HOST};

    if (engine_take_weights(g, &weights, e)) return -1;
    take_kv(g, &kv);
    take_activations(g, &act);
    if (g->n_plans && moewe_workspace_need(g->workspace, &ws))
        return fmt_fail(e, "%s: %s", g->config.file, moewe_last_error());
    m->weights = weights.used;
    m->kv_cache = kv.used;
    m->workspace = ws.bytes;
    m->activations = act.used;
    m->mapped = st_mapped_bytes(g->store);
    if (weights.overflow || kv.overflow || act.overflow || __builtin_add_overflow(m->weights, m->kv_cache, &m->total) ||
        __builtin_add_overflow(m->total, m->workspace, &m->total) ||
        __builtin_add_overflow(m->total, m->activations, &m->total))
        return fmt_fail(e, "%s: %d sequences of %d tokens in batches of %d need more than 2^64 bytes", g->config.file,
                        (int)g->opt.max_sequences, (int)g->opt.context, (int)g->opt.max_batch);
    if (memory_check(g, e)) return -1;

    if (block_take(g, "weights", m->weights, weights.align, &g->weights_mem, e) ||
        block_take(g, "KV cache", m->kv_cache, kv.align, &g->kv_mem, e) ||
        block_take(g, "workspace", m->workspace, ws.align, &g->workspace_mem, e) ||
        block_take(g, "activations", m->activations, act.align, &g->act_mem, e))
        return -1;
    weights = (engine_arena){.base = g->weights_mem.ptr};
    act = (engine_arena){.base = g->act_mem.ptr};
    take_activations(g, &act);
    tables_fill(g);
    return engine_take_weights(g, &weights, e) || workspace_lock(g, e) ? -1 : 0;
}

/* ---- the engine ------------------------------------------------------------------- */

static int engine_build(engine *g, const char *dir, const engine_options *opt, fmt_error *e)
{
    if (model_config_load(dir, &g->config, e)) return -1;
    g->config_loaded = 1;
    if (config_check(&g->config, e) || options_fill(g, opt, e) || st_open(dir, &g->store, e) || device_open(g, e))
        return -1;
    g->act_bytes = moewe_dtype_bytes(g->opt.dtype);
    g->kv_rows = ((int64_t)g->opt.context + ENGINE_BLOCK - 1) / ENGINE_BLOCK * ENGINE_BLOCK;
    return layers_plan(g, e) || memory_take(g, e) ? -1 : 0;
}

int engine_open(const char *dir, const engine_options *opt, engine **out, fmt_error *e)
{
    engine *g = calloc(1, sizeof *g);
    if (!g) return fmt_fail(e, "%s: no memory for the engine's table of %zu bytes", dir, sizeof *g);
    if (engine_build(g, dir, opt, e)) {
        engine_close(g);
        return -1;
    }
    *out = g;
    return 0;
}

void engine_close(engine *g)
{
    if (!g) return;
    if (g->lane_out) moewe_lane_release(g->workspace, &g->lane);
    moewe_workspace_destroy(g->workspace);
    for (int32_t i = 0; g->layers && i < g->config.n_layers; i++)
        if (g->layers[i].block_open) model_block_close(&g->layers[i].block);
    free(g->layers);
    for (int32_t i = 0; i < g->n_plans; i++) moewe_plan_destroy(g->plans[i].plan);
    if (g->dev) {
        moewe_span *spans[] = {&g->weights_mem, &g->kv_mem, &g->workspace_mem, &g->act_mem};
        for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
            if (spans[i]->ptr) moewe_device_free(g->dev, *spans[i]);
    }
    moewe_device_close(g->dev);
    st_close(g->store);
    if (g->config_loaded) model_config_free(&g->config);
    free(g);
}

const model_config *engine_config(const engine *g)
{
    return &g->config;
}

const moewe_device *engine_device(const engine *g)
{
    return g->dev;
}

void engine_memory_get(const engine *g, engine_memory *out)
{
    *out = g->memory;
}

const engine_options *engine_options_get(const engine *g)
{
    return &g->opt;
}
