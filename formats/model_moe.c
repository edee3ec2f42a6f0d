/* model_moe.c - from a family's descriptor and config.json to the moewe_config of a layer.  Never asks which
 * family it has. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "file.h"
#include "model.h"

static const json_t *get(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static const char *word(const json_t *o, const char *key)
{
    return json_string_value(get(o, key));
}

typedef struct words {
    const char *word;
    int32_t value;
} words;

static int choose(const model_config *c, const char *what, const char *found, const words *list, size_t n, int32_t *out,
                  fmt_error *e)
{
    char known[256] = "";
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (found && strcmp(found, list[i].word) == 0) {
            *out = list[i].value;
            return 0;
        }
        at += (size_t)snprintf(known + at, at < sizeof known ? sizeof known - at : 0, "%s%s", i ? ", " : "",
                               list[i].word);
    }
    return fmt_fail(e, "%.300s: %s is '%.60s', one of %s is expected", c->file, what, found ? found : "missing", known);
}

static int constant(const model_config *c, int32_t layer, const json_t *v, double fallback, float *out, fmt_error *e)
{
    double d;
    if (family_constant(c->family, layer, v, fallback, &d, e)) return -1;
    *out = (float)d;
    return 0;
}

/* What config.json has under the name at key of o, or under the first of several that it has; *used is that name. */
static const json_t *named_field(const model_config *c, const json_t *o, const char *key, const char **used)
{
    const json_t *names = get(o, key), *v = NULL;
    *used = json_is_array(names) ? json_string_value(json_array_get(names, 0)) : json_string_value(names);
    if (!json_is_array(names)) return *used ? family_field(c->family, *used) : NULL;
    for (size_t i = 0; !v && i < json_array_size(names); i++) {
        v = family_field(c->family, json_string_value(json_array_get(names, i)));
        if (v) *used = json_string_value(json_array_get(names, i));
    }
    return v;
}

/* Field name of the descriptor object o, with the default beside it. */
static int named_constant(const model_config *c, const json_t *o, const char *name, const char *fallback, double *out,
                          fmt_error *e)
{
    const char *used;
    const json_t *v = named_field(c, o, name, &used);
    if (v && !json_is_number(v)) {
        char text[64];
        fmt_json_text(v, text, sizeof text);
        return fmt_fail(e, "%.300s: %s is %s, a number is expected", c->file, used, text);
    }
    return family_constant(c->family, -1, v ? v : get(o, fallback), 0, out, e);
}

/* ["field", value, other]: config.json has that value there; the other one and nothing are all that else may be. */
static int condition(const model_config *c, const json_t *when, int *holds, fmt_error *e)
{
    const char *name = json_string_value(json_array_get(when, 0));
    json_t *v = name ? (json_t *)(uintptr_t)family_field(c->family, name) : NULL;
    char text[64];
    *holds = !when || (v && json_equal(v, json_array_get(when, 1)));
    if (*holds || !v || json_equal(v, json_array_get(when, 2))) return 0;
    fmt_json_text(v, text, sizeof text);
    return fmt_fail(e, "%.300s: %s is %s, '%s' or '%s' is expected", c->file, name, text,
                    json_string_value(json_array_get(when, 1)), json_string_value(json_array_get(when, 2)));
}

/* ---- router -------------------------------------------------------------------------------------------------- */

static int read_score(const model_config *c, const json_t *block, moewe_config *m, fmt_error *e)
{
    static const words scores[] = {{"softmax", MOEWE_SCORE_SOFTMAX},
                                   {"softmax_topk", MOEWE_SCORE_SOFTMAX_TOPK},
                                   {"sigmoid", MOEWE_SCORE_SIGMOID},
                                   {"sqrtsoftplus", MOEWE_SCORE_SQRTSOFTPLUS},
                                   {"sparsemixer", MOEWE_SCORE_SPARSEMIXER}};
    const json_t *by_field = get(block, "score_switch");
    const char *name = word(block, "score");
    if (by_field) {
        const char *field = word(by_field, "field");
        const json_t *v = family_field(c->family, field);
        const char *found = v ? json_string_value(v) : word(by_field, "default");
        if (!v && get(block, "unknown")) found = word(block, "score"); /* until tensors decide */
        name = found ? word(by_field, found) : NULL;
        if (!name)
            return fmt_fail(e, "%.300s: %s is '%.40s', the name of a score function is expected", c->file, field,
                            found ? found : "missing");
    }
    return choose(c, "the router's score", name, scores, sizeof scores / sizeof *scores, &m->score, e);
}

static int read_renormalize(const model_config *c, int32_t layer, const json_t *block, moewe_config *m, fmt_error *e)
{
    const json_t *r = get(block, "renorm"), *v;
    const char *mode = word(r, "mode"), *field;
    int on = strcmp(mode, "always") == 0;
    v = named_field(c, r, "field", &field);
    if (field) {
        char text[64];
        if (strcmp(mode, "pnorm") == 0) { /* only the sum of the weights themselves is a norm that layers have */
            if (v && !(json_is_number(v) && json_number_value(v) == 1)) {
                fmt_json_text(v, text, sizeof text);
                return fmt_fail(e, "%.300s: %s is %s, 1 (divide by the sum) is supported", c->file, field, text);
            }
            on = v != NULL || !json_object_get(json_object_get(family_config(c->family), "ffn_config"),
                                               "moe_normalize_expert_weights");
        } else {
            if (!v) v = get(r, "default");
            if (v && !json_is_boolean(v)) {
                fmt_json_text(v, text, sizeof text);
                return fmt_fail(e, "%.300s: %s is %s, true or false is expected", c->file, field, text);
            }
            on = json_is_true(v);
        }
    }
    if (on) m->flags |= MOEWE_FLAG_RENORMALIZE;
    if (!on) return 0;
    return constant(c, layer, get(r, "eps"), 0, &m->renorm_eps, e) ||
                   constant(c, layer, get(r, "floor"), 0, &m->renorm_floor, e)
               ? -1
               : 0;
}

static int read_groups(const model_config *c, const json_t *block, moewe_config *m, fmt_error *e)
{
    const json_t *g = get(block, "groups");
    double n, top;
    int holds = 0;
    if (g && condition(c, get(g, "when"), &holds, e)) return -1;
    if (!holds) return 0;
    if (named_constant(c, g, "n", "n_default", &n, e) || named_constant(c, g, "top", "top_default", &top, e)) return -1;
    if (n <= 1) return 0;
    if (n != floor(n) || n > m->n_experts || m->n_experts % (int32_t)n)
        return fmt_fail(e, "%.300s: %s is %g, a divisor of the %d experts is expected", c->file, word(g, "n"), n,
                        m->n_experts);
    if (top != floor(top) || top < 1 || top > n)
        return fmt_fail(e, "%.300s: %s is %g, 1 to %s (%g) is expected", c->file, word(g, "top"), top, word(g, "n"), n);
    if (top * (m->n_experts / n) < m->top_k)
        return fmt_fail(e, "%.300s: %s is %g groups of %g experts, enough for the %d experts of a token are expected",
                        c->file, word(g, "top"), top, m->n_experts / n, (int)m->top_k);
    m->n_group = (int32_t)n;
    m->top_group = (int32_t)top;
    m->group_best = strcmp(word(g, "rank"), "sum2") == 0 && m->n_experts / m->n_group > 1 ? 2 : 1;
    return 0;
}

/* ---- activation -------------------------------------------------------------------------------------------------- */

/* The gated form of what hidden_act names. */
static int read_hidden_act(const model_config *c, int32_t *out, fmt_error *e)
{
    static const words acts[] = {{"silu", MOEWE_ACT_SWIGLU}, {"swish", MOEWE_ACT_SWIGLU},
                                 {"gelu", MOEWE_ACT_GEGLU},  {"gelu_new", MOEWE_ACT_GEGLU_TANH},
                                 {"relu", MOEWE_ACT_REGLU},  {"gelu_pytorch_tanh", MOEWE_ACT_GEGLU_TANH}};
    static const char *const names[] = {"hidden_act", "hidden_activation"};
    for (int i = 0; i < 2; i++) {
        const json_t *v = family_field(c->family, names[i]);
        char text[64];
        if (!v) continue;
        if (json_is_string(v))
            return choose(c, names[i], json_string_value(v), acts, sizeof acts / sizeof *acts, out, e);
        fmt_json_text(v, text, sizeof text);
        return fmt_fail(e, "%.300s: %s is %s, the name of an activation is expected", c->file, names[i], text);
    }
    return 0;
}

/* Entry of the list of limits that the descriptor names; 0 or null is none. */
static int listed_limit(const model_config *c, int32_t layer, const char *field, float *out, fmt_error *e)
{
    const json_t *list = field ? family_field(c->family, field) : NULL;
    return list ? constant(c, layer, json_array_get(list, (size_t)layer), 0, out, e) : 0;
}

static int read_act(const model_config *c, int32_t layer, const json_t *block, moewe_config *m, fmt_error *e)
{
    static const words kinds[] = {{"swiglu", MOEWE_ACT_SWIGLU},
                                  {"swiglu_oai", MOEWE_ACT_SWIGLU_OAI},
                                  {"geglu_tanh", MOEWE_ACT_GEGLU_TANH},
                                  {"relu2", MOEWE_ACT_RELU2},
                                  {"relu", MOEWE_ACT_RELU}};
    const json_t *a = get(block, "act"), *limit = get(a, "limit");
    if (choose(c, "the activation", word(a, "kind"), kinds, sizeof kinds / sizeof *kinds, &m->act, e) ||
        constant(c, layer, limit, 0, &m->act_limit, e) ||
        listed_limit(c, layer, word(a, "limit_list"), &m->act_limit, e) ||
        constant(c, layer, get(a, "alpha"), 0, &m->act_alpha, e) ||
        constant(c, layer, get(a, "beta"), 0, &m->act_beta, e))
        return -1;
    if (m->act == MOEWE_ACT_SWIGLU && word(a, "limit_where") && strcmp(word(a, "limit_where"), "after") == 0)
        m->act = MOEWE_ACT_SWIGLU_STEP;
    if (m->act == MOEWE_ACT_SWIGLU && !limit && !json_is_true(get(a, "fixed"))) return read_hidden_act(c, &m->act, e);
    return 0;
}

/* ---- shared expert, scales ------------------------------------------------------------------------------------------ */

static int read_shared(const model_config *c, int32_t layer, const json_t *block, moewe_config *m, fmt_error *e)
{
    const json_t *s = get(block, "shared");
    int64_t width;
    if (!s || json_is_true(get(s, "outside_block"))) return 0;
    if (family_int(c->family, layer, word(s, "width"), 0, INT32_MAX, &width, e)) return -1;
    m->shared_inter = (int32_t)width;
    if (!get(block, "shared_act")) m->shared_limit = m->act_limit;
    if (word(s, "limit_list")) m->shared_limit = 0;
    return listed_limit(c, layer, word(s, "limit_list"), &m->shared_limit, e);
}

static int read_scales(const model_config *c, int32_t layer, const json_t *block, moewe_config *m, fmt_error *e)
{
    const json_t *scale = get(block, "scale"), *combine = get(block, "combine");
    double v = 1;
    if (scale && named_constant(c, scale, "field", "default", &v, e)) return -1;
    m->routed_scale = (float)v;
    if (combine && m->shared_inter) { /* one factor on both sums */
        const json_t *found = family_field(c->family, word(combine, "field"));
        const char *how = found ? json_string_value(found) : word(combine, "default");
        const json_t *factor = how ? get(combine, how) : NULL;
        if (!json_is_number(factor))
            return fmt_fail(e, "%.300s: %s is '%.40s', which is not known", c->file, word(combine, "field"),
                            how ? how : "no text");
        m->routed_scale *= (float)json_number_value(factor);
        m->shared_scale = (float)json_number_value(factor);
    }
    return constant(c, layer, get(block, "logit_softcap"), 0, &m->logit_softcap, e) ||
                   constant(c, layer, get(block, "score_param"), 0, &m->sparsemixer_eps, e)
               ? -1
               : 0;
}

static int check_runs(const model_config *c, const json_t *block, fmt_error *e)
{
    const char *not_here = json_string_value(json_object_get(family_descriptor(c->family), "unsupported"));
    static const char *const outside[] = {"router_input", "in_norm", "out_norm", "out_bias", "router_transposed"};
    if (not_here)
        return fmt_fail(e, "%.300s: the MoE blocks of a %s model can be planned but not run: %.300s", c->file,
                        c->model_type, not_here);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        if (get(block, outside[i]))
            return fmt_fail(
                e,
                "%.300s: the MoE block of a %s model has a part (%s) that a moewe layer does not, so it cannot be run",
                c->file, c->model_type, outside[i]);
    return 0;
}

int model_layer_moe(const model_config *c, int32_t layer, moewe_config *out, fmt_error *e)
{
    const json_t *block = family_block(c->family), *latent = get(block, "latent");
    const char *top_k = word(block, "top_k");
    moewe_config m;
    int64_t hidden, inter, experts, null, k, width = 0;
    double size;
    int none = 1;
    MOEWE_INIT(m);
    if (check_runs(c, block, e) || family_int(c->family, layer, "H", 1, INT32_MAX, &hidden, e) ||
        family_int(c->family, layer, "I", 1, INT32_MAX, &inter, e) ||
        family_int(c->family, layer, "E", 1, INT32_MAX, &experts, e) ||
        family_int(c->family, layer, "N0", 0, INT32_MAX, &null, e) ||
        family_int(c->family, layer, top_k ? top_k : "K", 1, experts + null, &k, e))
        return -1;
    if (latent) {
        if (family_variable(c->family, layer, word(latent, "size"), &size, &none, e)) return -1;
        if (!none && family_int(c->family, layer, word(latent, "size"), 1, INT32_MAX, &width, e)) return -1;
    }
    m.hidden = (int32_t)hidden;
    m.inter = (int32_t)inter;
    m.n_experts = (int32_t)experts;
    m.n_null = (int32_t)null;
    m.top_k = (int32_t)k;
    m.latent = (int32_t)width;
    if (word(block, "weight_on") && strcmp(word(block, "weight_on"), "input") == 0)
        m.flags |= MOEWE_FLAG_WEIGHT_ON_INPUT;
    if (read_score(c, block, &m, e) || read_renormalize(c, layer, block, &m, e) || read_groups(c, block, &m, e) ||
        read_act(c, layer, block, &m, e) || read_shared(c, layer, block, &m, e) || read_scales(c, layer, block, &m, e))
        return -1;
    *out = m;
    return 0;
}
