/* plan_words.c - the answer of moewe plan for people. */
#include <inttypes.h>
#include <stdlib.h>

#include "plan_out.h"

size_t plan_rows(const planner_plan *p, plan_row rows[PLAN_ROWS_MAX])
{
    static const char *const colours[PLANNER_PART_COUNT] = {
        [PLANNER_EXPERTS] = "#4e79a7",   [PLANNER_SHARED] = "#76b7b2",    [PLANNER_ROUTER] = "#9c755f",
        [PLANNER_DENSE] = "#59a14f",     [PLANNER_ATTENTION] = "#f28e2b", [PLANNER_NORMS] = "#bab0ac",
        [PLANNER_EMBEDDINGS] = "#edc948"};
    size_t n = 0;
    for (int i = 0; i < PLANNER_PART_COUNT; i++)
        rows[n++] = (plan_row){planner_part_name((planner_part)i), colours[i], p->part[i].values};
    rows[n++] = (plan_row){"scales", "#a0cbe8", p->scales};
    rows[n++] = (plan_row){"KV cache", "#e15759", p->kv};
    rows[n++] = (plan_row){"recurrent state", "#ff9da7", p->state};
    rows[n++] = (plan_row){p->ask.lanes > 1 ? "moewe workspaces" : "moewe workspace", "#b07aa1", p->workspaces};
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (rows[i].bytes) rows[kept++] = rows[i];
    return kept;
}

static void print_model(const plan_answer *a)
{
    const planner_facts *f = a->facts;
    const planner_plan *p = &a->plan;
    printf("%s: %s (described as %s%s), %d layers, %d with experts\n", f->file, f->model_type, f->family,
           f->exact ? "" : ", not compared with a checkpoint", (int)f->n_layers, (int)f->n_moe_layers);
    printf("%" PRIu64 " parameters (%.2f billion), %" PRIu64 " of them in routed experts\n", f->params,
           (double)f->params / 1e9, f->routed_params);
    if (!f->n_moe_layers) return;
    printf("experts: %" PRId64 ", top %" PRId64 ", %" PRId64 " columns, rows of %" PRId64 "%s\n", f->n_experts,
           f->top_k, f->inter, f->latent ? f->latent : f->hidden, f->latent ? " (latent)" : "");
    printf("rank 0 of %d (tp %d x dp %d): %d experts (ep %d%s)", (int)(p->shard.tp * p->shard.dp), (int)p->shard.tp,
           (int)p->shard.dp, (int)p->shard.n_local, (int)p->shard.ep,
           p->shard.expert_tp > 1 ? ", each cut" : ", whole");
    if (p->shard.expert_tp > 1) printf(" over %d ranks", (int)p->shard.expert_tp);
    if (p->shard.gathered > 1)
        printf(", %d tokens of %d ranks in one call", (int)p->call_tokens, (int)p->shard.gathered);
    putchar('\n');
}

static void print_map(const plan_answer *a)
{
    const planner_plan *p = &a->plan;
    plan_row rows[PLAN_ROWS_MAX];
    size_t n = plan_rows(p, rows);
    printf("\nweights: experts %s, the other matrices %s, the rest %s (quantisation: %s)\n", p->expert_format.name,
           p->linear_format.name, p->plain_format.name, p->ask.weights ? "--weights" : a->facts->quant);
    for (size_t i = 0; i < n; i++) printf("  %-18s %s\n", rows[i].name, cli_size_text(rows[i].bytes).text);
    printf("  %-18s %s\n", "all weights", cli_size_text(p->weights).text);
    printf("  %-18s %s\n", "total", cli_size_text(p->total).text);
    printf("\nKV cache in %s: %" PRIu64 " bytes a token", p->kv_fp8 ? "fp8" : "bf16", p->kv_per_token);
    if (p->kv_window) printf(", and %" PRIu64 " a sequence in layers with a window", p->kv_window);
    printf(", for %" PRId64 " sequence%s of %" PRId64 " tokens\n", p->ask.sequences, p->ask.sequences == 1 ? "" : "s",
           p->ask.context);
    if (p->shard.kv_copies > 1) printf("each KV head is held by %d ranks\n", (int)p->shard.kv_copies);
}

static int print_workspace(const plan_answer *a)
{
    const planner_plan *p = &a->plan;
    if (!a->layer) {
        printf("\nno MoE layers: no workspace\n");
        return CLI_OK;
    }
    size_t length = moewe_plan_describe(a->layer, NULL, 0);
    char *text = malloc(length + 1);
    if (!text) return cli_fail("no memory for a text of %zu bytes", length);
    moewe_plan_describe(a->layer, text, length + 1);
    printf("\n%s\n", text);
    free(text);
    printf("workspace: %s, shared by %d MoE layers", cli_size_text(a->need.bytes).text, (int)a->facts->n_moe_layers);
    if (p->ask.lanes > 1) printf(", times %d lanes", (int)p->ask.lanes);
    printf("\none for each layer would take: %s\n", cli_size_text(a->one_per_layer).text);
    if (p->workspace != p->workspace_fast)
        printf("as fast as possible it would take: %s\n", cli_size_text(p->workspace_fast).text);
    printf("floor, the least --workspace-limit: %s\n", cli_size_text(p->workspace_floor).text);
    printf("one pass over all pairs (%lld pairs x (%d x %u + 16) bytes) would take: %s\n",
           (long long)p->call_tokens * p->moe.top_k, (int)p->moe.inter, (unsigned)moewe_dtype_bytes(p->moe.x_dtype),
           cli_size_text(a->one_pass).text);
    return CLI_OK;
}

static void print_compare(const plan_answer *a)
{
    if (!a->compare || !a->layer) return;
    printf("\nscratch of the same call in other layouts (values between the GEMMs in %s):\n", a->scratch_type);
    for (int i = 0; i < PLANNER_LAYOUT_COUNT; i++)
        printf("  %s: %s\n", planner_layout_text((planner_layout)i), cli_size_text(a->scratch[i]).text);
}

static void print_cpu(const plan_answer *a)
{
    if (!a->on_cpu) return;
    printf("\non this CPU (%s, experts held as %s): packed weights of a MoE layer %s", moewe_device_backend(a->device),
           moewe_dtype_name(a->w_dtype), cli_size_text(a->cpu.packed_layer).text);
    printf(", of all %s\n", cli_size_text(a->cpu.packed_layers).text);
    if (a->cpu.engine) {
        printf("moewe generate would take: weights %s", cli_size_text(a->cpu.weights).text);
        printf(", KV cache %s", cli_size_text(a->cpu.kv).text);
        printf(", workspace %s\n", cli_size_text(a->cpu.workspace).text);
    }
}

static void print_fit(const plan_answer *a)
{
    const planner_plan *p = &a->plan;
    if (!p->budget) return;
    printf("\nbudget: %s, %g of %s\n", cli_size_text(p->budget).text, p->ask.utilization,
           cli_size_text(p->ask.memory).text);
    if (p->kv_tokens == UINT64_MAX)
        printf("KV tokens that fit: any number, no layer's cache grows\n");
    else
        printf("KV tokens that fit beside the rest: %" PRIu64 "\n", p->kv_tokens);
    if (p->fits) {
        printf("fits, with %s left\n", cli_size_text(p->left).text);
    } else {
        printf("does not fit by %s: needs %" PRIu64 ", may use %" PRIu64 "\n", cli_size_text(p->short_by).text,
               p->total, p->budget);
        printf("one change that would make it fit: %s\n", p->change);
    }
}

int plan_print_words(const plan_answer *a)
{
    print_model(a);
    print_map(a);
    int status = print_workspace(a);
    if (status) return status;
    print_compare(a);
    print_cpu(a);
    print_fit(a);
    return CLI_OK;
}
