/* config.c - the canonical form of a config: every default filled, every field in range. */
#include "core.h"

#include <math.h>

/* Wider than any model; keeps every 32-bit index of a back end far from overflow. */
enum { WIDTH_MAX = 1 << 20, EXPERTS_MAX = 1 << 16, TOP_K_MAX = 1024 };

static moewe_status in_range(const char *field, int64_t has, int64_t low, int64_t high)
{
    if (has >= low && has <= high) return MOEWE_OK;
    return moewe_fail(MOEWE_E_ARG, "moewe_config.%s is %lld, needs %lld to %lld", field, (long long)has, (long long)low,
                      (long long)high);
}

/* Of values: f32 or bf16.  Of weights: whatever a matrix may have. */
static moewe_status dtype_field(const char *field, int32_t has, int of_weights)
{
    if (has == MOEWE_DTYPE_F32 || has == MOEWE_DTYPE_BF16 || (of_weights && moewe_dtype_of_weights(has))) return MOEWE_OK;
    return moewe_fail(moewe_dtype_of_weights(has) ? MOEWE_E_UNSUPPORTED : MOEWE_E_ARG,
                      "moewe_config.%s is %d (%s), needs %s", field, has, moewe_dtype_name(has),
                      of_weights ? "a dtype of weights" : "f32 or bf16");
}

/* Rows of the matrices must be whole blocks of their dtype. */
static moewe_status width_field(const char *field, const char *matrix, int32_t width, int32_t dtype)
{
    if (moewe_dtype_row_bytes(dtype, width)) return MOEWE_OK;
    return moewe_fail(MOEWE_E_ARG, "moewe_config.%s is %d, a row of %s in %s needs whole blocks", field, width, matrix,
                      moewe_dtype_name(dtype));
}

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        moewe_status check_ = (call);                                                                                  \
        if (check_) return check_;                                                                                     \
    } while (0)

static moewe_status check_groups(moewe_config *c)
{
    CHECK(in_range("n_group", c->n_group, 0, c->n_experts));
    if (c->n_group == 0) {
        CHECK(in_range("top_group (without n_group)", c->top_group, 0, 0));
        return in_range("group_best (without n_group)", c->group_best, 0, 0);
    }
    if (c->n_experts % c->n_group)
        return moewe_fail(MOEWE_E_ARG, "moewe_config.n_group is %d, needs a divisor of n_experts %d", c->n_group,
                          c->n_experts);
    if (c->score >= MOEWE_SCORE_SPARSEMIXER || c->n_null)
        return moewe_fail(MOEWE_E_ARG, "moewe_config.n_group is %d, needs 0 with %s", c->n_group,
                          c->n_null                             ? "n_null"
                          : c->score == MOEWE_SCORE_SPARSEMIXER ? "MOEWE_SCORE_SPARSEMIXER"
                                                                : "MOEWE_SCORE_GIVEN");
    if (!c->group_best) c->group_best = 1;
    CHECK(in_range("top_group", c->top_group, 1, c->n_group));
    CHECK(in_range("group_best", c->group_best, 1, c->n_experts / c->n_group));
    return in_range("top_k (within top_group groups)", c->top_k, 1,
                    (int64_t)c->top_group * (c->n_experts / c->n_group));
}

static moewe_status check_constants(const moewe_config *c)
{
    const struct { const char *field; float has; int negative; } constants[] = {
        {"act_limit", c->act_limit, 0},         {"shared_limit", c->shared_limit, 0},
        {"act_alpha", c->act_alpha, 1},         {"act_beta", c->act_beta, 1},
        {"logit_softcap", c->logit_softcap, 0}, {"sparsemixer_eps", c->sparsemixer_eps, 0},
        {"renorm_eps", c->renorm_eps, 0},       {"renorm_floor", c->renorm_floor, 0},
        {"routed_scale", c->routed_scale, 1},   {"shared_scale", c->shared_scale, 1},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (!isfinite(constants[i].has) || (constants[i].has < 0 && !constants[i].negative))
            return moewe_fail(MOEWE_E_ARG, "moewe_config.%s is %g, needs a finite number%s", constants[i].field,
                              (double)constants[i].has, constants[i].negative ? "" : ", 0 or more");
    if (c->act == MOEWE_ACT_SWIGLU_OAI && c->act_alpha == 0 && c->act_beta == 0)
        return moewe_fail(MOEWE_E_ARG, "moewe_config.act_alpha and act_beta are 0, MOEWE_ACT_SWIGLU_OAI needs its constants "
                                       "(gpt-oss: 1.702 and 1)");
    return MOEWE_OK;
}

moewe_status moewe_config_canonical(const moewe_config *cfg, moewe_config *out, char name[MOEWE_NAME_BYTES])
{
    moewe_config c;
    if (!cfg) return moewe_fail(MOEWE_E_ARG, "moewe_config is NULL");
    if (cfg->struct_size != sizeof c)
        return moewe_fail(MOEWE_E_ABI, "moewe_config.struct_size is %u, this library knows %zu", cfg->struct_size,
                          sizeof c);
    c = *cfg;

    const uint32_t known = MOEWE_FLAG_RENORMALIZE | MOEWE_FLAG_WEIGHT_ON_INPUT;
    if (c.flags & ~known)
        return moewe_fail(MOEWE_E_ARG, "moewe_config.flags is 0x%x, needs bits of 0x%x only", c.flags, known);
    CHECK(in_range("hidden", c.hidden, 1, WIDTH_MAX));
    CHECK(in_range("inter", c.inter, 1, WIDTH_MAX));
    CHECK(in_range("shared_inter", c.shared_inter, 0, WIDTH_MAX));
    CHECK(in_range("latent", c.latent, 0, WIDTH_MAX));
    CHECK(in_range("n_experts", c.n_experts, 1, EXPERTS_MAX));
    CHECK(in_range("n_null", c.n_null, 0, EXPERTS_MAX));
    CHECK(in_range("max_tokens", c.max_tokens, 1, INT32_MAX));
    CHECK(in_range("score", c.score, 0, MOEWE_SCORE_GIVEN));
    CHECK(in_range("act", c.act, 0, MOEWE_ACT_GELU_TANH));

    int64_t choices = (int64_t)c.n_experts + c.n_null;
    int64_t most = c.score == MOEWE_SCORE_GIVEN || choices > TOP_K_MAX ? TOP_K_MAX : choices;
    CHECK(in_range("top_k", c.top_k, 1, most));
    CHECK(in_range("first_expert", c.first_expert, 0, c.n_experts - 1));
    CHECK(in_range("n_local", c.n_local, 0, c.n_experts - c.first_expert));
    if (!c.n_local) c.n_local = c.n_experts - c.first_expert;
    CHECK(check_groups(&c));

    if (!c.x_dtype) c.x_dtype = MOEWE_DTYPE_F32;
    if (!c.w_dtype) c.w_dtype = MOEWE_DTYPE_F32;
    if (!c.down_dtype) c.down_dtype = c.w_dtype;
    if (!c.y_dtype) c.y_dtype = c.x_dtype;
    CHECK(dtype_field("x_dtype", c.x_dtype, 0));
    CHECK(dtype_field("w_dtype", c.w_dtype, 1));
    CHECK(dtype_field("down_dtype", c.down_dtype, 1));
    CHECK(dtype_field("y_dtype", c.y_dtype, 0));
    CHECK(width_field(c.latent ? "latent" : "hidden", "gate and up", moewe_expert_width(&c), c.w_dtype));
    CHECK(width_field("inter", "down", c.inter, c.down_dtype));

    if (c.score == MOEWE_SCORE_GIVEN && c.flags & MOEWE_FLAG_RENORMALIZE)
        return moewe_fail(MOEWE_E_ARG, "moewe_config.flags has MOEWE_FLAG_RENORMALIZE, needs it clear with "
                                       "MOEWE_SCORE_GIVEN: given weights are used as they are");
    CHECK(check_constants(&c));
    if (c.routed_scale == 0) c.routed_scale = 1;
    if (c.shared_scale == 0) c.shared_scale = 1;

    size_t n = c.name ? strlen(c.name) : 0;
    if (n >= MOEWE_NAME_BYTES) n = MOEWE_NAME_BYTES - 1;
    memset(name, 0, MOEWE_NAME_BYTES);
    if (n) memcpy(name, c.name, n);
    c.name = NULL; /* the caller's text is not kept; the plan points this at its own copy */
    *out = c;
    return MOEWE_OK;
}
