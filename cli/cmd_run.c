/* cmd_run.c - moewe run: one MoE block over the rows of a tensor in a file, the result into another file.
 * Writes nothing before everything has been checked and run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "block.h"

typedef struct run_job {
    cli_common common;
    const char *dir, *layer, *input, *output, *ids, *weights, *tokens;
    cli_model model;
    moewe_config moe;    /* of the layer */
    st_store *stores[4]; /* of the input, ids, weights and token ids; the last three only where they are other files */
    int experts_only;
    int32_t layer_number, n_tokens, width; /* of a row */
    const st_tensor *x_tensor, *ids_tensor, *weights_tensor, *tokens_tensor;
    cli_block block;
    float *values; /* input, later output, as f32 */
    void *x, *y;
    int32_t *topk_ids, *token_ids;
    float *topk_weights;
} run_job;

/* ---- FILE:TENSOR ------------------------------------------------------------------------------ */

/* Opens the file part; *name is what follows the last colon, or NULL when spec as a whole is a file. */
static int open_spec(const char *option, const char *spec, st_store **store, const char **name)
{
    fmt_error e;
    const char *colon = strrchr(spec, ':');
    *name = NULL;
    if (!access(spec, F_OK) || !colon) return st_open(spec, store, &e) ? cli_fail("%s: %s", option, e.text) : CLI_OK;
    char *path = strndup(spec, (size_t)(colon - spec));
    if (!path) return cli_fail("no memory for a path of %zu bytes", (size_t)(colon - spec));
    int bad = st_open(path, store, &e);
    free(path);
    *name = colon + 1;
    return bad ? cli_fail("%s: %s", option, e.text) : CLI_OK;
}

static int find_tensor(const char *option, const char *spec, const st_store *store, const char *name,
                       const st_tensor **out)
{
    if (name) {
        *out = st_find(store, name);
        return *out
                   ? CLI_OK
                   : cli_fail("%s %s: found %zu tensors, none of them named '%s'", option, spec, st_count(store), name);
    }
    if (st_count(store) != 1)
        return cli_fail("%s %s: found %zu tensors, expected one, or %s FILE:TENSOR", option, spec, st_count(store),
                        option);
    *out = st_at(store, 0);
    return CLI_OK;
}

static int find_input(run_job *j)
{
    const char *name;
    int status = open_spec("--input", j->input, &j->stores[0], &name);
    return status ? status : find_tensor("--input", j->input, j->stores[0], name, &j->x_tensor);
}

/* The name of a tensor in the input file, or FILE:TENSOR. */
static int find_routing(run_job *j, int index, const char *option, const char *spec, const st_tensor **out)
{
    const char *name;
    *out = st_find(j->stores[0], spec);
    if (*out) return CLI_OK;
    if (!strchr(spec, ':'))
        return cli_fail("%s: %s has no tensor '%s' (one of another file: FILE:TENSOR)", option, j->x_tensor->file,
                        spec);
    int status = open_spec(option, spec, &j->stores[index], &name);
    return status ? status : find_tensor(option, spec, j->stores[index], name, out);
}

/* ---- shapes ------------------------------------------------------------------------------------- */

static int mismatch(const char *option, const st_tensor *t, const char *expected)
{
    char shape[160];
    st_shape_text(t, shape, sizeof shape);
    return cli_fail("%s: %s: tensor '%s' is %s %s, expected %s", option, t->file, t->name, st_dtype_name(t->dtype),
                    shape, expected);
}

static int check_input(run_job *j)
{
    const st_tensor *t = j->x_tensor;
    char expected[96];
    snprintf(expected, sizeof expected, "F32, BF16 or F16 [rows, %d]", (int)j->width);
    if (!st_dtype_moewe(t->dtype) || t->rank != 2 || t->shape[1] != j->width || t->shape[0] < 1 ||
        t->shape[0] > INT32_MAX)
        return mismatch("--input", t, expected);
    j->n_tokens = (int32_t)t->shape[0];
    return CLI_OK;
}

/* Layers that choose experts by token need to know the tokens. */
static int check_tokens(run_job *j)
{
    const st_tensor *t = j->tokens_tensor;
    int hashed = family_hash_layer(j->model.config.family, j->layer_number);
    char expected[96];
    if (!t && !hashed) return CLI_OK;
    if (!hashed || !t)
        return cli_fail("%s: block %s chooses experts by %s, --token-ids is %s", j->dir, j->block.name,
                        hashed ? "token id" : "score", t ? "not for it" : "missing");
    uint64_t n = 1;
    for (int32_t i = 0; i < t->rank; i++) n *= (uint64_t)t->shape[i];
    snprintf(expected, sizeof expected, "I32 or I64 with %d ids", (int)j->n_tokens);
    if ((t->dtype != ST_I32 && t->dtype != ST_I64) || n != (uint64_t)j->n_tokens)
        return mismatch("--token-ids", t, expected);
    j->token_ids = cli_ids(t, n);
    return j->token_ids ? CLI_OK : cli_fail("no memory for %d token ids", (int)j->n_tokens);
}

static int check_routing(const run_job *j)
{
    const st_tensor *i = j->ids_tensor, *w = j->weights_tensor;
    int32_t top_k = j->moe.top_k;
    char expected[96];
    snprintf(expected, sizeof expected, "I32 or I64 [%d, %d]", (int)j->n_tokens, (int)top_k);
    if ((i->dtype != ST_I32 && i->dtype != ST_I64) || i->rank != 2 || i->shape[0] != j->n_tokens ||
        i->shape[1] != top_k)
        return mismatch("--ids", i, expected);
    snprintf(expected, sizeof expected, "F32 [%d, %d]", (int)j->n_tokens, (int)top_k);
    if (w->dtype != ST_F32 || w->rank != 2 || w->shape[0] != j->n_tokens || w->shape[1] != top_k)
        return mismatch("--weights", w, expected);
    return CLI_OK;
}

/* ---- running ------------------------------------------------------------------------------------ */

static int take_rows(run_job *j)
{
    uint64_t n = (uint64_t)j->n_tokens * (uint64_t)j->width;
    j->values = malloc(n * sizeof *j->values);
    j->x = malloc(n * moewe_dtype_bytes(j->common.dtype));
    j->y = malloc(n * moewe_dtype_bytes(j->common.dtype));
    if (!j->values || !j->x || !j->y)
        return cli_fail("no memory for %d rows of %d numbers", (int)j->n_tokens, (int)j->width);
    cli_to_f32(j->x_tensor->data, j->x_tensor->dtype, n, j->values);
    cli_from_f32(j->values, n, j->common.dtype, j->x);
    return CLI_OK;
}

static int take_routing(run_job *j)
{
    uint64_t n = (uint64_t)j->n_tokens * (uint64_t)j->moe.top_k;
    j->topk_ids = cli_ids(j->ids_tensor, n);
    j->topk_weights = malloc(n * sizeof *j->topk_weights);
    if (!j->topk_ids || !j->topk_weights) return cli_fail("no memory for %llu routing weights", (unsigned long long)n);
    cli_to_f32(j->weights_tensor->data, ST_F32, n, j->topk_weights);
    return CLI_OK;
}

static int run_block(run_job *j)
{
    moewe_io io;
    MOEWE_INIT(io);
    io.n_tokens = j->n_tokens;
    io.x = j->x;
    io.y = j->y;
    io.topk_ids = j->topk_ids;
    io.topk_weights = j->topk_weights;
    io.token_ids = j->token_ids;
    if (moewe_run(j->block.plan, &j->block.weights, &io, j->block.workspace, NULL))
        return cli_fail("%s", moewe_last_error());
    return CLI_OK;
}

static int write_output(run_job *j)
{
    fmt_error e;
    uint64_t n = (uint64_t)j->n_tokens * (uint64_t)j->width;
    st_tensor t = {.name = "output",
                   .dtype = ST_F32,
                   .rank = 2,
                   .shape = {j->n_tokens, j->width},
                   .data = j->values,
                   .bytes = n * sizeof *j->values,
                   .file = j->output};
    cli_to_f32(j->y, j->common.dtype == MOEWE_DTYPE_F32 ? ST_F32 : ST_BF16, n, j->values);
    if (st_write(j->output, &t, 1, &e)) return cli_fail("%s", e.text);
    printf("%s: %d tokens, workspace %llu bytes, bits %016llx, written to %s\n", j->block.name, (int)j->n_tokens,
           (unsigned long long)j->block.need.bytes,
           (unsigned long long)cli_hash(j->y, n * moewe_dtype_bytes(j->common.dtype)), j->output);
    return CLI_OK;
}

static int run(run_job *j)
{
    fmt_error e;
    int given = j->ids != NULL;
    int status = cli_model_open(&j->model, j->dir, &j->common);
    if (status) return status;
    if (model_block_find(&j->model.config, j->layer, &j->layer_number, &e)) return cli_fail("--layer: %s", e.text);
    if (model_layer_moe(&j->model.config, j->layer_number, &j->moe, &e)) return cli_fail("%s", e.text);
    model_block_name(&j->model.config, j->layer_number, j->block.name, sizeof j->block.name);
    j->width = j->experts_only && j->moe.latent ? j->moe.latent : j->moe.hidden;
    status = find_input(j);
    if (!status) status = check_input(j);
    if (!status && j->tokens) status = find_routing(j, 3, "--token-ids", j->tokens, &j->tokens_tensor);
    if (!status && !given) status = check_tokens(j);
    if (!status && given) status = find_routing(j, 1, "--ids", j->ids, &j->ids_tensor);
    if (!status && given) status = find_routing(j, 2, "--weights", j->weights, &j->weights_tensor);
    if (!status && given) status = check_routing(j);
    if (!status)
        status = cli_block_open(&j->block, &j->model, j->layer_number, j->n_tokens, &j->common,
                                j->experts_only ? CLI_EXPERTS
                                : given         ? CLI_GIVEN
                                                : CLI_ROUTES);
    if (!status) status = take_rows(j);
    if (!status && given) status = take_routing(j);
    if (!status) status = run_block(j);
    return status ? status : write_output(j);
}

static void job_free(run_job *j)
{
    free(j->values);
    free(j->x);
    free(j->y);
    free(j->topk_ids);
    free(j->token_ids);
    free(j->topk_weights);
    cli_block_close(&j->block);
    for (int i = 0; i < 4; i++) st_close(j->stores[i]);
    cli_model_close(&j->model);
}

int cmd_run(int argc, char **argv)
{
    static const char *const positionals[] = {"DIR"};
    run_job j = {.common = {.dtype = MOEWE_DTYPE_F32}};
    const args_option options[] = {
        {.name = "--layer",
         .metavar = "NAME|N",
         .kind = ARGS_TEXT,
         .out = &j.layer,
         .help = "the block: a layer number, or its path such as model.layers.0.mlp"},
        {.name = "--input",
         .metavar = "FILE[:TENSOR]",
         .kind = ARGS_TEXT,
         .out = &j.input,
         .help = "rows, [tokens][hidden], in f32, bf16 or f16; TENSOR where FILE holds several"},
        {.name = "--output",
         .metavar = "FILE",
         .kind = ARGS_TEXT,
         .out = &j.output,
         .help = "safetensors file to write: tensor 'output', f32"},
        {.name = "--ids",
         .metavar = "T",
         .kind = ARGS_TEXT,
         .out = &j.ids,
         .help = "experts chosen by the caller, int32 or int64 [tokens][top_k]; with --weights"},
        {.name = "--weights",
         .metavar = "T",
         .kind = ARGS_TEXT,
         .out = &j.weights,
         .help = "their weights, f32 [tokens][top_k]; with --ids"},
        {.name = "--experts-only",
         .kind = ARGS_FLAG,
         .out = &j.experts_only,
         .help = "with --ids: no shared expert; of latent experts, rows as wide as they read them"},
        {.name = "--token-ids",
         .metavar = "T",
         .kind = ARGS_TEXT,
         .out = &j.tokens,
         .help = "of the rows, integers, for layers that choose experts by token id"},
        ARGS_DTYPE(j.common, "of x, the values between the GEMMs, and y (default: f32)"),
        ARGS_COMMON(j.common),
        ARGS_PIN(j.common),
    };
    const args_spec spec = {
        .synopsis = "DIR --layer NAME|N --input FILE[:TENSOR] --output FILE [options]",
        .about = "Runs one MoE block of the checkpoint DIR over the rows of a safetensors tensor.  With --ids and\n"
                 "--weights the block's router is not used; an id that is no expert's leaves its slot empty, and\n"
                 "the weights are final: no scale is applied to them.  They name a tensor of the input file, or\n"
                 "FILE:TENSOR.",
        .positionals = positionals,
        .values = &j.dir,
        .n_positionals = 1,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    if (!j.layer || !j.input || !j.output)
        return cli_usage("%s is missing; usage: moewe run %s",
                         !j.layer   ? "--layer"
                         : !j.input ? "--input"
                                    : "--output",
                         spec.synopsis);
    if (!*j.output) return cli_usage("--output is empty, expected a file to write");
    if (j.experts_only && !j.ids) return cli_usage("--experts-only is given without --ids, which it needs");
    if (!j.ids != !j.weights)
        return cli_usage("%s is given without %s, which it needs", j.ids ? "--ids" : "--weights",
                         j.ids ? "--weights" : "--ids");
    status = run(&j);
    job_free(&j);
    return status;
}
