/* workspace.c - one block of caller memory for many plans: reserve, lock, lanes, generations.
 * Never allocates after create, never waits, never owns lane memory. */
#include "core.h"

#include <stdatomic.h>

enum { LANES_MAX = 4096 };

struct moewe_workspace {
    const moewe_device  *dev;
    moewe_span           mem;
    uint64_t             lane_bytes;
    char                 largest[MOEWE_NAME_BYTES];
    int32_t              n_lanes;
    atomic_uint          generation;
    atomic_int           locked;
    atomic_int           lanes_out, lanes_out_peak;
    atomic_int           acquiring; /* acquires under way: unlock must not slip between their check and their take */
    atomic_uint_fast64_t used_peak, refused, next_ticket;
    atomic_uint_fast64_t tickets[]; /* [n_lanes]: who holds the lane; 0 = nobody */
};

static size_t object_bytes(int32_t n_lanes)
{
    return sizeof(moewe_workspace) + (size_t)n_lanes * sizeof(atomic_uint_fast64_t);
}

static moewe_status refuse(moewe_workspace *ws, moewe_status s)
{
    atomic_fetch_add(&ws->refused, 1);
    return s;
}

moewe_status moewe_workspace_create(const moewe_device *dev, int32_t n_lanes, moewe_workspace **out)
{
    if (!dev || !out) return moewe_fail(MOEWE_E_ARG, "moewe_workspace_create: %s is NULL", dev ? "out" : "dev");
    if (n_lanes < 1 || n_lanes > LANES_MAX)
        return moewe_fail(MOEWE_E_ARG, "moewe_workspace_create: n_lanes is %d, needs 1 to %d", n_lanes, LANES_MAX);
    moewe_workspace *ws = moewe_host_alloc(&dev->allocator, object_bytes(n_lanes), MOEWE_ALIGN);
    if (!ws)
        return moewe_fail(MOEWE_E_NOMEM, "moewe_workspace_create: no %zu bytes for %d lanes", object_bytes(n_lanes),
                          n_lanes);
    ws->dev = dev;
    ws->n_lanes = n_lanes;
    atomic_init(&ws->next_ticket, 1);
    *out = ws;
    return MOEWE_OK;
}

void moewe_workspace_destroy(moewe_workspace *ws)
{
    if (ws) moewe_host_free(&ws->dev->allocator, ws, object_bytes(ws->n_lanes));
}

moewe_status moewe_workspace_reserve(moewe_workspace *ws, const moewe_plan *plan)
{
    if (!ws || !plan) return moewe_fail(MOEWE_E_ARG, "moewe_workspace_reserve: %s is NULL", ws ? "plan" : "ws");
    if (plan->dev != ws->dev)
        return moewe_fail(MOEWE_E_WS_PLACE, "moewe_workspace_reserve: plan '%s' is for another device", plan->name);
    if (atomic_load(&ws->locked))
        return moewe_fail(MOEWE_E_WS_STATE,
                          "moewe_workspace_reserve: the workspace is locked with lanes of %llu bytes, plan '%s' needs %llu: unlock first",
                          (unsigned long long)ws->lane_bytes, plan->name, (unsigned long long)plan->need.bytes);
    if (plan->need.bytes > ws->lane_bytes) {
        ws->lane_bytes = plan->need.bytes;
        memcpy(ws->largest, plan->name, sizeof ws->largest);
    }
    moewe_trace(MOEWE_LOG_INFO, "workspace: plan '%s' reserves %llu bytes, lanes have %llu", plan->name,
                (unsigned long long)plan->need.bytes, (unsigned long long)ws->lane_bytes);
    return MOEWE_OK;
}

moewe_status moewe_workspace_need(const moewe_workspace *ws, moewe_need *out)
{
    if (!ws || !out) return moewe_fail(MOEWE_E_ARG, "moewe_workspace_need: %s is NULL", ws ? "out" : "ws");
    uint64_t bytes = moewe_mul(ws->lane_bytes, (uint64_t)ws->n_lanes);
    if (bytes == UINT64_MAX)
        return moewe_fail(MOEWE_E_ARG, "moewe_workspace_need: %d lanes of %llu bytes do not fit in 64 bits", ws->n_lanes,
                          (unsigned long long)ws->lane_bytes);
    *out = (moewe_need){bytes, MOEWE_ALIGN,
                        ws->dev->backend->kind == MOEWE_DEVICE_CUDA ? MOEWE_PLACE_CUDA : MOEWE_PLACE_HOST};
    return MOEWE_OK;
}

moewe_status moewe_workspace_lock(moewe_workspace *ws, moewe_span mem)
{
    moewe_need need;
    moewe_status s = moewe_workspace_need(ws, &need);
    if (s) return s;
    if (atomic_load(&ws->locked))
        return moewe_fail(MOEWE_E_WS_STATE, "moewe_workspace_lock: the workspace is locked already (generation %u)",
                          atomic_load(&ws->generation));
    if (!ws->lane_bytes)
        return moewe_fail(MOEWE_E_WS_STATE, "moewe_workspace_lock: no plan is reserved, needs at least one");
    if (!mem.ptr || mem.bytes < need.bytes)
        return moewe_fail(MOEWE_E_WS_SMALL, "moewe_workspace_lock: mem has %llu bytes, %d lanes of %llu need %llu (largest plan: '%s')",
                          (unsigned long long)(mem.ptr ? mem.bytes : 0), ws->n_lanes, (unsigned long long)ws->lane_bytes,
                          (unsigned long long)need.bytes, ws->largest);
    if ((uintptr_t)mem.ptr % need.align)
        return moewe_fail(MOEWE_E_WS_ALIGN, "moewe_workspace_lock: mem is at %p, needs a multiple of %u", mem.ptr,
                          need.align);
    ws->mem = mem;
    atomic_fetch_add(&ws->generation, 1);
    atomic_store(&ws->locked, 1);
    moewe_trace(MOEWE_LOG_INFO, "workspace locked: %d lanes of %llu bytes, generation %u", ws->n_lanes,
                (unsigned long long)ws->lane_bytes, atomic_load(&ws->generation));
    return MOEWE_OK;
}

moewe_status moewe_workspace_unlock(moewe_workspace *ws)
{
    if (!ws) return moewe_fail(MOEWE_E_ARG, "moewe_workspace_unlock: ws is NULL");
    if (!atomic_load(&ws->locked))
        return moewe_fail(MOEWE_E_WS_STATE, "moewe_workspace_unlock: the workspace is not locked");
    /* Unlocked first and looked at second, as acquire counts itself first and looks second: one of the two sees the other. */
    atomic_store(&ws->locked, 0);
    int out = atomic_load(&ws->lanes_out) + atomic_load(&ws->acquiring);
    if (!out) return MOEWE_OK;
    atomic_store(&ws->locked, 1);
    return moewe_fail(MOEWE_E_WS_STATE, "moewe_workspace_unlock: %d of %d lanes are out, needs 0", out, ws->n_lanes);
}

moewe_status moewe_workspace_stats_get(const moewe_workspace *ws, moewe_workspace_stats *out)
{
    if (!ws || !out) return moewe_fail(MOEWE_E_ARG, "moewe_workspace_stats_get: %s is NULL", ws ? "out" : "ws");
    if (out->struct_size != sizeof *out)
        return moewe_fail(MOEWE_E_ABI, "moewe_workspace_stats.struct_size is %u, this library knows %zu",
                          out->struct_size, sizeof *out);
    out->n_lanes = ws->n_lanes;
    out->lanes_out = atomic_load(&ws->lanes_out);
    out->lanes_out_peak = atomic_load(&ws->lanes_out_peak);
    out->generation = atomic_load(&ws->generation);
    out->locked = atomic_load(&ws->locked);
    out->lane_bytes = ws->lane_bytes;
    out->used_peak = atomic_load(&ws->used_peak);
    out->refused = atomic_load(&ws->refused);
    out->largest = ws->largest;
    return MOEWE_OK;
}

static moewe_status take_lane(moewe_workspace *ws, int32_t index, moewe_lane *out)
{
    if (!atomic_load(&ws->locked))
        return moewe_fail(MOEWE_E_WS_STATE, "moewe_lane_acquire: the workspace is not locked");
    uint64_t ticket = atomic_fetch_add(&ws->next_ticket, 1);
    int32_t first = index == MOEWE_LANE_ANY ? 0 : index, end = index == MOEWE_LANE_ANY ? ws->n_lanes : index + 1;
    for (int32_t i = first; i < end; i++) {
        uint_fast64_t nobody = 0;
        if (!atomic_compare_exchange_strong(&ws->tickets[i], &nobody, ticket)) continue;
        int out_now = atomic_fetch_add(&ws->lanes_out, 1) + 1, peak = atomic_load(&ws->lanes_out_peak);
        while (out_now > peak && !atomic_compare_exchange_weak(&ws->lanes_out_peak, &peak, out_now)) {}
        *out = (moewe_lane){.span = {(uint8_t *)ws->mem.ptr + (uint64_t)i * ws->lane_bytes, ws->lane_bytes},
                            .index = i,
                            .generation = atomic_load(&ws->generation),
                            .ticket = ticket};
        return MOEWE_OK;
    }
    if (index == MOEWE_LANE_ANY)
        return moewe_fail(MOEWE_E_BUSY, "moewe_lane_acquire: all %d lanes are out", ws->n_lanes);
    return moewe_fail(MOEWE_E_BUSY, "moewe_lane_acquire: lane %d is out", index);
}

moewe_status moewe_lane_acquire(moewe_workspace *ws, int32_t index, moewe_lane *out)
{
    if (!ws || !out) return moewe_fail(MOEWE_E_ARG, "moewe_lane_acquire: %s is NULL", ws ? "out" : "ws");
    if (index != MOEWE_LANE_ANY && (index < 0 || index >= ws->n_lanes))
        return moewe_fail(MOEWE_E_ARG, "moewe_lane_acquire: index is %d, the workspace has %d lanes", index, ws->n_lanes);
    atomic_fetch_add(&ws->acquiring, 1);
    moewe_status s = take_lane(ws, index, out);
    atomic_fetch_sub(&ws->acquiring, 1);
    return s ? refuse(ws, s) : s;
}

static moewe_status check_lane(moewe_workspace *ws, const char *where, const moewe_lane *lane)
{
    if (!ws || !lane) return moewe_fail(MOEWE_E_ARG, "%s: %s is NULL", where, ws ? "lane" : "ws");
    if (lane->index < 0 || lane->index >= ws->n_lanes)
        return moewe_fail(MOEWE_E_ARG, "%s: lane.index is %d, the workspace has %d lanes", where, lane->index, ws->n_lanes);
    if (!atomic_load(&ws->locked) || lane->generation != atomic_load(&ws->generation))
        return moewe_fail(MOEWE_E_STALE, "%s: lane %d is of generation %u, the workspace is %s generation %u", where,
                          lane->index, lane->generation, atomic_load(&ws->locked) ? "at" : "unlocked after",
                          atomic_load(&ws->generation));
    if (!lane->ticket || atomic_load(&ws->tickets[lane->index]) != lane->ticket)
        return moewe_fail(MOEWE_E_ARG, "%s: lane %d is not out to this caller: it was released", where, lane->index);
    return MOEWE_OK;
}

moewe_status moewe_lane_release(moewe_workspace *ws, const moewe_lane *lane)
{
    moewe_status s = check_lane(ws, "moewe_lane_release", lane);
    if (s) return s;
    uint_fast64_t mine = lane->ticket;
    if (!atomic_compare_exchange_strong(&ws->tickets[lane->index], &mine, 0))
        return moewe_fail(MOEWE_E_ARG, "moewe_lane_release: lane %d is not out to this caller: it was released",
                          lane->index);
    atomic_fetch_sub(&ws->lanes_out, 1);
    return MOEWE_OK;
}

moewe_status moewe_run_lane(moewe_workspace *ws, const moewe_lane *lane, const moewe_plan *plan, const moewe_weights *w,
                            const moewe_io *io, void *stream)
{
    moewe_status s = check_lane(ws, "moewe_run_lane", lane);
    if (s) return ws ? refuse(ws, s) : s;
    if (!plan) return moewe_fail(MOEWE_E_ARG, "moewe_run_lane: plan is NULL");
    if (plan->dev != ws->dev)
        return refuse(ws, moewe_fail(MOEWE_E_WS_PLACE, "moewe_run_lane: plan '%s' is for another device", plan->name));
    if (plan->need.bytes > ws->lane_bytes)
        return refuse(ws, moewe_fail(MOEWE_E_WS_SMALL,
                                     "moewe_run_lane: lane %d has %llu bytes, plan '%s' needs %llu: reserve it before the lock",
                                     lane->index, (unsigned long long)ws->lane_bytes, plan->name,
                                     (unsigned long long)plan->need.bytes));
    uint_fast64_t peak = atomic_load(&ws->used_peak);
    while (plan->need.bytes > peak && !atomic_compare_exchange_weak(&ws->used_peak, &peak, plan->need.bytes)) {}
    /* From the workspace's own numbers, not the lane's: a lane is the caller's struct and may be damaged. */
    moewe_span span = {(uint8_t *)ws->mem.ptr + (uint64_t)lane->index * ws->lane_bytes, ws->lane_bytes};
    return moewe_run(plan, w, io, span, stream);
}
