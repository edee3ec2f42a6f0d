/* test_failures.c - owns allocations that fail: a clean status, no leak, and it works when repeated.  Also what a
 * device does for its caller's own tasks.  It must never let an allocation pass uncounted. */
#include "../support/layer_case.h"

#include <stdatomic.h>
#include <string.h>

/* The linker sends every call of these in this program, the library's too, to the wraps below. */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
int __real_posix_memalign(void **out, size_t align, size_t bytes);
void __real_free(void *p);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
int __wrap_posix_memalign(void **out, size_t align, size_t bytes);
void __wrap_free(void *p);

static atomic_int armed, caught;

void *__wrap_malloc(size_t bytes)
{
    if (atomic_load(&armed)) atomic_fetch_add(&caught, 1);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    if (atomic_load(&armed)) atomic_fetch_add(&caught, 1);
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    if (atomic_load(&armed)) atomic_fetch_add(&caught, 1);
    return __real_realloc(p, bytes);
}

int __wrap_posix_memalign(void **out, size_t align, size_t bytes)
{
    if (atomic_load(&armed)) atomic_fetch_add(&caught, 1);
    return __real_posix_memalign(out, align, bytes);
}

void __wrap_free(void *p)
{
    if (atomic_load(&armed)) atomic_fetch_add(&caught, 1);
    __real_free(p);
}

static void count_line(void *ctx, moewe_log_level level, const char *line)
{
    (void)level;
    if (line) atomic_fetch_add((atomic_int *)ctx, 1);
}

/* A run allocates nothing, frees nothing and logs nothing: moewe_run, stages, lanes, linear, packing. */
static void runs_take_nothing(void **state)
{
    backend_list list = cpu_backends();
    static atomic_int lines;

    (void)state;
    atomic_store(&armed, 1); /* the guard itself: it sees one of each */
    free(must_alloc(1, 1));
    atomic_store(&armed, 0);
    assert_int_equal(atomic_exchange(&caught, 0), 2);
    moewe_log_set(count_line, &lines, MOEWE_LOG_TRACE);
    for (int32_t b = 0; b < list.n; b++)
        for (int floor = 0; floor < 2; floor++) {
            moewe_config cfg = small_config();
            moewe_device *dev = open_backend(list.name[b], 3);
            moewe_weights packed;
            moewe_linear dense;
            moewe_plan *plan;
            moewe_need need;
            moewe_span ws, mem;
            layer_case c;
            moewe_io io;
            char *y;

            cfg.y_dtype = MOEWE_DTYPE_BF16;
            cfg.shared_inter = 9;
            case_build(&c, &cfg, 40, WITH_BIAS1 | WITH_SHARED_SCALE, 1);
            if (floor) {
                CHECK_OK(moewe_plan_floor(dev, &c.cfg, &need));
                c.cfg.workspace_limit = need.bytes;
            }
            CHECK_OK(moewe_plan_create(dev, &c.cfg, &plan));
            CHECK(atomic_load(&lines) > 0, "test: nothing is ever logged");
            CHECK_OK(moewe_plan_need(plan, &need));
            ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
            CHECK_OK(moewe_weights_need(plan, &c.w, &need));
            mem = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
            y = must_alloc(c.y_bytes, 4);
            io = c.io;
            io.y = y;
            MOEWE_INIT(dense);
            dense.rows = 8;
            dense.cols = cfg.hidden;
            dense.y_dtype = MOEWE_DTYPE_BF16;
            dense.matrix = c.w.router;
            atomic_store(&lines, 0);
            atomic_store(&armed, 1);
            CHECK_OK(moewe_weights_pack(plan, &c.w, mem, NULL, &packed));
            for (int i = 0; i < 3; i++) {
                CHECK_OK(moewe_run(plan, i ? &packed : &c.w, &io, ws, NULL));
                CHECK_OK(moewe_linear_run(dev, &dense, 8, io.x, 0, y, 0, NULL));
            }
            if (!floor)
                CHECK_OK(moewe_run_stages(plan, &packed, &io, ws, NULL, MOEWE_STAGE_ROUTE, MOEWE_STAGE_COMBINE));
            io.n_tokens = 41; /* neither does a refusal */
            assert_int_equal(moewe_run(plan, &packed, &io, ws, NULL), MOEWE_E_RANGE);
            atomic_store(&armed, 0);
            CHECK(atomic_load(&caught) == 0, "%s: runs allocated or freed %d times", list.name[b],
                  atomic_load(&caught));
            CHECK(atomic_load(&lines) <= 1, "%s: runs that succeed logged %d lines", list.name[b], atomic_load(&lines));
            free(y);
            free(mem.ptr);
            free(ws.ptr);
            moewe_plan_destroy(plan);
            case_free(&c);
            moewe_device_close(dev);
        }
    moewe_log_set(NULL, NULL, MOEWE_LOG_ERROR);
}

typedef struct counting {
    int64_t calls, fail_at; /* the fail_at-th call gets nothing; 0 = none fails */
    int64_t live, live_bytes;
} counting;

static void *counting_alloc(void *ctx, size_t bytes, size_t align)
{
    counting *c = ctx;
    void *p = NULL;

    if (align == 0 || (align & (align - 1)) || align > 64) return NULL; /* not what moewe.h promises */
    if (++c->calls == c->fail_at) return NULL;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes)) return NULL;
    memset(p, 0xcc, bytes);
    c->live++;
    c->live_bytes += (int64_t)bytes;
    return p;
}

static void counting_free(void *ctx, void *ptr, size_t bytes)
{
    counting *c = ctx;

    c->live--;
    c->live_bytes -= (int64_t)bytes;
    free(ptr);
}

/* Opens, plans, makes a workspace and runs.  The first status that is not OK, after closing all again. */
static moewe_status whole_life(const char *backend, counting *counts, const layer_case *c, char *y)
{
    moewe_allocator allocator = {counts, counting_alloc, counting_free};
    moewe_device *dev = NULL;
    moewe_plan *plan = NULL;
    moewe_workspace *ws = NULL;
    moewe_device_desc desc;
    moewe_status s;

    MOEWE_INIT(desc);
    desc.backend = backend;
    desc.n_threads = 3;
    desc.allocator = &allocator;
    s = moewe_device_open(&desc, &dev);
    if (s) assert_null(dev);
    if (!s) {
        s = moewe_plan_create(dev, &c->cfg, &plan);
        if (s) assert_null(plan);
    }
    if (!s) {
        s = moewe_workspace_create(dev, 4, &ws);
        if (s) assert_null(ws);
    }
    if (!s) {
        int64_t calls = counts->calls;
        moewe_io io = c->io;
        moewe_need need;
        moewe_span mem;
        moewe_lane lane;

        io.y = y;
        CHECK_OK(moewe_workspace_reserve(ws, plan));
        CHECK_OK(moewe_workspace_need(ws, &need));
        mem = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
        CHECK_OK(moewe_workspace_lock(ws, mem));
        CHECK_OK(moewe_lane_acquire(ws, MOEWE_LANE_ANY, &lane));
        CHECK_OK(moewe_run_lane(ws, &lane, plan, &c->w, &io, NULL));
        CHECK_OK(moewe_lane_release(ws, &lane));
        CHECK_OK(moewe_workspace_unlock(ws));
        assert_int_equal(counts->calls, calls); /* only *_open and *_create allocate */
        free(mem.ptr);
    }
    moewe_workspace_destroy(ws);
    moewe_plan_destroy(plan);
    moewe_device_close(dev);
    return s;
}

static void nth_allocation_fails(void **state)
{
    backend_list list = cpu_backends();
    moewe_config cfg = small_config();
    layer_case c;
    char *y, *want;

    (void)state;
    case_build(&c, &cfg, 5, 0, 1);
    y = must_alloc(c.y_bytes, 4);
    want = must_alloc(c.y_bytes, 4);
    for (int32_t b = 0; b < list.n; b++) {
        counting none = {0};
        moewe_status s = MOEWE_E_NOMEM;
        int64_t n;

        assert_int_equal(whole_life(list.name[b], &none, &c, want), MOEWE_OK);
        CHECK(none.calls >= 3, "%s: %lld allocations through the allocator", list.name[b], (long long)none.calls);
        assert_int_equal(none.live, 0);
        for (n = 1; s && n < 100; n++) {
            counting some = {.fail_at = n};

            s = whole_life(list.name[b], &some, &c, y);
            CHECK(s == MOEWE_OK || s == MOEWE_E_NOMEM, "%s: allocation %lld: %s", list.name[b], (long long)n,
                  moewe_last_error());
            if (s) one_sentence();
            CHECK(some.live == 0 && some.live_bytes == 0, "%s: allocation %lld leaks %lld objects, %lld bytes",
                  list.name[b], (long long)n, (long long)some.live, (long long)some.live_bytes);
            if (s) assert_int_equal(whole_life(list.name[b], &(counting){0}, &c, y), MOEWE_OK);
        }
        assert_int_equal(s, MOEWE_OK);
        assert_int_equal(n - 1, none.calls + 1); /* each of them was made to fail once */
        CHECK(!memcmp(y, want, c.y_bytes), "%s: other bits after failures", list.name[b]);
    }
    free(y);
    free(want);
    case_free(&c);
}

/* ---- device_for ---- */

static void count_task(void *task, int32_t i, int32_t count)
{
    int *hits = task;

    if (count == 100 && i >= 0 && i < 100) hits[i]++; /* each i has an int of its own */
}

static void device_for(void **state)
{
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++)
        for (int32_t threads = 1; threads <= 5; threads += 2) {
            moewe_device *dev = open_backend(list.name[b], threads);
            int hits[100] = {0};

            for (int round = 0; round < 50; round++) CHECK_OK(moewe_device_for(dev, count_task, hits, 100));
            for (int i = 0; i < 100; i++) assert_int_equal(hits[i], 50);
            CHECK_OK(moewe_device_for(dev, count_task, hits, 0));
            moewe_device_close(dev);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nth_allocation_fails),
        cmocka_unit_test(device_for),
        cmocka_unit_test(runs_take_nothing),
    };

    return cmocka_run_group_tests_name("failures", tests, NULL, NULL);
}
