/* plan.c - plan: canonical config, the back end's choice, the booked regions.  Host arithmetic only:
 * no device is asked anything. */
#include "core.h"

static uint64_t book(moewe_plan *plan, moewe_region *regions)
{
    carve c = {.regions = regions};
    plan->dev->backend->book(plan, &c, NULL);
    plan->n_regions = regions ? c.n_regions : 0;
    return c.at;
}

static moewe_need need_of(uint64_t bytes, const moewe_device *dev)
{
    return (moewe_need){bytes, MOEWE_ALIGN,
                        dev->backend->kind == MOEWE_DEVICE_CUDA ? MOEWE_PLACE_CUDA : MOEWE_PLACE_HOST};
}

moewe_need moewe_plan_least(const moewe_plan *plan)
{
    moewe_plan least = *plan;
    least.dev->backend->choose(&least, 0);
    return need_of(book(&least, NULL), least.dev);
}

moewe_status moewe_plan_lay_out(moewe_plan *plan)
{
    uint64_t limit = plan->cfg.workspace_limit ? plan->cfg.workspace_limit : UINT64_MAX;
    plan->dev->backend->choose(plan, limit);
    plan->need = need_of(book(plan, plan->regions), plan->dev);
    if (plan->need.bytes == UINT64_MAX)
        return moewe_fail(MOEWE_E_ARG, "plan '%s': its workspace for max_tokens %d does not fit in 64 bits", plan->name,
                          plan->cfg.max_tokens);
    if (plan->need.bytes > limit)
        return moewe_fail(MOEWE_E_WS_LIMIT, "plan '%s': workspace_limit is %llu bytes, needs at least %llu", plan->name,
                          (unsigned long long)limit, (unsigned long long)moewe_plan_least(plan).bytes);
    return MOEWE_OK;
}

static moewe_status plan_init(moewe_plan *plan, const moewe_device *dev, const moewe_config *cfg)
{
    plan->dev = dev;
    return moewe_config_canonical(cfg, &plan->cfg, plan->name);
}

moewe_status moewe_plan_create(const moewe_device *dev, const moewe_config *cfg, moewe_plan **out)
{
    moewe_plan plan = {0};
    if (!dev || !out) return moewe_fail(MOEWE_E_ARG, "moewe_plan_create: %s is NULL", dev ? "out" : "dev");
    moewe_status s = plan_init(&plan, dev, cfg);
    if (!s) s = moewe_plan_lay_out(&plan);
    if (s) return s;
    moewe_plan *p = moewe_host_alloc(&dev->allocator, sizeof *p, MOEWE_ALIGN);
    if (!p)
        return moewe_fail(MOEWE_E_NOMEM, "moewe_plan_create: no %zu bytes for plan '%s'", sizeof *p, plan.name);
    *p = plan;
    p->cfg.name = p->name;
    moewe_trace(MOEWE_LOG_INFO, "plan '%s' on %s: %llu bytes for up to %d tokens in chunks of %d", p->name,
                dev->backend->name, (unsigned long long)p->need.bytes, p->cfg.max_tokens, p->choice.chunk_tokens);
    *out = p;
    return MOEWE_OK;
}

void moewe_plan_destroy(moewe_plan *plan)
{
    if (plan) moewe_host_free(&plan->dev->allocator, plan, sizeof *plan);
}

moewe_status moewe_plan_need(const moewe_plan *plan, moewe_need *out)
{
    if (!plan || !out) return moewe_fail(MOEWE_E_ARG, "moewe_plan_need: %s is NULL", plan ? "out" : "plan");
    *out = plan->need;
    return MOEWE_OK;
}

moewe_status moewe_plan_floor(const moewe_device *dev, const moewe_config *cfg, moewe_need *out)
{
    moewe_plan plan = {0};
    if (!dev || !out) return moewe_fail(MOEWE_E_ARG, "moewe_plan_floor: %s is NULL", dev ? "out" : "dev");
    moewe_status s = plan_init(&plan, dev, cfg);
    if (s) return s;
    moewe_need least = moewe_plan_least(&plan);
    if (least.bytes == UINT64_MAX)
        return moewe_fail(MOEWE_E_ARG, "moewe_plan_floor: the workspace of plan '%s' does not fit in 64 bits", plan.name);
    *out = least;
    return MOEWE_OK;
}

int32_t moewe_plan_region_count(const moewe_plan *plan)
{
    return plan ? plan->n_regions : 0;
}

moewe_status moewe_plan_region(const moewe_plan *plan, int32_t index, moewe_region *out)
{
    if (!plan || !out) return moewe_fail(MOEWE_E_ARG, "moewe_plan_region: %s is NULL", plan ? "out" : "plan");
    if (index < 0 || index >= plan->n_regions)
        return moewe_fail(MOEWE_E_ARG, "moewe_plan_region: index is %d, plan '%s' has %d regions", index, plan->name,
                          plan->n_regions);
    *out = plan->regions[index];
    return MOEWE_OK;
}
