/* text_model.h - a model that reads and writes text: tokenizer, engine and generator together, with the
 * options and the memory map that generate and eval share. */
#ifndef MOEWE_CLI_TEXT_MODEL_H
#define MOEWE_CLI_TEXT_MODEL_H

#include "../engine/engine.h"
#include "../engine/generate.h"
#include "../formats/tokenizer.h"
#include "cli.h"

typedef struct text_model {
    const char *dir;
    int loaded; /* config is to be freed */
    model_config config;
    tok *tokenizer;
    engine *engine;
    gen *gen;
} text_model;

/* Each prints what went wrong and returns CLI_FAILED.  First config and tokenizer, so that prompts can be
 * encoded; then, once the lengths are known, the engine that is planned for them. */
int text_model_open(text_model *m, const char *dir);
int text_model_start(text_model *m, const cli_common *common, int32_t sequences, int32_t context);
void text_model_close(text_model *m);

int text_model_ends(const text_model *m, int32_t token); /* an end-of-text id */

/* Runs the requests with the allocation guard armed; *allocations is UINT64_MAX where none can be counted. */
int text_model_run(text_model *m, const gen_request *requests, size_t n, const gen_sampling *s, gen_token_fn on_token,
                   void *ctx, gen_stats *stats, uint64_t *allocations);

void text_model_print_allocations(uint64_t allocations);
void text_model_print_memory(const text_model *m);

#endif
