/* threads.h - a fixed set of threads that sleep between jobs and share the tasks of one.  Nobody waits
 * for a thread that has not started on a task: one that lost its core, or is not awake yet, holds up
 * nothing.  Nobody waits for the set either: a caller that finds it busy works alone. */
#ifndef MOEWE_CPU_THREADS_H
#define MOEWE_CPU_THREADS_H

#include "../backend.h"
#include "topology.h"

typedef struct cpu_threads cpu_threads;

/* n threads in all, the caller of a job being one of them.  With places, n of them, thread i stays on the i-th's
 * CPU, but for the caller, whose thread is not ours: the first CPU is left to it. */
moewe_status cpu_threads_open(const moewe_allocator *a, int32_t n, const cpu_place *places, cpu_threads **out);
void         cpu_threads_close(cpu_threads *t);

/* Work in phases.  advance moves to the next phase and returns how many tasks it has, 0 at the end; it
 * runs alone, after every task of the phase before.  work does task i of the present phase as thread
 * number `thread`, below n. */
typedef struct cpu_job {
    int32_t (*advance)(void *state);
    void (*work)(void *state, int32_t i, int32_t thread);
    void *state;
} cpu_job;

/* Runs all phases and returns.  t NULL or busy: on the calling thread alone, as thread 0. */
void cpu_threads_run(cpu_threads *t, const cpu_job *job);

#endif
