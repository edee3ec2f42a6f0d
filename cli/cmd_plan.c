/* cmd_plan.c - moewe plan: what a model takes on each rank, from config.json alone.  Asks planner/ and hands the answer
 * to plan_*.c. */
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "plan_out.h"

typedef struct plan_job {
    cli_common common;
    planner_ask ask;
    const char *weights_name, *svg, *path;
    int32_t context, sequences;
    int json, compare;
    planner_model *model;
    moewe_device *device;
    moewe_plan *layer;
    plan_answer answer;
} plan_job;

static int layer_plan(plan_job *j)
{
    plan_answer *a = &j->answer;
    moewe_config c = a->plan.moe;
    uint64_t pairs, pair_bytes;
    if (!a->facts->n_moe_layers) return CLI_OK;
    c.name = a->facts->model_type;
    if (moewe_plan_create(j->device, &c, &j->layer) || moewe_plan_need(j->layer, &a->need))
        return cli_fail("%s: %s", a->facts->file, moewe_last_error());
    a->layer = j->layer;
    pairs = (uint64_t)c.max_tokens * (uint64_t)c.top_k;
    pair_bytes = (uint64_t)c.inter * moewe_dtype_bytes(c.x_dtype) + 16;
    if (__builtin_mul_overflow(pairs, pair_bytes, &a->one_pass) ||
        __builtin_mul_overflow(a->need.bytes, (uint64_t)a->facts->n_moe_layers, &a->one_per_layer))
        return cli_fail("%s: %d tokens over %d layers need more than 2^64 bytes", a->facts->file, (int)c.max_tokens,
                        (int)a->facts->n_moe_layers);
    return CLI_OK;
}

static void compare(plan_job *j)
{
    plan_answer *a = &j->answer;
    planner_call call = planner_call_of(j->model, &a->plan);
    a->compare = j->compare;
    a->scratch_type = call.mid.name;
    for (int i = 0; a->layer && i < PLANNER_LAYOUT_COUNT; i++)
        a->scratch[i] = planner_scratch((planner_layout)i, &call);
}

static int on_cpu(plan_job *j)
{
    fmt_error e;
    plan_answer *a = &j->answer;
    const planner_shard *s = &a->plan.shard;
    const planner_ask *p = &a->plan.ask;
    if (s->tp * s->dp > 1 || !a->layer || p->context > INT32_MAX || p->sequences > INT32_MAX) return CLI_OK;
    const planner_cpu_ask ask = {.dtype = p->dtype,
                                 .weights = p->weights,
                                 .tokens = p->tokens,
                                 .context = (int32_t)p->context,
                                 .sequences = (int32_t)p->sequences,
                                 .workspace_limit = p->workspace_limit};
    if (planner_on_cpu(j->model, &ask, j->device, &a->cpu, &e)) return cli_fail("%s", e.text);
    a->on_cpu = 1;
    return CLI_OK;
}

static int plan(plan_job *j)
{
    fmt_error e;
    plan_answer *a = &j->answer;
    j->ask.dtype = j->common.dtype;
    j->ask.workspace_limit = j->common.workspace_limit;
    j->ask.context = j->context;
    j->ask.sequences = j->sequences;
    if (cli_device_open(&j->common, &j->device)) return cli_fail("%s", moewe_last_error());
    if (planner_open(j->path, &j->model, &e) || planner_make(j->model, &j->ask, j->device, &a->plan, &e))
        return cli_fail("%s", e.text);
    a->facts = planner_model_facts(j->model);
    a->device = j->device;
    a->w_dtype = a->plan.moe.w_dtype;
    int status = layer_plan(j);
    if (!status) status = on_cpu(j);
    if (status) return status;
    compare(j);
    if (j->svg) status = plan_write_svg(a, j->svg);
    if (status) return status;
    return j->json ? plan_print_json(a) : plan_print_words(a);
}

int cmd_plan(int argc, char **argv)
{
    static const char *const positionals[] = {"DIR_OR_CONFIG"};
    static const args_word kv_words[] = {{"bf16", 0}, {"fp8", 1}, {NULL, 0}};
    plan_job j = {.common = {.dtype = MOEWE_DTYPE_F32}, .ask = {.tokens = 4096, .kv_fp8 = -1, .utilization = 0.9}};
    fmt_error e;
#define RANKS(option, field, text)                                                                                     \
    {                                                                                                                  \
        .name = option, .metavar = "N", .kind = ARGS_INT, .out = &j.ask.field, .low = 1, .high = 4096, .help = text    \
    }
    const args_option options[] = {
        {.name = "--tokens",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.ask.tokens,
         .low = 1,
         .high = INT32_MAX,
         .help = "tokens that one rank may batch (default: 4096)"},
        {.name = "--context",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.context,
         .low = 1,
         .high = INT32_MAX,
         .help = "tokens of each sequence (default: what the model allows)"},
        {.name = "--sequences",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.sequences,
         .low = 1,
         .high = INT32_MAX,
         .help = "sequences of each data-parallel rank (default: 1)"},
        RANKS("--tp", tp, "tensor-parallel ranks (default: 1)"),
        RANKS("--ep", ep, "ranks that the experts are spread over (default: 1)"),
        RANKS("--dp", dp, "data-parallel ranks (default: as few as --ep needs)"),
        {.name = "--weights",
         .metavar = "FORMAT",
         .kind = ARGS_TEXT,
         .out = &j.weights_name,
         .help = "bf16, fp8, nvfp4, mxfp4, q8_0, q4_K ... (default: as config.json says)"},
        {.name = "--kv",
         .metavar = "bf16|fp8",
         .kind = ARGS_WORD,
         .out = &j.ask.kv_fp8,
         .words = kv_words,
         .help = "of the KV cache (default: fp8 where config.json asks for it, else bf16)"},
        {.name = "--memory",
         .metavar = "BYTES",
         .kind = ARGS_SIZE,
         .out = &j.ask.memory,
         .help = "of each rank: says whether it fits, and what would"},
        {.name = "--utilization",
         .metavar = "X",
         .kind = ARGS_REAL,
         .out = &j.ask.utilization,
         .low = 0.01,
         .high = 1,
         .help = "share of --memory that may be used (default: 0.9)"},
        RANKS("--lanes", lanes, "workspaces that may be in use at once (default: 1)"),
        ARGS_DTYPE(j.common, "of the MoE layers' activations (default: f32)"),
        {.name = "--json", .kind = ARGS_FLAG, .out = &j.json, .help = "as a JSON object"},
        {.name = "--svg",
         .metavar = "FILE",
         .kind = ARGS_TEXT,
         .out = &j.svg,
         .help = "writes a memory map, to scale, as a picture"},
        {.name = "--compare",
         .kind = ARGS_FLAG,
         .out = &j.compare,
         .help = "also what scratch memory other layouts would take for the same call"},
        ARGS_COMMON(j.common),
    };
#undef RANKS
    const args_spec spec = {
        .synopsis = "DIR_OR_CONFIG [options]",
        .about =
            "Says what a model takes on each rank: weights, KV cache, recurrent state, and the workspace of its MoE\n"
            "layers region by region, with the floor below which no --workspace-limit can be met.  Reads\n"
            "config.json only; needs no weights and no GPU.  DIR_OR_CONFIG may also be a name that is built in,\n"
            "such as nemotron-3-super or openai/gpt-oss-20b.\n"
            "\n"
            "--dtype is that of moewe run and moewe generate, and sizes the workspace; --kv and --weights are those\n"
            "of the deployment that is planned.  How a model is cut over ranks: docs/planner.md.",
        .positionals = positionals,
        .values = &j.path,
        .n_positionals = 1,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    if (j.weights_name) {
        j.ask.weights = weight_format_find(j.weights_name, &e);
        if (!j.ask.weights) return cli_usage("--weights: %s", e.text);
    }
    status = plan(&j);
    moewe_plan_destroy(j.layer);
    planner_close(j.model);
    moewe_device_close(j.device);
    return status;
}
