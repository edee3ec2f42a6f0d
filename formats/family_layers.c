/* family_layers.c - which layer is what: the kind of its mixer, and whether it has experts, by the rules of the
 * descriptor. */
#include "family_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

enum { MAX_LAYERS = 65536 };

static const json_t *get(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static const char *word(const json_t *o, const char *key)
{
    return json_string_value(get(o, key));
}

/* Integer constant at key of the rule: a number, or [field, default]. */
static int constant(const family *f, const json_t *rule, const char *key, int64_t fallback, int64_t *out, fmt_error *e)
{
    double v;
    const json_t *name = json_array_get(get(rule, key), 0);
    if (family_constant(f, -1, get(rule, key), (double)fallback, &v, e)) return -1;
    if (v != floor(v))
        return fmt_fail(e, "%.300s: %s is %g, an integer is expected", f->file, name ? json_string_value(name) : key,
                        v);
    *out = (int64_t)v;
    return 0;
}

/* The same of something that is divided by. */
static int divisor(const family *f, const json_t *rule, const char *key, int64_t *out, fmt_error *e)
{
    const json_t *name = json_array_get(get(rule, key), 0);
    if (constant(f, rule, key, 1, out, e)) return -1;
    if (*out >= 1) return 0;
    return fmt_fail(e, "%.300s: %s is %" PRId64 ", an integer from 1 on is expected", f->file,
                    name ? json_string_value(name) : key, *out);
}

/* The field that the rule names, or its default. */
static int named(const family *f, const json_t *rule, const char *field, const char *fallback, int64_t *out,
                 fmt_error *e)
{
    const char *name = word(rule, field);
    const json_t *v = name && *name ? family_field(f, name) : NULL;
    char text[64];
    *out = json_integer_value(get(rule, fallback));
    if (!v) return 0;
    if (!json_is_integer(v) || json_integer_value(v) < -1 || json_integer_value(v) > INT32_MAX) {
        fmt_json_text(v, text, sizeof text);
        return fmt_fail(e, "%.300s: %s is %s, an integer from 0 on is expected", f->file, name, text);
    }
    *out = json_integer_value(v);
    return 0;
}

/* Whether the list of layer numbers, which count from first, has layer i. */
static int has_layer(const family *f, const char *name, const json_t *list, int32_t first, int32_t i, int *out,
                     fmt_error *e)
{
    char text[64];
    *out = 0;
    if (list && !json_is_array(list)) {
        fmt_json_text(list, text, sizeof text);
        return fmt_fail(e, "%.300s: %s is %s, an array of layer numbers is expected", f->file, name, text);
    }
    for (size_t k = 0; k < json_array_size(list); k++) {
        const json_t *v = json_array_get(list, k);
        int64_t n = json_integer_value(v) - first;
        if (!json_is_integer(v) || n < 0 || n >= f->n_layers) {
            fmt_json_text(v, text, sizeof text);
            return fmt_fail(e, "%.300s: %s[%zu] is %s, a layer from %d to %d is expected", f->file, name, k, text,
                            (int)first, (int)(f->n_layers - 1 + first));
        }
        if (n == i) *out = 1;
    }
    return 0;
}

static int has_word(const json_t *list, const char *w)
{
    for (size_t i = 0; w && i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (s && strcmp(s, w) == 0) return 1;
    }
    return 0;
}

/* Entry of a list that must have one for each layer. */
static int entry(const family *f, const char *name, const json_t *list, int32_t i, const json_t **out, fmt_error *e)
{
    if (!json_is_array(list) || json_array_size(list) < (size_t)f->n_layers)
        return fmt_fail(e, "%.300s: %s has %zu entries, one for each of %d layers is expected", f->file, name,
                        json_array_size(list), f->n_layers);
    *out = json_array_get(list, (size_t)i);
    return 0;
}

static int truth_of(const json_t *v)
{
    return json_is_true(v) || (json_is_number(v) && json_number_value(v) != 0);
}

static int listed(const family *f, const json_t *rule, int32_t i, int *out, fmt_error *e);
static int holds(const family *f, const json_t *rule, int32_t i, int *out, fmt_error *e);

static int all_of(const family *f, const json_t *rules, int32_t i, int *out, fmt_error *e)
{
    *out = 1;
    for (size_t n = 0; *out && n < json_array_size(rules); n++)
        if (holds(f, json_array_get(rules, n), i, out, e)) return -1;
    return 0;
}

/* Whether the rule says yes to layer i. */
static int holds(const family *f, const json_t *rule, int32_t i, int *out, fmt_error *e)
{
    const char *kind = word(rule, "rule");
    int64_t a = 0, b = 0, c = 0;
    if (!kind || strcmp(kind, "all") == 0) {
        *out = 1;
        return 0;
    }
    if (strcmp(kind, "all_of") == 0) return all_of(f, get(rule, "rules"), i, out, e);
    if (strcmp(kind, "skip_first") == 0) {
        if (named(f, rule, "field", "default", &a, e) || constant(f, rule, "freq", 1, &b, e)) return -1;
        *out = i >= a && (b <= 1 || i % b == 0);
    } else if (strcmp(kind, "step") == 0) {
        const char *except = word(rule, "except_field");
        int excepted = 0;
        if (named(f, rule, "field", "default", &a, e)) return -1;
        if (a < 1)
            return fmt_fail(e, "%.300s: %s is %d, an integer from 1 on is expected", f->file, word(rule, "field"),
                            (int)a);
        if (except && has_layer(f, except, family_field(f, except), 0, i, &excepted, e)) return -1;
        *out = (i + 1) % a == 0 && !excepted;
    } else if (strcmp(kind, "interval") == 0) {
        if (named(f, rule, "field", "default", &a, e)) return -1;
        *out = a <= 1 || (i + 1) % a == 0;
    } else if (strcmp(kind, "period") == 0) {
        if (divisor(f, rule, "period", &a, e) || constant(f, rule, "offset", 0, &b, e)) return -1;
        *out = a == 1 || i % a == b;
    } else if (strcmp(kind, "range") == 0) {
        if (constant(f, rule, "start", 0, &a, e) || constant(f, rule, "end", -1, &b, e) ||
            divisor(f, rule, "interval", &c, e))
            return -1;
        if (b < 0) b = f->n_layers - 1;
        *out = (i + 1) % c == 0 && i >= a && i <= b;
    } else if (strcmp(kind, "freq_offset") == 0) {
        if (named(f, rule, "field", "default", &a, e) || named(f, rule, "offset_field", "offset_default", &b, e))
            return -1;
        int64_t from = i - b + 1 > 0 ? i - b + 1 : 0;
        *out = from % (a > 1 ? a : 1) == 0;
    } else if (strcmp(kind, "multiples") == 0) {
        a = json_integer_value(get(rule, "every"));
        *out = i > 0 && a > 0 && i % a == 0;
    } else if (strcmp(kind, "csa_hca") == 0) {
        *out = i < 2 || i % 2 == 1;
    } else if (strcmp(kind, "kind") == 0) {
        *out = f->mixers && f->mixers[i] && strcmp(f->mixers[i], word(rule, "value")) == 0;
    } else {
        return listed(f, rule, i, out, e);
    }
    return 0;
}

/* Rules that look into a list of config.json, and fall back to another rule where it is absent. */
static int listed(const family *f, const json_t *rule, int32_t i, int *out, fmt_error *e)
{
    const char *kind = word(rule, "rule"), *name = word(rule, "field");
    const json_t *list = name ? family_field(f, name) : NULL, *v = NULL;
    if (!list) {
        *out = 1;
        return get(rule, "fallback") ? holds(f, get(rule, "fallback"), i, out, e) : 0;
    }
    if (strcmp(kind, "index_list") == 0) return has_layer(f, name, list, 0, i, out, e);
    /* One number for all layers is a step, as in moe_layer_freq, which other rules may know better. */
    if (json_is_integer(list) && get(rule, "fallback")) return holds(f, get(rule, "fallback"), i, out, e);
    if (json_is_integer(list)) {
        int64_t step = json_integer_value(list);
        *out = step <= 1 || i % step == 0;
        return 0;
    }
    if (entry(f, name, list, i, &v, e)) return -1;
    if (strcmp(kind, "list") == 0)
        *out = has_word(get(rule, "moe"), json_string_value(v));
    else if (strcmp(kind, "flag_list") == 0)
        *out = truth_of(v);
    else
        return fmt_fail(e, "descriptor '%s' has an unknown rule '%.40s'", f->name, kind);
    return 0;
}

/* ---- mixers ------------------------------------------------------------------------------------------------------ */

static int by_default(const family *f, const json_t *rule, int32_t i, const char **out, fmt_error *e)
{
    const char *kind = word(rule, "rule");
    const json_t *values = get(rule, "values");
    int yes;
    if (json_array_size(values)) {
        *out = json_string_value(json_array_get(values, (size_t)i % json_array_size(values)));
        return 0;
    }
    if (holds(f, rule, i, &yes, e)) return -1;
    if (kind && strcmp(kind, "all") == 0)
        *out = word(rule, "value");
    else if (kind && strcmp(kind, "interval") == 0)
        *out = word(rule, yes ? "every" : "others");
    else if (kind && strcmp(kind, "csa_hca") == 0)
        *out = yes ? "dsv4_hca" : "dsv4_csa";
    else
        *out = word(rule, yes ? "yes" : "no");
    return 0;
}

/* What the map makes of one entry of config.json. */
static int mapped(const family *f, const char *name, const json_t *map, const json_t *v, const char **out, fmt_error *e)
{
    char key[64];
    if (json_is_string(v))
        *out = word(map, json_string_value(v));
    else {
        fmt_json_text(v, key, sizeof key);
        *out = word(map, key);
    }
    if (*out) return 0;
    fmt_json_text(v, key, sizeof key);
    return fmt_fail(e, "%.300s: %s has a layer of kind %s, which a %s model is not known to have", f->file, name, key,
                    f->model_type);
}

/* The field of config.json that lists the layers, with its map; pattern is a string with a letter a layer. */
typedef struct layer_list {
    const char *name;
    const json_t *list, *map;
    const char *pattern;
} layer_list;

static layer_list find_list(const family *f, const json_t *mixers)
{
    layer_list l = {0};
    const json_t *names = get(mixers, "field"), *second = get(mixers, "field2"), *pattern = get(mixers, "pattern");
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        const json_t *v = family_field(f, name);
        if (json_is_array(v)) return (layer_list){name, v, get(mixers, "map"), NULL};
    }
    if (second && json_is_array(family_field(f, word(second, "field"))))
        return (layer_list){word(second, "field"), family_field(f, word(second, "field")), get(second, "map"), NULL};
    if (pattern && json_is_string(family_field(f, word(pattern, "field")))) {
        l.name = word(pattern, "field");
        l.map = get(pattern, "map");
        l.pattern = json_string_value(family_field(f, l.name));
    }
    return l;
}

static int find_mixer(const family *f, const json_t *mixers, const layer_list *l, int32_t i, const char **out,
                      fmt_error *e)
{
    const json_t *v = NULL, *numbers = get(mixers, "one_based");
    if (l->pattern) {
        char letter[2] = {l->pattern[i], 0};
        *out = word(l->map, letter);
        return *out ? 0
                    : fmt_fail(e, "%.300s: %s has '%s' for layer %d, which is not known", f->file, l->name, letter, i);
    }
    if (l->list) {
        if (entry(f, l->name, l->list, i, &v, e)) return -1;
        return mapped(f, l->name, l->map, v, out, e);
    }
    if (numbers && family_field(f, word(numbers, "yes"))) { /* layer numbers that count from 1 */
        int yes;
        if (has_layer(f, word(numbers, "yes"), family_field(f, word(numbers, "yes")), 1, i, &yes, e)) return -1;
        *out = word(numbers, yes ? "yes_kind" : "no_kind");
        return 0;
    }
    return by_default(f, get(mixers, "default"), i, out, e);
}

int family_find_layers(family *f, fmt_error *e)
{
    const json_t *mixers = get(f->descriptor, "mixers");
    layer_list l = find_list(f, mixers);
    int64_t n;
    if (l.pattern) f->n_layers = (int32_t)(strlen(l.pattern) < MAX_LAYERS ? strlen(l.pattern) : MAX_LAYERS);
    if (l.list && !family_field(f, "num_hidden_layers"))
        f->n_layers = (int32_t)(json_array_size(l.list) < MAX_LAYERS ? json_array_size(l.list) : MAX_LAYERS);
    if (family_int(f, -1, "L", 1, MAX_LAYERS, &n, e)) return -1;
    if (l.pattern && n > f->n_layers)
        return fmt_fail(e, "%.300s: %s names %d layers, the model has %d", f->file, l.name, f->n_layers, (int)n);
    f->n_layers = (int32_t)n;
    f->mixers = calloc((size_t)n, sizeof *f->mixers);
    f->is_moe = calloc((size_t)n, 1);
    if (!f->mixers || !f->is_moe)
        return fmt_fail(e, "%.300s: no memory for the kinds of %d layers", f->file, f->n_layers);
    for (int32_t i = 0; i < f->n_layers; i++) {
        if (find_mixer(f, mixers, &l, i, &f->mixers[i], e)) return -1;
        if (!f->mixers[i]) return fmt_fail(e, "descriptor '%s' gives layer %d no kind", f->name, i);
    }
    const json_t *rule = get(f->descriptor, "moe_layers");
    const json_t *hash = get(family_block(f), "hash");
    const int known = !get(family_block(f), "unknown");
    double experts;
    int none;
    /* as family_hash_layer will read it */
    if (hash && named(f, hash, "fallback_field", "fallback_default", &n, e)) return -1;
    for (int32_t i = 0; i < f->n_layers; i++) {
        int yes = 1;
        if (json_is_object(rule) && holds(f, rule, i, &yes, e)) return -1;
        if (family_variable(f, i, "E", &experts, &none, e)) return -1;
        if (none && known) return family_int(f, i, "E", 1, INT32_MAX, &n, e);
        if (experts != 0 && family_int(f, i, "E", 0, INT32_MAX, &n, e)) return -1;
        f->is_moe[i] = yes && experts > 0;
    }
    return 0;
}

int32_t family_layers(const family *f)
{
    return f->n_layers;
}

int family_is_moe(const family *f, int32_t layer)
{
    return layer >= 0 && layer < f->n_layers && f->is_moe[layer];
}

const char *family_mixer(const family *f, int32_t layer)
{
    return layer >= 0 && layer < f->n_layers ? f->mixers[layer] : "";
}

const json_t *family_kind(const family *f, int32_t layer)
{
    return json_object_get(f->kinds, family_mixer(f, layer));
}
