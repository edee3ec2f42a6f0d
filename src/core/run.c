/* run.c - checks a run's arguments and hands it to the back end.  Allocates nothing, keeps nothing. */
#include "core.h"

typedef struct range { uintptr_t first, end; } range; /* bytes that rows touch; empty when first == end */

static range rows_range(const void *base, int64_t stride, int32_t n, uint64_t row_bytes)
{
    uintptr_t a = (uintptr_t)base;
    if (!n) return (range){a, a};
    return (range){a, a + (uint64_t)(n - 1) * (uint64_t)stride + row_bytes};
}

static int overlap(range a, range b)
{
    return a.first < b.end && b.first < a.end;
}

/* Rows of x and y may be interleaved in one buffer: then the ranges overlap and no byte does. */
static int interleaved(const moewe_io *io, int64_t xs, uint64_t x_row, int64_t ys, uint64_t y_row)
{
    if (xs != ys) return 0;
    uintptr_t x = (uintptr_t)io->x, y = (uintptr_t)io->y, s = (uintptr_t)xs;
    uintptr_t gap = y > x ? (y - x) % s : (s - (x - y) % s) % s;
    return gap >= x_row && gap + y_row <= s;
}

static moewe_status check_rows(const char *where, const char *name, const void *rows, int64_t stride, uint64_t row_bytes,
                               uint32_t element)
{
    if (!rows) return moewe_fail(MOEWE_E_ARG, "%s: io.%s is NULL", where, name);
    if ((uintptr_t)rows % element || stride % element)
        return moewe_fail(MOEWE_E_ARG, "%s: io.%s is at %p with a stride of %lld bytes, needs multiples of %u", where,
                          name, rows, (long long)stride, element);
    if (stride < 0 || (uint64_t)stride < row_bytes)
        return moewe_fail(MOEWE_E_ARG, "%s: io.%s_stride is %lld bytes, needs 0 or at least %llu", where, name,
                          (long long)stride, (unsigned long long)row_bytes);
    return MOEWE_OK;
}

static moewe_status check_routing(const char *where, const moewe_plan *plan, const moewe_io *io)
{
    int given = plan->cfg.score == MOEWE_SCORE_GIVEN;
    if (given && (!io->topk_ids || !io->topk_weights))
        return moewe_fail(MOEWE_E_ARG, "%s: io.%s is NULL, plan '%s' has MOEWE_SCORE_GIVEN and needs it", where,
                          io->topk_ids ? "topk_weights" : "topk_ids", plan->name);
    if (given && io->logits)
        return moewe_fail(MOEWE_E_ARG, "%s: io.logits is given, plan '%s' has MOEWE_SCORE_GIVEN and needs it NULL", where,
                          plan->name);
    if (!given && (io->topk_ids || io->topk_weights))
        return moewe_fail(MOEWE_E_ARG, "%s: io.%s is given, plan '%s' routes by itself and needs it NULL", where,
                          io->topk_ids ? "topk_ids" : "topk_weights", plan->name);
    return MOEWE_OK;
}

static moewe_status check_workspace(const char *where, const moewe_plan *plan, moewe_span ws)
{
    if (!ws.ptr || ws.bytes < plan->need.bytes) {
        const moewe_region *largest = &plan->regions[0];
        for (int32_t i = 1; i < plan->n_regions; i++)
            if (plan->regions[i].bytes > largest->bytes) largest = &plan->regions[i];
        return moewe_fail(MOEWE_E_WS_SMALL, "%s: workspace has %llu bytes, plan '%s' needs %llu (largest region: %s, %llu)",
                          where, (unsigned long long)(ws.ptr ? ws.bytes : 0), plan->name,
                          (unsigned long long)plan->need.bytes, largest->name, (unsigned long long)largest->bytes);
    }
    if ((uintptr_t)ws.ptr % plan->need.align)
        return moewe_fail(MOEWE_E_WS_ALIGN, "%s: workspace is at %p, plan '%s' needs a multiple of %u", where, ws.ptr,
                          plan->name, plan->need.align);
    return MOEWE_OK;
}

static moewe_status check_io(const char *where, const moewe_plan *plan, const moewe_io *io, moewe_span ws)
{
    const moewe_config *c = &plan->cfg;
    uint32_t xe = moewe_dtype_bytes(c->x_dtype), ye = moewe_dtype_bytes(c->y_dtype);
    uint64_t x_row = (uint64_t)c->hidden * xe, y_row = (uint64_t)c->hidden * ye;
    moewe_status s = check_rows(where, "x", io->x, io->x_stride, x_row, xe);
    if (!s) s = check_rows(where, "y", io->y, io->y_stride, y_row, ye);
    if (!s) s = check_routing(where, plan, io);
    if (s) return s;
    range x = rows_range(io->x, io->x_stride, io->n_tokens, x_row);
    range y = rows_range(io->y, io->y_stride, io->n_tokens, y_row);
    range w = {(uintptr_t)ws.ptr, (uintptr_t)ws.ptr + plan->need.bytes};
    if (overlap(x, y) && !interleaved(io, io->x_stride, x_row, io->y_stride, y_row))
        return moewe_fail(MOEWE_E_ARG, "%s: io.y at %p overlaps io.x at %p, needs memory of its own", where, io->y, io->x);
    if (overlap(x, w) || overlap(y, w))
        return moewe_fail(MOEWE_E_ARG, "%s: io.%s overlaps the workspace at %p", where, overlap(y, w) ? "y" : "x", ws.ptr);
    return MOEWE_OK;
}

static moewe_status run(const char *where, const moewe_plan *plan, const moewe_weights *w, const moewe_io *io,
                        moewe_span ws, void *stream, moewe_stage first, moewe_stage last)
{
    if (!plan || !io) return moewe_fail(MOEWE_E_ARG, "%s: %s is NULL", where, plan ? "io" : "plan");
    if (io->struct_size != sizeof *io)
        return moewe_fail(MOEWE_E_ABI, "%s: moewe_io.struct_size is %u, this library knows %zu", where, io->struct_size,
                          sizeof *io);
    if (io->n_tokens < 0 || io->n_tokens > plan->cfg.max_tokens)
        return moewe_fail(io->n_tokens < 0 ? MOEWE_E_ARG : MOEWE_E_RANGE,
                          "%s: io.n_tokens is %d, plan '%s' serves 0 to %d", where, io->n_tokens, plan->name,
                          plan->cfg.max_tokens);
    moewe_status s = moewe_weights_check(plan, where, w, !io->logits && io->n_tokens);
    if (!s) s = check_workspace(where, plan, ws);
    if (s || !io->n_tokens) return s;

    moewe_io filled = *io;
    const moewe_config *c = &plan->cfg;
    if (!filled.x_stride) filled.x_stride = (int64_t)c->hidden * moewe_dtype_bytes(c->x_dtype);
    if (!filled.y_stride) filled.y_stride = (int64_t)c->hidden * moewe_dtype_bytes(c->y_dtype);
    s = check_io(where, plan, &filled, ws);
    if (s) return s;

    moewe_weights canonical = *w;
    for (int p = 0; p < MOEWE_PART_COUNT; p++) {
        moewe_matrix *m = moewe_part_of(&canonical, (moewe_part)p);
        *m = moewe_matrix_canonical(m, moewe_part_shape(c, (moewe_part)p));
    }
    return plan->dev->backend->run(plan, &canonical, &filled, ws.ptr, stream, first, last);
}

moewe_status moewe_run(const moewe_plan *plan, const moewe_weights *w, const moewe_io *io, moewe_span workspace,
                       void *stream)
{
    return run("moewe_run", plan, w, io, workspace, stream, MOEWE_STAGE_ROUTE, MOEWE_STAGE_COMBINE);
}

moewe_status moewe_run_stages(const moewe_plan *plan, const moewe_weights *w, const moewe_io *io, moewe_span workspace,
                              void *stream, moewe_stage first, moewe_stage last)
{
    if ((int)first < 0 || last < first || last >= MOEWE_STAGE_COUNT)
        return moewe_fail(MOEWE_E_ARG, "moewe_run_stages: stages are %d to %d, needs 0 to %d in order", (int)first,
                          (int)last, MOEWE_STAGE_COUNT - 1);
    return run("moewe_run_stages", plan, w, io, workspace, stream, first, last);
}
