/* topology.h - the CPUs that the calling thread may use, with the core and the memory node of each, as the kernel's own
 * lists under /sys have them.  It must never change what a thread may use: threads.c does, for its own threads. */
#ifndef MOEWE_CPU_TOPOLOGY_H
#define MOEWE_CPU_TOPOLOGY_H

#include <stddef.h>
#include <stdint.h>

/* A set of numbers of CPUs or nodes, as system calls take it: as many bits as the kernel can be built for. */
enum { CPU_SET_BITS = 8192, CPU_WORD_BITS = 8 * sizeof(unsigned long), CPU_SET_WORDS = CPU_SET_BITS / CPU_WORD_BITS };
typedef struct cpu_numbers { unsigned long words[CPU_SET_WORDS]; } cpu_numbers;

static inline void cpu_numbers_add(cpu_numbers *s, int32_t i)
{
    s->words[i / CPU_WORD_BITS] |= 1ul << i % CPU_WORD_BITS;
}

static inline int cpu_numbers_has(const cpu_numbers *s, int32_t i)
{
    return (int)(s->words[i / CPU_WORD_BITS] >> i % CPU_WORD_BITS & 1);
}

int32_t cpu_numbers_count(const cpu_numbers *s);

/* What the calling thread, and so the process unless it chose otherwise, may use.  0, or the error number. */
int cpu_allowed(cpu_numbers *out);

typedef struct cpu_place {
    int32_t cpu, core, node; /* a core goes by the least number of its CPUs */
    int32_t of_core;         /* how many of the places on the core have lesser numbers, */
    int32_t of_node;         /* and on the node with the same of_core */
} cpu_place;

#define CPU_TOPOLOGY_ROOT "/sys/devices/system"

/* The places of the allowed CPUs in the order in which threads take them: one CPU of every core before the second of
 * any, and the nodes in turn.  CPUs that no node has are not running, and left out.  Without node lists there is node
 * 0, and without lists of siblings each CPU is a core.  places has room for all of allowed.  Returns how many there
 * are; -1, and in why which file is wrong, or that no CPU is left. */
int32_t cpu_places(const char *root, const cpu_numbers *allowed, cpu_place *places, char *why, size_t cap);

/* The nodes of n places; returns how many. */
int32_t cpu_nodes(const cpu_place *places, int32_t n, cpu_numbers *out);

#endif
