/* cpu_pack.c - the packed layout of weights: panels in the order in which the kernels stream them.
 * A matrix is its panels one after another, each CPU_COLS rows wide (the last one narrower, a
 * multiple of CPU_LANES); experts follow one another on multiples of MOEWE_ALIGN. */
#include "cpu.h"

/* K as stored: bf16 goes in pairs. */
static int64_t stored_k(int32_t cols, int32_t dtype)
{
    return dtype == MOEWE_DTYPE_BF16 ? (int64_t)cols + (cols & 1) : cols;
}

static uint64_t expert_bytes(moewe_shape s, int32_t dtype)
{
    uint64_t elements = moewe_mul((uint64_t)cpu_padded(s.rows), (uint64_t)stored_k(s.cols, dtype));
    return moewe_align_up(moewe_mul(elements, moewe_dtype_bytes(dtype)), MOEWE_ALIGN);
}

uint32_t cpu_layout(void)
{
    return CPU_LAYOUT_PANEL;
}

uint64_t cpu_packed_bytes(moewe_shape shape, int32_t dtype)
{
    return moewe_mul(expert_bytes(shape, dtype), (uint64_t)shape.n);
}

cpu_panel cpu_panel_of(const moewe_matrix *m, moewe_shape shape, int32_t e, int32_t p)
{
    int32_t first = p * CPU_COLS, left = shape.rows - first;
    cpu_panel panel = {.cols = left < CPU_COLS ? left : CPU_COLS};
    if (m->layout) {
        panel.packed = 1;
        panel.data = (const uint8_t *)m->data + (uint64_t)e * expert_bytes(shape, m->dtype) +
                     (uint64_t)first * (uint64_t)stored_k(shape.cols, m->dtype) * moewe_dtype_bytes(m->dtype);
        return panel;
    }
    const uint8_t *expert = m->experts ? m->experts[e] : (const uint8_t *)m->data + (int64_t)e * m->expert_stride;
    panel.data = expert + (int64_t)first * m->row_stride;
    panel.row_stride = m->row_stride;
    panel.col_stride = m->col_stride;
    return panel;
}

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

void cpu_pack_block(const cpu_panel *p, int32_t dtype, int32_t width, int32_t at, int32_t k, void *dst)
{
    uint8_t *to = dst;
    uint32_t each = moewe_dtype_bytes(dtype);
    if (dtype != MOEWE_DTYPE_BF16) {
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

typedef struct pack_task { const moewe_matrix *src; moewe_shape shape; uint8_t *dst; } pack_task;

static void pack_panels(void *task, int32_t i, int32_t count)
{
    (void)count;
    const pack_task *t = task;
    int32_t panels = cpu_panels(t->shape.rows), e = i / panels, p = i % panels;
    cpu_panel from = cpu_panel_of(t->src, t->shape, e, p);
    moewe_matrix packed = {.data = t->dst, .dtype = t->src->dtype, .layout = CPU_LAYOUT_PANEL};
    cpu_panel to = cpu_panel_of(&packed, t->shape, e, p);
    cpu_pack_block(&from, t->src->dtype, cpu_padded(from.cols), 0, t->shape.cols, (uint8_t *)(uintptr_t)to.data);
}

moewe_status cpu_pack(const moewe_device *dev, moewe_shape shape, const moewe_matrix *src, void *dst, void *stream)
{
    (void)stream;
    pack_task t = {src, shape, dst};
    /* Experts in batches: panels of all of them need not fit the 32 bits of a task count. */
    int32_t panels = cpu_panels(shape.rows), batch = panels < 1 << 16 ? (1 << 30) / (panels ? panels : 1) : 1;
    for (int32_t e = 0; e < shape.n; e += batch) {
        moewe_matrix from = *src;
        int32_t n = shape.n - e < batch ? shape.n - e : batch;
        if (from.experts)
            from.experts += e;
        else
            from.data = (const uint8_t *)from.data + (int64_t)e * from.expert_stride;
        t.src = &from;
        t.dst = (uint8_t *)dst + (uint64_t)e * expert_bytes(shape, src->dtype);
        cpu_parallel(dev, pack_panels, &t, n * panels);
    }
    return MOEWE_OK;
}
