/* generate.h - from prompts to tokens: continuous batching over engine_forward, and the sampler.
 * gen_create takes all memory; gen_run allocates nothing. */
#ifndef MOEWE_ENGINE_GENERATE_H
#define MOEWE_ENGINE_GENERATE_H

#include "engine.h"

typedef struct gen_sampling {
    float    temperature; /* 0 = greedy: the largest logit, the lowest id among equals */
    float    top_p;       /* 0 or 1 = off */
    int32_t  top_k;       /* 0 = off */
    uint64_t seed;        /* a sequence's random numbers depend on seed and its index only, not on the batch */
} gen_sampling;

/* Picks a token from logits[vocab]; scratch holds vocab pairs.  *rng is the sequence's state. */
typedef struct gen_candidate { float logit; int32_t id; } gen_candidate;
int32_t gen_sample(const gen_sampling *s, const float *logits, int32_t vocab, gen_candidate *scratch, uint64_t *rng);
uint64_t gen_seed(uint64_t seed, uint64_t sequence_index); /* the state a sequence starts from */

typedef struct gen_request {
    const int32_t *prompt;   /* at least one token */
    int32_t        n_prompt;
    int32_t        max_new;  /* prompt + max_new must fit the context: checked before anything runs */
} gen_request;

typedef struct gen_stats {
    uint64_t prompt_tokens, new_tokens;
    double   prompt_seconds, new_seconds; /* forward passes that held any prompt token; the others */
} gen_stats;

/* Called for every new token, end-of-text included; nonzero ends that sequence after this token. */
typedef int (*gen_token_fn)(void *ctx, size_t request, int32_t token);

typedef struct gen gen;
int  gen_create(engine *g, gen **out, fmt_error *e);
void gen_destroy(gen *g); /* NULL is allowed */

/* Runs all requests, up to the engine's max_sequences at a time, in index order; a sequence ends at
 * an end-of-text id, at max_new, or when on_token says so. */
int gen_run(gen *g, const gen_request *requests, size_t n, const gen_sampling *s, gen_token_fn on_token, void *ctx,
            gen_stats *stats, fmt_error *e);

#endif
