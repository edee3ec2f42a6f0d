/* layer_data.c - makes one layer's weights in plain form and packs them as often as layers are wanted; draws routings,
 * and rows that make a router of this file's choose them. */
#include "layer_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

enum { ROUTINGS = 32 };
static const uint64_t seed = 0x6d6f657765ull, x_most = (uint64_t)512 << 20;

/* ---- the matrices of a layer --------------------------------------------------------------- */

typedef struct matrix_plan {
    moewe_matrix *place; /* in the weights */
    bench_type type;
    int32_t n, rows, cols;
    int router, routed;
} matrix_plan;

enum { MATRICES_MOST = 9 };

/* Every matrix that a layer of this config has. */
static int list_matrices(const moewe_config *c, const bench_type *type, moewe_weights *w, matrix_plan *out)
{
    int n = 0, gated = c->act < MOEWE_ACT_RELU2, router = c->score != MOEWE_SCORE_GIVEN;
    int32_t width = c->latent ? c->latent : c->hidden, routed = c->n_experts + c->n_null;
    const char *plain = type->dtype == MOEWE_DTYPE_F32 ? "f32" : "bf16";
    if (gated) out[n++] = (matrix_plan){&w->gate, *type, c->n_experts, c->inter, width, 0, 1};
    out[n++] = (matrix_plan){&w->up, *type, c->n_experts, c->inter, width, 0, 1};
    out[n++] = (matrix_plan){&w->down, *type, c->n_experts, width, c->inter, 0, 1};
    if (router) {
        out[n] = (matrix_plan){&w->router, *type, 1, routed, c->hidden, 1, 0};
        bench_type_find(plain, &out[n++].type, NULL);
    }
    if (c->latent) {
        out[n++] = (matrix_plan){&w->latent_in, *type, 1, c->latent, c->hidden, 0, 0};
        out[n++] = (matrix_plan){&w->latent_out, *type, 1, c->hidden, c->latent, 0, 0};
    }
    if (!c->shared_inter) return n;
    if (gated) out[n++] = (matrix_plan){&w->shared_gate, *type, 1, c->shared_inter, c->hidden, 0, 0};
    out[n++] = (matrix_plan){&w->shared_up, *type, 1, c->shared_inter, c->hidden, 0, 0};
    out[n++] = (matrix_plan){&w->shared_down, *type, 1, c->hidden, c->shared_inter, 0, 0};
    return n;
}

/* Logit e is element e of x, give or take little: that is how a row says what it wants. */
static void fill_router(const moewe_matrix *m, int32_t rows, int32_t cols)
{
    float *f32 = (float *)(uintptr_t)m->data;
    uint16_t *b16 = (uint16_t *)(uintptr_t)m->data;
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) {
        int one = i / cols == i % cols;
        if (m->dtype == MOEWE_DTYPE_F32)
            f32[i] = one ? 1.0f : f32[i] * 0x1p-8f;
        else
            b16[i] = one ? 0x3f80 : (uint16_t)((b16[i] & 0x807f) | 0x3900); /* 2^-13 to 2^-12, either sign */
    }
}

/* ---- packing ------------------------------------------------------------------------------- */

static int32_t layers_that_fit(const layer_set *s, uint64_t total)
{
    uint64_t wanted = (total + s->layer_bytes - 1) / s->layer_bytes;
    uint64_t fit = bench_memory_available() / 2 / s->layer_bytes;
    if (wanted > fit) wanted = fit;
    return wanted < 1 ? 1 : wanted > INT32_MAX ? INT32_MAX : (int32_t)wanted;
}

static int pack_layers(layer_set *s, const moewe_plan *plan, const moewe_weights *plain, moewe_need need, fmt_error *e)
{
    s->weights = calloc((size_t)s->n_layers, sizeof *s->weights);
    s->mem = calloc((size_t)s->n_layers, sizeof *s->mem);
    if (!s->weights || !s->mem) return fmt_fail(e, "no memory for views of %d layers", (int)s->n_layers);
    for (int32_t i = 0; i < s->n_layers; i++)
        if (moewe_device_alloc(s->dev, need, &s->mem[i]) ||
            moewe_weights_pack(plan, plain, s->mem[i], NULL, &s->weights[i]))
            return fmt_fail(e, "layer %d of %d: %s", (int)i + 1, (int)s->n_layers, moewe_last_error());
    return 0;
}

/* Packed bytes of one expert: those of a layer that has the experts only. */
static int measure(layer_set *s, const moewe_device *dev, const moewe_config *cfg, const moewe_weights *w,
                   moewe_need all, fmt_error *e)
{
    moewe_plan *plan = NULL;
    moewe_need need = {0, 0, 0};
    moewe_config c;
    moewe_weights experts;
    MOEWE_INIT(c);
    c.hidden = cfg->latent ? cfg->latent : cfg->hidden;
    c.inter = cfg->inter;
    c.n_experts = cfg->n_experts;
    c.top_k = cfg->top_k;
    c.act = cfg->act < MOEWE_ACT_RELU2 ? MOEWE_ACT_SWIGLU : MOEWE_ACT_RELU2;
    c.w_dtype = cfg->w_dtype;
    c.score = MOEWE_SCORE_GIVEN;
    c.max_tokens = 1;
    MOEWE_INIT(experts);
    experts.gate = w->gate;
    experts.up = w->up;
    experts.down = w->down;
    int bad = moewe_plan_create(dev, &c, &plan) || moewe_weights_need(plan, &experts, &need);
    moewe_plan_destroy(plan);
    if (bad) return fmt_fail(e, "%s", moewe_last_error());
    if (!need.bytes) return fmt_fail(e, "back end %s packs no weights, timing needs packed ones", moewe_device_backend(dev));
    s->layer_bytes = all.bytes;
    s->expert_bytes = need.bytes / (uint64_t)cfg->n_experts;
    s->always_bytes = all.bytes > need.bytes ? all.bytes - need.bytes : 0;
    return 0;
}

static int fill_plain(layer_set *s, const matrix_plan *m, int n, const bench_plain *sizes, uint8_t *at)
{
    uint64_t rng = seed;
    size_t tensors = 0;
    for (int i = 0; i < n; i++) tensors += (size_t)m[i].n;
    s->tensor = malloc(tensors * sizeof *s->tensor);
    if (!s->tensor) return -1;
    tensors = 0;
    for (int i = 0; i < n; i++) {
        *m[i].place = bench_plain_fill(&m[i].type, m[i].n, m[i].rows, m[i].cols, at, s->tensor + tensors, &rng);
        if (m[i].router) fill_router(m[i].place, m[i].rows, m[i].cols);
        at += sizes[i].elements + sizes[i].scales;
        tensors += (size_t)m[i].n;
    }
    return 0;
}

int layer_set_open(layer_set *s, const moewe_device *dev, const moewe_config *cfg, const bench_type *type,
                   uint64_t total, fmt_error *e)
{
    matrix_plan m[MATRICES_MOST];
    bench_plain sizes[MATRICES_MOST];
    moewe_weights plain;
    moewe_plan *plan = NULL;
    moewe_need need;
    moewe_span mem = {NULL, 0};
    uint64_t bytes = 0;
    memset(s, 0, sizeof *s);
    s->dev = dev;
    MOEWE_INIT(plain);
    int n = list_matrices(cfg, type, &plain, m);
    for (int i = 0; i < n; i++) {
        if (bench_plain_bytes(&m[i].type, m[i].n, m[i].rows, m[i].cols, &sizes[i], e)) return -1;
        bytes += sizes[i].elements + sizes[i].scales;
    }
    if (moewe_plan_create(dev, cfg, &plan)) return fmt_fail(e, "%s", moewe_last_error());
    int bad = moewe_device_alloc(dev, (moewe_need){bytes, 64, MOEWE_PLACE_HOST}, &mem) != 0;
    if (bad) fmt_fail(e, "weights of one layer in plain form: %s", moewe_last_error());
    if (!bad && fill_plain(s, m, n, sizes, mem.ptr)) bad = fmt_fail(e, "no memory for the factors of experts");
    if (!bad && moewe_weights_need(plan, &plain, &need)) bad = fmt_fail(e, "%s", moewe_last_error());
    if (!bad) bad = measure(s, dev, cfg, &plain, need, e);
    if (!bad) {
        s->n_layers = layers_that_fit(s, total);
        bad = pack_layers(s, plan, &plain, need, e);
    }
    if (mem.ptr) moewe_device_free(dev, mem);
    moewe_plan_destroy(plan);
    return bad ? -1 : 0;
}

void layer_set_close(layer_set *s)
{
    for (int32_t i = 0; s->mem && i < s->n_layers; i++)
        if (s->mem[i].ptr) moewe_device_free(s->dev, s->mem[i]);
    free(s->mem);
    free(s->weights);
    free(s->tensor);
    memset(s, 0, sizeof *s);
}

/* ---- routings ---------------------------------------------------------------------------------- */

typedef struct draw {
    const moewe_config *cfg;
    double *weight;  /* [n_experts] popularity */
    double *key;     /* [n_experts] of this token: the smallest win */
    uint8_t *open;   /* [n_experts] is in a group that this token uses */
    uint8_t *taken;  /* [n_experts] by any token of this routing */
} draw;

/* Takes the expert with the smallest key among those that are open, or are not; -1 when there is none. */
static int32_t take_smallest(draw *d, int open)
{
    int32_t best = -1;
    for (int32_t e = 0; e < d->cfg->n_experts; e++)
        if (d->open[e] == open && d->key[e] < INFINITY && (best < 0 || d->key[e] < d->key[best])) best = e;
    if (best < 0) return best;
    d->key[best] = INFINITY;
    d->taken[best] = 1;
    return best;
}

/* Opens top_group groups.  Each gets one expert before any gets two, since a router ranks groups by their best ones. */
static int32_t draw_groups(draw *d, int32_t *ids)
{
    const moewe_config *c = d->cfg;
    int32_t each = c->n_experts / c->n_group, n = 0;
    memset(d->open, 0, (size_t)c->n_experts);
    for (; n < c->top_group && n < c->top_k; n++) {
        ids[n] = take_smallest(d, 0);
        memset(d->open + ids[n] / each * each, 1, (size_t)each);
    }
    return n;
}

/* top_k different experts: an exponential race, so that popularity w gives each of them w of the first places. */
static void draw_token(draw *d, int32_t *ids, uint64_t *rng)
{
    const moewe_config *c = d->cfg;
    int32_t n = 0;
    for (int32_t e = 0; e < c->n_experts; e++) d->key[e] = -log(bench_uniform(rng)) / d->weight[e];
    if (c->n_group > 1) n = draw_groups(d, ids);
    for (; n < c->top_k; n++) ids[n] = take_smallest(d, 1);
}

/* Ranks are dealt to the experts at random, once: the popular ones are the same in every routing. */
static void set_popularity(draw *d, double skew, uint64_t *rng)
{
    int32_t n = d->cfg->n_experts;
    for (int32_t e = 0; e < n; e++) d->weight[e] = pow(e + 1.0, -skew);
    for (int32_t e = n - 1; e > 0; e--) {
        int32_t other = (int32_t)(bench_random(rng) % (uint64_t)(e + 1));
        double w = d->weight[e];
        d->weight[e] = d->weight[other];
        d->weight[other] = w;
    }
}

static void draw_all(layer_rows *r, draw *d, double skew)
{
    const moewe_config *c = d->cfg;
    uint64_t rng = seed;
    set_popularity(d, skew, &rng);
    memset(d->open, 1, (size_t)c->n_experts);
    for (int32_t i = 0; i < r->n_routings; i++) {
        int32_t *ids = r->ids + (size_t)i * (size_t)c->max_tokens * (size_t)c->top_k;
        memset(d->taken, 0, (size_t)c->n_experts);
        for (int32_t t = 0; t < c->max_tokens; t++) draw_token(d, ids + (size_t)t * (size_t)c->top_k, &rng);
        r->distinct[i] = 0;
        for (int32_t e = 0; e < c->n_experts; e++) r->distinct[i] += d->taken[e];
    }
    for (size_t i = 0; i < (size_t)c->max_tokens * (size_t)c->top_k; i++) r->ids_weights[i] = 1.0f / (float)c->top_k;
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static void put(void *x, int32_t dtype, size_t at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == MOEWE_DTYPE_BF16)
        ((uint16_t *)x)[at] = (uint16_t)(bits >> 16);
    else
        ((float *)x)[at] = value;
}

/* About normal, from the sum of four uniform numbers. */
static float normal(uint64_t *rng)
{
    uint64_t r = bench_random(rng);
    double sum = (double)(r & 0xffff) + (double)(r >> 16 & 0xffff) + (double)(r >> 32 & 0xffff) + (double)(r >> 48);
    return (float)((sum / 65536 - 2) * 1.7320508);
}

static void fill_x(layer_rows *r, const moewe_config *c)
{
    uint64_t rng = seed + 1;
    int32_t dtype = c->x_dtype, asked = c->score != MOEWE_SCORE_GIVEN;
    size_t tokens = (size_t)c->max_tokens, hidden = (size_t)c->hidden, top_k = (size_t)c->top_k;
    for (int32_t i = 0; i < r->n_x; i++) {
        uint8_t *x = (uint8_t *)r->x + (uint64_t)i * r->x_bytes;
        for (size_t t = 0; t < tokens; t++) {
            const int32_t *ids = r->ids + ((size_t)i * tokens + t) * top_k;
            for (size_t h = 0; h < hidden; h++) {
                int logit = asked && h < (size_t)(c->n_experts + c->n_null);
                put(x, dtype, t * hidden + h, logit ? 0 : normal(&rng));
            }
            for (size_t k = 0; asked && k < top_k; k++)
                if (ids[k] >= 0) put(x, dtype, t * hidden + (size_t)ids[k], 8);
        }
    }
}

int layer_rows_open(layer_rows *r, const moewe_config *cfg, double skew, fmt_error *e)
{
    size_t pairs = (size_t)cfg->max_tokens * (size_t)cfg->top_k, experts = (size_t)cfg->n_experts;
    uint64_t elements = (uint64_t)cfg->max_tokens * (uint64_t)cfg->hidden;
    int given = cfg->score == MOEWE_SCORE_GIVEN;
    draw d = {cfg, malloc(experts * sizeof(double)), malloc(experts * sizeof(double)), malloc(experts), malloc(experts)};
    memset(r, 0, sizeof *r);
    r->x_bytes = elements * moewe_dtype_bytes(cfg->x_dtype);
    r->n_routings = ROUTINGS;
    if (!given && x_most / r->x_bytes < ROUTINGS)
        r->n_routings = x_most < r->x_bytes ? 1 : (int32_t)(x_most / r->x_bytes);
    r->n_x = given ? 1 : r->n_routings;
    r->x = malloc((uint64_t)r->n_x * r->x_bytes);
    r->y = malloc(elements * moewe_dtype_bytes(cfg->y_dtype));
    r->ids = malloc((size_t)r->n_routings * pairs * sizeof *r->ids);
    r->ids_weights = malloc(pairs * sizeof *r->ids_weights);
    r->distinct = malloc((size_t)r->n_routings * sizeof *r->distinct);
    int bad = !d.weight || !d.key || !d.open || !d.taken || !r->x || !r->y || !r->ids || !r->ids_weights || !r->distinct;
    if (bad)
        fmt_fail(e, "no memory for %d rows of %d numbers and %d routings", (int)cfg->max_tokens, (int)cfg->hidden,
                 (int)r->n_routings);
    else {
        draw_all(r, &d, skew);
        fill_x(r, cfg);
    }
    free(d.weight);
    free(d.key);
    free(d.open);
    free(d.taken);
    return bad ? -1 : 0;
}

void layer_rows_close(layer_rows *r)
{
    free(r->x);
    free(r->y);
    free(r->ids);
    free(r->ids_weights);
    free(r->distinct);
    memset(r, 0, sizeof *r);
}
