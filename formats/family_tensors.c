/* family_tensors.c - the tensors of a model as its family stores them, from config.json alone. */
#include "family_internal.h"

#include <string.h>

typedef struct walk {
    const family *f;
    int32_t layer;
    const family_override *overrides;
    family_tensor_fn fn;
    void *ctx;
    fmt_error *e;
} walk;

static const json_t *get(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static const char *word(const json_t *o, const char *key)
{
    return json_string_value(get(o, key));
}

/* The first of several spellings. */
static const char *first_of(const json_t *v)
{
    return json_is_array(v) ? json_string_value(json_array_get(v, 0)) : json_string_value(v);
}

static int dimension(const walk *w, const char *expression, int64_t *out)
{
    double v;
    if (family_eval(w->f, w->layer, w->overrides, expression, &v, w->e)) return -1;
    if (v < 0 || v != (double)(int64_t)v)
        return fmt_fail(w->e, "%.300s: layer %d has a dimension %s of %.15g, a whole number is expected", w->f->file,
                        w->layer, expression, v);
    *out = (int64_t)v;
    return 0;
}

/* Items are [name, [dims ...]] or [name, [dims ...], condition]. */
static int put_components(const walk *w, family_part part, const json_t *items)
{
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i), *dims = json_array_get(item, 1);
        const char *condition = json_string_value(json_array_get(item, 2));
        family_tensor t = {.part = part, .name = json_string_value(json_array_get(item, 0)), .role = "", .count = 1};
        double yes = 1;
        if (condition && family_eval(w->f, w->layer, w->overrides, condition, &yes, w->e)) return -1;
        if (yes == 0) continue;
        t.rank = (int32_t)json_array_size(dims);
        if (!t.name || t.rank > FAMILY_MAX_RANK)
            return fmt_fail(w->e, "descriptor '%s' has a component without a name or of rank %d", w->f->name, t.rank);
        for (int32_t d = 0; d < t.rank; d++)
            if (dimension(w, json_string_value(json_array_get(dims, (size_t)d)), &t.dims[d])) return -1;
        int r = w->fn(w->ctx, &t);
        if (r) return r;
    }
    return 0;
}

static int put(const walk *w, const char *role, const char *name, int64_t count, const char *rows, const char *cols)
{
    family_tensor t = {.part = FAMILY_MOE, .name = name, .role = role, .count = count, .rank = cols ? 2 : 1};
    if (!name) return 0;
    if (dimension(w, rows, &t.dims[0]) || (cols && dimension(w, cols, &t.dims[1]))) return -1;
    return w->fn(w->ctx, &t);
}

static int put_stacked(const walk *w, const json_t *form, const char *width)
{
    const char *order = word(form, "order");
    int transposed = json_is_true(get(form, "transposed"));
    int64_t experts = 0, inter = 0, cols = 0;
    if (dimension(w, "E", &experts) || dimension(w, "I", &inter) || dimension(w, width, &cols)) return -1;
    int64_t rows = order && strcmp(order, "none") == 0 ? inter : 2 * inter;
    family_tensor up = {FAMILY_MOE, word(form, "gate_up"),
                        "expert",   1,
                        3,          {experts, transposed ? cols : rows, transposed ? rows : cols, 0}};
    family_tensor down = {FAMILY_MOE, word(form, "down"),
                          "expert",   1,
                          3,          {experts, transposed ? inter : cols, transposed ? cols : inter, 0}};
    int r = w->fn(w->ctx, &up);
    return r ? r : w->fn(w->ctx, &down);
}

static int put_experts(const walk *w, const char *width)
{
    const json_t *block = family_block(w->f), *form = json_array_get(get(block, "experts"), 0);
    const char *kind = word(form, "form"), *gates = word(block, "gate_up_count");
    int64_t n = 0, n_gates = 0;
    if (dimension(w, "E", &n) || dimension(w, gates ? gates : "E", &n_gates)) return -1;
    if (strcmp(kind, "stacked") == 0) return put_stacked(w, form, width);
    int r = put(w, "expert", word(form, "gate"), n_gates, "I", width);
    if (!r) r = put(w, "expert", word(form, "up"), n_gates, "I", width);
    return r ? r : put(w, "expert", word(form, "down"), n, width, "I");
}

/* Where only the checkpoint's tensors could tell: whether a field of config.json says so, given as [field] that is
 * there or [field, value].  Without a list the descriptor itself is sure. */
static int is_said(const walk *w, const json_t *said_by)
{
    for (size_t i = 0; i < json_array_size(said_by); i++) {
        const json_t *pair = json_array_get(said_by, i), *value = json_array_get(pair, 1);
        const json_t *v = family_field(w->f, json_string_value(json_array_get(pair, 0)));
        if (v && (!value || json_equal((json_t *)(uintptr_t)v, (json_t *)(uintptr_t)value))) return 1;
    }
    return !said_by;
}

static int put_shared(const walk *w)
{
    const json_t *shared = get(family_block(w->f), "shared"), *form = json_array_get(get(shared, "forms"), 0);
    double width = 0;
    if (!shared || family_eval(w->f, w->layer, w->overrides, word(shared, "width"), &width, w->e))
        return shared ? -1 : 0;
    if (width == 0) return 0;
    int r = put(w, "shared", word(form, "gate_up"), 1, "2*SI", "H");
    if (!r) r = put(w, "shared", word(form, "gate"), 1, "SI", "H");
    if (!r) r = put(w, "shared", word(form, "up"), 1, "SI", "H");
    if (!r) r = put(w, "shared", word(form, "down"), 1, "H", "SI");
    if (r || !is_said(w, get(shared, "gate_said_by"))) return r;
    return put(w, "shared", word(shared, "gate_scalar"), 1, "1", "H");
}

static int put_moe(const walk *w)
{
    const json_t *block = family_block(w->f), *latent = get(block, "latent"), *bias = get(block, "expert_bias");
    double size = 0, biased = 1;
    if (latent && family_eval(w->f, w->layer, w->overrides, word(latent, "size"), &size, w->e)) return -1;
    const char *width = size != 0 ? word(latent, "size") : "H";
    int r = put(w, "router", first_of(get(block, "router")), 1, "E+N0", "H");
    if (!r) r = put(w, "bias", word(block, "router_bias"), 1, "E+N0", NULL);
    if (!r && family_hash_layer(w->f, w->layer))
        r = put(w, "hash", word(get(block, "hash"), "table"), 1, "V",
                word(block, "top_k") ? word(block, "top_k") : "K");
    else if (!r) {
        if (family_constant(w->f, w->layer, get(block, "bias_when"), 1, &biased, w->e)) return -1;
        if (biased != 0 && is_said(w, get(block, "select_bias_said_by")))
            r = put(w, "bias", first_of(get(block, "select_bias")), 1, "E+N0", NULL);
    }
    if (!r && size != 0) r = put(w, "latent", word(latent, "down"), 1, width, "H");
    if (!r && size != 0) r = put(w, "latent", word(latent, "up"), 1, "H", width);
    if (!r) r = put_experts(w, width);
    if (!r && bias) r = put(w, "bias", word(bias, "gate_up"), 1, "E", "2*I");
    if (!r && bias) r = put(w, "bias", word(bias, "down"), 1, "E", "H");
    if (!r) r = put(w, "scale", word(block, "expert_scale"), 1, "E", NULL);
    return r ? r : put_shared(w);
}

int family_hash_layer(const family *f, int32_t layer)
{
    const json_t *hash = get(family_block(f), "hash"), *when = get(hash, "when"), *list;
    if (!hash) return 0;
    list = family_field(f, json_string_value(json_array_get(when, 0)));
    if (json_is_array(list)) {
        const char *kind = json_string_value(json_array_get(list, (size_t)layer));
        return kind && strcmp(kind, json_string_value(json_array_get(when, 1))) == 0;
    }
    const json_t *n = family_field(f, word(hash, "fallback_field"));
    return layer < (n ? json_integer_value(n) : json_integer_value(get(hash, "fallback_default")));
}

int family_tensors(const family *f, int32_t layer, const family_override *overrides, family_tensor_fn fn, void *ctx,
                   fmt_error *e)
{
    const walk w = {f, layer, overrides, fn, ctx, e};
    const json_t *parts = get(f->descriptor, "components");
    if (layer < 0) return put_components(&w, FAMILY_TOP, get(parts, "top"));
    int r = put_components(&w, FAMILY_LAYER, get(parts, "layer"));
    if (!r) r = put_components(&w, FAMILY_MIXER, get(get(parts, "mixer"), family_mixer(f, layer)));
    if (r) return r;
    return family_is_moe(f, layer) ? put_moe(&w) : put_components(&w, FAMILY_DENSE, get(parts, "dense"));
}
