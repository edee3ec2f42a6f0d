/* Bytes of weight formats against numbers counted by hand, and quantization_config against what its methods say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "../../formats/weight_format.h"
#include "../../planner/planner.h"

static uint64_t bytes(const char *format, uint64_t count, uint64_t rows, uint64_t cols)
{
    weight_bytes b;
    fmt_error e;
    const weight_format *f = weight_format_find(format, &e);
    assert_non_null(f);
    assert_int_equal(weight_format_bytes(f, count, rows, cols, &b), 0);
    return b.values + b.scales;
}

static void of_formats(void **state)
{
    static const struct {
        const char *name;
        uint64_t values, bytes; /* of one row */
    } rows[] = {
        {"f32", 10, 40},    {"bf16", 10, 20},     {"F16", 3, 6},          {"mxfp8", 64, 66},
        {"nvfp4", 16, 9},   {"mxfp4", 32, 17},    {"q8_0", 32, 34},       {"q4_0", 32, 18},
        {"q4_1", 64, 40},   {"q5_0", 32, 22},     {"q5_1", 32, 24},       {"iq4_nl", 32, 18},
        {"q2_K", 256, 84},  {"q3_K", 256, 110},   {"q4_K", 256, 144},     {"q5_K", 256, 176},
        {"q6_K", 256, 210}, {"iq4_xs", 256, 136}, {"fp8", 100, 104},      {"int8", 100, 104},
        {"int4", 128, 66},  {"nf4", 64, 36},      {"q4_K", 257, 288},     {"nvfp4", 17, 11},
        {"q8_0", 1, 34},    {"bfloat16", 10, 20}, {"fp8_block128", 1, 5}, {"fp8_block128", 129, 137},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (bytes(rows[i].name, 1, 1, rows[i].values) != rows[i].bytes) print_error("%s\n", rows[i].name);
        assert_int_equal(bytes(rows[i].name, 1, 1, rows[i].values), rows[i].bytes);
    }
    /* 16 experts of three matrices, hidden 1024, inter 512, in three formats (TensorRT-LLM issue 15485) */
    assert_int_equal(2 * bytes("nvfp4", 16, 512, 1024) + bytes("nvfp4", 16, 1024, 512), 14155776);
    assert_int_equal(2 * bytes("fp8_block128", 16, 512, 1024) + bytes("fp8_block128", 16, 1024, 512), 25171968);
    assert_int_equal(2 * bytes("bf16", 16, 512, 1024) + bytes("bf16", 16, 1024, 512), 50331648);
    /* 320 rows end in a part of a block: three rows of scales */
    assert_int_equal(bytes("fp8_block128", 1, 320, 128), 320 * 128 + 3 * 4);
    assert_int_equal(bytes("bf16", 0, 320, 128), 0);
}

static void of_no_format(void **state)
{
    fmt_error e;
    weight_bytes b;
    (void)state;
    assert_null(weight_format_find("q9_9", &e));
    assert_non_null(strstr(e.text, "q9_9"));
    assert_non_null(strstr(e.text, "nvfp4"));
    const weight_format *f = weight_format_find("f32", &e);
    assert_int_equal(weight_format_bytes(f, UINT64_C(1) << 32, UINT64_C(1) << 31, 1, &b), -1);
    assert_int_equal(weight_format_bytes(f, 1, UINT64_C(1) << 32, UINT64_C(1) << 32, &b), -1);
}

static void of_splits(void **state)
{
    static const struct {
        int64_t size;
        int32_t parts;
        const char *format;
        int64_t each;
        const char *works; /* of an error */
    } rows[] = {
        {640, 2, "int4", 0, "work: 1, 5"},                       /* vllm 57792 */
        {1536, 8, "fp8_block128", 0, "work: 1, 2, 3, 4, 6, 12"}, /* vllm 48173 */
        {320, 2, "fp8_block128", 0, "work: 1"},                  /* vllm 54178 */
        {320, 1, "fp8_block128", 320, NULL},
        {704, 4, "nvfp4", 176, NULL},
        {640, 4, "nvfp4", 160, NULL},
        {3072, 8, "mxfp4", 384, NULL},
        {10, 3, "bf16", 0, "work (with whole groups of 1): 1, 2, 5, 10"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fmt_error e;
        int64_t each = 0;
        char number[24];
        uint32_t tile = weight_format_tile(weight_format_find(rows[i].format, &e));
        int failed = planner_split("inner width", rows[i].size, rows[i].parts, tile, &each, &e);
        assert_int_equal(failed != 0, rows[i].works != NULL);
        if (!failed) {
            assert_int_equal(each, rows[i].each);
            continue;
        }
        snprintf(number, sizeof number, "%lld", (long long)rows[i].size);
        assert_non_null(strstr(e.text, number));
        snprintf(number, sizeof number, "tp %d", (int)rows[i].parts);
        assert_non_null(strstr(e.text, number));
        if (!strstr(e.text, rows[i].works)) fail_msg("%s", e.text);
        assert_string_equal(strstr(e.text, rows[i].works), rows[i].works);
    }
}

static void of_uneven_experts(void **state)
{
    static const int32_t thirty[] = {4, 4, 4, 4, 4, 4, 3, 3}, first[] = {0, 4, 8, 12, 16, 20, 24, 27};
    static const int32_t many[] = {22, 22, 21, 21, 21, 21};
    int32_t at, n;
    (void)state;
    for (int32_t i = 0; i < 8; i++) {
        planner_experts_of(30, 8, i, &at, &n);
        assert_int_equal(n, thirty[i]);
        assert_int_equal(at, first[i]);
    }
    for (int32_t i = 0; i < 6; i++) {
        planner_experts_of(128, 6, i, &at, &n);
        assert_int_equal(n, many[i]);
    }
}

static void of_modules(void **state)
{
    static const struct {
        const char *pattern, *module;
        int matches;
    } rows[] = {
        {"gate", "model.layers.0.mlp.gate", 1},
        {"gate", "model.layers.0.mlp.experts.0.gate_proj", 0},
        {"lm_head", "lm_head", 1},
        {"lm_head", "my_lm_head", 0},
        {"model.layers.*.self_attn", "model.layers.17.self_attn.q_proj", 1},
        {"model.layers.*.self_attn", "model.layers.17.self_attention.q_proj", 0},
        {"model.layers.*.mlp.router", "model.layers.3.mlp.experts", 0},
        {"model.layers.1", "model.layers.10.mlp.gate", 0},
        {"model.layers.1", "model.layers.1.mlp.gate", 1},
        {"re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.up_proj", 1},
        {"re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.experts.3.up_proj", 0},
        {"re:self_attn", "model.layers.0.self_attn.q_proj", 0},                   /* from the start */
        {"re:(a*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 0}, /* in bounded time */
        {"", "lm_head", 0},
        {"*", "lm_head", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (weight_module_matches(rows[i].pattern, rows[i].module) != rows[i].matches)
            print_error("%s, %s\n", rows[i].pattern, rows[i].module);
        assert_int_equal(weight_module_matches(rows[i].pattern, rows[i].module), rows[i].matches);
    }
}

/* ---- quantization_config ------------------------------------------------------------------------------------- */

#define EXPERT "model.layers.0.mlp.experts.0.gate_proj"

static void of_configs(void **state)
{
    static const struct {
        const char *config, *module;
        int of_expert;
        const char *format;
    } rows[] = {
        {"{}", EXPERT, 1, "bf16"},
        {"{'torch_dtype': 'float16'}", EXPERT, 1, "f16"},
        {"{'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [128, 128]}}", EXPERT, 1,
         "fp8_block128"},
        {"{'quantization_config': {'quant_method': 'fp8'}}", "a.q_proj", 0, "fp8"},
        {"{'quantization_config': {'quant_method': 'fp8', 'modules_to_not_convert': ['a']}}", "a.q_proj", 0, "bf16"},
        {"{'quantization_config': {'quant_method': 'mxfp4'}}", EXPERT, 1, "mxfp4"},
        {"{'quantization_config': {'quant_method': 'mxfp4'}}", "a.q_proj", 0, "bf16"},
        {"{'expert_dtype': 'fp4', 'quantization_config': {'quant_method': 'fp8'}}", EXPERT, 1, "mxfp4"},
        {"{'expert_dtype': 'fp4', 'quantization_config': {'quant_method': 'fp8'}}", "a.q_proj", 0, "fp8"},
        {"{'quantization_config': {'quant_method': 'modelopt', 'quant_algo': 'NVFP4', 'ignore': ['a*']}}", "ab.c", 0,
         "bf16"},
        {"{'quantization_config': {'quant_method': 'modelopt', 'quant_algo': 'NVFP4'}}", "ab.c", 0, "nvfp4"},
        {"{'quantization_config': {'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {'m.0': {'quant_algo': "
         "'FP8'}}}}",
         "m.0.x", 0, "fp8"},
        {"{'quantization_config': {'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {'m.0': {'quant_algo': "
         "'FP8'}}}}",
         "m.1.x", 0, "bf16"},
        {"{'quantization_config': {'quant_method': 'gptq', 'bits': 4, 'group_size': 64}}", EXPERT, 1, "int4"},
        {"{'quantization_config': {'quant_method': 'bitsandbytes', 'load_in_4bit': true}}", EXPERT, 1, "nf4"},
        {"{'quantization_config': {'quant_method': 'compressed-tensors', 'config_groups': {'g': {'targets': ['Linear'],"
         "'weights': {'num_bits': 4, 'type': 'float', 'group_size': 32}}}}}",
         EXPERT, 1, "mxfp4"},
        {"{'quantization_config': {'quant_method': 'compressed-tensors', 'config_groups': {'g': {'targets': "
         "['re:.*experts'],"
         "'weights': {'num_bits': 8, 'type': 'int', 'strategy': 'channel'}}}}}",
         EXPERT, 1, "int8"},
        {"{'quantization_config': {'quant_method': 'compressed-tensors', 'config_groups': {'g': {'targets': "
         "['re:.*experts'],"
         "'weights': {'num_bits': 8, 'type': 'int', 'strategy': 'channel'}}}}}",
         "a.q_proj", 0, "bf16"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fmt_error e = {""};
        weight_quant q;
        char text[512];
        snprintf(text, sizeof text, "%s", rows[i].config);
        for (char *c = text; *c; c++)
            if (*c == '\'') *c = '"';
        json_t *o = json_loads(text, 0, NULL);
        assert_non_null(o);
        if (weight_quant_read(o, o, NULL, "config.json", &q, &e)) fail_msg("%s: %s", text, e.text);
        if (strcmp(weight_quant_of(&q, rows[i].module, rows[i].of_expert).name, rows[i].format))
            print_error("%s\n", text);
        assert_string_equal(weight_quant_of(&q, rows[i].module, rows[i].of_expert).name, rows[i].format);
        weight_quant_free(&q);
        json_decref(o);
    }
}

static void of_bad_configs(void **state)
{
    static const char *const rows[][2] = {
        {"{\"quantization_config\": 3}", "no object"},
        {"{\"quantization_config\": {\"quant_method\": \"magic\"}}", "magic"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [0, 1]}}", "weight_block_size"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"ignore\": \"x\"}}", "ignore"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"ignore\": [3]}}", "ignore[0]"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"ignore\": [\"re:(\"]}}", "re:("},
        {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\"}}", "config_groups"},
        {"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 99}}", "99"},
        {"{\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"Q\"}}", "'Q'"},
        {"{\"dtype\": \"int3\"}", "int3"},
        {"{\"expert_dtype\": \"fp3\"}", "config.json: expert_dtype: 'fp3'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fmt_error e = {""};
        weight_quant q;
        json_t *o = json_loads(rows[i][0], 0, NULL);
        assert_non_null(o);
        assert_int_equal(weight_quant_read(o, o, NULL, "config.json", &q, &e), -1);
        if (!strstr(e.text, rows[i][1])) fail_msg("%s", e.text);
        assert_non_null(strstr(e.text, "config.json"));
        json_decref(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_formats),        cmocka_unit_test(of_no_format), cmocka_unit_test(of_splits),
        cmocka_unit_test(of_uneven_experts), cmocka_unit_test(of_modules),   cmocka_unit_test(of_configs),
        cmocka_unit_test(of_bad_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
