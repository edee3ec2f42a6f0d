/* test_expression.c - the descriptors' little language against values worked out by hand, and its errors. */
#include <math.h>

#include "files.h"
#include "formats/expression.h"

static int value_of(void *ctx, const char *name, double *out, fmt_error *e)
{
    static const struct {
        const char *name;
        double value;
    } names[] = {{"H", 64}, {"NH", 4}, {"Z", 0}, {"order", 3}, {"not_here", 5}, {"and1", 7}, {"half", 0.5}, {"big", 0x1p53 - 1}, {"bigger", 0x1p53}};
    (void)ctx;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].value;
            return 0;
        }
    return fmt_fail(e, "no %s", name);
}

static void test_values(void **state)
{
    static const struct {
        const char *text;
        double value;
    } rows[] = {
        {"7", 7},
        {" 7 ", 7},
        {"0.5", 0.5},
        {"1+2*3", 7},
        {"(1+2)*3", 9},
        {"2*3+4*5", 26},
        {"10-4-3", 3}, /* from the left */
        {"64/4/2", 8},
        {"7//2", 3},
        {"7/2", 3.5},
        {"-7//2", -4}, /* floor */
        {"7//2*2", 6},
        {"7//-2", -4},
        {"2*-3", -6},
        {"-2-3", -5},
        {"1 - -1", 2},
        {"H//NH", 16},
        {"H*(NH+2)//3", 128},
        {"order", 3}, /* a name that begins as an operator does */
        {"not_here", 5},
        {"and1", 7},
        {"H and1", NAN},
        {"half*2 == 1", 1},
        {"H > NH", 1},
        {"H < NH", 0},
        {"H >= 64", 1},
        {"H <= 63", 0},
        {"H != 64", 0},
        {"H == 64", 1},
        {"1+1 == 2", 1},
        {"not Z", 1},
        {"not H", 0},
        {"not not H", 1},
        {"not H == 64", 0}, /* not (H == 64) */
        {"not Z == 1", 1},
        {"H and Z", 0},
        {"H and NH", 1},
        {"Z or H", 1},
        {"Z or Z", 0},
        {"H or Z and Z", 1}, /* and binds tighter */
        {"(H or Z) and Z", 0},
        {"not Z and not Z", 1},
        {"not (H and Z)", 1},
        {"Z*5", 0},
        {"9007199254740991", 0x1p53 - 1},
        {"-big", 1 - 0x1p53},
        {"big - 1 + 1", 0x1p53 - 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fmt_error e = {""};
        double v = 0;
        int failed = expression_eval(rows[i].text, value_of, NULL, &v, &e);
        if (failed != (isnan(rows[i].value) ? -1 : 0)) fail_msg("%s: %s", rows[i].text, e.text);
        if (!failed && v != rows[i].value) fail_msg("%s is %g, %g is expected", rows[i].text, v, rows[i].value);
    }
}

static void test_errors(void **state)
{
    static const struct {
        const char *text, *words[3];
    } rows[] = {
        {"", {"a number or a name is expected"}},
        {"   ", {"a number or a name is expected"}},
        {"1+", {"'1+'", "a number or a name is expected"}},
        {"*2", {"'*2'", "expected"}},
        {"(1", {"')' is expected"}},
        {"1)", {"the end is expected", "')'"}},
        {"1 2", {"the end is expected", "'2'"}},
        {"H NH", {"the end is expected"}},
        {"1 == 1 == 1", {"the end is expected"}}, /* does not chain */
        {"1 = 1", {"the end is expected"}},
        {"H @ 2", {"the end is expected", "@ 2"}},
        {"unknown", {"no unknown"}},
        {"1/0", {"division by 0"}},
        {"1//0", {"division by 0"}},
        {"H//Z", {"'H//Z'", "division by 0"}},
        {"H/(NH-4)", {"division by 0"}},
        {"9007199254740993", {"2^53"}}, /* as a double it is 2^53, and so is what follows + 1 */
        {"bigger", {"2^53"}},
        {"big+1", {"2^53"}},
        {"big+1-1", {"2^53"}},
        {"big*2", {"2^53"}},
        {"-big-2", {"2^53"}},
        {"1e400", {"2^53"}},
        {"--1", {"expected"}},
        {"\x01", {"expected"}},
    };
    char deep[300], text[200];
    double v;
    fmt_error e = {""};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (expression_eval(rows[i].text, value_of, NULL, &v, &e) == 0) fail_msg("accepted: %s", rows[i].text);
        assert_mentions(e.text, (const char *[]){rows[i].words[0], rows[i].words[1], NULL});
    }

    /* 20 levels are more than any descriptor has; 100 are refused before the stack is. */
    for (int n = 20; n <= 100; n += 80) {
        memset(deep, '(', (size_t)n);
        deep[n] = '7';
        memset(deep + n + 1, ')', (size_t)n);
        deep[2 * n + 1] = '\0';
        int failed = expression_eval(deep, value_of, NULL, &v, &e);
        assert_int_equal(failed, n == 20 ? 0 : -1);
        if (!failed) assert_true(v == 7);
    }
    assert_mentions(e.text, (const char *[]){"nesting too deep", NULL});
    deep[0] = '\0';
    for (int n = 0; n < 60; n++) strcat(deep, "not ");
    strcat(deep, "1");
    assert_int_equal(expression_eval(deep, value_of, NULL, &v, &e), -1);
    assert_mentions(e.text, (const char *[]){"nesting too deep", NULL});

    memset(text, 'a', 100); /* a name too long to be one */
    text[100] = '\0';
    assert_int_equal(expression_eval(text, value_of, NULL, &v, &e), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
