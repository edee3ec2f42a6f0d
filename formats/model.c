/* model.c - owns the reading of config.json into a model_config: types, ranges, defaults, contradictions.
 * What families differ in comes from family.h; must never ask which family it is. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "file.h"
#include "gguf.h"
#include "model_internal.h"

#define MAX_CONFIG (UINT64_C(16) << 20)

/* Names of one field in different releases of transformers, NULL after the last. */
enum { SPELLINGS = 2 };
typedef const char *spellings[SPELLINGS];

/* The document being read. */
typedef struct reader {
    const char *file;
    json_t *root;
    fmt_error *e;
} reader;

/* A field, or NULL when it is absent or null. */
static const json_t *field(const reader *r, const char *name)
{
    const json_t *v = name ? json_object_get(r->root, name) : NULL;
    return json_is_null(v) ? NULL : v;
}

static int wrong(const reader *r, const char *name, const json_t *found, const char *expected)
{
    char text[96];
    fmt_json_text(found, text, sizeof text);
    return fmt_fail(r->e, "%.300s: %s is %s, %s is expected", r->file, name, text, expected);
}

static int missing(const reader *r, const char *name, const char *expected)
{
    const char *state = json_object_get(r->root, name) ? "null" : "missing";
    return fmt_fail(r->e, "%.300s: %s is %s, %s is expected", r->file, name, state, expected);
}

/* The spelling that the file uses; the first one when it uses none.  Two spellings must agree. */
static int choose_spelling(const reader *r, const spellings names, const char **out)
{
    const char *chosen = NULL;
    for (int i = 0; i < SPELLINGS && names[i]; i++) {
        const json_t *v = field(r, names[i]);
        if (!v) continue;
        if (chosen && !json_equal(field(r, chosen), v)) {
            char first[64], second[64];
            fmt_json_text(field(r, chosen), first, sizeof first);
            fmt_json_text(v, second, sizeof second);
            return fmt_fail(r->e, "%.300s: %s is %s and %s is %s, equal values are expected", r->file, chosen, first,
                            names[i], second);
        }
        if (!chosen) chosen = names[i];
    }
    *out = chosen ? chosen : names[0];
    return 0;
}

/* An integer in [low, high]; fallback is taken when the field is absent, NULL means that it must be there. */
static int read_int(const reader *r, const char *name, int64_t low, int64_t high, const int32_t *fallback, int32_t *out)
{
    char expected[96];
    const json_t *v = field(r, name);
    snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, low, high);
    if (!v && !fallback) return missing(r, name, expected);
    if (v && (!json_is_integer(v) || json_integer_value(v) < low || json_integer_value(v) > high))
        return wrong(r, name, v, expected);
    *out = v ? (int32_t)json_integer_value(v) : *fallback;
    return 0;
}

static int read_bool(const reader *r, const char *name, int32_t fallback, int32_t *out)
{
    const json_t *v = field(r, name);
    if (v && !json_is_boolean(v)) return wrong(r, name, v, "true or false");
    *out = v ? json_is_true(v) : fallback;
    return 0;
}

static int read_positive(const reader *r, const char *name, double fallback, double high, double *out)
{
    char expected[64];
    const json_t *v = field(r, name);
    *out = v ? json_number_value(v) : fallback;
    if (!v || (json_is_number(v) && *out > 0 && *out <= high)) return 0;
    snprintf(expected, sizeof expected, "a number above 0 and at most %g", high);
    return wrong(r, name, v, expected);
}

/* ---- subjects ------------------------------------------------------------------------------------------ */

/* How matrices are stored; what is not supported must not run as if it were plain.  dir NULL: no other file says it. */
static int read_quantization(const reader *r, const char *dir, model_config *c)
{
    int absent = 0;
    if (dir && !field(r, "quantization_config")) {
        char *path = fmt_path_join(dir, "hf_quant_config.json", r->e);
        if (!path) return -1;
        c->quant_document = fmt_json_load(path, MAX_CONFIG, &absent, r->e);
        free(path);
        if (!c->quant_document && !absent) return -1;
    }
    if (weight_quant_read(r->root, family_text_config(c->family), c->quant_document, r->file, &c->quant, r->e)) return -1;
    return model_quant_check(c, r->e);
}

static int read_sizes(const reader *r, model_config *c)
{
    int32_t derived = 0;
    if (read_int(r, "num_hidden_layers", 1, INT32_MAX, NULL, &c->n_layers) ||
        read_int(r, "hidden_size", 1, INT32_MAX, NULL, &c->hidden) ||
        read_int(r, "vocab_size", 1, INT32_MAX, NULL, &c->vocab) ||
        read_int(r, "max_position_embeddings", 1, INT32_MAX, NULL, &c->max_position) ||
        read_int(r, "num_attention_heads", 1, INT32_MAX, NULL, &c->n_heads))
        return -1;
    /* null means one per head; an absent field has another default in each release, so it is asked for */
    if (!json_object_get(r->root, "num_key_value_heads"))
        return missing(r, "num_key_value_heads", "an integer that divides num_attention_heads");
    if (read_int(r, "num_key_value_heads", 1, INT32_MAX, &c->n_heads, &c->n_kv_heads)) return -1;
    if (c->n_heads % c->n_kv_heads)
        return fmt_fail(r->e, "%.300s: num_attention_heads is %d, a multiple of num_key_value_heads %d is expected",
                        r->file, c->n_heads, c->n_kv_heads);
    if (!field(r, "head_dim")) {
        if (c->hidden % c->n_heads)
            return fmt_fail(r->e,
                            "%.300s: hidden_size is %d and head_dim is absent, a multiple of num_attention_heads %d is "
                            "expected",
                            r->file, c->hidden, c->n_heads);
        derived = c->hidden / c->n_heads;
    }
    if (read_int(r, "head_dim", 1, INT32_MAX, &derived, &c->head_dim)) return -1;
    if (c->head_dim % 2)
        return fmt_fail(r->e, "%.300s: head_dim is %d, an even number is expected (rotary embedding turns pairs)",
                        r->file, c->head_dim);
    if ((int64_t)c->head_dim * c->n_heads > INT32_MAX)
        return fmt_fail(r->e, "%.300s: head_dim %d times num_attention_heads %d is %" PRId64 ", at most %d is expected",
                        r->file, c->head_dim, c->n_heads, (int64_t)c->head_dim * c->n_heads, INT32_MAX);
    return 0;
}

/* One description of the rotary embedding; what is not plain RoPE is refused by name. */
static int check_rope(const reader *r, const char *name)
{
    const json_t *v = field(r, name);
    if (!v) return 0;
    if (!json_is_object(v)) return wrong(r, name, v, "an object");
    const reader in = {r->file, (json_t *)v, r->e};
    const char *const keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const json_t *type = field(&in, keys[i]);
        if (!type || (json_is_string(type) && strcmp(json_string_value(type), "default") == 0)) continue;
        char text[64];
        fmt_json_text(type, text, sizeof text);
        return fmt_fail(r->e, "%.300s: %s.%s is %s, only \"default\" is supported", r->file, name, keys[i], text);
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        if (json_is_object(value))
            return fmt_fail(r->e, "%.300s: %s.%.60s is an object, one rotary embedding for all layers is expected",
                            r->file, name, key);
    }
    const json_t *part = field(&in, "partial_rotary_factor");
    if (part && json_number_value(part) != 1.0) return wrong(&in, "partial_rotary_factor", part, "1.0");
    return 0;
}

/* What the descriptor says of a decoder that the engine runs; NULL: it runs none of this family. */
static const json_t *engine_of(const model_config *c)
{
    return json_object_get(family_descriptor(c->family), "engine");
}

static int read_rope(const reader *r, model_config *c)
{
    double inner = 0;
    if (check_rope(r, "rope_scaling") || check_rope(r, "rope_parameters")) return -1;
    const json_t *part = field(r, "partial_rotary_factor");
    if (part && json_number_value(part) != 1.0) return wrong(r, "partial_rotary_factor", part, "1.0");
    if (read_positive(r, "rope_theta", json_number_value(json_object_get(engine_of(c), "rope_theta")), 1e18,
                      &c->rope_theta))
        return -1;

    const reader in = {r->file, (json_t *)field(r, "rope_parameters"), r->e};
    if (!field(&in, "rope_theta")) return 0;
    if (read_positive(&in, "rope_theta", 0, 1e18, &inner)) return -1;
    if (field(r, "rope_theta") && inner != c->rope_theta)
        return fmt_fail(r->e,
                        "%.300s: rope_theta is %g and rope_parameters.rope_theta is %g, equal values are expected",
                        r->file, c->rope_theta, inner);
    c->rope_theta = inner;
    return 0;
}

static int read_attention(const reader *r, model_config *c)
{
    const json_t *engine = engine_of(c);
    const char *window_switch = json_string_value(json_object_get(engine, "window_switch"));
    int32_t window_on = 1, none = 0;
    double eps = 0;
    if (read_rope(r, c) ||
        read_positive(r, "rms_norm_eps", json_number_value(json_object_get(engine, "rms_eps")), 1, &eps) ||
        read_bool(r, "tie_word_embeddings", 0, &c->tie_embeddings) ||
        read_int(r, "sliding_window", 0, INT32_MAX, &none, &c->sliding_window))
        return -1;
    c->rms_eps = (float)eps;
    c->qk_norm = json_is_true(json_object_get(engine, "qk_norm"));
    if (json_object_get(json_object_get(family_descriptor(c->family), "vars"), "AB") &&
        read_bool(r, "attention_bias", 0, &c->attention_bias))
        return -1;
    if (window_switch && read_bool(r, window_switch, 0, &window_on)) return -1;
    if (!window_on) c->sliding_window = 0;
    return 0;
}

static int read_dtype(const reader *r, model_config *c)
{
    static const spellings names = {"dtype", "torch_dtype"};
    static const struct {
        const char *name;
        int32_t dtype;
    } dtypes[] = {{"bfloat16", MOEWE_DTYPE_BF16}, {"float16", MOEWE_DTYPE_F16}, {"float32", MOEWE_DTYPE_F32}};
    const char *name = NULL;
    if (choose_spelling(r, names, &name)) return -1;
    const json_t *v = field(r, name);
    if (!v) return 0;
    for (size_t i = 0; json_is_string(v) && i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(json_string_value(v), dtypes[i].name) != 0) continue;
        c->weight_dtype = dtypes[i].dtype;
        return 0;
    }
    return wrong(r, name, v, "bfloat16, float16 or float32");
}

/* The layers' kinds, and the config of the first that has experts. */
static int read_layers(const reader *r, model_config *c)
{
    int32_t first = -1, dense = 0;
    int64_t width;
    c->layer_is_moe = calloc((size_t)c->n_layers, 1);
    if (!c->layer_is_moe) return fmt_fail(r->e, "%.300s: no memory for the kinds of %d layers", r->file, c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) {
        c->layer_is_moe[l] = (uint8_t)family_is_moe(c->family, l);
        if (c->layer_is_moe[l] && first < 0) first = l;
        if (!c->layer_is_moe[l]) dense = 1;
    }
    if (c->engine && dense) {
        const json_t *parts = json_object_get(family_descriptor(c->family), "components");
        int64_t experts;
        if (!json_array_size(json_object_get(parts, "dense")) && /* a family without dense layers */
            family_int(c->family, 0, "E", 1, INT32_MAX, &experts, r->e))
            return -1;
        if (family_int(c->family, 0, "FI", 1, INT32_MAX, &width, r->e)) return -1;
        c->dense_inter = (int32_t)width;
    }
    if (first >= 0) return model_layer_moe(c, first, &c->moe, r->e);
    c->moe.hidden = c->hidden;
    return 0;
}

static int check_token(const reader *r, const char *name, const json_t *v, int32_t vocab, int32_t *out)
{
    char expected[80];
    snprintf(expected, sizeof expected, "a token id from 0 to %d (vocab_size - 1)", vocab - 1);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
        return wrong(r, name, v, expected);
    *out = (int32_t)json_integer_value(v);
    return 0;
}

/* eos_token_id is null, one id or an array of ids; ids that are known already are not added again. */
static int read_eos(const reader *r, model_config *c)
{
    const json_t *v = field(r, "eos_token_id");
    size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;
    for (size_t i = 0; i < n; i++) {
        int32_t id = 0, known = 0;
        if (check_token(r, "eos_token_id", json_is_array(v) ? json_array_get(v, i) : v, c->vocab, &id)) return -1;
        for (int32_t k = 0; k < c->n_eos; k++) known |= c->eos_ids[k] == id;
        if (known) continue;
        if (c->n_eos == MODEL_MAX_EOS)
            return fmt_fail(r->e, "%.300s: eos_token_id brings more than the %d end-of-text ids that are supported",
                            r->file, MODEL_MAX_EOS);
        c->eos_ids[c->n_eos++] = id;
    }
    return 0;
}

/* Of a family whose decoder the engine does not run only the MoE blocks matter. */
static int read_sizes_leniently(const reader *r, model_config *c)
{
    int64_t hidden, vocab;
    if (family_int(c->family, -1, "H", 1, INT32_MAX, &hidden, r->e) ||
        family_int(c->family, -1, "V", 1, INT32_MAX, &vocab, r->e))
        return -1;
    c->n_layers = family_layers(c->family);
    c->hidden = (int32_t)hidden;
    c->vocab = (int32_t)vocab;
    c->bos_id = -1;
    return 0;
}

static int read_config(const reader *whole, const char *dir, model_config *c)
{
    if (family_open(c->document, c->path, &c->family, whole->e)) return -1;
    const reader text = {whole->file, (json_t *)(uintptr_t)family_text_config(c->family), whole->e}, *r = &text;
    snprintf(c->model_type, sizeof c->model_type, "%s", family_model_type(c->family));
    c->engine = engine_of(c) != NULL;
    if (read_quantization(whole, dir, c)) return -1;
    if (!c->engine) return read_sizes_leniently(r, c) || read_layers(r, c) ? -1 : 0;
    if (read_sizes(r, c) || read_attention(r, c) || read_dtype(r, c) || read_layers(r, c)) return -1;
    const json_t *bos = field(r, "bos_token_id");
    c->bos_id = -1;
    if (bos && check_token(r, "bos_token_id", bos, c->vocab, &c->bos_id)) return -1;
    return read_eos(r, c);
}

/* ---- files ------------------------------------------------------------------------------------------------ */

static int read_generation_config(const char *dir, model_config *c, fmt_error *e)
{
    int absent = 0;
    char *path = fmt_path_join(dir, "generation_config.json", e);
    if (!path) return -1;
    const reader r = {path, fmt_json_load(path, MAX_CONFIG, &absent, e), e};
    int failed = r.root ? read_eos(&r, c) : absent ? 0 : -1;
    json_decref(r.root);
    free(path);
    return failed;
}

/* The config.json and its directory, allocated. */
static int find_config(const char *path, char **file, char **dir, fmt_error *e)
{
    struct stat st;
    if (stat(path, &st) != 0) return fmt_fail(e, "%.400s: cannot be examined: %s", path, strerror(errno));
    const char *slash = strrchr(path, '/');
    if (S_ISDIR(st.st_mode)) {
        *dir = strdup(path);
        *file = fmt_path_join(path, "config.json", e);
    } else {
        *dir = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
        *file = strdup(path);
    }
    return *dir && *file ? 0 : fmt_fail(e, "%.400s: no memory to read it", path);
}

int model_config_load(const char *path, model_config *out, fmt_error *e)
{
    char *file = NULL, *dir = NULL;
    model_config c;
    int failed = -1;

    memset(&c, 0, sizeof c);
    MOEWE_INIT(c.moe);
    if (gguf_locate(path, &file, e) == 0 && (file || find_config(path, &file, &dir, e) == 0)) {
        const reader r = {file, dir ? fmt_json_load(file, MAX_CONFIG, NULL, e) : gguf_config(file, e), e};
        snprintf(c.file, sizeof c.file, "%.*s", (int)sizeof c.file - 1, file);
        c.document = r.root;
        c.path = file;
        file = NULL;
        if (r.root) failed = read_config(&r, dir, &c);
        if (!failed && dir && c.engine) failed = read_generation_config(dir, &c, e);
    }
    free(file);
    free(dir);
    if (failed) {
        model_config_free(&c);
        return -1;
    }
    *out = c;
    return 0;
}

void model_config_free(model_config *c)
{
    if (!c) return;
    family_close(c->family);
    weight_quant_free(&c->quant);
    json_decref(c->quant_document);
    json_decref(c->document);
    free(c->path);
    free(c->layer_is_moe);
    c->family = NULL;
    c->document = c->quant_document = NULL;
    c->path = NULL;
    c->layer_is_moe = NULL;
}
