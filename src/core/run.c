/* run.c - checks a run's arguments and hands it to the back end.  Allocates nothing, keeps nothing. */
#include "core.h"

static moewe_status check_routing(const char *where, const moewe_plan *plan, const moewe_weights *w, const moewe_io *io)
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
    if (!w->hash_ids != !io->token_ids)
        return moewe_fail(MOEWE_E_ARG, "%s: io.token_ids is %s, weights.hash_ids is %s, needs both or neither", where,
                          io->token_ids ? "given" : "NULL", w->hash_ids ? "given" : "NULL");
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

static moewe_status check_io(const char *where, const moewe_plan *plan, const moewe_weights *w, const moewe_io *io,
                             moewe_span ws)
{
    const moewe_config *c = &plan->cfg;
    uint32_t xe = moewe_dtype_bytes(c->x_dtype), ye = moewe_dtype_bytes(c->y_dtype);
    moewe_rows x = {"x", io->x, io->x_stride, (uint64_t)c->hidden * xe, io->n_tokens, xe};
    moewe_rows y = {"y", io->y, io->y_stride, (uint64_t)c->hidden * ye, io->n_tokens, ye};
    moewe_rows room = {"workspace", ws.ptr, 0, plan->need.bytes, 1, 1};
    moewe_status s = moewe_rows_check(where, &x);
    if (!s) s = moewe_rows_check(where, &y);
    if (!s) s = moewe_rows_apart(where, &y, &x);
    if (!s) s = moewe_rows_apart(where, &y, &room);
    if (!s) s = moewe_rows_apart(where, &x, &room);
    return s ? s : check_routing(where, plan, w, io);
}

static moewe_status run(const char *where, const moewe_plan *plan, const moewe_weights *w, const moewe_io *io,
                        moewe_span ws, void *stream, moewe_stage first, moewe_stage last)
{
    if (!plan || !io) return moewe_fail(MOEWE_E_ARG, "%s: %s is NULL", where, plan ? "io" : "plan");
    if (io->struct_size != sizeof *io)
        return moewe_fail(MOEWE_E_ABI, "%s: moewe_io.struct_size is %u, this library knows %zu", where, io->struct_size,
                          sizeof *io);
    if (io->reserved)
        return moewe_fail(MOEWE_E_ARG, "%s: io.reserved is %u, needs 0", where, io->reserved);
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
    s = check_io(where, plan, w, &filled, ws);
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
