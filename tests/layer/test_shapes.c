/* test_shapes.c - owns strides, views beyond 2^31, sizes that fit no tile, and layers held in parts.  It must never
 * skip a shape because a back end dislikes it. */
#include "../support/layer_case.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

/* ---- strides ---- */

static void edge_guard_bytes(const char *backend, const moewe_device *dev)
{
    for (int32_t dtype = MOEWE_DTYPE_F32; dtype <= MOEWE_DTYPE_BF16; dtype += 2)
        for (int add = 0; add < 2; add++) {
            moewe_config cfg = small_config();
            int32_t row;
            char *y;
            layer_case c;

            cfg.hidden = 67;
            cfg.x_dtype = dtype;
            case_build(&c, &cfg, 11, WITH_STRIDES | (add ? WITH_Y_ADD : 0u), 3);
            row = c.cfg.hidden * dtype_size(dtype);
            y = must_alloc(c.y_bytes, 1);
            case_run(dev, &c, NULL, 0, 1, y);
            for (int32_t t = 0; t < 10; t++)
                for (int64_t i = row; i < case_y_stride(&c); i++)
                    CHECK(y[t * case_y_stride(&c) + i] == ((char *)c.io.y)[t * case_y_stride(&c) + i],
                          "%s: a byte after row %d is written", backend, t);
            check_run(backend, dev, &c, "strides");
            free(y);
            case_free(&c);
        }
}

static void guard_bytes(void **state)
{
    (void)state;
    on_every_backend(edge_guard_bytes);
}

static void *sparse(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* x, y and the experts of each matrix further apart than 2^31 bytes: the same bits as packed. */
static void edge_far_apart(const char *backend, const moewe_device *dev)
{
    const int64_t step = 3LL << 30;
    moewe_config cfg = small_config();
    layer_case c, far;
    char *x, *y, *w, *want;
    int32_t row;

    cfg.n_experts = 4;
    cfg.top_k = 4;
    case_build(&c, &cfg, 4, 0, 6);
    row = c.cfg.hidden * 4;
    want = must_alloc(c.y_bytes, 1);
    case_run(dev, &c, NULL, 0, 0, want);
    x = sparse((uint64_t)(3 * step + (1 << 20)));
    y = sparse((uint64_t)(3 * step + (1 << 20)));
    w = sparse((uint64_t)(3 * step + (1 << 20)));
    if (!x || !y || !w) {
        print_message("%s: no address space for views beyond 2^31\n", backend);
    } else {
        moewe_matrix *from[3] = {&c.w.gate, &c.w.up, &c.w.down}, *to[3];
        moewe_plan *plan;
        moewe_need need;
        moewe_span ws;

        far = c;
        to[0] = &far.w.gate, to[1] = &far.w.up, to[2] = &far.w.down;
        for (int m = 0; m < 3; m++) {
            int64_t bytes = 40 * 24 * 4;

            to[m]->data = w + m * 65536;
            to[m]->expert_stride = step;
            for (int e = 0; e < 4; e++)
                memcpy(w + m * 65536 + e * step, (const char *)from[m]->data + e * bytes, (size_t)bytes);
        }
        for (int t = 0; t < 4; t++) memcpy(x + t * step, (const char *)c.io.x + t * row, (size_t)row);
        far.io.x = x;
        far.io.x_stride = step;
        far.io.y = y;
        far.io.y_stride = step;
        CHECK_OK(moewe_plan_create(dev, &c.cfg, &plan));
        CHECK_OK(moewe_plan_need(plan, &need));
        ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
        CHECK_OK(moewe_run(plan, &far.w, &far.io, ws, NULL));
        for (int t = 0; t < 4; t++)
            CHECK(!memcmp(want + t * row, y + t * step, (size_t)row), "%s: row %d is other far apart", backend, t);
        free(ws.ptr);
        moewe_plan_destroy(plan);
        { /* packing reads the same views */
            void *mem;
            moewe_weights packed = case_pack(dev, &far, &mem);
            char *again = must_alloc(c.y_bytes, 1);

            case_run(dev, &c, &packed, 0, 0, again);
            assert_memory_equal(want, again, c.y_bytes);
            free(again);
            free(mem);
        }
    }
    if (x) munmap(x, (uint64_t)(3 * step + (1 << 20)));
    if (y) munmap(y, (uint64_t)(3 * step + (1 << 20)));
    if (w) munmap(w, (uint64_t)(3 * step + (1 << 20)));
    free(want);
    case_free(&c);
}

static void far_apart(void **state)
{
    (void)state;
    on_every_backend(edge_far_apart);
}

/* Negative strides: rows stored last to first. */
static void edge_backwards(const char *backend, const moewe_device *dev)
{
    moewe_config cfg = small_config();
    layer_case c;
    char *want, *y;
    moewe_weights w;

    case_build(&c, &cfg, 5, 0, 4);
    want = must_alloc(c.y_bytes, 1);
    y = must_alloc(c.y_bytes, 1);
    w = c.w;
    { /* up with its rows reversed in memory */
        int64_t row = 40 * 4, each = 24 * row;
        char *reversed = must_alloc((uint64_t)(8 * each), 4);

        for (int e = 0; e < 8; e++)
            for (int r = 0; r < 24; r++)
                memcpy(reversed + e * each + (23 - r) * row, (const char *)c.w.up.data + e * each + r * row,
                       (size_t)row);
        w.up.data = reversed + 23 * row;
        w.up.row_stride = -row;
        w.up.expert_stride = each;
        case_run(dev, &c, NULL, 0, 0, want);
        case_run(dev, &c, &w, 0, 0, y);
        CHECK(!memcmp(want, y, c.y_bytes), "%s: a negative row_stride reads other elements", backend);
        free(reversed);
    }
    free(want);
    free(y);
    case_free(&c);
}

static void backwards(void **state)
{
    (void)state;
    on_every_backend(edge_backwards);
}

/* ---- sizes ---- */

static void edge_odd_sizes(const char *backend, const moewe_device *dev)
{
    static const int32_t sizes[] = {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129};
    enum { N = sizeof sizes / sizeof sizes[0] };

    for (int i = 0; i < N; i++)
        for (int j = 0; j < 4; j++) {
            moewe_config cfg = small_config();
            layer_case c;

            cfg.hidden = sizes[i];
            cfg.inter = sizes[(i * 5 + j * 4) % N];
            cfg.shared_inter = j == 3 ? sizes[(i + 7) % N] : 0;
            cfg.x_dtype = j & 1 ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32;
            cfg.w_dtype = 1 + (i + j) % 3;
            /* a router of one column gives logits that are multiples of each other, never near ties */
            case_build(&c, &cfg, 1 + (i + j) % 4, WITH_BIAS1 | WITH_BIAS2 | WITH_LOGITS, (uint64_t)(i * 4 + j));
            check_run(backend, dev, &c, "odd sizes");
            case_free(&c);
        }
}

static void odd_sizes(void **state)
{
    (void)state;
    on_every_backend(edge_odd_sizes);
}

static void edge_expert_counts(const char *backend, const moewe_device *dev)
{
    static const struct {
        int32_t n_experts, top_k, n_null;
    } table[] = {{1, 1, 0}, {2, 2, 0}, {17, 17, 0}, {64, 64, 0}, {512, 32, 0}, {1, 2, 1}, {3, 5, 5}};

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        moewe_config cfg = small_config();
        layer_case c;

        cfg.hidden = 20;
        cfg.inter = 6;
        cfg.n_experts = table[i].n_experts;
        cfg.top_k = table[i].top_k;
        cfg.n_null = table[i].n_null;
        case_build(&c, &cfg, 3, 0, i);
        check_run(backend, dev, &c, "counts of experts");
        case_free(&c);
    }
}

static void expert_counts(void **state)
{
    (void)state;
    on_every_backend(edge_expert_counts);
}

/* ---- parts ---- */

/* Devices that hold a part of the experts each: together the whole.  Identity experts count on each. */
static void edge_parts(const char *backend, const moewe_device *dev)
{
    static const int32_t cuts[] = {0, 3, 4, 9, 10};
    enum { PARTS = sizeof cuts / sizeof cuts[0] - 1 };

    for (int given = 0; given < 2; given++) {
        moewe_config cfg = small_config();
        layer_case c;
        tally t = {0};
        char *sum;

        cfg.n_experts = 10;
        if (given) {
            cfg.score = MOEWE_SCORE_GIVEN;
            cfg.flags = 0;
        }
        case_build(&c, &cfg, 9, WITH_BIAS1 | WITH_BIAS2, 41);
        sum = must_alloc(c.y_bytes, 4);
        memset(sum, 0, c.y_bytes);
        for (int i = 0; i < PARTS; i++) {
            layer_case part = c;
            int64_t e = cuts[i], each = (int64_t)cfg.hidden * cfg.inter * 4;
            char *y = must_alloc(c.y_bytes, 4);

            part.cfg.first_expert = cuts[i];
            part.cfg.n_local = cuts[i + 1] - cuts[i];
            part.w.gate.data = (const char *)c.w.gate.data + e * each;
            part.w.up.data = (const char *)c.w.up.data + e * each;
            part.w.down.data = (const char *)c.w.down.data + e * each;
            part.w.gate.bias += e * cfg.inter;
            part.w.up.bias += e * cfg.inter;
            part.w.down.bias += e * cfg.hidden;
            check_run(backend, dev, &part, "a part of the experts");
            part.io.y = sum; /* each part adds to what the others left */
            part.io.y_add = 1;
            case_run(dev, &part, NULL, 0, 2, y);
            memcpy(sum, y, c.y_bytes);
            free(y);
        }
        /* y_add rounds once a part more than the whole does: the bound counts a term for each */
        for (uint64_t i = 0; i < c.y_bytes / 4; i++)
            CHECK(isfinite(ref_load(sum + 4 * i, MOEWE_DTYPE_F32)), "%s: parts are not finite", backend);
        case_check(&c, sum, &t, "parts together");
        free(sum);
        case_free(&c);
    }
}

static void parts(void **state)
{
    (void)state;
    on_every_backend(edge_parts);
}

/* Rows of x and y interleaved in one buffer do not overlap. */
static void edge_interleaved(const char *backend, const moewe_device *dev)
{
    moewe_config cfg = small_config();
    int32_t row = 40 * 4;
    char *both, *want;
    moewe_plan *plan;
    moewe_need need;
    moewe_span ws;
    layer_case c;
    moewe_io io;

    case_build(&c, &cfg, 6, 0, 17);
    want = must_alloc(c.y_bytes, 1);
    case_run(dev, &c, NULL, 0, 0, want);
    both = must_alloc((uint64_t)(12 * row), 4);
    for (int t = 0; t < 6; t++) memcpy(both + 2 * t * row, (const char *)c.io.x + t * row, (size_t)row);
    io = c.io;
    io.x = both;
    io.y = both + row;
    io.x_stride = io.y_stride = 2 * row;
    CHECK_OK(moewe_plan_create(dev, &c.cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    CHECK_OK(moewe_run(plan, &c.w, &io, ws, NULL));
    for (int t = 0; t < 6; t++) {
        CHECK(!memcmp(both + (2 * t + 1) * row, want + t * row, (size_t)row), "%s: row %d of y", backend, t);
        CHECK(!memcmp(both + 2 * t * row, (const char *)c.io.x + t * row, (size_t)row), "%s: row %d of x", backend, t);
    }
    free(ws.ptr);
    moewe_plan_destroy(plan);
    free(both);
    free(want);
    case_free(&c);
}

static void interleaved(void **state)
{
    (void)state;
    on_every_backend(edge_interleaved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guard_bytes), cmocka_unit_test(far_apart),     cmocka_unit_test(backwards),
        cmocka_unit_test(odd_sizes),   cmocka_unit_test(expert_counts), cmocka_unit_test(parts),
        cmocka_unit_test(interleaved),
    };

    return cmocka_run_group_tests_name("shapes", tests, NULL, NULL);
}
