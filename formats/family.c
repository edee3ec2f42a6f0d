/* family.c - finds the descriptor of a config.json and evaluates its variables and constants. */
#include "family_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expression.h"
#include "family_data.h"
#include "file.h"

enum { MAX_VARIABLE_DEPTH = 12 };

/* ---- descriptors --------------------------------------------------------------------------------------------- */

static const family_text *text_of(const char *model_type, const char *name)
{
    for (size_t i = 0; i < family_text_count; i++) {
        const family_text *t = &family_texts[i];
        if (name ? strcmp(t->name, name) == 0 : t->model_type && strcmp(t->model_type, model_type) == 0) return t;
    }
    return NULL;
}

static json_t *parse(const family_text *t, fmt_error *e)
{
    json_error_t at;
    json_t *d = json_loadb((const char *)t->text, t->bytes, JSON_REJECT_DUPLICATES, &at);
    if (!d) fmt_fail(e, "descriptor '%s' does not parse: line %d: %s", t->name, at.line, at.text);
    return d;
}

/* "a.b" in object o; a whole name with dots is tried first. */
static const json_t *find_in(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    const char *dot = strchr(name, '.');
    char head[64];
    if (v || !dot || (size_t)(dot - name) >= sizeof head) return v;
    memcpy(head, name, (size_t)(dot - name));
    head[dot - name] = 0;
    return find_in(json_object_get(o, head), dot + 1);
}

const json_t *family_field(const family *f, const char *name)
{
    const json_t *v = find_in(f->text, name);
    if (!v) v = find_in(f->config, name);
    return json_is_null(v) ? NULL : v;
}

/* Where the document may nest the language model. */
static const char *const nests[] = {"text_config", "language_config", "llm_config", "thinker_config.text_config",
                                    "talker_config.text_config"};

static const json_t *nested(const json_t *config)
{
    for (size_t i = 0; i < sizeof nests / sizeof *nests; i++) {
        const json_t *v = find_in(config, nests[i]);
        if (json_is_object(v)) return v;
    }
    return NULL;
}

/* A part of the list of what is missing. */
typedef struct missing_list {
    char text[320];
    size_t n;
} missing_list;

static void add_missing(missing_list *l, const char *what, const char *name)
{
    size_t room = l->n < sizeof l->text ? sizeof l->text - l->n : 0;
    int n = snprintf(l->text + (room ? l->n : 0), room, what ? "%s%s (such as %s)" : "%s%s%s", l->n ? ", " : "",
                     what ? what : "", name);
    l->n += n > 0 ? (size_t)n : 0;
}

/* A count of the generic descriptor: 0 where no field has it or it is null, negative where it is no number. */
static double count_of(const family *f, const char *name, int *absent)
{
    double v;
    return family_variable(f, 0, name, &v, absent, NULL) ? -1 : v;
}

/* Fields without which the generic descriptor has nothing to go by.  A model without experts has none of theirs. */
static int generic_missing(const family *f, missing_list *l)
{
    static const struct {
        const char *variable, *what;
        int of; /* 1: of a model with experts, 2: of one without, 0: of both */
    } needed[] = {{"H", NULL, 0},
                  {"L", NULL, 0},
                  {"NH", NULL, 0},
                  {"V", NULL, 0},
                  {"FI", NULL, 2},
                  {"E", "an expert count", 1},
                  {"K", "experts per token", 1},
                  {"I", "an expert width", 1}};
    int none = 1, no_k;
    int has_experts = count_of(f, "E", &none) != 0 || (none && count_of(f, "K", &no_k) != 0);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        const json_t *d = json_object_get(json_object_get(f->descriptor, "vars"), needed[i].variable);
        if (needed[i].of && needed[i].of != (has_experts ? 1 : 2)) continue;
        if (count_of(f, needed[i].variable, &none) <= 0)
            add_missing(l, needed[i].what, json_string_value(json_array_get(json_object_get(d, "names"), 0)));
    }
    return l->n != 0;
}

static int choose_descriptor(family *f, fmt_error *e)
{
    const json_t *inner = nested(f->config);
    const json_t *places[] = {inner, f->config};
    const char *first = NULL;
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(places[i], "model_type");
        if (v && !json_is_null(v) && !json_is_string(v)) {
            char text[64];
            fmt_json_text(v, text, sizeof text);
            return fmt_fail(e, "%.300s: model_type is %s, a string is expected", f->file, text);
        }
        const char *type = json_string_value(v);
        if (!type) continue;
        if (!first) first = type;
        const family_text *t = text_of(type, NULL);
        if (!t) continue;
        f->model_type = type;
        f->name = t->name;
        f->text = inner ? inner : f->config;
        f->descriptor = parse(t, e);
        return f->descriptor ? 0 : -1;
    }
    missing_list missing = {{0}, 0};
    f->text = inner ? inner : f->config;
    f->model_type = first ? first : "";
    f->name = "generic";
    f->descriptor = parse(text_of(NULL, "generic"), e);
    if (!f->descriptor) return -1;
    if (!generic_missing(f, &missing)) return 0;
    if (!first)
        return fmt_fail(e, "%.200s: model_type is missing, and the fields do not decide without it: missing %s",
                        f->file, missing.text);
    return fmt_fail(e, "%.200s: model_type '%.60s' is not known, and the fields do not decide: missing %s", f->file,
                    first, missing.text);
}

int family_open(const json_t *config, const char *file, family **out, fmt_error *e)
{
    family *f = calloc(1, sizeof *f);
    if (!f) return fmt_fail(e, "%.300s: no memory for its family", file);
    f->config = config;
    f->file = file;
    int failed = choose_descriptor(f, e);
    if (!failed) failed = !(f->kinds = parse(text_of(NULL, "kinds"), e));
    if (!failed) failed = family_find_layers(f, e);
    if (failed) {
        family_close(f);
        return -1;
    }
    *out = f;
    return 0;
}

void family_close(family *f)
{
    if (!f) return;
    json_decref(f->descriptor);
    json_decref(f->kinds);
    free(f->mixers);
    free(f->is_moe);
    free(f);
}

const char *family_model_type(const family *f)
{
    return f->model_type;
}

const char *family_name(const family *f)
{
    return f->name;
}

int family_exact(const family *f)
{
    return json_is_true(json_object_get(f->descriptor, "exact"));
}

const json_t *family_text_config(const family *f)
{
    return f->text;
}

const json_t *family_config(const family *f)
{
    return f->config;
}

const json_t *family_block(const family *f)
{
    return json_object_get(f->descriptor, "block");
}

const json_t *family_descriptor(const family *f)
{
    return f->descriptor;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

typedef struct scope {
    const family *f;
    int32_t layer;
    const family_override *overrides;
    int depth;
} scope;

static int variable(const scope *s, const char *name, double *out, int *null, fmt_error *e);

static int variable_name(void *ctx, const char *name, double *out, fmt_error *e)
{
    return variable(ctx, name, out, NULL, e);
}

/* The layer's value in v, where a list has an entry for each of the layers; the last one stands for the model. */
static int entry_of(const scope *s, const char *name, const json_t *v, const json_t **out, fmt_error *e)
{
    size_t n = json_array_size(v);
    *out = v;
    if (!json_is_array(v)) return 0;
    if (!n || (s->layer >= 0 && s->layer < s->f->n_layers && n < (size_t)s->f->n_layers))
        return fmt_fail(e, "%.300s: %s has %zu entries, one for each of %d layers is expected", s->f->file, name, n,
                        s->f->n_layers);
    *out = json_array_get(v, s->layer >= 0 && (size_t)s->layer < n ? (size_t)s->layer : n - 1);
    return 0;
}

static int number_of(const scope *s, const char *name, const json_t *v, double *out, fmt_error *e)
{
    char text[96];
    if (json_is_boolean(v)) {
        *out = json_is_true(v);
        return 0;
    }
    if (json_is_number(v) && isfinite(json_number_value(v)) && fabs(json_number_value(v)) <= 0x1p53) {
        *out = json_number_value(v);
        return 0;
    }
    fmt_json_text(v, text, sizeof text);
    return fmt_fail(e, "%.300s: %s is %s, a number is expected", s->f->file, name, text);
}

/* A value of the descriptor itself: a number, a boolean or "=EXPRESSION". */
static int described(const scope *s, const char *name, const json_t *v, double *out, fmt_error *e)
{
    const char *text = json_string_value(v);
    if (!text) return number_of(s, name, v, out, e);
    scope inner = *s;
    inner.depth++;
    if (inner.depth > MAX_VARIABLE_DEPTH)
        return fmt_fail(e, "descriptor '%s': variable %s depends on itself", s->f->name, name);
    return expression_eval(text + 1, variable_name, &inner, out, e);
}

/* The first spelling that the file uses; of one quantity ("same") two must agree. */
static int spelled(const scope *s, const json_t *names, int same, const char **used, const json_t **out, int *seen,
                   fmt_error *e)
{
    size_t i;
    json_t *n;
    *out = NULL;
    *seen = 0;
    json_array_foreach((json_t *)(uintptr_t)names, i, n)
    {
        const char *name = json_string_value(n);
        const json_t *v = find_in(s->f->text, name);
        if (!v) v = find_in(s->f->config, name);
        if (!v) continue;
        *seen = 1;
        if (json_is_null(v)) continue;
        if (!*out) {
            *out = v;
            *used = name;
        } else if (same && !json_equal((json_t *)(uintptr_t)*out, (json_t *)(uintptr_t)v)) {
            char first[64], second[64];
            fmt_json_text(*out, first, sizeof first);
            fmt_json_text(v, second, sizeof second);
            return fmt_fail(e, "%.300s: %s is %s and %s is %s, equal values are expected", s->f->file, *used, first,
                            name, second);
        }
    }
    return 0;
}

static int variable(const scope *s, const char *name, double *out, int *null, fmt_error *e)
{
    const char *used = name;
    const json_t *d = json_object_get(json_object_get(s->f->descriptor, "vars"), name), *v;
    int seen;
    if (null) *null = 0;
    for (const family_override *o = s->overrides; o && o->name; o++)
        if (strcmp(o->name, name) == 0) {
            *out = o->value;
            return 0;
        }
    if (!d) {
        if (strcmp(name, "kinds") == 0) { /* how many layers a list or pattern names */
            *out = s->f->n_layers;
            return 0;
        }
        return fmt_fail(e, "descriptor '%s' has no variable %s", s->f->name, name);
    }
    if (spelled(s, json_object_get(d, "names"), json_is_true(json_object_get(d, "same")), &used, &v, &seen, e))
        return -1;
    if (json_is_true(json_object_get(d, "auto")) && json_is_string(v) && strcmp(json_string_value(v), "auto") == 0)
        v = NULL;
    if (entry_of(s, used, v, &v, e)) return -1;
    if (v && !json_is_null(v)) return number_of(s, used, v, out, e);
    if (seen && !json_is_true(json_object_get(d, "nullable")) && json_object_get(d, "null"))
        return described(s, name, json_object_get(d, "null"), out, e);
    v = json_object_get(d, "default");
    if ((seen && json_is_true(json_object_get(d, "nullable"))) || !v) {
        *out = 0;
        if (null) *null = 1;
        return 0;
    }
    return described(s, name, v, out, e);
}

int family_variable(const family *f, int32_t layer, const char *name, double *out, int *null, fmt_error *e)
{
    const scope s = {f, layer, NULL, 0};
    return variable(&s, name, out, null, e);
}

int family_eval(const family *f, int32_t layer, const family_override *overrides, const char *expression, double *out,
                fmt_error *e)
{
    scope s = {f, layer, overrides, 0};
    return expression_eval(expression, variable_name, &s, out, e);
}

/* The variable's default with the config's names in place of the variables, for messages. */
static void spell_out(const family *f, const char *name, char *out, size_t cap)
{
    const json_t *vars = json_object_get(f->descriptor, "vars");
    const char *at = json_string_value(json_object_get(json_object_get(vars, name), "default"));
    size_t n = 0;
    if (!at) {
        snprintf(out, cap, "%s", name);
        return;
    }
    for (at++; *at && n + 1 < cap;) {
        char word[16];
        size_t length = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
        snprintf(word, sizeof word, "%.*s", (int)(length ? length : 1), at);
        const json_t *names = json_object_get(json_object_get(vars, word), "names");
        const char *text = json_string_value(json_array_get(names, 0));
        int more = snprintf(out + n, cap - n, "%s", text ? text : word);
        n += more > 0 ? (size_t)more : 0;
        at += length ? length : 1;
    }
}

int family_int(const family *f, int32_t layer, const char *expression, int64_t low, int64_t high, int64_t *out,
               fmt_error *e)
{
    double v;
    const json_t *names = json_object_get(json_object_get(json_object_get(f->descriptor, "vars"), expression), "names");
    const char *what = json_string_value(json_array_get(names, 0)), *used = what;
    const json_t *found = NULL;
    const scope s = {f, layer, NULL, 0};
    int seen;
    if (family_eval(f, layer, NULL, expression, &v, e)) return -1;
    if (v == floor(v) && v >= (double)low && v <= (double)high) {
        *out = (int64_t)v;
        return 0;
    }
    if (!spelled(&s, names, 0, &used, &found, &seen, NULL) && used) what = used;
    if (!found && what)
        return fmt_fail(e, "%.300s: %s is missing, an integer from %" PRId64 " to %" PRId64 " is expected", f->file,
                        what, low, high);
    char formula[128];
    spell_out(f, expression, formula, sizeof formula);
    return fmt_fail(e, "%.300s: %s is %.15g, an integer from %" PRId64 " to %" PRId64 " is expected", f->file,
                    found ? what : formula, v, low, high);
}

int family_constant(const family *f, int32_t layer, const json_t *constant, double fallback, double *out, fmt_error *e)
{
    const scope s = {f, layer, NULL, 0};
    const char *name = json_string_value(json_array_get(constant, 0));
    const json_t *v = constant;
    if (name) {
        if (entry_of(&s, name, *name ? family_field(f, name) : NULL, &v, e)) return -1;
        if (!v || json_is_null(v)) v = json_array_get(constant, 1);
    }
    *out = fallback;
    if (!v || json_is_null(v)) return 0;
    return number_of(&s, name ? name : "a constant", v, out, e);
}
