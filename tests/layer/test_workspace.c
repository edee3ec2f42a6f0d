/* test_workspace.c - owns the promise on memory: exact need, limits and floors, regions, and the workspace
 * manager with its lanes.  Buffers are exactly as long as the plan says, so that a sanitizer sees both ends. */
#include "../support/layer_case.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static void contains(const char *text, const char *part)
{
    CHECK(strstr(text, part) != NULL, "\"%s\" does not say \"%s\"", text, part);
}

static void contains_number(const char *text, uint64_t number)
{
    char digits[32];

    snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    contains(text, digits);
}

static moewe_config random_config(rng *r)
{
    moewe_config cfg = small_config();

    cfg.hidden = rng_range(r, 1, 90);
    cfg.inter = rng_range(r, 1, 90);
    cfg.n_experts = rng_range(r, 1, 40);
    cfg.top_k = rng_range(r, 1, cfg.n_experts < 9 ? cfg.n_experts : 9);
    cfg.score = rng_range(r, 0, 4);
    if (cfg.score == 4) {
        cfg.score = MOEWE_SCORE_GIVEN;
        cfg.flags = 0;
    }
    cfg.act = rng_range(r, 0, MOEWE_ACT_GELU);
    cfg.x_dtype = rng_range(r, 0, 1) ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32;
    cfg.y_dtype = rng_range(r, 0, 1) ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32;
    cfg.w_dtype = rng_range(r, 1, 3);
    cfg.n_null = rng_range(r, 0, 3) ? 0 : 2;
    cfg.shared_inter = rng_range(r, 0, 1) ? 0 : rng_range(r, 1, 120);
    cfg.max_tokens = rng_range(r, 1, 20);
    return cfg;
}

static moewe_need need_of(const moewe_device *dev, const moewe_config *cfg)
{
    moewe_plan *plan;
    moewe_need need;

    CHECK_OK(moewe_plan_create(dev, cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    moewe_plan_destroy(plan);
    return need;
}

static void check_regions(const moewe_plan *plan, moewe_need need)
{
    moewe_region all[64], r;
    uint64_t end = 0, furthest = 0;
    int32_t n = 0;

    while (n < 64 && !moewe_plan_region(plan, n, &r)) all[n++] = r;
    CHECK(n > 0 && n < 64, "%d regions", n);
    assert_int_equal(moewe_plan_region(plan, n, &r), MOEWE_E_ARG);
    assert_int_equal(moewe_plan_region(plan, -1, &r), MOEWE_E_ARG);
    for (int32_t i = 0; i < n; i++) {
        r = all[i];
        CHECK(r.name && r.name[0], "region %d has no name", i);
        CHECK(r.bytes > 0, "region %s is empty", r.name);
        CHECK(i == 0 || r.offset >= all[i - 1].offset, "region %s comes before %s", r.name, all[i - 1].name);
        CHECK(r.offset % need.align == 0, "region %s at %llu is not aligned", r.name, (unsigned long long)r.offset);
        CHECK(r.first_stage >= 0 && r.first_stage <= r.last_stage && r.last_stage < MOEWE_STAGE_COUNT,
              "region %s has stages %d to %d", r.name, r.first_stage, r.last_stage);
        for (int32_t j = 0; j < i; j++) {
            int apart = r.offset >= all[j].offset + all[j].bytes || all[j].offset >= r.offset + r.bytes;

            CHECK(strcmp(r.name, all[j].name) != 0, "two regions named %s", r.name);
            CHECK(apart || r.first_stage > all[j].last_stage || all[j].first_stage > r.last_stage,
                  "regions %s and %s overlap in a stage", r.name, all[j].name);
        }
        /* no hole: a region starts where all before it end, unless it shares their room */
        CHECK(r.offset <= furthest, "bytes before region %s belong to nobody", r.name);
        end = r.offset + r.bytes;
        if (end > furthest) furthest = end;
    }
    CHECK(furthest == need.bytes, "regions end at %llu, the need is %llu", (unsigned long long)furthest,
          (unsigned long long)need.bytes);
}

static void exact_need(void **state)
{
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *dev = open_backend(list.name[b], 2);
        rng r = {11};

        for (int i = 0; i < 150; i++) {
            moewe_config cfg = random_config(&r);
            moewe_plan *plan;
            moewe_need need;
            moewe_span ws, bad;
            layer_case c;
            moewe_io io;
            char *y, *block;

            case_build(&c, &cfg, cfg.max_tokens, WITH_BIAS1 | WITH_SHARED_SCALE, (uint64_t)i);
            c.cfg.name = "exact";
            CHECK_OK(moewe_plan_create(dev, &c.cfg, &plan));
            CHECK_OK(moewe_plan_need(plan, &need));
            CHECK(need.bytes > 0 && need.align >= 1 && (need.align & (need.align - 1)) == 0, "need of %llu, align %u",
                  (unsigned long long)need.bytes, need.align);
            assert_int_equal(need.place, MOEWE_PLACE_HOST);
            check_regions(plan, need);
            y = must_alloc(c.y_bytes, 1);
            fill_pattern(y, c.y_bytes, 1);
            io = c.io;
            io.y = y;
            ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
            fill_pattern(ws.ptr, ws.bytes, 1);
            bad = (moewe_span){ws.ptr, need.bytes - 1};
            assert_int_equal(moewe_run(plan, &c.w, &io, bad, NULL), MOEWE_E_WS_SMALL);
            contains_number(moewe_last_error(), need.bytes);
            contains_number(moewe_last_error(), need.bytes - 1);
            contains(moewe_last_error(), "exact");
            bad = (moewe_span){NULL, need.bytes};
            assert_int_equal(moewe_run(plan, &c.w, &io, bad, NULL), MOEWE_E_WS_SMALL);
            if (need.align > 1) {
                block = must_alloc(need.bytes + need.align, need.align);
                bad = (moewe_span){block + need.align / 2, need.bytes};
                assert_int_equal(moewe_run(plan, &c.w, &io, bad, NULL), MOEWE_E_WS_ALIGN);
                contains_number(moewe_last_error(), need.align);
                free(block);
            }
            for (uint64_t j = 0; j < c.y_bytes; j++) CHECK((unsigned char)y[j] == 0xff, "a refused run wrote y");
            CHECK_OK(moewe_run(plan, &c.w, &io, ws, NULL));
            free(ws.ptr);
            free(y);
            moewe_plan_destroy(plan);
            case_free(&c);
        }
        moewe_device_close(dev);
    }
}

static void need_grows_and_floor_does_not(void **state)
{
    static const int32_t tokens[] = {1,    2,    3,     4,      5,       7,        8,         15,        16,
                                     17,   31,   32,    33,     63,      64,       65,        100,       127,
                                     128,  129,  255,   256,    1000,    4095,     4096,      4097,      65535,
                                     65536, 99999, 1 << 20, 1 << 24, 1 << 28, 1 << 30, INT32_MAX - 1, INT32_MAX};
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *dev = open_backend(list.name[b], 3);
        rng r = {12};

        for (int i = 0; i < 40; i++) {
            moewe_config cfg = random_config(&r);
            uint64_t last = 0, first_floor = 0, last_floor = 0;
            int ended = 0;

            for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
                moewe_need need, least;
                moewe_plan *plan;
                moewe_status s;

                cfg.max_tokens = tokens[t];
                cfg.workspace_limit = 0;
                s = moewe_plan_create(dev, &cfg, &plan);
                if (s) { /* said cleanly, about max_tokens, and for every larger one as well */
                    CHECK(tokens[t] > 1 << 20, "%s: max_tokens %d: %s", list.name[b], tokens[t], moewe_last_error());
                    assert_int_equal(s, MOEWE_E_ARG);
                    contains_number(moewe_last_error(), (uint64_t)tokens[t]);
                    ended = 1;
                    continue;
                }
                CHECK(!ended, "%s: max_tokens %d is planned, a smaller one is not", list.name[b], tokens[t]);
                CHECK_OK(moewe_plan_need(plan, &need));
                check_regions(plan, need);
                moewe_plan_destroy(plan);
                CHECK(need.bytes >= last && need.bytes > 0, "%s: need falls from %llu to %llu at max_tokens %d",
                      list.name[b], (unsigned long long)last, (unsigned long long)need.bytes, tokens[t]);
                last = need.bytes;
                CHECK_OK(moewe_plan_floor(dev, &cfg, &least));
                CHECK(least.bytes > 0 && least.bytes <= need.bytes, "%s: floor %llu, need %llu", list.name[b],
                      (unsigned long long)least.bytes, (unsigned long long)need.bytes);
                if (t == 0) first_floor = least.bytes;
                last_floor = least.bytes;
                CHECK(least.bytes == first_floor, "%s: the floor is %llu at 1 token and %llu at %d", list.name[b],
                      (unsigned long long)first_floor, (unsigned long long)last_floor, tokens[t]);
                cfg.workspace_limit = 1; /* is not looked at by floor */
                CHECK_OK(moewe_plan_floor(dev, &cfg, &least));
                assert_int_equal(least.bytes, first_floor);
            }
            CHECK(last > 0, "%s: nothing was planned", list.name[b]);
        }
        moewe_device_close(dev);
    }
}

static void every_limit_is_kept(void **state)
{
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *dev = open_backend(list.name[b], 2);
        rng r = {13};

        for (int i = 0; i < 60; i++) {
            moewe_config cfg = random_config(&r);
            moewe_need least, most, need;
            moewe_plan *plan;
            uint64_t last = 0;

            cfg.max_tokens = rng_range(&r, 1, 3000);
            cfg.name = "limited";
            CHECK_OK(moewe_plan_floor(dev, &cfg, &least));
            most = need_of(dev, &cfg);
            for (int j = 0; j <= 20; j++) {
                cfg.workspace_limit = least.bytes + (most.bytes - least.bytes) * (uint64_t)j / 20;
                need = need_of(dev, &cfg);
                CHECK(need.bytes <= cfg.workspace_limit, "%s: need %llu above the limit %llu", list.name[b],
                      (unsigned long long)need.bytes, (unsigned long long)cfg.workspace_limit);
                CHECK(need.bytes >= last, "%s: need falls as the limit grows", list.name[b]);
                last = need.bytes;
            }
            CHECK(last == most.bytes, "%s: a limit of exactly the need changes it to %llu", list.name[b],
                  (unsigned long long)last);
            cfg.workspace_limit = UINT64_MAX;
            assert_int_equal(need_of(dev, &cfg).bytes, most.bytes);
            cfg.workspace_limit = least.bytes - 1;
            plan = (moewe_plan *)(uintptr_t)64;
            assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_WS_LIMIT);
            assert_true(plan == (moewe_plan *)(uintptr_t)64);
            contains_number(moewe_last_error(), least.bytes);
            contains_number(moewe_last_error(), least.bytes - 1);
            contains(moewe_last_error(), "limited");
            cfg.workspace_limit = 1;
            assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_WS_LIMIT);
        }
        moewe_device_close(dev);
    }
}

/* A floor that is really one: full runs in it, in exactly that much memory. */
static void runs_at_the_floor(void **state)
{
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *dev = open_backend(list.name[b], 2);
        rng r = {14};
        tally t = {0};

        for (int i = 0; i < 25; i++) {
            moewe_config cfg = random_config(&r);
            moewe_need least;
            layer_case c;
            char *y;

            case_build(&c, &cfg, cfg.max_tokens, WITH_BIAS2 | WITH_SELECT_BIAS, (uint64_t)i);
            CHECK_OK(moewe_plan_floor(dev, &c.cfg, &least));
            y = must_alloc(c.y_bytes, 1);
            case_run(dev, &c, NULL, least.bytes, 2, y);
            case_check(&c, y, &t, list.name[b]);
            free(y);
            case_free(&c);
        }
        tally_check(&t, list.name[b]);
        moewe_device_close(dev);
    }
}

/* ---- the manager ---- */

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
    contains_number(moewe_last_error(), need.bytes);
    contains_number(moewe_last_error(), need.bytes - 1);
    bad = (moewe_span){(char *)m.mem.ptr + 1, need.bytes};
    assert_int_equal(moewe_workspace_lock(m.ws, bad), MOEWE_E_WS_ALIGN);
    bad = (moewe_span){NULL, need.bytes};
    assert_int_not_equal(moewe_workspace_lock(m.ws, bad), MOEWE_OK);
    assert_int_equal(stats_of(&m).generation, 0);

    CHECK_OK(moewe_workspace_lock(m.ws, m.mem));
    assert_int_equal(moewe_workspace_lock(m.ws, m.mem), MOEWE_E_WS_STATE);
    assert_int_equal(moewe_workspace_reserve(m.ws, m.larger), MOEWE_E_WS_STATE);
    contains(moewe_last_error(), "larger");
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
        contains_number(moewe_last_error(), (uint64_t)a.index);
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
    contains_number(moewe_last_error(), m.larger_need.bytes);
    contains_number(moewe_last_error(), m.large_need.bytes);
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
        cmocka_unit_test(exact_need),        cmocka_unit_test(need_grows_and_floor_does_not),
        cmocka_unit_test(every_limit_is_kept), cmocka_unit_test(runs_at_the_floor),
        cmocka_unit_test(manager_life),      cmocka_unit_test(manager_bad_arguments),
        cmocka_unit_test(many_threads_acquire),
    };

    return cmocka_run_group_tests_name("workspace", tests, NULL, NULL);
}
