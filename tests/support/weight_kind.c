/* weight_kind.c - owns random codes and scales: all codes come, scales are such that a layer's values stay near 1.
 * It must never include anything of src/core or src/cpu. */
#include "weight_kind.h"

#include <math.h>
#include <string.h>

enum {
    F32 = MOEWE_DTYPE_F32, F16 = MOEWE_DTYPE_F16, BF16 = MOEWE_DTYPE_BF16, E4M3 = MOEWE_DTYPE_E4M3,
    E2M1 = MOEWE_DTYPE_E2M1, I8 = MOEWE_DTYPE_I8, I4 = MOEWE_DTYPE_I4, E8M0 = MOEWE_DTYPE_E8M0
};

const weight_kind weight_kinds[] = {
    {"e4m3 bare", E4M3, 0, 0, 0, 0, 1.25e-2},
    {"e4m3 tensor", E4M3, 0, 0, 0, 1, 1.25e-2},
    {"e4m3 one block", E4M3, F32, 0, 0, 0, 1.25e-2},
    {"e4m3 row", E4M3, F32, 1, 0, 0, 1.25e-2},
    {"e4m3 row bf16", E4M3, BF16, 1, 0, 1, 1.25e-2},
    {"e4m3 128x128", E4M3, F32, 128, 128, 0, 1.25e-2},
    {"e4m3 128x128 bf16", E4M3, BF16, 128, 128, 0, 1.25e-2},
    {"e4m3 64x64 f16", E4M3, F16, 64, 64, 0, 1.25e-2},
    {"mxfp8", E4M3, E8M0, 1, 32, 0, 1.25e-2},
    {"e2m1 tensor", E2M1, 0, 0, 0, 1, 1.25e-2},
    {"mxfp4", E2M1, E8M0, 1, 32, 0, 1.25e-2},
    {"nvfp4", E2M1, E4M3, 1, 16, 1, 1.25e-2},
    {"i8 32 f16", I8, F16, 1, 32, 0, 1.25e-2},
    {"i8 64 bf16", I8, BF16, 1, 64, 0, 1.25e-2},
    {"i8 128", I8, F32, 1, 128, 0, 1.25e-2},
    {"i8 row", I8, F32, 1, 0, 0, 1.25e-2},
    {"i8 3x192", I8, F32, 3, 192, 1, 1.25e-2},
    {"i4 32", I4, F32, 1, 32, 0, 1.25e-2},
    {"i4 64 f16", I4, F16, 1, 64, 0, 1.25e-2},
    {"i4 128 bf16", I4, BF16, 1, 128, 0, 1.25e-2},
    {"i4 row f16", I4, F16, 1, 0, 0, 1.25e-2},
    {"i4 5x16 e4m3", I4, E4M3, 5, 16, 1, 1.25e-2},
    {"q8_0", MOEWE_DTYPE_Q8_0, 0, 0, 0, 0, 1.25e-2},
    {"q4_0", MOEWE_DTYPE_Q4_0, 0, 0, 0, 0, 1.25e-2},
    {"q4_k", MOEWE_DTYPE_Q4_K, 0, 0, 0, 0, 1.9e-2},
    {"q6_k", MOEWE_DTYPE_Q6_K, 0, 0, 0, 0, 1.25e-2},
};
const int32_t weight_kind_count = sizeof weight_kinds / sizeof weight_kinds[0];

static const weight_kind plain_kinds[] = {
    {"f32", F32, 0, 0, 0, 0, 3e-7}, {"f16", F16, 0, 0, 0, 0, 4e-3}, {"bf16", BF16, 0, 0, 0, 0, 4e-3}};

const weight_kind *weight_kind_named(const char *name)
{
    for (int32_t i = 0; i < weight_kind_count; i++)
        if (!strcmp(weight_kinds[i].name, name)) return &weight_kinds[i];
    for (size_t i = 0; i < sizeof plain_kinds / sizeof plain_kinds[0]; i++)
        if (!strcmp(plain_kinds[i].name, name)) return &plain_kinds[i];
    fail_msg("test: no kind of weights is called \"%s\"", name);
    return NULL;
}

const weight_kind *weight_kind_of(int32_t dtype)
{
    switch (dtype) {
    case MOEWE_DTYPE_F16: return weight_kind_named("f16");
    case MOEWE_DTYPE_BF16: return weight_kind_named("bf16");
    case MOEWE_DTYPE_E4M3: return weight_kind_named("e4m3 128x128");
    case MOEWE_DTYPE_E2M1: return weight_kind_named("nvfp4");
    case MOEWE_DTYPE_I8: return weight_kind_named("i8 32 f16");
    case MOEWE_DTYPE_I4: return weight_kind_named("i4 32");
    case MOEWE_DTYPE_Q8_0: return weight_kind_named("q8_0");
    case MOEWE_DTYPE_Q4_0: return weight_kind_named("q4_0");
    case MOEWE_DTYPE_Q4_K: return weight_kind_named("q4_k");
    case MOEWE_DTYPE_Q6_K: return weight_kind_named("q6_k");
    default: return weight_kind_named("f32");
    }
}

/* ---- sizes ---- */

typedef struct form {
    int32_t together, bytes; /* so many elements in so many bytes */
    double rms;              /* of random codes with the scales inside at 1 */
} form;

static form form_of(int32_t dtype)
{
    switch (dtype) {
    case MOEWE_DTYPE_E4M3: return (form){1, 1, 110.0};
    case MOEWE_DTYPE_E2M1: return (form){2, 1, 2.9};
    case MOEWE_DTYPE_I8: return (form){1, 1, 74.0};
    case MOEWE_DTYPE_I4: return (form){2, 1, 4.6};
    case MOEWE_DTYPE_Q8_0: return (form){32, 34, 74.0};
    case MOEWE_DTYPE_Q4_0: return (form){32, 18, 4.6};
    case MOEWE_DTYPE_Q4_K: return (form){256, 144, 250.0};
    case MOEWE_DTYPE_Q6_K: return (form){256, 210, 1370.0};
    default: return (form){1, dtype_size(dtype), 1.0};
    }
}

int32_t weight_kind_unit(const weight_kind *k)
{
    return form_of(k->dtype).together;
}

static int32_t scale_size(int32_t dtype)
{
    return dtype == MOEWE_DTYPE_E4M3 || dtype == MOEWE_DTYPE_E8M0 ? 1 : dtype_size(dtype);
}

/* ---- codes ---- */

static void random_bytes(uint8_t *p, int64_t n, rng *r)
{
    for (int64_t i = 0; i < n; i++) p[i] = (uint8_t)(rng_next(r) >> 32);
}

static void put_half(uint8_t *p, double v)
{
    store(p, MOEWE_DTYPE_F16, v);
}

static double around(double size, rng *r) /* half to one and a half times, one in eight negative */
{
    double v = size * (1.0 + 0.5 * rng_real(r));

    return rng_range(r, 0, 7) ? v : -v;
}

/* A block or a byte of random codes.  limit > 0: an E4M3 of at most that size. */
static void random_element(uint8_t *p, int32_t dtype, double rms, double limit, rng *r)
{
    form f = form_of(dtype);
    double d = rms / f.rms;

    random_bytes(p, f.bytes, r);
    switch (dtype) {
    case MOEWE_DTYPE_E4M3:
        while ((*p & 0x7f) == 0x7f || (limit > 0.0 && fabs(ref_load(p, dtype)) > limit)) random_bytes(p, 1, r);
        break;
    case MOEWE_DTYPE_Q8_0:
    case MOEWE_DTYPE_Q4_0: put_half(p, around(d, r)); break;
    case MOEWE_DTYPE_Q4_K: /* codes of 7.5 and scales as large as minima: their difference has no mean */
        put_half(p, around(d, r));
        put_half(p + 2, 7.5 * ref_load(p, MOEWE_DTYPE_F16) * (1.0 + 0.2 * rng_real(r)));
        break;
    case MOEWE_DTYPE_Q6_K: put_half(p + 208, around(d, r)); break;
    default: break;
    }
}

/* ---- matrices ---- */

/* Where (e, row, column) of something of down x across x size bytes is, in memory as `with` asks for. */
typedef struct lie {
    int64_t expert, row, col, bytes;
} lie;

static lie lie_of(int32_t n, int64_t down, int64_t across, int32_t size, unsigned with)
{
    lie l = {0, across * size, size, 0};

    if (with & WITH_TRANSPOSED) {
        l.row = size;
        l.col = down * size;
    } else if (with & WITH_STRIDES) {
        l.row += 5;
    }
    l.expert = with & WITH_TRANSPOSED ? down * across * size : down * l.row;
    l.bytes = n * l.expert;
    return l;
}

static uint8_t *room(layer_case *c, const lie *l, unsigned with)
{
    int64_t odd = with & WITH_UNALIGNED ? 1 : 0;
    uint8_t *p = case_keep(c, must_alloc((uint64_t)(l->bytes + odd), 1));

    fill_pattern(p, (uint64_t)(l->bytes + odd), 1);
    return p + odd;
}

/* Experts in an order of their own: matrix e is the one that `shift` and reversal bring there. */
static const void *const *pointers(layer_case *c, const uint8_t *all, int64_t stride, int32_t n, int32_t shift)
{
    const void **p = case_keep(c, must_alloc((uint64_t)n * sizeof *p, 1));

    for (int32_t e = 0; e < n; e++) p[e] = all + (2 * n - 1 - e + shift) % n * stride;
    return p;
}

static void fill_scales(layer_case *c, int32_t n, int32_t rows, int32_t cols, const weight_kind *k, double size,
                        unsigned with, rng *r, moewe_scale *s)
{
    int32_t high = k->scale_rows ? k->scale_rows : rows, wide = k->scale_cols ? k->scale_cols : cols;
    int64_t down = (rows + high - 1) / high, across = (cols + wide - 1) / wide;
    int32_t bytes = scale_size(k->scale_dtype);
    lie l = lie_of(n, down, across, bytes, with);
    uint8_t *p = room(c, &l, with);

    for (int32_t e = 0; e < n; e++)
        for (int64_t i = 0; i < down; i++)
            for (int64_t j = 0; j < across; j++) {
                uint8_t *at = p + e * l.expert + i * l.row + j * l.col;

                if (k->scale_dtype == MOEWE_DTYPE_E8M0)
                    *at = (uint8_t)(127 + ilogb(size) + rng_range(r, -1, 1));
                else if (k->scale_dtype == MOEWE_DTYPE_E4M3) /* 2^-2 to 2^2 and some, a few negative */
                    *at = (uint8_t)(rng_range(r, 0x28, 0x4b) + (rng_range(r, 0, 7) ? 0 : 0x80));
                else
                    store(at, k->scale_dtype, around(size, r));
            }
    if (with & WITH_POINTERS)
        s->experts = pointers(c, p, l.expert, n, 1);
    else
        s->data = p;
    if (with & (WITH_STRIDES | WITH_TRANSPOSED)) {
        s->row_stride = l.row;
        s->col_stride = l.col;
        s->expert_stride = with & WITH_POINTERS ? 0 : l.expert;
    }
    s->dtype = k->scale_dtype;
    s->rows = k->scale_rows;
    s->cols = k->scale_cols;
}

/* Factors of all of them: what elements leave to reach `size` together. */
static const float *factors(layer_case *c, int32_t n, double size, rng *r)
{
    float *p = case_keep(c, must_alloc((uint64_t)n * sizeof *p, 1));

    for (int32_t e = 0; e < n; e++) p[e] = (float)around(size, r);
    return p;
}

moewe_matrix weight_kind_fill(layer_case *c, int32_t n, int32_t rows, int32_t cols, const weight_kind *k, double rms,
                              unsigned with, rng *r)
{
    form f = form_of(k->dtype);
    moewe_matrix m = {.dtype = k->dtype};
    int bare = k->dtype == MOEWE_DTYPE_E4M3 && !k->scale_dtype && !k->tensor;
    double size = rms / f.rms, elements = k->scale_dtype == MOEWE_DTYPE_E4M3 ? 2.0 : k->tensor ? 8.0 * size : size;
    unsigned codes_with = f.together == 1 ? with : with & ~(unsigned)WITH_TRANSPOSED;
    lie l = lie_of(n, rows, cols / f.together, f.bytes, codes_with);
    uint8_t *p;

    CHECK(cols % f.together == 0, "test: rows of %s are not %d long", k->name, cols);
    p = room(c, &l, with);
    for (int32_t e = 0; e < n; e++)
        for (int32_t i = 0; i < rows; i++)
            for (int32_t j = 0; j < cols / f.together; j++)
                random_element(p + e * l.expert + i * l.row + j * l.col, k->dtype, rms, bare ? 1.7 * rms : 0.0, r);
    if (with & WITH_POINTERS)
        m.experts = pointers(c, p, l.expert, n, 0);
    else
        m.data = p;
    if (codes_with & (WITH_STRIDES | WITH_TRANSPOSED)) {
        m.row_stride = l.row;
        m.col_stride = codes_with & WITH_TRANSPOSED ? l.col : 0;
        m.expert_stride = with & WITH_POINTERS ? 0 : l.expert;
    }
    if (k->scale_dtype) fill_scales(c, n, rows, cols, k, elements, with, r, &m.scale);
    if (k->tensor) m.scale.tensor = factors(c, n, k->scale_dtype ? size / elements : size, r);
    return m;
}
