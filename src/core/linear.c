/* linear.c - dense matrices on the layer's kernels: checks only, the back end computes. */
#include "core.h"

static moewe_status check(const moewe_device *dev, const char *where, const moewe_linear *src, moewe_linear *out,
                          moewe_shape *shape)
{
    if (!dev || !src) return moewe_fail(MOEWE_E_ARG, "%s: %s is NULL", where, dev ? "the matrix" : "dev");
    if (src->struct_size != sizeof *src)
        return moewe_fail(MOEWE_E_ABI, "%s: moewe_linear.struct_size is %u, this library knows %zu", where,
                          src->struct_size, sizeof *src);
    moewe_linear l = *src;
    if (!l.x_dtype) l.x_dtype = MOEWE_DTYPE_F32;
    if (!l.y_dtype) l.y_dtype = l.x_dtype;
    if (l.rows < 1 || l.cols < 1 || l.rows > 1 << 24 || l.cols > 1 << 24)
        return moewe_fail(MOEWE_E_ARG, "%s: the matrix is [%d][%d], needs 1 to %d each", where, l.rows, l.cols, 1 << 24);
    if ((l.x_dtype != MOEWE_DTYPE_F32 && l.x_dtype != MOEWE_DTYPE_BF16) ||
        (l.y_dtype != MOEWE_DTYPE_F32 && l.y_dtype != MOEWE_DTYPE_BF16))
        return moewe_fail(MOEWE_E_ARG, "%s: x_dtype is %d and y_dtype %d, each needs f32 or bf16", where, l.x_dtype,
                          l.y_dtype);
    if (moewe_matrix_absent(&l.matrix)) return moewe_fail(MOEWE_E_ARG, "%s: matrix.data is NULL", where);
    *shape = (moewe_shape){1, l.rows, l.cols};
    moewe_status s = moewe_matrix_check(dev->backend, where, "matrix", &l.matrix, *shape);
    if (s) return s;
    l.matrix = moewe_matrix_canonical(&l.matrix, *shape);
    *out = l;
    return MOEWE_OK;
}

moewe_status moewe_linear_need(const moewe_device *dev, const moewe_linear *src, moewe_need *out)
{
    static const char where[] = "moewe_linear_need";
    moewe_linear l = {0};
    moewe_shape shape = {0};
    if (!out) return moewe_fail(MOEWE_E_ARG, "%s: out is NULL", where);
    moewe_status s = check(dev, where, src, &l, &shape);
    if (s) return s;
    uint64_t bytes = l.matrix.layout ? 0 : moewe_align_up(dev->backend->packed_bytes(shape, &l.matrix), MOEWE_ALIGN);
    *out = (moewe_need){bytes, MOEWE_ALIGN,
                        dev->backend->kind == MOEWE_DEVICE_CUDA ? MOEWE_PLACE_CUDA : MOEWE_PLACE_HOST};
    return MOEWE_OK;
}

moewe_status moewe_linear_pack(const moewe_device *dev, const moewe_linear *src, moewe_span mem, void *stream,
                               moewe_linear *out)
{
    static const char where[] = "moewe_linear_pack";
    moewe_linear l = {0};
    moewe_shape shape = {0};
    moewe_need need;
    if (!out) return moewe_fail(MOEWE_E_ARG, "%s: out is NULL", where);
    moewe_status s = check(dev, where, src, &l, &shape);
    if (!s) s = moewe_linear_need(dev, src, &need);
    if (s) return s;
    if (need.bytes) {
        if (!mem.ptr || mem.bytes < need.bytes)
            return moewe_fail(MOEWE_E_WS_SMALL, "%s: mem has %llu bytes, the matrix needs %llu", where,
                              (unsigned long long)(mem.ptr ? mem.bytes : 0), (unsigned long long)need.bytes);
        if ((uintptr_t)mem.ptr % MOEWE_ALIGN)
            return moewe_fail(MOEWE_E_WS_ALIGN, "%s: mem is at %p, needs a multiple of %d", where, mem.ptr, MOEWE_ALIGN);
        s = dev->backend->pack(dev, shape, &l.matrix, mem.ptr, stream);
        if (s) return s;
        l.matrix = moewe_matrix_packed(&l.matrix, mem.ptr, dev->backend->layout());
    }
    *out = l;
    return MOEWE_OK;
}

moewe_status moewe_linear_run(const moewe_device *dev, const moewe_linear *lin, int32_t n_tokens, const void *x,
                              int64_t x_stride, void *y, int64_t y_stride, void *stream)
{
    static const char where[] = "moewe_linear_run";
    moewe_linear l = {0};
    moewe_shape shape = {0};
    (void)stream;
    moewe_status s = check(dev, where, lin, &l, &shape);
    if (s) return s;
    if (n_tokens < 0) return moewe_fail(MOEWE_E_ARG, "%s: n_tokens is %d, needs 0 or more", where, n_tokens);
    if (!n_tokens) return MOEWE_OK;
    uint32_t xe = moewe_dtype_bytes(l.x_dtype), ye = moewe_dtype_bytes(l.y_dtype);
    uint64_t x_row = (uint64_t)l.cols * xe, y_row = (uint64_t)l.rows * ye;
    moewe_rows xr = {"x", x, x_stride ? x_stride : (int64_t)x_row, x_row, n_tokens, xe};
    moewe_rows yr = {"y", y, y_stride ? y_stride : (int64_t)y_row, y_row, n_tokens, ye};
    s = moewe_rows_check(where, &xr);
    if (!s) s = moewe_rows_check(where, &yr);
    if (!s) s = moewe_rows_apart(where, &yr, &xr);
    return s ? s : dev->backend->linear(dev, &l, n_tokens, x, xr.stride, y, yr.stride);
}
