/* test_lanes.c - owns the workspace manager: reserve, lock, lanes, generations, numbers.  It must never run on a
 * lane that the manager refused. */
#include "../support/layer_case.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

typedef struct managed {
    moewe_device *dev;
    moewe_workspace *ws;
    moewe_plan *small, *large, *larger;
    layer_case c;
    moewe_need small_need, large_need, larger_need;
    moewe_span mem;
    char *y;
} managed;

static moewe_plan *plan_for(managed *m, int32_t max_tokens, const char *name, moewe_need *need)
{
    moewe_config cfg = m->c.cfg;
    moewe_plan *plan;

    cfg.max_tokens = max_tokens;
    cfg.name = name;
    CHECK_OK(moewe_plan_create(m->dev, &cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, need));
    return plan;
}

static void manage(managed *m, int32_t n_lanes)
{
    backend_list list = cpu_backends();
    moewe_config cfg = small_config();

    memset(m, 0, sizeof *m);
    m->dev = open_backend(list.name[0], 2);
    case_build(&m->c, &cfg, 6, 0, 3);
    m->small = plan_for(m, 6, "small", &m->small_need);
    m->large = plan_for(m, 900, "large", &m->large_need);
    m->larger = plan_for(m, 3000, "larger", &m->larger_need);
    CHECK(m->small_need.bytes < m->large_need.bytes && m->large_need.bytes < m->larger_need.bytes,
          "test: plans of one size");
    CHECK_OK(moewe_workspace_create(m->dev, n_lanes, &m->ws));
    m->mem.bytes = (uint64_t)n_lanes * m->large_need.bytes;
    m->mem.ptr = must_alloc(m->mem.bytes, m->large_need.align);
    m->y = must_alloc(m->c.y_bytes, 1);
}

static void unmanage(managed *m)
{
    moewe_workspace_destroy(m->ws);
    moewe_plan_destroy(m->small);
    moewe_plan_destroy(m->large);
    moewe_plan_destroy(m->larger);
    moewe_device_close(m->dev);
    case_free(&m->c);
    free(m->mem.ptr);
    free(m->y);
}

static moewe_workspace_stats stats_of(const managed *m)
{
    moewe_workspace_stats s;

    MOEWE_INIT(s);
    CHECK_OK(moewe_workspace_stats_get(m->ws, &s));
    return s;
}

static moewe_status run_on(managed *m, const moewe_lane *lane, const moewe_plan *plan)
{
    moewe_io io = m->c.io;

    io.y = m->y;
    return moewe_run_lane(m->ws, lane, plan, &m->c.w, &io, NULL);
}

static void manager_life(void **state)
{
    moewe_workspace_stats s;
    moewe_lane a, b, c, old;
    moewe_need need;
    moewe_span bad;
    managed m;

    (void)state;
    manage(&m, 2);
    s = stats_of(&m);
    assert_int_equal(s.n_lanes, 2);
    assert_int_equal(s.generation, 0);
    assert_int_equal(s.locked, 0);
    assert_int_equal(moewe_workspace_lock(m.ws, m.mem), MOEWE_E_WS_STATE); /* nothing is reserved */
    assert_int_equal(moewe_workspace_unlock(m.ws), MOEWE_E_WS_STATE);
    assert_int_equal(moewe_lane_acquire(m.ws, 0, &a), MOEWE_E_WS_STATE);

    CHECK_OK(moewe_workspace_reserve(m.ws, m.large));
    CHECK_OK(moewe_workspace_reserve(m.ws, m.small)); /* a smaller one changes nothing */
    CHECK_OK(moewe_workspace_need(m.ws, &need));
    assert_int_equal(need.bytes, 2 * m.large_need.bytes);
    assert_int_equal(need.align, m.large_need.align);
    s = stats_of(&m);
    assert_int_equal(s.lane_bytes, m.large_need.bytes);
    assert_string_equal(s.largest, "large");

    bad = (moewe_span){m.mem.ptr, need.bytes - 1};
    assert_int_equal(moewe_workspace_lock(m.ws, bad), MOEWE_E_WS_SMALL);
    says_number(need.bytes);
    says_number(need.bytes - 1);
    bad = (moewe_span){(char *)m.mem.ptr + 1, need.bytes};
    assert_int_equal(moewe_workspace_lock(m.ws, bad), MOEWE_E_WS_ALIGN);
    bad = (moewe_span){NULL, need.bytes};
    assert_int_not_equal(moewe_workspace_lock(m.ws, bad), MOEWE_OK);
    assert_int_equal(stats_of(&m).generation, 0);

    CHECK_OK(moewe_workspace_lock(m.ws, m.mem));
    assert_int_equal(moewe_workspace_lock(m.ws, m.mem), MOEWE_E_WS_STATE);
    assert_int_equal(moewe_workspace_reserve(m.ws, m.larger), MOEWE_E_WS_STATE);
    says("larger");
    assert_int_equal(stats_of(&m).lane_bytes, m.large_need.bytes);

    CHECK_OK(moewe_lane_acquire(m.ws, MOEWE_LANE_ANY, &a));
    CHECK_OK(moewe_lane_acquire(m.ws, 1 - a.index, &b));
    assert_int_equal(a.generation, 1);
    assert_int_equal(b.span.bytes, m.large_need.bytes);
    assert_true((char *)a.span.ptr == (char *)m.mem.ptr + (uint64_t)a.index * m.large_need.bytes);
    assert_true((char *)b.span.ptr == (char *)m.mem.ptr + (uint64_t)b.index * m.large_need.bytes);
    assert_true(a.ticket != b.ticket);
    s = stats_of(&m);
    assert_int_equal(s.lanes_out, 2);
    assert_int_equal(s.lanes_out_peak, 2);
    {
        uint64_t refused = s.refused;

        assert_int_equal(moewe_lane_acquire(m.ws, MOEWE_LANE_ANY, &c), MOEWE_E_BUSY);
        assert_int_equal(moewe_lane_acquire(m.ws, a.index, &c), MOEWE_E_BUSY);
        says_number((uint64_t)a.index);
        assert_int_equal(stats_of(&m).refused, refused + 2);
    }
    assert_int_equal(moewe_lane_acquire(m.ws, 2, &c), MOEWE_E_ARG);
    assert_int_equal(moewe_lane_acquire(m.ws, -2, &c), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_unlock(m.ws), MOEWE_E_WS_STATE);
    assert_int_equal(stats_of(&m).locked, 1);

    CHECK_OK(run_on(&m, &a, m.small));
    assert_int_equal(stats_of(&m).used_peak, m.small_need.bytes);
    CHECK_OK(run_on(&m, &b, m.large));
    CHECK_OK(run_on(&m, &b, m.small));
    assert_int_equal(stats_of(&m).used_peak, m.large_need.bytes);
    assert_int_equal(run_on(&m, &a, m.larger), MOEWE_E_WS_SMALL);
    says_number(m.larger_need.bytes);
    says_number(m.large_need.bytes);
    assert_int_equal(stats_of(&m).used_peak, m.large_need.bytes);

    c = a; /* nobody's lane */
    c.ticket += 1000;
    assert_int_not_equal(run_on(&m, &c, m.small), MOEWE_OK);
    assert_int_not_equal(moewe_lane_release(m.ws, &c), MOEWE_OK);
    c = a;
    c.index = 1 - a.index;
    assert_int_not_equal(run_on(&m, &c, m.small), MOEWE_OK);
    assert_int_not_equal(moewe_lane_release(m.ws, &c), MOEWE_OK);
    c.index = 77;
    assert_int_not_equal(run_on(&m, &c, m.small), MOEWE_OK);
    assert_int_not_equal(moewe_lane_release(m.ws, &c), MOEWE_OK);
    c.index = -1;
    assert_int_not_equal(moewe_lane_release(m.ws, &c), MOEWE_OK);
    assert_int_equal(stats_of(&m).lanes_out, 2);

    CHECK_OK(moewe_lane_release(m.ws, &a));
    assert_int_not_equal(moewe_lane_release(m.ws, &a), MOEWE_OK); /* twice */
    assert_int_not_equal(run_on(&m, &a, m.small), MOEWE_OK);
    old = a;
    CHECK_OK(moewe_lane_acquire(m.ws, old.index, &a)); /* same index and generation, another ticket */
    assert_int_not_equal(moewe_lane_release(m.ws, &old), MOEWE_OK);
    CHECK_OK(run_on(&m, &a, m.small));
    CHECK_OK(moewe_lane_release(m.ws, &a));
    CHECK_OK(moewe_lane_release(m.ws, &b));
    s = stats_of(&m);
    assert_int_equal(s.lanes_out, 0);
    assert_int_equal(s.lanes_out_peak, 2);

    CHECK_OK(moewe_workspace_unlock(m.ws));
    assert_int_equal(run_on(&m, &b, m.small), MOEWE_E_STALE);
    assert_int_equal(moewe_lane_release(m.ws, &b), MOEWE_E_STALE);
    CHECK_OK(moewe_workspace_reserve(m.ws, m.small));
    CHECK_OK(moewe_workspace_lock(m.ws, m.mem));
    CHECK_OK(moewe_lane_acquire(m.ws, b.index, &c));
    assert_int_equal(c.generation, 2);
    assert_int_equal(stats_of(&m).generation, 2);
    assert_int_equal(run_on(&m, &b, m.small), MOEWE_E_STALE); /* the index is out again, this lane is not */
    assert_int_equal(moewe_lane_release(m.ws, &b), MOEWE_E_STALE);
    CHECK_OK(run_on(&m, &c, m.small));
    CHECK_OK(moewe_lane_release(m.ws, &c));
    CHECK_OK(moewe_workspace_unlock(m.ws));
    CHECK_OK(moewe_workspace_reserve(m.ws, m.larger));
    assert_string_equal(stats_of(&m).largest, "larger");
    assert_int_equal(moewe_workspace_lock(m.ws, m.mem), MOEWE_E_WS_SMALL);
    unmanage(&m);
}

static void manager_bad_arguments(void **state)
{
    moewe_workspace *ws = NULL, *other;
    moewe_workspace_stats s;
    moewe_device *second;
    moewe_plan *foreign;
    moewe_need need;
    moewe_lane lane, theirs;
    managed m;

    (void)state;
    manage(&m, 1);
    assert_int_equal(moewe_workspace_create(NULL, 1, &ws), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_create(m.dev, 0, &ws), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_create(m.dev, -1, &ws), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_create(m.dev, 1, NULL), MOEWE_E_ARG);
    assert_null(ws);
    assert_int_equal(moewe_workspace_reserve(NULL, m.small), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_reserve(m.ws, NULL), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_need(NULL, &need), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_need(m.ws, NULL), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_lock(NULL, m.mem), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_unlock(NULL), MOEWE_E_ARG);
    assert_int_equal(moewe_workspace_stats_get(m.ws, NULL), MOEWE_E_ARG);
    memset(&s, 0, sizeof s);
    assert_int_equal(moewe_workspace_stats_get(m.ws, &s), MOEWE_E_ABI);
    assert_int_equal(moewe_lane_acquire(NULL, 0, &lane), MOEWE_E_ARG);
    assert_int_equal(moewe_lane_acquire(m.ws, 0, NULL), MOEWE_E_ARG);
    assert_int_equal(moewe_lane_release(m.ws, NULL), MOEWE_E_ARG);
    moewe_workspace_destroy(NULL);

    /* a plan and a lane of other objects */
    second = open_backend(cpu_backends().name[0], 1);
    CHECK_OK(moewe_plan_create(second, &m.c.cfg, &foreign));
    assert_int_equal(moewe_workspace_reserve(m.ws, foreign), MOEWE_E_WS_PLACE);
    CHECK_OK(moewe_workspace_reserve(m.ws, m.large));
    CHECK_OK(moewe_workspace_lock(m.ws, m.mem));
    CHECK_OK(moewe_lane_acquire(m.ws, 0, &lane));
    assert_int_equal(run_on(&m, NULL, m.small), MOEWE_E_ARG);
    assert_int_equal(run_on(&m, &lane, NULL), MOEWE_E_ARG);
    assert_int_equal(run_on(&m, &lane, foreign), MOEWE_E_WS_PLACE);
    CHECK_OK(moewe_workspace_create(m.dev, 3, &other));
    CHECK_OK(moewe_workspace_reserve(other, m.small));
    {
        moewe_span mem = {must_alloc(3 * m.small_need.bytes, m.small_need.align), 3 * m.small_need.bytes};

        CHECK_OK(moewe_workspace_lock(other, mem));
        CHECK_OK(moewe_lane_acquire(other, 2, &theirs));
        assert_int_not_equal(run_on(&m, &theirs, m.small), MOEWE_OK);
        assert_int_not_equal(moewe_lane_release(m.ws, &theirs), MOEWE_OK);
        CHECK_OK(moewe_lane_release(other, &theirs));
        moewe_workspace_destroy(other);
        free(mem.ptr);
    }
    CHECK_OK(moewe_lane_release(m.ws, &lane));
    moewe_plan_destroy(foreign);
    moewe_device_close(second);
    unmanage(&m);
}

enum { GRABBERS = 8, GRABS = 400, SHARED_LANES = 3 };

typedef struct grabber {
    managed *m;
    atomic_int *holders; /* [SHARED_LANES] */
    int got, busy, wrong;
} grabber;

static void *grab(void *arg)
{
    grabber *g = arg;

    for (int i = 0; i < GRABS; i++) {
        moewe_lane lane;
        moewe_status s = moewe_lane_acquire(g->m->ws, MOEWE_LANE_ANY, &lane);

        if (s == MOEWE_E_BUSY) {
            g->busy++;
            continue;
        }
        if (s || lane.index < 0 || lane.index >= SHARED_LANES || lane.generation != 1) {
            g->wrong++;
            continue;
        }
        g->got++;
        if (atomic_fetch_add(&g->holders[lane.index], 1) != 0) g->wrong++;
        memset(lane.span.ptr, i, 64); /* a thread sanitizer sees two holders here */
        atomic_fetch_sub(&g->holders[lane.index], 1);
        if (moewe_lane_release(g->m->ws, &lane)) g->wrong++;
    }
    return NULL;
}

static void many_threads_acquire(void **state)
{
    atomic_int holders[SHARED_LANES];
    pthread_t threads[GRABBERS];
    grabber g[GRABBERS];
    moewe_workspace_stats s;
    uint64_t busy = 0, got = 0;
    managed m;

    (void)state;
    manage(&m, SHARED_LANES);
    CHECK_OK(moewe_workspace_reserve(m.ws, m.large));
    CHECK_OK(moewe_workspace_lock(m.ws, m.mem));
    for (int i = 0; i < SHARED_LANES; i++) atomic_init(&holders[i], 0);
    for (int i = 0; i < GRABBERS; i++) {
        g[i] = (grabber){.m = &m, .holders = holders};
        if (pthread_create(&threads[i], NULL, grab, &g[i])) fail_msg("test: no thread");
    }
    for (int i = 0; i < GRABBERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < GRABBERS; i++) {
        CHECK(g[i].wrong == 0, "thread %d saw %d wrong things", i, g[i].wrong);
        busy += (uint64_t)g[i].busy;
        got += (uint64_t)g[i].got;
    }
    s = stats_of(&m);
    assert_int_equal(busy + got, GRABBERS * GRABS);
    assert_true(got > 0);
    assert_int_equal(s.refused, busy);
    assert_int_equal(s.lanes_out, 0);
    assert_in_range(s.lanes_out_peak, 1, SHARED_LANES);
    CHECK_OK(moewe_workspace_unlock(m.ws));
    unmanage(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manager_life),
        cmocka_unit_test(manager_bad_arguments),
        cmocka_unit_test(many_threads_acquire),
    };

    return cmocka_run_group_tests_name("lanes", tests, NULL, NULL);
}
