/* cpu_pack.c - the packed layout of weights: panels in the order in which the kernels stream them.
 * A matrix is its panels one after another, each CPU_COLS rows wide (the last one narrower, a
 * multiple of CPU_LANES); experts follow one another on multiples of MOEWE_ALIGN.  A panel of scaled elements is
 *     scales of block 0, 1, ... for each column      Q4_K: pairs of scale and minimum
 *     outer scales of K quants for each column       Q4_K: pairs of d and dmin
 *     elements                                       on a multiple of MOEWE_ALIGN */
#include "cpu_codes.h"

/* ---- formats ------------------------------------------------------------------------- */

enum { WHOLE_ROW = INT32_MAX / 2 };

static int32_t scales_of_dtype(int32_t dtype)
{
    switch (dtype) {
    case MOEWE_DTYPE_F32: return CPU_SCALES_F32;
    case MOEWE_DTYPE_BF16: return CPU_SCALES_BF16;
    case MOEWE_DTYPE_F16: return CPU_SCALES_F16;
    case MOEWE_DTYPE_E4M3: return CPU_SCALES_E4M3;
    case MOEWE_DTYPE_E8M0: return CPU_SCALES_E8M0;
    default: return CPU_SCALES_NONE;
    }
}

static const cpu_format formats[] = {
    [MOEWE_DTYPE_F32] = {CPU_F32, 0, WHOLE_ROW, 0},   [MOEWE_DTYPE_F16] = {CPU_F16, 0, WHOLE_ROW, 0},
    [MOEWE_DTYPE_BF16] = {CPU_BF16, 0, WHOLE_ROW, 0}, [MOEWE_DTYPE_E4M3] = {CPU_E4M3, 0, WHOLE_ROW, 0},
    [MOEWE_DTYPE_E2M1] = {CPU_E2M1, 0, WHOLE_ROW, 0}, [MOEWE_DTYPE_I8] = {CPU_I8, 0, WHOLE_ROW, 0},
    [MOEWE_DTYPE_I4] = {CPU_I4, 0, WHOLE_ROW, 0},     [MOEWE_DTYPE_Q8_0] = {CPU_I8, CPU_SCALES_F16, 32, 0},
    [MOEWE_DTYPE_Q4_0] = {CPU_I4, CPU_SCALES_F16, 32, 0}, [MOEWE_DTYPE_Q4_K] = {CPU_U4, CPU_SCALES_K4, 32, 0},
    [MOEWE_DTYPE_Q6_K] = {CPU_I8, CPU_SCALES_K6, 16, 0},
};

static cpu_format format_of(const moewe_matrix *m, int32_t cols)
{
    cpu_format f = formats[m->dtype];
    f.source = m->dtype;
    if (moewe_dtype_scaled(m->dtype)) {
        f.scales = scales_of_dtype(m->scale.dtype);
        if (m->scale.cols && m->scale.cols < cols) f.block = m->scale.cols;
    }
    return f;
}

int32_t cpu_order_of(int32_t dtype)
{
    return cpu_order(formats[dtype].values);
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* K as stored. */
static int64_t stored_k(int32_t cols, const cpu_format *f)
{
    return round_up(cols, cpu_scaled(f) ? CPU_STEP : f->values == CPU_BF16 ? 2 : 1);
}

static int64_t blocks_of(int32_t cols, int32_t block)
{
    return (cols + (int64_t)block - 1) / block;
}

/* ---- sizes ---------------------------------------------------------------------------- */

static uint64_t scales_bytes(const cpu_format *f, int32_t width, int32_t cols)
{
    if (!f->scales) return 0;
    return (uint64_t)blocks_of(cols, f->block) * (uint64_t)width * cpu_scale_bytes(f->scales);
}

/* Where elements begin in a packed panel. */
static uint64_t elements_at(const cpu_format *f, int32_t width, int32_t cols)
{
    uint64_t outer = (uint64_t)blocks_of(cols, CPU_OUTER) * (uint64_t)width * cpu_outer_bytes(f->scales);
    return moewe_align_up(scales_bytes(f, width, cols) + outer, MOEWE_ALIGN);
}

uint64_t cpu_element_bytes(const cpu_format *f, int32_t width, int64_t n)
{
    uint64_t elements = (uint64_t)n * (uint64_t)width;
    if (cpu_nibbles(f)) return elements / 2;
    return elements * (cpu_scaled(f) ? 1 : f->values == CPU_F32 ? 4 : 2);
}

static uint64_t panel_bytes(const cpu_format *f, int32_t width, int32_t cols)
{
    return elements_at(f, width, cols) + cpu_element_bytes(f, width, stored_k(cols, f));
}

static uint64_t expert_bytes(moewe_shape s, const cpu_format *f)
{
    uint64_t full = (uint64_t)(s.rows / CPU_COLS), rest = (uint64_t)cpu_padded(s.rows % CPU_COLS);
    uint64_t bytes = moewe_mul(full, panel_bytes(f, CPU_COLS, s.cols));
    if (rest) bytes = moewe_add(bytes, panel_bytes(f, (int32_t)rest, s.cols));
    return moewe_align_up(bytes, MOEWE_ALIGN);
}

/* Elements, a float for each CPU_STEP of them and a 16-bit sum for each half of that (rounded.h). */
uint64_t cpu_rounded_bytes(int32_t k)
{
    uint64_t padded = (uint64_t)round_up(k, CPU_STEP);
    return moewe_align_up(padded + padded / CPU_STEP * (sizeof(float) + 2 * sizeof(int16_t)), MOEWE_ALIGN);
}

uint32_t cpu_layout(void)
{
    return CPU_LAYOUT_PANEL;
}

uint64_t cpu_packed_bytes(moewe_shape shape, const moewe_matrix *m)
{
    cpu_format f = format_of(m, shape.cols);
    return moewe_mul(expert_bytes(shape, &f), (uint64_t)shape.n);
}

/* ---- panels --------------------------------------------------------------------------- */

cpu_panel cpu_panel_of(const moewe_matrix *m, moewe_shape shape, int32_t e, int32_t p)
{
    int32_t first = p * CPU_COLS, left = shape.rows - first;
    cpu_panel panel = {.format = format_of(m, shape.cols), .cols = left < CPU_COLS ? left : CPU_COLS,
                       .factor = m->scale.tensor ? m->scale.tensor[e] : 1.0f};
    const cpu_format *f = &panel.format;
    if (m->layout) {
        panel.packed = 1;
        panel.scales = (const uint8_t *)m->data + (uint64_t)e * expert_bytes(shape, f) +
                       (uint64_t)p * panel_bytes(f, CPU_COLS, shape.cols);
        panel.data = panel.scales + elements_at(f, cpu_padded(panel.cols), shape.cols);
        return panel;
    }
    const uint8_t *expert = m->experts ? m->experts[e] : (const uint8_t *)m->data + (int64_t)e * m->expert_stride;
    panel.data = expert + (int64_t)first * m->row_stride;
    panel.row_stride = m->row_stride;
    panel.col_stride = m->col_stride;
    if (f->scales && moewe_dtype_scaled(m->dtype)) {
        const moewe_scale *s = &m->scale;
        panel.scales = s->experts ? s->experts[e] : (const uint8_t *)s->data + (int64_t)e * s->expert_stride;
        panel.scale_row_stride = s->row_stride;
        panel.scale_col_stride = s->col_stride;
        panel.first_row = first;
        panel.scale_rows = s->rows;
    }
    return panel;
}

/* ---- packing ---------------------------------------------------------------------------- */

/* Elements are copied bytewise: a checkpoint promises no alignment. */
static void copy_column(const cpu_panel *p, uint32_t each, int32_t width, int32_t k, uint8_t *to, int64_t step)
{
    const uint8_t *from = p->data + (int64_t)k * p->col_stride;
    if (each == 4)
        for (int32_t j = 0; j < p->cols; j++) memcpy(to + j * step, from + j * p->row_stride, 4);
    else
        for (int32_t j = 0; j < p->cols; j++) memcpy(to + j * step, from + j * p->row_stride, 2);
    for (int32_t j = p->cols; j < width; j++) memset(to + j * step, 0, each);
}

static void pack_plain(const cpu_panel *p, int32_t width, int32_t at, int32_t k, uint8_t *to)
{
    uint32_t each = p->format.values == CPU_F32 ? 4 : 2;
    if (p->format.values != CPU_BF16) {
        for (int32_t i = 0; i < k; i++, to += (int64_t)width * each) copy_column(p, each, width, at + i, to, each);
        return;
    }
    for (int32_t i = 0; i < k; i += 2, to += (int64_t)width * 4) {
        copy_column(p, 2, width, at + i, to, 4);
        if (i + 1 < k)
            copy_column(p, 2, width, at + i + 1, to + 2, 4);
        else
            for (int32_t j = 0; j < width; j++) memset(to + 4 * j + 2, 0, 2);
    }
}

/* A byte of codes each to bytes or nibbles, as cpu_panel says. */
static void pack_codes(const cpu_panel *p, int32_t width, int32_t at, int32_t k, uint8_t *to)
{
    static const uint8_t nibble[8] = {0, 16, 4, 20, 8, 24, 12, 28}; /* where a dword has K's 0 to 7 */
    uint8_t codes[CPU_PACK_K];
    int32_t padded = (int32_t)round_up(k, CPU_STEP);
    for (int32_t j = 0; j < width; j++) {
        memset(codes, p->format.values == CPU_I4 ? 8 : 0, sizeof codes);
        if (j < p->cols) cpu_row_codes(p, j, at, k, codes);
        if (cpu_nibbles(&p->format)) {
            for (int32_t i = 0; i < padded; i += 8) {
                uint32_t dword = 0;
                for (int32_t n = 0; n < 8; n++) dword |= (uint32_t)codes[i + n] << nibble[n];
                memcpy(to + ((int64_t)(i / 8) * width + j) * 4, &dword, 4);
            }
        } else {
            for (int32_t i = 0; i < padded; i += 4) {
                const uint8_t dword[4] = {codes[i], codes[i + 2], codes[i + 1], codes[i + 3]};
                memcpy(to + ((int64_t)(i / 4) * width + j) * 4, dword, 4);
            }
        }
    }
}

void cpu_pack_block(const cpu_panel *p, int32_t width, int32_t at, int32_t k, void *dst)
{
    if (cpu_scaled(&p->format))
        pack_codes(p, width, at, k, dst);
    else
        pack_plain(p, width, at, k, dst);
}

static void pack_inner(const cpu_panel *p, int32_t width, int32_t b, uint8_t *to)
{
    uint32_t each = cpu_scale_bytes(p->format.scales);
    memset(to, 0, (size_t)width * each);
    for (int32_t j = 0; j < p->cols; j++) cpu_scale_at(p, j, b, to + (uint32_t)j * each);
}

static void pack_outer(const cpu_panel *p, int32_t width, int32_t b, uint16_t *to)
{
    uint32_t each = cpu_outer_bytes(p->format.scales) / 2;
    memset(to, 0, (size_t)width * each * 2);
    for (int32_t j = 0; j < p->cols; j++) cpu_outer_at(p, j, b, to + (uint32_t)j * each);
}

cpu_raw_scales cpu_scales_of(const cpu_panel *p, int32_t width, int32_t k, int32_t b, cpu_scale_room *room)
{
    const cpu_format *f = &p->format;
    int32_t outer = cpu_outer_bytes(f->scales) ? b / (CPU_OUTER / f->block) : 0;
    if (!f->scales) return (cpu_raw_scales){NULL, NULL};
    if (p->packed)
        return (cpu_raw_scales){p->scales + (uint64_t)b * (uint64_t)width * cpu_scale_bytes(f->scales),
                                (const uint16_t *)(const void *)(p->scales + scales_bytes(f, width, k) +
                                                                 (uint64_t)outer * (uint64_t)width *
                                                                     cpu_outer_bytes(f->scales))};
    pack_inner(p, width, b, room->inner);
    if (cpu_outer_bytes(f->scales)) pack_outer(p, width, outer, room->outer);
    return (cpu_raw_scales){room->inner, room->outer};
}

typedef struct pack_task { const moewe_matrix *src; moewe_shape shape; uint8_t *dst; } pack_task;

static void pack_panels(void *task, int32_t i, int32_t count)
{
    (void)count;
    const pack_task *t = task;
    int32_t panels = cpu_panels(t->shape.rows), e = i / panels, p = i % panels, k = t->shape.cols;
    cpu_panel from = cpu_panel_of(t->src, t->shape, e, p);
    const cpu_format *f = &from.format;
    int32_t width = cpu_padded(from.cols);
    uint8_t *to = t->dst + (uint64_t)e * expert_bytes(t->shape, f) + (uint64_t)p * panel_bytes(f, CPU_COLS, k);
    if (f->scales)
        for (int32_t b = 0; b < blocks_of(k, f->block); b++, to += (uint64_t)width * cpu_scale_bytes(f->scales))
            pack_inner(&from, width, b, to);
    if (cpu_outer_bytes(f->scales))
        for (int32_t b = 0; b < blocks_of(k, CPU_OUTER); b++, to += (uint64_t)width * cpu_outer_bytes(f->scales))
            pack_outer(&from, width, b, (uint16_t *)(void *)to);
    to = t->dst + (uint64_t)e * expert_bytes(t->shape, f) + (uint64_t)p * panel_bytes(f, CPU_COLS, k) +
         elements_at(f, width, k);
    for (int32_t at = 0; at < k; at += CPU_PACK_K) {
        int32_t n = k - at < CPU_PACK_K ? k - at : CPU_PACK_K;
        cpu_pack_block(&from, width, at, n, to);
        to += cpu_element_bytes(f, width, CPU_PACK_K);
    }
}

moewe_status cpu_pack(const moewe_device *dev, moewe_shape shape, const moewe_matrix *src, void *dst, void *stream)
{
    (void)stream;
    pack_task t = {src, shape, dst};
    cpu_format f = format_of(src, shape.cols);
    /* Experts in batches: panels of all of them need not fit the 32 bits of a task count. */
    int32_t panels = cpu_panels(shape.rows), batch = panels < 1 << 16 ? (1 << 30) / (panels ? panels : 1) : 1;
    for (int32_t e = 0; e < shape.n; e += batch) {
        moewe_matrix from = *src;
        int32_t n = shape.n - e < batch ? shape.n - e : batch;
        if (from.experts)
            from.experts += e;
        else
            from.data = (const uint8_t *)from.data + (int64_t)e * from.expert_stride;
        if (from.scale.experts)
            from.scale.experts += e;
        else if (from.scale.data)
            from.scale.data = (const uint8_t *)from.scale.data + (int64_t)e * from.scale.expert_stride;
        t.src = &from;
        t.dst = (uint8_t *)dst + (uint64_t)e * expert_bytes(shape, &f);
        cpu_parallel(dev, pack_panels, &t, n * panels);
    }
    return MOEWE_OK;
}
