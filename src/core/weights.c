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

static moewe_scale canonical_scale(const moewe_matrix *m, moewe_shape shape)
{
    moewe_scale s = m->scale;
    if (!s.data && !s.experts) return s; /* nothing but tensor */
    if (!s.rows || s.rows > shape.rows) s.rows = shape.rows;
    if (!s.cols || s.cols > shape.cols) s.cols = shape.cols;
    int64_t across = (shape.cols + (int64_t)s.cols - 1) / s.cols, down = (shape.rows + (int64_t)s.rows - 1) / s.rows;
    if (!s.col_stride) s.col_stride = moewe_dtype_bytes(s.dtype);
    if (!s.row_stride) s.row_stride = s.col_stride * across;
    if (!s.expert_stride) s.expert_stride = s.row_stride * down;
    return s;
}

moewe_matrix moewe_matrix_canonical(const moewe_matrix *m, moewe_shape shape)
{
    moewe_matrix c = *m;
    if (c.layout) return c;
    int64_t row = (int64_t)moewe_dtype_row_bytes(c.dtype, shape.cols);
    if (!c.col_stride) c.col_stride = moewe_dtype_bytes(c.dtype);
    if (!c.row_stride) c.row_stride = moewe_dtype_bytes(c.dtype) ? c.col_stride * shape.cols : row;
    if (!c.expert_stride) c.expert_stride = c.row_stride * shape.rows;
    c.scale = canonical_scale(m, shape);
    return c;
}

static int scale_absent(const moewe_scale *s)
{
    return !s->data && !s->experts;
}

/* All of it 0, but for tensor when it may have that. */
static int scale_blank(const moewe_scale *s, int tensor)
{
    return scale_absent(s) && (tensor || !s->tensor) && !s->expert_stride && !s->row_stride && !s->col_stride && !s->dtype &&
           !s->rows && !s->cols && !s->reserved;
}

static moewe_status check_scale_elements(const char *where, const char *name, const moewe_scale *s, moewe_shape shape)
{
    switch (s->dtype) {
    case MOEWE_DTYPE_F32:
    case MOEWE_DTYPE_BF16:
    case MOEWE_DTYPE_F16:
    case MOEWE_DTYPE_E4M3:
    case MOEWE_DTYPE_E8M0: break;
    default:
        return moewe_fail(MOEWE_E_ARG, "%s: %s.scale.dtype is %d (%s), needs f32, bf16, f16, e4m3 or e8m0", where, name,
                          s->dtype, moewe_dtype_name(s->dtype));
    }
    if (s->rows < 0 || s->cols < 0 || (s->cols < shape.cols && s->cols != 16 && s->cols != 32 && s->cols % 64))
        return moewe_fail(MOEWE_E_ARG, "%s: %s.scale blocks are %d rows by %d columns, needs 0 or more rows and 16, 32 or a "
                                       "multiple of 64 columns", where, name, s->rows, s->cols);
    for (int32_t e = 0; s->experts && e < shape.n; e++)
        if (!s->experts[e])
            return moewe_fail(MOEWE_E_ARG, "%s: %s.scale.experts[%d] is NULL, needs all %d", where, name, e, shape.n);
    return MOEWE_OK;
}

static moewe_status check_scale(const char *where, const char *name, const moewe_matrix *m, moewe_shape shape)
{
    const moewe_scale *s = &m->scale;
    if (!moewe_dtype_scaled(m->dtype)) {
        if (scale_blank(s, 0)) return MOEWE_OK;
        return moewe_fail(MOEWE_E_ARG, "%s: %s.scale is given, a matrix of %s has none beside it", where, name,
                          moewe_dtype_name(m->dtype));
    }
    if (s->reserved) return moewe_fail(MOEWE_E_ARG, "%s: %s.scale.reserved is %d, needs 0", where, name, s->reserved);
    if (m->layout ? !s->dtype : scale_absent(s)) {
        if (scale_blank(s, 1)) return MOEWE_OK;
        return moewe_fail(MOEWE_E_ARG, "%s: %s.scale has no elements, but dtype %d and blocks of %d rows by %d columns, needs "
                                       "0 there and in its strides", where, name, s->dtype, s->rows, s->cols);
    }
    return check_scale_elements(where, name, s, shape);
}

moewe_status moewe_matrix_check(const moewe_backend *b, const char *where, const char *name, const moewe_matrix *m,
                                moewe_shape shape)
{
    if (!moewe_dtype_of_weights(m->dtype))
        return moewe_fail(MOEWE_E_ARG, "%s: %s.dtype is %d (%s), needs a dtype of weights", where, name, m->dtype,
                          moewe_dtype_name(m->dtype));
    if (!moewe_dtype_row_bytes(m->dtype, shape.cols))
        return moewe_fail(MOEWE_E_ARG, "%s: rows of %s have %d elements, needs whole blocks of %s", where, name,
                          shape.cols, moewe_dtype_name(m->dtype));
    if (!moewe_dtype_bytes(m->dtype) && m->col_stride && !m->layout)
        return moewe_fail(MOEWE_E_ARG, "%s: %s.col_stride is %lld, rows of %s are contiguous and need 0", where, name,
                          (long long)m->col_stride, moewe_dtype_name(m->dtype));
    if (m->layout && m->layout != b->layout())
        return moewe_fail(MOEWE_E_LAYOUT, "%s: %s.layout is 0x%x, back end %s reads 0 (plain) or 0x%x", where, name,
                          m->layout, b->name, b->layout());
    if (m->layout && (m->experts || !m->data || (uintptr_t)m->data % MOEWE_ALIGN))
        return moewe_fail(MOEWE_E_LAYOUT, "%s: %s is packed, needs data on a multiple of %d bytes and no experts", where,
                          name, MOEWE_ALIGN);
    for (int32_t e = 0; m->experts && e < shape.n; e++)
        if (!m->experts[e])
            return moewe_fail(MOEWE_E_ARG, "%s: %s.experts[%d] is NULL, needs all %d", where, name, e, shape.n);
    return check_scale(where, name, m, shape);
}

moewe_matrix moewe_matrix_packed(const moewe_matrix *from, void *data, uint32_t layout)
{
    moewe_matrix m = {.data = data, .bias = from->bias, .dtype = from->dtype, .layout = layout};
    m.scale.tensor = from->scale.tensor;
    m.scale.dtype = from->scale.dtype;
    m.scale.rows = from->scale.rows;
    m.scale.cols = from->scale.cols;
    return m;
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
    int32_t needs = part == MOEWE_PART_DOWN ? plan->cfg.down_dtype : plan->cfg.w_dtype;
    if (part <= MOEWE_PART_DOWN && m->dtype != needs)
        return moewe_fail(MOEWE_E_ARG, "%s: weights.%s.dtype is %d (%s), plan '%s' needs %s", where, moewe_part_name(part),
                          m->dtype, moewe_dtype_name(m->dtype), plan->name, moewe_dtype_name(needs));
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
    moewe_matrix from = moewe_matrix_canonical(m, shape);
    return moewe_align_up(plan->dev->backend->packed_bytes(shape, &from), MOEWE_ALIGN);
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
        *m = moewe_matrix_packed(&from, at, plan->dev->backend->layout());
        at += size;
    }
    *out = w;
    return MOEWE_OK;
}
