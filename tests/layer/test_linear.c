/* test_linear.c - owns the dense matrices: against f64, and the same bits however rows come.  It must never hold a
 * tolerance of its own. */
#include "../support/weight_kind.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct dense {
    moewe_linear lin;
    int32_t n;
    char *w, *x, *y0;
    float *bias;
    uint64_t x_bytes, y_bytes;
    layer_case held; /* what weight_kind_fill made */
} dense;

/* Everything but the elements of the matrix. */
static void dense_rows(dense *d, int32_t rows, int32_t cols, int32_t n, int32_t x_dtype, int32_t y_dtype, int bias,
                       int y_add, rng *r)
{
    int32_t xs = dtype_size(x_dtype), ys = dtype_size(y_dtype);

    memset(d, 0, sizeof *d);
    MOEWE_INIT(d->lin);
    d->lin.rows = rows;
    d->lin.cols = cols;
    d->lin.x_dtype = x_dtype;
    d->lin.y_dtype = y_dtype;
    d->lin.y_add = y_add;
    d->n = n;
    d->bias = must_alloc((uint64_t)rows * sizeof *d->bias, 1);
    for (int32_t i = 0; i < rows; i++) d->bias[i] = (float)rng_real(r);
    if (bias) d->lin.matrix.bias = d->bias;
    d->x_bytes = (uint64_t)n * (uint64_t)cols * (uint64_t)xs;
    d->y_bytes = (uint64_t)n * (uint64_t)rows * (uint64_t)ys;
    d->x = must_alloc(d->x_bytes, 1);
    d->y0 = must_alloc(d->y_bytes, 1);
    for (int64_t i = 0; i < (int64_t)n * cols; i++) store(d->x + i * xs, x_dtype, rng_real(r));
    fill_pattern(d->y0, d->y_bytes, 2);
    for (int64_t i = 0; y_add && i < (int64_t)n * rows; i++) store(d->y0 + i * ys, y_dtype, rng_real(r));
}

static void dense_build(dense *d, int32_t rows, int32_t cols, int32_t n, int32_t w_dtype, int32_t x_dtype,
                        int32_t y_dtype, int bias, int y_add, int odd, uint64_t seed)
{
    rng r = {seed};
    int32_t ws = dtype_size(w_dtype);

    dense_rows(d, rows, cols, n, x_dtype, y_dtype, bias, y_add, &r);
    d->w = must_alloc((uint64_t)rows * (uint64_t)cols * (uint64_t)ws + (uint64_t)odd, 1);
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) store(d->w + odd + i * ws, w_dtype, rng_real(&r));
    d->lin.matrix.data = d->w + odd;
    d->lin.matrix.dtype = w_dtype;
}

static void dense_of_kind(dense *d, int32_t rows, int32_t cols, int32_t n, const weight_kind *k, int32_t x_dtype,
                          int32_t y_dtype, unsigned with, uint64_t seed)
{
    rng r = {seed};
    const float *bias;

    dense_rows(d, rows, cols, n, x_dtype, y_dtype, seed % 2 == 0, seed % 3 == 0, &r);
    bias = d->lin.matrix.bias;
    d->lin.matrix = weight_kind_fill(&d->held, 1, rows, cols, k, 1.0 / sqrt(cols), with, &r);
    d->lin.matrix.bias = bias;
}

static void dense_free(dense *d)
{
    free(d->w);
    free(d->x);
    free(d->y0);
    free(d->bias);
    case_free(&d->held);
}

static void dense_run(const moewe_device *dev, const dense *d, const moewe_linear *lin, char *y)
{
    memcpy(y, d->y0, d->y_bytes);
    CHECK_OK(moewe_linear_run(dev, lin, d->n, d->x, 0, y, 0, NULL));
}

static void dense_check(const dense *d, const char *y, const char *what)
{
    int32_t rows = d->lin.rows, cols = d->lin.cols, xs = dtype_size(d->lin.x_dtype), ys = dtype_size(d->lin.y_dtype);
    ref_value *x = must_alloc((uint64_t)cols * sizeof *x, 8), *want = must_alloc((uint64_t)rows * sizeof *want, 8);

    for (int32_t t = 0; t < d->n; t++) {
        for (int32_t c = 0; c < cols; c++) {
            x[c].v = ref_load(d->x + ((int64_t)t * cols + c) * xs, d->lin.x_dtype);
            x[c].e = 0.0;
        }
        ref_gemv(&d->lin.matrix, 0, rows, cols, x, want);
        for (int32_t r = 0; r < rows; r++) {
            int64_t at = ((int64_t)t * rows + r) * ys;
            double got = ref_load(y + at, d->lin.y_dtype);
            double before = d->lin.y_add ? ref_load(d->y0 + at, d->lin.y_dtype) : 0.0;

            want[r].v += before;
            want[r].e += ref_error_bound(1.0, fabs(want[r].v) + fabs(before));
            if (d->lin.y_dtype == MOEWE_DTYPE_BF16)
                want[r].e += ref_unit(MOEWE_DTYPE_BF16) * (fabs(want[r].v) + want[r].e);
            CHECK(fabs(got - want[r].v) <= want[r].e, "%s: y[%d][%d] is %.9g, needs %.9g within %.3g", what, t, r, got,
                  want[r].v, want[r].e);
        }
    }
    free(x);
    free(want);
}

static const struct {
    int32_t rows, cols, n;
} shapes[] = {{1, 1, 1},     {3, 17, 2},    {64, 64, 5},  {65, 100, 7}, {33, 31, 33},
              {130, 257, 3}, {16, 300, 40}, {100, 2, 12}, {1, 515, 35}, {200, 1, 9}};

static void against_f64(void **state)
{
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *dev = open_backend(list.name[b], 2);

        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (int32_t j = 0; j < 3 * 2 * 2; j++) {
                dense d;
                char *y, what[128];

                dense_build(&d, shapes[i].rows, shapes[i].cols, shapes[i].n, 1 + j % 3,
                            j / 3 % 2 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32, j / 6 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32,
                            (int)(i + (size_t)j) % 2, (int)(i + (size_t)j / 2) % 2, (int)i % 2, i * 100 + (uint64_t)j);
                snprintf(what, sizeof what, "%s [%d][%d] x %d, dtypes %d", list.name[b], d.lin.rows, d.lin.cols, d.n,
                         j);
                y = must_alloc(d.y_bytes, 1);
                dense_run(dev, &d, &d.lin, y);
                dense_check(&d, y, what);
                free(y);
                dense_free(&d);
            }
        moewe_device_close(dev);
    }
}

/* Every kind of weights with scales, in widths that its rows can have. */
static void scaled_against_f64(void **state)
{
    static const unsigned withs[] = {0, WITH_UNALIGNED | WITH_STRIDES, WITH_TRANSPOSED | WITH_UNALIGNED,
                                     WITH_POINTERS | WITH_STRIDES};
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *dev = open_backend(list.name[b], 2);

        oracle_for(list.name[b]);
        for (int32_t k = 0; k < weight_kind_count; k++)
            for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
                int32_t unit = weight_kind_unit(&weight_kinds[k]), cols = (shapes[i].cols + unit - 1) / unit * unit;
                size_t j = i + (size_t)k;
                dense d;
                char *y, what[128];

                dense_of_kind(&d, shapes[i].rows, cols, shapes[i].n, &weight_kinds[k],
                              j % 2 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32,
                              j / 2 % 2 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32, withs[j % 4], i * 100 + (uint64_t)k);
                snprintf(what, sizeof what, "%s %s [%d][%d] x %d", list.name[b], weight_kinds[k].name, d.lin.rows,
                         d.lin.cols, d.n);
                y = must_alloc(d.y_bytes, 1);
                dense_run(dev, &d, &d.lin, y);
                dense_check(&d, y, what);
                free(y);
                dense_free(&d);
            }
        moewe_device_close(dev);
    }
}

static moewe_linear pack(const moewe_device *dev, const dense *d, void **mem)
{
    moewe_need need;
    moewe_linear out;
    moewe_span span;

    CHECK_OK(moewe_linear_need(dev, &d->lin, &need));
    span.bytes = need.bytes;
    span.ptr = *mem = must_alloc(need.bytes, need.align);
    if (need.bytes) {
        span.bytes--;
        assert_int_equal(moewe_linear_pack(dev, &d->lin, span, NULL, &out), MOEWE_E_WS_SMALL);
        span.bytes++;
    }
    CHECK_OK(moewe_linear_pack(dev, &d->lin, span, NULL, &out));
    return out;
}

/* Batches, strides, threads, packing: one set of bits. */
static void same_bits(void **state)
{
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++)
        for (int32_t j = 0; j < 6; j++) {
            moewe_device *one = open_backend(list.name[b], 1), *three = open_backend(list.name[b], 3);
            int32_t x_dtype = j / 3 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32, size = dtype_size(x_dtype);
            moewe_linear packed;
            char *want, *y, *wide_x, *wide_y;
            int64_t xs, ys;
            void *mem;
            dense d;

            dense_build(&d, 150, 131, 37, 1 + j % 3, x_dtype, x_dtype, 1, j % 2, 0, (uint64_t)j);
            want = must_alloc(d.y_bytes, 1);
            y = must_alloc(d.y_bytes, 1);
            dense_run(one, &d, &d.lin, want);
            dense_run(three, &d, &d.lin, y);
            assert_memory_equal(want, y, d.y_bytes);
            packed = pack(one, &d, &mem);
            dense_run(three, &d, &packed, y);
            assert_memory_equal(want, y, d.y_bytes);
            memcpy(y, d.y0, d.y_bytes);
            for (int32_t t = 0; t < d.n; t++)
                CHECK_OK(moewe_linear_run(one, t % 2 ? &packed : &d.lin, 1, d.x + (int64_t)t * 131 * size, 0,
                                          y + (int64_t)t * 150 * size, 0, NULL));
            assert_memory_equal(want, y, d.y_bytes);

            xs = 131 * size + 2 * size;
            ys = 150 * size + 6 * size;
            wide_x = must_alloc((uint64_t)(36 * xs + 131 * size), 1);
            wide_y = must_alloc((uint64_t)(36 * ys + 150 * size), 1);
            fill_pattern(wide_x, (uint64_t)(36 * xs + 131 * size), 2);
            fill_pattern(wide_y, (uint64_t)(36 * ys + 150 * size), 1);
            for (int32_t t = 0; t < d.n; t++) {
                memcpy(wide_x + t * xs, d.x + (int64_t)t * 131 * size, 131 * (size_t)size);
                memcpy(wide_y + t * ys, d.y0 + (int64_t)t * 150 * size, 150 * (size_t)size);
            }
            CHECK_OK(moewe_linear_run(three, &packed, d.n, wide_x, xs, wide_y, ys, NULL));
            for (int32_t t = 0; t < d.n; t++) {
                assert_memory_equal(want + (int64_t)t * 150 * size, wide_y + t * ys, 150 * (size_t)size);
                for (int32_t i = 150 * size; t < d.n - 1 && i < ys; i++)
                    CHECK((unsigned char)wide_y[t * ys + i] == 0xff, "%s: a byte between rows is written",
                          list.name[b]);
            }
            free(wide_x);
            free(wide_y);
            free(mem);
            free(want);
            free(y);
            dense_free(&d);
            moewe_device_close(one);
            moewe_device_close(three);
        }
}

/* One thread or three, packed or plain, in a batch or alone; odd rows packed, even ones plain. */
static void same_bits_scaled(void **state)
{
    enum { ROWS = 70, TOKENS = 35 };
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *one = open_backend(list.name[b], 1), *three = open_backend(list.name[b], 3);

        for (int32_t k = 0; k < weight_kind_count; k++) {
            int32_t x_dtype = k % 2 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32, size = dtype_size(x_dtype);
            int32_t unit = weight_kind_unit(&weight_kinds[k]), cols = (250 + unit - 1) / unit * unit;
            moewe_linear packed;
            char *want, *y;
            void *mem;
            dense d;

            dense_of_kind(&d, ROWS, cols, TOKENS, &weight_kinds[k], x_dtype, x_dtype, k % 3 ? WITH_UNALIGNED : 0,
                          (uint64_t)k);
            want = must_alloc(d.y_bytes, 1);
            y = must_alloc(d.y_bytes, 1);
            dense_run(one, &d, &d.lin, want);
            dense_run(three, &d, &d.lin, y);
            assert_memory_equal(want, y, d.y_bytes);
            packed = pack(three, &d, &mem);
            dense_run(three, &d, &packed, y);
            assert_memory_equal(want, y, d.y_bytes);
            memcpy(y, d.y0, d.y_bytes);
            for (int32_t t = 0; t < TOKENS; t++)
                CHECK_OK(moewe_linear_run(one, t % 2 ? &packed : &d.lin, 1, d.x + (int64_t)t * cols * size, 0,
                                          y + (int64_t)t * ROWS * size, 0, NULL));
            CHECK(!memcmp(want, y, d.y_bytes), "%s: %s has other bits alone", list.name[b], weight_kinds[k].name);
            free(mem);
            free(want);
            free(y);
            dense_free(&d);
        }
        moewe_device_close(one);
        moewe_device_close(three);
    }
}

static void refused(void **state)
{
    backend_list list = cpu_backends();

    (void)state;
    for (int32_t b = 0; b < list.n; b++) {
        float w[6] = {1, 2, 3, 4, 5, 6}, x[6] = {1, 10, 100}, y[4] = {-1, -1};
        moewe_device *dev = open_backend(list.name[b], 1);
        moewe_linear good, bad;
        moewe_need need;

        MOEWE_INIT(good);
        good.rows = 2;
        good.cols = 3;
        good.matrix.data = w;
        good.matrix.dtype = MOEWE_DTYPE_F32;
#define REFUSED(status, change)                                                                                        \
    bad = good;                                                                                                        \
    change;                                                                                                            \
    assert_int_equal(moewe_linear_run(dev, &bad, 1, x, 0, y, 0, NULL), status);                                        \
    assert_int_equal(moewe_linear_need(dev, &bad, &need), status)
        REFUSED(MOEWE_E_ABI, bad.struct_size--);
        REFUSED(MOEWE_E_ARG, bad.rows = 0);
        REFUSED(MOEWE_E_ARG, bad.cols = -1);
        REFUSED(MOEWE_E_ARG, bad.matrix.data = NULL);
        REFUSED(MOEWE_E_ARG, bad.matrix.dtype = 9);
        REFUSED(MOEWE_E_ARG, bad.x_dtype = 7);
        REFUSED(MOEWE_E_ARG, bad.y_dtype = -1);
        REFUSED(MOEWE_E_LAYOUT, bad.matrix.layout = 0x1234);
#undef REFUSED
        assert_int_equal(moewe_linear_run(NULL, &good, 1, x, 0, y, 0, NULL), MOEWE_E_ARG);
        assert_int_equal(moewe_linear_run(dev, NULL, 1, x, 0, y, 0, NULL), MOEWE_E_ARG);
        assert_int_equal(moewe_linear_run(dev, &good, -1, x, 0, y, 0, NULL), MOEWE_E_ARG);
        assert_int_equal(moewe_linear_run(dev, &good, 1, NULL, 0, y, 0, NULL), MOEWE_E_ARG);
        assert_int_equal(moewe_linear_run(dev, &good, 1, x, 0, NULL, 0, NULL), MOEWE_E_ARG);
        assert_int_equal(moewe_linear_run(dev, &good, 2, x, 0, y, 4, NULL), MOEWE_E_ARG); /* rows of y overlap */
        assert_int_equal(moewe_linear_run(dev, &good, 2, x, -4, y, 0, NULL), MOEWE_E_ARG);
        assert_int_equal(moewe_linear_run(dev, &good, 1, x, 0, x, 0, NULL), MOEWE_E_ARG); /* y over x */
        assert_true(y[0] == -1.0f && y[1] == -1.0f && x[0] == 1.0f);
        CHECK_OK(moewe_linear_run(dev, &good, 0, NULL, 0, NULL, 0, NULL));
        CHECK_OK(moewe_linear_run(dev, &good, 1, x, 0, y, 0, NULL));
        assert_true(y[0] == 321.0f && y[1] == 654.0f);
        moewe_device_close(dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_f64), cmocka_unit_test(scaled_against_f64), cmocka_unit_test(same_bits),
        cmocka_unit_test(same_bits_scaled), cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests_name("linear", tests, NULL, NULL);
}
