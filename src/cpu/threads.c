/* threads.c - see threads.h.  Waits spin for a few microseconds, since most are shorter, then sleep
 * in the kernel: an idle device costs nothing, and neither does a thread that lost its core. */
#include "threads.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 4000 };

struct cpu_region {
    int32_t     n;
    atomic_int  arrived;
    atomic_uint round;    /* counts meetings; what sleepers watch */
    atomic_int  sleepers;
};

struct cpu_threads {
    moewe_allocator allocator;
    int32_t         n, started;
    atomic_int      busy;     /* 1 while a caller owns the region */
    atomic_uint     wake;     /* counts regions; what idle threads watch */
    atomic_int      idle;     /* threads asleep on wake */
    atomic_int      stop;
    cpu_region_fn   fn;
    void           *task;
    cpu_region      region;
    pthread_t       ids[];
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Waits until *word is no longer seen; sleepers counts those in the kernel, so that the waker may
 * skip the system call when there are none. */
static void wait_change(atomic_uint *word, unsigned seen, atomic_int *sleepers)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
        pause_cpu();
    }
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == seen) syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(sleepers, 1);
}

static void change(atomic_uint *word, atomic_int *sleepers)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(sleepers)) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void cpu_region_meet(cpu_region *r, void (*serial)(void *task), void *task)
{
    unsigned seen = atomic_load(&r->round);
    if (atomic_fetch_add(&r->arrived, 1) + 1 < r->n) {
        wait_change(&r->round, seen, &r->sleepers);
        return;
    }
    if (serial) serial(task);
    atomic_store(&r->arrived, 0);
    change(&r->round, &r->sleepers);
}

static void *worker(void *arg)
{
    cpu_threads *t = arg;
    int32_t i = atomic_fetch_add(&t->region.arrived, 1) + 1; /* numbers the threads once, before any region */
    unsigned seen = 0;
    for (;;) {
        wait_change(&t->wake, seen, &t->idle);
        seen++;
        if (atomic_load(&t->stop)) return NULL;
        t->fn(t->task, &t->region, i, t->n);
        cpu_region_meet(&t->region, NULL, NULL);
    }
}

void cpu_threads_run(cpu_threads *t, cpu_region_fn fn, void *task)
{
    int nobody = 0;
    if (!t || t->n == 1 || !atomic_compare_exchange_strong(&t->busy, &nobody, 1)) {
        cpu_region alone = {.n = 1};
        fn(task, &alone, 0, 1);
        return;
    }
    t->fn = fn;
    t->task = task;
    change(&t->wake, &t->idle);
    fn(task, &t->region, 0, t->n);
    cpu_region_meet(&t->region, NULL, NULL);
    atomic_store(&t->busy, 0);
}

static size_t object_bytes(int32_t n)
{
    return sizeof(cpu_threads) + (size_t)n * sizeof(pthread_t);
}

void cpu_threads_close(cpu_threads *t)
{
    if (!t) return;
    atomic_store(&t->stop, 1);
    change(&t->wake, &t->idle);
    for (int32_t i = 0; i < t->started; i++) pthread_join(t->ids[i], NULL);
    moewe_allocator a = t->allocator;
    moewe_host_free(&a, t, object_bytes(t->n));
}

moewe_status cpu_threads_open(const moewe_allocator *a, int32_t n, cpu_threads **out)
{
    cpu_threads *t = moewe_host_alloc(a, object_bytes(n), MOEWE_ALIGN);
    if (!t) return moewe_fail(MOEWE_E_NOMEM, "moewe_device_open: no %zu bytes for %d threads", object_bytes(n), n);
    t->allocator = *a;
    t->n = n;
    t->region.n = n;
    for (; t->started < n - 1; t->started++)
        if (pthread_create(&t->ids[t->started], NULL, worker, t)) {
            int32_t got = t->started + 1;
            cpu_threads_close(t);
            return moewe_fail(MOEWE_E_NOMEM, "moewe_device_open: the system gave %d threads, needs %d", got, n);
        }
    /* Every thread has its number before the first region reuses the counter. */
    while (atomic_load(&t->region.arrived) < n - 1) sched_yield();
    atomic_store(&t->region.arrived, 0);
    *out = t;
    return MOEWE_OK;
}
