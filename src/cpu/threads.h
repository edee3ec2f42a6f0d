/* threads.h - a fixed set of threads that sleep between regions and work together in one.  Nothing
 * waits for it: a caller that finds it busy works alone. */
#ifndef MOEWE_CPU_THREADS_H
#define MOEWE_CPU_THREADS_H

#include "../backend.h"

typedef struct cpu_threads cpu_threads;

/* n threads in all, the caller of a region being one of them. */
moewe_status cpu_threads_open(const moewe_allocator *a, int32_t n, cpu_threads **out);
void         cpu_threads_close(cpu_threads *t);

/* One worker's view of a region. */
typedef struct cpu_region cpu_region;

/* Runs fn(task, region, i) for i in [0, n) at once, on n threads that may meet at barriers; returns
 * when all have.  t NULL or busy: n is 1. */
typedef void (*cpu_region_fn)(void *task, cpu_region *region, int32_t i, int32_t n);
void cpu_threads_run(cpu_threads *t, cpu_region_fn fn, void *task);

/* All n threads wait for each other; the last to arrive calls serial(task) first (NULL: nothing). */
void cpu_region_meet(cpu_region *region, void (*serial)(void *task), void *task);

#endif
