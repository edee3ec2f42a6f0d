/* layer.c - the measurement: layers and routings in rotation, two calls to warm up, then calls for about as long as
 * asked; the machine's ceilings before and after. */
#include "layer.h"

#include <stdlib.h>
#include <string.h>

#include "ceilings.h"
#include "clock.h"
#include "layer_data.h"
#include "quantile.h"

enum { WARM_UPS = 2, CALLS_LEAST = 3, CALLS_LEAST_SLOW = 2, CALLS_MOST = 200 };
static const uint64_t rotate_default = 1500000000;
static const double slow_call = 3;

typedef struct job {
    const bench_layer_ask *ask;
    moewe_config cfg;
    bench_reader reader;
    layer_set set;
    bench_peak peak;
    bench_ceiling now;  /* as last measured */
    double times[CALLS_MOST];
} job;

typedef struct call_site {
    job *j;
    moewe_plan *plan;
    moewe_need need;
    moewe_span workspace;
    layer_rows rows;
} call_site;

/* ---- arithmetic --------------------------------------------------------------------------- */

static double operations_of(const moewe_config *c)
{
    double matrices = c->act < MOEWE_ACT_RELU2 ? 3 : 2, width = c->latent ? c->latent : c->hidden;
    double token = (double)c->top_k * 2 * matrices * width * c->inter;
    if (c->score != MOEWE_SCORE_GIVEN) token += 2.0 * c->hidden * (c->n_experts + c->n_null);
    token += 2.0 * matrices * c->hidden * c->shared_inter + 4.0 * c->hidden * c->latent;
    return token * c->max_tokens;
}

static double roofline_of(const bench_point *p)
{
    double read = (p->before.read + p->after.read) / 2, peak = (p->before.peak + p->after.peak) / 2;
    double by_bytes = p->bytes / read, by_operations = peak > 0 ? p->operations / peak : 0;
    return by_bytes > by_operations ? by_bytes : by_operations;
}

/* ---- one point ------------------------------------------------------------------------------- */

static bench_ceiling ceilings_now(const job *j)
{
    bench_ceiling c = {bench_reader_measure(&j->reader), 0};
    if (j->peak < BENCH_PEAK_COUNT) c.peak = bench_peak_measure(j->ask->dev, j->peak);
    return c;
}

static int site_open(call_site *s, job *j, int32_t tokens, fmt_error *e)
{
    moewe_config c = j->cfg;
    memset(s, 0, sizeof *s);
    s->j = j;
    c.max_tokens = tokens;
    c.workspace_limit = j->ask->workspace_limit;
    if (moewe_plan_create(j->ask->dev, &c, &s->plan) || moewe_plan_need(s->plan, &s->need) ||
        moewe_device_alloc(j->ask->dev, s->need, &s->workspace))
        return fmt_fail(e, "%s: %d tokens: %s", j->ask->shape.name, (int)tokens, moewe_last_error());
    return layer_rows_open(&s->rows, &c, j->ask->skew, e);
}

static void site_close(call_site *s)
{
    layer_rows_close(&s->rows);
    if (s->workspace.ptr) moewe_device_free(s->j->ask->dev, s->workspace);
    moewe_plan_destroy(s->plan);
}

/* Call number i, in seconds; negative when it failed. */
static double call(const call_site *s, int32_t i, int32_t tokens)
{
    const job *j = s->j;
    const layer_rows *r = &s->rows;
    int32_t routing = i % r->n_routings;
    moewe_io io;
    MOEWE_INIT(io);
    io.n_tokens = tokens;
    io.x = (const uint8_t *)r->x + (r->n_x > 1 ? (uint64_t)routing * r->x_bytes : 0);
    io.y = r->y;
    if (j->cfg.score == MOEWE_SCORE_GIVEN) {
        io.topk_ids = r->ids + (size_t)routing * (size_t)tokens * (size_t)j->cfg.top_k;
        io.topk_weights = r->ids_weights;
    }
    double start = bench_seconds();
    if (moewe_run(s->plan, &j->set.weights[i % j->set.n_layers], &io, s->workspace, NULL)) return -1;
    return bench_seconds() - start;
}

static int time_calls(call_site *s, bench_point *p, fmt_error *e)
{
    job *j = s->j;
    double spent = 0, last = 0, experts = 0;
    int32_t n = 0, i = 0;
    for (; i < WARM_UPS && last >= 0; i++) last = call(s, i, p->tokens);
    int32_t least = last > slow_call ? CALLS_LEAST_SLOW : CALLS_LEAST;
    for (; last >= 0 && n < CALLS_MOST && (n < least || spent < j->ask->seconds); i++, n++) {
        last = call(s, i, p->tokens);
        j->times[n] = last;
        spent += last;
        experts += s->rows.distinct[i % s->rows.n_routings];
    }
    if (last < 0) return fmt_fail(e, "%s: %d tokens: %s", j->ask->shape.name, (int)p->tokens, moewe_last_error());
    bench_sort(j->times, n);
    p->calls = n;
    p->median = bench_quantile(j->times, n, 0.5);
    p->p10 = bench_quantile(j->times, n, 0.1);
    p->p90 = bench_quantile(j->times, n, 0.9);
    p->experts = experts / n;
    return 0;
}

static int measure(job *j, int32_t tokens, bench_point *p, fmt_error *e)
{
    call_site s;
    moewe_config c = j->cfg;
    c.max_tokens = tokens;
    *p = (bench_point){.tokens = tokens, .layers = j->set.n_layers, .peak = j->peak, .before = j->now};
    int bad = site_open(&s, j, tokens, e);
    if (!bad) bad = time_calls(&s, p, e);
    p->routings = s.rows.n_routings;
    p->scratch = s.need.bytes;
    p->operations = operations_of(&c);
    site_close(&s);
    if (bad) return -1;
    p->bytes = p->experts * (double)j->set.expert_bytes + (double)j->set.always_bytes;
    p->after = j->now = ceilings_now(j);
    p->roofline = roofline_of(p);
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int set_up(job *j, fmt_error *e)
{
    const bench_layer_ask *a = j->ask;
    moewe_config *c = &j->cfg;
    *c = a->whole ? a->shape.whole : bench_shape_experts(&a->shape);
    if (a->whole && c->n_experts + c->n_null > c->hidden)
        return fmt_fail(e, "%s: %d experts and a width of %d: a whole layer is timed with a router that reads its choice "
                           "from x, so it needs at least as much width as experts",
                        a->shape.name, (int)(c->n_experts + c->n_null), (int)c->hidden);
    if (c->top_k > c->n_experts)
        return fmt_fail(e, "%s: top_k is %d, routings of different experts need at most %d", a->shape.name, (int)c->top_k,
                        (int)c->n_experts);
    c->x_dtype = a->x_dtype;
    c->y_dtype = a->y_dtype;
    c->w_dtype = a->type.dtype;
    c->name = a->shape.name;
    c->max_tokens = 1;
    if (bench_reader_open(&j->reader, a->dev, a->read_bytes ? a->read_bytes : BENCH_READ_BYTES, e)) return -1;
    if (layer_set_open(&j->set, a->dev, c, &a->type, a->rotate_bytes ? a->rotate_bytes : rotate_default, e)) return -1;
    j->peak = bench_peak_of_dtype(a->dev, a->type.dtype);
    j->now = ceilings_now(j);
    return 0;
}

int bench_layer(const bench_layer_ask *ask, const int32_t *tokens, size_t n_tokens, bench_point_fn fn, void *ctx,
                fmt_error *e)
{
    bench_point p;
    job *j = calloc(1, sizeof *j);
    if (!j) return fmt_fail(e, "no memory for the times of %d calls", (int)CALLS_MOST);
    j->ask = ask;
    int result = set_up(j, e);
    for (size_t i = 0; !result && i < n_tokens; i++) {
        result = measure(j, tokens[i], &p, e);
        if (!result) result = fn(ctx, &p);
    }
    layer_set_close(&j->set);
    bench_reader_close(&j->reader);
    free(j);
    return result;
}
