/* gguf_config.c - a config.json in the form of transformers, made of a GGUF file's metadata and of what its tensors
 * show.  Ranges and contradictions are checked where every config.json is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_arch.h"

/* The document being made. */
typedef struct maker {
    const gguf *g;
    const gguf_arch *arch;
    json_t *root;
    fmt_error *e;
} maker;

/* Takes v over. */
static int set_in(const maker *m, json_t *o, const char *field, json_t *v)
{
    if (v && !json_object_set_new(o, field, v)) return 0;
    return fmt_fail(m->e, "%.300s: no memory for its metadata, or '%.60s' is no UTF-8", gguf_file(m->g), field);
}

static int set(const maker *m, const char *field, json_t *v)
{
    return set_in(m, m->root, field, v);
}

/* A tensor of the first layer that has it. */
static const gguf_tensor *layer_tensor(const maker *m, const char *name)
{
    int64_t layers = json_integer_value(json_object_get(m->root, "num_hidden_layers"));
    const gguf_tensor *t = NULL;
    for (int64_t i = 0; !t && i < layers && i < (int64_t)gguf_tensor_count(m->g); i++) {
        char whole[GGUF_KEY_CAP];
        snprintf(whole, sizeof whole, "blk.%lld.%s", (long long)i, name);
        t = gguf_tensor_find(m->g, whole);
    }
    return t;
}

/* ---- keys with a field of their own --------------------------------------------------------------------------- */

static int copy_int(const maker *m, const gguf_field *f, const char *key)
{
    int64_t v = 0;
    int there = 0;
    if (gguf_need_int(m->g, key, INT64_MIN, INT64_MAX, &v, f->optional || f->tensor ? &there : NULL, m->e)) return -1;
    if (!f->optional && !f->tensor) there = 1;
    if (!there && f->tensor) {
        const gguf_tensor *t = layer_tensor(m, f->tensor);
        if (!t || !t->rank)
            return fmt_fail(m->e, "%.300s: %s is missing, and no layer has a tensor '%s' to tell it", gguf_file(m->g),
                            key, f->tensor);
        v = t->shape[t->rank - 1];
        there = 1;
    }
    return there ? set(m, f->field, json_integer((json_int_t)v)) : 0;
}

static int copy_field(const maker *m, const gguf_field *f)
{
    char key[GGUF_KEY_CAP];
    double real = 0;
    int truth = 0, there = 1, *maybe = f->optional ? &there : NULL;
    gguf_key(m->arch, f->key, key);
    switch (f->type) {
    case GGUF_FIELD_REAL:
        if (gguf_need_real(m->g, key, &real, maybe, m->e)) return -1;
        return there ? set(m, f->field, json_real(real)) : 0;
    case GGUF_FIELD_BOOL:
        if (gguf_need_bool(m->g, key, &truth, maybe, m->e)) return -1;
        return there ? set(m, f->field, json_boolean(truth)) : 0;
    default:
        return copy_int(m, f, key);
    }
}

static int copy_fields(const maker *m, const gguf_field *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (copy_field(m, &list[i])) return -1;
    return 0;
}

/* ---- the router ----------------------------------------------------------------------------------------------- */

static int set_router(const maker *m)
{
    enum { SOFTMAX = 1, SIGMOID = 2 };
    char key[GGUF_KEY_CAP];
    int64_t score = SOFTMAX;
    int norm = m->arch->renormalizes, there = 0;
    gguf_key(m->arch, "expert_gating_func", key);
    if (gguf_need_int(m->g, key, SOFTMAX, m->arch->sigmoid_type ? SIGMOID : SOFTMAX, &score, &there, m->e)) return -1;
    const char *type = score == SIGMOID ? m->arch->sigmoid_type : m->arch->model_type;
    gguf_key(m->arch, "expert_weights_norm", key);
    if (gguf_need_bool(m->g, key, &norm, &there, m->e)) return -1;
    /* The softmax of deepseek_v2 has neither. */
    if (m->arch->sigmoid_type && score == SOFTMAX && (norm || layer_tensor(m, "exp_probs_b.bias")))
        return fmt_fail(m->e, "%.300s: its router has a softmax with %s, which no %s has", gguf_file(m->g),
                        norm ? "normalised weights" : "a bias for the choice", type);
    return set(m, "model_type", json_string(type)) || set(m, "norm_topk_prob", json_boolean(norm)) ? -1 : 0;
}

/* Groups are none where the file has none, whatever else a config.json without them means. */
static int set_groups(const maker *m)
{
    if (!m->arch->sigmoid_type) return 0;
    int64_t n = json_integer_value(json_object_get(m->root, "n_group"));
    if (n <= 1 && (set(m, "n_group", json_integer(1)) || set(m, "topk_group", json_integer(1)))) return -1;
    if (!json_object_get(m->root, "routed_scaling_factor") && set(m, "routed_scaling_factor", json_real(1))) return -1;
    return set(m, "topk_method", json_string(n > 1 ? "group_limited_greedy" : "greedy"));
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

static int set_rope(const maker *m)
{
    char key[GGUF_KEY_CAP];
    gguf_text type = {0};
    double factor = 1;
    int64_t turned = 0, head = json_integer_value(json_object_get(m->root, "head_dim"));
    int has_type = 0, has_factor = 0, has_count = 0;
    gguf_key(m->arch, "rope.scaling.type", key);
    if (gguf_need_text(m->g, key, &type, &has_type, m->e)) return -1;
    gguf_key(m->arch, "rope.scaling.factor", key);
    if (gguf_need_real(m->g, key, &factor, &has_factor, m->e)) return -1;
    gguf_key(m->arch, "rope.dimension_count", key);
    if (gguf_need_int(m->g, key, 1, INT32_MAX, &turned, &has_count, m->e)) return -1;
    if (has_count && head > 0 && turned != head && m->arch->whole &&
        set(m, "partial_rotary_factor", json_real((double)turned / (double)head)))
        return -1;
    if ((!has_type && factor == 1) || (has_type && gguf_text_is(type, "none"))) return 0;
    json_t *o = json_pack("{s:o, s:f}", "rope_type",
                          has_type ? json_stringn(type.at, type.bytes) : json_string("linear"), "factor", factor);
    return set(m, "rope_scaling", o);
}

/* Of multi-head latent attention: the lengths of a head before and after its values are absorbed have changed names. */
static int set_mla(const maker *m)
{
    char now[GGUF_KEY_CAP], before[GGUF_KEY_CAP];
    int64_t key = 0, value = 0, rope = json_integer_value(json_object_get(m->root, "qk_rope_head_dim"));
    if (!(m->arch->parts & GGUF_HAS_MLA)) return 0;
    gguf_key(m->arch, "attention.key_length_mla", now);
    gguf_key(m->arch, "attention.key_length", before);
    if (gguf_need_int(m->g, gguf_find(m->g, now) ? now : before, 1, INT32_MAX, &key, NULL, m->e)) return -1;
    gguf_key(m->arch, "attention.value_length_mla", now);
    gguf_key(m->arch, "attention.value_length", before);
    if (gguf_need_int(m->g, gguf_find(m->g, now) ? now : before, 1, INT32_MAX, &value, NULL, m->e)) return -1;
    if (!json_object_get(m->root, "q_lora_rank") && set(m, "q_lora_rank", json_null())) return -1;
    return set(m, "qk_nope_head_dim", json_integer((json_int_t)(key - rope))) ||
                   set(m, "v_head_dim", json_integer((json_int_t)value))
               ? -1
               : 0;
}

/* ---- what the tensors show ------------------------------------------------------------------------------------ */

static int set_shown(const maker *m)
{
    const gguf_tensor *embed = gguf_tensor_find(m->g, "token_embd.weight");
    int biased = layer_tensor(m, "attn_q.bias") != NULL;
    if (!embed || embed->rank != 2)
        return fmt_fail(m->e, "%.300s: has no tensor 'token_embd.weight' of two extents", gguf_file(m->g));
    return set(m, "vocab_size", json_integer((json_int_t)embed->shape[0])) ||
                   set(m, "tie_word_embeddings", json_boolean(!gguf_tensor_find(m->g, "output.weight"))) ||
                   set(m, "attention_bias", json_boolean(biased)) || set(m, "qkv_bias", json_boolean(biased)) ||
                   set(m, "use_sliding_window", json_boolean(json_object_get(m->root, "sliding_window") != NULL)) ||
                   set(m, "dtype", json_string("float32"))
               ? -1
               : 0;
}

static int set_dense_layers(const maker *m)
{
    int64_t layers = json_integer_value(json_object_get(m->root, "num_hidden_layers"));
    json_t *dense = json_array();
    int failed = !dense;
    /* Each layer has tensors of its own: a file without that many cannot have them. */
    for (int64_t i = 0; !failed && m->arch->dense_by_tensor && i < layers && i < (int64_t)gguf_tensor_count(m->g);
         i++) {
        char name[GGUF_KEY_CAP];
        snprintf(name, sizeof name, "blk.%lld.ffn_gate_inp.weight", (long long)i);
        if (!gguf_tensor_find(m->g, name)) failed = json_array_append_new(dense, json_integer((json_int_t)i));
    }
    if (failed) {
        json_decref(dense);
        dense = NULL;
    }
    return set(m, "mlp_only_layers", dense);
}

static int set_types(const maker *m)
{
    json_t *types = json_object();
    int failed = !types;
    for (size_t i = 0; !failed && i < gguf_tensor_count(m->g); i++) {
        const gguf_tensor *t = gguf_tensor_at(m->g, i);
        int32_t layer;
        const gguf_name *row = gguf_name_find(m->arch, t->name, &layer);
        const char *const names[] = {row ? row->name : NULL, row ? row->up : NULL};
        for (int k = 0; !failed && k < 2; k++) {
            char name[GGUF_MAX_NAME + 64];
            if (!names[k] || t->rank < 2 || t->kind->dtype == ST_F32) continue;
            size_t n = gguf_name_fill(m->arch, names[k], layer, 0, name, sizeof name);
            if (n > 7 && strcmp(name + n - 7, ".weight") == 0) name[n - 7] = '\0';
            failed = json_object_set_new(types, name, json_string(t->kind->name));
        }
    }
    if (!failed && !json_object_size(types)) {
        json_decref(types);
        return 0;
    }
    json_t *q = failed ? NULL : json_pack("{s:s, s:O}", "quant_method", "gguf", "tensors", types);
    json_decref(types);
    return set(m, "quantization_config", q);
}

/* ---- tokens --------------------------------------------------------------------------------------------------- */

static int set_tokens(const maker *m)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    int64_t id;
    int there = 0, failed = list ? 0 : fmt_fail(m->e, "%.300s: no memory for its end-of-text ids", gguf_file(m->g));
    for (size_t i = 0; !failed && i < sizeof ends / sizeof *ends; i++) {
        failed = gguf_need_int(m->g, ends[i], 0, INT32_MAX, &id, &there, m->e);
        if (!failed && there && json_array_append_new(list, json_integer((json_int_t)id)))
            failed = fmt_fail(m->e, "%.300s: no memory for its end-of-text ids", gguf_file(m->g));
    }
    if (failed) {
        json_decref(list);
        return -1;
    }
    if (set(m, "eos_token_id", list)) return -1;
    if (gguf_need_int(m->g, "tokenizer.ggml.bos_token_id", 0, INT32_MAX, &id, &there, m->e)) return -1;
    return there ? set(m, "bos_token_id", json_integer((json_int_t)id)) : 0;
}

static int make(const maker *m)
{
    return copy_fields(m, gguf_common_fields, gguf_n_common_fields) ||
                   copy_fields(m, m->arch->fields, m->arch->n_fields) || set_router(m) || set_groups(m) ||
                   set_rope(m) || set_mla(m) || set_shown(m) || set_dense_layers(m) || set_types(m) || set_tokens(m)
               ? -1
               : 0;
}

json_t *gguf_config(const char *file, fmt_error *e)
{
    gguf *g = NULL;
    if (gguf_open(file, &g, e)) return NULL;
    maker m = {g, gguf_arch_of(g, e), json_object(), e};
    int failed = !m.arch || (m.root ? make(&m) : fmt_fail(e, "%.300s: no memory for its metadata", file));
    gguf_close(g);
    if (!failed) return m.root;
    json_decref(m.root);
    return NULL;
}
