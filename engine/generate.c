/* generate.c - continuous batching: each forward pass holds one token of every running sequence and fills up with
 * prompt tokens of those that wait; a slot is free for the next request as soon as its sequence ends.  Owns the
 * slots and the batch.  gen_run allocates nothing, and what a request gets does not depend on its neighbours. */
#include <stdlib.h>
#include <time.h>

#include "generate.h"

typedef struct gen_slot {
    const gen_request *request; /* NULL = free */
    size_t index;               /* of the request */
    int32_t done;               /* tokens that the KV cache holds */
    int32_t produced;
    int32_t token;  /* the next to feed once the prompt is done */
    int32_t wanted; /* row of logits in this pass, or -1 */
    uint64_t rng;
} gen_slot;

struct gen {
    engine *engine;
    int32_t n_slots, max_batch, vocab;
    gen_slot *slots;          /* [n_slots] */
    int32_t *ids, *seq, *pos; /* [max_batch] */
    uint8_t *want;
    gen_candidate *scratch; /* [vocab] */
    engine_batch batch;
};

int gen_create(engine *g, gen **out, fmt_error *e)
{
    const engine_options *o = engine_options_get(g);
    size_t rows = (size_t)o->max_batch;
    gen *n = calloc(1, sizeof *n);
    if (n) {
        n->engine = g;
        n->n_slots = o->max_sequences;
        n->max_batch = o->max_batch;
        n->vocab = engine_config(g)->vocab;
        n->slots = calloc((size_t)n->n_slots, sizeof *n->slots);
        n->ids = calloc(rows, sizeof *n->ids);
        n->seq = calloc(rows, sizeof *n->seq);
        n->pos = calloc(rows, sizeof *n->pos);
        n->want = calloc(rows, sizeof *n->want);
        n->scratch = calloc((size_t)n->vocab, sizeof *n->scratch);
    }
    if (!n || !n->slots || !n->ids || !n->seq || !n->pos || !n->want || !n->scratch) {
        gen_destroy(n);
        return fmt_fail(e, "no memory to schedule %d sequences in batches of %d tokens", (int)o->max_sequences,
                        (int)o->max_batch);
    }
    *out = n;
    return 0;
}

void gen_destroy(gen *g)
{
    if (!g) return;
    free(g->slots);
    free(g->ids);
    free(g->seq);
    free(g->pos);
    free(g->want);
    free(g->scratch);
    free(g);
}

/* ---- checks, before anything runs -------------------------------------------------- */

static int sampling_check(const gen_sampling *s, fmt_error *e)
{
    if (!(s->temperature >= 0.0f && s->temperature <= 1e6f))
        return fmt_fail(e, "the temperature is %g, expected 0 (greedy) to 1e6", (double)s->temperature);
    if (!(s->top_p >= 0.0f && s->top_p <= 1.0f))
        return fmt_fail(e, "top_p is %g, expected 0 (off) to 1", (double)s->top_p);
    if (s->top_k < 0) return fmt_fail(e, "top_k is %d, expected 0 (off) or more", (int)s->top_k);
    return 0;
}

static int request_check(const gen *g, const gen_request *r, size_t index, fmt_error *e)
{
    int32_t context = engine_options_get(g->engine)->context;
    if (r->n_prompt < 1 || !r->prompt)
        return fmt_fail(e, "prompt %zu has %d tokens, expected at least one", index, (int)r->n_prompt);
    if (r->max_new < 0)
        return fmt_fail(e, "prompt %zu asks for %d new tokens, expected 0 or more", index, (int)r->max_new);
    if (r->n_prompt > context || r->max_new > context - r->n_prompt)
        return fmt_fail(e, "prompt %zu has %d tokens and asks for %d more; the context is %d tokens", index,
                        (int)r->n_prompt, (int)r->max_new, (int)context);
    for (int32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= g->vocab)
            return fmt_fail(e, "prompt %zu has token id %d at %d; the model's vocabulary is 0 to %d", index,
                            (int)r->prompt[i], (int)i, (int)g->vocab - 1);
    return 0;
}

/* ---- one pass ------------------------------------------------------------------------ */

static void slots_fill(gen *g, const gen_request *requests, size_t n, size_t *next, uint64_t seed)
{
    for (int32_t i = 0; i < g->n_slots && *next < n; i++) {
        gen_slot *s = &g->slots[i];
        if (s->request) continue;
        while (*next < n && requests[*next].max_new == 0) ++*next;
        if (*next == n) break;
        *s = (gen_slot){.request = &requests[*next], .index = *next, .wanted = -1, .rng = gen_seed(seed, *next)};
        ++*next;
    }
}

static void row_add(gen *g, int32_t slot, int32_t token, int want, int32_t *n_wanted)
{
    gen_slot *s = &g->slots[slot];
    int32_t row = g->batch.n_tokens++;
    g->ids[row] = token;
    g->seq[row] = slot;
    g->pos[row] = s->done++;
    g->want[row] = (uint8_t)want;
    if (want) s->wanted = (*n_wanted)++;
}

/* Rows for the next pass; returns how many of them are prompt tokens. */
static int32_t batch_build(gen *g)
{
    int32_t n_wanted = 0, running;
    g->batch = (engine_batch){.ids = g->ids, .seq = g->seq, .pos = g->pos, .want = g->want};
    for (int32_t i = 0; i < g->n_slots; i++) {
        gen_slot *s = &g->slots[i];
        s->wanted = -1;
        if (s->request && s->done >= s->request->n_prompt) row_add(g, i, s->token, 1, &n_wanted);
    }
    running = g->batch.n_tokens;
    for (int32_t i = 0; i < g->n_slots; i++) {
        const gen_request *r = g->slots[i].request;
        if (!r || g->slots[i].wanted >= 0) continue;
        while (g->slots[i].done < r->n_prompt && g->batch.n_tokens < g->max_batch)
            row_add(g, i, r->prompt[g->slots[i].done], g->slots[i].done + 1 == r->n_prompt, &n_wanted);
    }
    return g->batch.n_tokens - running;
}

static int ends_text(const model_config *c, int32_t token)
{
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] == token) return 1;
    return 0;
}

static double seconds(void)
{
    struct timespec t = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A token for every sequence whose logits stand ready; ends and frees those that are done. */
static void tokens_take(gen *g, const gen_sampling *sampling, gen_token_fn on_token, void *ctx, gen_stats *stats)
{
    for (int32_t i = 0; i < g->n_slots; i++) {
        gen_slot *s = &g->slots[i];
        int stop = 0;
        if (!s->request || s->wanted < 0) continue;
        s->token = gen_sample(sampling, engine_logits(g->engine, s->wanted), g->vocab, g->scratch, &s->rng);
        s->produced++;
        stats->new_tokens++;
        if (on_token) stop = on_token(ctx, s->index, s->token);
        if (stop || s->produced >= s->request->max_new || ends_text(engine_config(g->engine), s->token))
            s->request = NULL;
    }
}

int gen_run(gen *g, const gen_request *requests, size_t n, const gen_sampling *s, gen_token_fn on_token, void *ctx,
            gen_stats *stats, fmt_error *e)
{
    static const gen_sampling greedy = {0};
    gen_stats local = {0};
    size_t next = 0;

    if (!s) s = &greedy;
    if (sampling_check(s, e)) return -1;
    for (size_t i = 0; i < n; i++)
        if (request_check(g, &requests[i], i, e)) return -1;
    for (int32_t i = 0; i < g->n_slots; i++) g->slots[i].request = NULL;

    for (;;) {
        double start = seconds(), taken;
        int32_t prompt_rows;
        slots_fill(g, requests, n, &next, s->seed);
        prompt_rows = batch_build(g);
        if (!g->batch.n_tokens) break;
        if (engine_forward(g->engine, &g->batch, e)) return -1;
        tokens_take(g, s, on_token, ctx, &local);
        taken = seconds() - start;
        local.prompt_tokens += (uint64_t)prompt_rows;
        if (prompt_rows)
            local.prompt_seconds += taken;
        else
            local.new_seconds += taken;
    }
    if (stats) *stats = local;
    return 0;
}
