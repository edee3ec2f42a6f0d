/* alloc.c - the one malloc: small host objects through the caller's allocator or the C library's,
 * and size arithmetic that cannot wrap. */
#include "core.h"

#include <stdlib.h>

void *moewe_host_alloc(const moewe_allocator *a, size_t bytes, size_t align)
{
    void *p = NULL;
    if (a->alloc)
        p = a->alloc(a->ctx, bytes, align);
    else if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes))
        p = NULL;
    if (p) memset(p, 0, bytes);
    return p;
}

void moewe_host_free(const moewe_allocator *a, void *ptr, size_t bytes)
{
    if (!ptr) return;
    if (a->alloc)
        a->free(a->ctx, ptr, bytes);
    else
        free(ptr);
}

uint64_t moewe_mul(uint64_t a, uint64_t b)
{
    uint64_t r;
    return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

uint64_t moewe_add(uint64_t a, uint64_t b)
{
    uint64_t r;
    return __builtin_add_overflow(a, b, &r) ? UINT64_MAX : r;
}

uint64_t moewe_align_up(uint64_t bytes, uint64_t align)
{
    return bytes > UINT64_MAX - align ? UINT64_MAX : (bytes + align - 1) / align * align;
}
