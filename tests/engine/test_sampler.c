/* test_sampler.c - the sampler against probabilities worked out by hand: order of the filters, ties, odd logits. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 100000, SMALL = 4 };

/* Probabilities 1/2, 1/4, 1/8, 1/8, out of order. */
static const double chances[SMALL] = {0.125, 0.5, 0.125, 0.25};

static void small_logits(float *logits)
{
    for (int i = 0; i < SMALL; i++) logits[i] = (float)log(chances[i]);
}

/* DRAWS draws must come within 5 standard deviations of expected, and never where that is 0. */
static void distribution(gen_sampling s, const float *logits, int32_t vocab, const double *expected)
{
    gen_candidate *scratch = calloc((size_t)vocab, sizeof *scratch);
    int32_t *count = calloc((size_t)vocab, sizeof *count);
    uint64_t rng = gen_seed(s.seed, 0);
    assert_true(scratch && count);
    for (int i = 0; i < DRAWS; i++) {
        int32_t id = gen_sample(&s, logits, vocab, scratch, &rng);
        assert_in_range(id, 0, vocab - 1);
        count[id]++;
    }
    for (int32_t i = 0; i < vocab; i++) {
        double mean = DRAWS * expected[i], deviation = sqrt(mean * (1.0 - expected[i]));
        if (fabs(count[i] - mean) > 5.0 * deviation + 1e-9)
            fail_msg("token %d came %d times, expected %.1f +- %.1f", (int)i, (int)count[i], mean, 5.0 * deviation);
    }
    free(scratch);
    free(count);
}

static void softmax_alone(void **state)
{
    float logits[64];
    double expected[64], total = 0.0;
    (void)state;
    for (int i = 0; i < 64; i++) logits[i] = (float)((i * 37) % 64) / 16.0f;
    for (int i = 0; i < 64; i++) total += expected[i] = exp(logits[i] / 0.8);
    for (int i = 0; i < 64; i++) expected[i] /= total;
    distribution((gen_sampling){.temperature = 0.8f, .seed = 1}, logits, 64, expected);
    distribution((gen_sampling){.temperature = 0.8f, .top_p = 1.0f, .top_k = 64, .seed = 2}, logits, 64, expected);
}

static void filters(void **state)
{
    float logits[SMALL];
    (void)state;
    small_logits(logits);
    distribution((gen_sampling){.temperature = 1.0f, .seed = 3}, logits, SMALL, chances);
    /* the second of two tokens of 1/8 goes: the lower id stays */
    distribution((gen_sampling){.temperature = 1.0f, .top_k = 3, .seed = 4}, logits, SMALL,
                 (const double[]){1.0 / 7, 4.0 / 7, 0, 2.0 / 7});
    /* 1/2 is short of 0.7, 1/2 + 1/4 is not; 0.76 takes the next, 0.88 all */
    distribution((gen_sampling){.temperature = 1.0f, .top_p = 0.7f, .seed = 5}, logits, SMALL,
                 (const double[]){0, 2.0 / 3, 0, 1.0 / 3});
    distribution((gen_sampling){.temperature = 1.0f, .top_p = 0.76f, .seed = 6}, logits, SMALL,
                 (const double[]){1.0 / 7, 4.0 / 7, 0, 2.0 / 7});
    distribution((gen_sampling){.temperature = 1.0f, .top_p = 0.88f, .seed = 7}, logits, SMALL, chances);
    distribution((gen_sampling){.temperature = 1.0f, .top_p = 0.01f, .seed = 8}, logits, SMALL,
                 (const double[]){0, 1, 0, 0});
}

static void order_of_filters(void **state)
{
    float logits[SMALL];
    (void)state;
    small_logits(logits);
    /* temperature 1/2 squares: 4/5.5 for the first, so 0.7 keeps it alone, while unsquared it would keep two */
    distribution((gen_sampling){.temperature = 0.5f, .top_p = 0.7f, .seed = 9}, logits, SMALL,
                 (const double[]){0, 1, 0, 0});
    /* among the top two the first has 2/3, so 0.6 keeps it alone; of all it would have 1/2 and keep two */
    distribution((gen_sampling){.temperature = 1.0f, .top_k = 2, .top_p = 0.6f, .seed = 10}, logits, SMALL,
                 (const double[]){0, 1, 0, 0});
    distribution((gen_sampling){.temperature = 1.0f, .top_k = 2, .top_p = 0.7f, .seed = 11}, logits, SMALL,
                 (const double[]){0, 2.0 / 3, 0, 1.0 / 3});
}

static int32_t one(gen_sampling s, const float *logits, int32_t vocab)
{
    gen_candidate scratch[64];
    uint64_t rng = gen_seed(s.seed, 0);
    assert_true(vocab <= 64);
    return gen_sample(&s, logits, vocab, scratch, &rng);
}

static void greedy(void **state)
{
    const float ties[] = {1.0f, 3.0f, 2.0f, 3.0f}, negative[] = {-5.0f, -2.0f, -9.0f};
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        assert_int_equal(one((gen_sampling){.seed = seed}, ties, 4), 1);
        assert_int_equal(one((gen_sampling){.seed = seed, .top_k = 1, .temperature = 2.0f}, ties, 4), 1);
        assert_int_equal(one((gen_sampling){.seed = seed, .temperature = 1e-3f}, negative, 3), 1);
        assert_int_equal(one((gen_sampling){.seed = seed, .top_k = 1, .temperature = 1.0f, .top_p = 0.5f}, negative, 3),
                         1);
    }
}

static void odd_logits(void **state)
{
    const float with_nan[] = {NAN, 1.0f, NAN, 1.0f}, all_nan[] = {NAN, NAN}, infinite[] = {0.0f, INFINITY, 1.0f};
    const float barred[] = {-INFINITY, 0.0f, -INFINITY, 0.0f}, none[] = {-INFINITY, -INFINITY};
    (void)state;
    assert_int_equal(one((gen_sampling){0}, with_nan, 4), 1);
    assert_int_equal(one((gen_sampling){0}, all_nan, 2), 0);
    assert_int_equal(one((gen_sampling){.temperature = 1.0f}, all_nan, 2), 0);
    assert_int_equal(one((gen_sampling){.temperature = 1.0f}, infinite, 3), 1);
    assert_int_equal(one((gen_sampling){.temperature = 1.0f, .top_p = 0.9f}, none, 2), 0);
    distribution((gen_sampling){.temperature = 1.0f, .seed = 12}, with_nan, 4, (const double[]){0, 0.5, 0, 0.5});
    distribution((gen_sampling){.temperature = 1.0f, .top_p = 0.99f, .seed = 13}, with_nan, 4,
                 (const double[]){0, 0.5, 0, 0.5});
    distribution((gen_sampling){.temperature = 1.0f, .seed = 14}, barred, 4, (const double[]){0, 0.5, 0, 0.5});
}

static void seeds(void **state)
{
    float logits[64];
    gen_candidate scratch[64];
    gen_sampling s = {.temperature = 1.0f};
    uint64_t a = gen_seed(5, 3), b = gen_seed(5, 3), c = gen_seed(5, 4), d = gen_seed(6, 3);
    int same_c = 0, same_d = 0;
    (void)state;
    memset(logits, 0, sizeof logits);
    assert_true(a != c && a != d && c != d);
    for (int i = 0; i < 1000; i++) {
        int32_t x = gen_sample(&s, logits, 64, scratch, &a);
        assert_int_equal(x, gen_sample(&s, logits, 64, scratch, &b));
        same_c += x == gen_sample(&s, logits, 64, scratch, &c);
        same_d += x == gen_sample(&s, logits, 64, scratch, &d);
    }
    /* 1000 tries at 1/64 each: 15.6 +- 5 * 3.9 */
    assert_in_range(same_c, 0, 35);
    assert_in_range(same_d, 0, 35);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_alone), cmocka_unit_test(filters),    cmocka_unit_test(order_of_filters),
        cmocka_unit_test(greedy),        cmocka_unit_test(odd_logits), cmocka_unit_test(seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
