/* Plans of the 46 models of tests/data/model-configs against what those files derive from their configs, published
 * parameter counts, rules of cutting counted by hand, and configs that are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <jansson.h>

#include "../../planner/planner.h"

static moewe_device *device;

static int open_device(void **state)
{
    moewe_device_desc d;
    (void)state;
    MOEWE_INIT(d);
    d.kind = MOEWE_DEVICE_CPU;
    d.n_threads = 2;
    return moewe_device_open(&d, &device) ? -1 : 0;
}

static int close_device(void **state)
{
    (void)state;
    moewe_device_close(device);
    return 0;
}

static planner_model *open_model(const char *path)
{
    planner_model *m = NULL;
    fmt_error e;
    if (planner_open(path, &m, &e)) fail_msg("%s", e.text);
    return m;
}

static planner_plan make(const planner_model *m, planner_ask ask)
{
    planner_plan p;
    fmt_error e;
    if (!ask.tokens) ask.tokens = 4096;
    if (planner_make(m, &ask, device, &p, &e)) fail_msg("%s", e.text);
    return p;
}

static planner_plan make_named(const char *name, planner_ask ask)
{
    planner_model *m = open_model(name);
    planner_plan p = make(m, ask);
    planner_close(m);
    return p;
}

/* ---- all 46 ----------------------------------------------------------------------------------------------- */

static int64_t number(const json_t *o, const char *field)
{
    return (int64_t)json_number_value(json_object_get(o, field));
}

/* The elements a token adds; the four whose files count otherwise (index keys left out; chunked layers counted
 * as if they grew) say so in a note, and differ by what the note says. */
static int64_t kv_elements(const char *name, const json_t *kv)
{
    static const struct {
        const char *name;
        int64_t index_layers, index_width, chunked_layers, chunked_width;
    } conventions[] = {
        {"deepseek-v3.2", 61, 128, 0, 0}, {"glm-5", 78, 128, 0, 0},          {"glm-5.2", 78, 128, 0, 0},
        {"minimax-m3", 57, 128, 0, 0},    {"llama-4-scout", 0, 0, 36, 2048}, {"llama-4-maverick", 0, 0, 36, 2048},
    };
    int64_t elements = number(kv, "elements_per_token");
    for (size_t i = 0; i < sizeof conventions / sizeof *conventions; i++)
        if (!strcmp(name, conventions[i].name))
            elements += conventions[i].index_layers * conventions[i].index_width -
                        conventions[i].chunked_layers * conventions[i].chunked_width;
    return elements;
}

static void against_derived(void **state)
{
    size_t n = 0;
    (void)state;
    for (const char *name; (name = planner_known_name(n)); n++) {
        char path[512];
        snprintf(path, sizeof path, "%s/tests/data/model-configs/%s.json", MOEWE_SOURCE_DIR, name);
        json_t *file = json_load_file(path, 0, NULL), *derived = json_object_get(file, "derived");
        planner_model *m = open_model(path);
        const planner_facts *f = planner_model_facts(m);
        planner_plan p = make(m, (planner_ask){.kv_fp8 = 0});
        assert_non_null(derived);
        print_message("%s\n", name);
        assert_int_equal(f->routed_params, number(derived, "routed_params_total"));
        assert_int_equal(f->n_moe_layers, number(derived, "num_moe_layers"));
        assert_int_equal(f->n_experts, number(derived, "num_experts"));
        assert_int_equal(f->top_k, number(derived, "top_k"));
        assert_int_equal(f->inter, number(derived, "expert_intermediate_size"));
        assert_int_equal(f->shared_inter, number(derived, "shared_expert_intermediate_total"));
        assert_int_equal(f->latent ? f->latent : f->hidden, number(derived, "expert_input_size"));
        assert_int_equal(f->gated, json_is_true(json_object_get(derived, "gated")));
        assert_int_equal(p.kv_per_token, 2 * kv_elements(name, json_object_get(derived, "kv")));
        planner_close(m);
        json_decref(file);
    }
    assert_int_equal(n, 46);
}

static void published_counts(void **state)
{
    static const struct {
        const char *name;
        uint64_t params;
    } rows[] = {
        {"mixtral-8x7b", UINT64_C(46702792704)},
        {"gpt-oss-20b", UINT64_C(20914757184)},
        {"olmoe-1b-7b", UINT64_C(6919161856)},
        {"deepseek-v2-lite", UINT64_C(15706484224)},
        {"mistralai/Mixtral-8x7B-v0.1", UINT64_C(46702792704)},
        {"Mixtral-8x7B-v0.1", UINT64_C(46702792704)},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        planner_model *m = open_model(rows[i].name);
        assert_int_equal(planner_model_facts(m)->params, rows[i].params);
        planner_close(m);
    }
    /* bf16 everywhere: two bytes each, no scales */
    assert_int_equal(make_named("mixtral-8x7b", (planner_ask){0}).weights, 2 * UINT64_C(46702792704));
}

/* gpt-oss-20b: 24 layers x 32 experts x (2 x 2880 x 2880 + 2880 x 2880) in mxfp4, their biases and the rest in bf16. */
static void quantised_checkpoint(void **state)
{
    const uint64_t experts = UINT64_C(24) * 32 * 3 * 2880 * 2880, biases = UINT64_C(24) * 32 * (2 * 2880 + 2880);
    planner_plan p = make_named("gpt-oss-20b", (planner_ask){0});
    (void)state;
    assert_int_equal(p.part[PLANNER_EXPERTS].values, experts / 2 + 2 * biases);
    assert_int_equal(p.part[PLANNER_EXPERTS].scales, experts / 32);
    assert_int_equal(p.scales, experts / 32);
    assert_int_equal(p.weights, experts / 2 + experts / 32 + 2 * (UINT64_C(20914757184) - experts));
    /* in DeepSeek-V3 the router and the embeddings stay, all else is fp8 with a scale for 128 x 128 */
    p = make_named("deepseek-v3", (planner_ask){0});
    assert_int_equal(p.part[PLANNER_EXPERTS].values, UINT64_C(58) * 256 * 3 * 7168 * 2048);
    assert_int_equal(p.part[PLANNER_EXPERTS].scales, UINT64_C(58) * 256 * 3 * 56 * 16 * 4);
    assert_int_equal(p.part[PLANNER_EMBEDDINGS].values, UINT64_C(2) * 2 * 129280 * 7168);
    assert_int_equal(p.part[PLANNER_ROUTER].values, UINT64_C(58) * 2 * (256 * 7168 + 256));
    assert_int_equal(p.part[PLANNER_ROUTER].scales, 0);
    /* what the ignore list keeps, it keeps in another format too */
    p = make_named("kimi-k3", (planner_ask){.weights = weight_format_find("nvfp4", NULL)});
    assert_int_equal(p.part[PLANNER_SHARED].scales, 0);
    assert_int_equal(p.part[PLANNER_EXPERTS].scales, p.part[PLANNER_EXPERTS].values / 8);
}

/* ---- workspace ------------------------------------------------------------------------------------------------ */

/* The five worked cases: never more than one pass, and a floor no higher than a chunk of 4096 tokens. */
static void worked_cases(void **state)
{
    static const struct {
        const char *name, *weights;
        planner_ask ask;
        int32_t call_tokens, inter;
    } rows[] = {
        {"nemotron-3-super", "nvfp4", {.tokens = 16384, .ep = 8}, 131072, 2688},
        {"glm-5", "nvfp4", {.tokens = 32768, .tp = 4}, 32768, 512},
        {"qwen3.5-397b-a17b", "bf16", {.tokens = 16384}, 16384, 1024},
        {"qwen3.5-397b-a17b", "nvfp4", {.tokens = 16384}, 16384, 1024},
        {"deepseek-v3", "fp8", {.tokens = 256, .ep = 16, .dp = 32}, 4096, 2048},
        {"deepseek-v3", "bf16", {.tokens = 16384}, 16384, 2048}, /* H 7168, I 2048, E 256, top 8: the B300 case */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int32_t dtype = MOEWE_DTYPE_F32; dtype <= MOEWE_DTYPE_BF16; dtype += 2) {
            planner_ask ask = rows[i].ask;
            planner_model *m = open_model(rows[i].name);
            ask.weights = weight_format_find(rows[i].weights, NULL);
            ask.dtype = dtype;
            planner_plan p = make(m, ask);
            planner_call c = planner_call_of(m, &p);
            assert_int_equal(p.call_tokens, rows[i].call_tokens);
            assert_int_equal(p.moe.inter, rows[i].inter);
            if (p.workspace_fast > planner_scratch(PLANNER_ONE_PASS, &c))
                fail_msg("%s: the workspace is %llu bytes, one pass %llu", rows[i].name,
                         (unsigned long long)p.workspace_fast,
                         (unsigned long long)planner_scratch(PLANNER_ONE_PASS, &c));
            if (p.workspace_floor > planner_chunk(&c, 4096))
                fail_msg("%s: the floor is %llu bytes, a chunk %llu", rows[i].name,
                         (unsigned long long)p.workspace_floor, (unsigned long long)planner_chunk(&c, 4096));
            planner_close(m);
        }
    planner_model *m = open_model("nemotron-3-super");
    planner_plan p = make(m, (planner_ask){.tokens = 16384, .ep = 8, .weights = weight_format_find("nvfp4", NULL)});
    planner_call c = planner_call_of(m, &p);
    assert_int_equal(planner_scratch(PLANNER_CUTLASS, &c), UINT64_C(21973335168));
    planner_close(m);
}

static void limits_and_lanes(void **state)
{
    planner_model *m = open_model("qwen3-30b-a3b");
    planner_plan fast = make(m, (planner_ask){0}), p;
    (void)state;
    assert_int_equal(fast.workspace, fast.workspace_fast);
    p = make(m, (planner_ask){.workspace_limit = fast.workspace_floor, .lanes = 3});
    assert_int_equal(p.workspace_fast, fast.workspace_fast);
    assert_true(p.workspace <= fast.workspace_floor);
    assert_int_equal(p.workspaces, 3 * p.workspace);
    assert_int_equal(p.total, p.weights + p.kv + p.state + p.workspaces);
    planner_close(m);
}

/* ---- cuts ------------------------------------------------------------------------------------------------------- */

static void cuts(void **state)
{
    planner_model *m = open_model("qwen3-30b-a3b"); /* 48 layers, 32 heads over 4, 128 wide; E 128, I 768, H 2048 */
    const uint64_t norms = 2 * (UINT64_C(48) * 2 * 2048 + 2048), head_norms = UINT64_C(48) * 2 * 2 * 128;
    const uint64_t q_and_o = UINT64_C(48) * 2 * 2 * 4096 * 2048, k_and_v = UINT64_C(48) * 2 * 2 * 512 * 2048;
    planner_plan p;
    (void)state;
    for (int32_t tp = 1; tp <= 8; tp *= 2) {
        uint64_t kv_parts = tp > 4 ? 4 : (uint64_t)tp;
        p = make(m, (planner_ask){.tp = tp});
        assert_int_equal(p.part[PLANNER_EXPERTS].values, UINT64_C(48) * 128 * 3 * 768 * 2048 * 2 / (uint64_t)tp);
        assert_int_equal(p.part[PLANNER_NORMS].values, norms);
        assert_int_equal(p.part[PLANNER_ATTENTION].values, head_norms + q_and_o / (uint64_t)tp + k_and_v / kv_parts);
        assert_int_equal(p.part[PLANNER_ROUTER].values, UINT64_C(48) * 128 * 2048 * 2);
        assert_int_equal(p.part[PLANNER_EMBEDDINGS].values, UINT64_C(2) * 2 * 151936 * 2048 / (uint64_t)tp);
        assert_int_equal(p.kv_per_token, UINT64_C(48) * 2 * 512 * 2 / kv_parts);
        assert_int_equal(p.shard.kv_copies, tp > 4 ? tp / 4 : 1);
    }
    p = make(m, (planner_ask){.tp = 4, .ep = 2}); /* two ranks share an expert */
    assert_int_equal(p.shard.expert_tp, 2);
    assert_int_equal(p.shard.n_local, 64);
    assert_int_equal(p.part[PLANNER_EXPERTS].values, UINT64_C(48) * 64 * 3 * 384 * 2048 * 2);
    assert_int_equal(p.call_tokens, 4096);
    p = make(m, (planner_ask){.tp = 2, .ep = 8}); /* four data-parallel ranks meet */
    assert_int_equal(p.shard.dp, 4);
    assert_int_equal(p.shard.expert_tp, 1);
    assert_int_equal(p.call_tokens, 4 * 4096);
    p = make(m, (planner_ask){.ep = 6});
    assert_int_equal(p.shard.n_local, 22);
    planner_close(m);

    m = open_model("deepseek-v3"); /* the latent cache is whole on every rank */
    assert_int_equal(make(m, (planner_ask){.tp = 8}).kv_per_token, make(m, (planner_ask){0}).kv_per_token);
    planner_close(m);
    m = open_model("nemotron-3-super"); /* 40 Mamba-2 layers: 128 heads x 64 x 128 in f32, 3 columns of 10240 */
    assert_int_equal(make(m, (planner_ask){0}).state, UINT64_C(40) * (128 * 64 * 128 * 4 + 10240 * 3 * 2));
    assert_int_equal(make(m, (planner_ask){.tp = 8}).state, UINT64_C(5) * (128 * 64 * 128 * 4 + 10240 * 3 * 2));
    planner_close(m);
}

static void windows(void **state)
{
    planner_model *m = open_model("gpt-oss-20b"); /* 12 layers keep 128 tokens, 12 keep all, 1024 elements each */
    planner_plan p = make(m, (planner_ask){.context = 1000, .sequences = 3});
    (void)state;
    assert_int_equal(p.kv_per_token, 12 * 1024 * 2);
    assert_int_equal(p.kv_window, 12 * 1024 * 2 * 128);
    assert_int_equal(p.kv, 3 * (p.kv_per_token * 1000 + p.kv_window));
    p = make(m, (planner_ask){.context = 100, .kv_fp8 = 1});
    assert_int_equal(p.kv, 2 * 12 * 1024 * 100);
    planner_close(m);
}

/* ---- fit --------------------------------------------------------------------------------------------------------- */

static void fit(void **state)
{
    planner_model *m = open_model("qwen3-30b-a3b");
    planner_ask ask = {.context = 4096, .sequences = 8, .utilization = 1};
    planner_plan p = make(m, ask), q;
    uint64_t kv = p.kv / 8, total = p.total;
    (void)state;
    assert_int_equal(p.budget, 0);
    ask.memory = total;
    p = make(m, ask);
    assert_true(p.fits && p.left == 0 && p.short_by == 0);
    assert_int_equal(p.kv_tokens, 8 * 4096);
    ask.memory = total - 1;
    p = make(m, ask);
    assert_true(!p.fits && p.left == 0 && p.short_by == 1);
    assert_int_equal(p.kv_tokens, 8 * 4096 - 1);
    assert_non_null(strstr(p.change, "--workspace-limit "));
    ask.workspace_limit = strtoull(strrchr(p.change, ' '), NULL, 10);
    q = make(m, ask);
    assert_true(q.fits);
    ask.workspace_limit = 0;
    ask.kv_fp8 = 1; /* nothing left to save there */
    ask.memory = total - p.kv / 2 - 3 * (kv / 2);
    p = make(m, ask);
    assert_string_equal(p.change, "--sequences 5");
    ask.sequences = 1;
    ask.memory = p.weights + p.workspaces + 1000 * (p.kv_per_token);
    p = make(m, ask);
    assert_string_equal(p.change, "--context 1000");
    ask.memory = p.weights / 2;
    p = make(m, ask);
    assert_string_equal(p.change, "--tp 4");
    ask.memory = 1000;
    p = make(m, ask);
    assert_non_null(strstr(p.change, "--memory "));
    ask.memory = strtoull(strrchr(p.change, ' '), NULL, 10);
    assert_true(make(m, ask).fits);
    ask.utilization = 0.9;
    ask.memory = 100000000000;
    assert_int_equal(make(m, ask).budget, 90000000000);
    planner_close(m);
}

/* ---- refusals ----------------------------------------------------------------------------------------------------- */

static void refused_asks(void **state)
{
    static const struct {
        const char *name;
        planner_ask ask;
        const char *parts[4];
    } rows[] = {
        {"qwen3-30b-a3b", {.tokens = 1, .tp = 5}, {"32", "tp 5", "1, 2, 4, 8"}},
        {"qwen3-30b-a3b", {.tokens = 1, .tp = -1}, {"-1"}},
        {"qwen3-30b-a3b", {.tokens = 1, .ep = 129}, {"129", "128"}},
        {"qwen3-30b-a3b", {.tokens = 1, .ep = 8, .dp = 4}, {"8", "4"}},
        {"qwen3-30b-a3b", {.tokens = 1, .context = 40961}, {"40961", "40960"}},
        {"qwen3-30b-a3b", {.tokens = INT32_MAX, .ep = 8}, {"2147483647", "8"}},
        {"qwen3-30b-a3b", {.tokens = 0}, {"tokens 0"}},
        {"qwen3-30b-a3b", {.tokens = 1, .utilization = 1.5}, {"1.5"}},
        {"deepseek-v3", {.tokens = 1, .tp = 32}, {"18432", "tp 32", "128", "1, 2, 3, 4, 6, 8, 9, 12, 16"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        planner_model *m = open_model(rows[i].name);
        planner_plan p;
        fmt_error e = {""};
        assert_int_equal(planner_make(m, &rows[i].ask, device, &p, &e), -1);
        for (size_t k = 0; k < 4 && rows[i].parts[k]; k++)
            if (!strstr(e.text, rows[i].parts[k])) fail_msg("no '%s' in: %s", rows[i].parts[k], e.text);
        planner_close(m);
    }
}

#define GOOD                                                                                                           \
    "'model_type': 'qwen3_moe', 'hidden_size': 64, 'num_hidden_layers': 2, 'num_attention_heads': 4, "                 \
    "'num_key_value_heads': 2, 'head_dim': 16, 'vocab_size': 100, 'num_experts': 8, 'moe_intermediate_size': 32"

static char *written(const char *text)
{
    static char path[] = "/tmp/moewe-planner-XXXXXX";
    strcpy(path, "/tmp/moewe-planner-XXXXXX");
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    assert_non_null(f);
    for (; *text; text++) fputc(*text == '\'' ? '"' : *text, f);
    assert_int_equal(fclose(f), 0);
    return path;
}

static void small_configs(void **state)
{
    static const struct {
        const char *config;
        uint64_t params;
    } rows[] = {
        /* embed and head 100 x 64, three norms; per layer 2 norms, q and o 64 x 64, k and v 32 x 64, two head norms, router
         * 8 x 64, experts 8 x 3 x 32 x 64 */
        {"{" GOOD ", 'num_experts_per_tok': 2}",
         2 * 6400 + 64 + 2 * (2 * 64 + 2 * 4096 + 2 * 2048 + 2 * 16 + 512 + 8 * 3 * 2048)},
        {"{'model_type': 'x', 'text_config': {" GOOD ", 'num_experts_per_tok': 2}}",
         2 * 6400 + 64 + 2 * (2 * 64 + 2 * 4096 + 2 * 2048 + 2 * 16 + 512 + 8 * 3 * 2048)},
        {"{" GOOD ", 'num_experts_per_tok': 2, 'tie_word_embeddings': true}",
         6400 + 64 + 2 * (2 * 64 + 2 * 4096 + 2 * 2048 + 2 * 16 + 512 + 8 * 3 * 2048)},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *path = written(rows[i].config);
        planner_model *m = open_model(path);
        assert_int_equal(planner_model_facts(m)->params, rows[i].params);
        assert_int_equal(make(m, (planner_ask){0}).weights, 2 * rows[i].params);
        planner_close(m);
        unlink(path);
    }
}

static void bad_configs(void **state)
{
    static const char *const rows[][2] = {
        {"{" GOOD ", 'num_experts_per_tok': 9}", "8"},
        {"{" GOOD ", 'num_experts_per_tok': -1}", "num_experts_per_tok"},
        {"{" GOOD ", 'num_experts_per_tok': 'two'}", "num_experts_per_tok"},
        {"{" GOOD ", 'num_experts_per_tok': 2, 'quantization_config': {'quant_method': 'q'}}", "quant_method"},
        {"{'model_type': 'unheard_of', 'hidden_size': 64}", "unheard_of"},
        {"{'hidden_size': 64}", "model_type"},
        {"{", "moewe-planner"},
        {"[]", "moewe-planner"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        planner_model *m = NULL;
        fmt_error e = {""};
        char *path = written(rows[i][0]);
        if (!planner_open(path, &m, &e)) fail_msg("accepted: %s", rows[i][0]);
        if (!strstr(e.text, rows[i][1]) || !strstr(e.text, path)) fail_msg("no '%s' in: %s", rows[i][1], e.text);
        unlink(path);
    }
    planner_model *m = NULL;
    fmt_error e;
    assert_int_equal(planner_open("no-such-model", &m, &e), -1);
    assert_non_null(strstr(e.text, "no-such-model"));
    assert_int_equal(planner_open(MOEWE_SOURCE_DIR "/tests", &m, &e), -1);
    assert_null(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_derived),
        cmocka_unit_test(published_counts),
        cmocka_unit_test(quantised_checkpoint),
        cmocka_unit_test(worked_cases),
        cmocka_unit_test(limits_and_lanes),
        cmocka_unit_test(cuts),
        cmocka_unit_test(windows),
        cmocka_unit_test(fit),
        cmocka_unit_test(refused_asks),
        cmocka_unit_test(small_configs),
        cmocka_unit_test(bad_configs),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
