/* test_bits.c - a row's logits have the same bits whatever else is in the batch, however a prompt is cut, for any
 * number of threads and at every workspace limit. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The thread sanitizer is some 50 times slower and looks for races, which two sequences show as well as six. */
#if defined(__SANITIZE_THREAD__)
enum { SEQUENCES = 2, CONTEXT = 128, LIMITS = 2 };
#else
enum { SEQUENCES = 6, CONTEXT = 128, LIMITS = 3 };
#endif

typedef struct fixture {
    int32_t *ids[SEQUENCES], n[SEQUENCES], vocab;
    float *expected; /* [SEQUENCES][vocab], last position, from one thread and one sequence at a time */
    float *got;
    st_store *ref;
} fixture;

static float *row(float *base, const fixture *f, int i)
{
    return base + (int64_t)i * f->vocab;
}

static void fixture_open(fixture *f, int32_t dtype)
{
    engine *g = engine_with(WORDMATH, (engine_options){.threads = 1, .context = CONTEXT, .dtype = dtype});
    f->ref = reference_open(WORDMATH);
    f->vocab = engine_config(g)->vocab;
    f->expected = calloc(SEQUENCES * (size_t)f->vocab, sizeof *f->expected);
    f->got = calloc(SEQUENCES * (size_t)f->vocab, sizeof *f->got);
    assert_true(f->expected && f->got);
    for (int i = 0; i < SEQUENCES; i++) {
        char name[32];
        snprintf(name, sizeof name, "p%d.input_ids", i);
        f->ids[i] = reference_ids(f->ref, name, &f->n[i]);
        prompt_run(g, 0, f->ids[i], f->n[i], CONTEXT, 1, row(f->expected, f, i));
    }
    engine_close(g);
}

static void fixture_close(fixture *f)
{
    for (int i = 0; i < SEQUENCES; i++) free(f->ids[i]);
    free(f->expected);
    free(f->got);
    st_close(f->ref);
}

/* All prompts together, their rows interleaved, per_pass tokens a pass and per_turn of one sequence in a row. */
static void interleaved(engine *g, fixture *f, int32_t per_pass, int32_t per_turn)
{
    int32_t done[SEQUENCES] = {0}, left = 0, turn = 0;
    int32_t ids[CONTEXT], seq[CONTEXT], pos[CONTEXT];
    uint8_t want[CONTEXT];
    fmt_error e = {""};
    assert_true(per_pass <= CONTEXT);
    for (int i = 0; i < SEQUENCES; i++) left += f->n[i];
    while (left > 0) {
        engine_batch b = {0, ids, seq, pos, want};
        int32_t wanted = 0;
        while (b.n_tokens < per_pass && left > 0) {
            int32_t s = turn++ % SEQUENCES;
            for (int32_t k = 0; k < per_turn && b.n_tokens < per_pass && done[s] < f->n[s]; k++, left--) {
                ids[b.n_tokens] = f->ids[s][done[s]];
                seq[b.n_tokens] = s;
                pos[b.n_tokens] = done[s]++;
                want[b.n_tokens++] = done[s] == f->n[s];
            }
        }
        if (engine_forward(g, &b, &e)) fail_msg("engine_forward: %s", e.text);
        for (int32_t i = 0; i < b.n_tokens; i++)
            if (want[i]) memcpy(row(f->got, f, seq[i]), engine_logits(g, wanted++), (size_t)f->vocab * sizeof(float));
    }
}

static void same_bits(const fixture *f, const char *what)
{
    size_t bytes = (size_t)f->vocab * sizeof(float);
    for (int i = 0; i < SEQUENCES; i++)
        if (memcmp(f->got + (int64_t)i * f->vocab, f->expected + (int64_t)i * f->vocab, bytes) != 0)
            fail_msg("%s: the logits of prompt %d have other bits", what, i);
    memset(f->got, 0xFF, SEQUENCES * bytes);
}

static void cut_prompts(engine *g, fixture *f, const char *what)
{
    static const int32_t chunks[] = {1, 2, 7, 32, CONTEXT};
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        for (int i = 0; i < SEQUENCES; i++) prompt_run(g, i, f->ids[i], f->n[i], chunks[c], 1, row(f->got, f, i));
        same_bits(f, what);
    }
    interleaved(g, f, CONTEXT, 1);
    same_bits(f, what);
    interleaved(g, f, 37, 3);
    same_bits(f, what);
}

static uint64_t floor_bytes(const engine *g, int32_t dtype)
{
    moewe_config m = engine_config(g)->moe;
    moewe_need need;
    m.max_tokens = CONTEXT;
    m.x_dtype = m.y_dtype = dtype;
    m.w_dtype = MOEWE_DTYPE_BF16;
    if (moewe_plan_floor(engine_device(g), &m, &need)) fail_msg("%s", moewe_last_error());
    return need.bytes;
}

static void every_way(int32_t dtype)
{
    fixture f;
    uint64_t limits[3] = {0};
    fixture_open(&f, dtype);
    for (int32_t threads = 1; threads <= 2; threads++)
        for (int i = 0; i < LIMITS; i++) {
            char what[96];
            engine_options o = {.threads = threads,
                                .dtype = dtype,
                                .max_sequences = SEQUENCES,
                                .context = CONTEXT,
                                .max_batch = CONTEXT,
                                .workspace_limit = limits[i]};
            engine *g = engine_with(WORDMATH, o);
            engine_memory m;
            engine_memory_get(g, &m);
            if (i == 0) {
                limits[1] = floor_bytes(g, dtype);
                limits[2] = (limits[1] + m.workspace) / 2;
                assert_true(limits[1] < m.workspace);
            } else {
                assert_true(m.workspace <= limits[i]);
            }
            snprintf(what, sizeof what, "%s, %d threads, workspace limit %llu", moewe_dtype_name(dtype), (int)threads,
                     (unsigned long long)limits[i]);
            cut_prompts(g, &f, what);
            engine_close(g);
        }
    fixture_close(&f);
}

static void bits_f32(void **state)
{
    (void)state;
    every_way(MOEWE_DTYPE_F32);
}

static void bits_bf16(void **state)
{
    (void)state;
    every_way(MOEWE_DTYPE_BF16);
}

/* A sampled text depends on its request's index and the seed, not on how many run at once. */
typedef struct text {
    int32_t ids[SEQUENCES][40];
    int32_t n[SEQUENCES];
} text;

static int keep(void *ctx, size_t request, int32_t token)
{
    text *t = ctx;
    t->ids[request][t->n[request]++] = token;
    return 0;
}

static void sampled_texts(void **state)
{
    static const engine_options ways[] = {
        {.threads = 1, .context = CONTEXT, .max_batch = 64},
        {.threads = 2, .context = CONTEXT, .max_sequences = SEQUENCES},
        {.threads = 2, .context = CONTEXT, .max_sequences = 4, .max_batch = 9},
    };
    static text texts[3], other;
    gen_sampling s = {.temperature = 4.0f, .top_p = 0.98f, .top_k = 50, .seed = 7};
    fixture f;
    (void)state;
    fixture_open(&f, MOEWE_DTYPE_F32);
    for (int w = 0; w < 3; w++) {
        engine *g = engine_with(WORDMATH, ways[w]);
        gen *runner = NULL;
        gen_request r[SEQUENCES];
        fmt_error e = {""};
        for (int i = 0; i < SEQUENCES; i++) r[i] = (gen_request){f.ids[i], f.n[i], 40};
        assert_int_equal(gen_create(g, &runner, &e), 0);
        s.seed = 7;
        if (gen_run(runner, r, SEQUENCES, &s, keep, &texts[w], NULL, &e)) fail_msg("%s", e.text);
        assert_memory_equal(&texts[w], &texts[0], sizeof texts[w]);
        s.seed = 8;
        if (w == 0) assert_int_equal(gen_run(runner, r, SEQUENCES, &s, keep, &other, NULL, &e), 0);
        gen_destroy(runner);
        engine_close(g);
    }
    assert_memory_not_equal(&texts[0], &other, sizeof other);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_f32),
        cmocka_unit_test(bits_bf16),
        cmocka_unit_test(sampled_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
