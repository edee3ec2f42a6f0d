/* case_route.c - owns the cases of kind routing, and those of input_edge that are about logits.  Weights are read from
 * y itself: expert e answers the unit vector e.  It must never compute an expected weight with the library. */
#include "accident.h"

#include <math.h>
#include <string.h>

/* hidden = experts + identity + shared columns.  y[e] is the weight of expert e; the identity experts share the column
 * after them, the shared expert has the last. */
typedef struct probe {
    moewe_config cfg;
    moewe_weights w;
    const void **zeros;
    float *zero, *units, *shared_unit, *x, *y;
    int32_t *ids; /* as the region of that name has them */
    int32_t tokens;
} probe;

static void probe_up(probe *p, int32_t experts, int32_t null, int32_t shared, int32_t top_k, int32_t tokens)
{
    int32_t h = experts + 2;

    memset(p, 0, sizeof *p);
    MOEWE_INIT(p->cfg);
    p->cfg.hidden = h;
    p->cfg.inter = 1;
    p->cfg.n_experts = experts;
    p->cfg.n_null = null;
    p->cfg.shared_inter = shared ? 1 : 0;
    p->cfg.top_k = top_k;
    p->cfg.max_tokens = p->tokens = tokens;
    p->cfg.act = MOEWE_ACT_RELU;
    p->zero = must_alloc((uint64_t)h * 4, 4);
    p->zeros = must_alloc((uint64_t)experts * sizeof *p->zeros, 8);
    p->units = must_alloc((uint64_t)experts * (uint64_t)h * 4, 4);
    p->shared_unit = must_alloc((uint64_t)h * 4, 4);
    p->x = must_alloc((uint64_t)tokens * (uint64_t)h * 4, 4);
    p->y = must_alloc((uint64_t)tokens * (uint64_t)h * 4, 4);
    p->ids = must_alloc((uint64_t)tokens * (uint64_t)top_k * 4, 4);
    memset(p->zero, 0, (size_t)h * 4);
    memset(p->units, 0, (size_t)experts * (size_t)h * 4);
    memset(p->shared_unit, 0, (size_t)h * 4);
    memset(p->x, 0, (size_t)tokens * (size_t)h * 4);
    for (int32_t e = 0; e < experts; e++) {
        p->zeros[e] = p->zero;
        p->units[(int64_t)e * h + e] = 1.0f;
    }
    for (int32_t t = 0; t < tokens; t++) p->x[(int64_t)t * h + experts] = 1.0f;
    p->shared_unit[experts + 1] = 1.0f;
    MOEWE_INIT(p->w);
    p->w.up = (moewe_matrix){.experts = p->zeros, .dtype = MOEWE_DTYPE_F32};
    p->w.down = (moewe_matrix){.experts = p->zeros, .dtype = MOEWE_DTYPE_F32, .bias = p->units};
    if (shared) {
        p->w.shared_up = (moewe_matrix){.data = p->zero, .dtype = MOEWE_DTYPE_F32};
        p->w.shared_down = (moewe_matrix){.data = p->zero, .dtype = MOEWE_DTYPE_F32, .bias = p->shared_unit};
    }
}

static void probe_down(probe *p)
{
    void *const all[] = {p->zero, p->zeros, p->units, p->shared_unit, p->x, p->y, p->ids};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static float at(const probe *p, int32_t token, int32_t column)
{
    return p->y[(int64_t)token * p->cfg.hidden + column];
}

/* Runs, and keeps the chosen ids from the region that holds them. */
static void route(const accident *a, probe *p, const float *logits)
{
    moewe_plan *plan;
    moewe_need need;
    moewe_region r;
    moewe_span ws;
    moewe_io io;
    int found = 0;

    MOEWE_INIT(io);
    io.n_tokens = p->tokens;
    io.x = p->x;
    io.y = p->y;
    io.logits = logits;
    CHECK_OK(moewe_plan_create(a->dev, &p->cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    fill_pattern(ws.ptr, ws.bytes, 3);
    CHECK_OK(moewe_run_stages(plan, &p->w, &io, ws, NULL, MOEWE_STAGE_ROUTE, MOEWE_STAGE_ROUTE));
    for (int32_t i = 0; i < moewe_plan_region_count(plan); i++) {
        CHECK_OK(moewe_plan_region(plan, i, &r));
        if (strcmp(r.name, "ids")) continue;
        memcpy(p->ids, (const char *)ws.ptr + r.offset, (size_t)(p->tokens * p->cfg.top_k) * 4);
        found = 1;
    }
    CHECK(found, "%s: the plan has no region 'ids'", a->id);
    fill_pattern(ws.ptr, ws.bytes, 2);
    CHECK_OK(moewe_run(plan, &p->w, &io, ws, NULL));
    free(ws.ptr);
    moewe_plan_destroy(plan);
}

static int32_t score_of(const char *name)
{
    if (!strcmp(name, "softmax")) return MOEWE_SCORE_SOFTMAX;
    CHECK(!strcmp(name, "sigmoid"), "test: unknown scoring '%s'", name);
    return MOEWE_SCORE_SIGMOID;
}

/* Scoring, groups and scale as the case has them. */
static void configure(const accident *a, probe *p)
{
    p->cfg.score = score_of(text_or(a->params, "scoring", "softmax"));
    if (json_is_true(json_object_get(a->params, "renormalize"))) p->cfg.flags = MOEWE_FLAG_RENORMALIZE;
    p->cfg.routed_scale = (float)real_or(a->params, "routed_scaling", 0.0);
    p->cfg.n_group = (int32_t)number_or(a->params, "n_group", 0);
    p->cfg.top_group = (int32_t)number_or(a->params, "topk_group", 0);
    if (p->cfg.n_group && json_object_get(a->params, "bias")) p->cfg.group_best = 2; /* as C098's title says */
}

/* Row `row` of the result is row `want` of expect: ids as a set, each with its weight, and nobody else. */
static void matches(const accident *a, const probe *p, int32_t row, size_t want)
{
    const json_t *ids = json_array_get(json_object_get(a->expect, "ids"), want);
    const json_t *weights = json_array_get(json_object_get(a->expect, "weights"), want);
    double tol = real_or(a->expect, "tol", 0.0);
    int32_t columns = p->cfg.n_experts + 2, k = p->cfg.top_k;
    size_t routed = 0;

    for (int32_t c = 0; c < columns; c++) {
        int32_t id = c < p->cfg.n_experts || p->cfg.n_null ? c : c - 1; /* the shared column counts as the next id */
        double needs = 0.0;
        int chosen = 0, seen = 0, is_shared = c == columns - 1;

        if (c == p->cfg.n_experts && !p->cfg.n_null) continue;
        for (size_t i = 0; i < json_array_size(ids); i++)
            if ((int32_t)real_at(ids, i) == id) {
                chosen = 1;
                if (weights) needs = real_at(weights, i);
                routed += !is_shared;
            }
        for (int32_t s = 0; s < k; s++) seen += p->ids[row * k + s] == id;
        CHECK(is_shared || seen == chosen, "%s on %s: row %d chose %d %d times, needs %d", a->id, a->backend, row, id,
              seen, chosen);
        if (weights || !chosen)
            CHECK(fabs((double)at(p, row, c) - needs) <= tol, "%s on %s: row %d weighs %d with %.9g, needs %.9g", a->id,
                  a->backend, row, id, (double)at(p, row, c), needs);
    }
    assert_int_equal(routed, k);
}

static float *read_rows(const json_t *rows, int32_t tokens, int32_t width)
{
    float *out = must_alloc((uint64_t)tokens * (uint64_t)width * 4, 4);

    for (int32_t t = 0; t < tokens; t++)
        for (int32_t i = 0; i < width; i++)
            out[t * width + i] = (float)logit_at(json_array_get(rows, (size_t)t % json_array_size(rows)), (size_t)i);
    return out;
}

static void by_logits(accident *a)
{
    const json_t *rows = json_object_get(a->params, "logits"), *bias = json_object_get(a->params, "bias");
    const json_t *counts = json_object_get(a->params, "tokens");
    int32_t width = (int32_t)json_array_size(json_array_get(rows, 0));
    int32_t null = (int32_t)number_or(a->params, "identity_experts", 0);
    int32_t shared = (int32_t)number_or(a->params, "shared_experts", 0);
    int32_t k = (int32_t)number_or(a->params, "top_k", number_or(a->params, "top_k_total", 0) - shared);

    for (size_t n = 0; n < (json_is_array(counts) ? json_array_size(counts) : 1); n++) {
        int32_t tokens = json_is_array(counts) ? (int32_t)real_at(counts, n) : (int32_t)json_array_size(rows);
        float *logits = read_rows(rows, tokens, width), *select = NULL;
        probe p;

        probe_up(&p, width - null, null, shared, k, tokens);
        configure(a, &p);
        if (bias) {
            select = must_alloc((uint64_t)width * 4, 4);
            for (int32_t i = 0; i < width; i++) select[i] = (float)real_at(bias, (size_t)i);
            p.w.select_bias = select;
        }
        route(a, &p, logits);
        for (int32_t t = 0; t < tokens; t++) matches(a, &p, t, (size_t)t % json_array_size(rows));
        probe_down(&p);
        free(logits);
        free(select);
    }
    checked(a, "ids");
    if (json_object_get(a->expect, "weights")) checked(a, "weights");
    /* what these say is that the rows above are as they are, in every batch, with the identity and the shared expert */
    for (size_t i = 0; i < json_array_size(json_object_get(a->expect, "props")); i++) checked(a, "props.%zu", i);
}

/* Every shape of the grid, against the formula. */
static void grid(accident *a)
{
    const json_t *shapes = json_object_get(a->params, "grid");

    for (size_t s = 0; s < json_array_size(shapes); s++)
        for (int32_t score = 0; score < 2; score++) {
            enum { TOKENS = 3 };
            int32_t e = (int32_t)real_at(json_array_get(shapes, s), 0),
                    k = (int32_t)real_at(json_array_get(shapes, s), 1);
            float *logits = must_alloc((uint64_t)(TOKENS * e) * 4, 4);
            probe p;

            fill_values(logits, (uint64_t)(TOKENS * e), s + 7, 4.0);
            probe_up(&p, e, 0, 0, k, TOKENS);
            p.cfg.score = score ? MOEWE_SCORE_SOFTMAX : MOEWE_SCORE_SIGMOID;
            route(a, &p, logits);
            for (int32_t t = 0; t < TOKENS; t++) {
                const float *l = logits + t * e;
                double sum = 0.0;

                for (int32_t i = 0; i < e; i++) sum += exp((double)l[i]);
                for (int32_t i = 0; i < e; i++) {
                    double needs = score ? exp((double)l[i]) / sum : 1.0 / (1.0 + exp(-(double)l[i]));
                    int32_t above = 0;

                    for (int32_t j = 0; j < e; j++) above += l[j] > l[i] || (l[j] == l[i] && j < i);
                    if (above >= k) needs = 0.0;
                    CHECK(fabs((double)at(&p, t, i) - needs) <= ref_error_bound(e + 32.0, needs),
                          "%s on %s: (%d, %d) weighs %d with %.9g, needs %.9g", a->id, a->backend, e, k, i,
                          (double)at(&p, t, i), needs);
                }
            }
            probe_down(&p);
            free(logits);
        }
    checked(a, "props.0");
}

static void nan_row(accident *a)
{
    int32_t e = (int32_t)number(a->params, "experts"), k = (int32_t)number(a->params, "top_k");
    int32_t tokens = (int32_t)number(a->params, "tokens"), bad = 2;
    float *logits = must_alloc((uint64_t)(tokens * e) * 4, 4);
    probe p, without;

    fill_values(logits, (uint64_t)(tokens * e), 11, 4.0);
    for (int32_t i = 0; i < e; i++) logits[bad * e + i] = NAN;
    probe_up(&p, e, 0, 0, k, tokens);
    configure(a, &p);
    route(a, &p, logits);
    for (int32_t s = 0; s < k; s++) {
        int32_t id = p.ids[bad * k + s];

        CHECK((id >= 0 && id < e) || id == -1, "%s: the bad row chose %d", a->id, id);
        for (int32_t o = 0; o < s; o++) CHECK(id == -1 || id != p.ids[bad * k + o], "%s: twice %d", a->id, id);
    }
    checked(a, "props.0");
    for (int32_t i = 0; i < e + 2; i++)
        CHECK(isfinite(ref_load(p.y + bad * (e + 2) + i, MOEWE_DTYPE_F32)), "%s on %s: the bad row weighs %d with %g",
              a->id, a->backend, i, (double)at(&p, bad, i));
    checked(a, "props.1");
    probe_up(&without, e, 0, 0, k, tokens - 1);
    configure(a, &without);
    memmove(logits + bad * e, logits + (bad + 1) * e, (size_t)((tokens - bad - 1) * e) * 4);
    route(a, &without, logits);
    for (int32_t t = 0; t < tokens - 1; t++)
        assert_memory_equal(p.y + (t + (t >= bad)) * (e + 2), without.y + t * (e + 2), (size_t)(e + 2) * 4);
    checked(a, "props.2");
    checked(a, "props.3"); /* route ran the layer */
    probe_down(&p);
    probe_down(&without);
    free(logits);
}

/* One layer in two parts, each by a back end of its own: the scale counts once in each. */
static void two_parts(accident *a)
{
    backend_list list = cpu_backends();
    float logits[2 * 4], sum[2 * 6], scale = (float)real_or(a->params, "routed_scaling", 1.0);
    moewe_device *other = open_backend(list.name[list.n - 1], 1);
    probe whole, part;

    fill_values(logits, 8, 5, 2.0);
    probe_up(&whole, 4, 0, 0, 2, 2);
    whole.cfg.flags = MOEWE_FLAG_RENORMALIZE;
    whole.cfg.routed_scale = scale;
    route(a, &whole, logits);
    memset(sum, 0, sizeof sum);
    for (int32_t first = 0; first < 4; first += 2) {
        accident half = *a;

        probe_up(&part, 4, 0, 0, 2, 2);
        part.cfg = whole.cfg;
        part.cfg.first_expert = first;
        part.cfg.n_local = 2;
        part.w.down.bias = part.units + first * part.cfg.hidden;
        half.dev = first ? other : a->dev;
        route(&half, &part, logits);
        for (int i = 0; i < 12; i++) sum[i] += part.y[i];
        probe_down(&part);
    }
    for (int32_t t = 0; t < 2; t++) {
        double total = 0.0;

        for (int32_t i = 0; i < 6; i++) {
            /* one expert has one part: the same bits but for what expf of another level may give */
            CHECK(fabs((double)sum[t * 6 + i] - (double)at(&whole, t, i)) <= 8e-7,
                  "%s: expert %d weighs %g in parts, %g whole", a->id, i, (double)sum[t * 6 + i],
                  (double)at(&whole, t, i));
            total += (double)sum[t * 6 + i];
        }
        CHECK(fabs(total - (double)scale) < 1e-6, "%s: weights sum to %g, needs %g", a->id, total, (double)scale);
    }
    checked(a, "props.0");
    probe_down(&whole);
    moewe_device_close(other);
}

/* Given weights, bf16 rows: what is summed is weight times expert in f32. */
static void narrow_rows(accident *a)
{
    const json_t *weights = json_object_get(a->params, "weights");
    int32_t n = (int32_t)json_array_size(weights);
    float given[8], bias[8];
    uint16_t x = 0, y, zero = 0;
    const void *zeros[8];
    double sum = 0.0, ulp, got;
    int32_t ids[8];
    moewe_config cfg;
    moewe_weights w;
    moewe_io io;

    CHECK(n <= 8, "test: %s is too long", a->id);
    MOEWE_INIT(cfg);
    MOEWE_INIT(w);
    MOEWE_INIT(io);
    for (uint64_t seed = 0; seed < 50; seed++) {
        sum = 0.0;
        for (int32_t i = 0; i < n; i++) {
            given[i] = (float)real_at(weights, (size_t)i);
            bias[i] = value(seed, (uint64_t)i, 4.0);
            zeros[i] = &zero;
            ids[i] = i;
            sum += (double)given[i] * (double)bias[i];
        }
        cfg.hidden = cfg.inter = cfg.max_tokens = 1;
        cfg.n_experts = cfg.top_k = n;
        cfg.score = MOEWE_SCORE_GIVEN;
        cfg.act = MOEWE_ACT_RELU;
        cfg.x_dtype = cfg.w_dtype = cfg.y_dtype = MOEWE_DTYPE_BF16;
        w.up = w.down = (moewe_matrix){.experts = zeros, .dtype = MOEWE_DTYPE_BF16};
        w.down.bias = bias;
        io.n_tokens = 1;
        io.x = &x;
        io.y = &y;
        io.topk_ids = ids;
        io.topk_weights = given;
        CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 2));
        got = ref_load(&y, MOEWE_DTYPE_BF16);
        ulp = ldexp(1.0, ilogb(sum) - 7);
        CHECK(fabs(got - sum) <= ulp, "%s on %s: %g, needs %g within %g", a->id, a->backend, got, sum, ulp);
    }
    checked(a, "props.0");
}

/* The raw result is beyond f16, its weighted share is not. */
static void beyond_f16(accident *a)
{
    const json_t *raw = json_object_get(a->params, "expert_raw");
    const json_t *weights = json_array_get(json_object_get(a->params, "topk_weights"), 0);
    uint16_t up[2], down[2];
    float x = 1.0f, y, given[2];
    const int32_t ids[2] = {0, 1};
    moewe_config cfg;
    moewe_weights w;
    moewe_io io;

    MOEWE_INIT(cfg);
    MOEWE_INIT(w);
    MOEWE_INIT(io);
    for (int i = 0; i < 2; i++) { /* max(100, 0)^2 times 9 and -2 */
        store(&up[i], MOEWE_DTYPE_F16, 100.0);
        store(&down[i], MOEWE_DTYPE_F16, real_at(raw, (size_t)i) / 1e4);
        given[i] = (float)real_at(weights, (size_t)i);
    }
    cfg.hidden = cfg.inter = cfg.max_tokens = 1;
    cfg.n_experts = cfg.top_k = 2;
    cfg.score = MOEWE_SCORE_GIVEN;
    cfg.act = MOEWE_ACT_RELU2;
    cfg.w_dtype = MOEWE_DTYPE_F16;
    w.up = w.down = (moewe_matrix){.data = up, .dtype = MOEWE_DTYPE_F16};
    w.down.data = down;
    io.n_tokens = 1;
    io.x = &x;
    io.y = &y;
    io.topk_ids = ids;
    io.topk_weights = given;
    CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 2));
    expects_rows(a, "out", &y, 4);
    checked(a, "props.0");
}

/* Routed and shared slots of eight ranks in one numbering. */
static void physical_slots(accident *a)
{
    int32_t routed = (int32_t)number(a->params, "routed_experts"), ranks = (int32_t)number(a->params, "ep");
    int32_t each = routed / ranks, local = each + (int32_t)number(a->params, "shared_slots_per_rank");
    int32_t slots = local * ranks, k = (int32_t)number(a->params, "top_k_routed"), hits = 0;
    int32_t ids[3][7], beyond = slots;
    float weights[21], total[3] = {0.0f, 0.0f, 0.0f};

    for (int32_t t = 0; t < 3; t++)
        for (int32_t s = 0; s <= k; s++) {
            int32_t e = (t * 131 + s * 59) % routed;

            ids[t][s] = s < k ? e + e / each : (t + 2) * local + each; /* the shared slot of some rank */
            weights[t * 7 + s] = 1.0f;
        }
    ids[0][0] = beyond - 1; /* the last slot there is */
    ids[1][0] = beyond;     /* one past it: nobody's, on every rank */
    for (int32_t rank = 0; rank < ranks; rank++) {
        moewe_io io;
        probe p;

        probe_up(&p, slots, 0, 0, k + 1, 3);
        p.cfg.score = MOEWE_SCORE_GIVEN;
        p.cfg.first_expert = rank * local;
        p.cfg.n_local = local;
        p.w.down.bias = p.units + (int64_t)p.cfg.first_expert * p.cfg.hidden;
        MOEWE_INIT(io);
        io.n_tokens = 3;
        io.x = p.x;
        io.y = p.y;
        io.topk_ids = ids[0];
        io.topk_weights = weights;
        CHECK_OK(try_layer(a->dev, &p.cfg, &p.w, &io, 2));
        for (int32_t t = 0; t < 3; t++)
            for (int32_t c = 0; c < slots; c++) {
                total[t] += at(&p, t, c);
                hits += t == 0 && c == beyond - 1 && at(&p, t, c) == 1.0f;
            }
        probe_down(&p);
    }
    assert_true(total[0] == (float)(k + 1) && total[1] == (float)k && total[2] == (float)(k + 1));
    assert_int_equal(hits, 1);
    expects(a, "exact", "physical_slots", (uint64_t)slots);
    expects(a, "exact", "local_slots", (uint64_t)local);
    expects(a, "exact", "max_valid_id", (uint64_t)beyond - 1);
    expects(a, "exact", "slots_per_row", (uint64_t)total[2]);
    expects(a, "exact", "routed_per_row", (uint64_t)total[2] - 1);
    checked(a, "props.0");
}

const entry route_entries[] = {
    {"C071", nan_row, 0},    {"C072", by_logits, 0}, {"C081", by_logits, 0},      {"C097", by_logits, 0},
    {"C098", by_logits, 0},  {"C099", by_logits, 0}, {"C100", by_logits, 0},      {"C101", two_parts, 0},
    {"C104", by_logits, 0},  {"C105", by_logits, 0}, {"C111", grid, 0},           {"C112", narrow_rows, 0},
    {"C121", beyond_f16, 0}, {"C176", by_logits, 0}, {"C177", physical_slots, 0}, {NULL, NULL, 0},
};
