/* cpu_linear.c - dense matrices on the layer's kernels, and plain parallel loops. */
#include "cpu.h"

/* ---- parallel loops ----------------------------------------------------------------- */

typedef struct loop { moewe_task_fn fn; void *task; int32_t count, left; } loop;

static int32_t loop_advance(void *state)
{
    loop *l = state;
    int32_t n = l->left;
    l->left = 0;
    return n;
}

static void loop_work(void *state, int32_t i, int32_t thread)
{
    (void)thread;
    const loop *l = state;
    l->fn(l->task, i, l->count);
}

void cpu_parallel(const moewe_device *dev, moewe_task_fn fn, void *task, int32_t count)
{
    if (dev->executor.run) {
        dev->executor.run(dev->executor.ctx, fn, task, count);
        return;
    }
    loop l = {fn, task, count, count};
    cpu_job job = {loop_advance, loop_work, &l};
    cpu_threads_run(count > 1 ? cpu_of(dev)->threads : NULL, &job);
}

/* ---- linear --------------------------------------------------------------------------- */

/* Tokens of one task: enough to use a panel again while it is in the cache. */
enum { TASK_TOKENS = 256 };

typedef struct linear_task {
    const cpu_kernels  *kernels;
    const moewe_linear *lin;
    const uint8_t      *x;
    uint8_t            *y;
    int64_t             x_stride, y_stride;
    int32_t             n_tokens, spans; /* spans of TASK_TOKENS */
} linear_task;

static void linear_panel(void *task, int32_t i, int32_t count)
{
    (void)count;
    const linear_task *t = task;
    const moewe_linear *l = t->lin;
    int32_t p = i / t->spans, col = p * CPU_COLS;
    int64_t token = (int64_t)(i % t->spans) * TASK_TOKENS; /* 64 bits: a step past the last token may leave 32 */
    int64_t end = t->n_tokens - token < TASK_TOKENS ? t->n_tokens : token + TASK_TOKENS;
    cpu_panel panel = cpu_panel_of(&l->matrix, (moewe_shape){1, l->rows, l->cols}, 0, p);
    _Alignas(64) float c[CPU_MOST_ROWS * CPU_COLS];
    float old[CPU_COLS], *const results[] = {c};
    const void *rows[CPU_MOST_ROWS];
    int32_t step = t->kernels->rows;
    for (; token < end; token += step) {
        int32_t n = end - token < step ? (int32_t)(end - token) : step;
        for (int32_t r = 0; r < n; r++) rows[r] = t->x + (token + r) * t->x_stride;
        t->kernels->tile(rows, l->x_dtype, n, &panel, 1, l->cols, results);
        for (int32_t r = 0; r < n; r++) {
            float *cr = c + r * CPU_COLS;
            uint8_t *to = t->y + (token + r) * t->y_stride + (int64_t)col * moewe_dtype_bytes(l->y_dtype);
            if (l->matrix.bias)
                for (int32_t j = 0; j < panel.cols; j++) cr[j] += l->matrix.bias[col + j];
            if (l->y_add) {
                t->kernels->to_f32(old, to, l->y_dtype, panel.cols);
                for (int32_t j = 0; j < panel.cols; j++) cr[j] = old[j] + cr[j];
            }
            t->kernels->from_f32(to, l->y_dtype, cr, panel.cols);
        }
    }
}

moewe_status cpu_linear(const moewe_device *dev, const moewe_linear *lin, int32_t n_tokens, const void *x,
                        int64_t x_stride, void *y, int64_t y_stride)
{
    int64_t spans = ((int64_t)n_tokens + TASK_TOKENS - 1) / TASK_TOKENS, tasks = spans * cpu_panels(lin->rows);
    if (tasks > INT32_MAX)
        return moewe_fail(MOEWE_E_UNSUPPORTED, "moewe_linear_run: %d tokens on %d rows are too many tasks", n_tokens,
                          lin->rows);
    linear_task t = {cpu_of(dev)->kernels, lin, x, y, x_stride, y_stride, n_tokens, (int32_t)spans};
    cpu_parallel(dev, linear_panel, &t, (int32_t)tasks);
    return MOEWE_OK;
}
