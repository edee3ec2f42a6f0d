/* walk.c - a model as one rank has it: the tensors, caches and MoE layers that the family's descriptor lists, with the
 * variables that count heads and columns replaced by what the rank holds of them.  shard.c says how a model is cut.
 * Never names a family, and never has a list of tensors of its own. */
#include "internal.h"

#include <stdio.h>

#include "../formats/model.h"

/* ---- variables that a cut changes ----------------------------------------------------------------------------- */

typedef enum cut_kind {
    CUT_EVEN,    /* over tp, without a rest */
    CUT_EXPERT,  /* over the ranks that share an expert */
    CUT_KV,      /* over tp; fewer than tp are repeated */
    CUT_ROWS,    /* over tp, the last rank has fewer */
    CUT_FRACTION /* over tp; a factor of a width, which must stay whole */
} cut_kind;

static const struct {
    const char *variable, *text;
    cut_kind kind;
} cuts[] = {
    {"NH", "attention heads", CUT_EVEN},
    {"FI", "MLP width", CUT_EVEN},
    {"SI", "shared expert width", CUT_EVEN},
    {"I", "expert intermediate size", CUT_EXPERT},
    {"LVH", "linear attention value heads", CUT_EVEN},
    {"LH", "linear attention heads", CUT_EVEN},
    {"MH", "Mamba heads", CUT_EVEN},
    {"OG", "output groups", CUT_EVEN},
    {"NKV", "KV heads", CUT_KV},
    {"GKV", "KV heads of global layers", CUT_KV},
    {"LKH", "linear attention key heads", CUT_KV},
    {"NG", "Mamba groups", CUT_KV},
    {"V", "vocabulary", CUT_ROWS},
    {"MX", "Mamba expansion", CUT_FRACTION},
};

enum { OVERRIDES_MAX = 48, NAME_MAX_BYTES = 256 };

typedef struct rank_view {
    const planner_model *m;
    const planner_shard *s;
    family_override overrides[OVERRIDES_MAX + 1];
    size_t n;
    int64_t inter, shared_inter, dense_inter, vocab, n_experts; /* of the layer, whole */
} rank_view;

static const json_t *variables(const planner_model *m)
{
    return json_object_get(family_descriptor(m->family), "vars");
}

/* 0 where the descriptor has no such variable or it is null. */
static int whole_value(const planner_model *m, int32_t layer, const char *name, double *out, fmt_error *e)
{
    int null = 0;
    *out = 0;
    if (!json_object_get(variables(m), name)) return 0;
    if (family_variable(m->family, layer, name, out, &null, e)) return -1;
    if (null) *out = 0;
    if (*out >= -9e15 && *out <= 9e15) return 0;
    return fmt_fail(e, "%s: layer %d: %s is %g, which is out of range", m->file, (int)layer, name, *out);
}

static int kv_share(const planner_model *m, const char *text, double heads, int32_t tp, double *out, fmt_error *e)
{
    fmt_error why;
    int64_t each;
    if (heads <= tp && tp % (int32_t)heads == 0) {
        *out = 1;
        return 0;
    }
    if (planner_split(text, (int64_t)heads, tp, 1, &each, &why))
        return fmt_fail(e, "%s: %s, or multiples of %lld", m->file, why.text, (long long)heads);
    *out = (double)each;
    return 0;
}

static int share_of(const planner_model *m, const planner_shard *s, size_t cut, double whole, double *out, fmt_error *e)
{
    fmt_error why;
    int64_t each;
    int32_t parts = cuts[cut].kind == CUT_EXPERT ? s->expert_tp : s->tp;
    *out = whole;
    if (parts == 1 || whole < 1) return 0;
    switch (cuts[cut].kind) {
    case CUT_KV:
        return kv_share(m, cuts[cut].text, whole, parts, out, e);
    case CUT_ROWS:
        *out = (double)(((int64_t)whole + parts - 1) / parts);
        return 0;
    case CUT_FRACTION:
        *out = whole / parts;
        return 0;
    case CUT_EVEN:
    case CUT_EXPERT:
        break;
    }
    if (planner_split(cuts[cut].text, (int64_t)whole, parts, 1, &each, &why))
        return fmt_fail(e, "%s: %s", m->file, why.text);
    *out = (double)each;
    return 0;
}

static int override(rank_view *v, const char *name, double value, fmt_error *e)
{
    if (v->n == OVERRIDES_MAX)
        return fmt_fail(e, "%s: its family has more than the %d computed variables that are supported", v->m->file,
                        OVERRIDES_MAX);
    v->overrides[v->n++] = (family_override){name, value};
    v->overrides[v->n].name = NULL;
    return 0;
}

static int is_cut(const char *name)
{
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        if (strcmp(cuts[i].variable, name) == 0) return 1;
    return 0;
}

/* A variable that is computed from others keeps its value when those are cut: a head is as wide on every rank. */
static int keep_computed(rank_view *v, int32_t layer, fmt_error *e)
{
    const char *name;
    const json_t *spec;
    json_object_foreach((json_t *)(uintptr_t)variables(v->m), name, spec)
    {
        const char *computed = json_string_value(json_object_get(spec, "default"));
        double value;
        int null = 0;
        if (!computed || computed[0] != '=' || is_cut(name)) continue;
        if (family_variable(v->m->family, layer, name, &value, &null, e)) return -1;
        if (!null && override(v, name, value, e)) return -1;
    }
    return 0;
}

static int view_layer(rank_view *v, int32_t layer, fmt_error *e)
{
    const struct {
        const char *name;
        int64_t *out;
    } wholes[] = {
        {"I", &v->inter}, {"SI", &v->shared_inter}, {"FI", &v->dense_inter}, {"V", &v->vocab}, {"E", &v->n_experts}};
    int32_t at = layer < 0 ? 0 : layer;
    double whole, share;
    v->n = 0;
    v->overrides[0].name = NULL;
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++) {
        if (whole_value(v->m, at, wholes[i].name, &whole, e)) return -1;
        *wholes[i].out = whole >= 0 && whole < 9e15 ? (int64_t)whole : 0;
    }
    if (v->s->tp == 1) return 0;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        if (whole_value(v->m, at, cuts[i].variable, &whole, e) || share_of(v->m, v->s, i, whole, &share, e)) return -1;
        if (whole >= 1 && override(v, cuts[i].variable, share, e)) return -1;
    }
    return keep_computed(v, at, e);
}

/* ---- tensors ------------------------------------------------------------------------------------------------------ */

typedef struct walker {
    rank_view view;
    int32_t layer;
    planner_tensor_fn fn;
    void *ctx;
    char prefix[NAME_MAX_BYTES];
    int32_t n_local;
} walker;

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* The form of the experts that family_tensors lists: the descriptor's first. */
static const json_t *expert_form(const planner_model *m)
{
    return json_array_get(json_object_get(family_block(m->family), "experts"), 0);
}

int planner_is_gated(const planner_model *m)
{
    const json_t *form = expert_form(m);
    const char *order = json_string_value(json_object_get(form, "order"));
    if (json_object_get(form, "gate_up")) return !order || strcmp(order, "none") != 0;
    return json_is_string(json_object_get(form, "gate"));
}

/* Local experts, and what else stands in a list of n of them (longcat's identity experts have rows there). */
static uint64_t local_count(const walker *w, int64_t n)
{
    int64_t more = n - w->view.n_experts;
    return (uint64_t)(w->n_local + (more > 0 ? more : 0));
}

static void expert_shape(const walker *w, const family_tensor *t, planner_tensor *out)
{
    const json_t *transposed = json_object_get(expert_form(w->view.m), "transposed");
    int64_t rows = t->dims[t->rank - 2], cols = t->dims[t->rank - 1];
    out->count = local_count(w, t->rank == 3 ? t->dims[0] : t->count);
    out->rows = (uint64_t)(json_is_true(transposed) ? cols : rows);
    out->cols = (uint64_t)(json_is_true(transposed) ? rows : cols);
    out->matrix = out->of_expert = 1;
    out->part = PLANNER_EXPERTS;
    out->inner_name = "expert intermediate size";
    out->inner = w->view.inter;
    out->inner_parts = w->view.s->expert_tp;
}

/* [expert][row] biases; a selection bias is one row for all experts. */
static int is_expert_bias(const walker *w, const family_tensor *t)
{
    return t->rank == 2 && w->view.n_experts > 1 && t->dims[0] == w->view.n_experts && strcmp(t->role, "bias") == 0;
}

static void plain_shape(const family_tensor *t, planner_tensor *out)
{
    uint64_t rest = 1;
    out->count = (uint64_t)t->count;
    for (int32_t i = 1; i < t->rank; i++) rest *= (uint64_t)t->dims[i];
    out->rows = t->rank > 1 ? (uint64_t)t->dims[0] : 1;
    out->cols = t->rank > 1 ? rest : (uint64_t)t->dims[0];
}

static void shape_of(const walker *w, const family_tensor *t, planner_tensor *out)
{
    int weight = ends_with(t->name, ".weight") && t->rank == 2 && t->dims[0] > 1 && t->dims[1] > 1;
    plain_shape(t, out);
    switch (t->part) {
    case FAMILY_TOP:
        out->part = t->rank == 2 && weight ? PLANNER_EMBEDDINGS : PLANNER_NORMS;
        break;
    case FAMILY_LAYER:
        out->part = weight ? PLANNER_DENSE : PLANNER_NORMS;
        out->matrix = weight;
        break;
    case FAMILY_MIXER:
        out->part = PLANNER_ATTENTION;
        out->matrix = weight;
        break;
    case FAMILY_DENSE:
        out->part = PLANNER_DENSE;
        out->matrix = weight;
        break;
    case FAMILY_MOE:
        out->part = PLANNER_ROUTER;
        if (strcmp(t->role, "expert") == 0 && t->rank >= 2) {
            expert_shape(w, t, out);
        } else if (is_expert_bias(w, t)) {
            out->part = PLANNER_EXPERTS;
            out->rows = (uint64_t)w->n_local;
        } else if (strcmp(t->role, "shared") == 0) {
            out->part = PLANNER_SHARED;
            out->matrix = weight;
            out->inner_name = "shared expert width";
            out->inner = w->view.shared_inter;
        } else if (strcmp(t->role, "latent") == 0) {
            out->matrix = weight;
        } else if (strcmp(t->role, "hash") == 0 && t->rank == 2) {
            out->rows = (uint64_t)w->view.vocab; /* of every rank */
            out->stored = sizeof(int64_t);
        }
        break;
    }
    if (out->part == PLANNER_DENSE) {
        out->inner_name = "MLP width";
        out->inner = w->view.dense_inter;
    }
    if (out->inner_name && !out->inner_parts) out->inner_parts = w->view.s->tp;
}

/* "layers.3." + "mlp.experts.{e}.up_proj.weight" -> "model.layers.3.mlp.experts.0.up_proj" */
static void module_of(const walker *w, const char *name, char buf[NAME_MAX_BYTES])
{
    size_t at = (size_t)snprintf(buf, NAME_MAX_BYTES, "%s", w->prefix);
    for (; *name && at + 1 < NAME_MAX_BYTES; name++) {
        if (strncmp(name, "{e}", 3) == 0) {
            buf[at++] = '0';
            name += 2;
        } else {
            buf[at++] = *name;
        }
    }
    buf[at < NAME_MAX_BYTES ? at : NAME_MAX_BYTES - 1] = '\0';
    if (ends_with(buf, ".weight")) buf[strlen(buf) - strlen(".weight")] = '\0';
}

static int visit(void *ctx, const family_tensor *t)
{
    walker *w = ctx;
    char module[NAME_MAX_BYTES];
    planner_tensor out = {.module = module, .layer = w->layer};
    shape_of(w, t, &out);
    if (t->part == FAMILY_MOE)
        planner_block_module(w->view.m, (int32_t)w->layer, t->name, module);
    else
        module_of(w, t->name, module);
    return w->fn(w->ctx, &out);
}

static void prefix_of(const planner_model *m, int32_t layer, char buf[NAME_MAX_BYTES])
{
    const json_t *d = family_descriptor(m->family);
    const char *word = json_string_value(json_object_get(d, "layer_word"));
    const char *prefix = json_string_value(json_array_get(json_object_get(d, "prefixes"), 0));
    buf[0] = '\0';
    if (layer >= 0)
        snprintf(buf, NAME_MAX_BYTES, "%.80s%.40s.%d.", prefix ? prefix : "", word ? word : "layers", (int)layer);
}

void planner_block_module(const planner_model *m, int32_t layer, const char *name, char buf[PLANNER_MODULE_BYTES])
{
    walker w = {.layer = layer};
    char whole[NAME_MAX_BYTES];
    const char *disk = json_string_value(json_array_get(json_object_get(family_block(m->family), "disk"), 0));
    int outside = strncmp(name, "../", 3) == 0;
    prefix_of(m, layer, w.prefix);
    snprintf(whole, sizeof whole, "%s%s", outside || !disk ? "" : disk, outside ? name + 3 : name);
    module_of(&w, whole, buf);
}

int planner_walk(const planner_model *m, const planner_shard *s, planner_tensor_fn fn, void *ctx, fmt_error *e)
{
    walker w = {.view = {.m = m, .s = s}, .fn = fn, .ctx = ctx};
    for (int32_t layer = -1; layer < family_layers(m->family); layer++) {
        int32_t first, n_local = 0;
        w.layer = layer;
        if (view_layer(&w.view, layer, e)) return -1;
        if (w.view.n_experts > 0 && w.view.n_experts <= INT32_MAX)
            planner_experts_of((int32_t)w.view.n_experts, s->ep, 0, &first, &n_local);
        w.n_local = n_local;
        prefix_of(m, layer, w.prefix);
        int stop = family_tensors(m->family, layer, w.view.n ? w.view.overrides : NULL, visit, &w, e);
        if (stop) return stop;
    }
    return 0;
}

/* ---- caches ------------------------------------------------------------------------------------------------------- */

/* A count of elements or bytes: not negative, small enough to be exact. */
static int amount(const rank_view *v, int32_t layer, const char *expression, uint64_t *out, fmt_error *e)
{
    double value;
    *out = 0;
    if (family_eval(v->m->family, layer, v->n ? v->overrides : NULL, expression, &value, e)) return -1;
    if (!(value >= 0 && value <= 9e15))
        return fmt_fail(e, "%s: layer %d: %s is %g, expected 0 to 9e15", v->m->file, (int)layer, expression, value);
    *out = (uint64_t)value;
    return 0;
}

static int add_times(uint64_t *sum, uint64_t a, uint64_t b, const planner_model *m, fmt_error *e)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product) || planner_add(sum, product))
        return fmt_fail(e, "%s: its caches hold more than 2^64 elements", m->file);
    return 0;
}

/* Tokens that a layer with a window keeps; 0: no window. */
static int window_of(const rank_view *v, int32_t layer, const json_t *name, int64_t context, uint64_t *out,
                     fmt_error *e)
{
    double window = 0;
    *out = 0;
    if (!json_is_string(name)) return 0;
    if (whole_value(v->m, layer, json_string_value(name), &window, e)) return -1;
    if (window >= 1) *out = window < (double)context ? (uint64_t)window : (uint64_t)context;
    return 0;
}

static int state_of(const rank_view *v, int32_t layer, const json_t *kind, planner_cache *out, fmt_error *e)
{
    size_t i;
    const json_t *one;
    json_array_foreach((json_t *)(uintptr_t)json_object_get(kind, "state"), i, one)
    {
        const char *expression = json_string_value(json_array_get(one, 1));
        const char *dtype = json_string_value(json_array_get(one, 2));
        uint64_t elements;
        if (!expression || amount(v, layer, expression, &elements, e)) return -1;
        if (add_times(&out->state_bytes, elements, dtype && strcmp(dtype, "f32") == 0 ? 4 : 2, v->m, e)) return -1;
    }
    return 0;
}

static int cache_of_layer(const rank_view *v, int32_t layer, int64_t context, planner_cache *out, fmt_error *e)
{
    const json_t *kind = family_kind(v->m->family, layer);
    const json_t *repeat = json_object_get(family_descriptor(v->m->family), "kv_repeat");
    uint64_t times = json_is_integer(repeat) ? (uint64_t)json_integer_value(repeat) : 1, elements = 0, tokens = 0;
    const char *kv = json_string_value(json_object_get(kind, "kv"));
    const json_t *both = json_object_get(kind, "window_kv");
    if (!kind) return 0;
    if (kv) {
        if (amount(v, layer, kv, &elements, e) ||
            window_of(v, layer, json_object_get(kind, "window"), context, &tokens, e))
            return -1;
        if (tokens ? add_times(&out->window, elements * times, tokens, v->m, e)
                   : add_times(&out->per_token, elements, times, v->m, e))
            return -1;
    }
    if (json_is_array(both)) {
        const char *expression = json_string_value(json_array_get(both, 0));
        if (!expression || amount(v, layer, expression, &elements, e) ||
            window_of(v, layer, json_array_get(both, 1), context, &tokens, e) ||
            add_times(&out->window, elements * times, tokens, v->m, e))
            return -1;
    }
    return state_of(v, layer, kind, out, e);
}

int planner_cache_of(const planner_model *m, const planner_shard *s, int64_t context, planner_cache *out, fmt_error *e)
{
    planner_cache sum = {0, 0, 0};
    rank_view v = {.m = m, .s = s};
    for (int32_t layer = 0; layer < family_layers(m->family); layer++)
        if (view_layer(&v, layer, e) || cache_of_layer(&v, layer, context, &sum, e)) return -1;
    *out = sum;
    return 0;
}

/* ---- MoE layers --------------------------------------------------------------------------------------------------- */

/* The widths alone, for a block that a moewe layer cannot run: its experts still need their room. */
static int widths_of(const planner_model *m, int32_t layer, moewe_config *out, fmt_error *e)
{
    const json_t *block = family_block(m->family), *shared = json_object_get(block, "shared");
    const char *top_k = json_string_value(json_object_get(block, "top_k"));
    const char *latent = json_string_value(json_object_get(json_object_get(block, "latent"), "size"));
    const char *shared_width = json_string_value(json_object_get(shared, "width"));
    int64_t hidden, inter, experts, chosen, null_experts = 0, shared_inter = 0;
    double width = 0;
    if (family_int(m->family, layer, "H", 1, INT32_MAX, &hidden, e) ||
        family_int(m->family, layer, "I", 1, INT32_MAX, &inter, e) ||
        family_int(m->family, layer, "E", 1, INT32_MAX, &experts, e) ||
        (json_object_get(variables(m), "N0") && family_int(m->family, layer, "N0", 0, INT32_MAX, &null_experts, e)) ||
        family_int(m->family, layer, top_k ? top_k : "K", 1, experts + null_experts, &chosen, e) ||
        (shared_width && !json_is_true(json_object_get(shared, "outside_block")) &&
         family_int(m->family, layer, shared_width, 0, INT32_MAX, &shared_inter, e)) ||
        (latent && whole_value(m, layer, latent, &width, e)))
        return -1;
    MOEWE_INIT(*out);
    out->hidden = (int32_t)hidden;
    out->inter = (int32_t)inter;
    out->n_experts = (int32_t)experts;
    out->top_k = (int32_t)chosen;
    out->n_null = (int32_t)null_experts;
    out->shared_inter = (int32_t)shared_inter;
    out->latent = width >= 1 && width <= INT32_MAX ? (int32_t)width : 0;
    out->act = planner_is_gated(m) ? MOEWE_ACT_SWIGLU : MOEWE_ACT_RELU2;
    return 0;
}

int planner_moe_of(const planner_model *m, const planner_shard *s, int32_t layer, moewe_config *out, fmt_error *e)
{
    model_config config = {.family = m->family};
    moewe_config c;
    fmt_error cannot_run;
    int32_t first;
    memset(&c, 0, sizeof c); /* compared by its bytes */
    snprintf(config.file, sizeof config.file, "%.500s", m->file);
    snprintf(config.model_type, sizeof config.model_type, "%.40s", family_model_type(m->family));
    if (model_layer_moe(&config, layer, &c, &cannot_run) && widths_of(m, layer, &c, e)) return -1;
    c.inter /= s->expert_tp;
    c.shared_inter /= s->tp;
    if (s->ep > 1) planner_experts_of(c.n_experts, s->ep, 0, &first, &c.n_local);
    *out = c;
    return 0;
}
