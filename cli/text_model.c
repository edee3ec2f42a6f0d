/* text_model.c - opens tokenizer and engine, runs requests under the allocation guard, prints where the
 * bytes are.  The guard is armed here and nowhere else. */
#include "text_model.h"

#include <stdio.h>
#include <string.h>

#include "../engine/alloc_guard.h"

int text_model_open(text_model *m, const char *dir)
{
    fmt_error e;
    memset(m, 0, sizeof *m);
    m->dir = dir;
    if (model_config_load(dir, &m->config, &e)) return cli_fail("%s", e.text);
    m->loaded = 1;
    return tok_open(dir, &m->tokenizer, &e) ? cli_fail("%s", e.text) : CLI_OK;
}

int text_model_start(text_model *m, const cli_common *common, int32_t sequences, int32_t context)
{
    fmt_error e;
    engine_options o = {.backend = common->backend,
                        .threads = common->threads,
                           .pin = common->pin,
                        .dtype = common->dtype,
                        .max_sequences = sequences,
                        .context = context,
                        .workspace_limit = common->workspace_limit};
    if (engine_open(m->dir, &o, &m->engine, &e) || gen_create(m->engine, &m->gen, &e)) return cli_fail("%s", e.text);
    return CLI_OK;
}

void text_model_close(text_model *m)
{
    gen_destroy(m->gen);
    engine_close(m->engine);
    tok_close(m->tokenizer);
    if (m->loaded) model_config_free(&m->config);
    memset(m, 0, sizeof *m);
}

int text_model_ends(const text_model *m, int32_t token)
{
    for (int32_t i = 0; i < m->config.n_eos; i++)
        if (m->config.eos_ids[i] == token) return 1;
    return 0;
}

int text_model_run(text_model *m, const gen_request *requests, size_t n, const gen_sampling *s, gen_token_fn on_token,
                   void *ctx, gen_stats *stats, uint64_t *allocations)
{
    fmt_error e;
    int counts = alloc_guard_works();
    alloc_guard_arm();
    int bad = gen_run(m->gen, requests, n, s, on_token, ctx, stats, &e);
    uint64_t counted = alloc_guard_disarm();
    *allocations = counts ? counted : UINT64_MAX;
    return bad ? cli_fail("%s", e.text) : CLI_OK;
}

void text_model_print_allocations(uint64_t allocations)
{
    if (allocations == UINT64_MAX)
        printf("allocations after start: not counted in this build\n");
    else
        printf("allocations after start: %llu\n", (unsigned long long)allocations);
}

static void print_part(const char *name, uint64_t bytes, const char *note)
{
    printf("  %-12s %14llu %10.2f MiB%s%s\n", name, (unsigned long long)bytes, (double)bytes / (1 << 20),
           *note ? "  " : "", note);
}

void text_model_print_memory(const text_model *m)
{
    engine_memory memory;
    const engine_options *o = engine_options_get(m->engine);
    char note[160];
    int32_t moe_layers = 0;
    engine_memory_get(m->engine, &memory);
    for (int32_t i = 0; i < m->config.n_layers; i++) moe_layers += m->config.layer_is_moe[i] != 0;

    printf("memory map        bytes\n");
    print_part("weights", memory.weights, "packed for the kernels");
    snprintf(note, sizeof note, "%d sequence%s of %d tokens", (int)o->max_sequences, o->max_sequences == 1 ? "" : "s",
             (int)o->context);
    print_part("KV cache", memory.kv_cache, note);
    snprintf(note, sizeof note, "shared by %d MoE layers; one per layer would take %llu", (int)moe_layers,
             (unsigned long long)memory.workspace_per_layer_sum);
    print_part("workspace", memory.workspace, note);
    snprintf(note, sizeof note, "batches of up to %d tokens, with tables and logits", (int)o->max_batch);
    print_part("activations", memory.activations, note);
    print_part("total", memory.total, "");
    print_part("checkpoint", memory.mapped, "mapped from its files, not in the total");
}
