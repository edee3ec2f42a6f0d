/* families.c - owns what is known about each model family: one row each.  Holds data only; the code that reads
 * the rows must not ask which family it has. */
#include "families.h"

/* The decoder around the MoE blocks as the Llama line names it. */
#define LLAMA_ATTENTION                                                                                                \
    [MODEL_EMBED] = "model.embed_tokens.weight", [MODEL_FINAL_NORM] = "model.norm.weight",                             \
    [MODEL_LM_HEAD] = "lm_head.weight", [MODEL_ATTN_NORM] = "model.layers.{L}.input_layernorm.weight",                 \
    [MODEL_MLP_NORM] = "model.layers.{L}.post_attention_layernorm.weight",                                             \
    [MODEL_Q] = "model.layers.{L}.self_attn.q_proj.weight", [MODEL_K] = "model.layers.{L}.self_attn.k_proj.weight",    \
    [MODEL_V] = "model.layers.{L}.self_attn.v_proj.weight", [MODEL_O] = "model.layers.{L}.self_attn.o_proj.weight",    \
    [MODEL_Q_BIAS] = "model.layers.{L}.self_attn.q_proj.bias",                                                         \
    [MODEL_K_BIAS] = "model.layers.{L}.self_attn.k_proj.bias",                                                         \
    [MODEL_V_BIAS] = "model.layers.{L}.self_attn.v_proj.bias",                                                         \
    [MODEL_O_BIAS] = "model.layers.{L}.self_attn.o_proj.bias"

/* clang-format off */
#define LLAMA_QK_NORM                                                                                                  \
    [MODEL_Q_NORM] = "model.layers.{L}.self_attn.q_norm.weight",                                                       \
    [MODEL_K_NORM] = "model.layers.{L}.self_attn.k_norm.weight"
/* clang-format on */

#define LLAMA_DENSE_MLP                                                                                                \
    [MODEL_DENSE_GATE] = "model.layers.{L}.mlp.gate_proj.weight",                                                      \
    [MODEL_DENSE_UP] = "model.layers.{L}.mlp.up_proj.weight",                                                          \
    [MODEL_DENSE_DOWN] = "model.layers.{L}.mlp.down_proj.weight"

const model_family model_families[] = {
    {
        .model_type = "mixtral",
        .n_experts = {"num_local_experts", "num_experts"},
        .top_k = {"num_experts_per_tok"},
        .expert_inter = {"intermediate_size"},
        .renormalize_default = 1,
        .rope_theta_default = 1e6,
        .rms_eps_default = 1e-5,
        .score = MOEWE_SCORE_SOFTMAX,
        .module = "model.layers.{L}.mlp",
        .prefix = "model.layers.{L}.block_sparse_moe.",
        .router = "gate.weight",
        .expert_gate = "experts.{E}.w1.weight",
        .expert_up = "experts.{E}.w3.weight",
        .expert_down = "experts.{E}.w2.weight",
        .part = {LLAMA_ATTENTION},
    },
    {
        .model_type = "qwen3_moe",
        .n_experts = {"num_experts", "num_local_experts"},
        .top_k = {"num_experts_per_tok"},
        .expert_inter = {"moe_intermediate_size"},
        .dense_inter = {"intermediate_size"},
        .dense_list = "mlp_only_layers",
        .moe_step = "decoder_sparse_step",
        .renormalize = "norm_topk_prob",
        .attention_bias = "attention_bias",
        .window_switch = "use_sliding_window",
        .rope_theta_default = 1e4,
        .rms_eps_default = 1e-6,
        .score = MOEWE_SCORE_SOFTMAX,
        .qk_norm = 1,
        .module = "model.layers.{L}.mlp",
        .prefix = "model.layers.{L}.mlp.",
        .router = "gate.weight",
        .expert_gate = "experts.{E}.gate_proj.weight",
        .expert_up = "experts.{E}.up_proj.weight",
        .expert_down = "experts.{E}.down_proj.weight",
        .stacked_gate_up = "experts.gate_up_proj",
        .stacked_down = "experts.down_proj",
        .part = {LLAMA_ATTENTION, LLAMA_QK_NORM, LLAMA_DENSE_MLP},
    },
};

const size_t model_family_count = sizeof model_families / sizeof model_families[0];
