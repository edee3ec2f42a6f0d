/* rows.c - rows of x, y and the workspace: strides, alignment, and that they lie apart. */
#include "core.h"

moewe_status moewe_rows_check(const char *where, const moewe_rows *m)
{
    if (!m->base) return moewe_fail(MOEWE_E_ARG, "%s: %s is NULL", where, m->name);
    if ((uintptr_t)m->base % m->element || m->stride % m->element)
        return moewe_fail(MOEWE_E_ARG, "%s: %s is at %p with a stride of %lld bytes, needs multiples of %u", where, m->name,
                          m->base, (long long)m->stride, m->element);
    if (m->stride < 0 || (uint64_t)m->stride < m->row_bytes)
        return moewe_fail(MOEWE_E_ARG, "%s: %s_stride is %lld bytes, needs 0 or at least %llu", where, m->name,
                          (long long)m->stride, (unsigned long long)m->row_bytes);
    return MOEWE_OK;
}

static uintptr_t end_of(const moewe_rows *m)
{
    return (uintptr_t)m->base + (uint64_t)(m->n - 1) * (uint64_t)m->stride + m->row_bytes;
}

/* Rows may be interleaved in one buffer: then the ranges overlap and no byte does. */
static int interleaved(const moewe_rows *a, const moewe_rows *b)
{
    if (a->stride != b->stride || a->stride <= 0) return 0;
    uintptr_t from = (uintptr_t)b->base, to = (uintptr_t)a->base, s = (uintptr_t)a->stride;
    uintptr_t gap = to > from ? (to - from) % s : (s - (from - to) % s) % s;
    return gap >= b->row_bytes && gap + a->row_bytes <= s;
}

moewe_status moewe_rows_apart(const char *where, const moewe_rows *a, const moewe_rows *b)
{
    if ((uintptr_t)a->base >= end_of(b) || (uintptr_t)b->base >= end_of(a) || interleaved(a, b)) return MOEWE_OK;
    return moewe_fail(MOEWE_E_ARG, "%s: %s at %p overlaps %s at %p, needs memory of its own", where, a->name, a->base,
                      b->name, b->base);
}
