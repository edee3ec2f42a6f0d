/* clock.h - seconds of a clock that only goes forward. */
#ifndef MOEWE_BENCH_CLOCK_H
#define MOEWE_BENCH_CLOCK_H

#include <time.h>

static inline double bench_seconds(void)
{
    struct timespec t = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
