/* plan.c - puts the answer together: bytes of every part on rank 0, the workspace from a moewe_plan, the fit, and the
 * one change that would make it fit.  Allocates nothing but plans. */
#include "internal.h"

#include <stdio.h>

static const char *const part_names[PLANNER_PART_COUNT] = {
    [PLANNER_EXPERTS] = "experts",      [PLANNER_SHARED] = "shared experts", [PLANNER_ROUTER] = "routers",
    [PLANNER_DENSE] = "dense MLPs",     [PLANNER_ATTENTION] = "attention",   [PLANNER_NORMS] = "norms",
    [PLANNER_EMBEDDINGS] = "embeddings"};

const char *planner_part_name(planner_part part)
{
    return (unsigned)part < PLANNER_PART_COUNT ? part_names[part] : "?";
}

static int too_large(const planner_facts *f, const char *what, fmt_error *e)
{
    return fmt_fail(e, "%s: its %s take more than 2^64 bytes", f->file, what);
}

/* ---- weights --------------------------------------------------------------------------------------------------- */

typedef struct weigher {
    planner_plan *p;
    const weight_quant *q;
    const planner_facts *facts;
    fmt_error *e;
} weigher;

/* Vectors are never quantised; nor are routers and embeddings, whose error would be the model's, but where a table says
 * so of each module. */
static int weigh(void *ctx, const planner_tensor *t)
{
    weigher *w = ctx;
    weight_format f = w->q->plain;
    weight_bytes b;
    weight_bytes *sum = &w->p->part[t->part];
    if (t->matrix || (w->q->layers && t->rows > 1)) f = weight_quant_of(w->q, t->module, t->of_expert);
    if (t->stored) f.value_bits = t->stored * 8;
    if (t->matrix && t->inner_parts > 1) {
        fmt_error why;
        int64_t each;
        if (planner_split(t->inner_name, t->inner, t->inner_parts, weight_format_tile(&f), &each, &why))
            return fmt_fail(w->e, "%s: %s (%s)", w->facts->file, why.text, f.name);
    }
    if (weight_format_bytes(&f, t->count, t->rows, t->cols, &b) || planner_add(&sum->values, b.values) ||
        planner_add(&sum->scales, b.scales) || planner_add(&w->p->weights, b.values) ||
        planner_add(&w->p->weights, b.scales) || planner_add(&w->p->scales, b.scales))
        return too_large(w->facts, "weights", w->e);
    if (t->matrix && t->of_expert) w->p->expert_format = f;
    if (t->matrix && !t->of_expert && w->q->layers) w->p->linear_format = f;
    return 0;
}

static int weights(const planner_model *m, const weight_quant *q, planner_plan *p, fmt_error *e)
{
    weigher w = {p, q, &m->facts, e};
    p->expert_format = q->experts;
    p->linear_format = q->experts_only ? q->plain : q->linear;
    p->plain_format = q->plain;
    return planner_walk(m, &p->shard, weigh, &w, e);
}

/* ---- caches ---------------------------------------------------------------------------------------------------- */

static int caches(const planner_model *m, planner_plan *p, fmt_error *e)
{
    planner_cache c, whole;
    uint64_t element = p->kv_fp8 ? 1 : 2, growing;
    if (planner_cache_of(m, &p->shard, p->ask.context, &c, e)) return -1;
    if (p->shard.tp > 1) {
        static const planner_shard one = {.tp = 1, .ep = 1, .dp = 1, .expert_tp = 1, .gathered = 1, .kv_copies = 1};
        if (planner_cache_of(m, &one, p->ask.context, &whole, e)) return -1;
        if (whole.per_token) /* all ranks' together, against one copy */
            p->shard.kv_copies = (int32_t)((double)c.per_token * p->shard.tp / (double)whole.per_token + 0.5);
    }
    if (__builtin_mul_overflow(c.per_token, element, &p->kv_per_token) ||
        __builtin_mul_overflow(c.window, element, &p->kv_window) ||
        __builtin_mul_overflow(p->kv_per_token, (uint64_t)p->ask.context, &growing) ||
        planner_add(&growing, p->kv_window) || __builtin_mul_overflow(growing, (uint64_t)p->ask.sequences, &p->kv) ||
        __builtin_mul_overflow(c.state_bytes, (uint64_t)p->ask.sequences, &p->state))
        return too_large(&m->facts, "caches", e);
    return 0;
}

/* ---- workspace --------------------------------------------------------------------------------------------------- */

static int need_of(const moewe_device *dev, const moewe_config *c, uint64_t *bytes)
{
    moewe_plan *plan = NULL;
    moewe_need need = {0, 0, 0};
    int failed = moewe_plan_create(dev, c, &plan) || moewe_plan_need(plan, &need);
    moewe_plan_destroy(plan);
    *bytes = need.bytes;
    return failed ? -1 : 0;
}

/* Of the layer that takes most; layers may differ in their number of experts and their widths. */
static int largest_layer(const planner_model *m, const weight_quant *q, const moewe_device *dev, planner_plan *p, fmt_error *e)
{
    moewe_config last;
    memset(&last, 0, sizeof last);
    for (int32_t i = 0; i < m->facts.n_layers; i++) {
        moewe_config c;
        uint64_t bytes;
        if (!family_is_moe(m->family, i)) continue;
        if (planner_moe_of(m, &p->shard, i, &c, e)) return -1;
        c.max_tokens = p->call_tokens;
        c.x_dtype = c.y_dtype = p->ask.dtype;
        planner_expert_dtypes(m, q, i, &c);
        if (memcmp(&c, &last, sizeof c) == 0) continue;
        last = c;
        if (need_of(dev, &c, &bytes)) return fmt_fail(e, "%s: layer %d: %s", m->facts.file, (int)i, moewe_last_error());
        if (bytes <= p->workspace_fast) continue;
        p->workspace_fast = bytes;
        p->moe = c;
    }
    return 0;
}

static int workspace(const planner_model *m, const weight_quant *q, const moewe_device *dev, planner_plan *p, fmt_error *e)
{
    const planner_facts *f = &m->facts;
    moewe_need least;
    int64_t tokens = (int64_t)p->ask.tokens * p->shard.gathered;
    if (!f->n_moe_layers) return 0;
    if (tokens > INT32_MAX)
        return fmt_fail(e, "%s: %d tokens of each of %d ranks are %lld in one call, at most %d can be planned", f->file,
                        (int)p->ask.tokens, (int)p->shard.gathered, (long long)tokens, INT32_MAX);
    p->call_tokens = (int32_t)tokens;
    if (largest_layer(m, q, dev, p, e)) return -1;
    if (moewe_plan_floor(dev, &p->moe, &least)) return fmt_fail(e, "%s: %s", f->file, moewe_last_error());
    p->workspace_floor = least.bytes;
    p->workspace = p->workspace_fast;
    p->moe.workspace_limit = p->ask.workspace_limit;
    if (p->moe.workspace_limit && p->moe.workspace_limit < least.bytes)
        return fmt_fail(e, "%s: --workspace-limit is %llu bytes, its MoE layers need at least %llu", f->file,
                        (unsigned long long)p->moe.workspace_limit, (unsigned long long)least.bytes);
    if (p->moe.workspace_limit && need_of(dev, &p->moe, &p->workspace))
        return fmt_fail(e, "%s: %s", f->file, moewe_last_error());
    if (__builtin_mul_overflow(p->workspace, (uint64_t)p->ask.lanes, &p->workspaces))
        return too_large(f, "workspaces", e);
    return 0;
}

/* ---- fit ------------------------------------------------------------------------------------------------------------ */

static int fit(const planner_model *m, planner_plan *p, fmt_error *e)
{
    uint64_t fixed = p->weights, windows;
    p->total = p->weights;
    if (planner_add(&p->total, p->kv) || planner_add(&p->total, p->state) || planner_add(&p->total, p->workspaces))
        return too_large(&m->facts, "parts", e);
    if (!p->ask.memory) return 0;
    /* a double has 53 bits, and one past the end would be out of range */
    double share = (double)p->ask.memory * p->ask.utilization;
    p->budget = p->ask.utilization == 1 || share >= 0x1p64 ? p->ask.memory : (uint64_t)share;
    p->fits = p->total <= p->budget;
    if (p->fits)
        p->left = p->budget - p->total;
    else
        p->short_by = p->total - p->budget;
    windows = p->kv_window * (uint64_t)p->ask.sequences; /* no larger than kv */
    fixed += p->state + p->workspaces + windows;         /* no larger than total */
    p->kv_tokens = fixed >= p->budget ? 0 : p->kv_per_token ? (p->budget - fixed) / p->kv_per_token : UINT64_MAX;
    return 0;
}

static int defaults(const planner_model *m, const planner_ask *given, planner_plan *p, fmt_error *e)
{
    enum { CONTEXT = 4096, LANES = 4096 };
    const planner_facts *f = &m->facts;
    planner_ask *a = &p->ask;
    *a = *given;
    if (!a->dtype) a->dtype = MOEWE_DTYPE_F32;
    if (!a->context) a->context = f->max_position ? f->max_position : CONTEXT;
    if (!a->sequences) a->sequences = 1;
    if (!a->lanes) a->lanes = 1;
    if (a->utilization == 0) a->utilization = 0.9;
    if (a->tokens < 1 || a->context < 1 || a->sequences < 1 || a->lanes < 1 || a->lanes > LANES)
        return fmt_fail(e, "tokens %d, context %lld, sequences %lld, lanes %d: each must be 1 or more", (int)a->tokens,
                        (long long)a->context, (long long)a->sequences, (int)a->lanes);
    if (!(a->utilization > 0 && a->utilization <= 1))
        return fmt_fail(e, "a utilization of %g, expected more than 0 and at most 1", a->utilization);
    if (f->max_position && a->context > f->max_position)
        return fmt_fail(e, "%s: a context of %lld tokens was asked for, the model has %lld (max_position_embeddings)",
                        f->file, (long long)a->context, (long long)f->max_position);
    return 0;
}

/* All but the change. */
static int make(const planner_model *m, const planner_ask *ask, const moewe_device *dev, planner_plan *out,
                fmt_error *e)
{
    planner_plan p;
    memset(&p, 0, sizeof p);
    weight_quant q = m->quant; /* a copy that shares the patterns */
    if (ask->weights) weight_quant_force(&q, ask->weights);
    if (defaults(m, ask, &p, e) || planner_shard_of(&m->facts, &p.ask, &p.shard, e)) return -1;
    p.kv_fp8 = ask->kv_fp8 < 0 ? q.kv_fp8 : ask->kv_fp8;
    if (weights(m, &q, &p, e) || caches(m, &p, e) || workspace(m, &q, dev, &p, e) || fit(m, &p, e)) return -1;
    *out = p;
    return 0;
}

/* ---- the one change ------------------------------------------------------------------------------------------------- */

typedef struct changer {
    const planner_model *m;
    const moewe_device *dev;
    const planner_plan *p;
} changer;

static int fits_as(const changer *c, const planner_ask *ask)
{
    planner_plan p;
    fmt_error e;
    return !make(c->m, ask, c->dev, &p, &e) && p.fits;
}

/* Only the caches depend on these two, so only they are made again. */
static int fits_with(const changer *c, int64_t context, int64_t sequences)
{
    planner_plan p = *c->p;
    fmt_error e;
    p.ask.context = context;
    p.ask.sequences = sequences;
    return !caches(c->m, &p, &e) && !fit(c->m, &p, &e) && p.fits;
}

/* The largest number in [1, most) that fits, 0 when there is none: caches grow with both. */
static int64_t largest(const changer *c, int64_t most, int of_context)
{
    int64_t low = 1, high = most - 1;
    if (!high || !fits_with(c, of_context ? 1 : c->p->ask.context, of_context ? c->p->ask.sequences : 1)) return 0;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (fits_with(c, of_context ? middle : c->p->ask.context, of_context ? c->p->ask.sequences : middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* From the one that costs least to the one that costs most; the first that is enough. */
static int try_limit(const changer *c, char *text, size_t cap)
{
    const planner_plan *p = c->p;
    uint64_t others = p->total - p->workspaces, lanes = (uint64_t)p->ask.lanes;
    planner_ask a = p->ask;
    if (others >= p->budget || !p->workspace) return 0;
    a.workspace_limit = (p->budget - others) / lanes;
    if (a.workspace_limit < p->workspace_floor || !fits_as(c, &a)) return 0;
    snprintf(text, cap, "--workspace-limit %llu", (unsigned long long)a.workspace_limit);
    return 1;
}

static int try_kv(const changer *c, char *text, size_t cap)
{
    planner_ask a = c->p->ask;
    a.kv_fp8 = 1;
    if (c->p->kv_fp8 || c->p->total - c->p->kv / 2 > c->p->budget || !fits_as(c, &a)) return 0;
    snprintf(text, cap, "--kv fp8");
    return 1;
}

static int try_sequences(const changer *c, char *text, size_t cap)
{
    int64_t n = largest(c, c->p->ask.sequences, 0);
    if (n) snprintf(text, cap, "--sequences %lld", (long long)n);
    return n != 0;
}

static int try_context(const changer *c, char *text, size_t cap)
{
    int64_t n = largest(c, c->p->ask.context, 1);
    if (n) snprintf(text, cap, "--context %lld", (long long)n);
    return n != 0;
}

static int try_ranks(const changer *c, char *text, size_t cap)
{
    enum { MOST = 256 };
    const planner_ask *was = &c->p->ask;
    const weight_bytes *experts = &c->p->part[PLANNER_EXPERTS];
    int spread = c->p->total - experts->values - experts->scales <= c->p->budget; /* all that ep makes smaller */
    for (int32_t n = 2; n <= MOST; n *= 2) {
        planner_ask a = *was;
        if (c->p->total / (uint64_t)n > c->p->budget) continue; /* no part shrinks by more than n */
        a.tp = c->p->shard.tp * n;
        a.ep = c->p->shard.ep > 1 ? c->p->shard.ep * n : 1;
        if (a.tp <= MOST && fits_as(c, &a)) {
            if (a.ep > 1)
                snprintf(text, cap, "--tp %d --ep %d", (int)a.tp, (int)a.ep);
            else
                snprintf(text, cap, "--tp %d", (int)a.tp);
            return 1;
        }
        a = *was;
        a.ep = c->p->shard.ep * n;
        a.dp = 0;
        if (spread && a.ep <= MOST && fits_as(c, &a)) {
            snprintf(text, cap, "--ep %d", (int)a.ep);
            return 1;
        }
    }
    return 0;
}

static int try_weights(const changer *c, char *text, size_t cap)
{
    static const char *const smaller[] = {"fp8", "q8_0", "nvfp4", "mxfp4"};
    for (size_t i = 0; i < sizeof smaller / sizeof *smaller; i++) {
        planner_ask a = c->p->ask;
        a.weights = weight_format_find(smaller[i], NULL);
        if (c->p->weights / 32 * a.weights->value_bits > c->p->budget) continue; /* 32 bits a value at most now */
        if (!fits_as(c, &a)) continue;
        snprintf(text, cap, "--weights %s", smaller[i]);
        return 1;
    }
    return 0;
}

static void change(const changer *c, planner_plan *out)
{
    static int (*const tries[])(const changer *, char *, size_t) = {try_limit,   try_kv,    try_sequences,
                                                                    try_context, try_ranks, try_weights};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
        if (tries[i](c, out->change, sizeof out->change)) return;
    double memory = (double)out->total / out->ask.utilization + 1;
    snprintf(out->change, sizeof out->change, "--memory %llu", memory < 0x1p64 ? (unsigned long long)memory : ~0ull);
}

int planner_make(const planner_model *m, const planner_ask *ask, const moewe_device *dev, planner_plan *out,
                 fmt_error *e)
{
    planner_plan p;
    if (make(m, ask, dev, &p, e)) return -1;
    if (p.budget && !p.fits) {
        const changer c = {m, dev, &p};
        planner_plan answered = p;
        change(&c, &answered);
        p = answered;
    }
    *out = p;
    return 0;
}

planner_call planner_call_of(const planner_model *m, const planner_plan *p)
{
    const planner_facts *f = &m->facts;
    planner_call c = {.tokens = (uint64_t)p->call_tokens,
                      .top_k = (uint64_t)p->moe.top_k,
                      .experts = (uint64_t)p->moe.n_experts,
                      .n_local = (uint64_t)p->shard.n_local,
                      .width = (uint64_t)(p->moe.latent ? p->moe.latent : p->moe.hidden),
                      .inter = (uint64_t)p->moe.inter,
                      .gated = f->gated,
                      .mid = planner_mid_bf16,
                      .layers = (uint64_t)f->n_moe_layers};
    /* Activations follow the weights where both GEMMs run in that type. */
    if (p->expert_format.value_bits == 4 && p->expert_format.group == 16) c.mid = planner_mid_nvfp4;
    if (p->expert_format.value_bits == 4 && p->expert_format.group == 32 && !p->expert_format.whole_groups)
        c.mid = planner_mid_mxfp4;
    if (p->expert_format.value_bits == 8 && !p->expert_format.whole_groups) c.mid = planner_mid_fp8;
    return c;
}
