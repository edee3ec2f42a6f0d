/* test_errors.c - owns refusals: every bad field and argument has the right status and a sentence that names it,
 * and nothing is written.  It must never check a whole sentence: only the object, the field and the numbers are
 * promised. */
#include "../support/layer_case.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- config ---- */

#define FIELD(name) offsetof(moewe_config, name), #name

static const struct {
    size_t offset;
    const char *name;
    int32_t value;
    const char *number; /* that the sentence has to hold, beside the name of the field */
} bad_fields[] = {
    {FIELD(hidden), 0, "0"},
    {FIELD(hidden), -1, "-1"},
    {FIELD(hidden), INT32_MIN, "-2147483648"},
    {FIELD(hidden), INT32_MAX, "2147483647"},
    {FIELD(inter), 0, "0"},
    {FIELD(inter), -7, "-7"},
    {FIELD(inter), INT32_MAX, "2147483647"},
    {FIELD(n_experts), 0, "0"},
    {FIELD(n_experts), -1, "-1"},
    {FIELD(n_experts), INT32_MAX, "2147483647"},
    {FIELD(top_k), 0, "0"},
    {FIELD(top_k), -1, "-1"},
    {FIELD(top_k), 9, "9"}, /* of 8 experts */
    {FIELD(top_k), INT32_MAX, "2147483647"},
    {FIELD(max_tokens), 0, "0"},
    {FIELD(max_tokens), -5, "-5"},
    {FIELD(first_expert), -1, "-1"},
    {FIELD(first_expert), 8, "8"},
    {FIELD(n_local), -1, "-1"},
    {FIELD(n_local), 9, "9"},
    {FIELD(n_null), -1, "-1"},
    {FIELD(n_null), INT32_MAX, "2147483647"},
    {FIELD(n_group), -1, "-1"},
    {FIELD(n_group), 3, "3"}, /* does not divide 8 */
    {FIELD(n_group), 9, "9"},
    {FIELD(n_group), 4, "0"}, /* top_group is 0 */
    {FIELD(top_group), -1, "-1"},
    {FIELD(top_group), 2, "2"}, /* without n_group */
    {FIELD(group_best), -1, "-1"},
    {FIELD(score), -1, "-1"},
    {FIELD(score), 6, "6"},
    {FIELD(act), -1, "-1"},
    {FIELD(act), 11, "11"},
    {FIELD(latent), -1, "-1"},
    {FIELD(latent), INT32_MAX, "2147483647"},
    {FIELD(x_dtype), -1, "-1"},
    {FIELD(x_dtype), 12, "12"},
    {FIELD(x_dtype), 13, "13"},
    {FIELD(w_dtype), -1, "-1"},
    {FIELD(w_dtype), 12, "12"}, /* e8m0 is of scales only */
    {FIELD(w_dtype), 13, "13"},
    {FIELD(down_dtype), -1, "-1"},
    {FIELD(down_dtype), 12, "12"},
    {FIELD(down_dtype), 13, "13"},
    {FIELD(y_dtype), 12, "12"},
    {FIELD(y_dtype), -1, "-1"},
    {FIELD(y_dtype), 99, "99"},
    {FIELD(shared_inter), -1, "-1"},
    {FIELD(shared_inter), INT32_MAX, "2147483647"},
    {FIELD(flags), 1 << 7, "80"},
    {FIELD(flags), INT32_MIN, "80000000"},
};

static void config_fields(void **state)
{
    moewe_device *dev = open_backend(cpu_backends().name[0], 1);

    (void)state;
    for (size_t i = 0; i < sizeof bad_fields / sizeof bad_fields[0]; i++) {
        moewe_config cfg = small_config();
        moewe_plan *plan = (moewe_plan *)(uintptr_t)128;
        moewe_need need = {77, 77, 77};
        int a_group = !strcmp(bad_fields[i].name, "n_group") && bad_fields[i].value == 4;

        cfg.max_tokens = 4;
        memcpy((char *)&cfg + bad_fields[i].offset, &bad_fields[i].value, sizeof bad_fields[i].value);
        CHECK(moewe_plan_create(dev, &cfg, &plan) == MOEWE_E_ARG, "%s %d: %s", bad_fields[i].name, bad_fields[i].value,
              moewe_last_error());
        assert_true(plan == (moewe_plan *)(uintptr_t)128);
        says(a_group ? "top_group" : bad_fields[i].name);
        says(bad_fields[i].number);
        one_sentence();
        CHECK(moewe_plan_floor(dev, &cfg, &need) == MOEWE_E_ARG, "floor with %s %d", bad_fields[i].name,
              bad_fields[i].value);
        assert_true(need.bytes == 77 && need.align == 77);
    }
    moewe_device_close(dev);
}

static void config_floats(void **state)
{
    static const struct {
        size_t offset;
        const char *name;
        float value;
    } table[] = {
        {FIELD(act_limit), -1.0f},       {FIELD(act_limit), NAN},          {FIELD(act_limit), INFINITY},
        {FIELD(act_alpha), NAN},         {FIELD(act_alpha), -INFINITY},    {FIELD(act_beta), NAN},
        {FIELD(routed_scale), NAN},      {FIELD(routed_scale), INFINITY},  {FIELD(shared_limit), -1.0f},
        {FIELD(shared_limit), NAN},      {FIELD(logit_softcap), -1.0f},    {FIELD(logit_softcap), INFINITY},
        {FIELD(sparsemixer_eps), -1.0f}, {FIELD(sparsemixer_eps), NAN},    {FIELD(renorm_eps), -1.0f},
        {FIELD(renorm_eps), NAN},        {FIELD(renorm_floor), -1.0f},     {FIELD(renorm_floor), INFINITY},
        {FIELD(shared_scale), NAN},      {FIELD(shared_scale), -INFINITY},
    };
    moewe_device *dev = open_backend(cpu_backends().name[0], 1);

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        moewe_config cfg = small_config();
        moewe_plan *plan;

        cfg.max_tokens = 4;
        memcpy((char *)&cfg + table[i].offset, &table[i].value, sizeof table[i].value);
        CHECK(moewe_plan_create(dev, &cfg, &plan) == MOEWE_E_ARG, "%s", table[i].name);
        says(table[i].name);
    }
    moewe_device_close(dev);
}

static void config_combinations(void **state)
{
    moewe_device *dev = open_backend(cpu_backends().name[0], 1);
    moewe_config cfg = small_config();
    moewe_plan *plan = NULL;

    (void)state;
    cfg.max_tokens = 4;
    assert_int_equal(moewe_plan_create(NULL, &cfg, &plan), MOEWE_E_ARG);
    assert_int_equal(moewe_plan_create(dev, NULL, &plan), MOEWE_E_ARG);
    assert_int_equal(moewe_plan_create(dev, &cfg, NULL), MOEWE_E_ARG);
    cfg.struct_size = sizeof cfg - 8;
    assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_ABI);
    says("struct_size");
    cfg.struct_size = 0;
    assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_ABI);
    cfg = small_config();
    cfg.max_tokens = 4;
    cfg.first_expert = 5;
    cfg.n_local = 4; /* 5 .. 8 of 8 */
    assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_ARG);
    says("n_local");
    cfg = small_config();
    cfg.max_tokens = 4;
    cfg.n_group = 4;
    cfg.top_group = 1; /* two experts for top_k 3 */
    assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_ARG);
    says("top_k");
    cfg.top_group = 5;
    assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_ARG);
    says("top_group");
    cfg.top_group = 2;
    cfg.group_best = 3;
    assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_ARG);
    says("group_best");
    /* SWIGLU_OAI has no default for its constants; one of them may be 0 */
    cfg = small_config();
    cfg.max_tokens = 4;
    cfg.act = MOEWE_ACT_SWIGLU_OAI;
    cfg.act_alpha = cfg.act_beta = 0.0f;
    assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_ARG);
    says("act_alpha");
    says("act_beta");
    one_sentence();
    for (int i = 0; i < 2; i++) {
        moewe_plan *one = NULL;

        cfg.act_alpha = i ? 1.702f : 0.0f;
        cfg.act_beta = i ? 0.0f : 1.0f;
        CHECK_OK(moewe_plan_create(dev, &cfg, &one));
        moewe_plan_destroy(one);
    }
    /* sparsemixer has no groups */
    cfg = small_config();
    cfg.max_tokens = 4;
    cfg.score = MOEWE_SCORE_SPARSEMIXER;
    cfg.n_group = 4;
    cfg.top_group = 2;
    assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_ARG);
    says("n_group");
    /* f16 and the dtypes of weights are dtypes, but none of x or y */
    cfg = small_config();
    cfg.max_tokens = 4;
    cfg.x_dtype = MOEWE_DTYPE_F16;
    assert_int_not_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_OK);
    says("x_dtype");
    cfg.x_dtype = 0;
    cfg.y_dtype = MOEWE_DTYPE_F16;
    assert_int_not_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_OK);
    says("y_dtype");
    for (int32_t dtype = MOEWE_DTYPE_E4M3; dtype <= MOEWE_DTYPE_Q6_K; dtype++) {
        cfg.y_dtype = 0;
        cfg.x_dtype = dtype;
        assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_UNSUPPORTED);
        says("x_dtype");
        cfg.x_dtype = 0;
        cfg.y_dtype = dtype;
        assert_int_equal(moewe_plan_create(dev, &cfg, &plan), MOEWE_E_UNSUPPORTED);
        says("y_dtype");
    }
    assert_null(plan);
    moewe_device_close(dev);
}

/* Widths that are no whole blocks of the weights' dtypes. */
static void config_widths(void **state)
{
    static const struct {
        int32_t w_dtype, down_dtype, hidden, inter, latent;
        const char *field, *number; /* NULL: nothing wrong */
    } table[] = {
        {MOEWE_DTYPE_E2M1, MOEWE_DTYPE_F32, 33, 24, 0, "hidden", "33"},
        {MOEWE_DTYPE_I4, 0, 34, 25, 0, "inter", "25"},
        {MOEWE_DTYPE_BF16, MOEWE_DTYPE_I4, 33, 25, 0, "inter", "25"},
        {MOEWE_DTYPE_Q8_0, MOEWE_DTYPE_F32, 40, 24, 0, "hidden", "40"},
        {MOEWE_DTYPE_Q4_0, 0, 64, 48, 0, "inter", "48"},
        {MOEWE_DTYPE_Q4_K, MOEWE_DTYPE_F32, 128, 24, 0, "hidden", "128"},
        {MOEWE_DTYPE_Q4_K, MOEWE_DTYPE_Q6_K, 256, 320, 0, "inter", "320"},
        {MOEWE_DTYPE_Q6_K, MOEWE_DTYPE_F32, 256, 24, 130, "latent", "130"},
        {MOEWE_DTYPE_Q6_K, MOEWE_DTYPE_F32, 130, 24, 256, NULL, NULL},
        {MOEWE_DTYPE_F32, MOEWE_DTYPE_Q4_K, 33, 256, 0, NULL, NULL},
        {MOEWE_DTYPE_E4M3, MOEWE_DTYPE_I8, 33, 25, 0, NULL, NULL},
        {MOEWE_DTYPE_E2M1, MOEWE_DTYPE_Q8_0, 34, 32, 0, NULL, NULL},
    };
    moewe_device *dev = open_backend(cpu_backends().name[0], 1);

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        moewe_config cfg = small_config();
        moewe_plan *plan = NULL;

        cfg.max_tokens = 4;
        cfg.w_dtype = table[i].w_dtype;
        cfg.down_dtype = table[i].down_dtype;
        cfg.hidden = table[i].hidden;
        cfg.inter = table[i].inter;
        cfg.latent = table[i].latent;
        if (!table[i].field) {
            CHECK_OK(moewe_plan_create(dev, &cfg, &plan));
            moewe_plan_destroy(plan);
            continue;
        }
        CHECK(moewe_plan_create(dev, &cfg, &plan) == MOEWE_E_ARG, "%s %s", table[i].field, table[i].number);
        assert_null(plan);
        says(table[i].field);
        says(table[i].number);
        one_sentence();
    }
    moewe_device_close(dev);
}

/* ---- devices ---- */

static void device_arguments(void **state)
{
    moewe_device *dev = (moewe_device *)(uintptr_t)64;
    moewe_executor executor = {0};
    moewe_device_desc desc;
    moewe_span span = {NULL, 3};
    moewe_need need = {16, 3, 0};
    char text[8];

    (void)state;
#define REFUSED(status, word, change)                                                                                  \
    MOEWE_INIT(desc);                                                                                                  \
    change;                                                                                                            \
    assert_int_equal(moewe_device_open(&desc, &dev), status);                                                          \
    says(word);                                                                                                        \
    one_sentence();                                                                                                    \
    assert_true(dev == (moewe_device *)(uintptr_t)64)
    REFUSED(MOEWE_E_ABI, "struct_size", desc.struct_size++);
    REFUSED(MOEWE_E_ARG, "cpu-z80", desc.backend = "cpu-z80");
    REFUSED(MOEWE_E_ARG, "n_threads", desc.n_threads = -1);
    REFUSED(MOEWE_E_ARG, "1025", desc.n_threads = 1025);
    REFUSED(MOEWE_E_ARG, "kind", desc.kind = 3);
    REFUSED(MOEWE_E_ARG, "kind", desc.kind = -1);
    REFUSED(MOEWE_E_ARG, "ordinal", desc.ordinal = -1);
    REFUSED(MOEWE_E_ARG, "executor", desc.executor = &executor);
#undef REFUSED
    assert_int_equal(moewe_device_open(NULL, NULL), MOEWE_E_ARG);
    CHECK_OK(moewe_device_open(NULL, &dev));
    assert_true(moewe_device_threads(dev) >= 1);
    assert_int_equal(strncmp(moewe_device_backend(dev), "cpu-", 4), 0);
    assert_int_equal(moewe_device_alloc(dev, need, &span), MOEWE_E_ARG);
    assert_true(span.bytes == 3);
    need = (moewe_need){100, 64, MOEWE_PLACE_HOST};
    CHECK_OK(moewe_device_alloc(dev, need, &span));
    assert_true(span.bytes == 100 && (uintptr_t)span.ptr % 64 == 0);
    for (int i = 0; i < 100; i++) assert_int_equal(((char *)span.ptr)[i], 0);
    CHECK_OK(moewe_device_copy(dev, span.ptr, "abc", 4));
    assert_string_equal((char *)span.ptr, "abc");
    assert_int_equal(moewe_device_copy(dev, NULL, "abc", 4), MOEWE_E_ARG);
    assert_int_equal(moewe_device_copy(NULL, span.ptr, "abc", 4), MOEWE_E_ARG);
    CHECK_OK(moewe_device_sync(dev, NULL));
    moewe_device_free(dev, span);
    need.bytes = (uint64_t)1 << 62;
    assert_int_equal(moewe_device_alloc(dev, need, &span), MOEWE_E_NOMEM);
    assert_int_equal(moewe_device_for(dev, NULL, NULL, 1), MOEWE_E_ARG);
    moewe_device_close(dev);
    moewe_device_close(NULL);
    moewe_plan_destroy(NULL);

    /* texts work like snprintf */
    {
        size_t whole = moewe_device_list(NULL, 0);

        assert_true(whole > sizeof text);
        assert_int_equal(moewe_device_list(text, sizeof text), whole);
        assert_int_equal(strlen(text), sizeof text - 1);
        assert_true(moewe_env_describe(NULL, 0) == moewe_env_describe(text, sizeof text));
    }
}

/* ---- runs ---- */

typedef struct rig {
    moewe_device *dev;
    layer_case c;
    moewe_plan *plan;
    moewe_span ws;
    unsigned char *y;
} rig;

static void rig_of(rig *r, const moewe_config *given)
{
    moewe_config cfg = *given;
    moewe_need need;

    cfg.name = "rig";
    r->dev = open_backend(cpu_backends().name[0], 2);
    case_build(&r->c, &cfg, 6, 0, 2);
    CHECK_OK(moewe_plan_create(r->dev, &r->c.cfg, &r->plan));
    CHECK_OK(moewe_plan_need(r->plan, &need));
    r->ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    r->y = must_alloc(r->c.y_bytes, 4);
    memset(r->y, 0xa5, r->c.y_bytes);
    r->c.io.y = r->y;
}

static void rig_up(rig *r, int32_t score, int32_t act, int32_t shared)
{
    moewe_config cfg = small_config();

    cfg.score = score;
    cfg.act = act;
    cfg.shared_inter = shared;
    if (score == MOEWE_SCORE_GIVEN) cfg.flags = 0;
    rig_of(r, &cfg);
}

static void rig_latent(rig *r)
{
    moewe_config cfg = small_config();

    cfg.latent = 12;
    rig_of(r, &cfg);
}

static void rig_down(rig *r)
{
    moewe_plan_destroy(r->plan);
    moewe_device_close(r->dev);
    free(r->ws.ptr);
    free(r->y);
    case_free(&r->c);
}

static void refused(const rig *r, const moewe_weights *w, const moewe_io *io, moewe_status status, const char *word)
{
    moewe_status s = moewe_run(r->plan, w, io, r->ws, NULL);

    CHECK(s == status, "'%s' is %s, needs %s: %s", word, moewe_status_name(s), moewe_status_name(status),
          moewe_last_error());
    says(word);
    says("moewe_run");
    one_sentence();
    for (uint64_t i = 0; i < r->c.y_bytes; i++) CHECK(r->y[i] == 0xa5, "a refused run wrote y ('%s')", word);
}

#define REFUSED(status, word, change)                                                                                  \
    w = r.c.w;                                                                                                         \
    io = r.c.io;                                                                                                       \
    change;                                                                                                            \
    refused(&r, &w, &io, status, word)

/* hash_ids and token_ids come together, with a score that can be looked up; latent matrices with latent. */
static void run_arguments_of_tables(void)
{
    static const int32_t table[6] = {0, 1, 2, 3, 4, 5};
    static const float bias[8] = {0};
    moewe_weights w;
    moewe_io io;
    rig r;

    rig_up(&r, MOEWE_SCORE_SIGMOID, MOEWE_ACT_SWIGLU, 0);
    REFUSED(MOEWE_E_ARG, "token_ids", io.token_ids = table);
    REFUSED(MOEWE_E_ARG, "token_ids", (w.hash_ids = table, w.hash_rows = 2));
    REFUSED(MOEWE_E_ARG, "hash", (w.hash_ids = table, w.hash_rows = 0, io.token_ids = table));
    REFUSED(MOEWE_E_ARG, "hash", (w.hash_ids = table, w.hash_rows = -3, io.token_ids = table));
    REFUSED(MOEWE_E_ARG, "reserved2", w.reserved2 = 1);
    REFUSED(MOEWE_E_ARG, "latent_in", w.latent_in = w.router);
    REFUSED(MOEWE_E_ARG, "latent_out", w.latent_out = w.router);
    w = r.c.w;
    io = r.c.io;
    w.hash_ids = table;
    w.hash_rows = 2;
    io.token_ids = table;
    CHECK_OK(moewe_run(r.plan, &w, &io, r.ws, NULL));
    rig_down(&r);

    for (int32_t score = MOEWE_SCORE_SPARSEMIXER; score <= MOEWE_SCORE_GIVEN; score++) {
        rig_up(&r, score, MOEWE_ACT_SWIGLU, 0);
        REFUSED(MOEWE_E_ARG, "hash", (w.hash_ids = table, w.hash_rows = 2, io.token_ids = table));
        if (score == MOEWE_SCORE_SPARSEMIXER) { REFUSED(MOEWE_E_ARG, "select_bias", w.select_bias = bias); }
        rig_down(&r);
    }

    rig_latent(&r);
    REFUSED(MOEWE_E_ARG, "latent_in", w.latent_in.data = NULL);
    REFUSED(MOEWE_E_ARG, "latent_out", w.latent_out.data = NULL);
    REFUSED(MOEWE_E_ARG, "latent_in", w.latent_in.dtype = 9);
    REFUSED(MOEWE_E_LAYOUT, "latent_out", w.latent_out.layout = 0xdead);
    CHECK_OK(moewe_run(r.plan, &r.c.w, &r.c.io, r.ws, NULL));
    rig_down(&r);
}

static void rig_scaled(rig *r, int32_t w_dtype, int32_t down_dtype, int32_t hidden, int32_t inter)
{
    moewe_config cfg = small_config();

    cfg.w_dtype = w_dtype;
    cfg.down_dtype = down_dtype;
    cfg.hidden = hidden;
    cfg.inter = inter;
    rig_of(r, &cfg);
}

/* What comes with scales.  Packing refuses it as runs do, and out stays as it was. */
static void run_arguments_of_scales(void)
{
    static const float factors[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const void *experts[8];
    moewe_weights w, out, before;
    moewe_need need = {77, 77, 77};
    moewe_io io;
    rig r;

    memset(&out, 0x5a, sizeof out);
    before = out;
    rig_scaled(&r, MOEWE_DTYPE_E4M3, MOEWE_DTYPE_I8, 80, 96);
    for (int i = 0; i < 8; i++) experts[i] = i == 3 ? NULL : r.c.w.up.scale.data;
#define REFUSED_TOO(status, word, number, change)                                                                      \
    w = r.c.w;                                                                                                         \
    change;                                                                                                            \
    assert_int_equal(moewe_weights_need(r.plan, &w, &need), status);                                                   \
    says(number);                                                                                                      \
    REFUSED(status, word, change);                                                                                     \
    says(number);                                                                                                      \
    assert_int_equal(moewe_weights_pack(r.plan, &w, r.ws, NULL, &out), status);                                        \
    assert_true(need.bytes == 77);                                                                                     \
    assert_memory_equal(&out, &before, sizeof out)
    REFUSED_TOO(MOEWE_E_ARG, "up.scale", "48", w.up.scale.cols = 48);
    REFUSED_TOO(MOEWE_E_ARG, "up.scale", "17", w.up.scale.cols = 17);
    REFUSED_TOO(MOEWE_E_ARG, "gate.scale", "-32", w.gate.scale.cols = -32);
    REFUSED_TOO(MOEWE_E_ARG, "gate.scale", "-1", w.gate.scale.rows = -1);
    REFUSED_TOO(MOEWE_E_ARG, "down.scale", "80", w.down.scale.cols = 80);
    REFUSED_TOO(MOEWE_E_ARG, "down.scale", "24", w.down.scale.cols = 24);
    REFUSED_TOO(MOEWE_E_ARG, "up.scale.dtype", "77", w.up.scale.dtype = 77);
    REFUSED_TOO(MOEWE_E_ARG, "up.scale.dtype", "-1", w.up.scale.dtype = -1);
    REFUSED_TOO(MOEWE_E_ARG, "up.scale.dtype", "0", w.up.scale.dtype = MOEWE_DTYPE_DEFAULT);
    REFUSED_TOO(MOEWE_E_ARG, "down.scale.dtype", "i8", w.down.scale.dtype = MOEWE_DTYPE_I8);
    REFUSED_TOO(MOEWE_E_ARG, "down.scale.dtype", "q8_0", w.down.scale.dtype = MOEWE_DTYPE_Q8_0);
    REFUSED_TOO(MOEWE_E_ARG, "up.scale.reserved", "5", w.up.scale.reserved = 5);
    REFUSED_TOO(MOEWE_E_ARG, "up.scale.experts", "3", (w.up.scale.data = NULL, w.up.scale.experts = experts));
    REFUSED_TOO(MOEWE_E_ARG, "up.scale", "-5", (w.up.scale.data = NULL, w.up.scale.cols = -5));
    REFUSED_TOO(MOEWE_E_ARG, "up.scale", "-5", (w.up.scale.data = NULL, w.up.scale.rows = -5));
    REFUSED_TOO(MOEWE_E_ARG, "up.scale", "48", (w.up.scale.data = NULL, w.up.scale.cols = 48));
    REFUSED_TOO(MOEWE_E_ARG, "down", "e4m3", w.down.dtype = MOEWE_DTYPE_E4M3); /* down_dtype is i8 */
    REFUSED_TOO(MOEWE_E_ARG, "up", "i8", w.up.dtype = MOEWE_DTYPE_I8);
    REFUSED_TOO(MOEWE_E_ARG, "up", "e8m0", w.up.dtype = MOEWE_DTYPE_E8M0);
    REFUSED_TOO(MOEWE_E_ARG, "router.dtype", "12", w.router.dtype = MOEWE_DTYPE_E8M0);
    REFUSED_TOO(MOEWE_E_ARG, "router.scale", "f32", w.router.scale.data = factors);
    REFUSED_TOO(MOEWE_E_ARG, "router.scale", "f32", w.router.scale.experts = experts);
    REFUSED_TOO(MOEWE_E_ARG, "router.scale", "f32", w.router.scale.tensor = factors);
    REFUSED_TOO(MOEWE_E_ARG, "router.scale", "f32", w.router.scale.dtype = MOEWE_DTYPE_F32);
    REFUSED_TOO(MOEWE_E_ARG, "router.scale", "f32", w.router.scale.rows = 1);
    REFUSED_TOO(MOEWE_E_ARG, "router.scale", "f32", w.router.scale.cols = 32);
    REFUSED_TOO(MOEWE_E_ARG, "router", "80", w.router.dtype = MOEWE_DTYPE_Q8_0); /* rows of 80 are not whole blocks */
    CHECK_OK(moewe_run(r.plan, &r.c.w, &r.c.io, r.ws, NULL)); /* all of it was right but for the one field */
    {
        static const int32_t cols[] = {16, 32, 64, 128, 0, 80, 81, 1000000}; /* any width that is the whole */

        for (size_t i = 0; i < sizeof cols / sizeof cols[0]; i++) {
            moewe_matrix *up = &r.c.w.up;
            void *many = must_alloc(80 * 8 * 96 * 4, 4);

            memset(many, 0, 80 * 8 * 96 * 4);
            w = r.c.w;
            w.up.scale = (moewe_scale){.data = many, .dtype = up->scale.dtype, .rows = 1, .cols = cols[i]};
            CHECK_OK(moewe_run(r.plan, &w, &r.c.io, r.ws, NULL));
            free(many);
        }
    }
    rig_down(&r);

    rig_scaled(&r, MOEWE_DTYPE_E2M1, MOEWE_DTYPE_I4, 80, 96);
    REFUSED_TOO(MOEWE_E_ARG, "up.col_stride", "1", w.up.col_stride = 1);
    REFUSED_TOO(MOEWE_E_ARG, "down.col_stride", "96", w.down.col_stride = 96);
    rig_down(&r);

    rig_scaled(&r, MOEWE_DTYPE_Q4_K, MOEWE_DTYPE_Q6_K, 256, 256);
    REFUSED_TOO(MOEWE_E_ARG, "up.col_stride", "144", w.up.col_stride = 144);
    REFUSED_TOO(MOEWE_E_ARG, "down.col_stride", "-1", w.down.col_stride = -1);
    REFUSED_TOO(MOEWE_E_ARG, "up.scale", "q4_k", w.up.scale.tensor = factors);
    REFUSED_TOO(MOEWE_E_ARG, "down.scale", "q6_k", w.down.scale.data = factors);
    REFUSED_TOO(MOEWE_E_ARG, "down", "q6_k", w.down.dtype = MOEWE_DTYPE_Q4_K);
#undef REFUSED_TOO
    CHECK_OK(moewe_run(r.plan, &r.c.w, &r.c.io, r.ws, NULL));
    rig_down(&r);
}

static void run_arguments(void **state)
{
    moewe_weights w;
    moewe_io io;
    rig r;

    (void)state;
    rig_up(&r, MOEWE_SCORE_SOFTMAX, MOEWE_ACT_SWIGLU, 12);
    REFUSED(MOEWE_E_ABI, "struct_size", io.struct_size = 0);
    REFUSED(MOEWE_E_ABI, "struct_size", w.struct_size -= 4);
    REFUSED(MOEWE_E_RANGE, "7", io.n_tokens = 7);
    REFUSED(MOEWE_E_RANGE, "2147483647", io.n_tokens = INT32_MAX);
    REFUSED(MOEWE_E_ARG, "-1", io.n_tokens = -1);
    REFUSED(MOEWE_E_ARG, "reserved", io.reserved = 1);
    REFUSED(MOEWE_E_ARG, "x", io.x = NULL);
    REFUSED(MOEWE_E_ARG, "y", io.y = NULL);
    REFUSED(MOEWE_E_ARG, "x_stride", io.x_stride = 156);
    REFUSED(MOEWE_E_ARG, "y_stride", io.y_stride = 156);
    REFUSED(MOEWE_E_ARG, "x_stride", io.x_stride = -160);
    REFUSED(MOEWE_E_ARG, "y_stride", io.y_stride = -160);
    REFUSED(MOEWE_E_ARG, "x", io.x_stride = 162); /* no multiple of an element */
    REFUSED(MOEWE_E_ARG, "y", io.y_stride = 161);
    REFUSED(MOEWE_E_ARG, "x", io.x = (const char *)io.x + 2);
    REFUSED(MOEWE_E_ARG, "y", io.y = (char *)io.y + 1);
    REFUSED(MOEWE_E_ARG, "overlap", io.x = io.y);
    REFUSED(MOEWE_E_ARG, "overlap", io.x = r.y + r.c.y_bytes - 4);
    REFUSED(MOEWE_E_ARG, "overlap", (io.n_tokens = 1, io.x = r.y + 156));
    REFUSED(MOEWE_E_ARG, "overlap", io.x = r.ws.ptr);
    REFUSED(MOEWE_E_ARG, "overlap", io.y = (char *)r.ws.ptr + r.ws.bytes - 4);
    REFUSED(MOEWE_E_ARG, "topk_ids", io.topk_ids = (const int32_t *)io.x);
    REFUSED(MOEWE_E_ARG, "topk_weights", io.topk_weights = (const float *)io.x);
    REFUSED(MOEWE_E_ARG, "router", w.router.data = NULL);
    REFUSED(MOEWE_E_ARG, "gate", w.gate.data = NULL);
    REFUSED(MOEWE_E_ARG, "up", w.up.data = NULL);
    REFUSED(MOEWE_E_ARG, "down", w.down.data = NULL);
    REFUSED(MOEWE_E_ARG, "shared_gate", w.shared_gate.data = NULL);
    REFUSED(MOEWE_E_ARG, "shared_up", w.shared_up.data = NULL);
    REFUSED(MOEWE_E_ARG, "shared_down", w.shared_down.data = NULL);
    REFUSED(MOEWE_E_ARG, "bf16", w.gate.dtype = MOEWE_DTYPE_BF16);
    REFUSED(MOEWE_E_ARG, "f16", w.up.dtype = MOEWE_DTYPE_F16);
    REFUSED(MOEWE_E_ARG, "17", w.down.dtype = 17);
    REFUSED(MOEWE_E_ARG, "router", w.router.dtype = -1);
    REFUSED(MOEWE_E_LAYOUT, "down", w.down.layout = 0xdead);
    REFUSED(MOEWE_E_LAYOUT, "router", w.router.layout = 1);
    {
        const void *experts[8] = {w.up.data, w.up.data, w.up.data, NULL, w.up.data, w.up.data, w.up.data, w.up.data};

        REFUSED(MOEWE_E_ARG, "3", (w.up.data = NULL, w.up.experts = experts));
    }
    assert_int_equal(moewe_run(NULL, &r.c.w, &r.c.io, r.ws, NULL), MOEWE_E_ARG);
    assert_int_equal(moewe_run(r.plan, NULL, &r.c.io, r.ws, NULL), MOEWE_E_ARG);
    assert_int_equal(moewe_run(r.plan, &r.c.w, NULL, r.ws, NULL), MOEWE_E_ARG);
    assert_int_equal(moewe_run_stages(r.plan, &r.c.w, &r.c.io, r.ws, NULL, MOEWE_STAGE_COUNT, MOEWE_STAGE_COUNT),
                     MOEWE_E_ARG);
    assert_int_equal(moewe_run_stages(r.plan, &r.c.w, &r.c.io, r.ws, NULL, MOEWE_STAGE_GEMM1, MOEWE_STAGE_SORT),
                     MOEWE_E_ARG);
    for (uint64_t i = 0; i < r.c.y_bytes; i++) CHECK(r.y[i] == 0xa5, "a refused run wrote y");
    CHECK_OK(moewe_run(r.plan, &r.c.w, &r.c.io, r.ws, NULL)); /* all of it was right but for the one field */
    rig_down(&r);

    run_arguments_of_tables();
    run_arguments_of_scales();

    rig_up(&r, MOEWE_SCORE_GIVEN, MOEWE_ACT_SILU, 0);
    REFUSED(MOEWE_E_ARG, "topk_ids", io.topk_ids = NULL);
    REFUSED(MOEWE_E_ARG, "topk_weights", io.topk_weights = NULL);
    REFUSED(MOEWE_E_ARG, "logits", io.logits = (const float *)io.x);
    REFUSED(MOEWE_E_ARG, "gate", w.gate = w.up); /* an ungated act has none */
    REFUSED(MOEWE_E_ARG, "shared_up", w.shared_up = w.up);
    CHECK_OK(moewe_run(r.plan, &r.c.w, &r.c.io, r.ws, NULL));
    rig_down(&r);
}
#undef REFUSED

static void packing_arguments(void **state)
{
    moewe_weights out, before;
    moewe_need need;
    moewe_span mem, bad;
    rig r;

    (void)state;
    rig_up(&r, MOEWE_SCORE_SIGMOID, MOEWE_ACT_SWIGLU, 0);
    memset(&out, 0x5a, sizeof out);
    before = out;
    assert_int_equal(moewe_weights_need(NULL, &r.c.w, &need), MOEWE_E_ARG);
    assert_int_equal(moewe_weights_need(r.plan, NULL, &need), MOEWE_E_ARG);
    assert_int_equal(moewe_weights_need(r.plan, &r.c.w, NULL), MOEWE_E_ARG);
    CHECK_OK(moewe_weights_need(r.plan, &r.c.w, &need));
    assert_true(need.bytes > 0);
    mem = (moewe_span){must_alloc(need.bytes + need.align, need.align), need.bytes};
    bad = (moewe_span){mem.ptr, need.bytes - 1};
    assert_int_equal(moewe_weights_pack(r.plan, &r.c.w, bad, NULL, &out), MOEWE_E_WS_SMALL);
    bad = (moewe_span){(char *)mem.ptr + 4, need.bytes};
    assert_int_equal(moewe_weights_pack(r.plan, &r.c.w, bad, NULL, &out), MOEWE_E_WS_ALIGN);
    bad = (moewe_span){NULL, need.bytes};
    assert_int_equal(moewe_weights_pack(r.plan, &r.c.w, bad, NULL, &out), MOEWE_E_WS_SMALL);
    assert_int_equal(moewe_weights_pack(r.plan, &r.c.w, mem, NULL, NULL), MOEWE_E_ARG);
    assert_memory_equal(&out, &before, sizeof out);
    CHECK_OK(moewe_weights_pack(r.plan, &r.c.w, mem, NULL, &out));
    /* packed weights have nothing left to pack */
    CHECK_OK(moewe_weights_need(r.plan, &out, &need));
    assert_int_equal(need.bytes, 0);
    free(mem.ptr);
    rig_down(&r);
}

/* ---- the sentence ---- */

static void *other_thread(void *arg)
{
    char *text = arg;

    snprintf(text, 128, "%s", moewe_last_error());
    if (moewe_workspace_unlock(NULL) == MOEWE_E_ARG) snprintf(text + 128, 128, "%s", moewe_last_error());
    return NULL;
}

static void last_error(void **state)
{
    moewe_device *dev;
    moewe_plan *plan;
    char before[1024], other[256] = {0};
    moewe_config cfg = small_config();
    pthread_t thread;

    (void)state;
    cfg.max_tokens = 2;
    assert_int_equal(moewe_plan_create(NULL, NULL, NULL), MOEWE_E_ARG);
    snprintf(before, sizeof before, "%s", moewe_last_error());
    dev = open_backend(cpu_backends().name[0], 2);
    CHECK_OK(moewe_plan_create(dev, &cfg, &plan));
    assert_string_equal(moewe_last_error(), before); /* successes leave it */
    if (pthread_create(&thread, NULL, other_thread, other)) fail_msg("test: no thread");
    pthread_join(thread, NULL);
    assert_string_equal(moewe_last_error(), before); /* so do other threads */
    assert_string_not_equal(other, before);
    assert_non_null(strstr(other + 128, "unlock"));

    { /* a long name is cut at 63 bytes and harms nobody */
        char name[3000];
        moewe_plan *named;

        memset(name, 'n', sizeof name);
        name[sizeof name - 1] = 0;
        cfg.name = name;
        cfg.workspace_limit = 1;
        assert_int_equal(moewe_plan_create(dev, &cfg, &named), MOEWE_E_WS_LIMIT);
        name[63] = 0;
        says(name);
        name[63] = 'n';
        name[64] = 0;
        assert_null(strstr(moewe_last_error(), name));
        cfg.name = "%s%n%d"; /* a name is no format */
        assert_int_equal(moewe_plan_create(dev, &cfg, &named), MOEWE_E_WS_LIMIT);
        says("%s%n%d");
    }
    moewe_plan_destroy(plan);
    moewe_device_close(dev);
}

/* Texts work like snprintf: the whole length whatever the room, and always ended. */
static void describe(void **state)
{
    moewe_device *dev = open_backend(cpu_backends().name[0], 2);
    moewe_config cfg = small_config();
    char text[8192], part[100];
    moewe_plan *plan;
    size_t whole;

    (void)state;
    cfg.max_tokens = 5;
    cfg.name = "described";
    CHECK_OK(moewe_plan_create(dev, &cfg, &plan));
    whole = moewe_plan_describe(plan, text, sizeof text);
    assert_true(whole > sizeof part && whole < sizeof text);
    assert_int_equal(strlen(text), whole);
    assert_int_equal(moewe_plan_describe(plan, NULL, 0), whole);
    for (size_t cap = 1; cap <= sizeof part; cap++) {
        memset(part, 'z', sizeof part);
        assert_int_equal(moewe_plan_describe(plan, part, cap), whole);
        assert_int_equal(strlen(part), cap - 1);
        assert_memory_equal(part, text, cap - 1);
    }
    assert_non_null(strstr(text, "described"));
    assert_non_null(strstr(text, moewe_device_backend(dev)));
    moewe_plan_destroy(plan);
    moewe_device_close(dev);
}

static void status_texts(void **state)
{
    static const struct {
        int value;
        const char *name, *text;
    } table[] = {
#define ROW(name, value, text) {value, "MOEWE_" #name, text},
        MOEWE_STATUS_MAP(ROW)
#undef ROW
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        assert_int_equal(table[i].value, (int)i); /* pinned */
        assert_string_equal(moewe_status_name((moewe_status)i), table[i].name);
        assert_string_equal(moewe_status_text((moewe_status)i), table[i].text);
    }
    for (int i = 0; i < 3; i++) {
        static const int unknown[] = {17, -1, INT_MAX};

        assert_non_null(moewe_status_name((moewe_status)unknown[i]));
        assert_non_null(moewe_status_text((moewe_status)unknown[i]));
    }
    assert_int_equal(moewe_version(), MOEWE_VERSION_MAJOR << 16 | MOEWE_VERSION_MINOR << 8 | MOEWE_VERSION_PATCH);
    assert_true(strlen(moewe_build_info()) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_fields),    cmocka_unit_test(config_floats), cmocka_unit_test(config_combinations),
        cmocka_unit_test(device_arguments), cmocka_unit_test(run_arguments), cmocka_unit_test(packing_arguments),
        cmocka_unit_test(last_error),       cmocka_unit_test(status_texts),  cmocka_unit_test(describe),
        cmocka_unit_test(config_widths),
    };

    return cmocka_run_group_tests_name("errors", tests, NULL, NULL);
}
