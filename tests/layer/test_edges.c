/* test_edges.c - owns the edges of the domain: no tokens, lone experts, ids that mean nothing, NaN rows,
 * ties, masks.  It must never skip an edge because a back end dislikes it. */
#include "../support/layer_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 65536 }; /* a multiple of any page */

/* ---- tokens ---- */

static void edge_no_tokens(const char *backend, const moewe_device *dev)
{
    moewe_config cfg = small_config();
    layer_case c;
    moewe_io io;
    moewe_plan *plan;
    moewe_need need;
    moewe_span ws;
    float guard = 3.0f;

    cfg.shared_inter = 5;
    case_build(&c, &cfg, 1, 0, 1);
    CHECK_OK(moewe_plan_create(dev, &c.cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    io = c.io;
    io.n_tokens = 0;
    io.y = &guard;
    CHECK_OK(moewe_run(plan, &c.w, &io, ws, NULL));
    assert_true(guard == 3.0f);
    io.x = NULL;
    io.y = NULL;
    CHECK_OK(moewe_run(plan, &c.w, &io, ws, NULL));
    free(ws.ptr);
    moewe_plan_destroy(plan);
    case_free(&c);
    (void)backend;
}

static void no_tokens(void **state)
{
    (void)state;
    on_every_backend(edge_no_tokens);
}

/* n_valid rows are as in a full run, the others untouched. */
static void edge_n_valid(const char *backend, const moewe_device *dev)
{
    for (int32_t y_dtype = MOEWE_DTYPE_F32; y_dtype <= MOEWE_DTYPE_BF16; y_dtype += 2)
        for (int strides = 0; strides < 2; strides++) {
            static const int32_t counts[] = {0, 1, 5, 12, 13, -3, 99};
            moewe_config cfg = small_config();
            char *want, *y;
            layer_case c;
            int64_t ys;
            int32_t row;

            cfg.y_dtype = y_dtype;
            cfg.max_tokens = 40;
            cfg.shared_inter = 9;
            case_build(&c, &cfg, 13, WITH_BIAS1 | (strides ? WITH_STRIDES : 0u), 8);
            ys = case_y_stride(&c);
            row = c.cfg.hidden * dtype_size(y_dtype);
            want = must_alloc(c.y_bytes, 1);
            y = must_alloc(c.y_bytes, 1);
            case_run(dev, &c, NULL, 0, 0, want);
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                int32_t valid = counts[i], rows = valid < 0 ? 0 : valid > 13 ? 13 : valid;

                c.io.n_valid = &valid;
                case_run(dev, &c, NULL, 0, 2, y);
                for (int32_t t = 0; t < 13; t++)
                    CHECK(!memcmp(y + t * ys, (t < rows ? want : (const char *)c.io.y) + t * ys, (size_t)row),
                          "%s: row %d with n_valid %d", backend, t, valid);
                c.io.n_valid = NULL;
            }
            free(want);
            free(y);
            case_free(&c);
        }
}

static void n_valid(void **state)
{
    (void)state;
    on_every_backend(edge_n_valid);
}

/* Rows past n_valid are not read: here they lie in a page that may not be. */
static void edge_n_valid_reads_nothing(const char *backend, const moewe_device *dev)
{
    moewe_config cfg = small_config();
    int32_t valid = 3, row;
    char *x, *y, *want, *pages;
    layer_case c;

    case_build(&c, &cfg, 13, 0, 8);
    row = c.cfg.hidden * 4;
    want = must_alloc(c.y_bytes, 1);
    case_run(dev, &c, NULL, 0, 0, want);
    pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && !mprotect(pages + PAGE, 2 * PAGE, PROT_NONE), "test: no pages");
    x = pages + PAGE - 3 * row;
    y = must_alloc((uint64_t)(13 * row), 4);
    memcpy(x, c.io.x, (size_t)(3 * row));
    c.io.x = x;
    c.io.n_valid = &valid;
    case_run(dev, &c, NULL, 0, 0, y);
    CHECK(!memcmp(y, want, (size_t)(3 * row)), "%s: valid rows differ", backend);
    munmap(pages, 3 * PAGE);
    free(y);
    free(want);
    case_free(&c);
}

static void n_valid_reads_nothing(void **state)
{
    (void)state;
    on_every_backend(edge_n_valid_reads_nothing);
}

/* ---- ids ---- */

static void edge_given_ids(const char *backend, const moewe_device *dev)
{
    static const int32_t table[][3] = {
        {0, 1, 2}, {7, 7, 7},    {3, 3, 1},         {-1, -1, -1},          {-1, 4, -1},
        {9, 8, 0}, {10, 11, 12}, {INT32_MIN, 5, 2}, {INT32_MAX, 5, 2},     {INT32_MIN, INT32_MAX, -2},
        {2, 1, 0}, {9, 9, 3},    {1 << 16, 6, 6},   {INT32_MAX - 1, 0, 0}, {8, 8, 8},
    };
    enum { ROWS = sizeof table / sizeof table[0] };

    for (int on_input = 0; on_input < 2; on_input++) {
        moewe_config cfg = small_config();
        layer_case c;

        cfg.score = MOEWE_SCORE_GIVEN;
        cfg.flags = on_input ? (uint32_t)MOEWE_FLAG_WEIGHT_ON_INPUT : 0;
        cfg.n_null = 2; /* ids 8 and 9 */
        cfg.routed_scale = 1.5f;
        case_build(&c, &cfg, ROWS, WITH_BIAS1 | WITH_BIAS2, 21);
        memcpy(c.ids, table, sizeof table);
        check_run(backend, dev, &c, "given ids");
        case_free(&c);
    }
}

static void given_ids(void **state)
{
    (void)state;
    on_every_backend(edge_given_ids);
}

/* No expert at all: y is exactly 0, or exactly what it was. */
static void edge_no_expert(const char *backend, const moewe_device *dev)
{
    for (int add = 0; add < 2; add++)
        for (int32_t y_dtype = MOEWE_DTYPE_F32; y_dtype <= MOEWE_DTYPE_BF16; y_dtype += 2) {
            moewe_config cfg = small_config();
            layer_case c;
            char *y;

            cfg.score = MOEWE_SCORE_GIVEN;
            cfg.flags = 0;
            cfg.y_dtype = y_dtype;
            case_build(&c, &cfg, 4, add ? WITH_Y_ADD : 0u, 22);
            for (int i = 0; i < 12; i++) c.ids[i] = -1 - i;
            y = must_alloc(c.y_bytes, 1);
            case_run(dev, &c, NULL, 0, 1, y);
            for (uint64_t i = 0; i < c.y_bytes; i++)
                CHECK(y[i] == (add ? ((char *)c.io.y)[i] : 0), "%s: y is written by experts that are not there",
                      backend);
            free(y);
            case_free(&c);
        }
}

static void no_expert(void **state)
{
    (void)state;
    on_every_backend(edge_no_expert);
}

/* All tokens on one expert, first to last; every other expert's weights are NaN and may not be felt. */
static void edge_one_expert(const char *backend, const moewe_device *dev)
{
    for (int32_t e = 0; e < 8; e++) {
        moewe_config cfg = small_config();
        float *logits, *gate, *up, *down;
        layer_case c;
        int64_t each = 40 * 24;

        cfg.top_k = 1;
        case_build(&c, &cfg, 50, WITH_LOGITS, (uint64_t)e);
        logits = (float *)(uintptr_t)c.io.logits;
        for (int64_t i = 0; i < 50 * 8; i++) logits[i] = i % 8 == e ? 1.0f : -1.0f;
        gate = (float *)(uintptr_t)c.w.gate.data;
        up = (float *)(uintptr_t)c.w.up.data;
        down = (float *)(uintptr_t)c.w.down.data;
        for (int64_t i = 0; i < 8 * each; i++)
            if (i / each != e) gate[i] = up[i] = down[i] = NAN;
        c.io.n_tokens = 50;
        check_run(backend, dev, &c, "one expert for all tokens");
        case_free(&c);
    }
}

static void one_expert(void **state)
{
    (void)state;
    on_every_backend(edge_one_expert);
}

/* Equal scores: the lowest id, whatever the score. */
static void edge_ties(const char *backend, const moewe_device *dev)
{
    static const int32_t scores[] = {MOEWE_SCORE_SOFTMAX, MOEWE_SCORE_SOFTMAX_TOPK, MOEWE_SCORE_SIGMOID,
                                     MOEWE_SCORE_SQRTSOFTPLUS};

    for (size_t s = 0; s < 4; s++)
        for (int groups = 0; groups < 2; groups++) {
            moewe_config cfg = small_config(), given;
            layer_case c, g;
            float *logits;
            char *y, *want;

            cfg.score = scores[s];
            if (groups) {
                cfg.n_group = 4;
                cfg.top_group = 2;
                cfg.group_best = 1;
            }
            case_build(&c, &cfg, 2, WITH_LOGITS, 5);
            logits = (float *)(uintptr_t)c.io.logits;
            for (int i = 0; i < 16; i++) logits[i] = 0.75f; /* all equal: 0 1 2 */
            logits[8 + 5] = 2.0f; /* 5, then 0 1; in groups of two: 5, then of {0 1} {4 5}: 0 1 */
            /* the same by given ids: the weights are equal thirds, or what the score makes of 2 and 0.75 */
            given = cfg;
            given.score = MOEWE_SCORE_GIVEN;
            given.flags = 0;
            given.n_group = given.top_group = given.group_best = 0;
            case_build(&g, &given, 2, 0, 5);
            {
                static const int32_t ids[6] = {0, 1, 2, 5, 0, 1};
                double a, b;

                memcpy(g.ids, ids, sizeof ids);
                for (int i = 0; i < 3; i++) g.given[i] = (float)(1.0 / 3.0);
                switch (scores[s]) {
                case MOEWE_SCORE_SIGMOID:
                    a = 1.0 / (1.0 + exp(-2.0)), b = 1.0 / (1.0 + exp(-0.75));
                    break;
                case MOEWE_SCORE_SQRTSOFTPLUS:
                    a = sqrt(log1p(exp(2.0))), b = sqrt(log1p(exp(0.75)));
                    break;
                default:
                    a = exp(2.0), b = exp(0.75);
                    break;
                }
                g.given[3] = (float)(a / (a + 2.0 * b));
                g.given[4] = g.given[5] = (float)(b / (a + 2.0 * b));
            }
            g.w.gate = c.w.gate;
            g.w.up = c.w.up;
            g.w.down = c.w.down;
            g.io.x = c.io.x;
            y = must_alloc(c.y_bytes, 1);
            want = must_alloc(c.y_bytes, 1);
            case_run(dev, &c, NULL, 0, 2, y);
            case_run(dev, &g, NULL, 0, 2, want);
            for (int i = 0; i < 80; i++) {
                double have = ref_load(y + 4 * i, MOEWE_DTYPE_F32), need = ref_load(want + 4 * i, MOEWE_DTYPE_F32);

                /* the same sums but for weights that differ by a few roundings */
                CHECK(fabs(have - need) <= ref_error_bound(64.0, 20.0), "%s score %d groups %d: y[%d] %.9g, needs %.9g",
                      backend, scores[s], groups, i, have, need);
            }
            free(y);
            free(want);
            case_free(&c);
            case_free(&g);
        }
}

static void ties(void **state)
{
    (void)state;
    on_every_backend(edge_ties);
}

/* Masked experts (logits of -Inf) weigh exactly 0, and when all are masked renormalising leaves 0. */
static void edge_masks(const char *backend, const moewe_device *dev)
{
    static const int32_t scores[] = {MOEWE_SCORE_SOFTMAX, MOEWE_SCORE_SOFTMAX_TOPK, MOEWE_SCORE_SIGMOID,
                                     MOEWE_SCORE_SQRTSOFTPLUS};

    for (size_t s = 0; s < 4; s++) {
        moewe_config cfg = small_config(), given;
        layer_case c, g;
        float *logits;
        char *y, *want;

        cfg.score = scores[s];
        case_build(&c, &cfg, 2, WITH_LOGITS | WITH_BIAS2, 5);
        logits = (float *)(uintptr_t)c.io.logits;
        for (int i = 0; i < 16; i++) logits[i] = -INFINITY;
        logits[4] = 1.5f;  /* row 0: expert 4 alone */
        logits[12] = 1.5f; /* row 1 too, or nothing at all where scores do not need a sum over all experts */
        if (scores[s] == MOEWE_SCORE_SIGMOID || scores[s] == MOEWE_SCORE_SQRTSOFTPLUS) logits[12] = -INFINITY;
        given = cfg;
        given.score = MOEWE_SCORE_GIVEN;
        given.flags = 0;
        case_build(&g, &given, 2, WITH_BIAS2, 5);
        for (int i = 0; i < 6; i++) {
            g.ids[i] = i % 3 ? -1 : 4;
            g.given[i] = 1.0f;
        }
        if (isinf(logits[12])) g.ids[3] = -1;
        g.w = c.w;
        g.io.x = c.io.x;
        y = must_alloc(c.y_bytes, 1);
        want = must_alloc(c.y_bytes, 1);
        case_run(dev, &c, NULL, 0, 2, y);
        case_run(dev, &g, NULL, 0, 2, want);
        for (int i = 0; i < 80; i++) {
            double have = ref_load(y + 4 * i, MOEWE_DTYPE_F32), need = ref_load(want + 4 * i, MOEWE_DTYPE_F32);

            CHECK(have == need, "%s score %d: y[%d] is %.9g, needs %.9g", backend, scores[s], i, have, need);
        }
        free(y);
        free(want);
        case_free(&c);
        case_free(&g);
    }
}

static void masks(void **state)
{
    (void)state;
    on_every_backend(edge_masks);
}

/* ---- tables of ids ---- */

/* The ids of a table, the weights of the scores: as when the caller passes both, whatever the table says. */
static void edge_hash(const char *backend, const moewe_device *dev)
{
    static const int32_t table[5][3] = {{4, 0, 7}, {2, 2, 2}, {-1, 5, 8}, {3, 3, INT32_MAX}, {INT32_MIN, 99, -2}};
    static const int32_t tokens[9] = {0, 4, -1, 3, 5, 1, INT32_MIN, INT32_MAX, 2};

    for (int32_t score = 0; score <= MOEWE_SCORE_SQRTSOFTPLUS; score++)
        for (int renormalize = 0; renormalize < 2; renormalize++) {
            moewe_config cfg = small_config();
            char what[64], *y;
            layer_case c;

            snprintf(what, sizeof what, "hashed, score %d flags %d", score, renormalize);
            cfg.score = score;
            cfg.flags = renormalize ? (uint32_t)MOEWE_FLAG_RENORMALIZE : 0;
            cfg.shared_inter = 0;
            case_build(&c, &cfg, 9, WITH_HASH | WITH_LOGITS, 3);
            c.w.hash_ids = table[0];
            c.w.hash_rows = 5;
            memcpy(c.tokens, tokens, sizeof tokens);
            check_run(backend, dev, &c, what);
            y = must_alloc(c.y_bytes, 4);
            case_run(dev, &c, NULL, 0, 2, y);
            for (int t = 0; t < 9; t++)
                for (int i = 0; i < 40 * 4; i++)
                    CHECK((tokens[t] >= 0 && tokens[t] < 4) || y[t * 160 + i] == 0,
                          "%s: token id %d has no expert and row %d is not 0", backend, tokens[t], t);
            free(y);
            case_free(&c);
        }
}

static void hash(void **state)
{
    (void)state;
    on_every_backend(edge_hash);
}

/* Latent experts whose token has none: latent_out's bias is all there is, with identity experts on latent rows. */
static void edge_latent_ids(const char *backend, const moewe_device *dev)
{
    static const int32_t ids[5][3] = {{-1, -1, -1}, {8, 9, 8}, {7, 7, 7}, {10, 0, -1}, {9, 2, 9}};

    for (int32_t latent = 1; latent < 100; latent += 49) {
        moewe_config cfg = small_config();
        char *y;
        layer_case c;

        cfg.score = MOEWE_SCORE_GIVEN;
        cfg.flags = 0;
        cfg.n_null = 2;
        cfg.latent = latent;
        case_build(&c, &cfg, 5, WITH_LATENT_BIAS | WITH_EXPERT_SCALE, 4);
        memcpy(c.ids, ids, sizeof ids);
        check_run(backend, dev, &c, "latent ids");
        y = must_alloc(c.y_bytes, 4);
        case_run(dev, &c, NULL, 0, 2, y);
        CHECK(!memcmp(y, c.w.latent_out.bias, 160), "%s: a token without experts is not the bias of latent_out",
              backend);
        free(y);
        case_free(&c);
    }
}

static void latent_ids(void **state)
{
    (void)state;
    on_every_backend(edge_latent_ids);
}

/* ---- NaN and Inf ---- */

/* A logit that is no number is never chosen before one that is, has no share, and harms nobody; a row without any
 * number weighs 0. */
static void edge_bad_logits(const char *backend, const moewe_device *dev)
{
    static const double poison[] = {NAN, -INFINITY};

    for (int32_t score = 0; score <= MOEWE_SCORE_SPARSEMIXER; score++)
        for (int p = 0; p < 2; p++)
            for (int good = 0; good <= 4; good++) {
                moewe_config cfg = small_config();
                float *logits;
                layer_case c;
                char *y;

                cfg.score = score;
                cfg.sparsemixer_eps = 10.0f; /* everybody in play */
                case_build(&c, &cfg, 3, WITH_LOGITS, 5);
                logits = (float *)(uintptr_t)c.io.logits;
                for (int i = good; i < 8; i++) logits[8 + (i * 3 + 1) % 8] = (float)poison[p];
                y = must_alloc(c.y_bytes, 4);
                case_run(dev, &c, NULL, 0, 2, y);
                for (int i = 0; i < 120; i++)
                    CHECK(isfinite(ref_load(y + 4 * i, MOEWE_DTYPE_F32)),
                          "%s score %d: %d good logits, y[%d] is not finite", backend, score, good, i);
                for (int i = 0; good == 0 && i < 160; i++)
                    CHECK(y[160 + i] == 0, "%s score %d: no good logit, and y is not 0", backend, score);
                for (int i = 0; i < 8; i++) /* what the oracle reads as masked */
                    if (isnan(logits[8 + i])) logits[8 + i] = -INFINITY;
                c.io.n_tokens = good ? 3 : 1;
                if (good >= 3) { /* otherwise masked experts are chosen, all with weight 0: no choice to compare */
                    tally t = {0};

                    case_check(&c, y, &t, "bad logits");
                }
                c.io.n_tokens = 3;
                free(y);
                case_free(&c);
            }
}

static void bad_logits(void **state)
{
    (void)state;
    on_every_backend(edge_bad_logits);
}

/* Scores that saturate in f32 do not tie: the logits decide, unless a bias or groups ask for scores. */
static void edge_saturated(const char *backend, const moewe_device *dev)
{
    static const int32_t scores[] = {MOEWE_SCORE_SOFTMAX, MOEWE_SCORE_SOFTMAX_TOPK, MOEWE_SCORE_SIGMOID,
                                     MOEWE_SCORE_SQRTSOFTPLUS};

    for (size_t s = 0; s < 4; s++)
        for (int sign = -1; sign <= 1; sign += 2) {
            moewe_config cfg = small_config();
            float *logits;
            layer_case c;
            tally t = {0};
            char *y;

            cfg.score = scores[s];
            case_build(&c, &cfg, 1, WITH_LOGITS, 5);
            logits = (float *)(uintptr_t)c.io.logits;
            /* sigmoid is 1 to the last bit from 17 on, and softmax 0 from 104 below the largest */
            for (int i = 0; i < 8; i++) logits[i] = sign > 0 ? 30.0f + 2.0f * (float)i : -150.0f + 5.0f * (float)i;
            if (sign < 0) logits[0] = 0.0f;
            y = must_alloc(c.y_bytes, 4);
            case_run(dev, &c, NULL, 0, 2, y);
            case_check(&c, y, &t, "saturated scores");
            CHECK(t.skipped == 0, "%s: the case is a tie", backend);
            free(y);
            case_free(&c);
        }
}

static void saturated(void **state)
{
    (void)state;
    on_every_backend(edge_saturated);
}

static void edge_bad_rows(const char *backend, const moewe_device *dev)
{
    static const double poison[] = {NAN, INFINITY, -INFINITY};

    for (int32_t x_dtype = MOEWE_DTYPE_F32; x_dtype <= MOEWE_DTYPE_BF16; x_dtype += 2)
        for (int32_t w_dtype = MOEWE_DTYPE_F32; w_dtype <= MOEWE_DTYPE_BF16; w_dtype++)
            for (int p = 0; p < 3; p++) {
                moewe_config cfg = small_config();
                int32_t size = dtype_size(x_dtype), row;
                char *want, *y;
                layer_case c;

                cfg.x_dtype = x_dtype;
                cfg.w_dtype = w_dtype;
                cfg.shared_inter = p == 0 ? 7 : 0;
                cfg.score = p == 1 ? MOEWE_SCORE_SIGMOID : MOEWE_SCORE_SOFTMAX;
                case_build(&c, &cfg, 20, 0, 9);
                row = c.cfg.hidden * size;
                want = must_alloc(c.y_bytes, 1);
                y = must_alloc(c.y_bytes, 1);
                case_run(dev, &c, NULL, 0, 0, want);
                for (int32_t t = 0; t < 20; t += 3) /* one element of every third row */
                    store((char *)(uintptr_t)c.io.x + t * row + (t % c.cfg.hidden) * size, x_dtype, poison[p]);
                case_run(dev, &c, NULL, 0, 0, y);
                for (int32_t t = 0; t < 20; t++) {
                    int32_t finite = 0;

                    if (t % 3) {
                        CHECK(!memcmp(want + t * row, y + t * row, (size_t)row),
                              "%s x %d w %d poison %d: row %d has other bits", backend, x_dtype, w_dtype, p, t);
                        continue;
                    }
                    for (int32_t i = 0; i < c.cfg.hidden; i++)
                        finite += isfinite(ref_load(y + t * row + i * size, x_dtype)) != 0;
                    if (p == 0)
                        CHECK(finite == 0, "%s: row %d of a NaN has %d finite elements", backend, t, finite);
                    else
                        CHECK(finite < c.cfg.hidden, "%s: row %d of an Inf is finite", backend, t);
                }
                free(want);
                free(y);
                case_free(&c);
            }
}

static void bad_rows(void **state)
{
    (void)state;
    on_every_backend(edge_bad_rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_tokens), cmocka_unit_test(n_valid),    cmocka_unit_test(n_valid_reads_nothing),
        cmocka_unit_test(given_ids), cmocka_unit_test(no_expert),  cmocka_unit_test(one_expert),
        cmocka_unit_test(ties),      cmocka_unit_test(masks),      cmocka_unit_test(bad_rows),
        cmocka_unit_test(hash),      cmocka_unit_test(latent_ids), cmocka_unit_test(bad_logits),
        cmocka_unit_test(saturated),
    };

    return cmocka_run_group_tests_name("edges", tests, NULL, NULL);
}
