/* test_quant.c - owns weights with scales: whole layers of every kind against the f64 oracle, in shapes that fit
 * nothing and on every back end, and values that other programs or plain arithmetic gave.  It must never hold a
 * tolerance of its own: bounds are the oracle's, and the errors of whole layers by dtype are a promise (weight_kinds). */
#include "../support/weight_kind.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../data/quant_vectors.h"

enum { SHARED = 1, LATENT = 2, ROUTED = 4 }; /* ROUTED: by a router of the kind; else by given ids */

typedef struct trial {
    int32_t hidden, inter, tokens, top_k; /* widths are rounded up to what the kinds can be */
    int32_t x_dtype, y_dtype, act;
    unsigned with, parts;
} trial;

static const trial trials[] = {
    {33, 17, 70, 1, MOEWE_DTYPE_F32, MOEWE_DTYPE_F32, MOEWE_ACT_SWIGLU, 0, 0},
    {131, 77, 33, 1, MOEWE_DTYPE_BF16, MOEWE_DTYPE_F32, MOEWE_ACT_SWIGLU_OAI,
     WITH_BIAS1 | WITH_BIAS2 | WITH_UNALIGNED | WITH_POINTERS | WITH_STRIDES, 0},
    {48, 96, 3, 3, MOEWE_DTYPE_F32, MOEWE_DTYPE_BF16, MOEWE_ACT_GELU, WITH_TRANSPOSED | WITH_Y_ADD, 0},
    {96, 32, 5, 2, MOEWE_DTYPE_F32, MOEWE_DTYPE_F32, MOEWE_ACT_SWIGLU,
     WITH_SHARED_SCALE | WITH_SHARED_BIAS | WITH_LATENT_BIAS | WITH_UNALIGNED, SHARED | LATENT | ROUTED},
    {2880, 30, 1, 2, MOEWE_DTYPE_F32, MOEWE_DTYPE_F32, MOEWE_ACT_REGLU, WITH_TRANSPOSED | WITH_POINTERS, SHARED},
    {30, 1440, 2, 1, MOEWE_DTYPE_BF16, MOEWE_DTYPE_BF16, MOEWE_ACT_RELU2, WITH_STRIDES, 0},
};
enum { TRIALS = sizeof trials / sizeof trials[0] };

static int32_t up_to(int32_t n, int32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static void build(layer_case *c, const trial *s, const weight_kind *gate_up, const weight_kind *down, uint64_t seed)
{
    moewe_config cfg = small_config();
    int32_t unit = weight_kind_unit(gate_up), inner = weight_kind_unit(down);

    cfg.hidden = up_to(s->hidden, unit);
    cfg.inter = up_to(s->inter, inner);
    cfg.n_experts = 4;
    cfg.top_k = s->top_k;
    cfg.x_dtype = s->x_dtype;
    cfg.y_dtype = s->y_dtype;
    cfg.act = s->act;
    if (!(s->parts & ROUTED)) {
        cfg.score = MOEWE_SCORE_GIVEN;
        cfg.flags = 0;
    }
    if (s->parts & SHARED) cfg.shared_inter = up_to(21, unit);
    if (s->parts & LATENT) cfg.latent = up_to(50, unit);
    case_build_of(c, &cfg, s->tokens, s->with, seed * 4 + 3, gate_up, down); /* 3: router and latent of the kind */
}

/* Codes are whole numbers: every back end computes alike with them. */
static int whole_numbers(const weight_kind *k)
{
    return k->dtype >= MOEWE_DTYPE_E2M1;
}

/* Plain and packed on every back end. */
static void check(const trial *s, const weight_kind *gate_up, const weight_kind *down, uint64_t seed, tally *t)
{
    backend_list list = cpu_backends();
    ref_value *wanted = NULL, *margins = NULL;
    char what[160], *y, *again, *first;
    int alike = whole_numbers(gate_up) && whole_numbers(down) && !(s->parts & (ROUTED | SHARED));
    layer_case c;

    build(&c, s, gate_up, down, seed);
    y = must_alloc(c.y_bytes, 1);
    first = must_alloc(c.y_bytes, 1);
    again = must_alloc(c.y_bytes, 1);
    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *dev = open_backend(list.name[b], 2);
        moewe_weights packed;
        void *mem;

        free(wanted);
        free(margins);
        oracle_for(list.name[b]);
        wanted = case_wanted(&c, &margins);
        snprintf(what, sizeof what, "%s: %s, down %s, %d x %d, %d tokens", list.name[b], gate_up->name, down->name,
                 c.cfg.hidden, c.cfg.inter, s->tokens);
        case_run(dev, &c, NULL, 0, 2, y);
        case_compare(&c, y, wanted, margins, t, what);
        packed = case_pack(dev, &c, &mem);
        case_run(dev, &c, &packed, 0, 1, again);
        CHECK(!memcmp(y, again, c.y_bytes), "%s: other bits packed", what);
        if (!b) memcpy(first, y, c.y_bytes);
        if (alike) CHECK(!memcmp(y, first, c.y_bytes), "%s: other bits than %s", what, list.name[0]);
        free(mem);
        moewe_device_close(dev);
    }
    free(wanted);
    free(margins);
    free(y);
    free(again);
    free(first);
    case_free(&c);
}

static void every_kind(void **state)
{
    (void)state;
    for (int32_t k = 0; k < weight_kind_count; k++) {
        tally t = {0};

        for (uint64_t i = 0; i < TRIALS; i++) check(&trials[i], &weight_kinds[k], &weight_kinds[k], i, &t);
        print_message("%-18s worst error %.3f of the bound\n", weight_kinds[k].name, t.worst);
    }
}

static void mixed_kinds(void **state)
{
    static const char *const pairs[][2] = {
        {"q4_k", "q6_k"}, {"q4_0", "q8_0"},    {"mxfp4", "bf16"},       {"bf16", "q4_0"}, {"nvfp4", "e4m3 row"},
        {"f32", "q6_k"},  {"i4 64 f16", "f16"}, {"e4m3 128x128", "f32"}, {"q6_k", "i8 32 f16"}};
    tally t = {0};

    (void)state;
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++)
        for (uint64_t i = 1; i < TRIALS; i += 2)
            check(&trials[i], weight_kind_named(pairs[p][0]), weight_kind_named(pairs[p][1]), i, &t);
}

/* Names, and sizes as the formats' publishers have them. */
static void dtypes(void **state)
{
    static const struct {
        int32_t dtype;
        const char *name;
        uint32_t bytes;
        int32_t n, in; /* n elements in so many bytes */
    } table[] = {
        {MOEWE_DTYPE_DEFAULT, "?", 0, 32, 0},    {MOEWE_DTYPE_F32, "f32", 4, 3, 12},
        {MOEWE_DTYPE_F16, "f16", 2, 3, 6},       {MOEWE_DTYPE_BF16, "bf16", 2, 3, 6},
        {MOEWE_DTYPE_E4M3, "e4m3", 1, 3, 3},     {MOEWE_DTYPE_E2M1, "e2m1", 0, 6, 3},
        {MOEWE_DTYPE_I8, "i8", 1, 3, 3},         {MOEWE_DTYPE_I4, "i4", 0, 6, 3},
        {MOEWE_DTYPE_Q8_0, "q8_0", 0, 96, 102},  {MOEWE_DTYPE_Q4_0, "q4_0", 0, 96, 54},
        {MOEWE_DTYPE_Q4_K, "q4_k", 0, 512, 288}, {MOEWE_DTYPE_Q6_K, "q6_k", 0, 512, 420},
        {MOEWE_DTYPE_E8M0, "e8m0", 1, 3, 3},     {13, "?", 0, 32, 0},
        {77, "?", 0, 256, 0},                    {-1, "?", 0, 256, 0},
        {INT32_MAX, "?", 0, 256, 0},             {INT32_MIN, "?", 0, 256, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int32_t dtype = table[i].dtype;

        assert_string_equal(moewe_dtype_name(dtype), table[i].name);
        assert_int_equal(moewe_dtype_bytes(dtype), table[i].bytes);
        assert_int_equal(moewe_dtype_row_bytes(dtype, table[i].n), table[i].in);
        assert_int_equal(moewe_dtype_row_bytes(dtype, 0), 0);
        assert_int_equal(moewe_dtype_row_bytes(dtype, -256), 0);
        assert_true(moewe_dtype_row_bytes(dtype, (int64_t)table[i].n << 36) == (uint64_t)table[i].in << 36);
    }
    assert_int_equal(moewe_dtype_row_bytes(MOEWE_DTYPE_E2M1, 7), 0);
    assert_int_equal(moewe_dtype_row_bytes(MOEWE_DTYPE_I4, 1), 0);
    assert_int_equal(moewe_dtype_row_bytes(MOEWE_DTYPE_Q8_0, 48), 0);
    assert_int_equal(moewe_dtype_row_bytes(MOEWE_DTYPE_Q4_0, 31), 0);
    assert_int_equal(moewe_dtype_row_bytes(MOEWE_DTYPE_Q4_K, 128), 0);
    assert_int_equal(moewe_dtype_row_bytes(MOEWE_DTYPE_Q6_K, 257), 0);
}

/* ---- errors of whole layers ---- */

static double normal(rng *r)
{
    double sum = 0.0;

    for (int i = 0; i < 12; i++) sum += rng_real(r);
    return 0.5 * sum; /* twelve uniform numbers in (-1, 1) have variance 4 */
}

/* Relative Frobenius error of one run. */
static double layer_error(const moewe_device *dev, const layer_case *c, const ref_value *wanted)
{
    char *y = must_alloc(c->y_bytes, 1);
    double off = 0.0, all = 0.0;
    int64_t h = c->cfg.hidden, size = dtype_size(c->cfg.y_dtype);

    case_run(dev, c, NULL, 0, 0, y);
    for (int64_t i = 0; i < c->io.n_tokens * h; i++) {
        double d = ref_load(y + i * size, c->cfg.y_dtype) - wanted[i].v;

        off += d * d;
        all += wanted[i].v * wanted[i].v;
    }
    free(y);
    return sqrt(off / all);
}

/* Normal x, of such a size that gate and up values have variance 1. */
static void one_layer_error(const weight_kind *k, const weight_kind *down, int32_t io_dtype)
{
    backend_list list = cpu_backends();
    moewe_config cfg = small_config();
    double promise = k->frobenius > down->frobenius ? k->frobenius : down->frobenius;
    ref_value *wanted, *margins;
    layer_case c;
    rng r = {77};
    char *x;

    cfg.hidden = 512;
    cfg.inter = 256;
    cfg.n_experts = 3;
    cfg.top_k = 2;
    cfg.score = MOEWE_SCORE_GIVEN;
    cfg.flags = 0;
    cfg.x_dtype = io_dtype;
    case_build_of(&c, &cfg, 6, 0, 12, k, down);
    x = case_keep(&c, must_alloc(6 * 512 * 4, 4));
    for (int64_t i = 0; i < 6 * 512; i++) store(x + i * dtype_size(io_dtype), io_dtype, normal(&r) / 1.5);
    c.io.x = x;
    wanted = case_wanted(&c, &margins);
    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *dev = open_backend(list.name[b], 2);
        double off = layer_error(dev, &c, wanted);

        print_message("%-18s %-18s %-15s off by %.3g, promised %.3g\n", k->name, down->name, list.name[b], off,
                      promise);
        CHECK(off <= promise, "%s: a layer of %s and %s is off by %.3g, promised %.3g", list.name[b], k->name,
              down->name, off, promise);
        moewe_device_close(dev);
    }
    free(wanted);
    free(margins);
    case_free(&c);
}

static void layer_errors(void **state)
{
    (void)state;
    one_layer_error(weight_kind_named("f32"), weight_kind_named("f32"), MOEWE_DTYPE_F32);
    one_layer_error(weight_kind_named("bf16"), weight_kind_named("bf16"), MOEWE_DTYPE_BF16);
    for (int32_t k = 0; k < weight_kind_count; k++)
        one_layer_error(&weight_kinds[k], &weight_kinds[k], MOEWE_DTYPE_F32);
    one_layer_error(weight_kind_named("q4_k"), weight_kind_named("q6_k"), MOEWE_DTYPE_F32);
}

/* ---- values that are known ---- */

static double value_of(uint32_t word)
{
    return ref_load(&word, MOEWE_DTYPE_F32);
}

static int alike(double got, double want, double room)
{
    return isnan(want) ? isnan(got) : fabs(got - want) <= room;
}

/* A unit vector rounded to int8 is 127 steps of 1/127, which is no f32: an ulp or two.  E4M3 takes x as it is, or
 * rounded to bf16, which 1.0 does not mind. */
static double room_of(const moewe_matrix *m, ref_weight w)
{
    return m->dtype == MOEWE_DTYPE_E4M3 ? 0.0 : ref_error_bound(4.0, w.size);
}

/* The matrix on each unit vector: y is its elements, without rounding where an element takes none.  Plain and packed,
 * and by the oracle. */
static void has_values(const moewe_device *dev, moewe_matrix m, int32_t rows, int32_t cols, const uint32_t *values,
                       const char *what)
{
    float *x = must_alloc((uint64_t)cols * (uint64_t)cols * sizeof *x, 4);
    float *y = must_alloc((uint64_t)cols * (uint64_t)rows * sizeof *y, 4);
    moewe_linear lin, packed;
    moewe_need need;
    moewe_span mem;

    for (int64_t i = 0; i < (int64_t)cols * cols; i++) x[i] = i % (cols + 1) ? 0.0f : 1.0f;
    MOEWE_INIT(lin);
    lin.rows = rows;
    lin.cols = cols;
    lin.matrix = m;
    CHECK_OK(moewe_linear_need(dev, &lin, &need));
    mem = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    CHECK_OK(moewe_linear_pack(dev, &lin, mem, NULL, &packed));
    for (int i = 0; i < 2; i++) {
        fill_pattern(y, (uint64_t)cols * (uint64_t)rows * sizeof *y, 1);
        CHECK_OK(moewe_linear_run(dev, i ? &packed : &lin, cols, x, 0, y, 0, NULL));
        for (int32_t r = 0; r < rows; r++)
            for (int32_t c = 0; c < cols; c++)
                CHECK(alike((double)y[(int64_t)c * rows + r], value_of(values[(int64_t)r * cols + c]),
                            room_of(&m, ref_weight_at(&m, rows, cols, 0, r, c))),
                      "%s: %s[%d][%d] is %.9g, needs %.9g (%s)", moewe_device_backend(dev), what, r, c,
                      (double)y[(int64_t)c * rows + r], value_of(values[(int64_t)r * cols + c]),
                      i ? "packed" : "plain");
    }
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < cols; c++) /* as f32: Q4_K subtracts a minimum and the tables have that rounded */
            CHECK(alike((double)(float)ref_element(&m, rows, cols, 0, r, c), value_of(values[(int64_t)r * cols + c]),
                        0.0),
                  "oracle: %s[%d][%d] is %.9g, needs %.9g", what, r, c, ref_element(&m, rows, cols, 0, r, c),
                  value_of(values[(int64_t)r * cols + c]));
    free(mem.ptr);
    free(x);
    free(y);
}

static moewe_matrix plain(const void *data, int32_t dtype)
{
    return (moewe_matrix){.data = data, .dtype = dtype};
}

/* gguf's and ml_dtypes' values (quant_vectors.h): one row of three blocks and three rows of one. */
static void tables_of_others(const char *backend, const moewe_device *dev)
{
    static const struct {
        const char *name;
        int32_t dtype, cols;
        const uint8_t *bytes;
        const uint32_t *values;
    } blocked[] = {{"q8_0", MOEWE_DTYPE_Q8_0, 32, q8_0_bytes, q8_0_values},
                   {"q4_0", MOEWE_DTYPE_Q4_0, 32, q4_0_bytes, q4_0_values},
                   {"q4_k", MOEWE_DTYPE_Q4_K, 256, q4_k_bytes, q4_k_values},
                   {"q6_k", MOEWE_DTYPE_Q6_K, 256, q6_k_bytes, q6_k_values}};
    uint8_t codes[256], ones[256], nibbles[16];
    uint32_t pairs[32];
    moewe_matrix m;

    (void)backend;
    for (size_t i = 0; i < sizeof blocked / sizeof blocked[0]; i++) {
        m = plain(blocked[i].bytes, blocked[i].dtype);
        has_values(dev, m, 3, blocked[i].cols, blocked[i].values, blocked[i].name);
        has_values(dev, m, 1, 3 * blocked[i].cols, blocked[i].values, blocked[i].name);
    }
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    has_values(dev, plain(codes, MOEWE_DTYPE_E4M3), 256, 1, e4m3_values, "e4m3");
    /* 1.0 in E4M3, scaled by each E8M0 and each E4M3 */
    memset(ones, 0x38, sizeof ones);
    m = plain(ones, MOEWE_DTYPE_E4M3);
    m.scale = (moewe_scale){.data = codes, .dtype = MOEWE_DTYPE_E8M0, .rows = 1};
    has_values(dev, m, 256, 1, e8m0_values, "1 x e8m0");
    m.scale.dtype = MOEWE_DTYPE_E4M3;
    has_values(dev, m, 256, 1, e4m3_values, "1 x e4m3");
    for (int i = 0; i < 16; i++) { /* i beside 15 - i, the even column low */
        nibbles[i] = (uint8_t)(i + 16 * (15 - i));
        pairs[2 * i] = e2m1_values[i];
        pairs[2 * i + 1] = e2m1_values[15 - i];
    }
    has_values(dev, plain(nibbles, MOEWE_DTYPE_E2M1), 16, 2, pairs, "e2m1");
}

/* i8 is two's complement; a nibble n of i4 is n - 8. */
static void integers(const char *backend, const moewe_device *dev)
{
    uint8_t codes[256];
    uint32_t eights[256], fours[512];

    (void)backend;
    for (int i = 0; i < 256; i++) {
        float eight = (float)(i < 128 ? i : i - 256), low = (float)(i % 16 - 8), high = (float)(i / 16 - 8);

        codes[i] = (uint8_t)i;
        memcpy(&eights[i], &eight, sizeof eight);
        memcpy(&fours[2 * i], &low, sizeof low);
        memcpy(&fours[2 * i + 1], &high, sizeof high);
    }
    has_values(dev, plain(codes, MOEWE_DTYPE_I8), 1, 256, eights, "i8");
    has_values(dev, plain(codes, MOEWE_DTYPE_I8), 256, 1, eights, "i8");
    has_values(dev, plain(codes, MOEWE_DTYPE_I4), 1, 512, fours, "i4");
    has_values(dev, plain(codes, MOEWE_DTYPE_I4), 256, 2, fours, "i4");
}

/* 5 x 70 ones of I8 in blocks of 2 x 32, each with a scale of its own: 2^(3 * block row + block column). */
static void blocks_of_scales(const char *backend, const moewe_device *dev)
{
    enum { ROWS = 5, COLS = 70 };
    static const int32_t dtypes[] = {MOEWE_DTYPE_F32, MOEWE_DTYPE_BF16, MOEWE_DTYPE_F16, MOEWE_DTYPE_E4M3,
                                     MOEWE_DTYPE_E8M0};
    uint8_t ones[ROWS * COLS], scales[4 * 9], spread[4 * 12 + 1];
    uint32_t values[ROWS * COLS];

    (void)backend;
    memset(ones, 1, sizeof ones);
    for (int i = 0; i < ROWS * COLS; i++) {
        float v = (float)(1 << (3 * (i / COLS / 2) + i % COLS / 32));

        memcpy(&values[i], &v, sizeof v);
    }
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        moewe_matrix m = plain(ones, MOEWE_DTYPE_I8);
        int32_t size = dtypes[d] >= MOEWE_DTYPE_E4M3 ? 1 : dtype_size(dtypes[d]);

        for (int i = 0; i < 9; i++) {
            uint8_t *at[2] = {scales + i * size, spread + 1 + (i % 3 * 4 + i / 3) * size}; /* the second by columns */

            for (int j = 0; j < 2; j++)
                if (dtypes[d] == MOEWE_DTYPE_E8M0)
                    *at[j] = (uint8_t)(127 + i);
                else if (dtypes[d] == MOEWE_DTYPE_E4M3)
                    *at[j] = (uint8_t)((7 + i) << 3); /* 1.0 is 0x38; 2^8 the largest that is needed */
                else
                    store(at[j], dtypes[d], ldexp(1.0, i));
        }
        m.scale = (moewe_scale){.data = scales, .dtype = dtypes[d], .rows = 2, .cols = 32};
        has_values(dev, m, ROWS, COLS, values, "blocks of 2 x 32");
        m.scale.data = spread + 1;
        m.scale.row_stride = size;
        m.scale.col_stride = 4 * size;
        has_values(dev, m, ROWS, COLS, values, "blocks of 2 x 32 by columns");
    }
}

/* Codes of E2M1 that make up the identity, times what the scales say: two experts, one of them chosen. */
static void factors_of_experts(const char *backend, const moewe_device *dev)
{
    static const uint8_t identity[4] = {0x02, 0x20, 0x02, 0x20}; /* 1 0 / 0 1, of two experts */
    static const uint8_t one_two[4] = {0x38, 0x38, 0x40, 0x40};  /* 1 1 of one, 2 2 of the other */
    static const float up_tensor[2] = {2, 3}, down_tensor[2] = {5, 7}, x[2] = {4, 4}, weight = 1;
    static const float wanted[2] = {40, 168}; /* x times 2 * 1 * 5, and times 3 * 2 * 7; both alike, so that x as int8
                                                 is 127 times something and loses an ulp or two at most */
    moewe_config cfg = small_config();
    moewe_plan *plan;
    moewe_weights w, packed;
    moewe_need need;
    moewe_span ws, mem;

    cfg.hidden = cfg.inter = cfg.n_experts = 2;
    cfg.top_k = cfg.max_tokens = 1;
    cfg.act = MOEWE_ACT_RELU;
    cfg.score = MOEWE_SCORE_GIVEN;
    cfg.flags = 0;
    cfg.w_dtype = MOEWE_DTYPE_E2M1;
    MOEWE_INIT(w);
    w.up = w.down = plain(identity, MOEWE_DTYPE_E2M1);
    w.up.scale = (moewe_scale){.data = one_two, .tensor = up_tensor, .dtype = MOEWE_DTYPE_E4M3, .rows = 1, .cols = 16};
    w.down.scale.tensor = down_tensor;
    CHECK_OK(moewe_plan_create(dev, &cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    CHECK_OK(moewe_weights_need(plan, &w, &need));
    mem = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    CHECK_OK(moewe_weights_pack(plan, &w, mem, NULL, &packed));
    for (int32_t i = 0; i < 4; i++) {
        int32_t id = i % 2;
        float y[2] = {-1, -1};
        moewe_io io;

        MOEWE_INIT(io);
        io.n_tokens = 1;
        io.x = x;
        io.y = y;
        io.topk_ids = &id;
        io.topk_weights = &weight;
        CHECK_OK(moewe_run(plan, i < 2 ? &w : &packed, &io, ws, NULL));
        for (int j = 0; j < 2; j++)
            CHECK(fabs((double)(y[j] - wanted[id])) <= ref_error_bound(8.0, (double)wanted[id]),
                  "%s: expert %d gives %.9g, needs %g", backend, id, (double)y[j], (double)wanted[id]);
    }
    free(ws.ptr);
    free(mem.ptr);
    moewe_plan_destroy(plan);
}

/* A NaN among codes or scales reaches the rows that it belongs to and no other. */
static void nan_stays_in_its_row(const char *backend, const moewe_device *dev)
{
    enum { ROWS = 20, COLS = 64 };
    uint8_t codes[ROWS * COLS], scales[ROWS * 2];
    float x[COLS], y[ROWS];

    for (int i = 0; i < COLS; i++) x[i] = 1.0f;
    for (int where = 0; where < 2; where++)
        for (int32_t at = 0; at < ROWS; at += 3) {
            moewe_linear lin;

            memset(codes, 0x38, sizeof codes);
            memset(scales, 127, sizeof scales);
            if (where)
                scales[2 * at + 1] = 255;
            else
                codes[at * COLS + 40] = at % 2 ? 0x7f : 0xff;
            MOEWE_INIT(lin);
            lin.rows = ROWS;
            lin.cols = COLS;
            lin.matrix = plain(codes, MOEWE_DTYPE_E4M3);
            lin.matrix.scale = (moewe_scale){.data = scales, .dtype = MOEWE_DTYPE_E8M0, .rows = 1, .cols = 32};
            CHECK_OK(moewe_linear_run(dev, &lin, 1, x, 0, y, 0, NULL));
            for (int32_t r = 0; r < ROWS; r++)
                CHECK(r == at ? isnan(y[r]) : y[r] == 64.0f, "%s: a NaN of row %d makes row %d %g", backend, at, r,
                      (double)y[r]);
        }
}

#define ON_EVERY(name, edge)                                                                                           \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        on_every_backend(edge);                                                                                        \
    }
ON_EVERY(values_of_others, tables_of_others)
ON_EVERY(values_of_integers, integers)
ON_EVERY(values_of_blocks, blocks_of_scales)
ON_EVERY(values_of_factors, factors_of_experts)
ON_EVERY(not_a_number, nan_stays_in_its_row)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_others),  cmocka_unit_test(values_of_integers), cmocka_unit_test(values_of_blocks),
        cmocka_unit_test(values_of_factors), cmocka_unit_test(not_a_number),       cmocka_unit_test(every_kind),
        cmocka_unit_test(mixed_kinds),       cmocka_unit_test(layer_errors),       cmocka_unit_test(dtypes),
    };

    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
