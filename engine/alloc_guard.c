/* alloc_guard.c - the malloc family over glibc's own, with two counters.  Works before main and in every thread: it
 * holds nothing but atomics.  Under a sanitizer its hooks count instead; the thread sanitizer's see no aligned_alloc
 * and no posix_memalign.  Must never allocate, lock or print. */
#include "alloc_guard.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define GUARD_SANITIZED 1
#endif
#endif
#if !defined(GUARD_SANITIZED) && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#define GUARD_SANITIZED 1
#endif
#if !defined(GUARD_SANITIZED) && defined(__GLIBC__)
#define GUARD_GLIBC 1
#endif

static atomic_int armed;
static _Atomic uint64_t counted;

static void count_one(void)
{
    if (atomic_load_explicit(&armed, memory_order_relaxed))
        atomic_fetch_add_explicit(&counted, 1, memory_order_relaxed);
}

#if defined(GUARD_SANITIZED)

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static void on_malloc(const volatile void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
    count_one();
}

static void on_free(const volatile void *p)
{
    (void)p;
}

static int hooked(void)
{
    static atomic_int state; /* 0 = not tried, 1 = installed, -1 = refused */
    int expected = 0;
    if (atomic_compare_exchange_strong(&state, &expected, -1) &&
        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) > 0)
        atomic_store(&state, 1);
    return atomic_load(&state) == 1;
}

int alloc_guard_works(void)
{
    return hooked();
}

uint64_t alloc_guard_fail_at(uint64_t n)
{
    (void)n;
    return UINT64_MAX;
}

#elif defined(GUARD_GLIBC)

/* glibc's names for what it would have called malloc. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void *__libc_valloc(size_t bytes);
void *__libc_pvalloc(size_t bytes);
void __libc_free(void *p);

static atomic_int watching;      /* someone called alloc_guard_fail_at */
static _Atomic uint64_t seen;    /* since that call */
static _Atomic uint64_t fail_at; /* 0 = none */

static int hooked(void)
{
    return 1;
}

/* Counts an allocation; nonzero when it is the one that has to fail. */
static int refused(void)
{
    count_one();
    if (!atomic_load_explicit(&watching, memory_order_relaxed)) return 0;
    if (atomic_fetch_add(&seen, 1) + 1 != atomic_load(&fail_at)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes)
{
    return refused() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return refused() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *p, size_t bytes)
{
    return refused() ? NULL : __libc_realloc(p, bytes);
}

void *reallocarray(void *p, size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) {
        errno = ENOMEM;
        return NULL;
    }
    return refused() ? NULL : __libc_realloc(p, total);
}

void free(void *p)
{
    __libc_free(p);
}

void *memalign(size_t align, size_t bytes);
void *memalign(size_t align, size_t bytes)
{
    return refused() ? NULL : __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return refused() ? NULL : __libc_memalign(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    int saved = errno;
    void *p;
    if (align < sizeof(void *) || (align & (align - 1))) return EINVAL;
    p = refused() ? NULL : __libc_memalign(align, bytes);
    errno = saved;
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void *valloc(size_t bytes)
{
    return refused() ? NULL : __libc_valloc(bytes);
}

void *pvalloc(size_t bytes);
void *pvalloc(size_t bytes)
{
    return refused() ? NULL : __libc_pvalloc(bytes);
}

int alloc_guard_works(void)
{
    return 1;
}

uint64_t alloc_guard_fail_at(uint64_t n)
{
    uint64_t before;
    atomic_store(&watching, 0);
    before = atomic_exchange(&seen, 0);
    atomic_store(&fail_at, n);
    atomic_store(&watching, 1);
    return before;
}

#else

static int hooked(void)
{
    return 0;
}

int alloc_guard_works(void)
{
    return 0;
}

uint64_t alloc_guard_fail_at(uint64_t n)
{
    (void)n;
    return UINT64_MAX;
}

#endif

void alloc_guard_arm(void)
{
    if (!hooked()) return;
    atomic_store(&counted, 0);
    atomic_store(&armed, 1);
}

uint64_t alloc_guard_disarm(void)
{
    atomic_store(&armed, 0);
    return atomic_load(&counted);
}
