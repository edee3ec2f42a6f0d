/* ref_route.c - owns routing in the oracle: logits, scores, choice, weights.  It must never break ties in
 * any way but the lowest id, and never decide for the caller what to do about near ties: it reports them. */
#include "ref.h"

#include <math.h>

/* Roundings allowed to one exp, log1p, sqrt or division chain, relative to its result. */
#define FUNCTION_ROUNDINGS 8.0

moewe_config ref_defaults(const moewe_config *cfg)
{
    moewe_config c = *cfg;

    if (c.n_local == 0) c.n_local = c.n_experts - c.first_expert;
    if (c.x_dtype == MOEWE_DTYPE_DEFAULT) c.x_dtype = MOEWE_DTYPE_F32;
    if (c.w_dtype == MOEWE_DTYPE_DEFAULT) c.w_dtype = MOEWE_DTYPE_F32;
    if (c.y_dtype == MOEWE_DTYPE_DEFAULT) c.y_dtype = c.x_dtype;
    if (c.group_best == 0) c.group_best = 1;
    if (c.routed_scale == 0.0f) c.routed_scale = 1.0f;
    return c;
}

void ref_logits(const moewe_config *cfg, const moewe_weights *w, const ref_value *x, ref_value *logits)
{
    ref_gemv(&w->router, 0, cfg->n_experts + cfg->n_null, cfg->hidden, x, logits);
}

/* exp(z_i - max) / sum over the n values at `at` (or 0 .. n-1 when NULL) */
static void softmax(const ref_value *z, const int32_t *at, int32_t n, ref_value *out)
{
    double u = ref_unit(MOEWE_DTYPE_F32), max = -INFINITY, sum = 0.0, worst = 0.0;

    for (int32_t i = 0; i < n; i++) {
        double v = z[at ? at[i] : i].v;

        if (v > max) max = v;
    }
    for (int32_t i = 0; i < n; i++) {
        double v = z[at ? at[i] : i].v, share = exp(v - max);

        sum += share;
        /* an absolute error of the exponent is a relative error of its power; weighted by its share */
        worst += share * (z[at ? at[i] : i].e + u * fabs(v - max));
    }
    worst /= sum;
    for (int32_t i = 0; i < n; i++) {
        const ref_value *zi = &z[at ? at[i] : i];
        double relative = zi->e + u * fabs(zi->v - max) + worst;

        out[i].v = exp(zi->v - max) / sum;
        /* expm1 keeps this a bound when the exponents' error is not small; n additions, then functions */
        out[i].e = out[i].v * expm1(relative) + ref_error_bound(n + 2.0 * FUNCTION_ROUNDINGS, out[i].v);
    }
}

void ref_scores(const moewe_config *cfg, const ref_value *logits, ref_value *scores)
{
    int32_t n = cfg->n_experts + cfg->n_null;

    if (cfg->score == MOEWE_SCORE_SOFTMAX) {
        softmax(logits, NULL, n, scores);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        double z = logits[i].v;

        switch (cfg->score) {
        case MOEWE_SCORE_SIGMOID: /* d log sigmoid(z) / dz = 1 - sigmoid(z), at most 1 */
            scores[i].v = z >= 0.0 ? 1.0 / (1.0 + exp(-z)) : exp(z) / (1.0 + exp(z));
            scores[i].e = scores[i].v * expm1(logits[i].e) + ref_error_bound(FUNCTION_ROUNDINGS, scores[i].v);
            break;
        case MOEWE_SCORE_SQRTSOFTPLUS: /* d log sqrt(softplus(z)) / dz, at most 1/2 */
            scores[i].v = sqrt(z > 0.0 ? z + log1p(exp(-z)) : log1p(exp(z)));
            scores[i].e =
                scores[i].v * expm1(0.5 * logits[i].e) + ref_error_bound(2.0 * FUNCTION_ROUNDINGS, scores[i].v);
            break;
        default: /* SOFTMAX_TOPK compares the logits themselves */
            scores[i] = logits[i];
            break;
        }
    }
}

static int taken(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id) return 1;
    return 0;
}

static double biased(const ref_value *scores, const float *bias, int32_t id)
{
    return scores[id].v + (bias ? (double)bias[id] : 0.0);
}

/* Error of score + bias as f32 computes it. */
static double biased_error(const ref_value *scores, const float *bias, int32_t id)
{
    return scores[id].e + (bias ? ref_error_bound(1.0, fabs(scores[id].v) + fabs((double)bias[id])) : 0.0);
}

/* Sum of the group_best best of group g, and the error of that sum. */
static ref_value group_rank(const moewe_config *cfg, const ref_value *scores, const float *bias, int32_t g)
{
    int32_t size = cfg->n_experts / cfg->n_group, from = g * size;
    ref_value rank = {0.0, 0.0};
    double last = INFINITY, sum_abs = 0.0;
    int32_t last_id = -1, n;

    for (n = 0; n < cfg->group_best; n++) {
        int32_t best = -1;

        for (int32_t i = from; i < from + size; i++) {
            double v = biased(scores, bias, i);

            if (v > last || (v == last && i <= last_id)) continue; /* came before */
            if (best < 0 || v > biased(scores, bias, best)) best = i;
        }
        if (best < 0) break;
        last = biased(scores, bias, best);
        last_id = best;
        rank.v += last;
        sum_abs += fabs(last);
    }
    /* whichever members f32 takes, the sum of the n best moves by at most n times the largest error */
    for (int32_t i = from; i < from + size; i++) rank.e = fmax(rank.e, biased_error(scores, bias, i));
    rank.e = n * rank.e + ref_error_bound(n, sum_abs);
    return rank;
}

static void least_gap(ref_value *margin, ref_value in, ref_value out)
{
    double gap = in.v - out.v, error = in.e + out.e;

    if (gap - error < margin->v - margin->e) {
        margin->v = gap;
        margin->e = error;
    }
}

/* How many groups rank before g: better, or equal and lower numbered. */
static int32_t group_place(const moewe_config *cfg, const ref_value *scores, const float *bias, int32_t g)
{
    double mine = group_rank(cfg, scores, bias, g).v;
    int32_t before = 0;

    for (int32_t i = 0; i < cfg->n_group; i++) {
        double other = group_rank(cfg, scores, bias, i).v;

        before += other > mine || (other == mine && i < g);
    }
    return before;
}

static int open_to_choice(const moewe_config *cfg, const ref_value *scores, const float *bias, int32_t id)
{
    if (cfg->n_group <= 1 || id >= cfg->n_experts) return 1;
    return group_place(cfg, scores, bias, id / (cfg->n_experts / cfg->n_group)) < cfg->top_group;
}

void ref_choose(const moewe_config *cfg, const ref_value *scores, const float *select_bias, int32_t *ids,
                ref_value *margin)
{
    int32_t n = cfg->n_experts + cfg->n_null, chosen = 0;
    unsigned char open[4096 + 1];

    margin->v = INFINITY;
    margin->e = 0.0;
    for (int32_t i = 0; i < n && i < 4096; i++) open[i] = (unsigned char)open_to_choice(cfg, scores, select_bias, i);
    for (int32_t g = 0; cfg->n_group > 1 && g < cfg->n_group; g++) {
        if (group_place(cfg, scores, select_bias, g) >= cfg->top_group) continue;
        for (int32_t o = 0; o < cfg->n_group; o++)
            if (group_place(cfg, scores, select_bias, o) >= cfg->top_group)
                least_gap(margin, group_rank(cfg, scores, select_bias, g), group_rank(cfg, scores, select_bias, o));
    }
    for (; chosen < cfg->top_k; chosen++) {
        int32_t best = -1;

        for (int32_t i = 0; i < n; i++) {
            if (!open[i] || taken(ids, chosen, i)) continue;
            if (best < 0 || biased(scores, select_bias, i) > biased(scores, select_bias, best)) best = i;
        }
        ids[chosen] = best;
    }
    for (int32_t i = 0; i < n; i++) {
        ref_value out = {biased(scores, select_bias, i), biased_error(scores, select_bias, i)};

        if (!open[i] || taken(ids, chosen, i)) continue;
        for (int32_t k = 0; k < chosen; k++) {
            ref_value in = {biased(scores, select_bias, ids[k]), biased_error(scores, select_bias, ids[k])};

            least_gap(margin, in, out);
        }
    }
}

void ref_weights(const moewe_config *cfg, const ref_value *scores, const int32_t *ids, ref_value *weights)
{
    double scale = cfg->routed_scale, sum = 0.0, sum_error = 0.0;

    if (cfg->score == MOEWE_SCORE_SOFTMAX_TOPK)
        softmax(scores, ids, cfg->top_k, weights);
    else
        for (int32_t k = 0; k < cfg->top_k; k++) weights[k] = scores[ids[k]];
    for (int32_t k = 0; k < cfg->top_k; k++) {
        sum += weights[k].v;
        sum_error += weights[k].e;
    }
    for (int32_t k = 0; k < cfg->top_k; k++) {
        ref_value *w = &weights[k];

        if (cfg->flags & MOEWE_FLAG_RENORMALIZE) {
            double value = sum == 0.0 ? 0.0 : w->v / sum;

            if (sum > sum_error) w->e = (w->e + value * sum_error) / (sum - sum_error);
            w->e += ref_error_bound(cfg->top_k + 1.0, fabs(value));
            w->v = value;
        }
        w->v *= scale;
        w->e = fabs(scale) * w->e + ref_error_bound(1.0, fabs(w->v));
    }
}

void ref_route(const moewe_config *cfg, const moewe_weights *w, const moewe_io *io, int32_t token, const ref_value *x,
               int32_t *ids, ref_value *weights, ref_value *margin, ref_value *scratch)
{
    int32_t n = cfg->n_experts + cfg->n_null;
    ref_value *logits = scratch, *scores = scratch + n;

    if (cfg->score == MOEWE_SCORE_GIVEN) {
        margin->v = INFINITY;
        margin->e = 0.0;
        for (int32_t k = 0; k < cfg->top_k; k++) {
            int64_t at = (int64_t)token * cfg->top_k + k;

            ids[k] = io->topk_ids[at];
            weights[k].v = ref_load(io->topk_weights + at, MOEWE_DTYPE_F32) * (double)cfg->routed_scale;
            weights[k].e = ref_error_bound(1.0, fabs(weights[k].v));
        }
        return;
    }
    if (io->logits) {
        for (int32_t i = 0; i < n; i++) {
            logits[i].v = ref_load(io->logits + (int64_t)token * n + i, MOEWE_DTYPE_F32);
            logits[i].e = 0.0;
        }
    } else {
        ref_logits(cfg, w, x, logits);
    }
    ref_scores(cfg, logits, scores);
    ref_choose(cfg, scores, w->select_bias, ids, margin);
    ref_weights(cfg, scores, ids, weights);
}
