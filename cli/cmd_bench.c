/* cmd_bench.c - moewe bench: what layers, the engine and the machine itself reach.  Arguments and words; the measuring
 * is bench/'s. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../bench/ceilings.h"
#include "../bench/csv.h"
#include "../bench/layer.h"
#include "../bench/machine.h"
#include "../bench/model.h"
#include "args.h"

enum { NUMBERS_MOST = 64 };

#define READ_SIZE(bytes)                                                                                               \
    {.name = "--read-size", .metavar = "BYTES", .kind = ARGS_SIZE, .out = &(bytes),                                    \
     .help = "read bandwidth is measured over so many (default: 4GiB)"}

static void print_machine(const moewe_device *dev)
{
    bench_machine m = bench_machine_get();
    printf("%s, %d cores usable, %s\n", m.cpu, (int)m.cores, cli_size_text(m.memory).text);
    printf("back end %s, %d threads\n", moewe_device_backend(dev), (int)moewe_device_threads(dev));
}

/* "1,4,16": whole numbers above 0. */
static int read_list(const char *option, const char *text, int32_t *out, size_t *n)
{
    const char *at = text;
    *n = 0;
    for (;;) {
        char *end;
        long value = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (value < 1 || value > INT32_MAX || (*end && *end != ','))
            return cli_usage("%s is '%s', expected whole numbers above 0 with commas between them", option, text);
        if (*n == NUMBERS_MOST) return cli_usage("%s has more than %d numbers", option, (int)NUMBERS_MOST);
        out[(*n)++] = (int32_t)value;
        if (!*end) return CLI_OK;
        at = end + 1;
    }
}

/* ---- ceilings ------------------------------------------------------------------------------- */

static int ceilings(int argc, char **argv)
{
    fmt_error e;
    cli_common common = {0};
    uint64_t bytes = BENCH_READ_BYTES;
    bench_reader reader;
    moewe_device *dev;
    const args_option options[] = {
        {.name = "--threads", .metavar = "N", .kind = ARGS_INT, .out = &common.threads, .low = 1, .high = 1024,
         .help = "threads (default: one per usable core)"},
        READ_SIZE(bytes),
        ARGS_PIN(common),
    };
    const args_spec spec = {
        .synopsis = "[options]",
        .about = "Measures what this machine gives now: memory read bandwidth (4 GiB, or what fits, in huge pages; the\n"
                 "better of two access patterns) and peak arithmetic of each kind, from registers or tiles.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    if (cli_device_open(&common, &dev)) return cli_fail("%s", moewe_last_error());
    print_machine(dev);
    cli_flush();
    status = bench_reader_open(&reader, dev, bytes, &e) ? cli_fail("%s", e.text) : CLI_OK;
    if (!status) {
        printf("%-18s  %10.2f GB/s of %s\n", "read", bench_reader_measure(&reader) * 1e-9,
               cli_size_text(reader.mem.bytes).text);
        bench_reader_close(&reader);
    }
    for (int p = 0; !status && p < BENCH_PEAK_COUNT; p++) {
        double rate = bench_peak_measure(dev, (bench_peak)p);
        cli_flush();
        if (rate > 0)
            printf("%-18s  %10.1f G%s/s\n", bench_peak_name((bench_peak)p), rate * 1e-9,
                   p == BENCH_INT8_AVX512 || p == BENCH_INT8_AMX ? "OP" : "FLOP");
        else
            printf("%-18s    not here\n", bench_peak_name((bench_peak)p));
    }
    moewe_device_close(dev);
    return status;
}

/* ---- layer ---------------------------------------------------------------------------------- */

typedef struct layer_job {
    cli_common common;
    const char *shape, *type, *tokens, *csv;
    bench_layer_ask ask;
    bench_machine machine;
    size_t printed;
} layer_job;

static void print_point(const bench_point *p, size_t before)
{
    if (!before) {
        printf("in rotation: %d layers, %d routings; ceilings before > after: read GB/s, %s GFLOP/s\n", (int)p->layers,
               (int)p->routings, bench_peak_name(p->peak));
        printf("%7s %10s %10s %10s %6s %9s %8s %9s %10s %9s %16s %18s\n", "tokens", "median ms", "p10", "p90", "calls",
               "experts", "GB/s", "GFLOP/s", "scratch B", "roofline", "read", "peak");
    }
    printf("%7d %10.4g %10.4g %10.4g %6d %9.4g %8.2f %9.1f %10llu %8.1f%% %7.2f > %6.2f %8.1f > %7.1f\n", (int)p->tokens,
           p->median * 1e3, p->p10 * 1e3, p->p90 * 1e3, (int)p->calls, p->experts, p->bytes / p->median * 1e-9,
           p->operations / p->median * 1e-9, (unsigned long long)p->scratch, 100 * p->roofline / p->median,
           p->before.read * 1e-9, p->after.read * 1e-9, p->before.peak * 1e-9, p->after.peak * 1e-9);
}

static int on_point(void *ctx, const bench_point *p)
{
    fmt_error e;
    layer_job *j = ctx;
    print_point(p, j->printed++);
    if (cli_flush()) return CLI_FAILED;
    return j->csv && bench_csv_append(j->csv, &j->ask, &j->machine, p, &e) ? cli_fail("--csv: %s", e.text) : CLI_OK;
}

static int time_layer(layer_job *j, const int32_t *tokens, size_t n)
{
    fmt_error e;
    if (bench_shape_find(j->shape, j->ask.dev, &j->ask.shape, &e)) return cli_fail("--shape: %s", e.text);
    const moewe_config *c = &j->ask.shape.whole;
    print_machine(j->ask.dev);
    printf("%s: hidden %d, inter %d, %d experts, top %d, %s, x %s, y %s, %s\n", j->ask.shape.name,
           (int)(c->latent && !j->ask.whole ? c->latent : c->hidden), (int)c->inter, (int)c->n_experts, (int)c->top_k,
           j->ask.type.name, moewe_dtype_name(j->ask.x_dtype), moewe_dtype_name(j->ask.y_dtype),
           j->ask.whole ? "whole layer" : "routed experts");
    cli_flush();
    int result = bench_layer(&j->ask, tokens, n, on_point, j, &e);
    return result < 0 ? cli_fail("%s", e.text) : result;
}

static int layer(int argc, char **argv)
{
    fmt_error e;
    int32_t tokens[NUMBERS_MOST];
    size_t n;
    moewe_device *dev;
    layer_job j = {.type = "bf16", .tokens = "1,4,16,64,256,1024",
                   .ask = {.x_dtype = MOEWE_DTYPE_F32, .y_dtype = MOEWE_DTYPE_F32, .seconds = 1}};
    const args_option options[] = {
        {.name = "--shape", .metavar = "NAME", .kind = ARGS_TEXT, .out = &j.shape,
         .help = "a model, as moewe plan takes it, or hidden,inter,experts,top_k[,act]"},
        {.name = "--type", .metavar = "T", .kind = ARGS_TEXT, .out = &j.type,
         .help = "f32, bf16 (default), f16, fp8, nvfp4, mxfp4, int8-gN, int4-gN, q8_0, q4_0, q4_k, q6_k"},
        {.name = "--tokens", .metavar = "LIST", .kind = ARGS_TEXT, .out = &j.tokens,
         .help = "numbers of tokens in a call (default: 1,4,16,64,256,1024)"},
        {.name = "--skew", .metavar = "X", .kind = ARGS_REAL, .out = &j.ask.skew, .low = 0, .high = 16,
         .help = "experts are popular as 1 / rank^X (default: 0, all alike)"},
        {.name = "--x", .metavar = "f32|bf16", .kind = ARGS_WORD, .out = &j.ask.x_dtype, .words = args_f32_bf16,
         .help = "of x and between the GEMMs (default: f32)"},
        {.name = "--y", .metavar = "f32|bf16", .kind = ARGS_WORD, .out = &j.ask.y_dtype, .words = args_f32_bf16,
         .help = "of y (default: f32)"},
        {.name = "--whole", .kind = ARGS_FLAG, .out = &j.ask.whole,
         .help = "the model's layer with its router, shared expert and activation"},
        {.name = "--seconds", .metavar = "S", .kind = ARGS_REAL, .out = &j.ask.seconds, .low = 0, .high = 3600,
         .help = "of calls for each number of tokens (default: 1; at least 3 calls, at most 200)"},
        {.name = "--rotate", .metavar = "BYTES", .kind = ARGS_SIZE, .out = &j.ask.rotate_bytes,
         .help = "of weights in rotation, at least (default: 1500000000)"},
        READ_SIZE(j.ask.read_bytes),
        {.name = "--csv", .metavar = "FILE", .kind = ARGS_TEXT, .out = &j.csv, .help = "appends a row for each"},
        ARGS_COMMON(j.common),
        ARGS_PIN(j.common),
    };
    const args_spec spec = {
        .synopsis = "--shape NAME|H,I,E,K[,act] [options]",
        .about =
            "Times the routed experts of one MoE layer with random weights and given routings.  Calls rotate over\n"
            "layers with at least 1.5 GB of weights (or what half of the free memory holds) and 32 routings, so that\n"
            "weights come from memory.  Prints the median, GB/s of the packed weights of the experts that a call\n"
            "reads, GFLOP/s, the plan's scratch bytes, and the share of the roofline: the time that those bytes take\n"
            "at the read bandwidth, or those operations at the peak of the type, whichever is longer, both measured\n"
            "just before and just after.  A name that begins several models means the smallest of them.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    if (!j.shape) return cli_usage("--shape is missing; usage: moewe %s %s", argv[0], spec.synopsis);
    if (bench_type_find(j.type, &j.ask.type, &e)) return cli_usage("--type: %s", e.text);
    status = read_list("--tokens", j.tokens, tokens, &n);
    if (status) return status;
    j.machine = bench_machine_get();
    j.ask.workspace_limit = j.common.workspace_limit;
    j.ask.pinned = j.common.pin;
    if (cli_device_open(&j.common, &dev)) return cli_fail("%s", moewe_last_error());
    j.ask.dev = dev;
    status = time_layer(&j, tokens, n);
    moewe_device_close(dev);
    return status;
}

/* ---- model ---------------------------------------------------------------------------------- */

static int on_open(void *ctx, const engine *g)
{
    engine_memory m;
    const engine_options *o = engine_options_get(g);
    (void)ctx;
    engine_memory_get(g, &m);
    print_machine(engine_device(g));
    printf("%s activations; %d sequences of %d tokens, passes of up to %d\n", moewe_dtype_name(o->dtype),
           (int)o->max_sequences, (int)o->context, (int)o->max_batch);
    printf("memory: %s", cli_size_text(m.total).text);
    printf(" = weights %llu + KV cache %llu + workspace %llu + activations %llu\n", (unsigned long long)m.weights,
           (unsigned long long)m.kv_cache, (unsigned long long)m.workspace, (unsigned long long)m.activations);
    printf("%-10s %10s %7s %11s %11s %11s %12s\n", "", "tokens", "passes", "median ms", "p10", "p90", "tokens/s");
    return cli_flush() ? CLI_FAILED : CLI_OK;
}

static int on_rate(void *ctx, const bench_rate *r)
{
    (void)ctx;
    printf("%-10s %10d %7d %11.4g %11.4g %11.4g %12.1f\n", r->generation ? "generate" : "prompt", (int)r->tokens,
           (int)r->passes, r->median * 1e3, r->p10 * 1e3, r->p90 * 1e3, r->tokens / r->median);
    return cli_flush() ? CLI_FAILED : CLI_OK;
}

static int model(int argc, char **argv)
{
    static const char *const positionals[] = {"DIR"};
    fmt_error e;
    int32_t prompts[NUMBERS_MOST], batches[NUMBERS_MOST];
    cli_common common = {.dtype = MOEWE_DTYPE_F32};
    const char *prompt_text = "16,64,256", *batch_text = "1,4,16";
    bench_model_ask ask = {.prompts = prompts, .batches = batches, .depth = 64, .seconds = 1};
    const args_option options[] = {
        {.name = "--prompts", .metavar = "LIST", .kind = ARGS_TEXT, .out = &prompt_text,
         .help = "tokens of a prompt (default: 16,64,256)"},
        {.name = "--batches", .metavar = "LIST", .kind = ARGS_TEXT, .out = &batch_text,
         .help = "sequences that generate at once (default: 1,4,16)"},
        {.name = "--depth", .metavar = "N", .kind = ARGS_INT, .out = &ask.depth, .low = 1, .high = 1 << 24,
         .help = "tokens that each holds when generation starts (default: 64)"},
        {.name = "--max-batch", .metavar = "N", .kind = ARGS_INT, .out = &ask.options.max_batch, .low = 1,
         .high = INT32_MAX, .help = "tokens in one pass (default: 512)"},
        {.name = "--seconds", .metavar = "S", .kind = ARGS_REAL, .out = &ask.seconds, .low = 0, .high = 3600,
         .help = "of passes for each number (default: 1; at least 3 passes, at most 64)"},
        ARGS_DTYPE(common, "of the activations and the KV cache (default: f32)"),
        ARGS_COMMON(common),
    };
    const args_spec spec = {
        .synopsis = "DIR [options]",
        .about = "Times the engine on the checkpoint DIR with random tokens: prompts of several lengths, then one new\n"
                 "token of each of several sequences at a time.  Prints the memory that it took and tokens/s.",
        .positionals = positionals,
        .values = &ask.dir,
        .n_positionals = 1,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    status = read_list("--prompts", prompt_text, prompts, &ask.n_prompts);
    if (!status) status = read_list("--batches", batch_text, batches, &ask.n_batches);
    if (status) return status;
    ask.options.backend = common.backend;
    ask.options.threads = common.threads;
    ask.options.dtype = common.dtype;
    ask.options.workspace_limit = common.workspace_limit;
    const bench_model_out out = {NULL, on_open, on_rate};
    int result = bench_model(&ask, &out, &e);
    return result < 0 ? cli_fail("%s", e.text) : result;
}

/* ---- the command ----------------------------------------------------------------------------- */

int cmd_bench(int argc, char **argv)
{
    static char full[][16] = {"bench layer", "bench model", "bench ceilings"}; /* in messages */
    static const struct {
        const char *name;
        cli_command run;
        const char *text;
    } parts[] = {{"layer", layer, "time one MoE layer of a model or of a shape"},
                 {"model", model, "time the engine on a checkpoint"},
                 {"ceilings", ceilings, "memory read bandwidth and peak arithmetic"}};
    enum { PARTS = sizeof parts / sizeof *parts };
    if (argc < 2) return cli_usage("no part is given, expected layer, model or ceilings");
    for (size_t i = 0; i < PARTS; i++)
        if (!strcmp(argv[1], parts[i].name)) {
            argv[1] = full[i];
            cli_begin(full[i]);
            return parts[i].run(argc - 1, argv + 1);
        }
    if (strcmp(argv[1], "--help") && strcmp(argv[1], "-h"))
        return cli_usage("'%s' is no part of it, expected layer, model or ceilings", argv[1]);
    printf("usage: moewe bench PART [options]\n\nWhat the machine gives, and what moewe makes of it.\n\nparts:\n");
    for (size_t i = 0; i < PARTS; i++) printf("  %-10s %s\n", parts[i].name, parts[i].text);
    for (size_t i = 0; i < PARTS; i++) {
        char help[] = "--help";
        char *again[] = {full[i], help, NULL};
        putchar('\n');
        parts[i].run(2, again);
    }
    return cli_finish(CLI_OK);
}
