/* alloc_guard.h - counts every heap allocation of the process, for "allocations after start: 0".
 * Linked into programs and tests only, never into the library.  Works by defining the malloc
 * family over glibc's, or by the sanitizer's hooks when one is built in. */
#ifndef MOEWE_ALLOC_GUARD_H
#define MOEWE_ALLOC_GUARD_H

#include <stdint.h>

int      alloc_guard_works(void);   /* 0 where this build cannot count */
void     alloc_guard_arm(void);     /* count from zero, in all threads */
uint64_t alloc_guard_disarm(void);  /* allocations since arm */

/* The n-th allocation from now on (1 = the next) fails once with NULL; 0 = none.  Returns how many were counted since
 * the last call.  Not available under a sanitizer (returns UINT64_MAX): tests skip then. */
uint64_t alloc_guard_fail_at(uint64_t n);

#endif
