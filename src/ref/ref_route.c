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
    if (c.down_dtype == MOEWE_DTYPE_DEFAULT) c.down_dtype = c.w_dtype;
    if (c.y_dtype == MOEWE_DTYPE_DEFAULT) c.y_dtype = c.x_dtype;
    if (c.group_best == 0) c.group_best = 1;
    if (c.routed_scale == 0.0f) c.routed_scale = 1.0f;
    if (c.shared_scale == 0.0f) c.shared_scale = 1.0f;
    return c;
}

void ref_logits(const moewe_config *cfg, const moewe_weights *w, const ref_value *x, ref_value *logits)
{
    ref_gemv(&w->router, 0, cfg->n_experts + cfg->n_null, cfg->hidden, x, logits);
}

void ref_softcap(const moewe_config *cfg, ref_value *logits)
{
    double cap = cfg->logit_softcap;

    if (!(cap > 0.0)) return;
    for (int32_t i = 0; i < cfg->n_experts + cfg->n_null; i++) { /* slopes of c tanh(z / c) stay below 1 */
        logits[i].v = cap * tanh(logits[i].v / cap);
        logits[i].e += ref_error_bound(FUNCTION_ROUNDINGS, fabs(logits[i].v));
    }
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

        if (!(share > 0.0)) continue; /* masked, or all of them are */
        sum += share;
        /* an absolute error of the exponent is a relative error of its power; weighted by its share */
        worst += share * (z[at ? at[i] : i].e + u * fabs(v - max));
    }
    if (sum > 0.0) worst /= sum;
    for (int32_t i = 0; i < n; i++) {
        ref_value zi = z[at ? at[i] : i];
        double relative = zi.e + u * fabs(zi.v - max) + worst;

        if (!(exp(zi.v - max) > 0.0)) { /* f32 may flush what f64 does not, never the reverse */
            out[i].v = out[i].e = 0.0;
            continue;
        }
        out[i].v = exp(zi.v - max) / sum;
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

static int is_expert(const moewe_config *cfg, int32_t id)
{
    return id >= 0 && id < cfg->n_experts + cfg->n_null;
}

void ref_weigh(const moewe_config *cfg, const ref_value *scores, const int32_t *ids, ref_value *weights)
{
    for (int32_t k = 0; k < cfg->top_k; k++) {
        ref_value none = {0.0, 0.0}, no_share = {-INFINITY, 0.0};

        if (cfg->score == MOEWE_SCORE_SOFTMAX_TOPK) none = no_share;
        weights[k] = is_expert(cfg, ids[k]) ? scores[ids[k]] : none;
    }
    if (cfg->score == MOEWE_SCORE_SOFTMAX_TOPK) softmax(weights, NULL, cfg->top_k, weights);
}

/* How far the logits that stay in play are from leaving it, and the others from coming in. */
static int in_play(const moewe_config *cfg, ref_value most, ref_value l, ref_value *margin)
{
    double size = fmax(fabs(l.v), most.v), error = l.e + most.e, ratio;
    ref_value limit = {2.0 * (double)cfg->sparsemixer_eps, 0.0}, r;

    if (isinf(l.v)) return 0;    /* masked: no share of anything */
    if (l.v == most.v) return 1; /* 0 / size, and 0 / 0 is not above any eps either */
    ratio = (most.v - l.v) / size;
    r.v = ratio;
    r.e = size > error ? (error + ratio * error) / (size - error) : INFINITY;
    r.e += ref_error_bound(4.0, ratio + limit.v);
    if (ratio > limit.v)
        least_gap(margin, r, limit);
    else
        least_gap(margin, limit, r);
    return ratio <= limit.v;
}

void ref_sparsemixer(const moewe_config *cfg, const ref_value *logits, int32_t *ids, ref_value *weights,
                     ref_value *margin)
{
    int32_t n = cfg->n_experts + cfg->n_null;

    margin->v = INFINITY;
    margin->e = 0.0;
    for (int32_t k = 0; k < cfg->top_k; k++) {
        double sum = 0.0, relative = 0.0;
        int32_t best = -1;

        for (int32_t i = 0; i < n; i++)
            if (!taken(ids, k, i) && (best < 0 || logits[i].v > logits[best].v)) best = i;
        ids[k] = best;
        for (int32_t i = 0; i < n; i++) {
            double share;

            if (taken(ids, k, i)) continue;
            if (i != best) least_gap(margin, logits[best], logits[i]);
            if (!in_play(cfg, logits[best], logits[i], margin)) continue;
            share = exp(logits[i].v - logits[best].v);
            sum += share;
            relative +=
                share * (logits[i].e + logits[best].e + ref_unit(MOEWE_DTYPE_F32) * (logits[best].v - logits[i].v));
        }
        weights[k].v = sum > 0.0 ? 1.0 / sum : 0.0;
        weights[k].e = sum > 0.0 ? weights[k].v * expm1(relative / sum) +
                                       ref_error_bound(n + 2.0 * FUNCTION_ROUNDINGS, weights[k].v)
                                 : 0.0;
    }
}

void ref_finish(const moewe_config *cfg, const float *expert_scale, const int32_t *ids, ref_value *weights)
{
    double sum = 0.0, sum_error = 0.0, divisor;

    for (int32_t k = 0; k < cfg->top_k; k++) {
        sum += weights[k].v;
        sum_error += weights[k].e;
    }
    divisor = fmax(sum + (double)cfg->renorm_eps, (double)cfg->renorm_floor);
    for (int32_t k = 0; k < cfg->top_k; k++) {
        ref_value *w = &weights[k];
        double scale = cfg->routed_scale;

        if (cfg->flags & MOEWE_FLAG_RENORMALIZE) {
            double value = divisor == 0.0 ? 0.0 : w->v / divisor;

            if (divisor > sum_error) w->e = (w->e + value * sum_error) / (divisor - sum_error);
            w->e += ref_error_bound(cfg->top_k + 2.0, fabs(value));
            w->v = value;
        }
        if (expert_scale && is_expert(cfg, ids[k])) scale *= ref_load(expert_scale + ids[k], MOEWE_DTYPE_F32);
        w->v *= scale;
        w->e = fabs(scale) * w->e + ref_error_bound(2.0, fabs(w->v));
    }
}

static void look_up(const moewe_config *cfg, const moewe_weights *w, int32_t token_id, int32_t *ids, ref_value *margin)
{
    int here = token_id >= 0 && token_id < w->hash_rows;

    margin->v = INFINITY;
    margin->e = 0.0;
    for (int32_t k = 0; k < cfg->top_k; k++) ids[k] = here ? w->hash_ids[(int64_t)token_id * cfg->top_k + k] : -1;
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
            weights[k].v = ref_load(io->topk_weights + at, MOEWE_DTYPE_F32);
            weights[k].e = 0.0;
        }
        ref_finish(cfg, w->expert_scale, ids, weights);
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
    ref_softcap(cfg, logits);
    if (cfg->score == MOEWE_SCORE_SPARSEMIXER) {
        ref_sparsemixer(cfg, logits, ids, weights, margin);
        ref_finish(cfg, w->expert_scale, ids, weights);
        return;
    }
    ref_scores(cfg, logits, scores);
    if (w->hash_ids)
        look_up(cfg, w, io->token_ids[token], ids, margin);
    else
        ref_choose(cfg, w->select_bias || cfg->n_group ? scores : logits, w->select_bias, ids, margin);
    ref_weigh(cfg, scores, ids, weights);
    ref_finish(cfg, w->expert_scale, ids, weights);
}
