/* test_vectors.c - tiny checkpoints of each family: logits of every position against transformers' f32 run. */
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "engine/internal.h"

/* To first order each sum of n products moves its result by at most n units of 2^-24, and so does each sum that
 * follows; a row of logits comes after the sums counted here. */
static double allowed(const model_config *c, int32_t positions)
{
    double layer = 2.0 * c->hidden + positions + c->head_dim + (double)c->n_heads * c->head_dim + c->moe.inter;
    return (c->n_layers * layer + c->hidden) * 0x1p-24;
}

/* The references were made by a model converted to bf16 and back, which rounds its buffers too, and so the rotary
 * frequencies; a checkpoint does not hold those.  The engine gets the tables that follow from rounded ones. */
static void rotary_as_reference(engine *g)
{
    const model_config *c = &g->config;
    int32_t half = c->head_dim / 2;
    for (int32_t i = 0; i < half; i++) {
        double exact = pow(c->rope_theta, -2.0 * i / c->head_dim);
        float frequency = engine_bf16_float(engine_float_bf16((float)exact));
        for (int32_t pos = 0; pos < g->opt.context; pos++) {
            g->cos[pos * half + i] = (float)cos((double)(frequency * (float)pos));
            g->sin[pos * half + i] = (float)sin((double)(frequency * (float)pos));
        }
    }
}

static void logits(const char *dir, const char *model_type)
{
    st_store *ref = reference_open(dir);
    int32_t n, *ids = reference_ids(ref, "input_ids", &n);
    engine *g = engine_with(dir, (engine_options){.max_batch = n, .max_logits = n});
    const model_config *c = engine_config(g);
    int64_t count;
    float *expected = reference_floats(ref, "logits", &count);
    float *got = malloc((size_t)count * sizeof *got);
    double error, limit = allowed(c, n);

    assert_non_null(got);
    assert_string_equal(c->model_type, model_type);
    assert_int_equal(count, (int64_t)n * c->vocab);
    rotary_as_reference(g);
    prompt_run(g, 0, ids, n, n, n, got);
    error = relative_error(got, expected, count);
    print_message("%s: relative error of the logits %.2e, allowed %.2e\n", model_type, error, limit);
    assert_true(error <= limit);
    free(got);
    free(expected);
    free(ids);
    engine_close(g);
    st_close(ref);
}

static void qwen3_moe(void **state)
{
    (void)state;
    logits(TEST_VECTORS "/qwen3_moe", "qwen3_moe");
}

static void mixtral(void **state)
{
    (void)state;
    logits(TEST_VECTORS "/mixtral", "mixtral");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(qwen3_moe), cmocka_unit_test(mixtral)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
