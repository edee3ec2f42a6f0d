/* threads.c - see threads.h.
 *
 * The tasks of a phase are one atomic word, their number and the next one to take.  A thread that took
 * one may look at the job, since the phase cannot end before the task does; without one it looks at
 * nothing but the set itself.  So a job may live on its caller's stack, and the caller may return while
 * other threads still look for more.
 *
 * Waits spin for some microseconds, since most are shorter, then sleep in the kernel.  Waking costs more than a small
 * task: a phase wakes no more threads than it has tasks for, and the end of a job nobody but its caller. */
#include "threads.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 2000, CALLER = 1, WORKERS = 2 };

typedef struct worker {
    cpu_threads *set;
    pthread_t    id;
    int32_t      thread, cpu;
} worker;

struct cpu_threads {
    moewe_allocator  allocator;
    int32_t          n, started;
    int32_t          pinned, free_cpu; /* the one CPU that no worker stays on */
    atomic_int       busy, stop;
    atomic_int       awake;     /* workers that have started */
    _Atomic uint64_t tasks;     /* how many << 32 | the next to take */
    atomic_int       unfinished;
    atomic_uint      round;     /* counts phases and ends of jobs: what waiting threads watch */
    atomic_int       sleepers;  /* of them in the kernel */
    atomic_int       running;   /* 1 until the job's last phase is done */
    const cpu_job   *job;
    worker           workers[];
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Who: CALLER or WORKERS. */
static void wait_round(cpu_threads *t, unsigned seen, unsigned who)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&t->round) != seen) return;
        pause_cpu();
    }
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(&t->round) == seen)
        syscall(SYS_futex, &t->round, FUTEX_WAIT_BITSET_PRIVATE, seen, NULL, NULL, who);
    atomic_fetch_sub(&t->sleepers, 1);
}

/* Wakes at most `most` sleepers of those in who. */
static void next_round(cpu_threads *t, int most, unsigned who)
{
    atomic_fetch_add(&t->round, 1);
    if (most && atomic_load(&t->sleepers))
        syscall(SYS_futex, &t->round, FUTEX_WAKE_BITSET_PRIVATE, most, NULL, NULL, who);
}

/* Only between phases: nothing is taken and nothing unfinished. */
static void next_phase(cpu_threads *t)
{
    int32_t n = t->job->advance(t->job->state);
    if (n > 0) {
        atomic_store(&t->unfinished, n);
        atomic_store(&t->tasks, (uint64_t)n << 32);
        next_round(t, n - 1, CALLER | WORKERS); /* this thread takes one itself */
    } else {
        atomic_store(&t->running, 0);
        next_round(t, 1, CALLER);
    }
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

static void *work_for(void *arg)
{
    worker *w = arg;
    cpu_threads *t = w->set;
    atomic_fetch_add(&t->awake, 1);
    while (!atomic_load(&t->stop)) {
        unsigned seen = atomic_load(&t->round);
        work(t, w->thread);
        if (!atomic_load(&t->stop)) wait_round(t, seen, WORKERS);
    }
    return NULL;
}

/* ---- CPUs of workers ---------------------------------------------------------------- */

/* 0, or the error number. */
static int stay_on(worker *w, int32_t cpu)
{
    cpu_numbers one = {{0}};
    cpu_numbers_add(&one, cpu);
    int error = pthread_setaffinity_np(w->id, sizeof one, (const cpu_set_t *)(const void *)one.words);
    if (!error) w->cpu = cpu;
    return error;
}

/* The caller's thread goes where the system likes.  On a worker's CPU one of the two would wait, and may for long: that
 * worker takes the free CPU instead.  Only by the one that has the set. */
static void make_way(cpu_threads *t)
{
    int cpu = t->pinned ? sched_getcpu() : -1;
    if (cpu < 0 || cpu == t->free_cpu) return;
    for (int32_t i = 0; i < t->started; i++)
        if (t->workers[i].cpu == cpu) {
            if (!stay_on(&t->workers[i], t->free_cpu)) t->free_cpu = cpu;
            return;
        }
}

/* ---- jobs ----------------------------------------------------------------------------- */

void cpu_threads_run(cpu_threads *t, const cpu_job *job)
{
    int nobody = 0;
    if (!t || t->n == 1 || !atomic_compare_exchange_strong(&t->busy, &nobody, 1)) {
        for (int32_t n; (n = job->advance(job->state)) > 0;)
            for (int32_t i = 0; i < n; i++) job->work(job->state, i, 0);
        return;
    }
    make_way(t);
    t->job = job;
    atomic_store(&t->running, 1);
    next_phase(t);
    for (;;) {
        unsigned seen = atomic_load(&t->round);
        work(t, 0);
        if (!atomic_load(&t->running)) break;
        wait_round(t, seen, CALLER);
    }
    atomic_store(&t->busy, 0);
}

static size_t object_bytes(int32_t n)
{
    return sizeof(cpu_threads) + (size_t)n * sizeof(worker);
}

void cpu_threads_close(cpu_threads *t)
{
    if (!t) return;
    atomic_store(&t->stop, 1);
    next_round(t, INT_MAX, WORKERS);
    for (int32_t i = 0; i < t->started; i++) pthread_join(t->workers[i].id, NULL);
    moewe_allocator a = t->allocator;
    moewe_host_free(&a, t, object_bytes(t->n));
}

moewe_status cpu_threads_open(const moewe_allocator *a, int32_t n, const cpu_place *places, cpu_threads **out)
{
    cpu_threads *t = moewe_host_alloc(a, object_bytes(n), MOEWE_ALIGN);
    if (!t) return moewe_fail(MOEWE_E_NOMEM, "moewe_device_open: no %zu bytes for %d threads", object_bytes(n), n);
    t->allocator = *a;
    t->n = n;
    t->pinned = places != NULL;
    t->free_cpu = places ? places[0].cpu : -1;
    for (int32_t i = 0; i < n - 1; i++) {
        worker *w = &t->workers[i];
        w->set = t;
        w->thread = i + 1;
        if (pthread_create(&w->id, NULL, work_for, w)) {
            cpu_threads_close(t);
            return moewe_fail(MOEWE_E_NOMEM, "moewe_device_open: the system gave %d threads, needs %d", i + 1, n);
        }
        t->started++;
        int error = places ? stay_on(w, places[i + 1].cpu) : 0;
        if (error) {
            cpu_threads_close(t);
            return moewe_fail(MOEWE_E_DEVICE, "moewe_device_open: pin cannot keep thread %d on CPU %d (%s)", i + 1,
                              places[i + 1].cpu, strerror(error));
        }
    }
    /* A thread that is still starting may allocate (its runtime does); after open nothing must. */
    while (atomic_load(&t->awake) < n - 1) sched_yield();
    *out = t;
    return MOEWE_OK;
}
