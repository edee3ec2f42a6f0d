/* cmd_eval.c - moewe eval: how many problems a model solves.  All prompts are encoded before the engine is
 * planned for them; nothing is allocated while it answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "eval_loss.h"
#include "problems.h"
#include "text_model.h"

typedef struct attempt {
    answer answer;
    int32_t produced;
} attempt;

typedef struct eval_job {
    cli_common common;
    const char *dir, *data, *loss;
    int32_t limit, shots, batch, max_tokens;
    text_model model;
    problems problems;
    size_t n; /* problems asked */
    gen_request *requests;
    attempt *attempts;
    int32_t longest; /* prompt */
    size_t done;
    uint64_t tokens;
    int stats;
    int progress; /* stderr is a terminal */
    double started, shown;
} eval_job;

/* ---- prompts ---------------------------------------------------------------------------------- */

static int encode(eval_job *j, size_t index)
{
    fmt_error e;
    int32_t *ids = NULL, most = j->model.config.max_position;
    size_t count = 0;
    char *text = problems_prompt(&j->problems, index, (size_t)j->shots);
    if (!text) return cli_fail("no memory for the prompt of problem %zu", index + 1);
    int bad = tok_encode(j->model.tokenizer, text, strlen(text), &ids, &count, &e);
    free(text);
    if (bad) return cli_fail("%s: problem %zu: %s", j->data, index + 1, e.text);
    j->requests[index] = (gen_request){ids, (int32_t)count, j->max_tokens};
    if (count > (size_t)most || j->max_tokens > most - (int32_t)count)
        return cli_fail(
            "%s: problem %zu: the prompt has %zu tokens and --max-tokens asks for %d more; the context is %d "
            "tokens (max_position_embeddings of %s)",
            j->data, index + 1, count, (int)j->max_tokens, (int)most, j->model.config.file);
    if ((int32_t)count > j->longest) j->longest = (int32_t)count;
    return CLI_OK;
}

static int encode_all(eval_job *j)
{
    if ((size_t)j->shots >= j->problems.n)
        return cli_fail("%s: --shots is %d, expected at most %zu, one less than its problems", j->data, (int)j->shots,
                        j->problems.n - 1);
    j->n = j->limit && (size_t)j->limit < j->problems.n ? (size_t)j->limit : j->problems.n;
    j->requests = calloc(j->n, sizeof *j->requests);
    j->attempts = calloc(j->n, sizeof *j->attempts);
    if (!j->requests || !j->attempts) return cli_fail("no memory for %zu problems", j->n);
    for (size_t i = 0; i < j->n; i++) {
        int status = encode(j, i);
        if (status) return status;
    }
    return CLI_OK;
}

/* ---- answers ---------------------------------------------------------------------------------- */

/* A bar, the rate and the time left, a few times a second; straight to the terminal, without stdio. */
static void show_progress(eval_job *j, int last)
{
    enum { WIDTH = 30 };
    char line[160], bar[WIDTH + 1];
    double now = cli_seconds(), spent = now - j->started;
    if (!j->progress || (!last && now - j->shown < 0.2)) return;
    j->shown = now;
    size_t filled = j->done * WIDTH / j->n;
    memset(bar, '.', WIDTH);
    memset(bar, '#', filled);
    bar[WIDTH] = 0;
    double left = j->done ? spent / (double)j->done * (double)(j->n - j->done) : 0;
    int length = snprintf(line, sizeof line, "\r[%s] %zu/%zu, %.0f tokens/s, ETA %.0f s \033[K%s", bar, j->done, j->n,
                          spent > 0 ? (double)j->tokens / spent : 0, left, last ? "\n" : "");
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0) j->progress = 0;
}

static int on_token(void *ctx, size_t request, int32_t token)
{
    eval_job *j = ctx;
    attempt *a = &j->attempts[request];
    int ended = text_model_ends(&j->model, token), asked = 0;
    size_t n = 0;
    if (!ended && !tok_is_special(j->model.tokenizer, token)) {
        const char *bytes = tok_bytes(j->model.tokenizer, token, &n);
        if (bytes) asked = answer_feed(&a->answer, bytes, n);
    }
    a->produced++;
    j->tokens++;
    if (ended || asked || a->produced == j->max_tokens) j->done++;
    show_progress(j, 0);
    return asked;
}

static size_t count_right(eval_job *j)
{
    size_t right = 0;
    for (size_t i = 0; i < j->n; i++)
        right +=
            answer_end(&j->attempts[i].answer) && answer_equal(&j->attempts[i].answer, &j->problems.list[i].expected);
    return right;
}

static int eval(eval_job *j)
{
    gen_stats stats = {0};
    uint64_t allocations = 0;
    int status = problems_read(&j->problems, j->data);
    if (!status) status = text_model_open(&j->model, j->dir);
    if (!status) status = encode_all(j);
    if (status) return status;
    int32_t sequences = (size_t)j->batch < j->n ? j->batch : (int32_t)j->n;
    status = text_model_start(&j->model, &j->common, sequences, j->longest + j->max_tokens);
    if (status) return status;

    j->progress = isatty(STDERR_FILENO);
    j->started = cli_seconds();
    status = text_model_run(&j->model, j->requests, j->n, NULL, on_token, j, &stats, &allocations);
    if (status) return status;
    show_progress(j, 1);
    double spent = stats.prompt_seconds + stats.new_seconds;
    printf("prompt tokens: %llu, new tokens: %llu, in %.2f s: %.1f tokens/s\n", (unsigned long long)stats.prompt_tokens,
           (unsigned long long)stats.new_tokens, spent,
           spent > 0 ? (double)(stats.prompt_tokens + stats.new_tokens) / spent : 0);
    if (j->stats) text_model_print_memory(&j->model);
    text_model_print_allocations(allocations);
    printf("exact match %zu/%zu\n", count_right(j), j->n);
    return CLI_OK;
}

static void job_free(eval_job *j)
{
    for (size_t i = 0; j->requests && i < j->n; i++) free((void *)(uintptr_t)j->requests[i].prompt);
    free(j->requests);
    free(j->attempts);
    text_model_close(&j->model);
    problems_free(&j->problems);
}

int cmd_eval(int argc, char **argv)
{
    static const char *const positionals[] = {"DIR"};
    eval_job j = {.common = {.dtype = MOEWE_DTYPE_F32}, .batch = 64, .max_tokens = 160};
    const args_option options[] = {
        {.name = "--data",
         .metavar = "FILE.jsonl",
         .kind = ARGS_TEXT,
         .out = &j.data,
         .help = "problems, one {\"question\", \"answer\"} a line"},
        {.name = "--loss",
         .metavar = "FILE:TENSOR",
         .kind = ARGS_TEXT,
         .out = &j.loss,
         .help = "also, or instead: the mean loss on these token ids"},
        {.name = "--stats", .kind = ARGS_FLAG, .out = &j.stats, .help = "also where every byte is"},
        {.name = "--limit",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.limit,
         .low = 1,
         .high = INT32_MAX,
         .help = "only the first N problems (default: all)"},
        {.name = "--shots",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.shots,
         .low = 0,
         .high = INT32_MAX,
         .help = "worked examples before each question (default: 0)"},
        {.name = "--batch",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.batch,
         .low = 1,
         .high = 4096,
         .help = "problems answered at a time (default: 64); the result is the same"},
        {.name = "--max-tokens",
         .metavar = "N",
         .kind = ARGS_INT,
         .out = &j.max_tokens,
         .low = 1,
         .high = INT32_MAX,
         .help = "at most so many new tokens an answer (default: 160)"},
        ARGS_DTYPE(j.common, "of the activations and the KV cache (default: f32)"),
        ARGS_COMMON(j.common), ARGS_PIN(j.common),
    };
    const args_spec spec = {
        .synopsis = "DIR --data FILE.jsonl | --loss FILE:TENSOR [options]",
        .about =
            "Asks the model in DIR every question as \"Question: Q\\nAnswer:\", takes the likeliest tokens up to\n"
            "end-of-text, --max-tokens or a \"Question:\" of the model's own, and counts the answers whose number\n"
            "after the last \"####\" is that of the file, commas and spaces removed.  The last line is\n"
            "\"exact match N/M\".\n"
            "\n"
            "--shots N puts the N problems that follow in the file (after the last comes the first) in front\n"
            "of each question, as \"Question: Q\\nAnswer: A\\n\\n\"; every problem is still asked.\n"
            "\n"
            "--loss prints the mean of -log(probability) of the tokens in a tensor of a safetensors file, each given\n"
            "those before it: what quantisation costs, in finer steps than answers show.",
        .positionals = positionals,
        .values = &j.dir,
        .n_positionals = 1,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    if (!j.data && !j.loss) return cli_usage("--data is missing; usage: moewe eval %s", spec.synopsis);
    status = j.loss ? eval_loss(j.dir, &j.common, j.loss, j.stats) : CLI_OK;
    if (!status && j.data) status = eval(&j);
    job_free(&j);
    return status;
}
