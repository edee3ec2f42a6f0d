/* model_quant.c - matrices as checkpoints store them: plain, or codes with scales in tensors beside them, whose names
 * tell how they multiply: NAME_scale_inv (DeepSeek's FP8), NAME_packed, NAME_scale, NAME_global_scale
 * (compressed-tensors), NAME_scale_2 (ModelOpt), NAME_blocks and NAME_scales (gpt-oss).  quantization_config gives
 * what no shape tells: the rows and columns of a block.  Copies no weight but bytes with an offset. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model_internal.h"

enum { NAME_CAP = 2 * MODEL_NAME_CAP };

/* ---- which quantisations are read ------------------------------------------------------------------------------ */

static int format_is_read(const weight_quant *q, const weight_format *f)
{
    static const char *const floats[] = {"fp8", "fp8_channel", "fp8_block128", "fp8_block", "mxfp8", "nvfp4", "mxfp4"};
    static const char *const methods[] = {"fp8", "mxfp4", "compressed-tensors", "modelopt", "modelopt_fp4", "fbgemm_fp8"};
    int compressed = strcmp(q->method, "compressed-tensors") == 0, known = 0;
    if (!f->scale_bits) return 1;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) known |= strcmp(q->method, methods[i]) == 0;
    for (size_t i = 0; known && i < sizeof floats / sizeof *floats; i++)
        if (strcmp(f->name, floats[i]) == 0) return 1;
    return compressed && (f->value_bits == 4 || f->value_bits == 8) && f->scale_bits == 16;
}

int model_quant_check(const model_config *c, fmt_error *e)
{
    const weight_quant *q = &c->quant;
    const weight_format *bad = NULL;
    if (!q->quantized) return 0;
    if (!format_is_read(q, &q->experts)) bad = &q->experts;
    if (!format_is_read(q, &q->linear)) bad = &q->linear;
    for (size_t i = 0; i < q->n_groups; i++)
        if (!format_is_read(q, &q->groups[i].format)) bad = &q->groups[i].format;
    if (!bad) return 0;
    return fmt_fail(e,
                    "%.200s: quantization_config has quant_method '%.40s' with weights in %s (%u bits, %u bits of scales a "
                    "group), which is not supported; fp8, mxfp4, modelopt (FP8, NVFP4, MXFP4) and compressed-tensors (float "
                    "of 8 and 4 bits, symmetric int of 8 and 4) are",
                    c->file, q->method, bad->name, (unsigned)bad->value_bits, (unsigned)bad->scale_bits);
}

/* ---- tensors beside a matrix ------------------------------------------------------------------------------------- */

/* Name of the matrix: that of its elements without what says that they are packed. */
static void matrix_name(const st_tensor *t, char base[NAME_CAP])
{
    static const char *const tails[] = {"_packed", "_blocks"};
    snprintf(base, NAME_CAP, "%s", t->name);
    size_t n = strlen(base);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        size_t k = strlen(tails[i]);
        if (n > k && strcmp(base + n - k, tails[i]) == 0) base[n -= k] = '\0';
    }
}

/* One stored matrix being opened. */
typedef struct opening {
    const model_config *c;
    const st_store *s;
    const char *base;
    weight_format format; /* that config.json gives the module */
    stored *m;
    fmt_error *e;
} opening;

static const st_tensor *beside(const opening *o, const char *tail)
{
    char name[NAME_CAP + 24];
    snprintf(name, sizeof name, "%s%s", o->base, tail);
    return st_find(o->s, name);
}

static const st_tensor *keep(const opening *o, const st_tensor *t)
{
    o->m->beside[o->m->n_beside++] = t;
    o->m->bytes += t->bytes;
    return t;
}

static int wrong(const opening *o, const st_tensor *t, const char *expected)
{
    char shape[96];
    st_shape_text(t, shape, sizeof shape);
    return fmt_fail(o->e, "%.300s: tensor '%.120s' is %s %s, %s is expected", t->file, t->name, st_dtype_name(t->dtype), shape,
                    expected);
}

/* Parts of other schemes, without which the elements mean something else. */
static int check_foreign(const opening *o)
{
    static const char *const tails[] = {"_zero_point", "_g_idx"};
    char name[NAME_CAP];
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        const st_tensor *t = beside(o, tails[i]);
        if (t)
            return fmt_fail(o->e, "%.300s: tensor '%.120s' belongs to quant_method '%.40s' in a form (zero points, or an order "
                                  "of columns) that is not supported, symmetric weights in order are",
                            t->file, t->name, o->c->quant.method);
    }
    snprintf(name, sizeof name, "%s", o->base);
    char *dot = strrchr(name, '.');
    if (!dot || strcmp(dot, ".weight") != 0) return 0;
    snprintf(dot, sizeof name - (size_t)(dot - name), ".pre_quant_scale");
    const st_tensor *t = st_find(o->s, name);
    if (!t) return 0;
    return fmt_fail(o->e, "%.300s: tensor '%.120s' scales the inputs of a matrix (AWQ), which is not supported", t->file, t->name);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int shape_is(const opening *o, int64_t cols)
{
    const stored_shape *s = &o->m->shape;
    const int64_t shape[] = {s->n, s->rows, cols};
    return st_need(o->s, o->m->t->name, s->n ? 3 : 2, s->n ? shape : shape + 1, o->e) ? 0 : -1;
}

/* 32 elements to 16 bytes: [n][rows][cols / 32][16]. */
static int mx_blocks(const opening *o)
{
    stored *m = o->m;
    const int64_t shape[] = {m->shape.n, m->shape.rows, m->shape.cols / 32, 16};
    m->dtype = MOEWE_DTYPE_E2M1;
    m->row_bytes = m->shape.cols / 2;
    if (m->shape.cols % 32)
        return fmt_fail(o->e, "%.300s: tensor '%.120s' holds rows of %" PRId64 " elements, a multiple of 32 is expected",
                        m->t->file, m->t->name, m->shape.cols);
    return st_need(o->s, m->t->name, m->shape.n ? 4 : 3, m->shape.n ? shape : shape + 1, o->e) ? 0 : -1;
}

/* Elements of 4 or 8 bits in words of 32, the first in the lowest bits. */
static int words(const opening *o)
{
    stored *m = o->m;
    int64_t held = m->t->rank > 0 ? m->t->shape[m->t->rank - 1] : 0, cols = m->shape.cols;
    int eight = held == ceil_div(cols, 4) && held != ceil_div(cols, 8);
    m->dtype = eight ? MOEWE_DTYPE_I8 : MOEWE_DTYPE_I4;
    m->offset = eight;
    m->row_bytes = 4 * ceil_div(cols, eight ? 4 : 8);
    if (!eight && cols % 2)
        return fmt_fail(o->e, "%.300s: tensor '%.120s' holds rows of %" PRId64 " elements, an even number is expected",
                        m->t->file, m->t->name, cols);
    return shape_is(o, m->row_bytes / 4);
}

static int open_elements(const opening *o)
{
    stored *m = o->m;
    switch (m->t->dtype) {
    case ST_F8_E4M3:
    case ST_I8:
        m->dtype = m->t->dtype == ST_I8 ? MOEWE_DTYPE_I8 : MOEWE_DTYPE_E4M3;
        m->row_bytes = m->shape.cols;
        return shape_is(o, m->shape.cols);
    case ST_U8:
        if (strlen(o->base) + strlen("_blocks") == strlen(m->t->name) && strstr(m->t->name, "_blocks")) return mx_blocks(o);
        m->dtype = MOEWE_DTYPE_E2M1;
        m->row_bytes = m->shape.cols / 2;
        return m->shape.cols % 2 ? wrong(o, m->t, "an even number of elements in a row") : shape_is(o, m->shape.cols / 2);
    case ST_I32: return words(o);
    default: return wrong(o, m->t, "F32, BF16, F16, F8_E4M3, I8, U8 (two elements a byte) or I32 (packed)");
    }
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

static int64_t elements(const st_tensor *t)
{
    int64_t n = 1;
    for (int32_t i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

/* dtype of scales; 0: none that there is.  A byte is an exponent. */
static int32_t scale_dtype(const opening *o, const st_tensor *t)
{
    int floats = o->m->dtype == MOEWE_DTYPE_E4M3 || o->m->dtype == MOEWE_DTYPE_E2M1;
    if (model_is_plain(t)) return st_dtype_moewe(t->dtype);
    if (t->dtype == ST_F8_E4M3 && o->m->dtype == MOEWE_DTYPE_E2M1) return MOEWE_DTYPE_E4M3;
    return floats && (t->dtype == ST_F8_E8M0 || t->dtype == ST_U8) ? MOEWE_DTYPE_E8M0 : 0;
}

/* Rows and columns of a block, from the shape [n][down][across] where that tells, else from config.json. */
static int blocks_of(const opening *o, const st_tensor *t, moewe_scale *out)
{
    const stored_shape *s = &o->m->shape;
    const weight_format *f = &o->format;
    int32_t lead = s->n ? 1 : 0, rank = t->rank - lead;
    int64_t down = rank > 0 ? t->shape[lead] : 1, across = rank > 1 ? t->shape[lead + 1] : 1;
    int64_t rows = f->block_rows ? f->block_rows : s->rows, cols = f->group ? f->group : s->cols;
    char expected[96];
    if (rank > 2 || (s->n && t->shape[0] != s->n)) return wrong(o, t, "a number for each block of rows and columns");
    if (down == s->rows && ceil_div(s->rows, rows) != down) rows = 1;
    if (down == s->rows && f->block_rows <= 1) rows = 1;
    if (across == 1 && rows == 1 && !f->group) cols = s->cols;
    if (across > 1 && rows == 1 && ceil_div(s->cols, cols) != across && s->cols % across == 0) cols = s->cols / across;
    if (down != ceil_div(s->rows, rows) || across != ceil_div(s->cols, cols)) {
        snprintf(expected, sizeof expected, "[%" PRId64 ", %" PRId64 "] for blocks of %" PRId64 " x %" PRId64,
                 ceil_div(s->rows, rows), ceil_div(s->cols, cols), rows, cols);
        return wrong(o, t, expected);
    }
    out->rows = (int32_t)rows;
    out->cols = cols >= s->cols && !f->group ? 0 : (int32_t)cols;
    return 0;
}

static int open_scale(const opening *o)
{
    static const char *const tails[] = {"_scale_inv", "_scale", "_scales"};
    stored *m = o->m;
    const st_tensor *t = NULL;
    int64_t n = m->shape.n ? m->shape.n : 1;
    for (size_t i = 0; !t && i < sizeof tails / sizeof *tails; i++) t = beside(o, tails[i]);
    if (!t)
        return fmt_fail(o->e, "%.300s: tensor '%.120s' has dtype %s, F32, BF16 or F16 is expected, or '%.120s_scale' (or "
                              "_scale_inv, _scales) beside it",
                        m->t->file, m->t->name, st_dtype_name(m->t->dtype), o->base);
    keep(o, t);
    if (elements(t) == n && model_is_plain(t) && !(o->format.group && o->format.block_rows)) {
        m->factor = t;
        return 0;
    }
    m->scale.dtype = scale_dtype(o, t);
    if (!m->scale.dtype) return wrong(o, t, "F32, BF16, F16, for floats F8_E8M0 or U8, or for 4-bit floats F8_E4M3");
    m->scale.data = t->data;
    return blocks_of(o, t, &m->scale);
}

/* Of NVFP4: the one number that scales of 8 bits leave over. */
static int open_global(const opening *o)
{
    stored *m = o->m;
    const st_tensor *divides = beside(o, "_global_scale"), *t = divides ? divides : beside(o, "_scale_2");
    if (m->dtype != MOEWE_DTYPE_E2M1 || m->scale.dtype != MOEWE_DTYPE_E4M3) return 0;
    if (!t)
        return fmt_fail(o->e, "%.300s: tensor '%.120s' has neither '%.120s_global_scale' nor '_scale_2' beside it", m->t->file,
                        m->t->name, o->base);
    if (elements(t) != (m->shape.n ? m->shape.n : 1) || !model_is_plain(t))
        return wrong(o, t, "one F32, BF16 or F16 number for each matrix");
    m->factor = keep(o, t);
    m->divides = divides != NULL;
    return 0;
}

/* A factor that is no number would make all of its matrix so. */
static int check_factor(const opening *o)
{
    const stored *m = o->m;
    int64_t n = m->shape.n ? m->shape.n : 1;
    for (int64_t i = 0; m->factor && i < n; i++)
        if (!isfinite(stored_factor(m, i)))
            return fmt_fail(o->e, "%.300s: tensor '%.120s' holds %g, by which its matrix is %s, a finite number%s is expected",
                            m->factor->file, m->factor->name, (double)model_float_at(m->factor, i),
                            m->divides ? "divided" : "multiplied", m->divides ? " other than 0" : "");
    return 0;
}

/* [rows, cols] beside packed words: what the last word of a row leaves open. */
static int check_shape(const opening *o)
{
    const st_tensor *t = beside(o, "_shape");
    int64_t has[2] = {0, 0};
    if (!t) return 0;
    if (elements(t) != 2 || (t->dtype != ST_I64 && t->dtype != ST_I32)) return wrong(o, t, "two integers");
    for (int i = 0; i < 2; i++) {
        int32_t narrow;
        if (t->dtype == ST_I64) {
            memcpy(&has[i], (const char *)t->data + 8 * i, 8);
        } else {
            memcpy(&narrow, (const char *)t->data + 4 * i, 4);
            has[i] = narrow;
        }
    }
    keep(o, t);
    if (has[0] == o->m->shape.rows && has[1] == o->m->shape.cols) return 0;
    return fmt_fail(o->e, "%.300s: tensor '%.120s' says [%" PRId64 ", %" PRId64 "], [%" PRId64 ", %" PRId64 "] is expected",
                    t->file, t->name, has[0], has[1], o->m->shape.rows, o->m->shape.cols);
}

/* ---- a matrix ---------------------------------------------------------------------------------------------------- */

static int open_plain(const st_store *s, stored *m, fmt_error *e)
{
    const int64_t shape[] = {m->shape.n, m->shape.rows, m->shape.cols};
    if (!st_need(s, m->t->name, m->shape.n ? 3 : 2, m->shape.n ? shape : shape + 1, e)) return -1;
    m->dtype = st_dtype_moewe(m->t->dtype);
    m->row_bytes = (int64_t)moewe_dtype_row_bytes(m->dtype, m->shape.cols);
    if (m->row_bytes || !m->shape.cols) return 0;
    return fmt_fail(e, "%.300s: tensor '%.120s' has rows of %" PRId64 " elements, whole blocks of %s are expected", m->t->file,
                    m->t->name, m->shape.cols, st_dtype_name(m->t->dtype));
}

int stored_open(const model_config *c, const st_store *s, const st_tensor *t, stored_shape shape, int of_expert, stored *out,
                fmt_error *e)
{
    char base[NAME_CAP], module[NAME_CAP];
    memset(out, 0, sizeof *out);
    out->t = t;
    out->shape = shape;
    out->bytes = t->bytes;
    if (st_dtype_moewe(t->dtype)) return open_plain(s, out, e);
    if (!c->quant.quantized)
        return fmt_fail(e, "%.300s: tensor '%.120s' has dtype %s, F32, BF16 or F16 is expected where config.json has no "
                           "quantization_config",
                        t->file, t->name, st_dtype_name(t->dtype));
    matrix_name(t, base);
    snprintf(module, sizeof module, "%s", base);
    char *tail = strrchr(module, '.');
    if (tail && strcmp(tail, ".weight") == 0) *tail = '\0';
    const opening o = {c, s, base, weight_quant_of(&c->quant, module, of_expert), out, e};
    return check_foreign(&o) || open_elements(&o) || open_scale(&o) || open_global(&o) || check_factor(&o) || check_shape(&o)
               ? -1
               : 0;
}

int model_is_plain(const st_tensor *t)
{
    return t->dtype == ST_F32 || t->dtype == ST_BF16 || t->dtype == ST_F16;
}

float model_float_at(const st_tensor *t, int64_t i)
{
    const unsigned char *from = t->data;
    uint32_t bits;
    uint16_t half;
    float out;
    if (t->dtype == ST_F32) {
        memcpy(&out, from + 4 * i, 4);
        return out;
    }
    memcpy(&half, from + 2 * i, 2);
    if (t->dtype == ST_BF16) {
        bits = (uint32_t)half << 16;
        memcpy(&out, &bits, 4);
        return out;
    }
    int exponent = half >> 10 & 31;
    double v = exponent == 31 ? ((half & 1023) ? NAN : INFINITY)
                              : ldexp((half & 1023) + (exponent ? 1024 : 0), (exponent ? exponent : 1) - 25);
    return (float)(half & 0x8000 ? -v : v);
}

float stored_factor(const stored *m, int64_t i)
{
    if (!m->factor) return 1.0f;
    float f = model_float_at(m->factor, i);
    return m->divides ? 1.0f / f : f;
}

int stored_alike(const stored *a, const stored *b)
{
    return a->dtype == b->dtype && a->offset == b->offset && !a->factor == !b->factor && a->scale.dtype == b->scale.dtype &&
           a->scale.rows == b->scale.rows && a->scale.cols == b->scale.cols;
}

void stored_words(const stored *m, char buf[STORED_WORDS_CAP])
{
    int n = snprintf(buf, STORED_WORDS_CAP, "%s%s", moewe_dtype_name(m->dtype), m->offset ? " in words" : "");
    if (m->scale.data)
        n += snprintf(buf + n, STORED_WORDS_CAP - (size_t)n, ", scales in %s for %" PRId64 " x %" PRId64,
                      moewe_dtype_name(m->scale.dtype), m->scale.rows ? m->scale.rows : m->shape.rows,
                      m->scale.cols ? m->scale.cols : m->shape.cols);
    if (m->factor) snprintf(buf + n, STORED_WORDS_CAP - (size_t)n, ", a factor");
}

void stored_convert(const stored *m, void *out)
{
    const uint8_t *from = m->t->data;
    uint8_t *to = out;
    uint64_t n = (uint64_t)m->row_bytes * (uint64_t)m->shape.rows * (uint64_t)(m->shape.n ? m->shape.n : 1);
    for (uint64_t i = 0; i < n; i++) to[i] = from[i] ^ 0x80;
}

/* Scales of the rows from first on, every step-th. */
static int view_scale(const stored *m, int64_t first, int64_t step, moewe_scale *out, fmt_error *e)
{
    int64_t rows = m->scale.rows ? m->scale.rows : m->shape.rows, cols = m->scale.cols ? m->scale.cols : m->shape.cols;
    int64_t each = moewe_dtype_bytes(m->scale.dtype), row = each * ceil_div(m->shape.cols, cols);
    *out = m->scale;
    if (!m->scale.data) return 0;
    if (step != 1 ? rows != 1 : first % rows != 0)
        return fmt_fail(e, "%.300s: tensor '%.120s': gate and up rows meet inside a block of %" PRId64 " rows that share a scale",
                        m->t->file, m->t->name, rows);
    out->data = (const char *)m->scale.data + first / rows * row;
    out->row_stride = step * row;
    out->col_stride = each;
    out->expert_stride = ceil_div(m->shape.rows, rows) * row;
    return 0;
}

int stored_view(const stored *m, int64_t first, int64_t step, moewe_matrix *out, fmt_error *e)
{
    memset(out, 0, sizeof *out);
    out->dtype = m->dtype;
    out->data = (const char *)m->t->data + first * m->row_bytes;
    out->row_stride = step * m->row_bytes;
    out->col_stride = moewe_dtype_bytes(m->dtype);
    out->expert_stride = m->shape.rows * m->row_bytes;
    return view_scale(m, first, step, &out->scale, e);
}
