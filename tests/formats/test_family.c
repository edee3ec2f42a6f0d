/* test_family.c - the descriptors: each is well formed and its expressions can be evaluated; the lists of tensors that
 * follow from config.json alone are those of the checkpoints; configs that contradict themselves are refused. */
#include <inttypes.h>
#include <math.h>

#include <jansson.h>

#include "files.h"
#include "formats/family.h"
#include "formats/family_data.h"
#include "formats/model.h"
#include "formats/safetensors.h"

#define VECTORS MOEWE_SOURCE_DIR "/tests/data/vectors/"

static json_t *parse(const family_text *t)
{
    json_error_t at;
    json_t *d = json_loadb((const char *)t->text, t->bytes, JSON_REJECT_DUPLICATES, &at);
    if (!d) fail_msg("%s: line %d: %s", t->name, at.line, at.text);
    return d;
}

static json_t *parse_kinds(void)
{
    for (size_t i = 0; i < family_text_count; i++)
        if (strcmp(family_texts[i].name, "kinds") == 0) return parse(&family_texts[i]);
    fail_msg("kinds.json is not compiled in");
    return NULL;
}

/* ---- form ------------------------------------------------------------------------------------------------------- */

static int among(const char *s, const char *words)
{
    size_t n = s ? strlen(s) : 0;
    for (const char *at = words; n && (at = strstr(at, s)); at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return 1;
    return 0;
}

static void check_word(const char *name, const char *what, const char *s, const char *words)
{
    if (!among(s, words)) fail_msg("%s: %s is %s, one of %s is expected", name, what, s ? s : "no text", words);
}

static void check_keys(const char *name, const char *what, const json_t *o, const char *words)
{
    const char *key;
    json_t *v;
    if (!json_is_object(o)) fail_msg("%s: %s is no object", name, what);
    json_object_foreach((json_t *)(uintptr_t)o, key, v) check_word(name, what, key, words);
}

static const char *text(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* Rules nest as fallbacks and in "all_of". */
static void check_rule(const char *name, const json_t *rule)
{
    const json_t *v;
    check_word(name, "rule", text(rule, "rule"),
               "all all_of alternate csa_hca flag_list freq_offset index_list interval kind list multiples period range "
               "skip_first step");
    if (among(text(rule, "rule"), "flag_list index_list list interval step")) assert_non_null(text(rule, "field"));
    if (among(text(rule, "rule"), "alternate")) assert_true(json_array_size(json_object_get(rule, "values")) > 0);
    if ((v = json_object_get(rule, "fallback")) && !json_is_null(v)) check_rule(name, v);
    for (size_t i = 0; i < json_array_size(json_object_get(rule, "rules")); i++)
        check_rule(name, json_array_get(json_object_get(rule, "rules"), i));
}

static void check_strings(const char *name, const char *what, const json_t *list)
{
    if (!json_array_size(list)) fail_msg("%s: %s is no list with something in it", name, what);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i))) fail_msg("%s: %s[%zu] is no text", name, what, i);
}

static void check_vars(const char *name, const json_t *vars)
{
    static const char *const needed[] = {"H", "V", "L", "NH", "NKV", "HD", "E", "K", "I", "FI", "SI", "N0", "TIE"};
    const char *key;
    json_t *v;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!json_object_get(vars, needed[i])) fail_msg("%s: no variable %s", name, needed[i]);
    json_object_foreach((json_t *)(uintptr_t)vars, key, v)
    {
        const json_t *standard = json_object_get(v, "default");
        check_keys(name, key, v, "names default null nullable same auto");
        if (json_object_get(v, "names")) check_strings(name, key, json_object_get(v, "names"));
        if (!json_object_get(v, "names") && !standard) fail_msg("%s: %s has neither names nor a default", name, key);
        if (json_is_string(standard) && json_string_value(standard)[0] != '=')
            fail_msg("%s: the default of %s is %s", name, key, json_string_value(standard));
        if (standard && !json_is_string(standard) && !json_is_number(standard) && !json_is_boolean(standard))
            fail_msg("%s: the default of %s is of no known type", name, key);
    }
}

static void check_block(const char *name, const json_t *b)
{
    const json_t *forms = json_object_get(b, "experts");
    check_keys(name, "block", b,
               "module disk router router_bias router_transposed router_input score score_param score_switch logit_softcap "
               "top_k select_bias select_bias_if_there select_bias_said_by bias_when bias_leading_one groups renorm scale "
               "expert_scale weight_on hash latent experts expert_bias gate_up_count act shared shared_act out_bias "
               "out_norm in_norm combine unknown");
    if (!text(b, "module") || !strstr(text(b, "module"), "{i}")) fail_msg("%s: module has no {i}", name);
    check_strings(name, "disk", json_object_get(b, "disk"));
    check_strings(name, "router", json_object_get(b, "router"));
    check_word(name, "score", text(b, "score"), "softmax softmax_topk sigmoid sqrtsoftplus sparsemixer");
    check_word(name, "renorm", text(json_object_get(b, "renorm"), "mode"), "always never field pnorm");
    check_word(name, "act", text(json_object_get(b, "act"), "kind"), "swiglu swiglu_oai geglu_tanh relu relu2");
    if (json_object_get(b, "groups")) check_word(name, "rank", text(json_object_get(b, "groups"), "rank"), "sum2 max");
    if (json_object_get(b, "weight_on")) check_word(name, "weight_on", text(b, "weight_on"), "input");
    if (!json_array_size(forms)) fail_msg("%s: no form of experts", name);
    for (size_t i = 0; i < json_array_size(forms); i++) {
        const json_t *f = json_array_get(forms, i);
        check_keys(name, "experts", f, "form order transposed gate up gate_up down");
        check_word(name, "form", text(f, "form"), "per_expert stacked stacked_separate flat");
        assert_non_null(text(f, "down"));
        if (strcmp(text(f, "form"), "stacked") == 0) {
            assert_non_null(text(f, "gate_up"));
            check_word(name, "order", text(f, "order"), "halves interleaved none");
        } else
            assert_non_null(text(f, "up"));
        if (strcmp(text(f, "form"), "per_expert") == 0)
            for (const char *const *k = (const char *const[]){"gate", "up", "down", NULL}; *k; k++)
                if (text(f, *k) && !strstr(text(f, *k), "{e}")) fail_msg("%s: %s has no {e}", name, text(f, *k));
    }
}

static void check_map(const char *name, const json_t *mixers, const json_t *map, const json_t *parts, const json_t *kinds)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, key, v)
    {
        const char *kind = json_string_value(v);
        int alone = json_is_true(json_object_get(mixers, "exclusive")) && among(kind, "moe dense");
        if (!json_object_get(parts, kind)) fail_msg("%s: kind %s has no tensors", name, kind);
        if (!alone && !json_object_get(kinds, kind)) fail_msg("%s: kind %s is not in kinds.json", name, kind);
    }
}

static void check_components(const char *name, const json_t *items)
{
    if (!json_is_array(items)) fail_msg("%s: a list of tensors is missing", name);
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i), *condition = json_array_get(item, 2);
        if (!json_is_string(json_array_get(item, 0))) fail_msg("%s: a tensor without a name", name);
        check_strings(name, json_string_value(json_array_get(item, 0)), json_array_get(item, 1));
        assert_true(json_array_size(json_array_get(item, 1)) <= FAMILY_MAX_RANK);
        assert_true(!condition || json_is_string(condition));
    }
}

static void test_form(void **state)
{
    json_t *kinds = parse_kinds(), *seen = json_object(), *v;
    const char *key;
    size_t families = 0;
    (void)state;
    json_object_foreach(kinds, key, v) assert_non_null(text(v, "kv"));
    for (size_t i = 0; i < family_text_count; i++) {
        const char *name = family_texts[i].name, *type = family_texts[i].model_type;
        if (strcmp(name, "kinds") == 0) continue;
        json_t *d = parse(&family_texts[i]);
        const json_t *types = json_object_get(d, "model_types"), *parts = json_object_get(d, "components"),
                     *mixers = json_object_get(d, "mixers"), *layers = json_object_get(d, "moe_layers");
        check_keys(name, "descriptor", d,
                   "model_types exact unsupported nesting prefixes layer_word vars block moe_layers mixers components "
                   "engine kv_repeat");
        int listed = 0;
        for (size_t k = 0; k < json_array_size(types); k++)
            listed |= type && strcmp(json_string_value(json_array_get(types, k)), type) == 0;
        assert_int_equal(listed, strcmp(name, "generic") != 0);
        if (type && json_object_get(seen, type)) fail_msg("%s is described twice", type);
        if (type) assert_int_equal(json_object_set_new(seen, type, json_true()), 0);
        check_strings(name, "prefixes", json_object_get(d, "prefixes"));
        check_vars(name, json_object_get(d, "vars"));
        check_block(name, json_object_get(d, "block"));
        if (!json_is_string(layers)) check_rule(name, layers);
        else assert_string_equal(json_string_value(layers), "all");
        check_keys(name, "mixers", mixers, "field map field2 pattern one_based default exclusive");
        check_rule(name, json_object_get(mixers, "default"));
        check_map(name, mixers, json_object_get(mixers, "map"), json_object_get(parts, "mixer"), kinds);
        check_map(name, mixers, json_object_get(json_object_get(mixers, "pattern"), "map"),
                  json_object_get(parts, "mixer"), kinds);
        check_map(name, mixers, json_object_get(json_object_get(mixers, "field2"), "map"),
                  json_object_get(parts, "mixer"), kinds);
        check_components(name, json_object_get(parts, "top"));
        check_components(name, json_object_get(parts, "layer"));
        check_components(name, json_object_get(parts, "dense"));
        json_object_foreach(json_object_get(parts, "mixer"), key, v) check_components(name, v);
        json_decref(d);
        families++;
    }
    assert_int_equal(families, json_object_size(seen) + 1); /* and the generic one */
    assert_true(json_object_size(seen) >= 83); /* the model_types of MoE models in transformers 5.17 */
    json_decref(seen);
    json_decref(kinds);
}

/* ---- expressions ---------------------------------------------------------------------------------------------------- */

static void evaluate(const family *f, int32_t layer, const char *expression)
{
    fmt_error e = {""};
    double v = 0;
    if (family_eval(f, layer, NULL, expression, &v, &e)) fail_msg("%s: %s: %s", family_model_type(f), expression, e.text);
    if (!isfinite(v)) fail_msg("%s: %s is not finite", family_model_type(f), expression);
}

/* Items whose condition does not hold have dimensions of what is not there. */
static void evaluate_items(const family *f, const json_t *items)
{
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i), *dims = json_array_get(item, 1);
        const char *condition = json_string_value(json_array_get(item, 2));
        if (condition) evaluate(f, 0, condition);
        for (size_t d = 0; d < json_array_size(dims); d++) evaluate(f, 0, json_string_value(json_array_get(dims, d)));
    }
}

/* The smallest config.json of a model_type: where the configuration class has no default, or none that is a model. */
static json_t *smallest(const char *model_type)
{
    json_t *c = json_pack("{s:s}", "model_type", model_type);
    assert_non_null(c);
    if (strcmp(model_type, "nemotron_h") == 0)
        json_object_set_new(c, "hybrid_override_pattern", json_string("ME*-"));
    if (strcmp(model_type, "dots1") == 0) json_object_set_new(c, "n_routed_experts", json_integer(128));
    if (strcmp(model_type, "gemma4") == 0 || strcmp(model_type, "gemma4_text") == 0 ||
        strncmp(model_type, "diffusion_gemma", 15) == 0)
        json_object_set_new(c, "num_experts", json_integer(128));
    if (strcmp(model_type, "gemma4") == 0 || strcmp(model_type, "gemma4_text") == 0 ||
        strncmp(model_type, "diffusion_gemma", 15) == 0) {
        json_object_set_new(c, "top_k_experts", json_integer(8));
        json_object_set_new(c, "moe_intermediate_size", json_integer(704));
    }
    return c;
}

typedef struct counted {
    const char *type;
    int partly; /* a family that is not described in full: what it lacks may have no size */
    int64_t elements;
} counted;

static int count_elements(void *ctx, const family_tensor *t)
{
    counted *c = ctx;
    int64_t n = t->count;
    assert_true(t->rank >= 1 && t->rank <= FAMILY_MAX_RANK && t->count >= 1 && t->name);
    for (int32_t i = 0; i < t->rank; i++) {
        if (t->dims[i] < (c->partly ? 0 : 1)) fail_msg("%s: %s has a dimension of %" PRId64, c->type, t->name, t->dims[i]);
        n *= t->dims[i];
    }
    c->elements += n;
    return 0;
}

static void test_defaults(void **state)
{
    (void)state;
    for (size_t i = 0; i < family_text_count; i++) {
        const char *type = family_texts[i].model_type, *key;
        fmt_error e = {""};
        family *f = NULL;
        json_t *v;
        int64_t value = 0, moe_layers = 0;
        counted count = {type, 0, 0};
        if (!type) continue;
        json_t *c = smallest(type);
        if (family_open(c, "config.json", &f, &e)) fail_msg("%s: %s", type, e.text);
        assert_string_equal(family_model_type(f), type);
        assert_string_equal(family_name(f), family_texts[i].name);
        count.partly = json_object_get(family_descriptor(f), "unsupported") != NULL;
        json_object_foreach(json_object_get(family_descriptor(f), "vars"), key, v) evaluate(f, 0, key);
        const json_t *parts = json_object_get(family_descriptor(f), "components"), *block = family_block(f);
        evaluate_items(f, json_object_get(parts, "top"));
        evaluate_items(f, json_object_get(parts, "layer"));
        evaluate_items(f, json_object_get(parts, "dense"));
        json_object_foreach(json_object_get(parts, "mixer"), key, v) evaluate_items(f, v);
        if (json_object_get(block, "shared")) evaluate(f, 0, text(json_object_get(block, "shared"), "width"));
        if (json_object_get(block, "latent")) evaluate(f, 0, text(json_object_get(block, "latent"), "size"));
        if (text(block, "top_k")) evaluate(f, 0, text(block, "top_k"));
        if (text(block, "gate_up_count")) evaluate(f, 0, text(block, "gate_up_count"));
        for (int32_t l = -1; l < family_layers(f); l++) {
            if (family_tensors(f, l, NULL, count_elements, &count, &e)) fail_msg("%s: layer %d: %s", type, l, e.text);
            if (l < 0) continue;
            const json_t *kind = family_kind(f, l), *states = json_object_get(kind, "state");
            if (kind) evaluate(f, l, text(kind, "kv"));
            for (size_t k = 0; k < json_array_size(states); k++)
                evaluate(f, l, json_string_value(json_array_get(json_array_get(states, k), 1)));
            moe_layers += family_is_moe(f, l);
        }
        if (!moe_layers) fail_msg("%s: no layer has experts", type);
        assert_true(count.elements > 1000000);
        assert_int_equal(family_int(f, 0, "H", 1, 1 << 20, &value, &e), 0);
        family_close(f);
        json_decref(c);
    }
}

/* ---- tensors against checkpoints --------------------------------------------------------------------------------------- */

typedef struct comparison {
    const family *f;
    const st_store *s;
    const char *folder;
    int32_t layer;
    int64_t elements, tensors; /* as the family says */
    int64_t found;             /* tensors of the file with that name and shape */
} comparison;

/* Replaces {e}. */
static void numbered(const char *template, int64_t n, char *out, size_t cap)
{
    const char *hole = strstr(template, "{e}");
    if (hole) snprintf(out, cap, "%.*s%" PRId64 "%s", (int)(hole - template), template, n, hole + 3);
    else snprintf(out, cap, "%s", template);
}

/* The tensor under any of the family's prefixes and places of the block. */
static const st_tensor *look_up(const comparison *c, const family_tensor *t, const char *rest)
{
    const json_t *prefixes = json_object_get(family_descriptor(c->f), "prefixes"),
                 *disks = json_object_get(family_block(c->f), "disk");
    const char *layer_word = text(family_descriptor(c->f), "layer_word");
    char name[256];
    if (t->part == FAMILY_TOP) {
        const char *first = json_string_value(json_array_get(prefixes, 0));
        size_t n = strlen(first);
        const st_tensor *found = st_find(c->s, rest);
        for (size_t p = 0; !found && p < json_array_size(prefixes); p++) {
            int within = strncmp(rest, first, n) == 0;
            snprintf(name, sizeof name, "%s%s", json_string_value(json_array_get(prefixes, p)), rest + (within ? n : 0));
            found = st_find(c->s, name);
        }
        return found;
    }
    for (size_t p = 0; p < json_array_size(prefixes); p++)
        for (size_t d = 0; d < json_array_size(disks); d++) {
            int within = t->part == FAMILY_MOE && strncmp(rest, "../", 3) != 0;
            snprintf(name, sizeof name, "%s%s.%d.%s%s", json_string_value(json_array_get(prefixes, p)),
                     layer_word ? layer_word : "layers", (int)c->layer,
                     within ? json_string_value(json_array_get(disks, d)) : "",
                     strncmp(rest, "../", 3) == 0 ? rest + 3 : rest);
            const st_tensor *found = st_find(c->s, name);
            if (found) return found;
        }
    return NULL;
}

static int compare_tensor(void *ctx, const family_tensor *t)
{
    comparison *c = ctx;
    int64_t each = 1;
    for (int32_t i = 0; i < t->rank; i++) each *= t->dims[i];
    c->elements += each * t->count;
    c->tensors += t->count;
    for (int64_t k = 0; k < t->count; k++) {
        char rest[128];
        numbered(t->name, k, rest, sizeof rest);
        const st_tensor *found = look_up(c, t, rest);
        if (!found) continue;
        /* [1, E] where the list has [E] */
        int32_t skip = found->rank == t->rank + 1 && found->shape[0] == 1;
        int same = found->rank - skip == t->rank;
        for (int32_t i = 0; same && i < t->rank; i++) same = found->shape[skip + i] == t->dims[i];
        if (!same) fail_msg("%s: the shape of %s is not that of config.json", c->folder, found->name);
        c->found++;
    }
    return 0;
}

/* Numbers of elements as Python's json and struct modules count them in the headers of the files. */
static const struct {
    const char *folder;
    int64_t elements;
    int spelled; /* experts in another form than the list's: only their elements count */
} checkpoints[] = {
    {"aria", 365888, 0},          {"deepseek_v2", 172992, 0},   {"deepseek_v3", 163784, 0},
    {"deepseek_v4", 1541577, 0},  {"dots1", 156552, 0},         {"ernie4_5_moe", 149320, 0},
    {"glm4_moe", 156488, 0},      {"glm_moe_dsa", 168200, 0},   {"gpt_oss", 308440, 0},
    {"granitemoe", 304448, 0},    {"granitemoeshared", 325952, 0}, {"hunyuan_v1_moe", 335232, 0},
    {"jamba", 400776, 0},         {"lfm2_moe", 130952, 0},      {"llama4", 335168, 0},
    {"longcat_flash", 356696, 0}, {"minimax_m2", 304656, 0},    {"minimax_m3_vl", 326032, 0},
    {"mixtral", 304448, 0},       {"nemotron_h", 97140, 0},     {"olmoe", 304640, 0},
    {"phimoe", 304768, 0},        {"qwen2_moe", 228032, 0},     {"qwen3_5_moe", 237048, 1},
    {"qwen3_moe", 206208, 0},     {"qwen3_next", 237048, 0},
};

static void test_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof checkpoints / sizeof checkpoints[0]; i++) {
        char path[512];
        fmt_error e = {""};
        st_store *s = NULL;
        family *f = NULL;
        int64_t elements = 0;
        snprintf(path, sizeof path, VECTORS "%s/config.json", checkpoints[i].folder);
        json_t *config = json_load_file(path, 0, NULL);
        assert_non_null(config);
        if (family_open(config, path, &f, &e)) fail_msg("%s", e.text);
        assert_string_equal(family_name(f), checkpoints[i].folder);
        assert_int_equal(family_exact(f), 1);
        snprintf(path, sizeof path, VECTORS "%s", checkpoints[i].folder);
        if (st_open(path, &s, &e)) fail_msg("%s", e.text);
        comparison c = {.f = f, .s = s, .folder = checkpoints[i].folder};
        for (c.layer = -1; c.layer < family_layers(f); c.layer++)
            if (family_tensors(f, c.layer, NULL, compare_tensor, &c, &e)) fail_msg("%s: %s", c.folder, e.text);
        for (size_t k = 0; k < st_count(s); k++) {
            const st_tensor *t = st_at(s, k);
            int64_t n = 1;
            for (int32_t d = 0; d < t->rank; d++) n *= t->shape[d];
            elements += n;
        }
        assert_int_equal(elements, checkpoints[i].elements);
        assert_int_equal(c.elements, checkpoints[i].elements);
        if (!checkpoints[i].spelled) {
            assert_int_equal(c.found, c.tensors);
            assert_int_equal(c.found, st_count(s));
        }
        st_close(s);
        family_close(f);
        json_decref(config);
    }
}

/* ---- configs that lie ------------------------------------------------------------------------------------------------ */

/* The folder's config.json becomes the family's with the fields of patch, in the object of the language model; a
 * field whose value is "-" is taken out. */
static void put_mutation(const char *folder, const char *patch)
{
    char path[512];
    const char *key;
    json_t *value;
    snprintf(path, sizeof path, VECTORS "%s/config.json", folder);
    json_t *config = json_load_file(path, 0, NULL), *changes = json_loads(patch, 0, NULL);
    json_t *inner = json_object_get(config, "text_config");
    assert_non_null(config);
    if (!changes) fail_msg("the test's patch is not JSON: %s", patch);
    if (!inner) inner = config;
    json_object_foreach(changes, key, value)
    {
        const char *word = json_string_value(value);
        if (word && strcmp(word, "-") == 0) json_object_del(inner, key);
        else assert_int_equal(json_object_set(inner, key, value), 0);
    }
    assert_int_equal(json_dump_file(config, in_folder("config.json"), 0), 0);
    json_decref(changes);
    json_decref(config);
}

static void test_refused(void **state)
{
    static const struct {
        const char *folder, *patch, *words[3];
    } rows[] = {
        {"hunyuan_v1_moe", "{\"num_experts\":[8]}", {"num_experts has 1 entries", "each of 2 layers"}},
        {"hunyuan_v1_moe", "{\"moe_topk\":[]}", {"moe_topk has 0 entries", "each of 2 layers"}},
        {"hunyuan_v1_moe", "{\"moe_topk\":[9,3]}", {"moe_topk is 9", "from 1 to 8"}},
        {"hunyuan_v1_moe", "{\"moe_topk\":[3,9]}", {"moe_topk is 9", "from 1 to 8"}}, /* of layer 1 */
        {"hunyuan_v1_moe", "{\"moe_topk\":[3,\"3\"]}", {"moe_topk is \"3\"", "number"}},
        {"glm_moe_dsa", "{\"mlp_layer_types\":[\"sparse\"]}", {"mlp_layer_types has 1 entries", "each of 2 layers"}},
        {"llama4", "{\"moe_layers\":3}", {"moe_layers is 3", "array"}},
        {"llama4", "{\"moe_layers\":[0,2]}", {"moe_layers[1] is 2", "0 to 1"}},
        {"llama4", "{\"layer_types\":[\"chunked_attention\"]}", {"layer_types has 1 entries", "each of 2 layers"}},
        {"llama4", "{\"layer_types\":[\"x\",\"y\"]}", {"layer_types", "\"x\"", "not known"}},
        {"qwen3_next", "{\"num_experts\":\"8\"}", {"num_experts is \"8\"", "number"}},
        {"qwen3_next", "{\"num_experts_per_tok\":9}", {"num_experts_per_tok is 9", "from 1 to 8"}},
        {"nemotron_h", "{\"layers_block_type\":[\"mamba\",\"mo\"]}", {"layers_block_type", "\"mo\"", "not known"}},
        {"nemotron_h",
         "{\"layers_block_type\":\"-\",\"hybrid_override_pattern\":\"MX\"}",
         {"hybrid_override_pattern has 'X'", "layer 1"}},
        {"deepseek_v3", "{\"n_group\":3}", {"n_group is 3", "divisor of the 8 experts"}},
        {"deepseek_v3", "{\"n_group\":2.5}", {"n_group is 2.5", "divisor of the 8 experts"}},
        {"deepseek_v3", "{\"n_group\":16}", {"n_group is 16", "divisor of the 8 experts"}},
        {"deepseek_v3", "{\"n_group\":\"4\"}", {"n_group is \"4\"", "number"}},
        {"deepseek_v3", "{\"topk_group\":5}", {"topk_group is 5", "1 to n_group (4)"}},
        {"deepseek_v3", "{\"topk_group\":0}", {"topk_group is 0", "1 to n_group (4)"}},
        {"deepseek_v3", "{\"topk_group\":1}", {"topk_group is 1 groups of 2 experts", "the 3 experts of a token"}},
        {"deepseek_v3", "{\"num_experts_per_tok\":9}", {"num_experts_per_tok is 9", "from 1 to 8"}},
        {"deepseek_v3", "{\"num_experts_per_tok\":0}", {"num_experts_per_tok is 0", "from 1 to 8"}},
        {"deepseek_v3", "{\"first_k_dense_replace\":\"one\"}", {"first_k_dense_replace is \"one\"", "integer"}},
        {"deepseek_v3", "{\"routed_scaling_factor\":\"big\"}", {"routed_scaling_factor is \"big\"", "number"}},
        {"deepseek_v3", "{\"norm_topk_prob\":\"yes\"}", {"norm_topk_prob is \"yes\"", "true or false"}},
        {"deepseek_v3", "{\"hidden_act\":\"mish\"}", {"hidden_act is 'mish'", "silu"}},
        {"deepseek_v3", "{\"hidden_act\":[\"silu\"]}", {"hidden_act is [\"silu\"]", "activation"}},
        {"deepseek_v3", "{\"n_shared_experts\":-1}", {"moe_intermediate_size*n_shared_experts is -48", "from 0"}},
        {"deepseek_v3", "{\"n_routed_experts\":-3}", {"n_routed_experts is -3", "from 0"}},
        {"deepseek_v3", "{\"moe_intermediate_size\":0}", {"moe_intermediate_size is 0", "from 1"}},
        {"deepseek_v3", "{\"hidden_size\":1e30}", {"hidden_size is 1e30", "number"}},
        {"deepseek_v3", "{\"hidden_size\":64.5}", {"hidden_size is 64.5", "integer"}},
        {"deepseek_v3", "{\"num_hidden_layers\":70000}", {"num_hidden_layers is 70000", "65536"}},
        {"deepseek_v2", "{\"topk_method\":\"noaux\"}", {"topk_method is \"noaux\"", "'group_limited_greedy' or 'greedy'"}},
        {"dots1", "{\"n_routed_experts\":\"-\"}", {"n_routed_experts is missing", "from 1"}},
        {"longcat_flash", "{\"zero_expert_num\":-1}", {"zero_expert_num is -1", "from 0"}},
        {"longcat_flash", "{\"moe_topk\":13}", {"moe_topk is 13", "from 1 to 12"}}, /* 8 experts and 4 identities */
        {"jamba", "{\"expert_layer_period\":0}", {"expert_layer_period is 0", "from 1"}},
        {"jamba", "{\"expert_layer_offset\":0.5}", {"expert_layer_offset is 0.5", "integer"}},
        {"ernie4_5_moe", "{\"moe_layer_interval\":0}", {"moe_layer_interval is 0", "from 1"}},
        {"ernie4_5_moe", "{\"moe_layer_start_index\":\"x\"}", {"moe_layer_start_index is \"x\"", "number"}},
        {"deepseek_v4", "{\"num_hash_layers\":\"all\"}", {"num_hash_layers is \"all\"", "integer"}},
        {"deepseek_v4", "{\"swiglu_limit\":\"x\"}", {"swiglu_limit is \"x\"", "number"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        model_config c;
        moewe_config moe;
        fmt_error e = {""};
        put_mutation(rows[i].folder, rows[i].patch);
        int failed = model_config_load(in_folder(""), &c, &e);
        if (!failed) {
            for (int32_t l = 0; !failed && l < c.n_layers; l++)
                if (c.layer_is_moe[l]) failed = model_layer_moe(&c, l, &moe, &e);
            model_config_free(&c);
        }
        if (!failed) fail_msg("accepted: %s with %s", rows[i].folder, rows[i].patch);
        assert_mentions(e.text, (const char *[]){in_folder("config.json"), rows[i].words[0],
                                                 rows[i].words[1] ? rows[i].words[1] : "", rows[i].words[2], NULL});
    }
    empty_folder();
}

/* The parts of a family that cannot be run are said when somebody tries, not when its config is read. */
static void test_unsupported(void **state)
{
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < family_text_count; i++) {
        const char *type = family_texts[i].model_type;
        fmt_error e = {""};
        model_config c;
        if (!type) continue;
        json_t *d = parse(&family_texts[i]), *config = smallest(type);
        const char *why = text(d, "unsupported");
        assert_int_equal(json_dump_file(config, in_folder("config.json"), 0), 0);
        if (why) {
            assert_int_equal(model_config_load(in_folder(""), &c, &e), -1);
            assert_mentions(e.text, (const char *[]){in_folder("config.json"), type, "planned but not run", why, NULL});
            n++;
        }
        json_decref(config);
        json_decref(d);
    }
    assert_true(n >= 6);
    empty_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_form), cmocka_unit_test(test_defaults),
                                       cmocka_unit_test(test_tensors), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_unsupported)};
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
