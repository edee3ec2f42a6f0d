/* model.h - times the engine on a checkpoint: reading prompts and making tokens, with tokens drawn at random. */
#ifndef MOEWE_BENCH_MODEL_H
#define MOEWE_BENCH_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "../engine/engine.h"
#include "../formats/error.h"

typedef struct bench_model_ask {
    const char *dir;
    engine_options options;  /* max_sequences and context are set from what follows */
    const int32_t *prompts;  /* tokens of a prompt */
    size_t n_prompts;
    const int32_t *batches;  /* sequences that generate at once */
    size_t n_batches;
    int32_t depth;           /* tokens that a sequence holds when generation starts */
    double seconds;          /* for each number, about */
} bench_model_ask;

typedef struct bench_rate {
    int32_t tokens;          /* of the prompt; or sequences in the batch */
    int generation;
    int32_t passes;          /* timed */
    double median, p10, p90; /* seconds of a prompt, or of one token of every sequence */
} bench_rate;

typedef struct bench_model_out {
    void *ctx;
    int (*opened)(void *ctx, const engine *g); /* once, before the first rate; nonzero stops, here and below */
    int (*rate)(void *ctx, const bench_rate *r);
} bench_model_out;

/* 0; or -1 and a sentence; or what a function of out returned. */
int bench_model(const bench_model_ask *ask, const bench_model_out *out, fmt_error *e);

#endif
