/* cmd_quantize.c - moewe quantize: a checkpoint with its matrices in fewer bits.  Asks formats/; says what was done. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../formats/quantize_model.h"
#include "args.h"

typedef struct quantize_progress {
    int terminal;
    double shown;
} quantize_progress;

static void show(void *ctx, size_t done, size_t all)
{
    quantize_progress *p = ctx;
    char line[80];
    double now = cli_seconds();
    if (!p->terminal || (done < all && now - p->shown < 0.2)) return;
    p->shown = now;
    int length = snprintf(line, sizeof line, "\r%zu of %zu matrices\033[K%s", done, all, done == all ? "\n" : "");
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0) p->terminal = 0;
}

static int quantize(const cli_common *common, const char *dir, const char *out, const quantize_type *type, int experts_only)
{
    fmt_error e;
    model_config config;
    st_store *store = NULL;
    moewe_device *device = NULL;
    quantize_report r = {0};
    quantize_progress progress = {isatty(STDERR_FILENO), 0};
    double started = cli_seconds();
    int failed = 0;
    if (model_config_load(dir, &config, &e)) return cli_fail("%s", e.text);
    quantize_ask ask = {.dir = dir, .out = out, .type = type, .experts_only = experts_only, .progress = show, .ctx = &progress};
    if (st_open(dir, &store, &e))
        failed = cli_fail("%s", e.text);
    else if (cli_device_open(common, &device))
        failed = cli_fail("%s", moewe_last_error());
    ask.device = device;
    if (!failed && quantize_model(&config, store, &ask, &r, &e)) failed = cli_fail("%s", e.text);
    if (!failed) {
        printf("%s: %zu matrices in %s", out, r.matrices, type->name);
        if (r.other_type) printf(" (%zu of them in q8_0: their rows are no whole blocks)", r.other_type);
        printf(", %zu tensors as they were; %llu bytes became %llu, in %.1f s\n", r.kept, (unsigned long long)r.before,
               (unsigned long long)r.after, cli_seconds() - started);
    }
    moewe_device_close(device);
    st_close(store);
    model_config_free(&config);
    return failed ? CLI_FAILED : CLI_OK;
}

int cmd_quantize(int argc, char **argv)
{
    static const char *const positionals[] = {"DIR", "OUT"};
    const char *paths[2] = {NULL, NULL}, *name = NULL;
    cli_common common = {0};
    int experts_only = 0;
    fmt_error e;
    const args_option options[] = {
        {.name = "--type",
         .metavar = "T",
         .kind = ARGS_TEXT,
         .out = &name,
         .help = "fp8, fp8-row, fp8-tensor, nvfp4, mxfp4, int8-g32|64|128, int4-g32|64|128, q8_0, q4_0, q4_k, q6_k"},
        {.name = "--experts-only",
         .kind = ARGS_FLAG,
         .out = &experts_only,
         .help = "leave the projections of attention, dense MLPs and lm_head as they are"},
        {.name = "--threads",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &common.threads,
         .low = 1,
         .high = 1024,
         .help = "threads (default: one per usable core); the result is the same"},
    };
    const args_spec spec = {
        .synopsis = "DIR OUT --type T [options]",
        .about =
            "Writes the checkpoint DIR again with its routed experts, and the projections that the engine runs, in\n"
            "type T.  Norms, routers, embeddings and shared experts stay as they are.  For each block of weights the\n"
            "scale with the least squared error is searched for.\n"
            "\n"
            "OUT is a new folder: model.safetensors, a config.json whose quantization_config other programs read\n"
            "(fp8 as DeepSeek-V3 has it, else compressed-tensors), and the files of the tokenizer.  For q8_0, q4_0,\n"
            "q4_k and q6_k it is a new GGUF file.  It is complete or not there.\n"
            "\n"
            "Which type costs how much accuracy: docs/quantised.md.",
        .positionals = positionals,
        .values = paths,
        .n_positionals = 2,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    if (!name) return cli_usage("--type is missing; usage: moewe quantize %s", spec.synopsis);
    const quantize_type *type = quantize_type_find(name, &e);
    if (!type) return cli_usage("--type: %s", e.text);
    return quantize(&common, paths[0], paths[1], type, experts_only);
}
