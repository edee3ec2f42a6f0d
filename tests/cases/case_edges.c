/* case_edges.c - owns the cases of kind input_edge that describe shapes and batches, of determinism, and of
 * shard_divisibility and planner where a run of the layer answers them.  Rows are held to the oracle or to the bits of
 * another run.  It must never use fewer tokens, experts or columns than the case names. */
#include "accident.h"

#include <stdio.h>
#include <string.h>

/* A random layer of the case's dims with given ids; ids(t, s) from ids, which is [tokens][top_k]. */
static void random_layer(const accident *a, layer_case *c, int32_t tokens, int32_t dtype, uint64_t seed)
{
    moewe_config cfg = config_of(a->params);

    cfg.x_dtype = cfg.w_dtype = dtype;
    cfg.max_tokens = tokens;
    case_build(c, &cfg, tokens, WITH_BIAS2, seed);
}

static void oracle_agrees(const accident *a, const layer_case *c, const void *y)
{
    char what[64];
    tally t = {0};

    snprintf(what, sizeof what, "%s on %s", a->id, a->backend);
    case_check(c, y, &t, what);
    CHECK(t.skipped == 0 && t.rows == c->io.n_tokens, "%s: rows were skipped", what);
}

static void last_row_is_padding(accident *a)
{
    const json_t *counts = json_object_get(a->params, "tokens_list");

    for (size_t i = 0; i < json_array_size(counts); i++) {
        int32_t n = (int32_t)real_at(counts, i), k, row;
        char *y, *without;
        layer_case c;

        random_layer(a, &c, n, MOEWE_DTYPE_F32, i);
        k = c.cfg.top_k;
        row = c.cfg.hidden * 4;
        for (int32_t s = 0; s < k; s++) c.ids[(n - 1) * k + s] = -1;
        y = must_alloc(c.y_bytes, 4);
        without = must_alloc(c.y_bytes, 4);
        case_run(a->dev, &c, NULL, 0, 2, y);
        for (int32_t b = 0; b < row; b++)
            CHECK(y[(n - 1) * row + b] == 0, "%s: the last of %d rows is not 0", a->id, n);
        c.io.n_tokens = n - 1;
        case_run(a->dev, &c, NULL, 0, 1, without);
        assert_memory_equal(y, without, (size_t)((n - 1) * row));
        free(y);
        free(without);
        case_free(&c);
    }
    checked(a, "props.0");
}

/* ids as the case lists them, workspace and y full of what a buffer may hold. */
static void poisoned(accident *a)
{
    const json_t *ids = json_object_get(a->params, "ids");
    int32_t n = (int32_t)number(a->params, "tokens");
    layer_case c;
    char *y;

    random_layer(a, &c, n, MOEWE_DTYPE_F32, 9);
    for (int32_t t = 0; t < n; t++) c.ids[t] = (int32_t)real_at(json_array_get(ids, (size_t)t), 0);
    y = must_alloc(c.y_bytes, 4);
    for (int p = 0; p < 3; p++) {
        static const int bytes[3] = {0x00, 0x7f, 0xff};
        moewe_plan *plan;
        moewe_need need;
        moewe_span ws;
        moewe_io io = c.io;

        CHECK_OK(moewe_plan_create(a->dev, &c.cfg, &plan));
        CHECK_OK(moewe_plan_need(plan, &need));
        ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
        memset(ws.ptr, bytes[p], ws.bytes);
        fill_pattern(y, c.y_bytes, 2); /* NaN */
        io.y = y;
        CHECK_OK(moewe_run(plan, &c.w, &io, ws, NULL));
        oracle_agrees(a, &c, y);
        free(ws.ptr);
        moewe_plan_destroy(plan);
    }
    checked(a, "props.0");
    free(y);
    case_free(&c);
}

/* Large and small runs in turns in one workspace, each against a fresh one. */
static void recycled(accident *a)
{
    const json_t *counts = json_object_get(a->params, "tokens_sequence");
    moewe_plan *plan;
    moewe_need need;
    moewe_span ws;
    layer_case c;
    char *y, *fresh;

    random_layer(a, &c, (int32_t)real_at(counts, 0), MOEWE_DTYPE_F32, 4);
    y = must_alloc(c.y_bytes, 4);
    fresh = must_alloc(c.y_bytes, 4);
    CHECK_OK(moewe_plan_create(a->dev, &c.cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    memset(ws.ptr, 0x7f, ws.bytes);
    for (size_t i = 0; i < json_array_size(counts); i++) {
        moewe_io io;

        c.io.n_tokens = (int32_t)real_at(counts, i);
        io = c.io;
        io.y = y;
        CHECK_OK(moewe_run(plan, &c.w, &io, ws, NULL));
        case_run(a->dev, &c, NULL, 0, 0, fresh);
        assert_memory_equal(y, fresh, (size_t)(c.io.n_tokens * c.cfg.hidden) * 4);
    }
    checked(a, "props.0");
    free(ws.ptr);
    free(y);
    free(fresh);
    moewe_plan_destroy(plan);
    case_free(&c);
}

/* Expert e gets group_rows[e] rows, in order: a boundary lies in any tile there may be. */
static void groups_of_rows(accident *a)
{
    const json_t *also = json_object_get(a->params, "also");

    for (size_t g = 0; g <= json_array_size(also); g++) {
        const json_t *rows = g ? json_array_get(also, g - 1) : json_object_get(a->params, "group_rows");
        moewe_config cfg = config_of(a->params);
        int32_t n = 0, at = 0;
        layer_case c;
        char *y;

        cfg.n_experts = (int32_t)json_array_size(rows);
        cfg.top_k = 1;
        for (size_t e = 0; e < json_array_size(rows); e++) n += (int32_t)real_at(rows, e);
        cfg.max_tokens = n;
        case_build(&c, &cfg, n, WITH_BIAS2, g);
        for (int32_t e = 0; e < cfg.n_experts; e++)
            for (int32_t i = 0; i < (int32_t)real_at(rows, (size_t)e); i++) c.ids[at++] = e;
        y = must_alloc(c.y_bytes, 4);
        case_run(a->dev, &c, NULL, 0, 2, y);
        oracle_agrees(a, &c, y);
        free(y);
        case_free(&c);
    }
    checked(a, "props.0");
}

/* After SORT, offsets is the histogram of the ids, for every number of experts up to 257. */
static void histograms(accident *a)
{
    int32_t n = (int32_t)number(a->params, "tokens"), k = (int32_t)number(a->params, "top_k");

    for (int32_t e = 1; e <= 257; e++) {
        moewe_config cfg = config_of(a->params);
        int32_t count[257] = {0}, *offsets = NULL;
        moewe_weights w;
        moewe_plan *plan;
        moewe_region r;
        moewe_need need;
        moewe_span ws;
        layer_case c;

        cfg.n_experts = e;
        cfg.hidden = cfg.inter = 1;
        cfg.max_tokens = n;
        case_build(&c, &cfg, n, 0, (uint64_t)e);
        w = c.w;
        for (int32_t i = 0; i < n * k; i++) count[c.ids[i]]++;
        CHECK_OK(moewe_plan_create(a->dev, &c.cfg, &plan));
        CHECK_OK(moewe_plan_need(plan, &need));
        ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
        fill_pattern(ws.ptr, ws.bytes, 1);
        CHECK_OK(moewe_run_stages(plan, &w, &c.io, ws, NULL, MOEWE_STAGE_ROUTE, MOEWE_STAGE_SORT));
        for (int32_t i = 0; i < moewe_plan_region_count(plan); i++) {
            CHECK_OK(moewe_plan_region(plan, i, &r));
            if (!strcmp(r.name, "offsets")) offsets = (int32_t *)(void *)((char *)ws.ptr + r.offset);
        }
        CHECK(offsets != NULL, "%s: the plan has no region 'offsets'", a->id);
        for (int32_t i = 0; i < e; i++)
            CHECK(offsets[i + 1] - offsets[i] == count[i], "%s on %s: of %d experts, %d has %d pairs, needs %d", a->id,
                  a->backend, e, i, offsets[i + 1] - offsets[i], count[i]);
        free(ws.ptr);
        moewe_plan_destroy(plan);
        case_free(&c);
    }
    checked(a, "props.0");
}

/* More experts than pairs and the reverse: exactly as much memory as the plan needs, with guards on both sides. */
static void few_pairs(accident *a)
{
    const json_t *also = json_object_get(a->params, "also");

    for (size_t s = 0; s <= json_array_size(also); s++) {
        const json_t *shape = s ? json_array_get(also, s - 1) : a->params;
        int32_t n = (int32_t)number(shape, "tokens");

        for (int spread = 0; spread < 3; spread++) {
            moewe_config cfg = config_of(shape);
            layer_case c;
            char *y;

            cfg.max_tokens = n;
            case_build(&c, &cfg, n, 0, s);
            for (int32_t i = 0; i < n * cfg.top_k; i++)
                c.ids[i] = spread == 0 ? i % cfg.n_experts : spread == 1 ? cfg.n_experts - 1 : (i * 7) % cfg.n_experts;
            y = must_alloc(c.y_bytes, 4);
            case_run(a->dev, &c, NULL, 0, 2, y);
            oracle_agrees(a, &c, y);
            free(y);
            case_free(&c);
        }
    }
}

static void too_many_chosen(accident *a)
{
    moewe_config cfg = config_of(a->params);
    moewe_plan *plan;

    cfg.score = MOEWE_SCORE_SOFTMAX;
    refused_as(a, moewe_plan_create(a->dev, &cfg, &plan));
    says("top_k");
    says_number((uint64_t)number(a->params, "top_k"));
    says_number((uint64_t)number(a->params, "experts"));
    checked(a, "error_must_name");
}

static moewe_status try_groups(const accident *a, const json_t *shape)
{
    moewe_config cfg = config_of(shape);
    moewe_plan *plan;
    moewe_status s;

    cfg.score = MOEWE_SCORE_SIGMOID;
    cfg.n_group = (int32_t)number(shape, "n_group");
    cfg.top_group = (int32_t)number(shape, "topk_group");
    s = moewe_plan_create(a->dev, &cfg, &plan);
    if (!s) moewe_plan_destroy(plan);
    return s;
}

static void group_limits(accident *a)
{
    const json_t *accept = json_object_get(a->params, "accept"), *reject = json_object_get(a->params, "reject");

    for (size_t i = 0; i < json_array_size(accept); i++) CHECK_OK(try_groups(a, json_array_get(accept, i)));
    for (size_t i = 0; i < json_array_size(reject); i++) refused_as(a, try_groups(a, json_array_get(reject, i)));
}

/* Rows that start at no multiple of anything. */
static void odd_widths(accident *a)
{
    const json_t *also = json_object_get(a->params, "also_hidden");

    for (size_t i = 0; i <= json_array_size(also); i++) {
        moewe_config cfg = config_of(a->params);
        layer_case c;
        char *y;

        if (i) cfg.hidden = (int32_t)real_at(also, i - 1);
        cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_BF16;
        cfg.max_tokens = (int32_t)number(a->params, "tokens");
        case_build(&c, &cfg, (int32_t)number(a->params, "tokens"), 0, i);
        y = must_alloc(c.y_bytes, 4);
        case_run(a->dev, &c, NULL, 0, 2, y);
        if (!i) c.io.n_tokens = 2; /* the oracle is slow */
        oracle_agrees(a, &c, y);
        free(y);
        case_free(&c);
    }
    checked(a, "props.0");
}

/* An expert past the end of the table is refused by number where it is offered: as the first of a part. */
static void expert_past_the_end(accident *a)
{
    moewe_config cfg = config_of(a->params);
    moewe_plan *plan;

    cfg.n_experts = (int32_t)number(a->params, "routed_experts");
    cfg.first_expert = (int32_t)number(a->params, "load_expert_id");
    cfg.n_local = 1;
    refused_as(a, moewe_plan_create(a->dev, &cfg, &plan));
    says_number((uint64_t)number(a->params, "load_expert_id"));
    checked(a, "error_must_name");
}

/* Physical slots are views: two that are the same logical expert are two pointers to one. */
static void two_copies(accident *a)
{
    const json_t *map = json_object_get(a->params, "physical_to_logical");
    int32_t slots = (int32_t)json_array_size(map), twins = 0;
    const void *up[16], *down[16], *gate[16];
    moewe_config cfg = config_of(a->params);
    layer_case c;
    char *y[2];

    CHECK(slots <= 16, "test: %s has more slots", a->id);
    cfg.n_experts = slots;
    cfg.top_k = 1;
    cfg.max_tokens = 4;
    case_build(&c, &cfg, 4, 0, 3);
    for (int32_t s = 0; s < slots; s++) {
        int32_t from = s;

        for (int32_t o = s - 1; o >= 0; o--)
            if (real_at(map, (size_t)o) == real_at(map, (size_t)s)) from = o;
        twins += from != s;
        gate[s] = (const char *)c.w.gate.data + from * 8 * 4 * 4;
        up[s] = (const char *)c.w.up.data + from * 8 * 4 * 4;
        down[s] = (const char *)c.w.down.data + from * 8 * 4 * 4;
    }
    assert_int_equal(twins, 1);
    c.w.gate.experts = gate;
    c.w.up.experts = up;
    c.w.down.experts = down;
    for (int32_t copy = 0; copy < 2; copy++) {
        for (int32_t t = 0; t < 4; t++) c.ids[t] = 2 + copy; /* the two slots of 236 */
        CHECK(real_at(map, 2) == real_at(map, 3), "test: %s has its copies elsewhere", a->id);
        for (int32_t t = 0; t < 4; t++) c.given[t] = 0.5f;
        y[copy] = must_alloc(c.y_bytes, 4);
        case_run(a->dev, &c, NULL, 0, 2, y[copy]);
        oracle_agrees(a, &c, y[copy]);
    }
    assert_memory_equal(y[0], y[1], c.y_bytes);
    checked(a, "props.0");
    checked(a, "props.1");
    free(y[0]);
    free(y[1]);
    case_free(&c);
}

/* ---- determinism ---- */

static void repeats(accident *a)
{
    layer_case c;
    char *first, *y;

    random_layer(a, &c, (int32_t)number(a->params, "tokens"), MOEWE_DTYPE_BF16, 6);
    first = must_alloc(c.y_bytes, 4);
    y = must_alloc(c.y_bytes, 4);
    case_run(a->dev, &c, NULL, 0, 0, first);
    for (int64_t i = 1; i < number(a->params, "repeats"); i++) {
        case_run(a->dev, &c, NULL, 0, (int)(i % PATTERNS), y);
        assert_memory_equal(first, y, c.y_bytes);
    }
    checked(a, "props.0");
    free(first);
    free(y);
    case_free(&c);
}

static void any_neighbours(accident *a)
{
    const json_t *sizes = json_object_get(a->params, "batch_sizes");
    size_t n = json_array_size(sizes);
    layer_case c;
    char *alone, *y;
    size_t row;

    random_layer(a, &c, (int32_t)real_at(sizes, n - 1), MOEWE_DTYPE_BF16, 8);
    row = (size_t)c.cfg.hidden * 2;
    alone = must_alloc(c.y_bytes, 4);
    y = must_alloc(c.y_bytes, 4);
    for (size_t i = 0; i < n; i++) {
        c.io.n_tokens = (int32_t)real_at(sizes, i);
        case_run(a->dev, &c, NULL, 0, 2, i ? y : alone);
        if (i) assert_memory_equal(alone, y, row);
    }
    checked(a, "props.0");
    free(alone);
    free(y);
    case_free(&c);
}

/* ---- rows of the caller ---- */

/* What a library pads inside may not be seen: rows are as wide and as far apart as the caller says. */
static void padding_inside(accident *a)
{
    moewe_config cfg = config_of(a->params);
    int32_t n = (int32_t)number(a->params, "tokens"), padded = (int32_t)number(a->params, "padded_hidden"), written = 0;
    int64_t stride = (int64_t)padded * 2;
    moewe_weights w;
    moewe_io io;
    uint16_t *x, *y;
    int32_t ids[64];
    float weights[64];
    thin t;

    cfg.inter = 64; /* the case names none */
    cfg.n_local = cfg.n_experts / (int32_t)number(a->params, "ep");
    cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_BF16;
    cfg.max_tokens = n;
    w = thin_weights(&cfg, &t);
    CHECK(n * cfg.top_k <= 64, "test: %s has more pairs", a->id);
    x = must_alloc((uint64_t)(n * cfg.hidden) * 2, 2);
    y = must_alloc((uint64_t)n * (uint64_t)stride, 2);
    memset(y, 0x5c, (size_t)n * (size_t)stride);
    for (int32_t i = 0; i < n * cfg.hidden; i++) store(x + i, MOEWE_DTYPE_BF16, value(1, (uint64_t)i, 2.0));
    for (int32_t i = 0; i < n * cfg.top_k; i++) {
        ids[i] = i * 17 % cfg.n_experts;
        weights[i] = 0.25f;
    }
    MOEWE_INIT(io);
    io.n_tokens = n;
    io.x = x;
    io.y = y;
    io.y_stride = stride;
    io.topk_ids = ids;
    io.topk_weights = weights;
    CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 2));
    for (int32_t i = 0; i < padded; i++) { /* columns that any row wrote */
        int touched = 0;

        for (int32_t r = 0; r < n; r++) touched |= y[r * padded + i] != 0x5c5c;
        written += touched;
        CHECK(!touched || i < cfg.hidden, "%s: column %d is written", a->id, i);
    }
    expects(a, "exact", "out_row_elems", (uint64_t)written);
    checked(a, "props.0");
    free(x);
    free(y);
    thin_free(&t);
}

/* gate and up as views of one fused tensor: no copy of it is made, and the bits are those of separate ones. */
static void fused_views(accident *a)
{
    moewe_config cfg = config_of(a->params);
    moewe_weights fused;
    int64_t each;
    char *both, *y, *want;
    layer_case c;

    cfg.hidden = 64; /* the strides are what matters: local_i rows of gate, then as many of up */
    cfg.inter = (int32_t)number(a->params, "local_i");
    cfg.n_experts = 4;
    cfg.w_dtype = MOEWE_DTYPE_BF16;
    cfg.max_tokens = 3;
    case_build(&c, &cfg, 3, 0, 12);
    each = (int64_t)cfg.hidden * cfg.inter * 2;
    both = must_alloc((uint64_t)(2 * each * 4), 2);
    for (int32_t e = 0; e < 4; e++) {
        memcpy(both + 2 * e * each, (const char *)c.w.gate.data + e * each, (size_t)each);
        memcpy(both + (2 * e + 1) * each, (const char *)c.w.up.data + e * each, (size_t)each);
    }
    fused = c.w;
    fused.gate.data = both;
    fused.up.data = both + each;
    fused.gate.expert_stride = fused.up.expert_stride = 2 * each;
    y = must_alloc(c.y_bytes, 4);
    want = must_alloc(c.y_bytes, 4);
    case_run(a->dev, &c, NULL, 0, 0, want);
    count_allocations();
    case_run(a->dev, &c, &fused, 0, 1, y); /* a plan and a workspace, made here: a copy would be one more */
    {
        int with = allocations();

        count_allocations();
        case_run(a->dev, &c, NULL, 0, 1, want);
        assert_int_equal(with, allocations());
    }
    assert_memory_equal(y, want, c.y_bytes);
    checked(a, "props.0");
    free(both);
    free(y);
    free(want);
    case_free(&c);
}

const entry edge_entries[] = {
    {"C064", last_row_is_padding, 0},
    {"C066", few_pairs, 0},
    {"C074", poisoned, 0},
    {"C075", recycled, 0},
    {"C076", groups_of_rows, 0},
    {"C077", histograms, 0},
    {"C078", too_many_chosen, 0},
    {"C079", group_limits, 0},
    {"C172", odd_widths, 0},
    {"C180", expert_past_the_end, 0},
    {"C189", two_copies, 0},
    {"C144", repeats, 0},
    {"C145", any_neighbours, 0},
    {"C140", padding_inside, 0},
    {"C169", fused_views, 0},
    {NULL, NULL, 0},
};
