/* layer_case.c - owns random layers and their comparison with the oracle.  It must never take an expected
 * value from the library. */
#include "weight_kind.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

uint64_t rng_next(rng *r) /* splitmix64: any seed will do, 0 too */
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int32_t rng_range(rng *r, int32_t low, int32_t high)
{
    return low + (int32_t)(rng_next(r) % ((uint64_t)((int64_t)high - low) + 1));
}

double rng_real(rng *r)
{
    return ((double)(rng_next(r) >> 11) + 0.5) / 4503599627370496.0 - 1.0;
}

int32_t dtype_size(int32_t dtype)
{
    return dtype == MOEWE_DTYPE_F32 || dtype == MOEWE_DTYPE_DEFAULT ? 4 : 2;
}

void store(void *p, int32_t dtype, double v)
{
    float f = (float)v;
    uint32_t word;
    uint16_t half;

    if (dtype_size(dtype) == 4) {
        memcpy(p, &f, sizeof f);
        return;
    }
    memcpy(&word, &f, sizeof word);
    if (dtype == MOEWE_DTYPE_BF16) {
        if (isnan(v))
            half = 0x7fc0;
        else
            half = (uint16_t)((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    } else {
        int e = v == 0.0 || ilogb(v) < -14 ? -14 : ilogb(v);
        double steps = rint(ldexp(fabs(v), 10 - e)); /* 1024 .. 2048 when normal; a carry moves the exponent */

        half = (uint16_t)((signbit(v) ? 0x8000 : 0) + ((e + 14) << 10) + (int)steps);
    }
    memcpy(p, &half, sizeof half);
}

void *must_alloc(uint64_t bytes, uint32_t align)
{
    void *p = NULL;

    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes ? bytes : 1)) fail_msg("test: out of memory");
    return p;
}

void fill_pattern(void *p, uint64_t bytes, int pattern)
{
    static const unsigned char nan_bytes[4] = {0x12, 0x34, 0xc0, 0x7f};
    unsigned char *b = p;
    rng r = {bytes};

    for (uint64_t i = 0; i < bytes; i++)
        b[i] = pattern == 0 ? 0 : pattern == 1 ? 0xff : pattern == 2 ? nan_bytes[i % 4] : (unsigned char)rng_next(&r);
}

backend_list cpu_backends(void)
{
    static int said; /* once a program is enough */
    char text[4096], *line = text;
    backend_list list = {0};
    size_t length = moewe_device_list(text, sizeof text);

    CHECK(length < sizeof text, "moewe_device_list wants %zu bytes", length);
    while (*line) {
        char *end = line + strcspn(line, "\n");
        size_t name = strcspn(line, " ,:\t\n"), gap = strspn(line + name, " ,:\t");

        if (!strncmp(line, "cpu-", 4) && !strncmp(line + name + gap, "yes", 3) && name < sizeof list.name[0]) {
            CHECK(list.n < BACKENDS_MAX, "more than %d back ends", BACKENDS_MAX);
            memcpy(list.name[list.n], line, name);
            list.n++;
        } else if (!said && !strncmp(line, "cpu-", 4)) {
            print_message("skipped: %.*s\n", (int)(end - line), line);
        }
        line = *end ? end + 1 : end;
    }
    said = 1;
    CHECK(list.n > 0, "moewe_device_list says yes to no cpu back end: %s", text);
    return list;
}

moewe_device *open_backend(const char *name, int32_t n_threads)
{
    moewe_device_desc desc;
    moewe_device *dev = NULL;

    MOEWE_INIT(desc);
    desc.kind = MOEWE_DEVICE_CPU;
    desc.backend = name;
    desc.n_threads = n_threads;
    CHECK_OK(moewe_device_open(&desc, &dev));
    return dev;
}

void on_every_backend(edge_fn *edge)
{
    backend_list list = cpu_backends();

    for (int32_t b = 0; b < list.n; b++) {
        moewe_device *dev = open_backend(list.name[b], 2);

        edge(list.name[b], dev);
        moewe_device_close(dev);
    }
}

void oracle_for(const char *backend)
{
    ref_operands(!strncmp(backend, "cpu-amx", 7) ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32, MOEWE_DTYPE_I8);
}

void says(const char *part)
{
    CHECK(strstr(moewe_last_error(), part) != NULL, "\"%s\" does not say \"%s\"", moewe_last_error(), part);
}

void says_number(uint64_t number)
{
    char digits[32];

    snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    says(digits);
}

void one_sentence(void)
{
    const char *text = moewe_last_error();

    CHECK(text && strlen(text) > 10 && !strchr(text, '\n'), "no sentence: \"%s\"", text ? text : "(null)");
}

void *case_keep(layer_case *c, void *p)
{
    CHECK(c->n_blocks < BLOCKS_MAX, "test: raise BLOCKS_MAX");
    return c->blocks[c->n_blocks++] = p;
}

static float *random_floats(layer_case *c, int64_t n, double scale, rng *r)
{
    float *p = case_keep(c, must_alloc((uint64_t)n * sizeof *p, 1));

    for (int64_t i = 0; i < n; i++) p[i] = (float)(scale * rng_real(r));
    return p;
}

static void *fill_expert(layer_case *c, int32_t rows, int32_t cols, int32_t dtype, double scale, unsigned with, rng *r)
{
    int64_t n = (int64_t)rows * cols, size = dtype_size(dtype), odd = with & WITH_UNALIGNED ? 1 : 0;
    char *p = (char *)case_keep(c, must_alloc((uint64_t)(n * size + odd), 1)) + odd;

    for (int64_t i = 0; i < n; i++) store(p + i * size, dtype, scale * rng_real(r));
    return p;
}

static moewe_matrix fill_plain(layer_case *c, int32_t n, int32_t rows, int32_t cols, int32_t dtype, double scale,
                               unsigned with, rng *r)
{
    moewe_matrix m = {.dtype = dtype};
    int64_t size = dtype_size(dtype);

    if (with & WITH_TRANSPOSED) {
        m.row_stride = size;
        m.col_stride = rows * size;
        m.expert_stride = (int64_t)rows * cols * size;
    }
    if (with & WITH_POINTERS) {
        const void **experts = case_keep(c, must_alloc((uint64_t)n * sizeof *experts, 1));
        char *all = fill_expert(c, n * rows, cols, dtype, scale, with, r);

        for (int32_t e = 0; e < n; e++) experts[e] = all + (int64_t)(n - 1 - e) * rows * cols * size;
        m.experts = experts;
    } else {
        m.data = fill_expert(c, n * rows, cols, dtype, scale, with, r);
    }
    return m;
}

static moewe_matrix fill_matrix(layer_case *c, int32_t n, int32_t rows, int32_t cols, const weight_kind *k, double gain,
                                int bias, unsigned with, rng *r)
{
    double rms = gain / sqrt(cols); /* so that a product of unit variance has variance gain squared */
    moewe_matrix m = k->dtype < MOEWE_DTYPE_E4M3 ? fill_plain(c, n, rows, cols, k->dtype, sqrt(3.0) * rms, with, r)
                                                 : weight_kind_fill(c, n, rows, cols, k, rms, with, r);

    if (bias) m.bias = random_floats(c, (int64_t)n * rows, 0.5, r);
    return m;
}

static void fill_shared(layer_case *c, const weight_kind *k, unsigned with, rng *r)
{
    int32_t width = c->cfg.shared_inter, h = c->cfg.hidden;
    int bias = (with & WITH_SHARED_BIAS) != 0;

    if (!width) return;
    if (ref_gated(c->cfg.act)) c->w.shared_gate = fill_matrix(c, 1, width, h, k, 1.5, bias, with, r);
    c->w.shared_up = fill_matrix(c, 1, width, h, k, 1.5, bias, with, r);
    c->w.shared_down = fill_matrix(c, 1, h, width, k, 1.5, bias, with, r);
    if (with & WITH_SHARED_SCALE)
        c->w.shared_scale = fill_matrix(c, 1, 1, h, weight_kind_of(MOEWE_DTYPE_F32), 1.5, 0, with, r);
}

static void fill_latent(layer_case *c, const weight_kind *gate_up, unsigned with, uint64_t seed, rng *r)
{
    const weight_kind *k = seed & 2 ? gate_up : weight_kind_of(MOEWE_DTYPE_F32);
    int32_t h = c->cfg.hidden, width = c->cfg.latent;
    int bias = (with & WITH_LATENT_BIAS) != 0;

    if (!width) return;
    c->w.latent_in = fill_matrix(c, 1, width, h, k, 1.0, bias, with, r);
    c->w.latent_out = fill_matrix(c, 1, h, width, k, 1.0, bias, with, r);
}

/* One row in three has ids twice or ids that are no expert; a few token ids have no row. */
static void fill_hash(layer_case *c, int32_t n_tokens, rng *r)
{
    enum { ROWS = 23 };
    int32_t k = c->cfg.top_k, n = c->cfg.n_experts + c->cfg.n_null;
    int32_t *table = case_keep(c, must_alloc(ROWS * (uint64_t)k * sizeof *table, 1));
    int32_t *tokens = case_keep(c, must_alloc((uint64_t)n_tokens * sizeof *tokens, 1));

    for (int32_t row = 0; row < ROWS; row++) {
        int32_t *ids = table + row * k, first = rng_range(r, 0, n - 1);

        for (int32_t i = 0; i < k; i++) ids[i] = (first + i) % n;
        if (row % 3 == 0) ids[rng_range(r, 0, k - 1)] = ids[rng_range(r, 0, k - 1)];
        if (row % 6 == 0) ids[rng_range(r, 0, k - 1)] = row % 12 ? -1 - row : n + row;
    }
    for (int32_t t = 0; t < n_tokens; t++)
        tokens[t] = rng_range(r, 0, 9) ? rng_range(r, 0, ROWS - 1) : t & 1 ? -1 : ROWS;
    c->w.hash_ids = table;
    c->w.hash_rows = ROWS;
    c->io.token_ids = c->tokens = tokens;
}

static void fill_given(layer_case *c, int32_t n_tokens, rng *r)
{
    int32_t k = c->cfg.top_k, n = c->cfg.n_experts + c->cfg.n_null;

    c->ids = case_keep(c, must_alloc((uint64_t)n_tokens * (uint64_t)k * sizeof *c->ids, 1));
    c->given = random_floats(c, (int64_t)n_tokens * k, 1.0, r);
    for (int64_t i = 0; i < (int64_t)n_tokens * k; i++) c->ids[i] = rng_range(r, 0, n - 1);
    c->io.topk_ids = c->ids;
    c->io.topk_weights = c->given;
}

int64_t case_x_stride(const layer_case *c)
{
    return c->io.x_stride ? c->io.x_stride : (int64_t)c->cfg.hidden * dtype_size(c->cfg.x_dtype);
}

int64_t case_y_stride(const layer_case *c)
{
    return c->io.y_stride ? c->io.y_stride : (int64_t)c->cfg.hidden * dtype_size(c->cfg.y_dtype);
}

static void fill_rows(layer_case *c, int32_t n_tokens, unsigned with, rng *r)
{
    int32_t xs = dtype_size(c->cfg.x_dtype), ys = dtype_size(c->cfg.y_dtype), h = c->cfg.hidden;
    int64_t x_bytes;
    char *x, *y;

    if (with & WITH_STRIDES) {
        c->io.x_stride = (int64_t)(h + 3) * xs;
        c->io.y_stride = (int64_t)(h + 5) * ys;
    }
    x_bytes = n_tokens ? (n_tokens - 1) * case_x_stride(c) + (int64_t)h * xs : 0;
    c->y_bytes = n_tokens ? (uint64_t)((n_tokens - 1) * case_y_stride(c) + (int64_t)h * ys) : 0;
    x = case_keep(c, must_alloc((uint64_t)x_bytes, 1));
    y = case_keep(c, must_alloc(c->y_bytes, 1));
    fill_pattern(x, (uint64_t)x_bytes, 2);
    fill_pattern(y, c->y_bytes, 2);
    for (int32_t t = 0; t < n_tokens; t++)
        for (int32_t i = 0; i < h; i++) {
            store(x + t * case_x_stride(c) + (int64_t)i * xs, c->cfg.x_dtype, 1.7 * rng_real(r));
            if (with & WITH_Y_ADD) store(y + t * case_y_stride(c) + (int64_t)i * ys, c->cfg.y_dtype, rng_real(r));
        }
    c->io.x = x;
    c->io.y = y;
    c->io.y_add = (with & WITH_Y_ADD) != 0;
}

void case_build(layer_case *c, const moewe_config *cfg, int32_t n_tokens, unsigned with, uint64_t seed)
{
    const weight_kind *k = weight_kind_of(cfg->w_dtype);

    case_build_of(c, cfg, n_tokens, with, seed, k, cfg->down_dtype ? weight_kind_of(cfg->down_dtype) : k);
}

void case_build_of(layer_case *c, const moewe_config *cfg, int32_t n_tokens, unsigned with, uint64_t seed,
                   const weight_kind *gate_up, const weight_kind *down)
{
    rng r = {seed * 7919 + 12345};
    int32_t n, local, all, width;
    int bias1 = (with & WITH_BIAS1) != 0, bias2 = (with & WITH_BIAS2) != 0;

    memset(c, 0, sizeof *c);
    c->cfg = *cfg;
    c->cfg.w_dtype = gate_up->dtype;
    c->cfg.down_dtype = down->dtype;
    if (!c->cfg.max_tokens) c->cfg.max_tokens = n_tokens > 0 ? n_tokens : 1;
    MOEWE_INIT(c->w);
    MOEWE_INIT(c->io);
    c->io.n_tokens = n_tokens;
    n = c->cfg.n_experts;
    c->cfg = ref_defaults(&c->cfg);
    if (c->cfg.n_group == 0) c->cfg.group_best = cfg->group_best; /* no groups: as the caller wrote it */
    local = c->cfg.n_local;
    all = n + c->cfg.n_null;
    width = ref_width(&c->cfg);
    if (ref_gated(c->cfg.act))
        c->w.gate = fill_matrix(c, local, c->cfg.inter, width, gate_up, 1.5, bias1, with, &r);
    c->w.up = fill_matrix(c, local, c->cfg.inter, width, gate_up, 1.5, bias1, with, &r);
    c->w.down = fill_matrix(c, local, width, c->cfg.inter, down, 1.5, bias2, with, &r);
    fill_latent(c, gate_up, with, seed, &r);
    fill_shared(c, gate_up, with, &r);
    if (with & WITH_EXPERT_SCALE) c->w.expert_scale = random_floats(c, all, 2.0, &r);
    fill_rows(c, n_tokens, with, &r);
    if (c->cfg.score == MOEWE_SCORE_GIVEN) {
        fill_given(c, n_tokens, &r);
        return;
    }
    if (c->cfg.score == MOEWE_SCORE_SPARSEMIXER) with &= ~(unsigned)(WITH_HASH | WITH_SELECT_BIAS);
    if (with & WITH_HASH) fill_hash(c, n_tokens, &r);
    if (with & WITH_SELECT_BIAS) c->w.select_bias = random_floats(c, all, 0.3, &r);
    if (with & WITH_LOGITS)
        c->io.logits = random_floats(c, (int64_t)n_tokens * all, 4.0, &r);
    else
        c->w.router = fill_matrix(c, 1, all, c->cfg.hidden, seed & 1 ? gate_up : weight_kind_of(MOEWE_DTYPE_F32), 1.5,
                                  0, with & ~(unsigned)WITH_POINTERS, &r);
}

void case_free(layer_case *c)
{
    for (int32_t i = 0; i < c->n_blocks; i++) free(c->blocks[i]);
    c->n_blocks = 0;
}

moewe_config small_config(void)
{
    moewe_config cfg;

    MOEWE_INIT(cfg);
    cfg.hidden = 40;
    cfg.inter = 24;
    cfg.n_experts = 8;
    cfg.top_k = 3;
    cfg.flags = MOEWE_FLAG_RENORMALIZE;
    cfg.act_alpha = 1.702f;
    cfg.act_beta = 1.0f;
    return cfg;
}

moewe_status case_try(const moewe_device *dev, const layer_case *c, const moewe_weights *w, uint64_t limit, int pattern,
                      void *y)
{
    moewe_config cfg = c->cfg;
    moewe_plan *plan = NULL;
    moewe_io io = c->io;
    moewe_need need;
    moewe_span ws;
    moewe_status s;

    cfg.workspace_limit = limit;
    s = moewe_plan_create(dev, &cfg, &plan);
    if (s) return s;
    CHECK_OK(moewe_plan_need(plan, &need));
    ws.bytes = need.bytes;
    ws.ptr = must_alloc(need.bytes, need.align);
    fill_pattern(ws.ptr, ws.bytes, pattern);
    memcpy(y, c->io.y, c->y_bytes);
    io.y = y;
    s = moewe_run(plan, w ? w : &c->w, &io, ws, NULL);
    free(ws.ptr);
    moewe_plan_destroy(plan);
    return s;
}

void case_run(const moewe_device *dev, const layer_case *c, const moewe_weights *w, uint64_t limit, int pattern,
              void *y)
{
    CHECK_OK(case_try(dev, c, w, limit, pattern, y));
}

moewe_weights case_pack(const moewe_device *dev, const layer_case *c, void **mem)
{
    moewe_plan *plan = NULL;
    moewe_weights packed;
    moewe_need need;
    moewe_span span = {NULL, 0};

    CHECK_OK(moewe_plan_create(dev, &c->cfg, &plan));
    CHECK_OK(moewe_weights_need(plan, &c->w, &need));
    span.bytes = need.bytes;
    span.ptr = *mem = must_alloc(need.bytes, need.align);
    CHECK_OK(moewe_weights_pack(plan, &c->w, span, NULL, &packed));
    moewe_plan_destroy(plan);
    return packed;
}

ref_value *case_wanted(const layer_case *c, ref_value **margins)
{
    int64_t h = c->cfg.hidden, n = c->io.n_tokens;
    ref_value *scratch = must_alloc(ref_scratch(&c->cfg) * sizeof *scratch, 8);
    ref_value *weights = must_alloc((uint64_t)c->cfg.top_k * sizeof *weights, 8);
    ref_value *wanted = must_alloc((uint64_t)(n * h) * sizeof *wanted, 8);
    int32_t *ids = must_alloc((uint64_t)c->cfg.top_k * sizeof *ids, 8);

    *margins = must_alloc((uint64_t)n * sizeof **margins, 8);
    for (int32_t t = 0; t < n; t++)
        ref_layer_row(&c->cfg, &c->w, &c->io, t, ids, weights, &(*margins)[t], wanted + t * h, scratch);
    free(ids);
    free(weights);
    free(scratch);
    return wanted;
}

void case_compare(const layer_case *c, const void *y, const ref_value *wanted, const ref_value *margins, tally *t,
                  const char *what)
{
    int32_t h = c->cfg.hidden, size = dtype_size(c->cfg.y_dtype);

    for (int32_t token = 0; token < c->io.n_tokens; token++) {
        const ref_value *row = wanted + (int64_t)token * h;

        t->rows++;
        if (!(margins[token].v > margins[token].e)) {
            t->skipped++;
            continue;
        }
        for (int32_t i = 0; i < h; i++) {
            double got = ref_load((const char *)y + token * case_y_stride(c) + (int64_t)i * size, c->cfg.y_dtype);
            double error = fabs(got - row[i].v);

            if (error / row[i].e > t->worst) t->worst = error / row[i].e;
            CHECK(error <= row[i].e, "%s: y[%d][%d] is %.9g, needs %.9g within %.3g", what, token, i, got, row[i].v,
                  row[i].e);
        }
    }
}

void case_check(const layer_case *c, const void *y, tally *t, const char *what)
{
    ref_value *margins, *wanted = case_wanted(c, &margins);

    case_compare(c, y, wanted, margins, t, what);
    free(wanted);
    free(margins);
}

void check_run(const char *backend, const moewe_device *dev, const layer_case *c, const char *what)
{
    char *y = must_alloc(c->y_bytes, 1), text[128];
    tally t = {0};

    snprintf(text, sizeof text, "%s: %s", backend, what);
    oracle_for(backend);
    case_run(dev, c, NULL, 0, 2, y);
    case_check(c, y, &t, text);
    CHECK(t.rows == 0 || t.skipped < t.rows, "%s: only near ties", text);
    free(y);
}

void tally_check(const tally *t, const char *what)
{
    CHECK(t->rows > 0 && t->skipped * 100 <= t->rows * 3,
          "%s: %lld of %lld rows are near ties: the test says too little", what, (long long)t->skipped,
          (long long)t->rows);
    print_message("%s: %lld rows, %lld near ties skipped, worst error %.3f of the bound\n", what, (long long)t->rows,
                  (long long)t->skipped, t->worst);
}
