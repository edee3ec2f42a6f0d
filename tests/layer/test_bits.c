/* test_bits.c - owns the promise on bits: y[t] is the same whatever the workspace held, at every limit, however
 * rows are batched, on any number of threads, packed or plain.  It must never allow a difference of one bit. */
#include "../support/weight_kind.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { TOKENS = 70 };

typedef struct variant {
    const char *name;
    int32_t x_dtype, w_dtype, y_dtype, score, act, shared_inter, n_null;
    uint32_t flags;
    unsigned with;
    int32_t latent;
    const char *gate_up, *down; /* kinds of weights; NULL: what w_dtype means */
    int32_t hidden, inter;      /* 0: widths that fit nothing */
} variant;

static const variant variants[] = {
    {"f32", MOEWE_DTYPE_F32, MOEWE_DTYPE_F32, MOEWE_DTYPE_F32, MOEWE_SCORE_SOFTMAX, MOEWE_ACT_SWIGLU, 0, 0,
     MOEWE_FLAG_RENORMALIZE, 0, 0, NULL, NULL, 0, 0},
    {"bf16", MOEWE_DTYPE_BF16, MOEWE_DTYPE_BF16, MOEWE_DTYPE_BF16, MOEWE_SCORE_SIGMOID, MOEWE_ACT_SWIGLU_OAI, 70, 0,
     MOEWE_FLAG_RENORMALIZE, WITH_BIAS1 | WITH_BIAS2 | WITH_SELECT_BIAS | WITH_SHARED_SCALE, 0, NULL, NULL, 0, 0},
    {"f32 x f16 add", MOEWE_DTYPE_F32, MOEWE_DTYPE_F16, MOEWE_DTYPE_F32, MOEWE_SCORE_GIVEN, MOEWE_ACT_GELU, 33, 2, 0,
     WITH_Y_ADD | WITH_STRIDES | WITH_POINTERS | WITH_UNALIGNED, 0, NULL, NULL, 0, 0},
    {"bf16 to f32 on input", MOEWE_DTYPE_BF16, MOEWE_DTYPE_F32, MOEWE_DTYPE_F32, MOEWE_SCORE_SOFTMAX_TOPK,
     MOEWE_ACT_GEGLU_TANH, 0, 3, MOEWE_FLAG_WEIGHT_ON_INPUT, WITH_TRANSPOSED | WITH_LOGITS, 0, NULL, NULL, 0, 0},
    {"f32 x bf16 to bf16", MOEWE_DTYPE_F32, MOEWE_DTYPE_BF16, MOEWE_DTYPE_BF16, MOEWE_SCORE_SQRTSOFTPLUS,
     MOEWE_ACT_REGLU, 0, 0, 0, WITH_Y_ADD | WITH_BIAS2, 0, NULL, NULL, 0, 0},
    {"latent bf16", MOEWE_DTYPE_BF16, MOEWE_DTYPE_BF16, MOEWE_DTYPE_BF16, MOEWE_SCORE_SIGMOID, MOEWE_ACT_RELU2, 50, 2,
     MOEWE_FLAG_RENORMALIZE, WITH_LATENT_BIAS | WITH_SELECT_BIAS | WITH_SHARED_SCALE | WITH_EXPERT_SCALE, 69, NULL,
     NULL, 0, 0},
    {"latent f32 on input add", MOEWE_DTYPE_F32, MOEWE_DTYPE_F16, MOEWE_DTYPE_F32, MOEWE_SCORE_SPARSEMIXER,
     MOEWE_ACT_SWIGLU_STEP, 0, 1, MOEWE_FLAG_WEIGHT_ON_INPUT, WITH_Y_ADD | WITH_STRIDES | WITH_BIAS1, 200, NULL, NULL,
     0, 0},
    {"hashed", MOEWE_DTYPE_F32, MOEWE_DTYPE_F32, MOEWE_DTYPE_F32, MOEWE_SCORE_SQRTSOFTPLUS, MOEWE_ACT_GELU_TANH, 19, 2,
     MOEWE_FLAG_RENORMALIZE, WITH_HASH | WITH_LOGITS | WITH_EXPERT_SCALE, 0, NULL, NULL, 0, 0},
    {"e4m3 in blocks", MOEWE_DTYPE_BF16, 0, MOEWE_DTYPE_F32, MOEWE_SCORE_SIGMOID, MOEWE_ACT_SWIGLU, 41, 0,
     MOEWE_FLAG_RENORMALIZE, WITH_TRANSPOSED | WITH_UNALIGNED, 0, "e4m3 128x128", "e4m3 row bf16", 0, 0},
    {"mxfp4", MOEWE_DTYPE_F32, 0, MOEWE_DTYPE_BF16, MOEWE_SCORE_SOFTMAX_TOPK, MOEWE_ACT_SWIGLU_OAI, 0, 0, 0,
     WITH_BIAS1 | WITH_BIAS2 | WITH_POINTERS | WITH_STRIDES | WITH_UNALIGNED, 0, "mxfp4", "mxfp4", 150, 94},
    {"nvfp4", MOEWE_DTYPE_BF16, 0, MOEWE_DTYPE_BF16, MOEWE_SCORE_SOFTMAX, MOEWE_ACT_SWIGLU, 50, 2,
     MOEWE_FLAG_RENORMALIZE, WITH_Y_ADD | WITH_SHARED_SCALE, 0, "nvfp4", "nvfp4", 130, 78},
    {"i8 and i4, latent", MOEWE_DTYPE_F32, 0, MOEWE_DTYPE_F32, MOEWE_SCORE_SIGMOID, MOEWE_ACT_RELU2, 50, 0,
     MOEWE_FLAG_WEIGHT_ON_INPUT, WITH_LATENT_BIAS | WITH_STRIDES, 69, "i8 64 bf16", "i4 32", 0, 94},
    {"q8_0 and q4_0", MOEWE_DTYPE_F32, 0, MOEWE_DTYPE_F32, MOEWE_SCORE_GIVEN, MOEWE_ACT_GEGLU, 64, 0, 0, WITH_POINTERS,
     0, "q8_0", "q4_0", 160, 96},
    {"q4_k and q6_k", MOEWE_DTYPE_BF16, 0, MOEWE_DTYPE_F32, MOEWE_SCORE_SOFTMAX, MOEWE_ACT_SWIGLU, 0, 0,
     MOEWE_FLAG_RENORMALIZE, WITH_BIAS2 | WITH_UNALIGNED, 0, "q4_k", "q6_k", 256, 256},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static void build(layer_case *c, const variant *v)
{
    moewe_config cfg = small_config();

    cfg.hidden = v->hidden ? v->hidden : 131;
    cfg.inter = v->inter ? v->inter : 77;
    cfg.n_experts = 6;
    cfg.x_dtype = v->x_dtype;
    cfg.w_dtype = v->w_dtype;
    cfg.y_dtype = v->y_dtype;
    cfg.score = v->score;
    cfg.act = v->act;
    cfg.flags = v->flags;
    cfg.shared_inter = v->shared_inter;
    cfg.n_null = v->n_null;
    cfg.latent = v->latent;
    cfg.sparsemixer_eps = 0.2f;
    cfg.logit_softcap = 4.0f;
    cfg.act_limit = 2.0f;
    cfg.shared_limit = 1.0f;
    cfg.shared_scale = 0.75f;
    if (v->gate_up)
        case_build_of(c, &cfg, TOKENS, v->with, 31, weight_kind_named(v->gate_up), weight_kind_named(v->down));
    else
        case_build(c, &cfg, TOKENS, v->with, 31);
}

/* The rows of a case that `rows` names, in that order, as a case of their own; shares c's weights. */
static layer_case some_rows(const layer_case *c, const int32_t *rows, int32_t n)
{
    layer_case s = *c;
    int64_t xs = case_x_stride(c), ys = case_y_stride(c);
    int32_t x_row = c->cfg.hidden * dtype_size(c->cfg.x_dtype), y_row = c->cfg.hidden * dtype_size(c->cfg.y_dtype);
    int32_t all = c->cfg.n_experts + c->cfg.n_null, k = c->cfg.top_k;
    char *x, *y;
    float *logits, *given;
    int32_t *ids, *tokens;

    memset(s.blocks, 0, sizeof s.blocks);
    s.n_blocks = 6;
    s.io.n_tokens = n;
    s.y_bytes = (uint64_t)((n - 1) * ys + y_row);
    s.blocks[0] = x = must_alloc((uint64_t)((n - 1) * xs + x_row), 1);
    s.blocks[1] = y = must_alloc(s.y_bytes, 1);
    s.blocks[2] = logits = must_alloc((uint64_t)n * (uint64_t)all * sizeof *logits, 1);
    s.blocks[3] = ids = must_alloc((uint64_t)n * (uint64_t)k * sizeof *ids, 1);
    s.blocks[5] = tokens = must_alloc((uint64_t)n * sizeof *tokens, 1);
    s.blocks[4] = given = must_alloc((uint64_t)n * (uint64_t)k * sizeof *given, 1);
    fill_pattern(x, (uint64_t)((n - 1) * xs + x_row), 1);
    fill_pattern(y, s.y_bytes, 1);
    for (int32_t i = 0; i < n; i++) {
        memcpy(x + i * xs, (const char *)c->io.x + rows[i] * xs, (size_t)x_row);
        memcpy(y + i * ys, (const char *)c->io.y + rows[i] * ys, (size_t)y_row);
        if (c->io.logits) memcpy(logits + i * all, c->io.logits + rows[i] * all, (size_t)all * sizeof *logits);
        if (c->ids) memcpy(ids + i * k, c->ids + rows[i] * k, (size_t)k * sizeof *ids);
        if (c->tokens) tokens[i] = c->tokens[rows[i]];
        if (c->given) memcpy(given + i * k, c->given + rows[i] * k, (size_t)k * sizeof *given);
    }
    s.io.x = x;
    s.io.y = y;
    if (c->io.logits) s.io.logits = logits;
    if (c->tokens) s.io.token_ids = tokens;
    if (c->ids) s.io.topk_ids = ids;
    if (c->given) s.io.topk_weights = given;
    return s;
}

static void same(const layer_case *c, const char *want, const char *got, const char *backend, const variant *v,
                 const char *how)
{
    int64_t ys = case_y_stride(c);
    int32_t row = c->cfg.hidden * dtype_size(c->cfg.y_dtype);

    for (int32_t t = 0; t < c->io.n_tokens; t++)
        CHECK(!memcmp(want + t * ys, got + t * ys, (size_t)row), "%s, %s: row %d has other bits %s", backend, v->name,
              t, how);
}

static void same_rows(const moewe_device *dev, const layer_case *c, const int32_t *rows, int32_t n, const char *want,
                      const char *backend, const variant *v, const char *how)
{
    layer_case s = some_rows(c, rows, n);
    char *y = must_alloc(s.y_bytes, 1);
    int64_t ys = case_y_stride(c);
    int32_t row = c->cfg.hidden * dtype_size(c->cfg.y_dtype);

    case_run(dev, &s, NULL, 0, 1, y);
    for (int32_t i = 0; i < n; i++)
        CHECK(!memcmp(want + rows[i] * ys, y + i * ys, (size_t)row), "%s, %s: row %d has other bits %s", backend,
              v->name, rows[i], how);
    free(y);
    case_free(&s);
}

typedef void check_fn(const char *backend, const moewe_device *dev, layer_case *c, const variant *v, const char *want);

/* Runs check for every back end and variant, with the bits of one plain run on one thread to compare with. */
static void for_all(check_fn *check)
{
    backend_list list = cpu_backends();

    for (int32_t b = 0; b < list.n; b++)
        for (int i = 0; i < VARIANTS; i++) {
            moewe_device *dev = open_backend(list.name[b], 1);
            layer_case c;
            char *want;

            build(&c, &variants[i]);
            want = must_alloc(c.y_bytes, 1);
            case_run(dev, &c, NULL, 0, 0, want);
            check(list.name[b], dev, &c, &variants[i], want);
            free(want);
            case_free(&c);
            moewe_device_close(dev);
        }
}

static void check_patterns(const char *backend, const moewe_device *dev, layer_case *c, const variant *v,
                           const char *want)
{
    char *y = must_alloc(c->y_bytes, 1);

    for (int p = 1; p < PATTERNS; p++) {
        case_run(dev, c, NULL, 0, p, y);
        same(c, want, y, backend, v, "with another workspace content");
    }
    free(y);
}

static void what_the_workspace_held(void **state)
{
    (void)state;
    for_all(check_patterns);
}

static void check_limits(const char *backend, const moewe_device *dev, layer_case *c, const variant *v,
                         const char *want)
{
    char *y = must_alloc(c->y_bytes, 1);
    moewe_need least, most;
    moewe_plan *plan;
    uint64_t last = 0;

    CHECK_OK(moewe_plan_floor(dev, &c->cfg, &least));
    CHECK_OK(moewe_plan_create(dev, &c->cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &most));
    moewe_plan_destroy(plan);
    CHECK(least.bytes <= most.bytes, "%s, %s: the floor %llu is above the need %llu", backend, v->name,
          (unsigned long long)least.bytes, (unsigned long long)most.bytes);
    for (int i = 0; i <= 12; i++) {
        uint64_t limit = least.bytes + (most.bytes - least.bytes) * (uint64_t)i / 12;

        if (limit == last) continue;
        last = limit;
        case_run(dev, c, NULL, limit, i % PATTERNS, y);
        same(c, want, y, backend, v, "at another workspace_limit");
    }
    free(y);
}

static void every_limit(void **state)
{
    (void)state;
    for_all(check_limits);
}

static void check_batches(const char *backend, const moewe_device *dev, layer_case *c, const variant *v,
                          const char *want)
{
    int32_t rows[TOKENS];
    rng r = {99};

    for (int32_t i = 0; i < TOKENS; i++) same_rows(dev, c, &i, 1, want, backend, v, "when run alone");
    for (int32_t i = 0; i < TOKENS; i++) rows[i] = TOKENS - 1 - i;
    same_rows(dev, c, rows, TOKENS, want, backend, v, "in reverse order");
    for (int32_t i = TOKENS - 1; i > 0; i--) {
        int32_t j = rng_range(&r, 0, i), swap = rows[i];

        rows[i] = rows[j];
        rows[j] = swap;
    }
    same_rows(dev, c, rows, TOKENS, want, backend, v, "in a shuffled batch");
    for (int32_t n = 2; n < TOKENS; n += 5) same_rows(dev, c, rows, n, want, backend, v, "in a smaller batch");
    for (int32_t i = 0; i < TOKENS; i++) rows[i] = 7; /* one row many times: experts with many and with no rows */
    same_rows(dev, c, rows, TOKENS, want, backend, v, "in a batch of its copies");
}

static void any_batch(void **state)
{
    (void)state;
    for_all(check_batches);
}

static void check_threads(const char *backend, const moewe_device *dev, layer_case *c, const variant *v,
                          const char *want)
{
    static const int32_t counts[] = {2, 3, 5, 16};
    char *y = must_alloc(c->y_bytes, 1);
    int32_t row = 7;

    (void)dev;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        moewe_device *many = open_backend(backend, counts[i]);

        assert_int_equal(moewe_device_threads(many), counts[i]);
        case_run(many, c, NULL, 0, 1, y);
        same(c, want, y, backend, v, "on more threads");
        same_rows(many, c, &row, 1, want, backend, v, "alone on more threads");
        moewe_device_close(many);
    }
    free(y);
}

static void any_number_of_threads(void **state)
{
    (void)state;
    for_all(check_threads);
}

/* ---- a host program's own threads ---- */

static void run_in_order(void *ctx, moewe_task_fn fn, void *task, int32_t count)
{
    ++*(int *)ctx;
    for (int32_t i = 0; i < count; i++) fn(task, i, count);
}

static void run_reversed(void *ctx, moewe_task_fn fn, void *task, int32_t count)
{
    ++*(int *)ctx;
    for (int32_t i = count - 1; i >= 0; i--) fn(task, i, count);
}

typedef struct share {
    moewe_task_fn fn;
    void *task;
    int32_t first, step, count;
} share;

static void *run_share(void *arg)
{
    share *s = arg;

    for (int32_t i = s->first; i < s->count; i += s->step) s->fn(s->task, i, s->count);
    return NULL;
}

static void run_on_new_threads(void *ctx, moewe_task_fn fn, void *task, int32_t count)
{
    pthread_t threads[4];
    share shares[4];

    ++*(int *)ctx;
    for (int i = 0; i < 4; i++) {
        shares[i] = (share){fn, task, i, 4, count};
        if (pthread_create(&threads[i], NULL, run_share, &shares[i])) fail_msg("test: no thread");
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

static void check_executors(const char *backend, const moewe_device *dev, layer_case *c, const variant *v,
                            const char *want)
{
    void (*const run[])(void *, moewe_task_fn, void *, int32_t) = {run_in_order, run_reversed, run_on_new_threads};
    char *y = must_alloc(c->y_bytes, 1);

    (void)dev;
    for (int i = 0; i < 3; i++) {
        int calls = 0;
        moewe_executor executor = {.ctx = &calls, .n_threads = 4, .run = run[i]};
        moewe_device_desc desc;
        moewe_device *other;

        MOEWE_INIT(desc);
        desc.backend = backend;
        desc.executor = &executor;
        CHECK_OK(moewe_device_open(&desc, &other));
        memset(&executor, 0, sizeof executor); /* what the descriptor points at was copied */
        case_run(other, c, NULL, 0, 2, y);
        CHECK(calls > 0, "%s: the executor was not asked", backend);
        same(c, want, y, backend, v, "on the caller's executor");
        moewe_device_close(other);
    }
    free(y);
}

static void any_executor(void **state)
{
    (void)state;
    for_all(check_executors);
}

static void check_packed(const char *backend, const moewe_device *dev, layer_case *c, const variant *v,
                         const char *want)
{
    char *y = must_alloc(c->y_bytes, 1);
    void *mem;
    moewe_weights packed = case_pack(dev, c, &mem), mixed;
    moewe_need least;
    int32_t row = 3;
    layer_case alone;

    case_run(dev, c, &packed, 0, 2, y);
    same(c, want, y, backend, v, "with packed weights");
    CHECK_OK(moewe_plan_floor(dev, &c->cfg, &least));
    case_run(dev, c, &packed, least.bytes, 2, y);
    same(c, want, y, backend, v, "with packed weights at the floor");
    mixed = packed; /* packed up, plain everything else */
    mixed.gate = c->w.gate;
    mixed.down = c->w.down;
    mixed.router = c->w.router;
    mixed.shared_up = c->w.shared_up;
    mixed.latent_in = c->w.latent_in;
    case_run(dev, c, &mixed, 0, 2, y);
    same(c, want, y, backend, v, "with some weights packed");
    alone = some_rows(c, &row, 1);
    alone.w = packed;
    case_run(dev, &alone, NULL, 0, 1, y);
    CHECK(!memcmp(y, want + row * case_y_stride(c), (size_t)(c->cfg.hidden * dtype_size(c->cfg.y_dtype))),
          "%s, %s: row %d has other bits alone with packed weights", backend, v->name, row);
    case_free(&alone);
    free(mem);
    free(y);
}

static void packed_or_plain(void **state)
{
    (void)state;
    for_all(check_packed);
}

static void check_max_tokens(const char *backend, const moewe_device *dev, layer_case *c, const variant *v,
                             const char *want)
{
    static const int32_t counts[] = {TOKENS + 1, 96, 1000, 4096};
    char *y = must_alloc(c->y_bytes, 1);

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        c->cfg.max_tokens = counts[i];
        case_run(dev, c, NULL, 0, 2, y);
        same(c, want, y, backend, v, "with another max_tokens");
    }
    free(y);
}

static void any_max_tokens(void **state)
{
    (void)state;
    for_all(check_max_tokens);
}

/* More tokens than any plan takes at a time without being told to: rows of each chunk as when run alone. */
static void large_batches(void **state)
{
    static const struct {
        int32_t tokens, y_dtype;
    } table[] = {{1500, MOEWE_DTYPE_BF16}, {40000, MOEWE_DTYPE_F32}};
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++)
        for (int i = 0; i < 2; i++) {
            moewe_device *dev = open_backend(list.name[b], 2);
            const variant v = {.name = "large batch"};
            moewe_config cfg = small_config();
            layer_case c;
            char *y, *few;
            rng r = {7};
            int32_t rows[64];
            layer_case some;

            cfg.hidden = 9;
            cfg.inter = 19;
            cfg.top_k = 2;
            cfg.y_dtype = table[i].y_dtype;
            cfg.shared_inter = 5;
            case_build(&c, &cfg, table[i].tokens, 0, 3);
            y = must_alloc(c.y_bytes, 1);
            case_run(dev, &c, NULL, 0, 1, y);
            for (int j = 0; j < 64; j++)
                rows[j] = j < 2 ? j * (table[i].tokens - 1) : rng_range(&r, 0, table[i].tokens - 1);
            same_rows(dev, &c, rows, 64, y, list.name[b], &v, "in a large batch");
            some = some_rows(&c, rows, 64); /* and they are right */
            few = must_alloc(some.y_bytes, 1);
            case_run(dev, &some, NULL, 0, 1, few);
            {
                tally t = {0};

                case_check(&some, few, &t, list.name[b]);
            }
            free(few);
            free(y);
            case_free(&some);
            case_free(&c);
            moewe_device_close(dev);
        }
}

/* ---- lanes, and runs at the same time ---- */

typedef struct worker {
    moewe_workspace *ws;
    const moewe_plan *plan;
    const layer_case *c;
    int32_t lane;
    char *y;
    moewe_status status;
    char message[256];
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    moewe_lane lane;
    moewe_io io = w->c->io;

    io.y = w->y;
    for (int i = 0; i < 4 && !w->status; i++) {
        memcpy(w->y, w->c->io.y, w->c->y_bytes);
        w->status = moewe_lane_acquire(w->ws, w->lane, &lane);
        if (w->status) break;
        fill_pattern(lane.span.ptr, lane.span.bytes, i % PATTERNS);
        w->status = moewe_run_lane(w->ws, &lane, w->plan, &w->c->w, &io, NULL);
        if (!w->status) w->status = moewe_lane_release(w->ws, &lane);
    }
    if (w->status) snprintf(w->message, sizeof w->message, "%s", moewe_last_error());
    return NULL;
}

static void check_lanes(const char *backend, const moewe_device *dev, layer_case *c, const variant *v, const char *want)
{
    enum { LANES = 3 };
    moewe_device *two = open_backend(backend, 2);
    moewe_workspace *ws;
    moewe_plan *plan;
    moewe_need need;
    moewe_span mem;
    pthread_t threads[LANES];
    worker workers[LANES];

    (void)dev;
    CHECK_OK(moewe_plan_create(two, &c->cfg, &plan));
    CHECK_OK(moewe_workspace_create(two, LANES, &ws));
    CHECK_OK(moewe_workspace_reserve(ws, plan));
    CHECK_OK(moewe_workspace_need(ws, &need));
    mem.bytes = need.bytes;
    mem.ptr = must_alloc(need.bytes, need.align);
    CHECK_OK(moewe_workspace_lock(ws, mem));
    for (int i = 0; i < LANES; i++) {
        workers[i] = (worker){.ws = ws, .plan = plan, .c = c, .lane = i, .y = must_alloc(c->y_bytes, 1)};
        if (pthread_create(&threads[i], NULL, work, &workers[i])) fail_msg("test: no thread");
    }
    for (int i = 0; i < LANES; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < LANES; i++) {
        CHECK(!workers[i].status, "%s: %s", moewe_status_name(workers[i].status), workers[i].message);
        same(c, want, workers[i].y, backend, v, "on lanes at once");
        free(workers[i].y);
    }
    CHECK_OK(moewe_workspace_unlock(ws));
    moewe_workspace_destroy(ws);
    moewe_plan_destroy(plan);
    moewe_device_close(two);
    free(mem.ptr);
}

static void lanes_at_once(void **state)
{
    (void)state;
    for_all(check_lanes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_workspace_held), cmocka_unit_test(every_limit),   cmocka_unit_test(any_batch),
        cmocka_unit_test(any_number_of_threads),   cmocka_unit_test(any_executor),  cmocka_unit_test(packed_or_plain),
        cmocka_unit_test(any_max_tokens),          cmocka_unit_test(lanes_at_once), cmocka_unit_test(large_batches),
    };

    return cmocka_run_group_tests_name("bits", tests, NULL, NULL);
}
