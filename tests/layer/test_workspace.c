/* test_workspace.c - owns the promise on memory: exact need, limits and floors, regions.  Buffers are exactly as
 * long as the plan says, so that a sanitizer sees both ends.  It must never round a size up. */
#include "../support/layer_case.h"

#include <string.h>

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
            says_number(need.bytes);
            says_number(need.bytes - 1);
            says("exact");
            bad = (moewe_span){NULL, need.bytes};
            assert_int_equal(moewe_run(plan, &c.w, &io, bad, NULL), MOEWE_E_WS_SMALL);
            if (need.align > 1) {
                block = must_alloc(need.bytes + need.align, need.align);
                bad = (moewe_span){block + need.align / 2, need.bytes};
                assert_int_equal(moewe_run(plan, &c.w, &io, bad, NULL), MOEWE_E_WS_ALIGN);
                says_number(need.align);
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
    static const int32_t tokens[] = {1,        2,
                                     3,        4,
                                     5,        7,
                                     8,        15,
                                     16,       17,
                                     31,       32,
                                     33,       63,
                                     64,       65,
                                     100,      127,
                                     128,      129,
                                     255,      256,
                                     1000,     4095,
                                     4096,     4097,
                                     65535,    65536,
                                     99999,    1 << 20,
                                     1 << 24,  1 << 28,
                                     1 << 30,  INT32_MAX - 1,
                                     INT32_MAX};
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
                    says_number((uint64_t)tokens[t]);
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
            says_number(least.bytes);
            says_number(least.bytes - 1);
            says("limited");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_need),
        cmocka_unit_test(need_grows_and_floor_does_not),
        cmocka_unit_test(every_limit_is_kept),
        cmocka_unit_test(runs_at_the_floor),
    };

    return cmocka_run_group_tests_name("workspace", tests, NULL, NULL);
}
