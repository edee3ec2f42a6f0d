/* case_limits.c - owns the cases of kind integer_limits: rows, experts and elements beyond 2^31.  They lie in address
 * space that is never all touched.  It must never replace an offset by a smaller one. */
#include "case_planner.h"

#include <string.h>

/* Row 1 of x and of y lies `offset` elements after row 0: the same bits as packed. */
static void row_at(const accident *a, uint64_t offset, int32_t hidden)
{
    moewe_config cfg = config_of(a->params);
    uint64_t bytes = offset * 4 + (uint64_t)hidden * 4;
    char *x = sparse(bytes), *y = sparse(bytes), *want;
    layer_case c;
    moewe_io far;

    cfg.hidden = hidden;
    cfg.inter = 4;
    cfg.n_experts = 8;
    cfg.top_k = (int32_t)number_or(a->params, "top_k", 2);
    cfg.max_tokens = 2;
    case_build(&c, &cfg, 2, 0, 3);
    want = must_alloc(c.y_bytes, 4);
    case_run(a->dev, &c, NULL, 0, 0, want);
    memcpy(x, c.io.x, (size_t)hidden * 4);
    memcpy(x + offset * 4, (const char *)c.io.x + hidden * 4, (size_t)hidden * 4);
    far = c.io;
    far.x = x;
    far.y = y;
    far.x_stride = far.y_stride = (int64_t)offset * 4;
    CHECK_OK(try_layer(a->dev, &c.cfg, &c.w, &far, 2));
    assert_memory_equal(y, want, (size_t)hidden * 4);
    CHECK(!memcmp(y + offset * 4, want + hidden * 4, (size_t)hidden * 4),
          "%s on %s: the row at element %llu is another", a->id, a->backend, (unsigned long long)offset);
    free(want);
    case_free(&c);
    sparse_free(x, bytes);
    sparse_free(y, bytes);
}

/* n rows of width columns, of which only some have experts: each of those as when run alone. */
static void many_rows(const accident *a, const moewe_config *base, int32_t n, int64_t x_stride, const int32_t *probe,
                      int32_t n_probe)
{
    moewe_config cfg = *base;
    uint64_t y_bytes = (uint64_t)n * (uint64_t)cfg.hidden * 2, x_bytes = (uint64_t)n * (uint64_t)x_stride;
    uint16_t alone[4096];
    char *x = sparse(x_bytes), *y = sparse(y_bytes);
    int32_t *ids = must_alloc((uint64_t)n * (uint64_t)cfg.top_k * 4, 4);
    float *weights = must_alloc((uint64_t)n * (uint64_t)cfg.top_k * 4, 4);
    moewe_weights w;
    moewe_io io;
    thin t;

    CHECK(cfg.hidden <= 4096, "test: %s is wider", a->id);
    cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_BF16;
    cfg.max_tokens = n;
    w = thin_weights(&cfg, &t);
    memset(ids, 0xff, (size_t)n * (size_t)cfg.top_k * 4);
    for (int32_t p = 0; p < n_probe; p++)
        for (int32_t i = 0; i < cfg.hidden || i < cfg.top_k; i++) {
            if (i < cfg.hidden)
                store(x + probe[p] * x_stride + i * 2, MOEWE_DTYPE_BF16, value((uint64_t)probe[p], (uint64_t)i, 2.0));
            if (i < cfg.top_k) ids[(int64_t)probe[p] * cfg.top_k + i] = (i * 5 + p) % cfg.n_experts;
        }
    for (int64_t i = 0; i < (int64_t)n * cfg.top_k; i++) weights[i] = 0.25f;
    MOEWE_INIT(io);
    io.n_tokens = n;
    io.x = x;
    io.x_stride = x_stride;
    io.y = y;
    io.topk_ids = ids;
    io.topk_weights = weights;
    CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 0));
    for (int32_t p = 0; p < n_probe; p++) {
        int64_t at = probe[p];

        io.n_tokens = 1;
        io.x = x + at * x_stride;
        io.y = alone;
        io.topk_ids = ids + at * cfg.top_k;
        CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 2));
        CHECK(!memcmp(alone, y + at * cfg.hidden * 2, (size_t)cfg.hidden * 2), "%s on %s: row %d of %d is another",
              a->id, a->backend, probe[p], n);
        CHECK(alone[0] != 0 || alone[1] != 0, "test: %s: row %d is empty", a->id, probe[p]);
    }
    free(ids);
    free(weights);
    thin_free(&t);
    sparse_free(x, x_bytes);
    sparse_free(y, y_bytes);
}

static void product_of_rows(accident *a)
{
    moewe_config cfg = config_of(a->params);
    uint64_t n = (uint64_t)number(a->params, "tokens"), each = (uint64_t)cfg.top_k * (uint64_t)cfg.hidden;
    moewe_plan *plan;

    expects(a, "exact", "max_elem_offset", n * each);
    expects(a, "exact", "first_bad_tokens", ((uint64_t)1 << 31) / each + 1);
    row_at(a, n * each, cfg.hidden);
    checked(a, "props.1");
    cfg.n_experts = 64;
    cfg.max_tokens = (int32_t)n;
    cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_BF16;
    CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
    moewe_plan_destroy(plan);
    cfg.max_tokens = INT32_MAX; /* pairs alone are beyond 2^31 now, their bytes beyond 2^33 */
    cfg.score = MOEWE_SCORE_SOFTMAX;
    CHECK(need_of(a->dev, &cfg) > 0, "%s: no need", a->id);
    checked(a, "props.0");
}

static void product_of_gemm1(accident *a)
{
    uint64_t rows = (uint64_t)number_or(a->params, "rows", 0), width = (uint64_t)number(a->params, "gemm1_width");

    if (!rows) rows = (uint64_t)number(a->params, "tokens") * (uint64_t)number(a->params, "top_k");
    expects(a, "exact", "offset", rows * width);
    row_at(a, rows * width, (int32_t)number_or(a->params, "hidden", 512));
}

static void at_a_power_of_two(accident *a)
{
    const json_t *counts = json_object_get(a->params, "tokens");
    moewe_config cfg = config_of(a->params);
    uint64_t each = (uint64_t)cfg.top_k * (uint64_t)cfg.hidden;

    expects(a, "exact", "offset_at_131072", (uint64_t)real_at(counts, 1) * each);
    cfg.inter = 4;
    cfg.n_experts = 16;
    for (size_t i = 0; i < json_array_size(counts); i++) {
        int32_t n = (int32_t)real_at(counts, i), probe[4] = {0, n / 2, n - 2, n - 1};

        row_at(a, (uint64_t)n * each, 64);
        many_rows(a, &cfg, n, cfg.hidden * 2, probe, 4);
    }
    checked(a, "props.0");
}

static void elements(accident *a)
{
    uint64_t total = (uint64_t)number(a->params, "ep") * (uint64_t)number(a->params, "tokens_per_rank");
    uint64_t h = (uint64_t)number(a->params, "hidden");

    expects(a, "exact", "total_tokens", total);
    expects(a, "exact", "elements", total * h);
    expects(a, "exact", "scale_elements", total * h / (uint64_t)number(a->params, "sf_vec"));
    row_at(a, total * h, (int32_t)h);
}

static void wide_stride(accident *a)
{
    const json_t *counts = json_object_get(a->params, "tokens");
    int64_t stride = number(a->params, "row_stride");
    moewe_config cfg = config_of(a->params);
    int32_t n = (int32_t)real_at(counts, json_array_size(counts) - 1), probe[8], n_probe = 0;

    expects(a, "exact", "last_safe_int32_token_index", (((uint64_t)1 << 31) - 1) / (uint64_t)stride);
    for (size_t i = 0; i + 1 < json_array_size(counts); i++) probe[n_probe++] = (int32_t)real_at(counts, i);
    probe[n_probe++] = n - 1;
    many_rows(a, &cfg, n, stride * 2, probe, n_probe);
}

static void token_limit(accident *a)
{
    const json_t *counts = json_object_get(a->params, "tokens");
    moewe_config cfg = config_of(a->params);

    for (size_t i = 0; i < json_array_size(counts); i++) {
        int32_t n = (int32_t)real_at(counts, i), probe[3] = {0, n - 2, n - 1};

        many_rows(a, &cfg, n, cfg.hidden * 2, probe, 3);
    }
}

/* Element (row, col) of a matrix size_n wide, both far beyond 32 bits when multiplied. */
static void element_of_a_matrix(accident *a)
{
    uint64_t row = (uint64_t)number(a->params, "row"), wide = (uint64_t)number(a->params, "size_n");
    uint64_t col = (uint64_t)number(a->params, "col"), offset = row * wide + col, bytes = (offset + 1) * 2;
    uint16_t *up = sparse(bytes);
    const uint16_t one = 0x3f80;
    const uint16_t down[4] = {0, one, 0, one}; /* row 1 of the middle, twice */
    const float weight = 1.0f, x[2] = {1.0f, 1.0f};
    const int32_t id = 0;
    float y[2];
    moewe_config cfg = config_of(a->params);
    moewe_weights w;
    moewe_io io;

    expects(a, "exact", "offset", offset);
    /* two rows of two columns, the last element of all at that offset */
    store(up + offset, MOEWE_DTYPE_BF16, 3.0);
    cfg.hidden = 2;
    cfg.inter = 2;
    cfg.n_experts = cfg.top_k = 1;
    cfg.act = MOEWE_ACT_RELU;
    cfg.w_dtype = MOEWE_DTYPE_BF16;
    MOEWE_INIT(w);
    MOEWE_INIT(io);
    w.up =
        (moewe_matrix){.data = up, .dtype = MOEWE_DTYPE_BF16, .row_stride = (int64_t)(offset - 1) * 2, .col_stride = 2};
    w.down = (moewe_matrix){.data = down, .dtype = MOEWE_DTYPE_BF16};
    io.n_tokens = 1;
    io.x = x;
    io.y = y;
    io.topk_ids = &id;
    io.topk_weights = &weight;
    CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 2));
    CHECK(y[0] == 3.0f && y[1] == 3.0f, "%s on %s: the element at %llu reads as %g", a->id, a->backend,
          (unsigned long long)offset, (double)y[0]);
    sparse_free(up, bytes);
}

/* Experts of [rows][cols] packed one after another; the probed ones hold a number of their own in their last element. */
static void experts_apart(accident *a, int32_t experts, int32_t rows, int32_t cols)
{
    const json_t *probes = json_object_get(a->params, "probe_experts");
    uint64_t each = (uint64_t)rows * (uint64_t)cols, bytes = (uint64_t)experts * each * 2;
    char *up = sparse(bytes), *down = sparse(bytes);
    float *x = must_alloc((uint64_t)cols * 4, 4), *y = must_alloc((uint64_t)cols * 4, 4), weight = 1.0f;
    moewe_config cfg = config_of(a->params);
    moewe_weights w;
    moewe_io io;

    memset(x, 0, (size_t)cols * 4);
    x[cols - 1] = 1.0f;
    cfg.hidden = cols;
    cfg.inter = rows;
    cfg.n_experts = experts;
    cfg.top_k = 1;
    cfg.act = MOEWE_ACT_RELU;
    cfg.w_dtype = MOEWE_DTYPE_BF16;
    MOEWE_INIT(w);
    w.up = (moewe_matrix){.data = up, .dtype = MOEWE_DTYPE_BF16};
    w.down = (moewe_matrix){.data = down, .dtype = MOEWE_DTYPE_BF16};
    for (size_t p = 0; p < json_array_size(probes); p++) {
        uint64_t e = (uint64_t)real_at(probes, p), last = (e + 1) * each - 1;

        store(up + last * 2, MOEWE_DTYPE_BF16, (double)p + 2.0);
        store(down + last * 2, MOEWE_DTYPE_BF16, 1.0);
    }
    for (size_t p = 0; p < json_array_size(probes); p++) {
        int32_t id = (int32_t)real_at(probes, p);

        MOEWE_INIT(io);
        io.n_tokens = 1;
        io.x = x;
        io.y = y;
        io.topk_ids = &id;
        io.topk_weights = &weight;
        CHECK_OK(try_layer(a->dev, &cfg, &w, &io, 2));
        CHECK(y[cols - 1] == (float)p + 2.0f && y[0] == 0.0f, "%s on %s: expert %d answers %g, needs %g", a->id,
              a->backend, id, (double)y[cols - 1], (double)p + 2.0);
    }
    free(x);
    free(y);
    sparse_free(up, bytes);
    sparse_free(down, bytes);
}

static void last_experts(accident *a)
{
    int32_t e = (int32_t)number(a->params, "experts"), k = (int32_t)number(a->params, "k"),
            n = (int32_t)number(a->params, "n");
    uint64_t each = (uint64_t)k * (uint64_t)n;

    expects(a, "exact", "last_expert_offset", (uint64_t)(e - 1) * each);
    expects(a, "exact", "first_expert_past_2_31", (((uint64_t)1 << 31) + each - 1) / each);
    experts_apart(a, e, n, k);
}

/* As bf16, of which expert 293 is past 16 GiB; the bytes of the 4-bit table are the planner's. */
static void beyond_four_gib(accident *a)
{
    packed_experts(a);
    experts_apart(a, (int32_t)number(a->params, "experts"), (int32_t)number(a->params, "intermediate"),
                  (int32_t)number(a->params, "hidden"));
}

/* Bytes of packed weights are counted in 64 bits. */
static void stacked_elements(accident *a)
{
    moewe_config cfg = config_of(a->params);
    uint64_t total = (uint64_t)cfg.n_experts * (uint64_t)cfg.hidden * (uint64_t)cfg.inter;
    moewe_plan *plan;
    moewe_need with, without;
    moewe_weights w;
    thin t;

    cfg.w_dtype = MOEWE_DTYPE_BF16;
    w = thin_weights(&cfg, &t);
    CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
    CHECK_OK(moewe_weights_need(plan, &w, &with));
    moewe_plan_destroy(plan);
    cfg.act = MOEWE_ACT_SILU; /* one matrix fewer */
    memset(&w.gate, 0, sizeof w.gate);
    CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
    CHECK_OK(moewe_weights_need(plan, &w, &without));
    moewe_plan_destroy(plan);
    expects(a, "exact", "elements", (with.bytes - without.bytes) / 2);
    CHECK(with.bytes >= 3 * total * 2, "%s: packed weights take %llu", a->id, (unsigned long long)with.bytes);
    thin_free(&t);
}

const entry limit_entries[] = {
    {"C083", product_of_rows, 1},     {"C084", product_of_gemm1, 1}, {"C085", product_of_gemm1, 1},
    {"C086", at_a_power_of_two, 1},   {"C087", elements, 1},         {"C088", wide_stride, 1},
    {"C089", element_of_a_matrix, 0}, {"C091", last_experts, 1},     {"C092", beyond_four_gib, 1},
    {"C093", stacked_elements, 0},    {"C095", token_limit, 1},      {NULL, NULL, 0},
};
