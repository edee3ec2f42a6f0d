/* cmd_plan.c - moewe plan: the workspace of a model's MoE layers, region by region, from config.json alone. */
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "../formats/model.h"
#include "args.h"

typedef struct plan_job {
    cli_common common;
    int32_t tokens, weight_dtype;
    int json;
    const char *path;
    model_config config;
    moewe_config moe; /* as planned */
    char name[256];   /* of its first MoE block */
    moewe_device *device;
    moewe_plan *plan;
    int32_t n_moe_layers;
    moewe_need need, floor;
    uint64_t one_pass, one_per_layer;
} plan_job;

/* Every product is checked: a config may be anyone's. */
static int sums(plan_job *j)
{
    uint64_t pairs = (uint64_t)j->moe.max_tokens * (uint64_t)j->moe.top_k;
    uint64_t pair_bytes = (uint64_t)j->moe.inter * moewe_dtype_bytes(j->moe.x_dtype) + 16;
    if (__builtin_mul_overflow(pairs, pair_bytes, &j->one_pass) ||
        __builtin_mul_overflow(j->need.bytes, (uint64_t)j->n_moe_layers, &j->one_per_layer))
        return cli_fail("%s: %d tokens over %d layers need more than 2^64 bytes", j->config.file, (int)j->tokens,
                        (int)j->n_moe_layers);
    return CLI_OK;
}

static int make_plan(plan_job *j)
{
    moewe_config *c = &j->moe;
    for (int32_t i = j->config.n_layers - 1; i >= 0; i--)
        if (j->config.layer_is_moe[i]) {
            j->n_moe_layers++;
            model_block_name(&j->config, i, j->name, sizeof j->name);
        }
    if (!j->n_moe_layers)
        return cli_fail("%s: none of its %d layers is an MoE layer", j->config.file, (int)j->config.n_layers);
    *c = j->config.moe;
    c->name = j->name;
    c->max_tokens = j->tokens;
    c->x_dtype = c->y_dtype = j->common.dtype;
    c->w_dtype = j->weight_dtype ? j->weight_dtype : j->config.weight_dtype;
    c->workspace_limit = j->common.workspace_limit;
    if (cli_device_open(&j->common, &j->device)) return cli_fail("%s", moewe_last_error());
    if (moewe_plan_floor(j->device, c, &j->floor)) return cli_fail("%s: %s", j->config.file, moewe_last_error());
    if (c->workspace_limit && c->workspace_limit < j->floor.bytes)
        return cli_fail("%s: --workspace-limit is %llu bytes, its MoE layers need at least %llu", j->config.file,
                        (unsigned long long)c->workspace_limit, (unsigned long long)j->floor.bytes);
    if (moewe_plan_create(j->device, c, &j->plan) || moewe_plan_need(j->plan, &j->need))
        return cli_fail("%s: %s", j->config.file, moewe_last_error());
    return sums(j);
}

/* ---- in words ---------------------------------------------------------------------------------- */

static int print_words(const plan_job *j)
{
    size_t length = moewe_plan_describe(j->plan, NULL, 0);
    char *text = malloc(length + 1);
    if (!text) return cli_fail("no memory for a text of %zu bytes", length);
    moewe_plan_describe(j->plan, text, length + 1);
    fputs(text, stdout);
    free(text);
    putchar('\n');
    printf("workspace: %s, shared by %d MoE layers\n", cli_size_text(j->need.bytes).text, (int)j->n_moe_layers);
    printf("one for each layer would take: %s\n", cli_size_text(j->one_per_layer).text);
    printf("floor, the least --workspace-limit: %s\n", cli_size_text(j->floor.bytes).text);
    printf("one pass over all pairs (%lld pairs x (%d x %u + 16) bytes) would take: %s\n",
           (long long)j->tokens * j->moe.top_k, (int)j->moe.inter, (unsigned)moewe_dtype_bytes(j->moe.x_dtype),
           cli_size_text(j->one_pass).text);
    return CLI_OK;
}

/* ---- in JSON ----------------------------------------------------------------------------------- */

static json_t *regions_json(const plan_job *j)
{
    static const char *const stages[] = {"route", "sort", "gemm1", "gemm2", "combine"};
    json_t *list = json_array();
    moewe_region r;
    for (int32_t i = 0; list && i < moewe_plan_region_count(j->plan); i++) {
        json_t *one = moewe_plan_region(j->plan, i, &r)
                          ? NULL
                          : json_pack("{s:s, s:I, s:I, s:s, s:s}", "name", r.name, "offset", (json_int_t)r.offset,
                                      "bytes", (json_int_t)r.bytes, "first_stage", stages[r.first_stage], "last_stage",
                                      stages[r.last_stage]);
        if (!one || json_array_append_new(list, one)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int print_json(const plan_job *j)
{
    const moewe_config *c = &j->moe;
    json_t *regions = regions_json(j), *root = NULL;
    if (regions)
        root = json_pack(
            "{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:I, s:I, s:I, s:i, s:I, s:I, s:o}", "config",
            j->config.file, "model_type", j->config.model_type, "backend", moewe_device_backend(j->device), "threads",
            (int)moewe_device_threads(j->device), "tokens", (int)j->tokens, "moe_layers", (int)j->n_moe_layers,
            "hidden", (int)c->hidden, "inter", (int)c->inter, "experts", (int)c->n_experts, "top_k", (int)c->top_k,
            "dtype", moewe_dtype_name(c->x_dtype), "weights_dtype", moewe_dtype_name(c->w_dtype), "workspace_limit",
            (json_int_t)c->workspace_limit, "workspace_bytes", (json_int_t)j->need.bytes, "workspace_floor_bytes",
            (json_int_t)j->floor.bytes, "workspace_align", (int)j->need.align, "one_pass_bytes",
            (json_int_t)j->one_pass, "one_per_layer_bytes", (json_int_t)j->one_per_layer, "regions", regions);
    if (!root) return cli_fail("no memory for the plan as JSON");
    int bad = json_dumpf(root, stdout, JSON_INDENT(2));
    json_decref(root);
    putchar('\n');
    return bad ? cli_fail("cannot write the plan to standard output") : CLI_OK;
}

int cmd_plan(int argc, char **argv)
{
    static const char *const positionals[] = {"DIR_OR_CONFIG"};
    plan_job j = {.common = {.dtype = MOEWE_DTYPE_BF16}, .tokens = 4096};
    fmt_error e;
    const args_option options[] = {
        {.name = "--tokens",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.tokens,
         .low = 1,
         .high = INT32_MAX,
         .help = "tokens that one call may hold (default: 4096)"},
        ARGS_DTYPE(j.common, "of the activations (default: bf16)"),
        {.name = "--weights",
         .metavar = "f32|bf16|f16",
         .kind = ARGS_WORD,
         .out = &j.weight_dtype,
         .words = args_weight_dtypes,
         .help = "of the experts (default: what config.json says)"},
        {.name = "--json", .kind = ARGS_FLAG, .out = &j.json, .help = "as a JSON object"},
        ARGS_COMMON(j.common),
    };
    const args_spec spec = {
        .synopsis = "DIR_OR_CONFIG [options]",
        .about = "Plans the MoE layers of a model and prints the choices, the workspace region by region, the floor\n"
                 "below which no --workspace-limit can be met, what one pass over all token-expert pairs would take,\n"
                 "and what a workspace for each layer would.  Reads config.json only; needs no weights.",
        .positionals = positionals,
        .values = &j.path,
        .n_positionals = 1,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    if (model_config_load(j.path, &j.config, &e)) return cli_fail("%s", e.text);
    status = make_plan(&j);
    if (!status) status = j.json ? print_json(&j) : print_words(&j);
    moewe_plan_destroy(j.plan);
    moewe_device_close(j.device);
    model_config_free(&j.config);
    return status;
}
