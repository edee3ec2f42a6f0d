/* cmd_generate.c - moewe generate: continues a prompt, text as it comes.  Nothing is allocated between the
 * first token and the last. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "text_model.h"
#include "text_out.h"

typedef struct generate_job {
    cli_common common;
    const char *dir, *prompt;
    int32_t max_tokens, top_k, context;
    double temperature, top_p;
    uint64_t seed;
    int stats;
    text_model model;
    char *typed; /* the prompt, when it came from standard input */
    int32_t *ids;
    size_t n_ids;
    text_out out;
    int stopped;
} generate_job;

/* ---- the prompt ------------------------------------------------------------------------------ */

static int read_stdin(generate_job *j, size_t *bytes)
{
    size_t used = 0, room = 0;
    for (;;) {
        if (used == room) {
            char *more = room > SIZE_MAX / 2 - 4096 ? NULL : realloc(j->typed, room * 2 + 4096);
            if (!more) return cli_fail("no memory for a prompt of more than %zu bytes", room);
            j->typed = more;
            room = room * 2 + 4096;
        }
        size_t got = fread(j->typed + used, 1, room - used, stdin);
        if (!got) break;
        used += got;
    }
    if (ferror(stdin)) return cli_fail("standard input: %s", strerror(errno));
    if (used && j->typed[used - 1] == '\n') used--;
    *bytes = used;
    return CLI_OK;
}

static int encode_prompt(generate_job *j)
{
    fmt_error e;
    const char *text = j->prompt;
    size_t bytes = strlen(text);
    if (!strcmp(j->prompt, "-")) {
        int status = read_stdin(j, &bytes);
        if (status) return status;
        text = j->typed;
    }
    if (tok_encode(j->model.tokenizer, text, bytes, &j->ids, &j->n_ids, &e)) return cli_fail("--prompt: %s", e.text);
    if (!j->n_ids) return cli_fail("--prompt: found no token, expected at least one");
    return CLI_OK;
}

/* The context is as long as this prompt needs, unless it was given. */
static int fit_context(generate_job *j)
{
    int32_t most = j->model.config.max_position;
    int32_t limit = j->context ? j->context : most;
    if (j->context > most)
        return cli_fail("--context is %d tokens, %s allows at most %d (max_position_embeddings)", (int)j->context,
                        j->model.config.file, (int)most);
    if (j->n_ids > (size_t)limit || j->max_tokens > limit - (int32_t)j->n_ids)
        return cli_fail("the prompt has %zu tokens and --max-tokens asks for %d more, %llu together; the context is %d "
                        "tokens (%s%s)",
                        j->n_ids, (int)j->max_tokens, (unsigned long long)j->n_ids + (unsigned long long)j->max_tokens,
                        (int)limit, j->context ? "--context" : "max_position_embeddings of ",
                        j->context ? "" : j->model.config.file);
    if (!j->context) j->context = (int32_t)j->n_ids + j->max_tokens;
    return CLI_OK;
}

/* ---- the text ---------------------------------------------------------------------------------- */

static int on_token(void *ctx, size_t request, int32_t token)
{
    generate_job *j = ctx;
    size_t n;
    (void)request;
    if (text_model_ends(&j->model, token)) return 0; /* the generator stops there by itself */
    if (tok_is_special(j->model.tokenizer, token)) return 0;
    const char *bytes = tok_bytes(j->model.tokenizer, token, &n);
    if (bytes) j->stopped = text_out_put(&j->out, bytes, n);
    return cli_flush() || j->stopped; /* when nobody reads on there is no need to go on */
}

static void print_stats(const generate_job *j, const gen_stats *s, uint64_t allocations)
{
    /* The first new token comes out of the pass that read the prompt. */
    uint64_t later = s->new_tokens ? s->new_tokens - 1 : 0;
    const engine_options *o = engine_options_get(j->model.engine);
    printf("\nback end: %s, %d threads, %s\n", o->backend, (int)o->threads, moewe_dtype_name(o->dtype));
    printf("prompt: %llu tokens in %.3f s, %.1f tokens/s\n", (unsigned long long)s->prompt_tokens, s->prompt_seconds,
           s->prompt_seconds > 0 ? (double)s->prompt_tokens / s->prompt_seconds : 0);
    printf("generation: %llu tokens, %llu after the first in %.3f s, %.1f tokens/s\n",
           (unsigned long long)s->new_tokens, (unsigned long long)later, s->new_seconds,
           s->new_seconds > 0 ? (double)later / s->new_seconds : 0);
    text_model_print_memory(&j->model);
    text_model_print_allocations(allocations);
}

static int generate(generate_job *j)
{
    gen_stats stats = {0};
    uint64_t allocations = 0;
    int status = text_model_open(&j->model, j->dir);
    if (!status) status = encode_prompt(j);
    if (!status) status = fit_context(j);
    if (!status) status = text_model_start(&j->model, &j->common, 1, j->context);
    if (status) return status;

    gen_request request = {j->ids, (int32_t)j->n_ids, j->max_tokens};
    gen_sampling sampling = {(float)j->temperature, (float)j->top_p, j->top_k, j->seed};
    status = text_model_run(&j->model, &request, 1, &sampling, on_token, j, &stats, &allocations);
    if (status) return status;
    text_out_end(&j->out, j->stopped);
    putchar('\n');
    if (j->stats) print_stats(j, &stats, allocations);
    return CLI_OK;
}

int cmd_generate(int argc, char **argv)
{
    static const char *const positionals[] = {"DIR"};
    generate_job j = {.common = {.dtype = MOEWE_DTYPE_F32}, .max_tokens = 128};
    const args_option options[] = {
        {.name = "--prompt",
         .metavar = "TEXT",
         .kind = ARGS_TEXT,
         .out = &j.prompt,
         .help = "the text to continue; - reads standard input, less one final newline"},
        {.name = "--max-tokens",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.max_tokens,
         .low = 1,
         .high = INT32_MAX,
         .help = "at most so many new tokens (default: 128)"},
        {.name = "--temperature",
         .metavar = "X",
         .kind = ARGS_REAL,
         .out = &j.temperature,
         .low = 0,
         .high = 1e6,
         .help = "0 takes the likeliest token (default); above, tokens are drawn"},
        {.name = "--top-p",
         .metavar = "X",
         .kind = ARGS_REAL,
         .out = &j.top_p,
         .low = 0,
         .high = 1,
         .help = "draw among the likeliest that together have probability X (default: all)"},
        {.name = "--top-k",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.top_k,
         .low = 0,
         .high = INT32_MAX,
         .help = "draw among the N likeliest (default: all)"},
        {.name = "--seed",
         .metavar = "N",
         .kind = ARGS_U64,
         .out = &j.seed,
         .help = "the same seed draws the same text (default: 0)"},
        {.name = "--context",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.context,
         .low = 1,
         .high = INT32_MAX,
         .help = "tokens that the KV cache holds (default: prompt and --max-tokens)"},
        {.name = "--stop",
         .metavar = "TEXT",
         .kind = ARGS_TEXT,
         .out = &j.out.stop,
         .help = "end before TEXT and the white space in front of it"},
        {.name = "--stats",
         .kind = ARGS_FLAG,
         .out = &j.stats,
         .help = "afterwards: tokens/s, the memory map, allocations after start"},
        ARGS_DTYPE(j.common, "of the activations and the KV cache (default: f32)"),
        ARGS_COMMON(j.common), ARGS_PIN(j.common),
    };
    const args_spec spec = {
        .synopsis = "DIR --prompt TEXT [options]",
        .about = "Continues a prompt with the model in DIR (config.json, tokenizer.json, safetensors), or in a GGUF\n"
                 "file given for it, up to its end-of-text, printing text as it is made; special tokens are not printed, and bytes that\n"
                 "are no UTF-8 appear as U+FFFD.  All memory is taken before the first token.",
        .positionals = positionals,
        .values = &j.dir,
        .n_positionals = 1,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    if (!j.prompt) return cli_usage("--prompt is missing; usage: moewe generate %s", spec.synopsis);
    if (j.out.stop && (!j.out.stop[0] || strlen(j.out.stop) > TEXT_OUT_STOP_MAX))
        return cli_usage("--stop has %zu bytes, expected 1 to %d", strlen(j.out.stop), (int)TEXT_OUT_STOP_MAX);
    status = generate(&j);
    text_model_close(&j.model);
    free(j.ids);
    free(j.typed);
    return status;
}
