/* What other layouts take, against figures from outside: facts that people measured or that their own code printed.
 * Each row of a table is one worked case; docs/planner.md tells where the formulas were read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../planner/scratch.h"

typedef struct worked_case {
    const char *name;
    planner_call call;
    planner_mid mid;
} worked_case;

enum { NEMOTRON, GLM5, QWEN_BF16, QWEN_FP4, DEEPSEEK, B300, CASES };

static const worked_case cases[CASES] = {
    [NEMOTRON] =
        {"Nemotron-3-Super NVFP4, DP8/EP8",
         {.tokens = 131072, .top_k = 22, .experts = 512, .n_local = 64, .width = 1024, .inter = 2688, .layers = 40},
         {"nvfp4", 4, 16, 1}},
    [GLM5] = {"GLM-5 NVFP4, TP4",
              {.tokens = 32768,
               .top_k = 8,
               .experts = 256,
               .n_local = 256,
               .width = 6144,
               .inter = 512,
               .gated = 1,
               .layers = 75},
              {"nvfp4", 4, 16, 1}},
    [QWEN_BF16] = {"Qwen3.5-397B, bf16",
                   {.tokens = 16384,
                    .top_k = 10,
                    .experts = 512,
                    .n_local = 512,
                    .width = 4096,
                    .inter = 1024,
                    .gated = 1,
                    .layers = 60},
                   {"bf16", 16, 0, 0}},
    [QWEN_FP4] = {"Qwen3.5-397B, NVFP4",
                  {.tokens = 16384,
                   .top_k = 10,
                   .experts = 512,
                   .n_local = 512,
                   .width = 4096,
                   .inter = 1024,
                   .gated = 1,
                   .layers = 60},
                  {"nvfp4", 4, 16, 1}},
    [DEEPSEEK] = {"DeepSeek-V3 fp8, DP32",
                  {.tokens = 8192,
                   .top_k = 8,
                   .experts = 256,
                   .n_local = 16,
                   .width = 7168,
                   .inter = 2048,
                   .gated = 1,
                   .layers = 58},
                  {"fp8", 8, 128, 4}},
    [B300] = {"bf16, 16384 tokens, H 7168",
              {.tokens = 16384,
               .top_k = 8,
               .experts = 256,
               .n_local = 256,
               .width = 7168,
               .inter = 2048,
               .gated = 1,
               .layers = 58},
              {"bf16", 16, 0, 0}},
};

static planner_call call_of(int i)
{
    planner_call c = cases[i].call;
    c.mid = cases[i].mid;
    return c;
}

static void to_the_byte(void **state)
{
    static const struct {
        int which;
        planner_layout layout;
        uint64_t bytes;
    } rows[] = {
        {NEMOTRON, PLANNER_CUTLASS, UINT64_C(21973335168)},
        {NEMOTRON, PLANNER_ONE_PASS, UINT64_C(4359979008) + 23068672},
        {GLM5, PLANNER_CUTLASS, UINT64_C(6593540224)},
        {GLM5, PLANNER_ONE_PASS, UINT64_C(75497472) + 2097152},
        {QWEN_BF16, PLANNER_ONE_PASS, UINT64_C(335544320) + 1310720},
        {QWEN_FP4, PLANNER_ONE_PASS, UINT64_C(94371840) + 1310720},
        {DEEPSEEK, PLANNER_BATCHED, UINT64_C(3758096384)},
        {DEEPSEEK, PLANNER_ONE_PASS, UINT64_C(132) * 1048576 + 524288},
        {B300, PLANNER_CUTLASS, UINT64_C(3777130624)},
        {B300, PLANNER_ONE_PASS, UINT64_C(536870912) + 1048576},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        planner_call c = call_of(rows[i].which);
        if (planner_scratch(rows[i].layout, &c) != rows[i].bytes)
            print_error("%s, %s\n", cases[rows[i].which].name, planner_layout_name(rows[i].layout));
        assert_int_equal(planner_scratch(rows[i].layout, &c), rows[i].bytes);
    }
}

/* Where only MiB or GiB were printed: to the last digit of that. */
static void to_the_printed_digit(void **state)
{
    static const struct {
        int which;
        planner_layout layout;
        double unit, printed, digit;
    } rows[] = {
        {GLM5, PLANNER_CUTEDSL, 1 << 20, 476.2, 0.1},      {GLM5, PLANNER_PER_LAYER, 1 << 30, 34.9, 0.1},
        {QWEN_BF16, PLANNER_CUTLASS, 1 << 30, 2.53, 0.01}, {QWEN_FP4, PLANNER_CUTLASS, 1 << 30, 2.59, 0.01},
        {B300, PLANNER_PER_CALL, 1 << 20, 2877.4, 0.1},    {NEMOTRON, PLANNER_CUTLASS, 1 << 30, 20.464, 0.001},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        planner_call c = call_of(rows[i].which);
        double off = (double)planner_scratch(rows[i].layout, &c) / rows[i].unit - rows[i].printed;
        if (off > rows[i].digit / 2 || off < -rows[i].digit / 2)
            fail_msg("%s, %s: off by %g", cases[rows[i].which].name, planner_layout_name(rows[i].layout), off);
    }
}

/* "19.99 GiB" was printed for 128,003 to 128,066 tokens and for no others. */
static void the_report(void **state)
{
    planner_call c = call_of(NEMOTRON);
    (void)state;
    for (uint64_t t = 128001; t <= 128068; t++) {
        c.tokens = t;
        double gib = (double)planner_scratch(PLANNER_CUTLASS, &c) / (1 << 30);
        assert_int_equal(gib >= 19.985 && gib < 19.995, t >= 128003 && t <= 128066);
    }
}

static void chunks(void **state)
{
    static const struct {
        int which;
        uint64_t chunk, bytes;
    } rows[] = {
        {NEMOTRON, 8192, 273940480}, {NEMOTRON, 4096, 136970240}, {NEMOTRON, 1024, 34242560}, {GLM5, 4096, 9699328},
        {QWEN_BF16, 2048, 42106880}, {QWEN_FP4, 2048, 11960320},  {B300, 2048, 67239936},     {B300, 1024, 33619968},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        planner_call c = call_of(rows[i].which);
        assert_int_equal(planner_chunk(&c, rows[i].chunk), rows[i].bytes);
    }
}

static void too_large(void **state)
{
    planner_call c = call_of(B300);
    (void)state;
    c.tokens = UINT64_MAX / 4;
    for (int i = 0; i < PLANNER_LAYOUT_COUNT; i++) assert_int_equal(planner_scratch((planner_layout)i, &c), UINT64_MAX);
    assert_int_equal(planner_scratch(PLANNER_LAYOUT_COUNT, &c), UINT64_MAX);
    c.tokens = 0;
    assert_int_equal(planner_scratch(PLANNER_ONE_PASS, &c), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(to_the_byte), cmocka_unit_test(to_the_printed_digit),
        cmocka_unit_test(the_report),  cmocka_unit_test(chunks),
        cmocka_unit_test(too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
