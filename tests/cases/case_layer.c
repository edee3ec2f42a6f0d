/* case_layer.c - owns the cases that give golden rows of a whole layer: kinds input_edge, routing, activation_layout
 * and reference where expect has out, act_out or sum_over_ranks.  It must never copy a weight to suit the library:
 * every order of gate and up is a view of the one tensor that the conventions describe. */
#include "accident.h"

#include <string.h>

typedef struct golden {
    moewe_config cfg;
    moewe_weights w;
    moewe_io io;
    int32_t tokens, stored; /* experts of the tensors, a shared one included */
    float *x, *gate_up, *down, *b_gate_up, *b_down, *y;
    int32_t *ids;
    float *weights;
} golden;

static void read_table(const accident *a, golden *g, const char *weights_key)
{
    const json_t *ids = json_object_get(a->params, "topk_ids"), *weights = json_object_get(a->params, weights_key);
    int32_t k = g->cfg.top_k;

    g->ids = must_alloc((uint64_t)(g->tokens * k) * 4, 4);
    g->weights = must_alloc((uint64_t)(g->tokens * k) * 4, 4);
    for (int32_t t = 0; t < g->tokens; t++)
        for (int32_t s = 0; s < k; s++) {
            g->ids[t * k + s] = (int32_t)real_at(json_array_get(ids, (size_t)t), (size_t)s);
            g->weights[t * k + s] = (float)real_at(json_array_get(weights, (size_t)t), (size_t)s);
        }
    g->io.topk_ids = g->ids;
    g->io.topk_weights = g->weights;
}

/* gate_up as the conventions lay it out, gate and up as views of it. */
static void view_weights(golden *g, const char *order, int rows)
{
    int64_t h = g->cfg.hidden, i = g->cfg.inter, row = h * 4;
    int gated = ref_gated(g->cfg.act), interleaved = !strcmp(order, "interleaved");
    const char *first = (const char *)g->gate_up, *second = first + (interleaved ? row : i * row);
    moewe_matrix m = {.dtype = MOEWE_DTYPE_F32, .expert_stride = rows * row, .row_stride = interleaved ? 2 * row : 0};

    g->w.gate = g->w.up = m;
    g->w.gate.data = !strcmp(order, "up_gate") ? second : first;
    g->w.up.data = !strcmp(order, "up_gate") ? first : second;
    if (!gated) {
        memset(&g->w.gate, 0, sizeof g->w.gate);
        g->w.up.data = first;
    }
    g->w.down = (moewe_matrix){.data = g->down, .dtype = MOEWE_DTYPE_F32};
}

static void build(const accident *a, golden *g, const char *weights_key)
{
    const json_t *p = a->params;
    int32_t first = (int32_t)number_or(p, "local_first", 0), gated, rows;
    uint64_t e, h, i;

    memset(g, 0, sizeof *g);
    g->cfg = config_of(p);
    g->tokens = (int32_t)number(p, "tokens");
    g->stored = g->cfg.n_experts;
    g->cfg.n_experts = (int32_t)number_or(p, "routed_experts", g->stored);
    g->cfg.n_null = (int32_t)number_or(p, "identity_experts", 0);
    g->cfg.max_tokens = g->tokens ? g->tokens : 1;
    g->cfg.first_expert = first;
    g->cfg.n_local = (int32_t)number_or(p, "local_experts", 0);
    if (json_is_true(json_object_get(p, "apply_router_weight_on_input"))) g->cfg.flags |= MOEWE_FLAG_WEIGHT_ON_INPUT;
    gated = ref_gated(g->cfg.act);
    rows = (gated ? 2 : 1) * g->cfg.inter;
    e = (uint64_t)g->stored, h = (uint64_t)g->cfg.hidden, i = (uint64_t)g->cfg.inter;
    g->x = must_alloc((uint64_t)g->tokens * h * 4, 4);
    g->y = must_alloc((uint64_t)g->tokens * h * 4, 4);
    g->gate_up = must_alloc(e * (uint64_t)rows * h * 4, 4);
    g->down = must_alloc(e * h * i * 4, 4);
    fill_values(g->x, (uint64_t)g->tokens * h, (uint64_t)number(p, "x_seed"), real_or(p, "x_scale", 1.0));
    fill_values(g->gate_up, e * (uint64_t)rows * h, (uint64_t)number(p, "w_gate_up_seed"), real_or(p, "w_scale", 1.0));
    fill_values(g->down, e * h * i, (uint64_t)number(p, "w_down_seed"), real_or(p, "w_scale", 1.0));
    fill_pattern(g->y, (uint64_t)g->tokens * h * 4, 2);
    MOEWE_INIT(g->w);
    MOEWE_INIT(g->io);
    view_weights(g, text_or(p, "gate_up_order", "gate_up"), rows);
    if (first) {
        if (gated) g->w.gate.data = (const char *)g->w.gate.data + (int64_t)first * g->w.gate.expert_stride;
        g->w.up.data = (const char *)g->w.up.data + (int64_t)first * g->w.up.expert_stride;
        g->w.down.data = g->down + (uint64_t)first * h * i;
    }
    g->io.n_tokens = g->tokens;
    g->io.x = g->x;
    g->io.y = g->y;
    read_table(a, g, weights_key);
}

static void drop(golden *g)
{
    void *const all[] = {g->x, g->y, g->gate_up, g->down, g->b_gate_up, g->b_down, g->ids, g->weights};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* Some cases name rows that are exactly 0 or not touched. */
static void exact_rows(accident *a, const golden *g)
{
    const json_t *out = json_object_get(a->expect, "out");
    uint64_t row = (uint64_t)g->cfg.hidden * 4;

    for (int32_t t = 0; t < g->tokens; t++) {
        int zero = 1;

        for (int32_t i = 0; i < g->cfg.hidden; i++) zero &= real_at(json_array_get(out, (size_t)t), (size_t)i) == 0.0;
        for (uint64_t i = 0; zero && i < row; i++)
            CHECK(((const char *)g->y)[(uint64_t)t * row + i] == 0, "%s on %s: row %d is not exactly 0", a->id,
                  a->backend, t);
    }
}

static void plain(accident *a)
{
    golden g;

    build(a, &g, "topk_weights");
    CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 2));
    expects_rows(a, "out", g.y, g.cfg.hidden * 4);
    exact_rows(a, &g);
    drop(&g);
}

/* y lies in exactly its own bytes between two guards. */
static void padding(accident *a)
{
    golden g;
    char guarded[3 * 32 + 128];

    plain(a);
    build(a, &g, "topk_weights");
    memset(guarded, 0x5c, sizeof guarded);
    g.io.y = guarded + 64;
    CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 2));
    for (size_t i = 0; i < 64; i++)
        CHECK(guarded[i] == 0x5c && guarded[sizeof guarded - 1 - i] == 0x5c, "%s: a guard byte is written", a->id);
    for (int i = 0; i < 32; i++) CHECK(guarded[64 + 32 + i] == 0, "%s: row 1 is not exactly 0", a->id);
    checked(a, "props.0");
    checked(a, "props.1");
    drop(&g);
}

/* Ids that are not here add nothing, negative ones too: as without them, and the bits are the same. */
static void other_ranks(accident *a)
{
    golden g, h;

    plain(a);
    build(a, &g, "topk_weights");
    build(a, &h, "topk_weights");
    for (int32_t i = 0; i < g.tokens * g.cfg.top_k; i++)
        if (h.ids[i] < h.cfg.first_expert || h.ids[i] >= h.cfg.first_expert + h.cfg.n_local) h.ids[i] = -1;
    CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 1));
    CHECK_OK(try_layer(a->dev, &h.cfg, &h.w, &h.io, 1));
    assert_memory_equal(g.y, h.y, (size_t)(g.tokens * g.cfg.hidden) * 4);
    checked(a, "props.0");
    if (json_array_size(json_object_get(a->expect, "props")) > 1) checked(a, "props.1");
    drop(&g);
    drop(&h);
}

static void no_rows(accident *a)
{
    golden g;
    char guard[64];

    build(a, &g, "topk_weights");
    memset(guard, 0x5c, sizeof guard);
    g.io.x = NULL;
    g.io.y = NULL;
    CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 2));
    g.io.y = guard;
    CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 2));
    for (size_t i = 0; i < sizeof guard; i++) CHECK(guard[i] == 0x5c, "%s: a run of no rows writes", a->id);
    checked(a, "props.0");
    drop(&g);
}

/* The alternative that moewe.h documents: an id that is no expert's adds nothing. */
static void id_past_the_end(accident *a)
{
    golden g, h;

    build(a, &g, "topk_weights");
    build(a, &h, "topk_weights");
    for (int32_t i = 0; i < h.tokens * h.cfg.top_k; i++)
        if (h.ids[i] >= h.cfg.n_experts) h.ids[i] = -1;
    CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 3));
    CHECK_OK(try_layer(a->dev, &h.cfg, &h.w, &h.io, 3));
    assert_memory_equal(g.y, h.y, (size_t)(g.tokens * g.cfg.hidden) * 4);
    CHECK(json_is_string(json_object_get(a->expect, "alternative")), "%s has no alternative", a->id);
    checked(a, "error_class");
    checked(a, "props.0");
    drop(&g);
    drop(&h);
}

/* Equal ids: the bits of both slots' weights in one, since these weights add exactly. */
static void equal_ids(accident *a)
{
    golden g, h;

    plain(a);
    build(a, &g, "topk_weights");
    build(a, &h, "topk_weights");
    for (int32_t t = 0; t < h.tokens; t++)
        if (h.ids[2 * t] == h.ids[2 * t + 1]) {
            h.weights[2 * t] += h.weights[2 * t + 1];
            h.ids[2 * t + 1] = -1;
        }
    CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 3));
    CHECK_OK(try_layer(a->dev, &h.cfg, &h.w, &h.io, 3));
    for (int32_t i = 0; i < g.tokens * g.cfg.hidden; i++) {
        double one = ref_load(g.y + i, MOEWE_DTYPE_F32), two = ref_load(h.y + i, MOEWE_DTYPE_F32);

        CHECK(one - two <= ref_error_bound(8.0, 32.0) && two - one <= ref_error_bound(8.0, 32.0), "%s: %g and %g",
              a->id, one, two);
    }
    checked(a, "props.0");
    drop(&g);
    drop(&h);
}

/* Rows from valid_rows on: moewe.h documents that they are not touched. */
static void garbage_rows(accident *a)
{
    int32_t valid = (int32_t)number(a->params, "valid_rows");
    unsigned char before[32];
    golden g;

    build(a, &g, "topk_weights");
    memcpy(before, g.y + valid * 8, 32);
    g.io.n_valid = &valid;
    CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 2));
    assert_memory_equal(before, g.y + valid * 8, 32);
    checked(a, "props.0");
    memset(g.y + valid * 8, 0, 32); /* what the golden rows have there */
    expects_rows(a, "out", g.y, 32);
    drop(&g);
}

static void on_input(accident *a)
{
    golden g;
    int differs = 0;

    plain(a);
    build(a, &g, "topk_weights");
    g.cfg.flags = 0;
    CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 2));
    for (int32_t i = 0; i < g.tokens * g.cfg.hidden; i++) {
        double want = real_at(json_array_get(json_object_get(a->expect, "out"), (size_t)(i / 8)), (size_t)(i % 8));

        differs += ref_load(g.y + i, MOEWE_DTYPE_F32) - want > 1e-3;
    }
    CHECK(differs > 0, "%s: weighting the output gives the same", a->id);
    checked(a, "props.0");
    checked(a, "props.1"); /* it is supported */
    drop(&g);
}

static void identity(accident *a)
{
    plain(a);
    checked(a, "props.0");
    checked(a, "props.1"); /* it is supported */
}

static void up_first(accident *a)
{
    plain(a);
    checked(a, "props.0"); /* gate and up are two views: there is no order to leave unsaid */
}

static void ungated(accident *a)
{
    golden g;

    plain(a);
    build(a, &g, "topk_weights");
    /* inter rows and no more: the exact buffer of I rows an expert has just been read to its end */
    expects(a, "exact", "gemm1_rows", (uint64_t)g.w.up.expert_stride / (uint64_t)(g.cfg.hidden * 4));
    drop(&g);
}

/* Two ranks with half of inter each; the one that counts the down bias is the first. */
static void split_inter(accident *a)
{
    int32_t tp = (int32_t)number(a->params, "tp"), part, n;
    golden g;
    float *sum, *whole;

    build(a, &g, "topk_weights");
    n = g.tokens * g.cfg.hidden;
    g.b_gate_up = must_alloc((uint64_t)g.stored * 8 * 4, 4);
    g.b_down = must_alloc((uint64_t)(g.stored * g.cfg.hidden) * 4, 4);
    fill_values(g.b_gate_up, (uint64_t)g.stored * 8, (uint64_t)number(a->params, "b_gate_up_seed"),
                real_or(a->params, "bias_scale", 1.0));
    fill_values(g.b_down, (uint64_t)(g.stored * g.cfg.hidden), (uint64_t)number(a->params, "b_down_seed"),
                real_or(a->params, "bias_scale", 1.0));
    part = g.cfg.inter / tp;
    sum = must_alloc((uint64_t)n * 4, 4);
    whole = must_alloc((uint64_t)n * 4, 4);
    for (int32_t rank = -1; rank < tp; rank++) { /* -1: in one piece */
        int32_t from = rank < 0 ? 0 : rank * part, width = rank < 0 ? g.cfg.inter : part;
        float gate_bias[4 * 4], up_bias[4 * 4];
        moewe_config cfg = g.cfg;
        moewe_weights w = g.w;
        moewe_io io = g.io;

        CHECK(g.stored * width <= 16, "test: %s is larger than its biases", a->id);
        cfg.inter = width;
        w.gate.data = (const char *)w.gate.data + (int64_t)from * cfg.hidden * 4;
        w.up.data = (const char *)w.up.data + (int64_t)from * cfg.hidden * 4;
        w.down.data = g.down + from;
        w.down.row_stride = g.cfg.inter * 4;
        w.down.expert_stride = (int64_t)g.cfg.inter * g.cfg.hidden * 4;
        for (int32_t e = 0; e < g.stored; e++)
            for (int32_t i = 0; i < width; i++) {
                gate_bias[e * width + i] = g.b_gate_up[e * 8 + from + i];
                up_bias[e * width + i] = g.b_gate_up[e * 8 + g.cfg.inter + from + i];
            }
        w.gate.bias = gate_bias;
        w.up.bias = up_bias;
        w.down.bias = rank <= 0 ? g.b_down : NULL;
        io.y = rank < 0 ? whole : sum;
        io.y_add = rank > 0;
        CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 2));
    }
    expects_rows(a, "sum_over_ranks", sum, g.cfg.hidden * 4);
    expects_rows(a, "sum_over_ranks", whole, g.cfg.hidden * 4);
    checked(a, "props.0");
    free(sum);
    free(whole);
    drop(&g);
}

/* The alternative: y over x is refused, wholly or in part. */
static void over_the_input(accident *a)
{
    golden g;
    float both[3 * 8 + 8];

    plain(a);
    build(a, &g, "topk_weights");
    for (int shift = 0; shift <= 8; shift += 4) {
        memcpy(both, g.x, 3 * 8 * 4);
        g.io.x = both;
        g.io.y = both + shift;
        assert_int_equal(try_layer(a->dev, &g.cfg, &g.w, &g.io, 2), MOEWE_E_ARG);
        says("overlap");
        assert_memory_equal(both, g.x, 3 * 8 * 4);
    }
    checked(a, "props.0");
    drop(&g);
}

/* The shared expert as the library has it, and as an expert of its own with weight 1 and the scale in the others. */
static void extra_expert(accident *a)
{
    static const char *const modes[] = {"scaling folded into weights", "scaling on the routed sum"};
    const json_t *listed = json_object_get(a->params, "modes");
    float scale = (float)real_or(a->params, "routed_scaling", 1.0);
    int32_t shared = (int32_t)number(a->params, "shared_expert_id"), k = (int32_t)number(a->params, "top_k");
    golden g;

    for (size_t m = 0; m < 2; m++) {
        assert_string_equal(json_string_value(json_array_get(listed, m)), modes[m]);
        build(a, &g, "routed_weights");
        if (m == 0) {
            int32_t ids[9];
            float weights[9];

            for (int i = 0; i < 9; i++) {
                ids[i] = (int32_t)real_at(json_array_get(json_object_get(a->params, "topk_ids"), (size_t)(i / 3)),
                                          (size_t)(i % 3));
                weights[i] = i % 3 < k ? g.weights[i / 3 * k + i % 3] * scale : 1.0f;
                CHECK(i % 3 < k || ids[i] == shared, "test: %s has its shared expert elsewhere", a->id);
            }
            g.cfg.n_experts = g.stored;
            g.cfg.top_k = k + 1;
            g.io.topk_ids = ids;
            g.io.topk_weights = weights;
            CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 2));
        } else {
            g.cfg.routed_scale = scale;
            g.cfg.shared_inter = g.cfg.inter;
            g.w.shared_gate = g.w.gate;
            g.w.shared_up = g.w.up;
            g.w.shared_down = g.w.down;
            g.w.shared_gate.data = (const char *)g.w.gate.data + shared * g.w.gate.expert_stride;
            g.w.shared_up.data = (const char *)g.w.up.data + shared * g.w.up.expert_stride;
            g.w.shared_down.data = g.down + shared * g.cfg.hidden * g.cfg.inter;
            CHECK_OK(try_layer(a->dev, &g.cfg, &g.w, &g.io, 2));
        }
        expects_rows(a, "out", g.y, g.cfg.hidden * 4);
        drop(&g);
    }
    checked(a, "props.0");
}

/* Values of GEMM 1 in, activated values out: x picks the first column, down is the identity. */
static void activated(accident *a, const float *gate, const float *up, int32_t n, int32_t act, double limit,
                      double alpha, double beta, float *out)
{
    const float weight = 1.0f;
    const int32_t id = 0;
    float x[8] = {1.0f}, g[64] = {0}, u[64] = {0}, down[64] = {0};
    moewe_config cfg;
    moewe_weights w;
    moewe_io io;

    CHECK(n <= 8, "test: %s has more than 8 values", a->id);
    for (int32_t i = 0; i < n; i++) {
        g[i * n] = gate[i];
        u[i * n] = up[i];
        down[i * n + i] = 1.0f;
    }
    MOEWE_INIT(cfg);
    MOEWE_INIT(w);
    MOEWE_INIT(io);
    cfg.hidden = cfg.inter = n;
    cfg.n_experts = cfg.top_k = cfg.max_tokens = 1;
    cfg.score = MOEWE_SCORE_GIVEN;
    cfg.act = act;
    cfg.act_limit = (float)limit;
    cfg.act_alpha = (float)alpha;
    cfg.act_beta = (float)beta;
    w.gate = w.up = w.down = (moewe_matrix){.dtype = MOEWE_DTYPE_F32};
    w.gate.data = g, w.up.data = u, w.down.data = down;
    io.n_tokens = 1;
    io.x = x;
    io.y = out;
    io.topk_ids = &id;
    io.topk_weights = &weight;
    CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 2));
}

static void orders_of_halves(accident *a)
{
    const json_t *rows = json_object_get(a->params, "gate_up_rows"), *modes = json_object_get(a->params, "modes");
    int32_t n = (int32_t)number(a->params, "intermediate");
    float gate[8] = {0}, up[8] = {0}, out[16];

    for (size_t m = 0; m < json_array_size(modes); m++) {
        const json_t *mode = json_array_get(modes, m);
        int interleaved = !strcmp(text_or(mode, "order", ""), "interleaved");

        for (int32_t i = 0; i < n; i++) {
            gate[i] = (float)real_at(rows, (size_t)(interleaved ? 2 * i : i));
            up[i] = (float)real_at(rows, (size_t)(interleaved ? 2 * i + 1 : n + i));
        }
        activated(a, gate, up, n, activation_of(text_or(mode, "act", "")), real_or(mode, "limit", 0.0),
                  real_or(mode, "alpha", 0.0), real_or(mode, "beta", 0.0), out + m * (size_t)n);
    }
    expects_rows(a, "act_out", out, n * 4);
    /* far below the limit: the gate is not clamped, and -20 sigmoid(-34) is nothing; up is, to -7 */
    checked(a, "props.0");
}

static void clipped_after(accident *a)
{
    const json_t *pairs = json_object_get(a->params, "pairs"), *want = json_object_get(a->expect, "act_out");
    float gate[8] = {0}, up[8] = {0}, out[8];
    int32_t n = (int32_t)json_array_size(pairs);

    for (int32_t i = 0; i < n; i++) {
        gate[i] = (float)real_at(json_array_get(pairs, (size_t)i), 0);
        up[i] = (float)real_at(json_array_get(pairs, (size_t)i), 1);
    }
    activated(a, gate, up, n, activation_of(text_or(a->params, "act", "")), real_or(a->params, "limit", 0.0), 0.0, 0.0,
              out);
    for (int32_t i = 0; i < n; i++) {
        double error = ref_load(out + i, MOEWE_DTYPE_F32) - real_at(want, (size_t)i);

        CHECK(error <= real_or(a->expect, "tol", 0.0) && -error <= real_or(a->expect, "tol", 0.0),
              "%s on %s: %d is off by %g", a->id, a->backend, i, error);
    }
    checked(a, "act_out");
    checked(a, "props.0");
}

const entry layer_entries[] = {
    {"C058", plain, 0},          {"C059", no_rows, 0},         {"C062", padding, 0},   {"C063", other_ranks, 0},
    {"C065", other_ranks, 0},    {"C067", id_past_the_end, 0}, {"C069", equal_ids, 0}, {"C073", garbage_rows, 0},
    {"C080", identity, 0},       {"C110", on_input, 0},        {"C113", plain, 0},     {"C114", orders_of_halves, 0},
    {"C116", clipped_after, 0},  {"C117", up_first, 0},        {"C118", ungated, 0},   {"C119", split_inter, 0},
    {"C122", over_the_input, 0}, {"C175", extra_expert, 0},    {NULL, NULL, 0},
};
