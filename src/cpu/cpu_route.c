/* cpu_route.c - from a row of logits to experts and weights.  Only the row itself is looked at. */
#include "cpu.h"

#include <math.h>

/* NaN ranks last. */
static inline float rank_of(float v)
{
    return v != v ? -INFINITY : v;
}

int64_t cpu_choice_floats(const moewe_config *cfg)
{
    return 3 * ((int64_t)cfg->n_experts + cfg->n_null) + 2 * (int64_t)cfg->n_group;
}

/* -Inf weighs nothing, and so does a row that holds nothing else. */
static void softmax(float *v, int32_t n)
{
    float most = -INFINITY, sum = 0.0f;
    for (int32_t i = 0; i < n; i++)
        if (v[i] > most) most = v[i];
    if (most == -INFINITY) {
        for (int32_t i = 0; i < n; i++) v[i] = 0.0f;
        return;
    }
    for (int32_t i = 0; i < n; i++) sum += v[i] = v[i] == most ? 1.0f : expf(v[i] - most);
    for (int32_t i = 0; i < n; i++) v[i] /= sum;
}

static void score_all(const moewe_config *cfg, const float *logits, float *score, int32_t n)
{
    memcpy(score, logits, (size_t)n * sizeof *score);
    switch (cfg->score) {
    case MOEWE_SCORE_SOFTMAX: softmax(score, n); break;
    case MOEWE_SCORE_SIGMOID:
        for (int32_t e = 0; e < n; e++) score[e] = 1.0f / (1.0f + expf(-score[e]));
        break;
    case MOEWE_SCORE_SQRTSOFTPLUS: /* beyond 20, log(1 + e^x) is x in f32 */
        for (int32_t e = 0; e < n; e++) score[e] = sqrtf(score[e] > 20.0f ? score[e] : log1pf(expf(score[e])));
        break;
    default: break; /* softmax over the chosen comes after the choice */
    }
}

/* Index of the largest v[i] after (value, index) in falling order, equals by rising index; -1 at the end. */
static int32_t next_largest(const float *v, int32_t n, float value, int32_t index)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        float r = rank_of(v[i]);
        if (index >= 0 && (r > value || (r == value && i <= index))) continue;
        if (best < 0 || r > rank_of(v[best])) best = i;
    }
    return best;
}

/* Ranks groups by the sum of their best scores; open[g] becomes 1 for the top_group best. */
static void open_groups(const moewe_config *cfg, const float *choice, float *sums, float *open)
{
    int32_t size = cfg->n_experts / cfg->n_group;
    for (int32_t g = 0; g < cfg->n_group; g++) {
        const float *members = choice + (int64_t)g * size;
        int32_t at = -1;
        sums[g] = 0.0f;
        open[g] = 0.0f;
        for (int32_t b = 0; b < cfg->group_best; b++) {
            at = next_largest(members, size, at < 0 ? 0.0f : rank_of(members[at]), at);
            sums[g] += members[at];
        }
    }
    int32_t g = -1;
    for (int32_t b = 0; b < cfg->top_group; b++) {
        g = next_largest(sums, cfg->n_group, g < 0 ? 0.0f : rank_of(sums[g]), g);
        open[g] = 1.0f;
    }
}

/* The top_k largest, in falling order, the lowest id first among equals; keys holds their values. */
static void top_k(const moewe_config *cfg, const float *choice, int32_t n, const float *open, int32_t *ids, float *keys)
{
    int32_t have = 0, size = cfg->n_group ? cfg->n_experts / cfg->n_group : 1;
    for (int32_t e = 0; e < n; e++) {
        if (cfg->n_group && open[e / size] == 0.0f) continue;
        float r = rank_of(choice[e]);
        if (have == cfg->top_k && !(r > keys[have - 1])) continue;
        int32_t at = have < cfg->top_k ? have++ : have - 1;
        for (; at > 0 && r > keys[at - 1]; at--) {
            keys[at] = keys[at - 1];
            ids[at] = ids[at - 1];
        }
        keys[at] = r;
        ids[at] = e;
    }
}

/* Each choice is the largest logit left, weighed by a softmax over those left that are near it: near as
 * measured on the logits that the row came with. */
static void sparsemixer(const moewe_config *cfg, const float *logits, float *left, int32_t n, int32_t *ids, float *weights)
{
    memcpy(left, logits, (size_t)n * sizeof *left);
    for (int32_t s = 0; s < cfg->top_k; s++) {
        int32_t best = next_largest(left, n, 0.0f, -1);
        float most = left[best], sum = 0.0f;
        for (int32_t e = 0; e < n; e++) {
            float size = fabsf(logits[e]) > most ? fabsf(logits[e]) : most;
            if (!((most - logits[e]) / size > 2.0f * cfg->sparsemixer_eps)) sum += expf(left[e] - most);
        }
        ids[s] = best;
        weights[s] = most == -INFINITY ? 0.0f : 1.0f / sum; /* nothing finite is left: a masked expert weighs nothing */
        left[best] = -INFINITY;
    }
}

static void choose_and_weigh(const moewe_config *cfg, const moewe_weights *w, const float *logits, const int32_t *hashed,
                             float *scratch, int32_t *ids, float *weights)
{
    int32_t n = cfg->n_experts + cfg->n_null;
    float *score = scratch, *choice = score + n, *sums = choice + n, *open = sums + cfg->n_group;
    score_all(cfg, logits, score, n);
    if (hashed) {
        memmove(ids, hashed, (size_t)cfg->top_k * sizeof *ids);
    } else if (!w->select_bias && !cfg->n_group) {
        /* Every score rises with its logit, but in f32 a saturated one ties where the logits do not. */
        top_k(cfg, logits, n, open, ids, weights);
    } else {
        for (int32_t e = 0; e < n; e++) choice[e] = w->select_bias ? score[e] + w->select_bias[e] : score[e];
        if (cfg->n_group) open_groups(cfg, choice, sums, open);
        top_k(cfg, choice, n, open, ids, weights);
    }
    /* An id of a table may be no expert's: it weighs nothing. */
    int over_chosen = cfg->score == MOEWE_SCORE_SOFTMAX_TOPK;
    for (int32_t s = 0; s < cfg->top_k; s++)
        weights[s] = ids[s] >= 0 && ids[s] < n ? score[ids[s]] : over_chosen ? -INFINITY : 0.0f;
    if (over_chosen) softmax(weights, cfg->top_k);
}

/* Logits as the choice sees them: soft cap c * tanh(logit / c), and NaN, which says nothing about an
 * expert, as -Inf.  (A row of x that has a NaN gets NaN from its experts all the same.) */
static void clean_logits(const moewe_config *cfg, const float *logits, float *clean, int32_t n)
{
    float c = cfg->logit_softcap;
    for (int32_t e = 0; e < n; e++) {
        float l = c > 0 ? c * tanhf(logits[e] / c) : logits[e];
        clean[e] = rank_of(l);
    }
}

void cpu_choose_experts(const moewe_config *cfg, const moewe_weights *w, const float *logits, const int32_t *hashed,
                        float *scratch, int32_t *ids, float *weights)
{
    int32_t n = cfg->n_experts + cfg->n_null;
    clean_logits(cfg, logits, scratch, n);
    logits = scratch;
    if (cfg->score == MOEWE_SCORE_SPARSEMIXER)
        sparsemixer(cfg, logits, scratch + n, n, ids, weights);
    else
        choose_and_weigh(cfg, w, logits, hashed, scratch + n, ids, weights);
    if (cfg->flags & MOEWE_FLAG_RENORMALIZE) {
        float sum = 0.0f;
        for (int32_t s = 0; s < cfg->top_k; s++) sum += weights[s];
        sum += cfg->renorm_eps;
        if (sum < cfg->renorm_floor) sum = cfg->renorm_floor;
        for (int32_t s = 0; s < cfg->top_k; s++) weights[s] = sum == 0.0f ? 0.0f : weights[s] / sum;
    }
    for (int32_t s = 0; s < cfg->top_k; s++) {
        weights[s] *= cfg->routed_scale;
        if (w->expert_scale && ids[s] >= 0 && ids[s] < n) weights[s] *= w->expert_scale[ids[s]];
    }
}
