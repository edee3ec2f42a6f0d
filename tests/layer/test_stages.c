/* test_stages.c - owns the comparison of every CPU back end with the f64 oracle: stage by stage through the
 * regions of the workspace, and whole layers over all scores, acts, dtypes and options.  It must never hold a
 * tolerance of its own: bounds come from src/ref. */
#include "../support/layer_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SCORES = MOEWE_SCORE_GIVEN + 1, ACTS = MOEWE_ACT_GELU_TANH + 1 };

static const char *const score_names[] = {"softmax", "softmax_topk", "sigmoid", "sqrtsoftplus", "sparsemixer", "given"};

/* ---- stage by stage ---- */

static char *region(const moewe_plan *plan, const char *name, char *base, uint64_t least)
{
    moewe_region r;

    for (int32_t i = 0; !moewe_plan_region(plan, i, &r); i++)
        if (!strcmp(r.name, name)) {
            CHECK(r.bytes >= least, "region %s has %llu bytes, needs %llu", name, (unsigned long long)r.bytes,
                  (unsigned long long)least);
            return base + r.offset;
        }
    fail_msg("the plan has no region '%s'", name);
    return NULL;
}

typedef struct staged {
    layer_case c;
    moewe_plan *plan;
    moewe_span ws;
    char *y;
} staged;

static void stage(staged *s, moewe_stage first, moewe_stage last)
{
    moewe_io io = s->c.io;

    io.y = s->y;
    CHECK_OK(moewe_run_stages(s->plan, &s->c.w, &io, s->ws, NULL, first, last));
}

/* Ids as a set with the right weight each; slots may be in any order. */
static void check_routing(const staged *s, const ref_value *x, const int32_t *ids, const float *weights, int32_t token,
                          tally *t, const char *what)
{
    const moewe_config *cfg = &s->c.cfg;
    int32_t want[64], k = cfg->top_k;
    ref_value w[64], margin;
    ref_value *scratch = must_alloc(2 * (uint64_t)(cfg->n_experts + cfg->n_null) * sizeof *scratch, 8);

    ref_route(cfg, &s->c.w, &s->c.io, token, x, want, w, &margin, scratch);
    free(scratch);
    t->rows++;
    if (!(margin.v > margin.e)) {
        t->skipped++;
        return;
    }
    for (int32_t i = 0; i < k; i++) {
        int32_t at = 0;

        while (at < k && ids[at] != want[i]) at++;
        CHECK(at < k, "%s: token %d lacks expert %d", what, token, want[i]);
        CHECK(fabs(weights[at] - w[i].v) <= w[i].e, "%s: token %d expert %d has weight %.9g, needs %.9g within %.3g",
              what, token, want[i], (double)weights[at], w[i].v, w[i].e);
        if (w[i].e > 0.0) t->worst = fmax(t->worst, fabs(weights[at] - w[i].v) / w[i].e);
    }
}

/* After SORT: offsets counts pairs by expert, order lists pairs (token * top_k + slot) by expert, each once. */
static void check_order(const staged *s, const int32_t *ids, const int32_t *order, const int32_t *offsets,
                        const char *what)
{
    const moewe_config *cfg = &s->c.cfg;
    int32_t pairs = s->c.io.n_tokens * cfg->top_k, local = cfg->n_local;
    int32_t *count = must_alloc((uint64_t)local * sizeof *count, 4);
    char *seen = must_alloc((uint64_t)pairs, 1);

    memset(count, 0, (size_t)local * sizeof *count);
    memset(seen, 0, (size_t)pairs);
    for (int32_t p = 0; p < pairs; p++)
        if (ids[p] >= cfg->first_expert && ids[p] < cfg->first_expert + local) count[ids[p] - cfg->first_expert]++;
    assert_int_equal(offsets[0], 0);
    for (int32_t e = 0; e < local; e++) {
        CHECK(offsets[e + 1] - offsets[e] == count[e], "%s: expert %d has %d pairs, needs %d", what, e,
              offsets[e + 1] - offsets[e], count[e]);
        for (int32_t i = offsets[e]; i < offsets[e + 1]; i++) {
            CHECK(order[i] >= 0 && order[i] < pairs && !seen[order[i]], "%s: order[%d] is %d", what, i, order[i]);
            CHECK(ids[order[i]] == e + cfg->first_expert, "%s: order[%d] is of expert %d, needs %d", what, i,
                  ids[order[i]], e + cfg->first_expert);
            seen[order[i]] = 1;
        }
    }
    free(count);
    free(seen);
}

/* After GEMM1: row i of mid is the activated row of pair order[i]. */
static void check_mid(const staged *s, const int32_t *ids, const int32_t *order, const int32_t *offsets,
                      const char *mid, tally *t, const char *what)
{
    const moewe_config *cfg = &s->c.cfg;
    int32_t h = cfg->hidden, inter = cfg->inter, size = dtype_size(cfg->x_dtype);
    ref_value *x = must_alloc((uint64_t)h * sizeof *x, 8), *want = must_alloc((uint64_t)inter * sizeof *want, 8);
    ref_value *z = must_alloc((uint64_t)ref_width(cfg) * sizeof *z, 8);

    for (int32_t i = 0; i < offsets[cfg->n_local]; i++) {
        int32_t token = order[i] / cfg->top_k;

        for (int32_t j = 0; j < h; j++) {
            x[j].v = ref_load((const char *)s->c.io.x + token * case_x_stride(&s->c) + j * size, cfg->x_dtype);
            x[j].e = 0.0;
        }
        if (cfg->latent) ref_latent_in(cfg, &s->c.w, x, z);
        ref_gemm1(cfg, &s->c.w, ids[order[i]] - cfg->first_expert, cfg->latent ? z : x, want);
        t->rows++;
        for (int32_t j = 0; j < inter; j++) {
            double got = ref_load(mid + ((int64_t)i * inter + j) * size, cfg->x_dtype);

            CHECK(fabs(got - want[j].v) <= want[j].e,
                  "%s: mid[%d][%d] (token %d, expert %d) is %.9g, needs %.9g within %.3g", what, i, j, token,
                  ids[order[i]], got, want[j].v, want[j].e);
            t->worst = fmax(t->worst, fabs(got - want[j].v) / want[j].e);
        }
    }
    free(x);
    free(want);
    free(z);
}

static void one_by_one(const char *backend, int32_t x_dtype, int32_t score, int32_t act, tally *t)
{
    moewe_config cfg = small_config();
    moewe_device *dev = open_backend(backend, 2);
    int32_t n = 13, pairs, size = dtype_size(x_dtype);
    const int32_t *ids, *order, *offsets;
    const float *weights;
    const char *mid;
    char what[128];
    moewe_need need;
    unsigned with;
    staged s;

    snprintf(what, sizeof what, "%s %s act %d x %s", backend, score_names[score], act, moewe_dtype_name(x_dtype));
    cfg.x_dtype = x_dtype;
    cfg.score = score;
    cfg.act = act;
    if (score == MOEWE_SCORE_GIVEN) cfg.flags = 0;
    cfg.inter = 37;
    cfg.sparsemixer_eps = 0.3f;
    cfg.latent = act % 3 == 1 ? 21 : 0;
    cfg.logit_softcap = act % 4 == 3 ? 2.0f : 0.0f;
    with = WITH_BIAS1 | WITH_BIAS2 | WITH_LATENT_BIAS | WITH_EXPERT_SCALE;
    if (act % 5 == 4) with |= WITH_HASH;
    case_build(&s.c, &cfg, n, with, (uint64_t)(score * 100 + act));
    pairs = n * cfg.top_k;
    CHECK_OK(moewe_plan_create(dev, &s.c.cfg, &s.plan));
    CHECK_OK(moewe_plan_need(s.plan, &need));
    s.ws.bytes = need.bytes;
    s.ws.ptr = must_alloc(need.bytes, need.align);
    fill_pattern(s.ws.ptr, need.bytes, 2);
    s.y = must_alloc(s.c.y_bytes, 1);
    fill_pattern(s.y, s.c.y_bytes, 0);

    stage(&s, MOEWE_STAGE_ROUTE, MOEWE_STAGE_ROUTE);
    /* given ids and weights are read where the caller has them */
    ids = score == MOEWE_SCORE_GIVEN ? s.c.ids
                                     : (const int32_t *)(void *)region(s.plan, "ids", s.ws.ptr, (uint64_t)pairs * 4);
    weights = score == MOEWE_SCORE_GIVEN
                  ? NULL
                  : (const float *)(void *)region(s.plan, "weights", s.ws.ptr, (uint64_t)pairs * 4);
    for (int32_t token = 0; weights && token < n; token++) {
        ref_value x[64];

        for (int32_t j = 0; j < cfg.hidden; j++) {
            x[j].v = ref_load((const char *)s.c.io.x + token * case_x_stride(&s.c) + j * size, x_dtype);
            x[j].e = 0.0;
        }
        check_routing(&s, x, ids + token * cfg.top_k, weights + token * cfg.top_k, token, t, what);
    }
    stage(&s, MOEWE_STAGE_SORT, MOEWE_STAGE_SORT);
    order = (const int32_t *)(void *)region(s.plan, "order", s.ws.ptr, (uint64_t)pairs * 4);
    offsets = (const int32_t *)(void *)region(s.plan, "offsets", s.ws.ptr, (uint64_t)(cfg.n_experts + 1) * 4);
    check_order(&s, ids, order, offsets, what);
    stage(&s, MOEWE_STAGE_GEMM1, MOEWE_STAGE_GEMM1);
    mid = region(s.plan, "mid", s.ws.ptr, (uint64_t)pairs * (uint64_t)cfg.inter * (uint64_t)size);
    check_mid(&s, ids, order, offsets, mid, t, what);
    stage(&s, MOEWE_STAGE_GEMM2, MOEWE_STAGE_COMBINE);
    case_check(&s.c, s.y, t, what);
    free(s.ws.ptr);
    free(s.y);
    moewe_plan_destroy(s.plan);
    case_free(&s.c);
    moewe_device_close(dev);
}

static void every_stage(void **state)
{
    backend_list list = cpu_backends();
    tally t = {0};

    (void)state;
    for (int32_t b = 0; b < list.n; b++)
        for (int32_t score = 0; score <= MOEWE_SCORE_GIVEN; score++) {
            for (int32_t act = 0; act <= MOEWE_ACT_GELU_TANH; act++)
                one_by_one(list.name[b], act & 1 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32, score, act, &t);
            one_by_one(list.name[b], MOEWE_DTYPE_BF16, score, MOEWE_ACT_SWIGLU, &t);
        }
    tally_check(&t, "stages");
}

/* One weight of 1 and one column: GEMM1 is exact but for a rounding, so the activation is seen by itself, over the
 * range that matters and far outside. */
static void activations_alone(void **state)
{
    enum { TOKENS = 1200 };
    backend_list list = cpu_backends();
    static float x[TOKENS], y[TOKENS];
    static const float one = 1.0f;
    tally t = {0};

    (void)state;
    for (int i = 0; i < TOKENS; i++) {
        double at = (i - TOKENS / 2) / (TOKENS / 2.0);

        x[i] = (float)(i % 3 == 0 ? 100.0 * at : i % 3 == 1 ? 8.0 * at : at);
    }
    for (int32_t b = 0; b < list.n; b++)
        for (int32_t act = 0; act <= MOEWE_ACT_GELU_TANH; act++)
            for (int limit = 0; limit < 2; limit++) {
                moewe_device *dev = open_backend(list.name[b], 2);
                moewe_config cfg = small_config();
                moewe_matrix unit = {.data = &one, .dtype = MOEWE_DTYPE_F32};
                const int32_t *order;
                moewe_need need;
                const char *mid;
                char what[64];
                staged s = {0};

                snprintf(what, sizeof what, "%s act %d limit %d", list.name[b], act, limit);
                cfg.hidden = cfg.inter = cfg.n_experts = cfg.top_k = 1;
                cfg.act = act;
                cfg.act_limit = limit ? 7.0f : 0.0f;
                cfg.max_tokens = TOKENS;
                s.c.cfg = ref_defaults(&cfg);
                s.c.cfg.group_best = 0;
                MOEWE_INIT(s.c.w);
                MOEWE_INIT(s.c.io);
                s.c.w.up = s.c.w.down = s.c.w.router = unit;
                if (ref_gated(act)) s.c.w.gate = unit;
                s.c.io.n_tokens = TOKENS;
                s.c.io.x = x;
                s.y = (char *)y;
                CHECK_OK(moewe_plan_create(dev, &s.c.cfg, &s.plan));
                CHECK_OK(moewe_plan_need(s.plan, &need));
                s.ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
                stage(&s, MOEWE_STAGE_ROUTE, MOEWE_STAGE_GEMM1);
                order = (const int32_t *)(void *)region(s.plan, "order", s.ws.ptr, TOKENS * 4);
                mid = region(s.plan, "mid", s.ws.ptr, TOKENS * 4);
                for (int i = 0; i < TOKENS; i++) {
                    ref_value in = {x[order[i]], 0.0}, want;
                    double got = ref_load(mid + 4 * i, MOEWE_DTYPE_F32);

                    ref_gemm1(&s.c.cfg, &s.c.w, 0, &in, &want);
                    CHECK(fabs(got - want.v) <= want.e, "%s: of %.9g is %.9g, needs %.9g within %.3g", what, in.v, got,
                          want.v, want.e);
                    t.worst = fmax(t.worst, fabs(got - want.v) / want.e);
                    t.rows++;
                }
                free(s.ws.ptr);
                moewe_plan_destroy(s.plan);
                moewe_device_close(dev);
            }
    tally_check(&t, "activations");
}

/* Stages one at a time and moewe_run: the same bits. */
static void stages_equal_one_run(void **state)
{
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        moewe_config cfg = small_config();
        moewe_device *dev = open_backend(list.name[b], 2);
        moewe_need need;
        char *whole;
        staged s;

        cfg.shared_inter = 11;
        cfg.latent = 15;
        case_build(&s.c, &cfg, 9, WITH_SHARED_SCALE | WITH_Y_ADD | WITH_BIAS2 | WITH_LATENT_BIAS, 5);
        CHECK_OK(moewe_plan_create(dev, &s.c.cfg, &s.plan));
        CHECK_OK(moewe_plan_need(s.plan, &need));
        s.ws.bytes = need.bytes;
        s.ws.ptr = must_alloc(need.bytes, need.align);
        fill_pattern(s.ws.ptr, need.bytes, 1);
        s.y = must_alloc(s.c.y_bytes, 1);
        memcpy(s.y, s.c.io.y, s.c.y_bytes);
        for (int i = 0; i < MOEWE_STAGE_COUNT; i++) stage(&s, (moewe_stage)i, (moewe_stage)i);
        whole = must_alloc(s.c.y_bytes, 1);
        case_run(dev, &s.c, NULL, 0, 0, whole);
        assert_memory_equal(whole, s.y, s.c.y_bytes);
        free(whole);
        free(s.y);
        free(s.ws.ptr);
        moewe_plan_destroy(s.plan);
        case_free(&s.c);
        moewe_device_close(dev);
    }
}

static void stages_refuse_chunks(void **state)
{
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        moewe_config cfg = small_config();
        moewe_device *dev = open_backend(list.name[b], 1);
        moewe_need need, least;
        layer_case c;
        moewe_plan *plan;
        moewe_span ws;
        char *y;
        moewe_io io;

        cfg.max_tokens = 20000;
        case_build(&c, &cfg, 2, 0, 1);
        CHECK_OK(moewe_plan_floor(dev, &c.cfg, &least));
        c.cfg.workspace_limit = least.bytes;
        CHECK_OK(moewe_plan_create(dev, &c.cfg, &plan));
        CHECK_OK(moewe_plan_need(plan, &need));
        ws.bytes = need.bytes;
        ws.ptr = must_alloc(need.bytes, need.align);
        y = must_alloc(c.y_bytes, 1);
        io = c.io;
        io.y = y;
        assert_int_equal(moewe_run_stages(plan, &c.w, &io, ws, NULL, MOEWE_STAGE_ROUTE, MOEWE_STAGE_ROUTE),
                         MOEWE_E_UNSUPPORTED);
        free(y);
        free(ws.ptr);
        moewe_plan_destroy(plan);
        case_free(&c);
        moewe_device_close(dev);
    }
}

/* ---- whole layers ---- */

static moewe_config random_config(rng *r, int32_t score, int32_t act, unsigned *with)
{
    moewe_config cfg = small_config();

    cfg.hidden = rng_range(r, 1, 70);
    cfg.inter = rng_range(r, 1, 50);
    cfg.score = score;
    cfg.act = act;
    cfg.flags = (uint32_t)rng_range(r, 0, 3);
    cfg.n_experts = rng_range(r, 1, 12);
    cfg.n_null = rng_range(r, 0, 3) ? 0 : rng_range(r, 1, 3);
    cfg.act_limit = rng_range(r, 0, 1) ? 0.0f : 0.8f;
    cfg.act_beta = (float)rng_real(r);
    cfg.routed_scale = rng_range(r, 0, 1) ? 0.0f : 2.5f;
    cfg.shared_inter = rng_range(r, 0, 1) ? 0 : rng_range(r, 1, 40);
    cfg.shared_limit = rng_range(r, 0, 1) ? 0.0f : 0.6f;
    cfg.shared_scale = rng_range(r, 0, 1) ? 0.0f : -0.5f;
    cfg.latent = rng_range(r, 0, 2) ? 0 : rng_range(r, 1, 90);
    cfg.logit_softcap = rng_range(r, 0, 2) ? 0.0f : 3.0f;
    cfg.sparsemixer_eps = 0.25f;
    cfg.renorm_eps = rng_range(r, 0, 2) ? 0.0f : 0.125f;
    cfg.renorm_floor = rng_range(r, 0, 3) ? 0.0f : 0.75f;
    if (score == MOEWE_SCORE_GIVEN)
        cfg.flags &= ~(uint32_t)MOEWE_FLAG_RENORMALIZE;
    else if (score != MOEWE_SCORE_SPARSEMIXER && rng_range(r, 0, 2) == 0) {
        cfg.n_null = 0;
        cfg.n_experts = 12;
        cfg.n_group = 4;
        cfg.top_group = rng_range(r, 1, 4);
        cfg.group_best = rng_range(r, 0, 3);
    }
    cfg.top_k = rng_range(r, 1, cfg.n_group ? 3 * cfg.top_group : cfg.n_experts + cfg.n_null);
    if (cfg.top_k > 6) cfg.top_k = 6;
    if (rng_range(r, 0, 2) == 0) {
        cfg.first_expert = rng_range(r, 0, cfg.n_experts - 1);
        cfg.n_local = rng_range(r, 0, cfg.n_experts - cfg.first_expert);
    }
    cfg.max_tokens = rng_range(r, 4, 30);
    *with = (unsigned)rng_next(r) & WITH_EVERYTHING;
    if (rng_range(r, 0, 1)) *with &= ~(unsigned)WITH_HASH; /* a table leaves the choice untested */
    return cfg;
}

static void whole_layers(void **state)
{
    backend_list list = cpu_backends();
    moewe_device *dev[BACKENDS_MAX];
    tally t[BACKENDS_MAX] = {0};
    rng r = {2024};

    (void)state;
    for (int32_t b = 0; b < list.n; b++) dev[b] = open_backend(list.name[b], 2);
    for (int32_t i = 0; i < SCORES * ACTS * 2 * 3 * 2; i++) {
        int32_t score = i % SCORES, act = i / SCORES % ACTS;
        unsigned with;
        moewe_config cfg = random_config(&r, score, act, &with);
        layer_case c;
        char *y;

        cfg.x_dtype = i / (SCORES * ACTS) % 2 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32;
        cfg.w_dtype = 1 + i / (SCORES * ACTS * 2) % 3;
        cfg.y_dtype = i / (SCORES * ACTS * 6) % 2 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32;
        case_build(&c, &cfg, 4, with, (uint64_t)i);
        y = must_alloc(c.y_bytes, 1);
        for (int32_t b = 0; b < list.n; b++) {
            char what[256];

            snprintf(what, sizeof what,
                     "%s case %d (%s act %d x %s w %s y %s flags %u with 0x%x groups %d null %d local %d+%d h %d i %d "
                     "latent %d)",
                     list.name[b], i, score_names[score], act, moewe_dtype_name(cfg.x_dtype),
                     moewe_dtype_name(cfg.w_dtype), moewe_dtype_name(cfg.y_dtype), cfg.flags, with, cfg.n_group,
                     cfg.n_null, cfg.first_expert, cfg.n_local, cfg.hidden, cfg.inter, cfg.latent);
            case_run(dev[b], &c, NULL, 0, i % PATTERNS, y);
            case_check(&c, y, &t[b], what);
        }
        free(y);
        case_free(&c);
    }
    for (int32_t b = 0; b < list.n; b++) {
        tally_check(&t[b], list.name[b]);
        moewe_device_close(dev[b]);
    }
}

/* Wide enough to run through full tiles, and their remainders, of any kernel. */
static void larger_layers(void **state)
{
    static const struct {
        int32_t hidden, inter, n_experts, top_k, tokens, x_dtype, w_dtype;
    } table[] = {
        {256, 192, 8, 2, 70, MOEWE_DTYPE_F32, MOEWE_DTYPE_F32},
        {320, 128, 4, 2, 130, MOEWE_DTYPE_BF16, MOEWE_DTYPE_BF16},
        {257, 129, 8, 2, 40, MOEWE_DTYPE_F32, MOEWE_DTYPE_BF16},
        {511, 65, 16, 4, 33, MOEWE_DTYPE_BF16, MOEWE_DTYPE_F16},
        {128, 300, 512, 32, 6, MOEWE_DTYPE_F32, MOEWE_DTYPE_BF16},
        {1030, 70, 3, 1, 17, MOEWE_DTYPE_BF16, MOEWE_DTYPE_F32},
    };
    backend_list list = cpu_backends();

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        moewe_config cfg = small_config();
        layer_case c;
        char *y;

        cfg.hidden = table[i].hidden;
        cfg.inter = table[i].inter;
        cfg.n_experts = table[i].n_experts;
        cfg.top_k = table[i].top_k;
        cfg.x_dtype = table[i].x_dtype;
        cfg.w_dtype = table[i].w_dtype;
        case_build(&c, &cfg, table[i].tokens, 0, 77 + i);
        y = must_alloc(c.y_bytes, 1);
        for (int32_t b = 0; b < list.n; b++) {
            moewe_device *dev = open_backend(list.name[b], 2);
            int32_t tokens = c.io.n_tokens;
            char what[64];
            tally t = {0};

            snprintf(what, sizeof what, "%s large case %zu", list.name[b], i);
            case_run(dev, &c, NULL, 0, 2, y);
            c.io.n_tokens = 4; /* the oracle is slow: the first rows, and bits tests tie the others to them */
            case_check(&c, y, &t, what);
            c.io.n_tokens = tokens;
            CHECK(t.skipped < t.rows, "%s: only near ties", what);
            moewe_device_close(dev);
        }
        free(y);
        case_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage),          cmocka_unit_test(activations_alone),
        cmocka_unit_test(stages_equal_one_run), cmocka_unit_test(stages_refuse_chunks),
        cmocka_unit_test(whole_layers),         cmocka_unit_test(larger_layers),
    };

    return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
