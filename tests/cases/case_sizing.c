/* case_sizing.c - owns the cases of kind workspace_sizing.  Numbers that the library does not print are measured from
 * what it accepts, refuses and books.  The layer works in chunks, so bytes that a case computes for one pass over all
 * rows are an upper bound here ("respect").  Weights of other formats than bf16 change nothing that is sized here. */
#include "accident.h"

#include <string.h>

/* ---- the layer that a case describes ---- */

static int32_t tokens_of(const json_t *p)
{
    int64_t each = number_or(p, "received_tokens", number_or(p, "capacity_rows_per_expert", 0));

    return (int32_t)(each ? each : number(p, "tokens_per_rank") * number_or(p, "dp", 1));
}

static moewe_config sized(const accident *a)
{
    moewe_config cfg = config_of(a->params);
    int32_t ep = (int32_t)number_or(a->params, "ep", 1);

    cfg.score = MOEWE_SCORE_SOFTMAX;
    cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_BF16;
    cfg.inter /= (int32_t)number_or(a->params, "tp", 1);
    cfg.n_local = (int32_t)number_or(a->params, "local_experts", ep > 1 ? cfg.n_experts / ep : 0);
    cfg.max_tokens = tokens_of(a->params);
    return cfg;
}

/* ---- measuring ---- */

/* Elements of a row between the two GEMMs. */
static uint64_t width_between(const accident *a, const moewe_config *cfg)
{
    moewe_config one = *cfg;

    one.max_tokens = one.top_k = 1;
    CHECK(one.inter % 32 == 0, "test: %s has rows that are rounded up", a->id);
    return region_of(a->dev, &one, "mid") / 2;
}

/* Rows between the two GEMMs for one token, at worst. */
static uint64_t rows_between(const accident *a, const moewe_config *cfg)
{
    moewe_config one = *cfg;

    one.max_tokens = 1;
    return region_of(a->dev, &one, "mid") / 2 / width_between(a, cfg);
}

/* Entries of a region of int32 for n tokens: 16 times as many are a multiple of any alignment. */
static uint64_t entries(const accident *a, const moewe_config *cfg, const char *region, int32_t n)
{
    moewe_config many = *cfg;

    many.max_tokens = 16 * n;
    return region_of(a->dev, &many, region) / 4 / 16;
}

static moewe_weights absent_weights(const moewe_config *cfg, const void **experts, int32_t n)
{
    static const uint64_t word;
    moewe_weights w;

    for (int32_t i = 0; i < n; i++) experts[i] = &word;
    MOEWE_INIT(w);
    w.up = (moewe_matrix){.experts = experts, .dtype = cfg->w_dtype};
    w.down = w.up;
    if (ref_gated(cfg->act)) w.gate = w.up;
    return w;
}

/* Matrices of GEMM 1, from what is required and what is refused. */
static uint64_t matrices_of_gemm1(const accident *a, const moewe_config *cfg)
{
    const void *experts[1024];
    moewe_weights w = absent_weights(cfg, experts, 1024);
    moewe_status with, without;
    moewe_plan *plan;
    moewe_need need;

    CHECK_OK(moewe_plan_create(a->dev, cfg, &plan));
    w.gate = w.up;
    with = moewe_weights_need(plan, &w, &need);
    memset(&w.gate, 0, sizeof w.gate);
    without = moewe_weights_need(plan, &w, &need);
    moewe_plan_destroy(plan);
    CHECK((with == MOEWE_OK) != (without == MOEWE_OK), "%s: a gate is neither needed nor refused", a->id);
    return with == MOEWE_OK ? 2 : 1;
}

/* Experts that weights must hold: the first NULL that nobody minds. */
static uint64_t experts_held(const accident *a, const moewe_config *cfg)
{
    const void *experts[1024];
    moewe_weights w = absent_weights(cfg, experts, 1024);
    moewe_status s = MOEWE_E_ARG;
    moewe_plan *plan;
    moewe_need need;
    int32_t e;

    CHECK_OK(moewe_plan_create(a->dev, cfg, &plan));
    for (e = 0; s && e < 1024; e++) {
        const void *here = experts[e];

        experts[e] = NULL;
        s = moewe_weights_need(plan, &w, &need);
        experts[e] = here;
    }
    moewe_plan_destroy(plan);
    return (uint64_t)e - 1;
}

/* A run of n rows, none of them valid, with x at offset bytes behind y.  Costs address space only. */
static moewe_status empty_run(const accident *a, const moewe_config *cfg, int32_t n, uint64_t offset)
{
    uint64_t rows = (uint64_t)n * (uint64_t)cfg->hidden * 2, span = rows + offset;
    const void *experts[1024];
    moewe_weights w = absent_weights(cfg, experts, 1024);
    int32_t none = 0;
    moewe_plan *plan;
    moewe_status s;
    moewe_need need;
    moewe_span ws;
    moewe_io io;
    char *y = sparse(span);

    MOEWE_INIT(io);
    io.n_tokens = n;
    io.n_valid = &none;
    io.y = y;
    io.x = y + offset;
    w.router = (moewe_matrix){.data = y, .dtype = MOEWE_DTYPE_BF16};
    CHECK_OK(moewe_plan_create(a->dev, cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    ws = (moewe_span){sparse(need.bytes), need.bytes};
    s = moewe_run(plan, &w, &io, ws, NULL);
    sparse_free(ws.ptr, ws.bytes);
    sparse_free(y, span);
    moewe_plan_destroy(plan);
    return s;
}

/* The plan's tokens: it serves so many and refuses one more, naming both numbers. */
static uint64_t tokens_served(const accident *a, const moewe_config *cfg)
{
    uint64_t n = (uint64_t)cfg->max_tokens, behind = (n + 1) * (uint64_t)cfg->hidden * 2;

    CHECK_OK(empty_run(a, cfg, cfg->max_tokens, behind));
    assert_int_equal(empty_run(a, cfg, cfg->max_tokens + 1, behind), MOEWE_E_RANGE);
    says_number(n);
    says_number(n + 1);
    return n;
}

/* Bytes of y: the least distance at which x does not overlap it. */
static uint64_t bytes_of_y(const accident *a, const moewe_config *cfg)
{
    uint64_t bytes = (uint64_t)cfg->max_tokens * (uint64_t)cfg->hidden * 2;

    CHECK_OK(empty_run(a, cfg, cfg->max_tokens, bytes));
    assert_int_equal(empty_run(a, cfg, cfg->max_tokens, bytes - 2), MOEWE_E_ARG);
    says("overlap");
    return bytes;
}

static uint64_t measure(const accident *a, const moewe_config *cfg, const char *key)
{
    uint64_t t = (uint64_t)cfg->max_tokens;

    if (!strcmp(key, "act_out_width")) return width_between(a, cfg);
    if (!strcmp(key, "gemm1_out_width")) return matrices_of_gemm1(a, cfg) * width_between(a, cfg);
    if (!strcmp(key, "routed_rows")) return t * entries(a, cfg, "order", 1);
    if (!strcmp(key, "worst_rows") || !strcmp(key, "worst_rows_local")) return t * rows_between(a, cfg);
    if (!strcmp(key, "id_entries")) return entries(a, cfg, "ids", cfg->max_tokens);
    if (!strcmp(key, "leading_dim")) return experts_held(a, cfg);
    if (!strcmp(key, "act_buffer_bytes")) return t * rows_between(a, cfg) * width_between(a, cfg) * 2;
    if (!strcmp(key, "output_bytes")) return bytes_of_y(a, cfg);
    if (!strcmp(key, "workspace_tokens") || !strcmp(key, "topk_rows") || !strcmp(key, "gathered_tokens"))
        return tokens_served(a, cfg);
    return UINT64_MAX;
}

/* Every key of exact and max that can be measured on the case's layer; the others are not_here.json's. */
static void sizes(accident *a)
{
    moewe_config cfg = sized(a);
    uint64_t bytes = need_of(a->dev, &cfg), order = region_of(a->dev, &cfg, "order") / 4;
    const json_t *v;
    const char *key;

    json_object_foreach(json_object_get(a->expect, "exact"), key, v)
    {
        uint64_t got = measure(a, &cfg, key);

        if (got != UINT64_MAX) expects(a, "exact", key, got);
    }
    CHECK(region_of(a->dev, &cfg, "mid") <=
              (uint64_t)cfg.max_tokens * rows_between(a, &cfg) * width_between(a, &cfg) * 2,
          "%s: mid has more than all rows", a->id);
    if (has_expectation(a, "max", "total_scratch_bytes")) expects(a, "max", "total_scratch_bytes", bytes);
    if (has_expectation(a, "max", "padded_rows")) expects(a, "max", "padded_rows", order);
}

/* A one-pass figure of the case that this library may stay below. */
static void respects(accident *a, const char *key, uint64_t got)
{
    uint64_t most = (uint64_t)number(json_object_get(a->expect, "exact"), key);

    CHECK(got <= most, "%s on %s: %s is %llu, needs at most %llu", a->id, a->backend, key, (unsigned long long)got,
          (unsigned long long)most);
    checked(a, "exact.%s", key);
}

/* ---- properties ---- */

/* The bytes of a rank are those of a model of its experts alone. */
static void local_experts(accident *a)
{
    moewe_config cfg = sized(a), alone;

    sizes(a);
    cfg.score = MOEWE_SCORE_GIVEN;
    alone = cfg;
    alone.n_experts = alone.n_local;
    assert_int_equal(need_of(a->dev, &cfg), need_of(a->dev, &alone));
    checked(a, "props.0");
}

/* All to one local expert, and all of them touched, in exactly the memory that was asked for. */
static void skewed(accident *a)
{
    sizes(a);
    for (int spread = 0; spread < 2; spread++) {
        moewe_config cfg = sized(a);
        int32_t n = cfg.max_tokens, k = cfg.top_k;
        float *x, *y, *weights;
        int32_t *ids;
        moewe_weights w;
        moewe_io io;
        thin t;

        cfg.hidden = cfg.inter = 4; /* rows are what is counted */
        cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_F32;
        cfg.score = MOEWE_SCORE_GIVEN;
        cfg.first_expert = cfg.n_local;
        w = thin_weights(&cfg, &t);
        x = must_alloc((uint64_t)n * 16, 4);
        y = must_alloc((uint64_t)n * 16, 4);
        ids = must_alloc((uint64_t)(n * k) * 4, 4);
        weights = must_alloc((uint64_t)(n * k) * 4, 4);
        for (int32_t i = 0; i < n * k; i++) {
            ids[i] = cfg.first_expert + (spread ? i % cfg.n_local : 0);
            weights[i] = 1.0f;
        }
        fill_values(x, (uint64_t)n * 4, 1, 1.0);
        MOEWE_INIT(io);
        io.n_tokens = n;
        io.x = x;
        io.y = y;
        io.topk_ids = ids;
        io.topk_weights = weights;
        CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 2));
        for (int32_t i = 0; i < n * 4; i++) CHECK(y[i] == y[i], "%s: y[%d] is NaN", a->id, i);
        free(x);
        free(y);
        free(ids);
        free(weights);
        thin_free(&t);
    }
    checked(a, "props.0");
}

/* Layers of equal shape in one workspace take what one takes. */
static void shared_by_layers(accident *a)
{
    moewe_config cfg = sized(a);
    uint64_t one = need_of(a->dev, &cfg);
    moewe_workspace *ws;
    moewe_need need;

    sizes(a);
    CHECK_OK(moewe_workspace_create(a->dev, 1, &ws));
    for (int64_t layer = 0; layer < number(a->params, "layers"); layer++) {
        moewe_plan *plan;

        CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
        CHECK_OK(moewe_workspace_reserve(ws, plan));
        moewe_plan_destroy(plan);
        CHECK_OK(moewe_workspace_need(ws, &need));
        assert_int_equal(need.bytes, one);
    }
    moewe_workspace_destroy(ws);
    checked(a, "props.0");
    if (has_expectation(a, "exact", "per_layer_bytes_reported")) respects(a, "per_layer_bytes_reported", one);
    if (has_expectation(a, "exact", "permuted_bytes")) respects(a, "permuted_bytes", one);
    if (has_expectation(a, "exact", "padded_rows_reported")) {
        uint64_t rows = region_of(a->dev, &cfg, "order") / 4;

        respects(a, "padded_rows_reported", rows);
        CHECK(rows <= (uint64_t)cfg.max_tokens * (uint64_t)cfg.top_k + (uint64_t)cfg.n_experts * 127,
              "%s: more rows than padded ones", a->id);
        checked(a, "props.1");
    }
}

static void follows_the_batch(accident *a)
{
    moewe_config cfg = sized(a);

    sizes(a);
    respects(a, "bytes_at_4096_rows", need_of(a->dev, &cfg));
    cfg.max_tokens = (int32_t)number(a->params, "rows_const");
    respects(a, "bytes_at_131072_rows", need_of(a->dev, &cfg));
}

static void gathered(accident *a)
{
    sizes(a);
    if (json_object_get(a->expect, "props")) checked(a, "props.0"); /* tokens_served runs both */
}

/* One byte less is refused before anything is done; exactly enough runs. */
static void one_byte_less(accident *a)
{
    moewe_config cfg = sized(a);
    uint16_t *x = sparse((uint64_t)cfg.hidden * 2), *y = must_alloc((uint64_t)cfg.hidden * 2, 2);
    moewe_plan *plan;
    moewe_status s;
    moewe_need need;
    moewe_weights w;
    moewe_span ws;
    moewe_io io;
    int32_t ids[64];
    float weights[64];
    thin t;

    cfg.score = MOEWE_SCORE_GIVEN;
    w = thin_weights(&cfg, &t);
    for (int i = 0; i < 64; i++) {
        ids[i] = i;
        weights[i] = 1.0f;
    }
    MOEWE_INIT(io);
    io.n_tokens = 1;
    io.x = x;
    io.y = y;
    io.topk_ids = ids;
    io.topk_weights = weights;
    CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes - 1};
    memset(ws.ptr, 0x5c, need.bytes);
    memset(y, 0x5c, (size_t)cfg.hidden * 2);
    s = moewe_run(plan, &w, &io, ws, NULL);
    refused_as(a, s);
    says_number(need.bytes);
    says_number(need.bytes - 1);
    checked(a, "error_must_name");
    for (uint64_t i = 0; i < need.bytes; i++)
        CHECK(((char *)ws.ptr)[i] == 0x5c, "%s: a refused run wrote byte %llu", a->id, (unsigned long long)i);
    for (int32_t i = 0; i < cfg.hidden; i++) CHECK(y[i] == 0x5c5c, "%s: a refused run wrote y", a->id);
    checked(a, "props.0");
    checked(a, "props.2");
    ws.bytes = need.bytes;
    CHECK_OK(moewe_run(plan, &w, &io, ws, NULL));
    checked(a, "props.1");
    free(ws.ptr);
    free(y);
    sparse_free(x, (uint64_t)cfg.hidden * 2);
    moewe_plan_destroy(plan);
    thin_free(&t);
}

/* For every count of experts, guards before and after the workspace. */
static void few_experts(accident *a)
{
    enum { GUARD = 4096, TOKENS = 16 };

    for (int32_t e = 1; e <= 512; e++) {
        moewe_config cfg = config_of(a->params);
        float x[TOKENS * 2], y[TOKENS * 2], logits[TOKENS * 512];
        moewe_weights w;
        moewe_plan *plan;
        moewe_need need;
        moewe_io io;
        char *block;
        thin t;

        cfg.hidden = cfg.inter = 2;
        cfg.n_experts = e;
        if (cfg.top_k > e) cfg.top_k = e;
        cfg.score = MOEWE_SCORE_SOFTMAX;
        cfg.max_tokens = TOKENS;
        w = thin_weights(&cfg, &t);
        fill_values(x, TOKENS * 2, 1, 1.0);
        fill_values(logits, (uint64_t)(TOKENS * e), 2, 4.0);
        MOEWE_INIT(io);
        io.n_tokens = TOKENS;
        io.x = x;
        io.y = y;
        io.logits = logits;
        CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
        CHECK_OK(moewe_plan_need(plan, &need));
        block = must_alloc(need.bytes + 2 * GUARD, need.align > GUARD ? need.align : GUARD);
        memset(block, 0x5c, need.bytes + 2 * GUARD);
        CHECK_OK(moewe_run(plan, &w, &io, (moewe_span){block + GUARD, need.bytes}, NULL));
        for (uint64_t i = 0; i < GUARD; i++)
            CHECK(block[i] == 0x5c && block[GUARD + need.bytes + i] == 0x5c, "%s: %d experts write past the workspace",
                  a->id, e);
        free(block);
        moewe_plan_destroy(plan);
        thin_free(&t);
    }
    checked(a, "props.0");
}

/* One workspace for every count of tokens up to the limit, and chunks of whatever size give the same bits. */
static void last_chunk(accident *a)
{
    int32_t n = (int32_t)number(a->params, "tokens_per_rank");
    moewe_config cfg = config_of(a->params);
    moewe_need least;
    moewe_plan *plan;
    moewe_span ws;
    layer_case c;
    char *y, *want;

    cfg.hidden = 40; /* chunks are of tokens: the widths of the case are C017's kind */
    cfg.inter = 24;
    cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_BF16;
    cfg.max_tokens = n;
    case_build(&c, &cfg, n, 0, 1);
    y = must_alloc(c.y_bytes, 4);
    want = must_alloc(c.y_bytes, 4);
    case_run(a->dev, &c, NULL, 0, 0, want);
    CHECK_OK(moewe_plan_floor(a->dev, &c.cfg, &least));
    for (uint64_t limit = least.bytes; limit < need_of(a->dev, &c.cfg); limit += limit / 3 + 64) {
        case_run(a->dev, &c, NULL, limit, 2, y);
        assert_memory_equal(y, want, c.y_bytes);
    }
    checked(a, "props.1");
    CHECK_OK(moewe_plan_create(a->dev, &c.cfg, &plan));
    ws.bytes = need_of(a->dev, &c.cfg);
    ws.ptr = must_alloc(ws.bytes, 64);
    for (int32_t t = 1; t <= n; t++) {
        moewe_io io = c.io;

        io.n_tokens = t;
        io.y = y;
        CHECK_OK(moewe_run(plan, &c.w, &io, ws, NULL));
        assert_memory_equal(y, want, (size_t)(t * cfg.hidden) * 2);
    }
    checked(a, "props.0");
    free(ws.ptr);
    free(y);
    free(want);
    moewe_plan_destroy(plan);
    case_free(&c);
}

/* Every region on the documented alignment, and the whole too. */
static void aligned(accident *a)
{
    static const int32_t tokens[] = {1, 3, 4095, 4097}, widths[] = {8, 1000, 2880};

    for (int i = 0; i < 12; i++)
        for (int32_t score = 0; score <= MOEWE_SCORE_GIVEN; score++) {
            moewe_config cfg = sized(a);
            moewe_plan *plan;
            moewe_need need;
            moewe_region r;

            cfg.max_tokens = tokens[i % 4];
            cfg.hidden = widths[i / 4];
            cfg.score = score;
            cfg.sparsemixer_eps = 0.01f;
            CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
            CHECK_OK(moewe_plan_need(plan, &need));
            CHECK(need.bytes % need.align == 0, "%s: need is %llu", a->id, (unsigned long long)need.bytes);
            for (int32_t k = 0; k < moewe_plan_region_count(plan); k++) {
                CHECK_OK(moewe_plan_region(plan, k, &r));
                CHECK(r.offset % need.align == 0, "%s: region %s is at %llu", a->id, r.name,
                      (unsigned long long)r.offset);
            }
            moewe_plan_destroy(plan);
        }
    checked(a, "props.0");
    checked(a, "props.1");
    checked(a, "props.2");
}

static void ungated_width(accident *a)
{
    static const int32_t widths[] = {256, 512, 4096};
    const json_t *also = json_object_get(json_object_get(a->expect, "also"), "gated");
    moewe_config cfg = sized(a);

    sizes(a);
    for (int i = 0; i < 3; i++) {
        cfg.hidden = widths[i];
        cfg.act = MOEWE_ACT_RELU2;
        expects(a, "exact", "gemm1_out_width", measure(a, &cfg, "gemm1_out_width"));
        expects(a, "exact", "act_out_width", measure(a, &cfg, "act_out_width"));
        cfg.act = MOEWE_ACT_SWIGLU;
        assert_int_equal(measure(a, &cfg, "gemm1_out_width"), number(also, "gemm1_out_width"));
        assert_int_equal(measure(a, &cfg, "act_out_width"), number(also, "act_out_width"));
    }
    checked(a, "props.0");
}

/* A plan is what it was when it was made: what is set in the caller's config later changes nothing, and a shared expert
 * that was not declared is refused. */
static void frozen(accident *a)
{
    const void *experts[1024];
    moewe_config cfg = config_of(a->params);
    moewe_plan *plan;
    moewe_need before, after, size;
    moewe_weights w;

    cfg.n_experts = (int32_t)number(a->params, "routed_experts");
    CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &before));
    cfg.shared_inter = 512;
    CHECK_OK(moewe_plan_need(plan, &after));
    assert_int_equal(before.bytes, after.bytes);
    cfg.w_dtype = MOEWE_DTYPE_F32;
    w = absent_weights(&cfg, experts, 1024);
    w.shared_up = (moewe_matrix){.data = &cfg, .dtype = MOEWE_DTYPE_F32};
    refused_as(a, moewe_weights_need(plan, &w, &size));
    says("shared_up");
    checked(a, "props.0");
    moewe_plan_destroy(plan);
}

/* A prompt of any length in the bytes of a chunk. */
static void prompt_in_chunks(accident *a)
{
    moewe_config cfg = config_of(a->params);
    int64_t prompt = number(a->params, "prompt_tokens"), chunk = number(a->params, "chunk_tokens"), left = prompt,
            n = 0;
    uint64_t bytes;

    cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_BF16;
    cfg.score = MOEWE_SCORE_SOFTMAX;
    cfg.max_tokens = (int32_t)chunk;
    bytes = need_of(a->dev, &cfg);
    expects(a, "max", "total_scratch_bytes", bytes);
    expects(a, "exact", "rows_per_chunk", (uint64_t)chunk * entries(a, &cfg, "order", 1));
    for (; left > 0; left -= chunk) n++; /* runs of that plan */
    expects(a, "exact", "chunks", (uint64_t)n);
    cfg.max_tokens = (int32_t)prompt;
    cfg.workspace_limit = bytes;
    CHECK(need_of(a->dev, &cfg) <= bytes, "%s: the limit does not hold", a->id);
    checked(a, "props.0");
}

const entry sizing_entries[] = {
    {"C001", sizes, 0},
    {"C002", sizes, 0},
    {"C003", local_experts, 0},
    {"C004", sizes, 0},
    {"C005", skewed, 0},
    {"C007", sizes, 0},
    {"C008", follows_the_batch, 0},
    {"C010", shared_by_layers, 0},
    {"C011", gathered, 0},
    {"C012", gathered, 0},
    {"C013", shared_by_layers, 0},
    {"C015", shared_by_layers, 0},
    {"C017", one_byte_less, 0},
    {"C018", sizes, 0},
    {"C019", sizes, 0},
    {"C020", sizes, 0},
    {"C021", sizes, 0},
    {"C024", gathered, 0},
    {"C025", gathered, 0},
    {"C027", sizes, 0},
    {"C028", few_experts, 0},
    {"C029", last_chunk, 0},
    {"C030", aligned, 0},
    {"C031", ungated_width, 0},
    {"C181", frozen, 0},
    {"C193", prompt_in_chunks, 0},
    {NULL, NULL, 0},
};
