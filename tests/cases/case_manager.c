/* case_manager.c - owns the cases of kind workspace_manager, and what the linker's wraps count.  It must never let an
 * allocation between lock and unlock pass uncounted. */
#include "accident.h"

#include <stdatomic.h>
#include <string.h>

/* ---- counting ---- */

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

static void seen(void)
{
    if (atomic_load(&armed)) atomic_fetch_add(&caught, 1);
}

void *__wrap_malloc(size_t bytes)
{
    seen();
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    seen();
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    seen();
    return __real_realloc(p, bytes);
}

int __wrap_posix_memalign(void **out, size_t align, size_t bytes)
{
    seen();
    return __real_posix_memalign(out, align, bytes);
}

void __wrap_free(void *p)
{
    __real_free(p);
}

void count_allocations(void)
{
    atomic_store(&caught, 0);
    atomic_store(&armed, 1);
}

int allocations(void)
{
    atomic_store(&armed, 0);
    return atomic_load(&caught);
}

/* ---- a workspace for some plans ---- */

typedef struct manager {
    moewe_workspace *ws;
    moewe_need need;
    void *mem;
} manager;

static void open_manager(const accident *a, manager *m, int32_t lanes)
{
    memset(m, 0, sizeof *m);
    CHECK_OK(moewe_workspace_create(a->dev, lanes, &m->ws));
}

static moewe_plan *reserve(const accident *a, manager *m, const moewe_config *cfg)
{
    moewe_plan *plan;

    CHECK_OK(moewe_plan_create(a->dev, cfg, &plan));
    CHECK_OK(moewe_workspace_reserve(m->ws, plan));
    return plan;
}

static void lock(manager *m)
{
    CHECK_OK(moewe_workspace_need(m->ws, &m->need));
    m->mem = must_alloc(m->need.bytes, m->need.align);
    fill_pattern(m->mem, m->need.bytes, 1);
    CHECK_OK(moewe_workspace_lock(m->ws, (moewe_span){m->mem, m->need.bytes}));
}

static void close_manager(manager *m)
{
    moewe_workspace_destroy(m->ws);
    free(m->mem);
}

static uint64_t lane_bytes(const manager *m)
{
    moewe_workspace_stats stats;

    MOEWE_INIT(stats);
    CHECK_OK(moewe_workspace_stats_get(m->ws, &stats));
    return stats.lane_bytes;
}

/* Rows of x and y, ids spread over the experts, on thin weights; on a lane. */
typedef struct load {
    moewe_config cfg;
    moewe_weights w;
    moewe_io io;
    thin t;
    char *x, *y;
    int32_t *ids;
    float *weights;
} load;

static void load_up(load *l, const moewe_config *cfg)
{
    uint64_t n = (uint64_t)cfg->max_tokens, h = (uint64_t)cfg->hidden, k = (uint64_t)cfg->top_k;

    memset(l, 0, sizeof *l);
    l->cfg = *cfg;
    l->cfg.x_dtype = l->cfg.w_dtype = MOEWE_DTYPE_BF16;
    l->w = thin_weights(&l->cfg, &l->t);
    l->x = must_alloc(n * h * 2, 2);
    l->y = must_alloc(n * h * 2, 2);
    l->ids = must_alloc(n * k * 4, 4);
    l->weights = must_alloc(n * k * 4, 4);
    for (uint64_t i = 0; i < n * h; i++) store(l->x + 2 * i, MOEWE_DTYPE_BF16, value(1, i, 2.0));
    for (uint64_t i = 0; i < n * k; i++) {
        l->ids[i] = i / k % 64 ? -1 : (int32_t)(i % (uint64_t)cfg->n_experts); /* one row in 64 has experts */
        l->weights[i] = 0.25f;
    }
    MOEWE_INIT(l->io);
    l->io.n_tokens = cfg->max_tokens;
    l->io.x = l->x;
    l->io.y = l->y;
    l->io.topk_ids = l->ids;
    l->io.topk_weights = l->weights;
}

static void load_down(load *l)
{
    thin_free(&l->t);
    free(l->x);
    free(l->y);
    free(l->ids);
    free(l->weights);
}

static moewe_status on_lane(manager *m, int32_t index, const moewe_plan *plan, const load *l, int32_t tokens)
{
    moewe_io io = l->io;
    moewe_lane lane;
    moewe_status s;

    io.n_tokens = tokens;
    CHECK_OK(moewe_lane_acquire(m->ws, index, &lane));
    s = moewe_run_lane(m->ws, &lane, plan, &l->w, &io, NULL);
    CHECK_OK(moewe_lane_release(m->ws, &lane));
    return s;
}

/* ---- cases ---- */

static void small_then_large(accident *a)
{
    moewe_config cfg = config_of(a->params);
    int32_t most = (int32_t)number(a->params, "declared_max_tokens");
    moewe_plan *plan, *larger;
    manager m;
    load l;

    cfg.max_tokens = most;
    load_up(&l, &cfg);
    open_manager(a, &m, 1);
    plan = reserve(a, &m, &l.cfg);
    assert_int_equal(lane_bytes(&m), need_of(a->dev, &l.cfg));
    lock(&m);
    CHECK_OK(on_lane(&m, 0, plan, &l, 16));
    CHECK_OK(on_lane(&m, 0, plan, &l, most)); /* what was declared, not what was seen */
    checked(a, "props.0");
    assert_int_equal(on_lane(&m, 0, plan, &l, most + 1), MOEWE_E_RANGE);
    says_number((uint64_t)most);
    says_number((uint64_t)most + 1);
    l.cfg.inter *= 64; /* and a layer that nobody declared */
    l.cfg.name = "undeclared";
    CHECK_OK(moewe_plan_create(a->dev, &l.cfg, &larger));
    if (need_of(a->dev, &l.cfg) > lane_bytes(&m)) {
        assert_int_equal(on_lane(&m, 0, larger, &l, 1), MOEWE_E_WS_SMALL);
        says("undeclared");
        says_number(need_of(a->dev, &l.cfg));
        says_number(lane_bytes(&m));
    } else {
        fail_msg("test: %s has no larger layer", a->id);
    }
    CHECK_OK(on_lane(&m, 0, plan, &l, 16));
    checked(a, "props.1");
    moewe_plan_destroy(plan);
    moewe_plan_destroy(larger);
    close_manager(&m);
    load_down(&l);
}

static void equal_slots(accident *a)
{
    int32_t n = (int32_t)number(a->params, "slots"), equal = 1;
    moewe_config cfg = small_config();
    moewe_plan *plan;
    moewe_lane lane;
    manager m;
    load l;

    cfg.score = MOEWE_SCORE_GIVEN;
    cfg.flags = 0;
    cfg.max_tokens = 4096;
    load_up(&l, &cfg);
    open_manager(a, &m, n);
    plan = reserve(a, &m, &l.cfg);
    lock(&m);
    for (int32_t i = 0; i < n; i++) {
        CHECK_OK(moewe_lane_acquire(m.ws, i, &lane));
        equal &= lane.span.bytes == need_of(a->dev, &l.cfg);
        CHECK_OK(moewe_lane_release(m.ws, &lane));
        CHECK_OK(on_lane(&m, i, plan, &l, 4096));
    }
    CHECK(equal && json_is_true(json_object_get(json_object_get(a->expect, "exact"), "slot_bytes_equal")),
          "%s: lanes are not equal", a->id);
    checked(a, "exact.slot_bytes_equal");
    moewe_plan_destroy(plan);
    close_manager(&m);
    load_down(&l);
}

/* Rows without experts size nothing: the plan knows its tokens. */
static void padding_profile(accident *a)
{
    moewe_config cfg = config_of(a->params);
    moewe_plan *plan;
    manager m;
    load l;

    cfg.max_tokens = (int32_t)number(a->params, "tokens");
    load_up(&l, &cfg);
    open_manager(a, &m, 1);
    plan = reserve(a, &m, &l.cfg);
    lock(&m);
    for (int32_t i = 0; i < cfg.max_tokens * cfg.top_k; i++) l.ids[i] = -1;
    CHECK_OK(on_lane(&m, 0, plan, &l, cfg.max_tokens));
    for (int32_t i = 0; i < cfg.max_tokens * cfg.top_k; i++) l.ids[i] = i % cfg.n_experts;
    CHECK_OK(on_lane(&m, 0, plan, &l, cfg.max_tokens));
    expects(a, "exact", "min_reserved_rows", region_of(a->dev, &l.cfg, "order") / 4);
    moewe_plan_destroy(plan);
    close_manager(&m);
    load_down(&l);
}

static void any_order(accident *a)
{
    const json_t *layers = json_object_get(a->params, "layers"), *orders = json_object_get(a->params, "orders");
    uint64_t largest = 0;
    load l[2];

    for (size_t i = 0; i < 2; i++) {
        moewe_config cfg = config_of(json_array_get(layers, i));

        cfg.max_tokens = (int32_t)number(a->params, "tokens");
        load_up(&l[i], &cfg);
        if (need_of(a->dev, &l[i].cfg) > largest) largest = need_of(a->dev, &l[i].cfg);
    }
    for (size_t o = 0; o < json_array_size(orders); o++) {
        moewe_plan *plan[2] = {NULL, NULL};
        manager m;

        open_manager(a, &m, 1);
        for (size_t i = 0; i < 2; i++) {
            const char *name = json_string_value(json_array_get(json_array_get(orders, o), i));
            size_t which = strcmp(name, text_or(json_array_get(layers, 0), "name", "")) != 0;

            plan[which] = reserve(a, &m, &l[which].cfg);
        }
        assert_int_equal(lane_bytes(&m), largest);
        lock(&m);
        assert_int_equal(moewe_workspace_reserve(m.ws, plan[0]), MOEWE_E_WS_STATE);
        says("locked");
        for (size_t i = 0; i < 2; i++) {
            uint64_t bytes = (uint64_t)l[i].cfg.max_tokens * (uint64_t)l[i].cfg.hidden * 2;
            char *alone = must_alloc(bytes, 2);

            CHECK_OK(try_layer(a->dev, &l[i].cfg, &l[i].w, &l[i].io, 0));
            memcpy(alone, l[i].y, bytes);
            CHECK_OK(on_lane(&m, 0, plan[i], &l[i], l[i].cfg.max_tokens));
            assert_memory_equal(alone, l[i].y, bytes);
            free(alone);
        }
        moewe_plan_destroy(plan[0]);
        moewe_plan_destroy(plan[1]);
        close_manager(&m);
    }
    for (int i = 0; i < 3; i++) checked(a, "props.%d", i);
    load_down(&l[0]);
    load_down(&l[1]);
}

static void lanes_apart(accident *a)
{
    moewe_config cfg = small_config();
    moewe_plan *plan;
    moewe_lane lane[2];
    manager m;

    assert_int_equal(number(a->params, "slots"), 2);
    cfg.max_tokens = 7;
    open_manager(a, &m, 2);
    plan = reserve(a, &m, &cfg);
    lock(&m);
    CHECK_OK(moewe_lane_acquire(m.ws, 1, &lane[1]));
    CHECK_OK(moewe_lane_acquire(m.ws, 0, &lane[0]));
    for (int i = 0; i < 2; i++) {
        const char *from = lane[i].span.ptr, *other = lane[1 - i].span.ptr;

        CHECK(from >= (char *)m.mem && from + lane[i].span.bytes <= (char *)m.mem + m.need.bytes, "%s: lane %d", a->id,
              i);
        CHECK(from + lane[i].span.bytes <= other || other + lane[1 - i].span.bytes <= from, "%s: lanes overlap", a->id);
        CHECK_OK(moewe_lane_release(m.ws, &lane[i]));
    }
    checked(a, "props.0");
    moewe_plan_destroy(plan);
    close_manager(&m);
}

/* Nothing reserved: lock refuses; something else reserved: the run names layer, need and what is held. */
static void nobody_reserved(accident *a)
{
    const json_t *reported = json_object_get(a->params, "reported");
    char block[4096];
    manager m;

    open_manager(a, &m, 1);
    refused_as(a, moewe_workspace_lock(m.ws, (moewe_span){block, sizeof block}));
    checked(a, "props.0");
    close_manager(&m);
    for (size_t i = 0; i < json_array_size(reported); i++) {
        moewe_config small = small_config(), large;
        moewe_plan *held, *plan;
        load l;

        small.score = MOEWE_SCORE_GIVEN;
        small.flags = 0;
        small.max_tokens = 1;
        large = small;
        large.name = "never reserved";
        large.max_tokens = 2000;
        large.inter = 200 * (int32_t)(i + 1);
        load_up(&l, &large);
        open_manager(a, &m, 1);
        held = reserve(a, &m, &small);
        lock(&m);
        CHECK_OK(moewe_plan_create(a->dev, &l.cfg, &plan));
        refused_as(a, on_lane(&m, 0, plan, &l, 1));
        says("never reserved");
        says_number(need_of(a->dev, &l.cfg));
        says_number(lane_bytes(&m));
        checked(a, "error_must_name");
        moewe_plan_destroy(held);
        moewe_plan_destroy(plan);
        close_manager(&m);
        load_down(&l);
    }
}

/* Every size from one token up, between lock and unlock: not one allocation. */
static void warm_up(accident *a)
{
    moewe_config cfg = config_of(a->params);
    moewe_plan *plan;
    manager m;
    load l;

    cfg.max_tokens = (int32_t)number(a->params, "tokens");
    load_up(&l, &cfg);
    open_manager(a, &m, 1);
    plan = reserve(a, &m, &l.cfg);
    lock(&m);
    count_allocations();
    for (int32_t n = 1; n <= cfg.max_tokens; n *= 4) CHECK_OK(on_lane(&m, 0, plan, &l, n));
    assert_int_equal(allocations(), 0);
    checked(a, "props.0");
    moewe_plan_destroy(plan);
    close_manager(&m);
    load_down(&l);
}

static void mixed_sizes(accident *a)
{
    moewe_config cfg = config_of(a->params);
    moewe_workspace_stats before, after;
    rng r = {16};
    moewe_plan *plan;
    manager m;
    load l;

    cfg.max_tokens = (int32_t)(number(a->params, "tokens_per_rank") * number(a->params, "dp"));
    expects(a, "exact", "workspace_tokens", (uint64_t)cfg.max_tokens);
    cfg.n_local = cfg.n_experts / (int32_t)number(a->params, "ep");
    cfg.hidden = 8; /* "illustrative": what counts is tokens, experts and runs */
    cfg.inter = 4;
    load_up(&l, &cfg);
    open_manager(a, &m, 1);
    plan = reserve(a, &m, &l.cfg);
    lock(&m);
    MOEWE_INIT(before);
    CHECK_OK(moewe_workspace_stats_get(m.ws, &before));
    count_allocations();
    for (int i = 0; i < 1605; i++)
        CHECK_OK(on_lane(&m, 0, plan, &l, i % 400 == 3 ? cfg.max_tokens : rng_range(&r, 0, 200)));
    assert_int_equal(allocations(), 0);
    checked(a, "props.0");
    MOEWE_INIT(after);
    CHECK_OK(moewe_workspace_stats_get(m.ws, &after));
    assert_int_equal(before.lane_bytes, after.lane_bytes);
    assert_int_equal(before.generation, after.generation);
    assert_int_equal(after.refused, 0);
    checked(a, "props.1");
    moewe_plan_destroy(plan);
    close_manager(&m);
    load_down(&l);
}

/* One function for everybody: the query is what the manager reserves and what a run takes. */
static void one_function(accident *a)
{
    rng r = {40};

    for (int i = 0; i < 100; i++) {
        moewe_config cfg = small_config();
        manager m;
        uint64_t bytes;

        cfg.hidden = rng_range(&r, 1, 8192);
        cfg.inter = rng_range(&r, 1, 4096);
        cfg.n_experts = rng_range(&r, 1, 512);
        cfg.top_k = rng_range(&r, 1, cfg.n_experts < 16 ? cfg.n_experts : 16);
        cfg.shared_inter = rng_range(&r, 0, 1) * rng_range(&r, 1, 4096);
        cfg.latent = rng_range(&r, 0, 3) ? 0 : rng_range(&r, 1, 2048);
        cfg.max_tokens = rng_range(&r, 1, 100000);
        cfg.x_dtype = rng_range(&r, 0, 1) ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32;
        bytes = need_of(a->dev, &cfg);
        open_manager(a, &m, 3);
        moewe_plan_destroy(reserve(a, &m, &cfg));
        assert_int_equal(lane_bytes(&m), bytes);
        CHECK_OK(moewe_workspace_need(m.ws, &m.need));
        assert_int_equal(m.need.bytes, 3 * bytes);
        {
            moewe_plan *plan;
            moewe_region last;

            CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
            CHECK_OK(moewe_plan_region(plan, moewe_plan_region_count(plan) - 1, &last));
            assert_int_equal(last.offset + last.bytes, bytes);
            moewe_plan_destroy(plan);
        }
        close_manager(&m);
    }
    checked(a, "props.0");
}

/* The need of fewer tokens is never above that of more. */
static void monotone(accident *a)
{
    static const int32_t widths[] = {64, 640, 2048};

    for (int i = 0; i < 6; i++) {
        uint64_t last = 0;

        for (int32_t t = 1; t <= 600; t++) {
            moewe_config cfg = small_config();
            uint64_t bytes;

            cfg.hidden = cfg.inter = widths[i / 2];
            cfg.n_experts = 128;
            cfg.top_k = 4;
            cfg.shared_inter = i & 1 ? 512 : 0;
            cfg.x_dtype = i & 1 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32;
            cfg.max_tokens = t;
            bytes = need_of(a->dev, &cfg);
            CHECK(bytes >= last, "%s: %d tokens need %llu, one fewer %llu", a->id, t, (unsigned long long)bytes,
                  (unsigned long long)last);
            last = bytes;
        }
    }
    checked(a, "props.0");
    checked(a, "props.1");
}

static void above_the_limit(accident *a)
{
    moewe_config cfg = small_config();
    moewe_plan *plan;
    manager m;
    load l;

    cfg.score = MOEWE_SCORE_GIVEN;
    cfg.flags = 0;
    cfg.max_tokens = (int32_t)number(a->params, "limit_tokens");
    load_up(&l, &cfg);
    open_manager(a, &m, 1);
    plan = reserve(a, &m, &l.cfg);
    lock(&m);
    refused_as(a, on_lane(&m, 0, plan, &l, (int32_t)number(a->params, "tokens")));
    says_number((uint64_t)number(a->params, "tokens"));
    says_number((uint64_t)number(a->params, "limit_tokens"));
    checked(a, "error_must_name");
    moewe_plan_destroy(plan);
    close_manager(&m);
    load_down(&l);
}

/* Forty layers share what one takes, and it is little. */
static void not_charged_per_layer(accident *a)
{
    moewe_config cfg = config_of(a->params);
    manager m;

    cfg.score = MOEWE_SCORE_SOFTMAX;
    cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_BF16;
    cfg.max_tokens = (int32_t)number(a->params, "tokens");
    open_manager(a, &m, 1);
    for (int64_t i = 0; i < number(a->params, "layers"); i++) moewe_plan_destroy(reserve(a, &m, &cfg));
    expects(a, "max", "total_scratch_bytes", lane_bytes(&m));
    {
        moewe_config some = cfg;
        uint64_t each;

        some.max_tokens = 16;
        each = region_of(a->dev, &some, "order") / 4 / 16;
        expects(a, "exact", "routed_rows", each * (uint64_t)cfg.max_tokens);
    }
    close_manager(&m);
}

const entry manager_entries[] = {
    {"C016", mixed_sizes, 0},
    {"C032", small_then_large, 0},
    {"C033", equal_slots, 0},
    {"C035", padding_profile, 0},
    {"C036", any_order, 0},
    {"C037", lanes_apart, 0},
    {"C038", nobody_reserved, 0},
    {"C039", warm_up, 0},
    {"C040", one_function, 0},
    {"C041", monotone, 0},
    {"C173", above_the_limit, 0},
    {"C183", not_charged_per_layer, 0},
    {NULL, NULL, 0},
};
