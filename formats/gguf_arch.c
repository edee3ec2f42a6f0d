/* gguf_arch.c - owns the tables of architectures, tensor names and metadata keys, and the translation of names both
 * ways.  Never looks at a tensor's bytes. */
#include <stdio.h>
#include <string.h>

#include "gguf_arch.h"

/* ---- tables --------------------------------------------------------------------------------------------------- */

static const gguf_name of_model[] = {
    {"token_embd.weight", "model.embed_tokens.weight", NULL, GGUF_AS_IT_IS, 0},
    {"output_norm.weight", "model.norm.weight", NULL, GGUF_AS_IT_IS, 0},
    {"output.weight", "lm_head.weight", NULL, GGUF_AS_IT_IS, 0},
};

static const gguf_name of_layer[] = {
    {"attn_norm.weight", "input_layernorm.weight", NULL, GGUF_AS_IT_IS, 0},
    {"ffn_norm.weight", "post_attention_layernorm.weight", NULL, GGUF_AS_IT_IS, 0},
    {"attn_q.weight", "self_attn.q_proj.weight", NULL, GGUF_AS_IT_IS, 0},
    {"attn_k.weight", "self_attn.k_proj.weight", NULL, GGUF_AS_IT_IS, 0},
    {"attn_v.weight", "self_attn.v_proj.weight", NULL, GGUF_AS_IT_IS, 0},
    {"attn_output.weight", "self_attn.o_proj.weight", NULL, GGUF_AS_IT_IS, 0},
    {"attn_q.bias", "self_attn.q_proj.bias", NULL, GGUF_AS_IT_IS, 0},
    {"attn_k.bias", "self_attn.k_proj.bias", NULL, GGUF_AS_IT_IS, 0},
    {"attn_v.bias", "self_attn.v_proj.bias", NULL, GGUF_AS_IT_IS, 0},
    {"attn_output.bias", "self_attn.o_proj.bias", NULL, GGUF_AS_IT_IS, 0},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", NULL, GGUF_AS_IT_IS, 0},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", NULL, GGUF_AS_IT_IS, 0},
    {"attn_q_a.weight", "self_attn.q_a_proj.weight", NULL, GGUF_AS_IT_IS, GGUF_HAS_MLA},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight", NULL, GGUF_AS_IT_IS, GGUF_HAS_MLA},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", NULL, GGUF_AS_IT_IS, GGUF_HAS_MLA},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", NULL, GGUF_AS_IT_IS, GGUF_HAS_MLA},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", NULL, GGUF_AS_IT_IS, GGUF_HAS_MLA},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight", NULL, GGUF_AS_IT_IS, GGUF_HAS_MLA},
    {"ffn_gate.weight", "mlp.gate_proj.weight", NULL, GGUF_AS_IT_IS, 0},
    {"ffn_up.weight", "mlp.up_proj.weight", NULL, GGUF_AS_IT_IS, 0},
    {"ffn_down.weight", "mlp.down_proj.weight", NULL, GGUF_AS_IT_IS, 0},
    {"ffn_gate_inp.weight", "mlp.gate.weight", NULL, GGUF_AS_IT_IS, 0},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", NULL, GGUF_AS_IT_IS, GGUF_HAS_SELECT_BIAS},
    {"ffn_gate_exps.weight", "mlp.experts.{e}.gate_proj.weight", NULL, GGUF_EXPERTS, 0},
    {"ffn_up_exps.weight", "mlp.experts.{e}.up_proj.weight", NULL, GGUF_EXPERTS, 0},
    {"ffn_down_exps.weight", "mlp.experts.{e}.down_proj.weight", NULL, GGUF_EXPERTS, 0},
    {"ffn_gate_up_exps.weight", "mlp.experts.{e}.gate_proj.weight", "mlp.experts.{e}.up_proj.weight", GGUF_GATE_UP, 0},
    {"ffn_gate_shexp.weight", "mlp.{s}.gate_proj.weight", NULL, GGUF_AS_IT_IS, GGUF_HAS_SHARED},
    {"ffn_up_shexp.weight", "mlp.{s}.up_proj.weight", NULL, GGUF_AS_IT_IS, GGUF_HAS_SHARED},
    {"ffn_down_shexp.weight", "mlp.{s}.down_proj.weight", NULL, GGUF_AS_IT_IS, GGUF_HAS_SHARED},
    {"ffn_gate_inp_shexp.weight", "mlp.{s}_gate.weight", NULL, GGUF_AS_ROW, GGUF_HAS_SHARED},
};

#define INT  GGUF_FIELD_INT
#define REAL GGUF_FIELD_REAL

const gguf_field gguf_common_fields[] = {
    {"block_count", "num_hidden_layers", INT, 0, NULL},
    {"context_length", "max_position_embeddings", INT, 0, NULL},
    {"embedding_length", "hidden_size", INT, 0, NULL},
    {"attention.head_count", "num_attention_heads", INT, 0, NULL},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", REAL, 0, NULL},
    {"rope.freq_base", "rope_theta", REAL, 1, NULL},
    {"expert_used_count", "num_experts_per_tok", INT, 0, NULL},
};
const size_t gguf_n_common_fields = sizeof gguf_common_fields / sizeof *gguf_common_fields;

static const gguf_field qwen3moe[] = {
    {"attention.head_count_kv", "num_key_value_heads", INT, 0, NULL},
    {"attention.key_length", "head_dim", INT, 1, NULL},
    {"attention.sliding_window", "sliding_window", INT, 1, NULL},
    {"feed_forward_length", "intermediate_size", INT, 1, NULL},
    {"expert_count", "num_experts", INT, 0, NULL},
    {"expert_feed_forward_length", "moe_intermediate_size", INT, 0, "ffn_down_exps.weight"},
};

static const gguf_field qwen2moe[] = {
    {"attention.head_count_kv", "num_key_value_heads", INT, 0, NULL},
    {"feed_forward_length", "intermediate_size", INT, 1, NULL},
    {"expert_count", "num_experts", INT, 0, NULL},
    {"expert_feed_forward_length", "moe_intermediate_size", INT, 0, "ffn_down_exps.weight"},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", INT, 0, "ffn_down_shexp.weight"},
};

static const gguf_field olmoe[] = {
    {"attention.head_count_kv", "num_key_value_heads", INT, 0, NULL},
    {"expert_count", "num_experts", INT, 0, NULL},
    {"feed_forward_length", "intermediate_size", INT, 0, NULL},
};

static const gguf_field deepseek2[] = {
    {"attention.q_lora_rank", "q_lora_rank", INT, 1, NULL},
    {"attention.kv_lora_rank", "kv_lora_rank", INT, 0, NULL},
    {"rope.dimension_count", "qk_rope_head_dim", INT, 0, NULL},
    {"feed_forward_length", "intermediate_size", INT, 0, NULL},
    {"leading_dense_block_count", "first_k_dense_replace", INT, 0, NULL},
    {"expert_count", "n_routed_experts", INT, 0, NULL},
    {"expert_shared_count", "n_shared_experts", INT, 0, NULL},
    {"expert_feed_forward_length", "moe_intermediate_size", INT, 0, "ffn_down_exps.weight"},
    {"expert_weights_scale", "routed_scaling_factor", REAL, 1, NULL},
    {"expert_group_count", "n_group", INT, 1, NULL},
    {"expert_group_used_count", "topk_group", INT, 1, NULL},
};

#undef INT
#undef REAL
#define FIELDS(list) list, sizeof list / sizeof *list

static const gguf_arch archs[] = {
    {"qwen3moe", "qwen3_moe", NULL, "", 0, 1, 1, 1, FIELDS(qwen3moe)},
    {"qwen2moe", "qwen2_moe", NULL, "shared_expert", GGUF_HAS_SHARED, 0, 0, 1, FIELDS(qwen2moe)},
    {"olmoe", "olmoe", NULL, "", 0, 0, 0, 0, FIELDS(olmoe)},
    {"deepseek2", "deepseek_v2", "deepseek_v3", "shared_experts", GGUF_HAS_SHARED | GGUF_HAS_SELECT_BIAS | GGUF_HAS_MLA,
     0, 0, 0, FIELDS(deepseek2)},
};

enum { N_ARCHS = sizeof archs / sizeof *archs };

/* ---- look up -------------------------------------------------------------------------------------------------- */

const gguf_arch *gguf_arch_of(const gguf *g, fmt_error *e)
{
    gguf_text name;
    char known[128] = "";
    size_t at = 0;
    if (gguf_need_text(g, "general.architecture", &name, NULL, e)) return NULL;
    for (size_t i = 0; i < N_ARCHS; i++) {
        if (gguf_text_is(name, archs[i].arch)) return &archs[i];
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s",
                               i == 0            ? ""
                               : i + 1 < N_ARCHS ? ", "
                                                 : " and ",
                               archs[i].arch);
    }
    fmt_fail(e, "%.300s: general.architecture is '%.*s', supported are %s", gguf_file(g),
             name.bytes > 60 ? 60 : (int)name.bytes, name.at, known);
    return NULL;
}

const gguf_arch *gguf_arch_by_type(const char *model_type)
{
    for (size_t i = 0; i < N_ARCHS; i++)
        if (strcmp(archs[i].model_type, model_type) == 0 ||
            (archs[i].sigmoid_type && strcmp(archs[i].sigmoid_type, model_type) == 0))
            return &archs[i];
    return NULL;
}

/* A number without sign or leading zeros and what follows it; -1 when there is none. */
static int32_t number_at(const char **at, const char *end)
{
    const char *p = *at;
    int32_t n = 0;
    while (p < end && *p >= '0' && *p <= '9' && p - *at < 9) n = n * 10 + (*p++ - '0');
    if (p == *at || (**at == '0' && p - *at > 1)) return -1;
    *at = p;
    return n;
}

static const gguf_name *find(const gguf_arch *a, const gguf_name *rows, size_t n, gguf_text name)
{
    for (size_t i = 0; i < n; i++)
        if (gguf_text_is(name, rows[i].gguf)) return (rows[i].needs & ~a->parts) ? NULL : &rows[i];
    return NULL;
}

const gguf_name *gguf_name_find(const gguf_arch *a, gguf_text name, int32_t *layer)
{
    static const char block[] = "blk.";
    const char *at = name.at + sizeof block - 1, *end = name.at + name.bytes;
    *layer = -1;
    if (name.bytes < sizeof block || memcmp(name.at, block, sizeof block - 1) != 0)
        return find(a, of_model, sizeof of_model / sizeof *of_model, name);
    *layer = number_at(&at, end);
    if (*layer < 0 || at == end || *at != '.') return NULL;
    const gguf_text rest = {at + 1, (size_t)(end - at - 1)};
    return find(a, of_layer, sizeof of_layer / sizeof *of_layer, rest);
}

size_t gguf_name_fill(const gguf_arch *a, const char *name, int32_t layer, int64_t expert, char *buf, size_t cap)
{
    const char *hole = strchr(name, '{');
    char prefix[40] = "", inner[40] = "";
    if (layer >= 0) snprintf(prefix, sizeof prefix, "model.layers.%d.", (int)layer);
    if (!hole) return (size_t)snprintf(buf, cap, "%s%s", prefix, name);
    if (hole[1] == 'e')
        snprintf(inner, sizeof inner, "%lld", (long long)expert);
    else
        snprintf(inner, sizeof inner, "%s", a->shared);
    return (size_t)snprintf(buf, cap, "%s%.*s%s%s", prefix, (int)(hole - name), name, inner, hole + 3);
}

void gguf_key(const gguf_arch *a, const char *key, char buf[GGUF_KEY_CAP])
{
    snprintf(buf, GGUF_KEY_CAP, "%s.%s", a->arch, key);
}

/* ---- the other way -------------------------------------------------------------------------------------------- */

/* Whether name is the template, and the number that stands for its {e}. */
static int matches(const gguf_arch *a, const char *template, const char *name, int32_t *expert)
{
    const char *hole = strchr(template, '{'), *end = name + strlen(name);
    *expert = -1;
    if (!hole) return strcmp(template, name) == 0;
    size_t before = (size_t)(hole - template), word = strlen(a->shared);
    if (strncmp(template, name, before) != 0) return 0;
    name += before;
    if (hole[1] == 'e') {
        *expert = number_at(&name, end);
        return *expert >= 0 && strcmp(name, hole + 3) == 0;
    }
    return word && strncmp(name, a->shared, word) == 0 && strcmp(name + word, hole + 3) == 0;
}

int gguf_name_of(const char *model_type, const char *name, char *buf, size_t cap, int32_t *expert)
{
    static const char layers[] = "model.layers.";
    const gguf_arch *a = gguf_arch_by_type(model_type);
    const char *at = name + sizeof layers - 1;
    int in_layer = strncmp(name, layers, sizeof layers - 1) == 0;
    int32_t layer = in_layer ? number_at(&at, name + strlen(name)) : -1;
    if (!a || (in_layer && (layer < 0 || *at != '.'))) return -1;
    const gguf_name *rows = in_layer ? of_layer : of_model;
    size_t n = in_layer ? sizeof of_layer / sizeof *of_layer : sizeof of_model / sizeof *of_model;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].shape == GGUF_GATE_UP || (rows[i].needs & ~a->parts) ||
            !matches(a, rows[i].name, in_layer ? at + 1 : name, expert))
            continue;
        int length = in_layer ? snprintf(buf, cap, "blk.%d.%s", (int)layer, rows[i].gguf)
                              : snprintf(buf, cap, "%s", rows[i].gguf);
        return length >= 0 && (size_t)length < cap ? 0 : -1;
    }
    return -1;
}
