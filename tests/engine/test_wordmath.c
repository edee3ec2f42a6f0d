/* test_wordmath.c - the shipped model against transformers' f32 run of it: greedy tokens, last logits, token losses. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
enum { PROMPTS = 4, NEW = 100 }; /* it is slow, and looks for races only */
#else
enum { PROMPTS = 16, NEW = 100 };
#endif

typedef struct collected {
    int32_t ids[PROMPTS][NEW];
    int32_t n[PROMPTS];
} collected;

static int collect(void *ctx, size_t request, int32_t token)
{
    collected *c = ctx;
    assert_true(request < PROMPTS && c->n[request] < NEW);
    c->ids[request][c->n[request]++] = token;
    return 0;
}

static void greedy_equals_reference(engine_options o)
{
    st_store *ref = reference_open(WORDMATH);
    engine *g = engine_with(WORDMATH, o);
    gen *runner = NULL;
    gen_request requests[PROMPTS];
    gen_sampling greedy = {0};
    gen_stats stats = {0};
    collected *got = calloc(1, sizeof *got);
    fmt_error e = {""};
    uint64_t prompt_tokens = 0, new_tokens = 0;
    int32_t *prompts[PROMPTS];

    assert_non_null(got);
    assert_int_equal(gen_create(g, &runner, &e), 0);
    for (int i = 0; i < PROMPTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "p%d.input_ids", i);
        prompts[i] = reference_ids(ref, name, &requests[i].n_prompt);
        requests[i].prompt = prompts[i];
        requests[i].max_new = NEW;
        prompt_tokens += (uint64_t)requests[i].n_prompt;
    }
    if (gen_run(runner, requests, PROMPTS, &greedy, collect, got, &stats, &e)) fail_msg("gen_run: %s", e.text);

    for (int i = 0; i < PROMPTS; i++) {
        char name[32];
        int32_t count, expected = 0, *ids;
        snprintf(name, sizeof name, "p%d.greedy_ids", i);
        ids = reference_ids(ref, name, &count);
        assert_int_equal(count, NEW);
        while (expected < count && ids[expected++] != END_OF_TEXT) continue;
        assert_int_equal(got->n[i], expected);
        assert_memory_equal(got->ids[i], ids, (size_t)expected * sizeof *ids);
        new_tokens += (uint64_t)expected;
        free(ids);
        free(prompts[i]);
    }
    assert_int_equal(stats.prompt_tokens, prompt_tokens);
    assert_int_equal(stats.new_tokens, new_tokens);
    free(got);
    gen_destroy(runner);
    engine_close(g);
    st_close(ref);
}

static void greedy_one_sequence(void **state)
{
    (void)state;
    greedy_equals_reference((engine_options){.threads = 1, .context = 256});
}

static void greedy_batched(void **state)
{
    (void)state;
    greedy_equals_reference((engine_options){.threads = 2, .max_sequences = 16, .context = 256});
}

/* More sequences than slots, and passes so short that prompts are cut. */
static void greedy_small_batches(void **state)
{
    (void)state;
    greedy_equals_reference((engine_options){.threads = 2, .max_sequences = 5, .context = 256, .max_batch = 13});
}

static void last_logits(void **state)
{
    st_store *ref = reference_open(WORDMATH);
    engine *g = engine_with(WORDMATH, (engine_options){.context = 256});
    engine *half = engine_with(WORDMATH, (engine_options){.context = 256, .dtype = MOEWE_DTYPE_BF16});
    int32_t vocab = engine_config(g)->vocab, layers = engine_config(g)->n_layers;
    float *got = malloc((size_t)vocab * sizeof *got);
    /* bf16: each of some 8 roundings a layer and 2 at the ends may move the logits by one part in 2^8. */
    double half_allowed = (8.0 * layers + 2.0) / 256.0;
    double worst = 0.0, half_worst = 0.0;
    (void)state;

    assert_non_null(got);
    for (int i = 0; i < PROMPTS; i++) {
        char name[32];
        int32_t n, *ids;
        int64_t count;
        float *expected;
        double error;
        snprintf(name, sizeof name, "p%d.input_ids", i);
        ids = reference_ids(ref, name, &n);
        snprintf(name, sizeof name, "p%d.logits_last", i);
        expected = reference_floats(ref, name, &count);
        assert_int_equal(count, vocab);
        prompt_run(g, 0, ids, n, 512, 1, got);
        error = relative_error(got, expected, vocab);
        worst = error > worst ? error : worst;
        prompt_run(half, 0, ids, n, 512, 1, got);
        error = relative_error(got, expected, vocab);
        half_worst = error > half_worst ? error : half_worst;
        free(ids);
        free(expected);
    }
    print_message("last logits, relative error: f32 %.2e (allowed 1e-4), bf16 %.2e (allowed %.2e)\n", worst, half_worst,
                  half_allowed);
    assert_true(worst <= 1e-4);
    assert_true(half_worst <= half_allowed);
    free(got);
    engine_close(half);
    engine_close(g);
    st_close(ref);
}

static double token_loss(const float *logits, int32_t vocab, int32_t target)
{
    double high = logits[0], sum = 0.0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > high) high = logits[i];
    for (int32_t i = 0; i < vocab; i++) sum += exp(logits[i] - high);
    return log(sum) + high - logits[target];
}

static void long_text_losses(void **state)
{
    st_store *ref = reference_open(WORDMATH);
    engine *g = engine_with(WORDMATH, (engine_options){.context = 768, .max_batch = 768, .max_logits = 768});
    int32_t n, *ids = reference_ids(ref, "long.input_ids", &n), vocab = engine_config(g)->vocab;
    int64_t n_losses;
    float *expected = reference_floats(ref, "long.nll", &n_losses);
    float *logits = malloc((size_t)n * (size_t)vocab * sizeof *logits);
    double mean = 0.0, expected_mean = 0.0, worst = 0.0;
    (void)state;

    assert_non_null(logits);
    assert_int_equal(n, 768);
    assert_int_equal(n_losses, n - 1);
    prompt_run(g, 0, ids, n, 768, n, logits);
    for (int32_t i = 0; i < n_losses; i++) {
        double loss = token_loss(logits + (int64_t)i * vocab, vocab, ids[i + 1]);
        double off = fabs(loss - expected[i]);
        mean += loss / (double)n_losses;
        expected_mean += expected[i] / (double)n_losses;
        worst = off > worst ? off : worst;
    }
    print_message("long.nll: mean %.6f, reference %.6f, largest difference of one token %.2e\n", mean, expected_mean,
                  worst);
    assert_true(fabs(mean - expected_mean) <= 1e-4);
    free(ids);
    free(expected);
    free(logits);
    engine_close(g);
    st_close(ref);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_logits),    cmocka_unit_test(long_text_losses),     cmocka_unit_test(greedy_one_sequence),
        cmocka_unit_test(greedy_batched), cmocka_unit_test(greedy_small_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
