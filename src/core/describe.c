/* describe.c - a plan in words, one fact a line. */
#include "core.h"

static const char *const stage_names[] = {"route", "sort", "gemm1", "gemm2", "combine"};
static const char *const act_names[] = {"swiglu", "swiglu_step", "swiglu_oai", "geglu", "geglu_tanh", "reglu",
                                        "relu2",  "relu",        "silu",       "gelu",  "gelu_tanh"};

static const char *score_name(int32_t score)
{
    switch (score) {
    case MOEWE_SCORE_SOFTMAX: return "softmax";
    case MOEWE_SCORE_SOFTMAX_TOPK: return "softmax over the chosen";
    case MOEWE_SCORE_SIGMOID: return "sigmoid";
    case MOEWE_SCORE_SQRTSOFTPLUS: return "sqrt(softplus)";
    case MOEWE_SCORE_SPARSEMIXER: return "sparsemixer";
    default: return "given";
    }
}

size_t moewe_plan_describe(const moewe_plan *plan, char *buf, size_t cap)
{
    size_t len = 0;
    if (cap) buf[0] = 0;
    if (!plan) return 0;
    const moewe_config *c = &plan->cfg;
#define LINE(...) moewe_append(buf, cap, &len, __VA_ARGS__)
    LINE("plan: %s\n", plan->name[0] ? plan->name : "(no name)");
    LINE("backend: %s, %d threads\n", plan->dev->backend->name, plan->dev->n_threads);
    LINE("tokens: up to %d\n", c->max_tokens);
    LINE("shape: hidden %d, inter %d, experts %d, top_k %d\n", c->hidden, c->inter, c->n_experts, c->top_k);
    if (c->n_local != c->n_experts) LINE("local experts: %d to %d\n", c->first_expert, c->first_expert + c->n_local - 1);
    if (c->n_null) LINE("identity experts: %d\n", c->n_null);
    if (c->n_group)
        LINE("groups: %d of %d, ranked by the sum of the %d best\n", c->top_group, c->n_group, c->group_best);
    if (c->latent) LINE("latent: experts work on %d columns\n", c->latent);
    if (c->shared_inter) {
        LINE("shared expert: %d", c->shared_inter);
        if (c->shared_limit > 0) LINE(", limit %g", (double)c->shared_limit);
        if (c->shared_scale != 1) LINE(", scale %g", (double)c->shared_scale);
        LINE("\n");
    }
    LINE("router: %s%s, scale %g", score_name(c->score), c->flags & MOEWE_FLAG_RENORMALIZE ? ", renormalized" : "",
         (double)c->routed_scale);
    if (c->logit_softcap > 0) LINE(", logits capped at %g", (double)c->logit_softcap);
    LINE("\n");
    LINE("activation: %s", act_names[c->act]);
    if (c->act == MOEWE_ACT_SWIGLU_OAI) LINE(", alpha %g, beta %g", (double)c->act_alpha, (double)c->act_beta);
    if (c->act_limit > 0) LINE(", limit %g", (double)c->act_limit);
    LINE("%s\n", c->flags & MOEWE_FLAG_WEIGHT_ON_INPUT ? ", weight on the input" : "");
    LINE("dtypes: x %s, weights %s", moewe_dtype_name(c->x_dtype), moewe_dtype_name(c->w_dtype));
    if (c->down_dtype != c->w_dtype) LINE(" (down %s)", moewe_dtype_name(c->down_dtype));
    LINE(", y %s\n", moewe_dtype_name(c->y_dtype));
    len += plan->dev->backend->describe(plan, len < cap ? buf + len : NULL, len < cap ? cap - len : 0);
    if (c->workspace_limit) LINE("workspace limit: %llu bytes\n", (unsigned long long)c->workspace_limit);
    for (int32_t i = 0; i < plan->n_regions; i++) {
        const moewe_region *r = &plan->regions[i];
        LINE("region %s: %llu bytes at %llu, %s to %s\n", r->name, (unsigned long long)r->bytes,
             (unsigned long long)r->offset, stage_names[r->first_stage], stage_names[r->last_stage]);
    }
    LINE("workspace: %llu bytes\n", (unsigned long long)plan->need.bytes);
#undef LINE
    return len;
}
