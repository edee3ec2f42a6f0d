/* threads.c - see threads.h.
 *
 * The tasks of a phase are one atomic word, their number and the next one to take.  A thread that took
 * one may look at the job, since the phase cannot end before the task does; without one it looks at
 * nothing but the set itself.  So a job may live on its caller's stack, and the caller may return while
 * other threads still look for more.
 *
 * Waits spin for some microseconds, since most are shorter, then sleep in the kernel. */
#include "threads.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 2000 };

struct cpu_threads {
    moewe_allocator  allocator;
    int32_t          n, started;
    atomic_int       busy, stop;
    atomic_int       numbered;  /* threads that have their number */
    _Atomic uint64_t tasks;     /* how many << 32 | the next to take */
    atomic_int       unfinished;
    atomic_uint      round;     /* counts phases and ends of jobs: what waiting threads watch */
    atomic_int       sleepers;  /* of them in the kernel */
    atomic_int       running;   /* 1 until the job's last phase is done */
    const cpu_job   *job;
    pthread_t        ids[];
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_round(cpu_threads *t, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&t->round) != seen) return;
        pause_cpu();
    }
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(&t->round) == seen) syscall(SYS_futex, &t->round, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&t->sleepers, 1);
}

static void next_round(cpu_threads *t)
{
    atomic_fetch_add(&t->round, 1);
    if (atomic_load(&t->sleepers)) syscall(SYS_futex, &t->round, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Only between phases: nothing is taken and nothing unfinished. */
static void next_phase(cpu_threads *t)
{
    int32_t n = t->job->advance(t->job->state);
    if (n > 0) {
        atomic_store(&t->unfinished, n);
        atomic_store(&t->tasks, (uint64_t)n << 32);
    } else {
        atomic_store(&t->running, 0);
    }
    next_round(t);
}

/* Does tasks until none is left to take. */
static void work(cpu_threads *t, int32_t thread)
{
    uint64_t word = atomic_load(&t->tasks);
    while ((uint32_t)word < word >> 32) {
        if (!atomic_compare_exchange_weak(&t->tasks, &word, word + 1)) continue;
        t->job->work(t->job->state, (int32_t)(uint32_t)word, thread);
        if (atomic_fetch_sub(&t->unfinished, 1) == 1) next_phase(t);
        word = atomic_load(&t->tasks);
    }
}

static void *worker(void *arg)
{
    cpu_threads *t = arg;
    int32_t thread = atomic_fetch_add(&t->numbered, 1) + 1;
    while (!atomic_load(&t->stop)) {
        unsigned seen = atomic_load(&t->round);
        work(t, thread);
        if (!atomic_load(&t->stop)) wait_round(t, seen);
    }
    return NULL;
}

void cpu_threads_run(cpu_threads *t, const cpu_job *job)
{
    int nobody = 0;
    if (!t || t->n == 1 || !atomic_compare_exchange_strong(&t->busy, &nobody, 1)) {
        for (int32_t n; (n = job->advance(job->state)) > 0;)
            for (int32_t i = 0; i < n; i++) job->work(job->state, i, 0);
        return;
    }
    t->job = job;
    atomic_store(&t->running, 1);
    next_phase(t);
    for (;;) {
        unsigned seen = atomic_load(&t->round);
        work(t, 0);
        if (!atomic_load(&t->running)) break;
        wait_round(t, seen);
    }
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
    next_round(t);
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
    for (; t->started < n - 1; t->started++)
        if (pthread_create(&t->ids[t->started], NULL, worker, t)) {
            int32_t got = t->started + 1;
            cpu_threads_close(t);
            return moewe_fail(MOEWE_E_NOMEM, "moewe_device_open: the system gave %d threads, needs %d", got, n);
        }
    /* A thread that is still starting may allocate (its runtime does); after open nothing must. */
    while (atomic_load(&t->numbered) < n - 1) sched_yield();
    *out = t;
    return MOEWE_OK;
}
