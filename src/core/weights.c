/* weights.c - checks views of weights, and packs them into caller memory.  Never copies a bias. */
#include "core.h"

moewe_shape moewe_part_shape(const moewe_config *c, moewe_part part)
{
    int32_t gated = moewe_act_gated(c->act), shared = c->shared_inter > 0, width = moewe_expert_width(c);
    switch (part) {
    case MOEWE_PART_GATE: return (moewe_shape){gated ? c->n_local : 0, c->inter, width};
    case MOEWE_PART_UP: return (moewe_shape){c->n_local, c->inter, width};
    case MOEWE_PART_DOWN: return (moewe_shape){c->n_local, width, c->inter};
    case MOEWE_PART_ROUTER: return (moewe_shape){c->score != MOEWE_SCORE_GIVEN, c->n_experts + c->n_null, c->hidden};
    case MOEWE_PART_SHARED_GATE: return (moewe_shape){shared && gated, c->shared_inter, c->hidden};
    case MOEWE_PART_SHARED_UP: return (moewe_shape){shared, c->shared_inter, c->hidden};
    case MOEWE_PART_SHARED_DOWN: return (moewe_shape){shared, c->hidden, c->shared_inter};
    case MOEWE_PART_LATENT_IN: return (moewe_shape){c->latent > 0, c->latent, c->hidden};
    case MOEWE_PART_LATENT_OUT: return (moewe_shape){c->latent > 0, c->hidden, c->latent};
    default: return (moewe_shape){shared, 1, c->hidden};
    }
}

moewe_matrix *moewe_part_of(moewe_weights *w, moewe_part part)
{
    moewe_matrix *const parts[] = {&w->gate,        &w->up,        &w->down,        &w->router,
                                   &w->shared_gate, &w->shared_up, &w->shared_down, &w->shared_scale,
                                   &w->latent_in,   &w->latent_out};
    return parts[part];
}

const char *moewe_part_name(moewe_part part)
{
    static const char *const names[] = {"gate",        "up",        "down",        "router",
                                        "shared_gate", "shared_up", "shared_down", "shared_scale",
                                        "latent_in",   "latent_out"};
    return names[part];
}

moewe_matrix moewe_matrix_canonical(const moewe_matrix *m, moewe_shape shape)
{
    moewe_matrix c = *m;
    if (c.layout) return c;
    if (!c.col_stride) c.col_stride = moewe_dtype_bytes(c.dtype);
    if (!c.row_stride) c.row_stride = c.col_stride * shape.cols;
    if (!c.expert_stride) c.expert_stride = c.row_stride * shape.rows;
    return c;
}

moewe_status moewe_matrix_check(const moewe_backend *b, const char *where, const char *name, const moewe_matrix *m,
                                moewe_shape shape)
{
    if (!moewe_dtype_bytes(m->dtype))
        return moewe_fail(MOEWE_E_ARG, "%s: %s.dtype is %d, needs f32, f16 or bf16", where, name, m->dtype);
    if (m->layout && m->layout != b->layout())
        return moewe_fail(MOEWE_E_LAYOUT, "%s: %s.layout is 0x%x, back end %s reads 0 (plain) or 0x%x", where, name,
                          m->layout, b->name, b->layout());
    if (m->layout && (m->experts || !m->data || (uintptr_t)m->data % MOEWE_ALIGN))
        return moewe_fail(MOEWE_E_LAYOUT, "%s: %s is packed, needs data on a multiple of %d bytes and no experts", where,
                          name, MOEWE_ALIGN);
    for (int32_t e = 0; m->experts && e < shape.n; e++)
        if (!m->experts[e])
            return moewe_fail(MOEWE_E_ARG, "%s: %s.experts[%d] is NULL, needs all %d", where, name, e, shape.n);
    return MOEWE_OK;
}

static moewe_status check_part(const moewe_plan *plan, const char *where, const moewe_matrix *m, moewe_part part,
                               int required)
{
    moewe_shape shape = moewe_part_shape(&plan->cfg, part);
    if (!shape.n) {
        if (moewe_matrix_absent(m) || part == MOEWE_PART_ROUTER) return MOEWE_OK;
        return moewe_fail(MOEWE_E_ARG, "%s: weights.%s is given, plan '%s' has no such matrix", where,
                          moewe_part_name(part), plan->name);
    }
    if (moewe_matrix_absent(m)) {
        if (!required) return MOEWE_OK;
        return moewe_fail(MOEWE_E_ARG, "%s: weights.%s is absent, plan '%s' needs [%d][%d][%d]", where,
                          moewe_part_name(part), plan->name, shape.n, shape.rows, shape.cols);
    }
    if (part <= MOEWE_PART_DOWN && m->dtype != plan->cfg.w_dtype)
        return moewe_fail(MOEWE_E_ARG, "%s: weights.%s.dtype is %d (%s), plan '%s' needs %s", where, moewe_part_name(part),
                          m->dtype, moewe_dtype_name(m->dtype), plan->name, moewe_dtype_name(plan->cfg.w_dtype));
    return moewe_matrix_check(plan->dev->backend, where, moewe_part_name(part), m, shape);
}

moewe_status moewe_weights_check(const moewe_plan *plan, const char *where, const moewe_weights *w, int need_router)
{
    if (!w) return moewe_fail(MOEWE_E_ARG, "%s: weights is NULL", where);
    if (w->struct_size != sizeof *w)
        return moewe_fail(MOEWE_E_ABI, "%s: moewe_weights.struct_size is %u, this library knows %zu", where,
                          w->struct_size, sizeof *w);
    if (w->reserved) return moewe_fail(MOEWE_E_ARG, "%s: moewe_weights.reserved is %u, needs 0", where, w->reserved);
    if (w->hash_ids && (plan->cfg.score >= MOEWE_SCORE_SPARSEMIXER || w->hash_rows < 1))
        return moewe_fail(MOEWE_E_ARG, "%s: weights.hash_ids has %d rows for moewe_score %d, needs at least 1 row and a score for each expert",
                          where, w->hash_rows, plan->cfg.score);
    if (w->select_bias && plan->cfg.score == MOEWE_SCORE_SPARSEMIXER)
        return moewe_fail(MOEWE_E_ARG, "%s: weights.select_bias is given, MOEWE_SCORE_SPARSEMIXER chooses by logits and needs it NULL", where);
    if (w->reserved2) return moewe_fail(MOEWE_E_ARG, "%s: moewe_weights.reserved2 is %d, needs 0", where, w->reserved2);
    for (int p = 0; p < MOEWE_PART_COUNT; p++) {
        int required = p == MOEWE_PART_ROUTER ? need_router : p != MOEWE_PART_SHARED_SCALE;
        moewe_status s = check_part(plan, where, moewe_part_of((moewe_weights *)(uintptr_t)w, (moewe_part)p),
                                    (moewe_part)p, required);
        if (s) return s;
    }
    return MOEWE_OK;
}

/* Where one part goes: 0 bytes when there is nothing to pack. */
static uint64_t part_bytes(const moewe_plan *plan, const moewe_weights *w, moewe_part part)
{
    moewe_shape shape = moewe_part_shape(&plan->cfg, part);
    const moewe_matrix *m = moewe_part_of((moewe_weights *)(uintptr_t)w, part);
    if (!shape.n || moewe_matrix_absent(m) || m->layout) return 0;
    return moewe_align_up(plan->dev->backend->packed_bytes(shape, m->dtype), MOEWE_ALIGN);
}

static moewe_status total_bytes(const moewe_plan *plan, const char *where, const moewe_weights *src, uint64_t *out)
{
    if (!plan) return moewe_fail(MOEWE_E_ARG, "%s: plan is NULL", where);
    moewe_status s = moewe_weights_check(plan, where, src, 0);
    if (s) return s;
    *out = 0;
    for (int p = 0; p < MOEWE_PART_COUNT; p++) *out = moewe_add(*out, part_bytes(plan, src, (moewe_part)p));
    if (*out == UINT64_MAX)
        return moewe_fail(MOEWE_E_ARG, "%s: packed weights of plan '%s' do not fit in 64 bits", where, plan->name);
    return MOEWE_OK;
}

moewe_status moewe_weights_need(const moewe_plan *plan, const moewe_weights *src, moewe_need *out)
{
    uint64_t bytes;
    if (!out) return moewe_fail(MOEWE_E_ARG, "moewe_weights_need: out is NULL");
    moewe_status s = total_bytes(plan, "moewe_weights_need", src, &bytes);
    if (s) return s;
    *out = (moewe_need){bytes, MOEWE_ALIGN, plan->need.place};
    return MOEWE_OK;
}

moewe_status moewe_weights_pack(const moewe_plan *plan, const moewe_weights *src, moewe_span mem, void *stream,
                                moewe_weights *out)
{
    static const char where[] = "moewe_weights_pack";
    uint64_t bytes;
    if (!out) return moewe_fail(MOEWE_E_ARG, "%s: out is NULL", where);
    moewe_status s = total_bytes(plan, where, src, &bytes);
    if (s) return s;
    if (bytes && (!mem.ptr || mem.bytes < bytes))
        return moewe_fail(MOEWE_E_WS_SMALL, "%s: mem has %llu bytes, weights of plan '%s' need %llu", where,
                          (unsigned long long)(mem.ptr ? mem.bytes : 0), plan->name, (unsigned long long)bytes);
    if (bytes && (uintptr_t)mem.ptr % MOEWE_ALIGN)
        return moewe_fail(MOEWE_E_WS_ALIGN, "%s: mem is at %p, needs a multiple of %d", where, mem.ptr, MOEWE_ALIGN);

    moewe_weights w = *src;
    uint8_t *at = mem.ptr;
    for (int p = 0; p < MOEWE_PART_COUNT; p++) {
        uint64_t size = part_bytes(plan, src, (moewe_part)p);
        if (!size) continue;
        moewe_matrix *m = moewe_part_of(&w, (moewe_part)p);
        moewe_shape shape = moewe_part_shape(&plan->cfg, (moewe_part)p);
        moewe_matrix from = moewe_matrix_canonical(m, shape);
        s = plan->dev->backend->pack(plan->dev, shape, &from, at, stream);
        if (s) return s;
        *m = (moewe_matrix){.data = at, .bias = m->bias, .dtype = m->dtype, .layout = plan->dev->backend->layout()};
        at += size;
    }
    *out = w;
    return MOEWE_OK;
}
