/* test_values.c - owns values whose right result is known without an oracle: biases of the router and of the
 * shared expert's gate, every f16 number, NaN in bf16, softplus and gelu by their definitions. */
#include "../support/layer_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static moewe_matrix plain(const void *data, int32_t dtype)
{
    return (moewe_matrix){.data = data, .dtype = dtype};
}

static void run_config(const moewe_device *dev, const moewe_config *cfg, const moewe_weights *w, const moewe_io *io)
{
    moewe_plan *plan;
    moewe_need need;
    CHECK_OK(moewe_plan_create(dev, cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    moewe_span ws = {must_alloc(need.bytes, need.align), need.bytes};
    CHECK_OK(moewe_run(plan, w, io, ws, NULL));
    free(ws.ptr);
    moewe_plan_destroy(plan);
}

/* Two ungated experts of one row: expert e gives relu(x) * (e + 1); the shared one gives 10 * relu(x). */
static void router_and_gate_biases(const char *backend, const moewe_device *dev)
{
    const float up[2] = {1, 1}, down[2] = {1, 2}, zero[2] = {0, 0}, ten = 10, one = 1, x = 3;
    float router_bias[2] = {0, 1}, gate_bias = 0, y = 0;
    moewe_config cfg;
    moewe_weights w;
    moewe_io io;
    (void)backend;
    MOEWE_INIT(cfg);
    MOEWE_INIT(w);
    MOEWE_INIT(io);
    cfg.hidden = cfg.inter = cfg.top_k = cfg.max_tokens = cfg.shared_inter = 1;
    cfg.n_experts = 2;
    cfg.act = MOEWE_ACT_RELU;
    cfg.flags = MOEWE_FLAG_RENORMALIZE;
    w.up = plain(up, MOEWE_DTYPE_F32);
    w.down = plain(down, MOEWE_DTYPE_F32);
    w.router = plain(zero, MOEWE_DTYPE_F32);
    w.router.bias = router_bias;
    w.shared_up = plain(&one, MOEWE_DTYPE_F32);
    w.shared_down = plain(&ten, MOEWE_DTYPE_F32);
    w.shared_scale = plain(zero, MOEWE_DTYPE_F32);
    w.shared_scale.bias = &gate_bias;
    io.n_tokens = 1;
    io.x = &x;
    io.y = &y;
    /* The bias alone chooses: expert 1 gives 6, expert 0 gives 3; sigmoid(0) of 30 is 15. */
    run_config(dev, &cfg, &w, &io);
    CHECK(y == 21, "the router's bias does not choose expert 1");
    router_bias[0] = 2;
    run_config(dev, &cfg, &w, &io);
    CHECK(y == 18, "the router's bias does not choose expert 0");
    gate_bias = -200; /* e^-200 is nothing beside 3 */
    run_config(dev, &cfg, &w, &io);
    CHECK(y == 3, "the bias of the shared expert's gate does not close it");
    gate_bias = 200;
    run_config(dev, &cfg, &w, &io);
    CHECK(y == 33, "the bias of the shared expert's gate does not open it");
}

static double f16_value(uint32_t h)
{
    uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent == 31 ? (fraction ? NAN : INFINITY)
                              : ldexp(fraction + (exponent ? 1024 : 0), (exponent ? (int)exponent : 1) - 25);
    return h & 0x8000 ? -v : v;
}

/* Every f16 as the weight of a matrix with one column, on x = 1. */
static void every_f16(const char *backend, const moewe_device *dev)
{
    enum { N = 65536 };
    uint16_t *w = must_alloc(N * sizeof *w, 2);
    float *y = must_alloc(N * sizeof *y, 4), one = 1;
    moewe_linear lin;
    (void)backend;
    MOEWE_INIT(lin);
    for (uint32_t i = 0; i < N; i++) w[i] = (uint16_t)i;
    lin.rows = N;
    lin.cols = 1;
    lin.matrix = plain(w, MOEWE_DTYPE_F16);
    CHECK_OK(moewe_linear_run(dev, &lin, 1, &one, 0, y, 0, NULL));
    for (uint32_t i = 0; i < N; i++) {
        double want = f16_value(i);
        CHECK(isnan(want) ? isnan(y[i]) : (double)y[i] == want, "an f16 weight is loaded as another number");
    }
    free(w);
    free(y);
}

/* A NaN stays one when it is rounded to bf16, whatever bits it has. */
static void nan_in_bf16(const char *backend, const moewe_device *dev)
{
    const uint32_t payloads[] = {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0x7fc00000u, 0xff80ffffu, 0x7fff8000u};
    (void)backend;
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        float weight;
        uint16_t x = 0x3f80, y = 0;
        moewe_linear lin;
        MOEWE_INIT(lin);
        memcpy(&weight, &payloads[i], sizeof weight);
        lin.rows = lin.cols = 1;
        lin.x_dtype = MOEWE_DTYPE_BF16;
        lin.matrix = plain(&weight, MOEWE_DTYPE_F32);
        CHECK_OK(moewe_linear_run(dev, &lin, 1, &x, 0, &y, 0, NULL));
        CHECK((y & 0x7f80) == 0x7f80 && (y & 0x7f) != 0, "a NaN is no NaN any more in bf16");
    }
}

/* sqrt(log(1 + e^l)) as the weight of one expert that passes x on: l through the range where a short cut would show. */
static void softplus_weights(const char *backend, const moewe_device *dev)
{
    const float one = 1, x = 1;
    (void)backend;
    for (int l = -30; l <= 40; l++) {
        float logit = (float)l * 0.75f, y = 0;
        moewe_config cfg;
        moewe_weights w;
        moewe_io io;
        MOEWE_INIT(cfg);
        MOEWE_INIT(w);
        MOEWE_INIT(io);
        cfg.hidden = cfg.inter = cfg.top_k = cfg.max_tokens = cfg.n_experts = 1;
        cfg.act = MOEWE_ACT_RELU;
        cfg.score = MOEWE_SCORE_SQRTSOFTPLUS;
        w.up = w.down = plain(&one, MOEWE_DTYPE_F32);
        io.n_tokens = 1;
        io.x = &x;
        io.y = &y;
        io.logits = &logit;
        run_config(dev, &cfg, &w, &io);
        double want = sqrt(log1p(exp((double)logit)));
        /* exp, log1p, sqrt and the product: each right to an ulp or two of f32. */
        CHECK(fabs((double)y - want) <= 8 * 0x1p-24 * want, "a softplus weight is off");
    }
}

/* gelu(u) = u (1 + erf(u / sqrt 2)) / 2, through one expert. */
static void gelu_values(const char *backend, const moewe_device *dev)
{
    const float one = 1, weight = 1;
    const int32_t id = 0;
    (void)backend;
    for (int i = -24; i <= 24; i++) {
        float x = (float)i * 0.25f, y = 0;
        moewe_config cfg;
        moewe_weights w;
        moewe_io io;
        MOEWE_INIT(cfg);
        MOEWE_INIT(w);
        MOEWE_INIT(io);
        cfg.hidden = cfg.inter = cfg.top_k = cfg.max_tokens = cfg.n_experts = 1;
        cfg.act = MOEWE_ACT_GELU;
        cfg.score = MOEWE_SCORE_GIVEN;
        w.up = w.down = plain(&one, MOEWE_DTYPE_F32);
        io.n_tokens = 1;
        io.x = &x;
        io.y = &y;
        io.topk_ids = &id;
        io.topk_weights = &weight;
        run_config(dev, &cfg, &w, &io);
        double want = 0.5 * (double)x * (1 + erf((double)x / sqrt(2.0)));
        /* 1 + erf rounds at 1; its error is that of u times an ulp of 1 or two. */
        CHECK(fabs((double)y - want) <= 4 * 0x1p-24 * fabs((double)x), "gelu is off");
    }
}

static void biases(void **state)
{
    (void)state;
    on_every_backend(router_and_gate_biases);
}

static void f16(void **state)
{
    (void)state;
    on_every_backend(every_f16);
}

static void nans(void **state)
{
    (void)state;
    on_every_backend(nan_in_bf16);
}

static void softplus(void **state)
{
    (void)state;
    on_every_backend(softplus_weights);
}

static void gelu(void **state)
{
    (void)state;
    on_every_backend(gelu_values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biases),   cmocka_unit_test(f16),  cmocka_unit_test(nans),
        cmocka_unit_test(softplus), cmocka_unit_test(gelu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
