/* machine.h - what this machine is, as far as a result depends on it. */
#ifndef MOEWE_BENCH_MACHINE_H
#define MOEWE_BENCH_MACHINE_H

#include <stdint.h>

typedef struct bench_machine {
    char     cpu[128];   /* "model name" of /proc/cpuinfo, or "unknown" */
    int32_t  cores;      /* that this process may use */
    uint64_t memory;     /* bytes; 0 = unknown */
} bench_machine;

bench_machine bench_machine_get(void);

/* Bytes that could be taken now: the least of what the machine has and what this process's control groups leave;
 * 0 = unknown. */
uint64_t bench_memory_available(void);

#endif
