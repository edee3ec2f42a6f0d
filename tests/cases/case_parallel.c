/* case_parallel.c - owns the cases of kind concurrency that threads of a CPU can show.  It must never share what
 * moewe.h says is one run's at a time. */
#include "accident.h"

#include <pthread.h>
#include <string.h>

typedef struct worker {
    const moewe_device *dev;
    const layer_case *c;
    const char *want;
    int64_t iterations;
    moewe_status status;
    int differs;
    /* a lane of a shared workspace, or NULL: a workspace of its own */
    moewe_workspace *ws;
    int32_t lane;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    moewe_plan *plan = NULL;
    moewe_need need;
    moewe_span ws = {NULL, 0};
    moewe_io io = w->c->io;
    char *y = malloc(w->c->y_bytes);

    w->status = y ? moewe_plan_create(w->dev, &w->c->cfg, &plan) : MOEWE_E_NOMEM;
    if (!w->status) w->status = moewe_plan_need(plan, &need);
    if (!w->status && posix_memalign(&ws.ptr, need.align, need.bytes)) w->status = MOEWE_E_NOMEM;
    ws.bytes = w->status ? 0 : need.bytes;
    io.y = y;
    for (int64_t i = 0; i < w->iterations && !w->status; i++) {
        moewe_lane lane;

        memset(y, 0x5c, w->c->y_bytes);
        if (w->ws) {
            w->status = moewe_lane_acquire(w->ws, w->lane, &lane);
            if (!w->status) w->status = moewe_run_lane(w->ws, &lane, plan, &w->c->w, &io, NULL);
            if (!w->status) w->status = moewe_lane_release(w->ws, &lane);
        } else {
            w->status = moewe_run(plan, &w->c->w, &io, ws, NULL);
        }
        w->differs += memcmp(y, w->want, w->c->y_bytes) != 0;
    }
    moewe_plan_destroy(plan);
    free(ws.ptr);
    free(y);
    return NULL;
}

static void all_at_once(const accident *a, worker *workers, int32_t n)
{
    pthread_t threads[16];

    CHECK(n <= 16, "test: %s has more threads", a->id);
    for (int32_t i = 0; i < n; i++) CHECK(!pthread_create(&threads[i], NULL, work, &workers[i]), "test: no thread");
    for (int32_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
    for (int32_t i = 0; i < n; i++) {
        CHECK(!workers[i].status, "%s: thread %d: %s", a->id, i, moewe_status_name(workers[i].status));
        CHECK(!workers[i].differs, "%s: thread %d has other bits in %d of its runs", a->id, i, workers[i].differs);
    }
}

static void layer_for(layer_case *c, char **want, const moewe_device *dev, uint64_t seed)
{
    moewe_config cfg = small_config();

    cfg.hidden = 24 + (int32_t)seed * 8;
    case_build(c, &cfg, 3 + (int32_t)seed, 0, seed);
    *want = must_alloc(c->y_bytes, 4);
    case_run(dev, c, NULL, 0, 0, *want);
}

/* Threads with a workspace each run different layers: on one device, then each on its own. */
static void threads_and_layers(accident *a)
{
    int32_t n = (int32_t)number(a->params, "threads"), layers = (int32_t)number(a->params, "layers");
    layer_case c[8];
    worker w[8];
    char *want[8];
    moewe_device *own[8];

    CHECK(n <= 8 && layers <= 8, "test: %s is larger", a->id);
    for (int32_t l = 0; l < layers; l++) layer_for(&c[l], &want[l], a->dev, (uint64_t)l);
    for (int32_t i = 0; i < n; i++) own[i] = open_backend(a->backend, 1 + i % 2);
    for (int separate = 0; separate < 2; separate++) {
        for (int32_t i = 0; i < n; i++)
            w[i] = (worker){.dev = separate ? own[i] : a->dev,
                            .c = &c[i % layers],
                            .want = want[i % layers],
                            .iterations = number(a->params, "iters")};
        all_at_once(a, w, n);
    }
    checked(a, "props.0");
    checked(a, "props.1"); /* devices of one process, closed one by one, share nothing that breaks */
    for (int32_t i = 0; i < n; i++) moewe_device_close(own[i]);
    for (int32_t l = 0; l < layers; l++) {
        free(want[l]);
        case_free(&c[l]);
    }
}

/* Devices of other numbers of threads in turns. */
static void changing_threads(accident *a)
{
    const json_t *sequence = json_object_get(a->params, "threads_sequence");
    size_t n = json_array_size(sequence);
    moewe_device *dev[8];
    moewe_plan *plan[8];
    moewe_need need;
    moewe_span ws;
    layer_case c;
    char *want, *y;
    moewe_io io;

    CHECK(n <= 8, "test: %s is longer", a->id);
    layer_for(&c, &want, a->dev, 1);
    y = must_alloc(c.y_bytes, 4);
    ws = (moewe_span){NULL, 0};
    for (size_t i = 0; i < n; i++) {
        dev[i] = open_backend(a->backend, (int32_t)real_at(sequence, i));
        CHECK_OK(moewe_plan_create(dev[i], &c.cfg, &plan[i]));
        CHECK_OK(moewe_plan_need(plan[i], &need));
        if (need.bytes > ws.bytes) ws.bytes = need.bytes;
    }
    ws.ptr = must_alloc(ws.bytes, need.align);
    io = c.io;
    io.y = y;
    for (int64_t i = 0; i < number(a->params, "iters"); i++) {
        memset(y, 0x5c, c.y_bytes);
        CHECK_OK(moewe_run(plan[(size_t)i % n], &c.w, &io, ws, NULL));
        CHECK(!memcmp(y, want, c.y_bytes), "%s: run %lld has other bits", a->id, (long long)i);
    }
    checked(a, "props.0");
    for (size_t i = 0; i < n; i++) {
        moewe_plan_destroy(plan[i]);
        moewe_device_close(dev[i]);
    }
    free(ws.ptr);
    free(y);
    free(want);
    case_free(&c);
}

/* Two lanes at once; a lane that is out is refused to a second taker. */
static void two_lanes(accident *a)
{
    enum { LANES = 2 };
    layer_case c[LANES];
    char *want[LANES];
    moewe_workspace *ws;
    moewe_lane lane, second;
    moewe_need need;
    worker w[LANES];
    void *mem;

    assert_int_equal(number(a->params, "streams"), LANES);
    CHECK_OK(moewe_workspace_create(a->dev, LANES, &ws));
    for (int i = 0; i < LANES; i++) {
        moewe_plan *plan;

        layer_for(&c[i], &want[i], a->dev, (uint64_t)i + 3);
        CHECK_OK(moewe_plan_create(a->dev, &c[i].cfg, &plan));
        CHECK_OK(moewe_workspace_reserve(ws, plan));
        moewe_plan_destroy(plan);
    }
    CHECK_OK(moewe_workspace_need(ws, &need));
    mem = must_alloc(need.bytes, need.align);
    CHECK_OK(moewe_workspace_lock(ws, (moewe_span){mem, need.bytes}));
    for (int i = 0; i < LANES; i++)
        w[i] = (worker){
            .dev = a->dev, .c = &c[i], .want = want[i], .iterations = number(a->params, "iters"), .ws = ws, .lane = i};
    all_at_once(a, w, LANES);
    checked(a, "props.0");
    CHECK_OK(moewe_lane_acquire(ws, 0, &lane));
    assert_int_equal(moewe_lane_acquire(ws, 0, &second), MOEWE_E_BUSY);
    CHECK_OK(moewe_lane_release(ws, &lane));
    checked(a, "props.1");
    moewe_workspace_destroy(ws);
    free(mem);
    for (int i = 0; i < LANES; i++) {
        free(want[i]);
        case_free(&c[i]);
    }
}

const entry parallel_entries[] = {
    {"C057", threads_and_layers, 1},
    {"C147", changing_threads, 1},
    {"C148", two_lanes, 1},
    {NULL, NULL, 0},
};
