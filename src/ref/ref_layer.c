/* ref_layer.c - owns the two GEMMs with their activation, and the whole layer, in the oracle.  It must never
 * share a line with the back ends: agreement is worth something only between strangers. */
#include "ref.h"

#include <math.h>

/* Roundings allowed to an activation, relative to the magnitude of its argument: a few ulp for exp,
 * tanh or erf, one for each operation around it. */
#define ACT_ROUNDINGS 8.0

int ref_gated(int32_t act)
{
    return act == MOEWE_ACT_SWIGLU || act == MOEWE_ACT_SWIGLU_STEP || act == MOEWE_ACT_SWIGLU_OAI ||
           act == MOEWE_ACT_GEGLU || act == MOEWE_ACT_GEGLU_TANH || act == MOEWE_ACT_REGLU;
}

static double silu(double z, double alpha)
{
    return z / (1.0 + exp(-alpha * z));
}

static double gelu_erf(double z)
{
    return 0.5 * z * erfc(-z / sqrt(2.0));
}

static double gelu_tanh(double z)
{
    return 0.5 * z * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (z + 0.044715 * z * z * z)));
}

/* The nonlinear factor.  Slopes of silu and both gelus stay below 1.13 everywhere, of max(z, 0) below 1. */
static ref_value curve(const moewe_config *cfg, ref_value z)
{
    const double steepest = 1.13;
    ref_value f = {0.0, steepest * z.e + ref_error_bound(ACT_ROUNDINGS, fabs(z.v) + z.e)};

    switch (cfg->act) {
    case MOEWE_ACT_SWIGLU:
    case MOEWE_ACT_SWIGLU_STEP:
    case MOEWE_ACT_SILU:
        f.v = silu(z.v, 1.0);
        break;
    case MOEWE_ACT_SWIGLU_OAI:
        f.v = silu(z.v, cfg->act_alpha);
        break;
    case MOEWE_ACT_GEGLU:
    case MOEWE_ACT_GELU:
        f.v = gelu_erf(z.v);
        break;
    case MOEWE_ACT_GEGLU_TANH:
    case MOEWE_ACT_GELU_TANH:
        f.v = gelu_tanh(z.v);
        break;
    case MOEWE_ACT_REGLU:
    case MOEWE_ACT_RELU:
        f.v = z.v > 0.0 ? z.v : 0.0;
        f.e = z.e;
        break;
    case MOEWE_ACT_RELU2:
        f.v = z.v > 0.0 ? z.v * z.v : 0.0;
        f.e = 2.0 * (fabs(z.v) + z.e) * z.e + ref_error_bound(1.0, f.v);
        break;
    default:
        break;
    }
    return f;
}

ref_value ref_act(const moewe_config *cfg, double limit, ref_value gate, ref_value up)
{
    ref_value a, f;

    if (limit > 0.0) {
        if (gate.v > limit && cfg->act != MOEWE_ACT_SWIGLU_STEP) gate.v = limit;
        if (up.v > limit) up.v = limit;
        if (up.v < -limit && ref_gated(cfg->act)) up.v = -limit;
    }
    if (!ref_gated(cfg->act)) return curve(cfg, up);
    if (cfg->act == MOEWE_ACT_SWIGLU_OAI) {
        up.v += (double)cfg->act_beta;
        up.e += ref_error_bound(1.0, fabs(up.v) + fabs((double)cfg->act_beta));
    }
    f = curve(cfg, gate);
    if (cfg->act == MOEWE_ACT_SWIGLU_STEP && limit > 0.0 && f.v > limit) f.v = limit;
    a.v = f.v * up.v;
    a.e = f.e * (fabs(up.v) + up.e) + fabs(f.v) * up.e + ref_error_bound(1.0, fabs(a.v));
    return a;
}

/* v went through memory of dtype. */
static void stored(int32_t dtype, ref_value *v)
{
    if (dtype == MOEWE_DTYPE_BF16) v->e += ref_unit(dtype) * (fabs(v->v) + v->e);
}

int32_t ref_width(const moewe_config *cfg)
{
    return cfg->latent ? cfg->latent : cfg->hidden;
}

void ref_latent_in(const moewe_config *cfg, const moewe_weights *w, const ref_value *x, ref_value *z)
{
    ref_gemv(&w->latent_in, 0, cfg->latent, cfg->hidden, x, z);
    for (int32_t i = 0; i < cfg->latent; i++) stored(cfg->x_dtype, &z[i]);
}

void ref_gemm1(const moewe_config *cfg, const moewe_weights *w, int32_t expert, const ref_value *x, ref_value *mid)
{
    const moewe_matrix *gate = expert < 0 ? &w->shared_gate : &w->gate, *up = expert < 0 ? &w->shared_up : &w->up;
    int32_t inter = expert < 0 ? cfg->shared_inter : cfg->inter, e = expert < 0 ? 0 : expert;
    int32_t cols = expert < 0 ? cfg->hidden : ref_width(cfg);
    double limit = expert < 0 ? cfg->shared_limit : cfg->act_limit;

    for (int32_t i = 0; i < inter; i++) {
        ref_value u = ref_gemv_row(up, e, inter, cols, i, x), g = u;

        if (ref_gated(cfg->act)) g = ref_gemv_row(gate, e, inter, cols, i, x);
        mid[i] = ref_act(cfg, limit, g, u);
        stored(cfg->x_dtype, &mid[i]);
    }
}

void ref_gemm2(const moewe_config *cfg, const moewe_weights *w, int32_t expert, const ref_value *mid, ref_value *out)
{
    if (expert < 0)
        ref_gemv(&w->shared_down, 0, cfg->hidden, cfg->shared_inter, mid, out);
    else
        ref_gemv(&w->down, expert, ref_width(cfg), cfg->inter, mid, out);
}

static int32_t widest(const moewe_config *cfg)
{
    return cfg->latent > cfg->hidden ? cfg->latent : cfg->hidden;
}

size_t ref_scratch(const moewe_config *cfg)
{
    size_t inter = (size_t)(cfg->inter > cfg->shared_inter ? cfg->inter : cfg->shared_inter);

    return 3 * (size_t)cfg->hidden + 5 * (size_t)widest(cfg) + inter + 2 * (size_t)(cfg->n_experts + cfg->n_null);
}

/* acc.v += w * term; acc.e gathers what the terms bring along, sum_abs their magnitudes. */
static void add(ref_value *acc, double *sum_abs, ref_value w, ref_value term)
{
    acc->v += w.v * term.v;
    acc->e += w.e * (fabs(term.v) + term.e) + fabs(w.v) * term.e;
    *sum_abs += (fabs(w.v) + w.e) * (fabs(term.v) + term.e);
}

static void weigh_input(const moewe_config *cfg, const ref_value *x, ref_value w, ref_value *out)
{
    for (int32_t c = 0; c < ref_width(cfg); c++) {
        out[c].v = w.v * x[c].v;
        out[c].e = w.e * (fabs(x[c].v) + x[c].e) + fabs(w.v) * x[c].e + ref_error_bound(1.0, fabs(out[c].v));
        stored(cfg->x_dtype, &out[c]); /* the product may be stored as x is */
    }
}

/* sum += weight times each of the token's experts here, on rows x of ref_width; magnitude gathers as extra does.
 * work: 2 * ref_width + inter values.  Returns how many terms there were. */
static double add_experts(const moewe_config *cfg, const moewe_weights *w, const ref_value *x, const int32_t *ids,
                          const ref_value *weights, ref_value *sum, ref_value *magnitude, ref_value *work)
{
    const ref_value one = {1.0, 0.0};
    int32_t width = ref_width(cfg), on_input = (cfg->flags & MOEWE_FLAG_WEIGHT_ON_INPUT) != 0;
    ref_value *xw = work, *out = xw + width, *mid = out + width;
    double terms = 0.0;

    for (int32_t k = 0; k < cfg->top_k; k++) {
        int64_t local = (int64_t)ids[k] - cfg->first_expert;
        int identity = ids[k] >= cfg->n_experts && ids[k] < cfg->n_experts + cfg->n_null;

        if (identity) {
            for (int32_t c = 0; c < width; c++) add(&sum[c], &magnitude[c].v, weights[k], x[c]);
            terms += 1.0;
            continue;
        }
        if (ids[k] < 0 || ids[k] >= cfg->n_experts || local < 0 || local >= cfg->n_local) continue;
        if (on_input) weigh_input(cfg, x, weights[k], xw);
        ref_gemm1(cfg, w, (int32_t)local, on_input ? xw : x, mid);
        ref_gemm2(cfg, w, (int32_t)local, mid, out);
        for (int32_t c = 0; c < width; c++) add(&sum[c], &magnitude[c].v, on_input ? one : weights[k], out[c]);
        terms += 1.0;
    }
    return terms;
}

static ref_value shared_weight(const moewe_config *cfg, const moewe_weights *w, const ref_value *x)
{
    ref_value scale = {1.0, 0.0};

    if (!ref_absent(&w->shared_scale)) {
        ref_gemv(&w->shared_scale, 0, 1, cfg->hidden, x, &scale);
        scale.e = 0.25 * scale.e; /* the steepest slope of a sigmoid */
        scale.v = 1.0 / (1.0 + exp(-scale.v));
        scale.e += ref_error_bound(ACT_ROUNDINGS, scale.v);
    }
    scale.v *= cfg->shared_scale;
    scale.e = fabs((double)cfg->shared_scale) * scale.e + ref_error_bound(1.0, fabs(scale.v));
    return scale;
}

/* y += latent_out . (sum of the experts on latent_in . x), the sum stored in x_dtype.  work: 5 * latent + hidden +
 * inter values. */
static void add_latent(const moewe_config *cfg, const moewe_weights *w, const ref_value *x, const int32_t *ids,
                       const ref_value *weights, ref_value *y, ref_value *extra, ref_value *work)
{
    const ref_value one = {1.0, 0.0};
    int32_t n = cfg->latent;
    ref_value *z = work, *sum = z + n, *out = sum + n;
    double terms;

    ref_latent_in(cfg, w, x, z);
    for (int32_t c = 0; c < n; c++) sum[c].v = sum[c].e = 0.0;
    {
        ref_value *magnitude = out + cfg->hidden;

        for (int32_t c = 0; c < n; c++) magnitude[c].v = 0.0;
        terms = 2.0 + add_experts(cfg, w, z, ids, weights, sum, magnitude, magnitude + n);
        for (int32_t c = 0; c < n; c++) {
            sum[c].e += ref_error_bound(terms, magnitude[c].v);
            stored(cfg->x_dtype, &sum[c]);
        }
    }
    ref_gemv(&w->latent_out, 0, cfg->hidden, n, sum, out);
    for (int32_t c = 0; c < cfg->hidden; c++) add(&y[c], &extra[c].v, one, out[c]);
}

void ref_layer_row(const moewe_config *cfg, const moewe_weights *w, const moewe_io *io, int32_t token, int32_t *ids,
                   ref_value *weights, ref_value *margin, ref_value *y, ref_value *scratch)
{
    int32_t h = cfg->hidden;
    ref_value *x = scratch, *extra = x + h; /* extra: h values, v: magnitudes of the sums */
    ref_value *route = extra + h, *work = route + 2 * (cfg->n_experts + cfg->n_null);
    int32_t x_size = cfg->x_dtype == MOEWE_DTYPE_F32 ? 4 : 2, y_size = cfg->y_dtype == MOEWE_DTYPE_F32 ? 4 : 2;
    int64_t x_stride = io->x_stride ? io->x_stride : (int64_t)h * x_size;
    int64_t y_stride = io->y_stride ? io->y_stride : (int64_t)h * y_size;
    double terms = 2.0; /* the product with the weight, and the gate of the shared expert */

    for (int32_t c = 0; c < h; c++) {
        x[c].v = ref_load((const char *)io->x + token * x_stride + c * x_size, cfg->x_dtype);
        x[c].e = 0.0;
        y[c].v = io->y_add ? ref_load((const char *)io->y + token * y_stride + c * y_size, cfg->y_dtype) : 0.0;
        y[c].e = 0.0;
        extra[c].v = fabs(y[c].v);
    }
    ref_route(cfg, w, io, token, x, ids, weights, margin, route);
    if (!cfg->latent) terms += add_experts(cfg, w, x, ids, weights, y, extra, work);
    if (cfg->shared_inter > 0) {
        ref_value scale = shared_weight(cfg, w, x), *out = work, *mid = out + h;

        ref_gemm1(cfg, w, -1, x, mid);
        ref_gemm2(cfg, w, -1, mid, out);
        for (int32_t c = 0; c < h; c++) add(&y[c], &extra[c].v, scale, out[c]);
        terms += 1.0;
    }
    if (cfg->latent) {
        add_latent(cfg, w, x, ids, weights, y, extra, work);
        terms += 1.0;
    }
    for (int32_t c = 0; c < h; c++) {
        y[c].e += ref_error_bound(terms, extra[c].v);
        stored(cfg->y_dtype, &y[c]);
    }
}
