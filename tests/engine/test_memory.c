/* test_memory.c - the promise that after engine_open nothing is allocated, and that a failed allocation while opening
 * is a clean error that leaks neither memory nor files. */
#include "support.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/alloc_guard.h"

/* Past the guard: see failed_allocations. */
void *__libc_malloc(size_t bytes);
void __libc_free(void *p);

static const char dir[] = TEST_VECTORS "/qwen3_moe";

static int count_tokens(void *ctx, size_t request, int32_t token)
{
    (void)request;
    (void)token;
    ++*(int *)ctx;
    return 0;
}

static void guard_counts(void **state)
{
    void *volatile p;
    (void)state;
    if (!alloc_guard_works()) skip();
    alloc_guard_arm();
    p = malloc(24);
    free(p);
    p = calloc(3, 8);
    p = realloc(p, 4096);
    free(p);
    assert_true(alloc_guard_disarm() >= 3);
    alloc_guard_arm();
    p = aligned_alloc(64, 128);
    free(p);
    if (alloc_guard_disarm() == 0)
        assert_int_equal(alloc_guard_fail_at(0), UINT64_MAX); /* a sanitizer's hooks miss it */
    p = malloc(24);
    free(p);
    alloc_guard_arm();
    assert_int_equal(alloc_guard_disarm(), 0);
}

static void nothing_after_open(const char *path, engine_options o, gen_sampling s)
{
    enum { N = 7, NEW = 30 };
    const int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9};
    engine *g = engine_with(path, o);
    gen *r = NULL;
    gen_request q[N];
    gen_stats stats = {0};
    fmt_error e = {""};
    int tokens = 0, rc;
    uint64_t allocations;
    assert_int_equal(gen_create(g, &r, &e), 0);
    for (int i = 0; i < N; i++) q[i] = (gen_request){prompt, 3 + 2 * i, NEW};
    alloc_guard_arm();
    rc = gen_run(r, q, N, &s, count_tokens, &tokens, &stats, &e);
    allocations = alloc_guard_disarm();
    if (rc) fail_msg("%s", e.text);
    assert_int_equal(allocations, 0);
    assert_int_equal(tokens, stats.new_tokens);
    assert_true(tokens >= N);
    gen_destroy(r);
    engine_close(g);
}

static void runs_allocate_nothing(void **state)
{
    gen_sampling greedy = {0}, sampled = {.temperature = 0.9f, .top_p = 0.9f, .top_k = 20, .seed = 3};
    (void)state;
    if (!alloc_guard_works()) skip();
    nothing_after_open(dir, (engine_options){.threads = 1, .context = 64}, greedy);
    nothing_after_open(dir, (engine_options){.threads = 2, .context = 64, .max_sequences = 4, .max_batch = 11},
                       sampled);
    nothing_after_open(WORDMATH, (engine_options){.threads = 2, .context = 64, .max_sequences = 4}, sampled);
    nothing_after_open(
        WORDMATH, (engine_options){.threads = 2, .context = 64, .max_sequences = 7, .dtype = MOEWE_DTYPE_BF16}, greedy);
}

/* ---- the n-th allocation fails ------------------------------------------------------ */

static int files_open(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static size_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static int open_and_close(int with_generator)
{
    engine_options o = {.threads = 1, .context = 32, .max_batch = 16, .max_sequences = 2};
    engine *g = NULL;
    gen *r = NULL;
    fmt_error e = {""};
    int rc = engine_open(dir, &o, &g, &e);
    if (!rc && with_generator) rc = gen_create(g, &r, &e);
    if (rc) assert_true(strlen(e.text) > 10);
    gen_destroy(r);
    engine_close(g);
    return rc;
}

static void failed_allocations(void **state)
{
    uint64_t total, failed = 0;
    size_t heap;
    int files;
    (void)state;
    if (alloc_guard_fail_at(0) == UINT64_MAX) skip();

    /* jansson 2.14 drops a character when its buffer cannot grow and then reads past the end of a string without its
     * closing quote: the failures made here stay outside it. */
    json_set_alloc_funcs(__libc_malloc, __libc_free);
    assert_int_equal(open_and_close(1), 0);
    alloc_guard_fail_at(0);
    assert_int_equal(open_and_close(1), 0);
    total = alloc_guard_fail_at(0);
    assert_true(total > 20);

    /* Every allocation at first, where each is another place; further on a stride that is no multiple of a loop's. */
    for (uint64_t n = 1; n <= total; n += n < 300 ? 1 : 7) {
        heap = heap_bytes();
        files = files_open();
        alloc_guard_fail_at(n);
        failed += open_and_close(1) != 0;
        alloc_guard_fail_at(0);
        assert_int_equal(files_open(), files);
        if (heap_bytes() != heap)
            fail_msg("allocation %llu of %llu failed: %lld bytes leaked", (unsigned long long)n,
                     (unsigned long long)total, (long long)heap_bytes() - (long long)heap);
    }
    print_message("%llu allocations to open; %llu made to fail were errors\n", (unsigned long long)total,
                  (unsigned long long)failed);
    assert_true(failed > 20);
    assert_int_equal(open_and_close(1), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guard_counts),
        cmocka_unit_test(runs_allocate_nothing),
        cmocka_unit_test(failed_allocations),
    };
    (void)argc;
    /* glibc's per-thread cache counts freed blocks as used: start again without one, so that a leak shows exactly. */
    if (!getenv("GLIBC_TUNABLES")) {
        setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
        execv("/proc/self/exe", argv);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
