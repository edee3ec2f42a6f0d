/* test_errors.c - what the engine refuses, and that it works on afterwards. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char dir[] = TEST_VECTORS "/qwen3_moe"; /* vocabulary 256, 128 positions */

static void refuses_batch(engine *g, engine_batch b, const char *says)
{
    fmt_error e = {""};
    assert_int_equal(engine_forward(g, &b, &e), -1);
    if (!strstr(e.text, says)) fail_msg("expected a sentence with \"%s\", got \"%s\"", says, e.text);
}

static void batches(void **state)
{
    engine *g = engine_with(dir, (engine_options){.max_sequences = 2, .context = 16, .max_batch = 8});
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, zero[9] = {0};
    const int32_t up[] = {0, 1, 2, 3, 4, 5, 6, 7, 8}, jump[] = {0, 2}, late[] = {3}, beyond[] = {16};
    const int32_t bad_id[] = {256}, negative[] = {-1}, bad_seq[] = {2};
    const uint8_t all[] = {1, 1, 1, 1, 1, 1, 1, 1};
    fmt_error e = {""};
    engine_batch none = {0}, good = {2, ids, zero, up, NULL}, next = {1, ids, zero, up + 2, all};
    (void)state;

    assert_int_equal(engine_forward(g, &none, &e), 0);
    refuses_batch(g, (engine_batch){-1, ids, zero, up, NULL}, "-1 tokens");
    refuses_batch(g, (engine_batch){9, ids, zero, up, NULL}, "9 tokens");
    refuses_batch(g, (engine_batch){1, NULL, zero, up, NULL}, "no ids");
    refuses_batch(g, (engine_batch){1, bad_id, zero, up, NULL}, "token id 256");
    refuses_batch(g, (engine_batch){1, negative, zero, up, NULL}, "token id -1");
    refuses_batch(g, (engine_batch){1, ids, bad_seq, up, NULL}, "sequence 2");
    refuses_batch(g, (engine_batch){1, ids, negative, up, NULL}, "sequence -1");
    refuses_batch(g, (engine_batch){1, ids, zero, beyond, NULL}, "position 16");
    refuses_batch(g, (engine_batch){1, ids, zero, negative, NULL}, "position -1");
    refuses_batch(g, (engine_batch){1, ids, zero, late, NULL}, "position 3");
    refuses_batch(g, (engine_batch){2, ids, zero, jump, NULL}, "position 2");
    refuses_batch(g, (engine_batch){2, ids, zero, zero, NULL}, "position 0");
    refuses_batch(g, (engine_batch){3, ids, zero, up, all}, "logits of 3 rows");

    /* A refused batch changes nothing: position 2 follows 0 and 1. */
    assert_int_equal(engine_forward(g, &good, &e), 0);
    refuses_batch(g, (engine_batch){1, ids, zero, late, NULL}, "position 3");
    assert_int_equal(engine_forward(g, &next, &e), 0);
    assert_non_null(engine_logits(g, 0));
    assert_null(engine_logits(g, 2));
    assert_null(engine_logits(g, -1));
    engine_close(g);
}

static int count_tokens(void *ctx, size_t request, int32_t token)
{
    (void)request;
    (void)token;
    return ++*(int *)ctx == 3;
}

static void refuses_request(gen *r, gen_request q, gen_sampling s, const char *says)
{
    fmt_error e = {""};
    int tokens = 0;
    gen_request both[2] = {q, q};
    both[0] = (gen_request){(const int32_t[]){1}, 1, 1}; /* checked before anything runs: this one must not start */
    assert_int_equal(gen_run(r, both, 2, &s, count_tokens, &tokens, NULL, &e), -1);
    if (!strstr(e.text, says)) fail_msg("expected a sentence with \"%s\", got \"%s\"", says, e.text);
    assert_int_equal(tokens, 0);
}

static void requests(void **state)
{
    engine *g = engine_with(dir, (engine_options){.context = 16});
    gen *r = NULL;
    const int32_t ids[17] = {1, 2, 3}, bad[] = {1, 256};
    gen_sampling greedy = {0};
    fmt_error e = {""};
    int tokens = 0;
    gen_stats stats;
    (void)state;
    assert_int_equal(gen_create(g, &r, &e), 0);
    refuses_request(r, (gen_request){ids, 0, 1}, greedy, "0 tokens");
    refuses_request(r, (gen_request){NULL, 3, 1}, greedy, "expected at least one");
    refuses_request(r, (gen_request){ids, 17, 0}, greedy, "context is 16");
    refuses_request(r, (gen_request){ids, 3, 14}, greedy, "asks for 14 more");
    refuses_request(r, (gen_request){ids, 3, INT32_MAX}, greedy, "context is 16");
    refuses_request(r, (gen_request){ids, 3, -1}, greedy, "-1 new tokens");
    refuses_request(r, (gen_request){bad, 2, 1}, greedy, "token id 256");
    refuses_request(r, (gen_request){ids, 3, 1}, (gen_sampling){.temperature = -1.0f}, "temperature");
    refuses_request(r, (gen_request){ids, 3, 1}, (gen_sampling){.top_p = 1.5f}, "top_p");
    refuses_request(r, (gen_request){ids, 3, 1}, (gen_sampling){.top_k = -2}, "top_k");

    /* Exactly the context is allowed; on_token ends it after the third token; no new tokens means none. */
    assert_int_equal(gen_run(r, &(gen_request){ids, 3, 13}, 1, &greedy, count_tokens, &tokens, &stats, &e), 0);
    assert_int_equal(tokens, 3);
    assert_int_equal(stats.new_tokens, 3);
    assert_int_equal(stats.prompt_tokens, 3);
    tokens = 10;
    assert_int_equal(gen_run(r, &(gen_request){ids, 3, 13}, 1, &greedy, count_tokens, &tokens, &stats, &e), 0);
    assert_int_equal(tokens, 23);
    assert_int_equal(gen_run(r, &(gen_request){ids, 3, 0}, 1, &greedy, count_tokens, &tokens, &stats, &e), 0);
    assert_int_equal(tokens, 23);
    assert_int_equal(gen_run(r, NULL, 0, &greedy, count_tokens, &tokens, &stats, &e), 0);
    gen_destroy(r);
    engine_close(g);
}

static void refuses_open(const char *path, engine_options o, const char *says)
{
    engine *g = NULL;
    fmt_error e = {""};
    assert_int_equal(engine_open(path, &o, &g, &e), -1);
    assert_null(g);
    if (!strstr(e.text, says)) fail_msg("expected a sentence with \"%s\", got \"%s\"", says, e.text);
}

static void opening(void **state)
{
    (void)state;
    refuses_open(TEST_VECTORS "/no-such-model", (engine_options){0}, "no-such-model");
    refuses_open(dir, (engine_options){.context = 129}, "129");
    refuses_open(dir, (engine_options){.context = -1}, "negative");
    refuses_open(dir, (engine_options){.dtype = MOEWE_DTYPE_F16}, "f16");
    refuses_open(dir, (engine_options){.max_sequences = 9, .max_batch = 8}, "9 sequences");
    refuses_open(dir, (engine_options){.backend = "no-such-backend"}, "no-such-backend");
    refuses_open(dir, (engine_options){.workspace_limit = 1}, "workspace_limit is 1 ");
    /* 2^31 - 1 sequences of 128 positions, 2 layers of 2 heads of 16: 2^31 x 64 KiB of keys and values in f32 */
    refuses_open(dir, (engine_options){.max_sequences = INT32_MAX, .max_batch = INT32_MAX}, "140737488289792");
    refuses_open(dir, (engine_options){.max_sequences = 1 << 24, .max_batch = 1 << 24}, "1099511627776");
}

/* Bytes worked out from the config: 2 layers, 2 key-value heads of 16, context in whole blocks of 32. */
static void memory_adds_up(void **state)
{
    static const int32_t dtypes[] = {MOEWE_DTYPE_F32, MOEWE_DTYPE_BF16};
    (void)state;
    for (int i = 0; i < 2; i++) {
        engine *g = engine_with(dir, (engine_options){.dtype = dtypes[i], .max_sequences = 3, .context = 33});
        engine_memory m;
        engine_memory_get(g, &m);
        assert_int_equal(m.kv_cache, 2 * 2 * 3 * 64 * 2 * 16 * (i ? 2 : 4));
        assert_int_equal(m.total, m.weights + m.kv_cache + m.workspace + m.activations);
        assert_int_equal(m.workspace_per_layer_sum, 2 * m.workspace);
        assert_true(m.activations >= 3 * 256 * 4 + 512 * 64 * (i ? 2 : 4));
        assert_true(m.mapped > 0 && m.workspace > 0 && m.weights > 0);
        assert_int_equal(engine_options_get(g)->max_batch, 512);
        assert_int_equal(engine_options_get(g)->max_logits, 3);
        assert_string_equal(engine_options_get(g)->backend, moewe_device_backend(engine_device(g)));
        engine_close(g);
    }
    engine_close(NULL);
    gen_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches),
        cmocka_unit_test(requests),
        cmocka_unit_test(opening),
        cmocka_unit_test(memory_adds_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
