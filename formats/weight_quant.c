/* weight_quant.c - owns the reading of quantization_config (and of modelopt's hf_quant_config.json): which weight format
 * each module has.  Knows methods and patterns, never a family. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "file.h"
#include "weight_format.h"

/* ---- patterns ----------------------------------------------------------------------------------------------- */

typedef enum pattern_kind { PATTERN_PARTS, PATTERN_GLOB, PATTERN_REGEX } pattern_kind;

struct weight_patterns {
    size_t n;
    int all; /* one of them names a class of layers, such as "Linear" */
    struct {
        pattern_kind kind;
        const char *text;
        pcre2_code *regex;
    } list[];
};

enum { REGEX_STEPS = 20000 }; /* a config may be anyone's: a pattern that takes longer does not match */

static void patterns_free(weight_patterns *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n; i++) pcre2_code_free(p->list[i].regex);
    free(p);
}

static pattern_kind kind_of(const char *text)
{
    return strncmp(text, "re:", 3) == 0 ? PATTERN_REGEX : strchr(text, '*') ? PATTERN_GLOB : PATTERN_PARTS;
}

/* '*' is any text; the pattern must end where the name or one of its parts does. */
static int glob(const char *p, const char *name)
{
    const char *star = NULL, *again = NULL;
    for (;;) {
        if (*p == '*') {
            star = p++;
            again = name;
        } else if (*p && *p == *name) {
            p++;
            name++;
        } else if (!*p && (!*name || *name == '.')) {
            return 1;
        } else if (star && *again) {
            p = star + 1;
            name = ++again;
        } else {
            return 0;
        }
    }
}

static int parts(const char *text, const char *name)
{
    size_t length = strlen(text);
    while (length && text[length - 1] == '.') length--;
    if (!length) return 0;
    for (const char *at = strstr(name, text); at; at = strstr(at + 1, text))
        if ((at == name || at[-1] == '.') && (!at[length] || at[length] == '.' || text[length] == '.')) return 1;
    return 0;
}

static pcre2_code *compile(const char *text)
{
    int code;
    PCRE2_SIZE at;
    return pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code, &at, NULL);
}

static int regex_matches(const pcre2_code *regex, const char *name)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    int found = 0;
    if (data && limits) {
        pcre2_set_match_limit(limits, REGEX_STEPS);
        found = pcre2_match(regex, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, limits) >= 0;
    }
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    return found;
}

static int matches(pattern_kind kind, const char *text, const pcre2_code *regex, const char *module)
{
    if (kind == PATTERN_PARTS) return parts(text, module);
    return kind == PATTERN_GLOB ? glob(text, module) : regex_matches(regex, module);
}

int weight_module_matches(const char *pattern, const char *module)
{
    pattern_kind kind = kind_of(pattern);
    pcre2_code *regex = kind == PATTERN_REGEX ? compile(pattern + 3) : NULL;
    if (kind == PATTERN_REGEX && !regex) return 0;
    int found = matches(kind, pattern, regex, module);
    pcre2_code_free(regex);
    return found;
}

static int patterns_match(const weight_patterns *p, const char *module)
{
    if (!p) return 0;
    if (p->all) return 1;
    for (size_t i = 0; i < p->n; i++)
        if (matches(p->list[i].kind, p->list[i].text, p->list[i].regex, module)) return 1;
    return 0;
}

typedef struct source {
    const char *file;
    fmt_error *e;
} source;

static int patterns_read(const source *s, const char *field, const json_t *list, weight_patterns **out)
{
    size_t n = json_array_size(list);
    *out = NULL;
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list))
        return fmt_fail(s->e, "%.300s: quantization_config.%s is no array, expected one of module names", s->file,
                        field);
    weight_patterns *p = calloc(1, sizeof *p + n * sizeof *p->list);
    if (!p) return fmt_fail(s->e, "%.300s: no memory for the %zu names in %s", s->file, n, field);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (!text) {
            patterns_free(p);
            return fmt_fail(s->e, "%.300s: quantization_config.%s[%zu] is no string, expected a module name", s->file,
                            field, i);
        }
        p->list[i].text = text;
        p->list[i].kind = kind_of(text);
        p->n = i + 1;
        if (strcmp(text, "Linear") == 0) p->all = 1;
        if (p->list[i].kind != PATTERN_REGEX) continue;
        p->list[i].regex = compile(text + 3);
        if (!p->list[i].regex) {
            patterns_free(p);
            return fmt_fail(s->e, "%.300s: quantization_config.%s has '%.100s', which is no regular expression",
                            s->file, field, text);
        }
    }
    *out = p;
    return 0;
}

/* ---- methods ------------------------------------------------------------------------------------------------ */

static const char *text_of(const json_t *o, const char *field)
{
    return json_string_value(json_object_get(o, field));
}

static int64_t number(const json_t *o, const char *field, int64_t fallback)
{
    const json_t *v = json_object_get(o, field);
    return json_is_integer(v) ? (int64_t)json_integer_value(v) : fallback;
}

static weight_format named(const char *name)
{
    return *weight_format_find(name, NULL);
}

static int group_of(const source *s, const json_t *o, int64_t fallback, uint32_t *out)
{
    int64_t group = number(o, "group_size", fallback);
    if (group == -1) group = 0; /* the whole row */
    if (group < 0 || group > 1 << 20)
        return fmt_fail(s->e, "%.300s: quantization_config has group_size %lld, expected -1 or 1 to 1048576", s->file,
                        (long long)group);
    *out = (uint32_t)group;
    return 0;
}

static int read_fp8(const source *s, const json_t *o, weight_quant *q)
{
    const json_t *block = json_object_get(o, "weight_block_size");
    q->linear = named("fp8");
    if (!block || json_is_null(block)) return 0;
    int64_t rows = json_integer_value(json_array_get(block, 0)), cols = json_integer_value(json_array_get(block, 1));
    if (json_array_size(block) != 2 || rows < 1 || cols < 1 || rows > 1 << 20 || cols > 1 << 20)
        return fmt_fail(s->e, "%.300s: quantization_config.weight_block_size is not two numbers from 1 to 1048576",
                        s->file);
    q->linear = named("fp8_block128");
    if (rows != 128 || cols != 128) q->linear.name = "fp8_block";
    q->linear.block_rows = (uint32_t)rows;
    q->linear.group = (uint32_t)cols;
    return 0;
}

/* GPTQ and AWQ: scale of 16 bits and a zero point a group. */
static int read_int(const source *s, const json_t *o, weight_quant *q)
{
    int64_t bits = number(o, "bits", number(o, "w_bit", 4));
    if (bits < 2 || bits > 8)
        return fmt_fail(s->e, "%.300s: quantization_config.bits is %lld, expected 2 to 8", s->file, (long long)bits);
    q->linear = named("int4");
    if (bits != 4) q->linear.name = bits == 8 ? "int8" : "int";
    q->linear.value_bits = (uint32_t)bits;
    q->linear.scale_bits = 16 + (uint32_t)bits;
    return group_of(s, o, 128, &q->linear.group);
}

static int read_bitsandbytes(const source *s, const json_t *o, weight_quant *q)
{
    (void)s;
    q->linear = named(json_is_true(json_object_get(o, "load_in_8bit")) ? "int8" : "nf4");
    return 0;
}

static int read_mxfp4(const source *s, const json_t *o, weight_quant *q)
{
    (void)s;
    (void)o;
    q->linear = named("mxfp4");
    q->experts_only = 1;
    return 0;
}

static int read_channel_fp8(const source *s, const json_t *o, weight_quant *q)
{
    (void)s;
    (void)o;
    q->linear = named("fp8_channel");
    return 0;
}

/* One group of compressed-tensors: its "weights" object. */
static int compressed_format(const source *s, const json_t *w, weight_format *out)
{
    const char *type = text_of(w, "type"), *strategy = text_of(w, "strategy");
    int64_t bits = number(w, "num_bits", 0), group = number(w, "group_size", 0);
    int is_float = type && strcmp(type, "float") == 0;
    const json_t *block = json_object_get(w, "block_structure");
    if (!strategy) strategy = group > 0 ? "group" : "channel";
    if (is_float && bits == 4) {
        *out = named(group == 32 ? "mxfp4" : "nvfp4");
        if (group > 0) out->group = (uint32_t)(group > 1 << 20 ? 1 << 20 : group);
    } else if (is_float && bits == 8 && strcmp(strategy, "block") == 0 && json_array_size(block) == 2) {
        weight_quant q = {0};
        json_t *as_fp8 = json_pack("{s:O}", "weight_block_size", (json_t *)(uintptr_t)block);
        int failed = !as_fp8 || read_fp8(s, as_fp8, &q);
        json_decref(as_fp8);
        if (failed) return -1;
        *out = q.linear;
    } else if (is_float && bits == 8 && group == 32) {
        *out = named("mxfp8");
    } else if (is_float && bits == 8) {
        *out = named(strcmp(strategy, "tensor") == 0 ? "fp8" : "fp8_channel");
    } else if (!is_float && bits >= 2 && bits <= 8) {
        *out = named(bits == 8 ? "int8" : "int4");
        out->value_bits = (uint32_t)bits;
        out->scale_bits = json_is_false(json_object_get(w, "symmetric")) ? 16 + (uint32_t)bits : 16;
        return group_of(s, w, 0, &out->group);
    } else {
        return fmt_fail(s->e,
                        "%.300s: a group of quantization_config.config_groups has weights of %lld bits and type "
                        "'%.30s', expected float of 4 or 8 bits or int of 2 to 8",
                        s->file, (long long)bits, type ? type : "none");
    }
    return 0;
}

static int read_compressed(const source *s, const json_t *o, weight_quant *q)
{
    const char *name;
    const json_t *group;
    const json_t *groups = json_object_get(o, "config_groups");
    if (!json_object_size(groups))
        return fmt_fail(s->e, "%.300s: quantization_config has no config_groups, compressed-tensors needs some",
                        s->file);
    json_object_foreach((json_t *)(uintptr_t)groups, name, group)
    {
        const json_t *w = json_object_get(group, "weights");
        if (!json_is_object(w)) continue; /* activations only */
        if (q->n_groups == WEIGHT_QUANT_GROUPS)
            return fmt_fail(s->e, "%.300s: quantization_config has more than the %d config_groups that are supported",
                            s->file, WEIGHT_QUANT_GROUPS);
        if (compressed_format(s, w, &q->groups[q->n_groups].format) ||
            patterns_read(s, "config_groups.targets", json_object_get(group, "targets"),
                          &q->groups[q->n_groups].targets))
            return -1;
        q->n_groups++;
    }
    q->linear = q->n_groups ? q->groups[0].format : q->plain;
    return 0;
}

static int modelopt_format(const source *s, const char *name, weight_format *out)
{
    static const struct {
        const char *algo, *format;
    } algos[] = {{"NVFP4", "nvfp4"},
                 {"NVFP4_AWQ", "nvfp4"},
                 {"W4A16_NVFP4", "nvfp4"},
                 {"FP8", "fp8"},
                 {"FP8_PER_CHANNEL_PER_TOKEN", "fp8_channel"},
                 {"FP8_PB_WO", "fp8_block128"},
                 {"W4A8_MXFP4_FP8", "mxfp4"},
                 {"MXFP4", "mxfp4"},
                 {"MXFP8", "mxfp8"},
                 {"W4A16_AWQ", "int4"},
                 {"W4A8_AWQ", "int4"},
                 {"INT8_SQ", "int8"},
                 {"W8A16", "int8"}};
    for (size_t i = 0; name && i < sizeof algos / sizeof *algos; i++)
        if (strcasecmp(name, algos[i].algo) == 0) {
            *out = named(algos[i].format);
            return 0;
        }
    return fmt_fail(s->e, "%.300s: quant_algo is '%.60s', expected NVFP4, FP8, MXFP4, MXFP8, W4A16_AWQ or INT8_SQ",
                    s->file, name ? name : "missing");
}

static int read_modelopt(const source *s, const json_t *o, weight_quant *q)
{
    const json_t *inner = json_object_get(o, "quantization");
    if (json_is_object(inner)) o = inner;
    const char *algo = text_of(o, "quant_algo"), *kv = text_of(o, "kv_cache_quant_algo");
    q->kv_fp8 |= kv && strcasecmp(kv, "FP8") == 0;
    q->layers = json_object_get(o, "quantized_layers");
    if (!json_object_size(q->layers)) q->layers = NULL;
    if (q->layers && (!algo || strcasecmp(algo, "MIXED_PRECISION") == 0)) {
        q->linear = q->plain;
        return 0;
    }
    if (!q->ignore && patterns_read(s, "exclude_modules", json_object_get(o, "exclude_modules"), &q->ignore)) return -1;
    return modelopt_format(s, algo, &q->linear);
}

/* Made by formats/gguf_config.c: the type of each matrix, in a file that has another for each. */
static int read_gguf(const source *s, const json_t *o, weight_quant *q)
{
    json_t *tensors = json_object_get(o, "tensors"), *type;
    const char *module;
    q->layers = tensors;
    q->linear = q->plain;
    if (!json_is_object(tensors)) return fmt_fail(s->e, "%.300s: quantization_config.tensors is no object", s->file);
    json_object_foreach(tensors, module, type)
    {
        const char *name = json_string_value(type);
        if (!name || !weight_format_find(name, NULL))
            return fmt_fail(s->e, "%.300s: %.120s has type %.40s, which is not supported", s->file, module, name ? name : "none");
    }
    return 0;
}

static const struct {
    const char *name;
    int (*read)(const source *s, const json_t *o, weight_quant *q);
} methods[] = {{"fp8", read_fp8},
               {"mxfp4", read_mxfp4},
               {"compressed-tensors", read_compressed},
               {"modelopt", read_modelopt},
               {"modelopt_fp4", read_modelopt},
               {"gptq", read_int},
               {"awq", read_int},
               {"auto-round", read_int},
               {"bitsandbytes", read_bitsandbytes},
               {"fbgemm_fp8", read_channel_fp8},
               {"gguf", read_gguf}};

/* ---- the config ----------------------------------------------------------------------------------------------- */

static const json_t *either(const json_t *outer, const json_t *text, const char *field)
{
    const json_t *v = json_object_get(outer, field);
    if (!v || json_is_null(v)) v = json_object_get(text, field);
    return v && !json_is_null(v) ? v : NULL;
}

static int read_plain(const source *s, const json_t *outer, const json_t *text, weight_quant *q)
{
    static const char *const fields[] = {"dtype", "torch_dtype"};
    q->plain = named("bf16");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = either(outer, text, fields[i]);
        if (!v) continue;
        const char *name = json_string_value(v);
        if (name && strncmp(name, "torch.", 6) == 0) name += 6;
        if (name && strcmp(name, "auto") == 0) continue;
        const weight_format *f = name ? weight_format_find(name, NULL) : NULL;
        if (!f || f->scale_bits) {
            char found[64];
            fmt_json_text(v, found, sizeof found);
            return fmt_fail(s->e, "%.300s: %s is %s, bfloat16, float16 or float32 is expected", s->file, fields[i], found);
        }
        q->plain = *f;
        return 0;
    }
    return 0;
}

static int read_method(const source *s, const json_t *o, weight_quant *q)
{
    static const char *const ignores[] = {"ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules",
                                          "llm_int8_skip_modules"};
    const char *method = text_of(o, "quant_method");
    if (!method) method = text_of(o, "quant_algo") ? "modelopt" : "missing";
    for (size_t i = 0; i < sizeof ignores / sizeof *ignores && !q->ignore; i++)
        if (patterns_read(s, ignores[i], json_object_get(o, ignores[i]), &q->ignore)) return -1;
    const json_t *kv = json_object_get(o, "kv_cache_scheme");
    q->kv_fp8 = json_is_object(kv) && number(kv, "num_bits", 0) == 8;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(method, methods[i].name) == 0) {
            snprintf(q->method, sizeof q->method, "%s", method);
            q->quantized = 1;
            return methods[i].read(s, o, q);
        }
    return fmt_fail(s->e,
                    "%.300s: quantization_config.quant_method is '%.60s', expected fp8, mxfp4, compressed-tensors, "
                    "modelopt, gptq, awq, auto-round, bitsandbytes or fbgemm_fp8",
                    s->file, method);
}

int weight_quant_read(const json_t *outer, const json_t *text, const json_t *hf, const char *file, weight_quant *out,
                       fmt_error *e)
{
    const source s = {file, e};
    const json_t *o = either(outer, text, "quantization_config");
    weight_quant q = {0};
    int failed = read_plain(&s, outer, text, &q);
    q.linear = q.experts = q.plain;
    snprintf(q.method, sizeof q.method, "none");
    if (!failed && o && !json_is_object(o))
        failed = fmt_fail(e, "%.300s: quantization_config is no object", file);
    else if (!failed && o)
        failed = read_method(&s, o, &q);
    else if (!failed && hf) {
        failed = read_modelopt(&s, hf, &q);
        q.quantized = 1;
        snprintf(q.method, sizeof q.method, "modelopt");
    }
    if (!failed) {
        const char *expert = json_string_value(either(outer, text, "expert_dtype"));
        fmt_error why;
        const weight_format *f = expert ? weight_format_find(expert, &why) : NULL;
        q.experts = f ? *f : q.linear;
        if (expert && !f) failed = fmt_fail(e, "%.200s: expert_dtype: %s", file, why.text);
        q.quantized |= f != NULL;
    }
    if (failed) {
        weight_quant_free(&q);
        return -1;
    }
    *out = q;
    return 0;
}

void weight_quant_free(weight_quant *q)
{
    patterns_free(q->ignore);
    for (size_t i = 0; i < WEIGHT_QUANT_GROUPS; i++) patterns_free(q->groups[i].targets);
    memset(q, 0, sizeof *q);
}

void weight_quant_force(weight_quant *q, const weight_format *f)
{
    q->linear = q->experts = *f;
    if (!f->scale_bits) { /* a plain format: nothing is quantised any more */
        q->plain = *f;
        q->quantized = 0;
    } else {
        q->quantized = 1;
    }
    for (size_t i = 0; i < q->n_groups; i++) q->groups[i].format = *f;
    q->layers = NULL;
}

/* Modelopt's table has one entry a module, as GGUF's has; an entry for one that holds it counts too. */
static weight_format of_layer(const weight_quant *q, const char *module)
{
    static const source silent = {"", NULL};
    weight_format found;
    char name[256];
    snprintf(name, sizeof name, "%s", module);
    for (;;) {
        const json_t *o = json_object_get(q->layers, name);
        const weight_format *f = json_is_string(o) ? weight_format_find(json_string_value(o), NULL) : NULL;
        if (json_is_string(o)) return f ? *f : q->plain;
        if (o) return modelopt_format(&silent, text_of(o, "quant_algo"), &found) ? q->plain : found;
        char *dot = strrchr(name, '.');
        if (!dot) return q->plain;
        *dot = '\0';
    }
}

weight_format weight_quant_of(const weight_quant *q, const char *module, int of_expert)
{
    if (!q->quantized || patterns_match(q->ignore, module) || (q->experts_only && !of_expert)) return q->plain;
    if (q->layers) return of_layer(q, module);
    for (size_t i = 0; i < q->n_groups; i++)
        if (!q->groups[i].targets || patterns_match(q->groups[i].targets, module)) return q->groups[i].format;
    if (q->n_groups) return q->plain;
    return of_expert ? q->experts : q->linear;
}
