/* test_tokenizer.c - encodes and decodes.  The expected ids come from Hugging Face tokenizers (vectors.json, made by
 * tools/make_tokenizer_vectors.py) and from transformers (models/wordmath/reference.json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/tok_internal.h"
#include "formats/tokenizer.h"

#define WORDMATH SOURCE_DIR "/models/wordmath"

static tok *open_or_fail(const char *path)
{
    tok *t = NULL;
    fmt_error e = {""};
    if (tok_open(path, &t, &e) != 0) fail_msg("%s", e.text);
    return t;
}

static json_t *json_or_fail(const char *path, size_t flags)
{
    json_error_t why;
    json_t *v = json_load_file(path, flags, &why);
    if (!v) fail_msg("%s: %s", path, why.text);
    return v;
}

/* The bytes of all ids in a row; the caller frees. */
static char *decode(const tok *t, const int32_t *ids, size_t count, size_t *bytes)
{
    size_t room = 1;
    for (size_t i = 0; i < count; i++) {
        size_t n = 0;
        assert_non_null(tok_bytes(t, ids[i], &n));
        room += n;
    }
    char *text = malloc(room);
    assert_non_null(text);
    *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t n = 0;
        const char *s = tok_bytes(t, ids[i], &n);
        memcpy(text + *bytes, s, n);
        *bytes += n;
    }
    return text;
}

static size_t check_case(const tok *t, const char *where, const char *text, size_t bytes, const json_t *expected,
                         const json_t *decoded)
{
    int32_t *ids = NULL;
    size_t count = 0, wrong = 0;
    fmt_error e = {""};
    if (tok_encode(t, text, bytes, &ids, &count, &e) != 0) {
        print_error("%s: \"%s\": %s\n", where, text, e.text);
        return 1;
    }
    wrong = count != json_array_size(expected);
    for (size_t i = 0; !wrong && i < count; i++) wrong = ids[i] != json_integer_value(json_array_get(expected, i));
    if (wrong) {
        print_error("%s: \"%s\": %zu ids, expected %zu:", where, text, count, json_array_size(expected));
        for (size_t i = 0; i < count; i++) print_error(" %d", (int)ids[i]);
        print_error("\n");
    }
    if (!wrong && decoded) {
        size_t n = 0;
        char *back = decode(t, ids, count, &n);
        wrong = n != json_string_length(decoded) || memcmp(back, json_string_value(decoded), n) != 0;
        if (wrong) print_error("%s: \"%s\" is decoded to \"%.*s\"\n", where, text, (int)n, back);
        free(back);
    }
    free(ids);
    return wrong;
}

static void vectors(void **state)
{
    (void)state;
    json_t *root = json_or_fail(SOURCE_DIR "/tests/tokenizer/vectors.json", JSON_ALLOW_NUL), *group = NULL, *one = NULL;
    size_t g = 0, c = 0, wrong = 0, cases = 0;
    json_array_foreach(json_object_get(root, "groups"), g, group)
    {
        char path[512], where[128];
        snprintf(path, sizeof path, "%s/%s", SOURCE_DIR, json_string_value(json_object_get(group, "file")));
        json_t *spec = json_or_fail(path, 0);
        assert_int_equal(json_object_update(spec, json_object_get(group, "patch")), 0);
        tok *t = NULL;
        fmt_error e = {""};
        if (tok_load(path, spec, &t, &e) != 0) fail_msg("group %zu: %s", g, e.text);
        json_array_foreach(json_object_get(group, "cases"), c, one)
        {
            const json_t *text = json_object_get(one, "text");
            snprintf(where, sizeof where, "group %zu, case %zu", g, c);
            wrong += check_case(t, where, json_string_value(text), json_string_length(text),
                                json_object_get(one, "ids"), json_object_get(one, "decoded"));
            cases++;
        }
        tok_close(t);
        json_decref(spec);
    }
    json_decref(root);
    assert_true(cases > 1000);
    assert_int_equal(wrong, 0);
}

static void reference_prompts(void **state)
{
    (void)state;
    tok *t = open_or_fail(WORDMATH);
    json_t *root = json_or_fail(WORDMATH "/reference.json", 0), *one = NULL;
    size_t i = 0, wrong = 0;
    json_array_foreach(root, i, one)
    {
        const json_t *prompt = json_object_get(one, "prompt");
        wrong += check_case(t, "reference.json", json_string_value(prompt), json_string_length(prompt),
                            json_object_get(one, "ids"), prompt);
    }
    assert_int_equal(i, 16);
    assert_int_equal(wrong, 0);
    json_decref(root);
    tok_close(t);
}

static void lookups(void **state)
{
    (void)state;
    tok *t = open_or_fail(WORDMATH "/tokenizer.json");
    size_t n = 1;
    assert_int_equal(tok_vocab(t), 911);
    assert_int_equal(tok_find(t, "<|endoftext|>"), 908);
    assert_int_equal(tok_find(t, "<|im_end|>"), 910);
    assert_int_equal(tok_find(t, "!"), 0);
    assert_int_equal(tok_find(t, "no such token"), -1);
    assert_int_equal(tok_find(t, ""), -1);
    assert_true(tok_is_special(t, 908));
    assert_false(tok_is_special(t, 0));
    assert_false(tok_is_special(t, -1));
    assert_false(tok_is_special(t, 911));
    assert_memory_equal(tok_bytes(t, 909, &n), "<|im_start|>", 12);
    assert_int_equal(n, 12);
    assert_memory_equal(tok_bytes(t, tok_find(t, "\xc4\xa0t"), &n), " t", 2);
    assert_int_equal(n, 2);
    assert_null(tok_bytes(t, 911, &n));
    assert_int_equal(n, 0);
    assert_null(tok_bytes(t, -1, &n));
    assert_null(tok_bytes(t, INT32_MAX, &n));
    tok_close(t);
    tok_close(NULL);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Bytes that need not be UTF-8: what was encoded comes back. */
static void random_bytes_come_back(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "\xc3\xa9", "\xf0\x9f\x98\x80", "\xe4\xbd\xa0", "<|im_end|>", "  ", "\r\n", "half", "12"};
    tok *t = open_or_fail(WORDMATH);
    uint64_t seed = 7;
    for (int round = 0; round < 2000; round++) {
        char text[256];
        size_t bytes = 0, want = next_random(&seed) % 200;
        while (bytes < want) {
            const char *part = parts[next_random(&seed) % 8];
            size_t n = round % 2 ? strlen(part) : 0;
            memcpy(text + bytes, part, n);
            bytes += n;
            if (round % 3 || n == 0) text[bytes++] = (char)next_random(&seed);
        }
        int32_t *ids = NULL;
        size_t count = 0, n = 0;
        fmt_error e = {""};
        if (tok_encode(t, text, bytes, &ids, &count, &e) != 0) fail_msg("%s", e.text);
        char *back = decode(t, ids, count, &n);
        assert_int_equal(n, bytes);
        assert_memory_equal(back, text, bytes);
        free(back);
        free(ids);
    }
    tok_close(t);
}

/* A byte that belongs to no character is the token of that byte, and the text around it is tokenized as if alone. */
static void bytes_that_are_no_text(void **state)
{
    (void)state;
    static const struct {
        const char *text, *byte_spelled;
    } cases[] = {{"the \xff half", "\xc3\xbf"},
                 {"the \xed\xa0\x80 half", NULL},
                 {"the \xc0 half", "\xc3\x80"},
                 {"the \xe4 half", "\xc3\xa4"}};
    tok *t = open_or_fail(WORDMATH);
    fmt_error e = {""};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *ids = NULL, *left = NULL, *right = NULL;
        size_t n = 0, n_left = 0, n_right = 0;
        assert_int_equal(tok_encode(t, cases[i].text, strlen(cases[i].text), &ids, &n, &e), 0);
        assert_int_equal(tok_encode(t, "the ", 4, &left, &n_left, &e), 0);
        assert_int_equal(tok_encode(t, " half", 5, &right, &n_right, &e), 0);
        assert_int_equal(n, n_left + n_right + (cases[i].byte_spelled ? 1 : 3));
        assert_memory_equal(ids, left, n_left * sizeof *ids);
        assert_memory_equal(ids + n - n_right, right, n_right * sizeof *ids);
        if (cases[i].byte_spelled) assert_int_equal(ids[n_left], tok_find(t, cases[i].byte_spelled));
        free(ids);
        free(left);
        free(right);
    }
    tok_close(t);
}

/* Runs that quadratic merging, splitting or stripping would take minutes for.  The bound is wide because the machine
 * may be busy and the build instrumented: n log n needs about a second of processor time. */
static void long_runs_take_no_age(void **state)
{
    (void)state;
    static const char *const files[] = {WORDMATH "/tokenizer.json", SOURCE_DIR "/tests/tokenizer/data/added.json",
                                        SOURCE_DIR "/tests/tokenizer/data/gpt2.json"};
    static const char *const units[] = {"a", " ", "\n", "ab", "<", "\xc3\xa9", "1", "\xff", "aab"};
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    assert_non_null(text);
    for (size_t f = 0; f < 3; f++) {
        tok *t = open_or_fail(files[f]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            size_t unit = strlen(units[u]), n = 0, count = 0;
            for (size_t i = 0; i < BYTES; i++) text[i] = units[u][i % unit];
            int32_t *ids = NULL;
            fmt_error e = {""};
            clock_t start = clock();
            if (tok_encode(t, text, BYTES - BYTES % unit, &ids, &count, &e) != 0) fail_msg("%s", e.text);
            double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
            if (seconds > 20) fail_msg("1 MiB of \"%s\" took %.1f s", units[u], seconds);
            if (f == 0) {
                char *back = decode(t, ids, count, &n);
                assert_int_equal(n, BYTES - BYTES % unit);
                assert_memory_equal(back, text, n);
                free(back);
            }
            free(ids);
        }
        tok_close(t);
    }
    free(text);
}

static void what_nfc_may_change_is_refused(void **state)
{
    (void)state;
    static const char *const refused[] = {"e\xcc\x81", "\xe1\x84\x80\xe1\x85\xa1", "\xe2\x84\xab", "x \xef\xa4\x80",
                                          "\xff\xcc\x81"};
    json_t *spec = json_or_fail(WORDMATH "/tokenizer.json", 0);
    json_object_set_new(spec, "normalizer", json_pack("{s:s}", "type", "NFC"));
    tok *t = NULL;
    fmt_error e = {""};
    assert_int_equal(tok_load("tokenizer.json", spec, &t, &e), 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int32_t *ids = NULL;
        size_t count = 0;
        e.text[0] = 0;
        assert_int_equal(tok_encode(t, refused[i], strlen(refused[i]), &ids, &count, &e), -1);
        assert_null(ids);
        assert_non_null(strstr(e.text, "NFC"));
    }
    tok_close(t);
    json_decref(spec);
}

static void patterns_that_run_away_are_stopped(void **state)
{
    (void)state;
    json_t *spec = json_or_fail(WORDMATH "/tokenizer.json", 0);
    json_object_set_new(spec, "pre_tokenizer",
                        json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                  "(a|a|aa)+(a|a|aa)+$", "behavior", "Isolated", "invert", 0));
    tok *t = NULL;
    fmt_error e = {""};
    char text[256];
    int32_t *ids = NULL;
    size_t count = 0;
    assert_int_equal(tok_load("tokenizer.json", spec, &t, &e), 0);
    memset(text, 'a', sizeof text);
    text[255] = 'b';
    assert_int_equal(tok_encode(t, text, sizeof text, &ids, &count, &e), -1);
    assert_non_null(strstr(e.text, "limit"));
    tok_close(t);
    json_decref(spec);
}

static void stream_boundaries(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes, complete;
    } cases[] = {
        {"", 0, 0},
        {"abc", 3, 3},
        {"a\xc3", 2, 1},
        {"a\xc3\xa9", 3, 3},
        {"\xe4\xbd", 2, 0},
        {"\xe4\xbd\xa0", 3, 3},
        {"\xf0\x9f\x98", 3, 0},
        {"\xf0\x9f", 2, 0},
        {"x\xf0", 2, 1},
        {"\xf0\x9f\x98\x80", 4, 4},
        {"\xf0\x9f\x98\x80\xf0", 5, 4},
        {"\x80\x80\x80", 3, 3}, /* continuations of nothing */
        {"\x80\x80\x80\x80", 4, 4},
        {"a\xc0", 2, 2}, /* never a lead */
        {"a\xf5", 2, 2},
        {"a\xff", 2, 2},
        {"\xed\xa0", 2, 2}, /* a surrogate: no third byte helps */
        {"\xed\x9f", 2, 0},
        {"\xe0\x80", 2, 2}, /* overlong */
        {"\xe0\xa0", 2, 0},
        {"\xf0\x80\x80", 3, 3},
        {"\xf0\x90\x80", 3, 0},
        {"\xf4\x90", 2, 2}, /* beyond U+10FFFF */
        {"\xf4\x8f\xbf", 3, 0},
        {"\xc3\xa9\xa9", 3, 3},
        {"\xe4\xc3", 2, 1}, /* the first lead is lost, the second waits */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(tok_utf8_complete(cases[i].text, cases[i].bytes), cases[i].complete);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(reference_prompts),
        cmocka_unit_test(lookups),
        cmocka_unit_test(random_bytes_come_back),
        cmocka_unit_test(bytes_that_are_no_text),
        cmocka_unit_test(long_runs_take_no_age),
        cmocka_unit_test(what_nfc_may_change_is_refused),
        cmocka_unit_test(patterns_that_run_away_are_stopped),
        cmocka_unit_test(stream_boundaries),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
