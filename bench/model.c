/* model.c - forward passes of the engine as prompts and generation make them.  Tokens are random: what the model says
 * does not matter, its routers choose experts all the same. */
#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "quantile.h"
#include "weight_type.h"

enum { PASSES_LEAST = 3, PASSES_MOST = 64 };

typedef struct job {
    const bench_model_ask *ask;
    engine *g;
    engine_batch batch;
    int32_t *ids, *seq, *pos; /* [max_batch] */
    uint8_t *want;
    uint64_t rng;
    double times[PASSES_MOST];
} job;

static int32_t largest(const int32_t *n, size_t count)
{
    int32_t most = 0;
    for (size_t i = 0; i < count; i++)
        if (n[i] > most) most = n[i];
    return most;
}

static int forward(job *j, int32_t n, double *seconds, fmt_error *e)
{
    j->batch.n_tokens = n;
    double start = bench_seconds();
    if (engine_forward(j->g, &j->batch, e)) return -1;
    *seconds += bench_seconds() - start;
    return 0;
}

static void put(job *j, int32_t row, int32_t seq, int32_t pos, int want)
{
    j->ids[row] = (int32_t)(bench_random(&j->rng) % (uint64_t)engine_config(j->g)->vocab);
    j->seq[row] = seq;
    j->pos[row] = pos;
    j->want[row] = (uint8_t)want;
}

/* tokens of one sequence from the start, in as few passes as they fit; logits of the last one. */
static int read_prompt(job *j, int32_t seq, int32_t tokens, double *seconds, fmt_error *e)
{
    int32_t most = engine_options_get(j->g)->max_batch;
    for (int32_t at = 0; at < tokens;) {
        int32_t n = tokens - at < most ? tokens - at : most;
        for (int32_t i = 0; i < n; i++) put(j, i, seq, at + i, at + i == tokens - 1);
        if (forward(j, n, seconds, e)) return -1;
        at += n;
    }
    return 0;
}

static void fill(bench_rate *r, double *times, int32_t n)
{
    bench_sort(times, n);
    r->passes = n;
    r->median = bench_quantile(times, n, 0.5);
    r->p10 = bench_quantile(times, n, 0.1);
    r->p90 = bench_quantile(times, n, 0.9);
}

static int time_prompt(job *j, int32_t tokens, bench_rate *r, fmt_error *e)
{
    double spent = 0, last = 0;
    int32_t n = 0;
    *r = (bench_rate){.tokens = tokens};
    if (read_prompt(j, 0, tokens, &last, e)) return -1; /* to warm up */
    for (; n < PASSES_MOST && (n < PASSES_LEAST || spent < j->ask->seconds); n++) {
        last = 0;
        if (read_prompt(j, 0, tokens, &last, e)) return -1;
        j->times[n] = last;
        spent += last;
    }
    fill(r, j->times, n);
    return 0;
}

static int step(job *j, int32_t sequences, int32_t at, double *seconds, fmt_error *e)
{
    for (int32_t s = 0; s < sequences; s++) put(j, s, s, at, 1);
    return forward(j, sequences, seconds, e);
}

static int time_generation(job *j, int32_t sequences, bench_rate *r, fmt_error *e)
{
    double spent = 0, last = 0;
    int32_t n = 0, at = j->ask->depth;
    *r = (bench_rate){.tokens = sequences, .generation = 1};
    for (int32_t s = 0; s < sequences; s++)
        if (read_prompt(j, s, j->ask->depth, &last, e)) return -1;
    if (step(j, sequences, at++, &last, e)) return -1; /* to warm up */
    for (; n < PASSES_MOST && (n < PASSES_LEAST || spent < j->ask->seconds); n++) {
        last = 0;
        if (step(j, sequences, at++, &last, e)) return -1;
        j->times[n] = last;
        spent += last;
    }
    fill(r, j->times, n);
    return 0;
}

static int set_up(job *j, fmt_error *e)
{
    const bench_model_ask *a = j->ask;
    engine_options o = a->options;
    int32_t prompt = largest(a->prompts, a->n_prompts), generated = a->depth + 1 + PASSES_MOST;
    o.max_sequences = largest(a->batches, a->n_batches);
    o.context = a->n_batches && generated > prompt ? generated : prompt;
    if (engine_open(a->dir, &o, &j->g, e)) return -1;
    size_t rows = (size_t)engine_options_get(j->g)->max_batch;
    j->ids = malloc(rows * sizeof *j->ids);
    j->seq = malloc(rows * sizeof *j->seq);
    j->pos = malloc(rows * sizeof *j->pos);
    j->want = malloc(rows);
    j->batch = (engine_batch){0, j->ids, j->seq, j->pos, j->want};
    j->rng = 1;
    return j->ids && j->seq && j->pos && j->want ? 0 : fmt_fail(e, "no memory for a batch of %zu tokens", rows);
}

int bench_model(const bench_model_ask *ask, const bench_model_out *out, fmt_error *e)
{
    bench_rate r;
    job *j = calloc(1, sizeof *j);
    if (!j) return fmt_fail(e, "no memory for the times of %d passes", (int)PASSES_MOST);
    j->ask = ask;
    int result = set_up(j, e);
    if (!result) result = out->opened(out->ctx, j->g);
    for (size_t i = 0; !result && i < ask->n_prompts; i++) {
        result = time_prompt(j, ask->prompts[i], &r, e);
        if (!result) result = out->rate(out->ctx, &r);
    }
    for (size_t i = 0; !result && i < ask->n_batches; i++) {
        result = time_generation(j, ask->batches[i], &r, e);
        if (!result) result = out->rate(out->ctx, &r);
    }
    engine_close(j->g);
    free(j->ids);
    free(j->seq);
    free(j->pos);
    free(j->want);
    free(j);
    return result;
}
