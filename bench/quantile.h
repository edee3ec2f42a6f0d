/* quantile.h - medians and spreads of times. */
#ifndef MOEWE_BENCH_QUANTILE_H
#define MOEWE_BENCH_QUANTILE_H

#include <stdint.h>
#include <stdlib.h>

static inline int bench_ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void bench_sort(double *values, int32_t n)
{
    qsort(values, (size_t)n, sizeof *values, bench_ascending);
}

/* Between the two nearest of n sorted values. */
static inline double bench_quantile(const double *sorted, int32_t n, double q)
{
    double at = q * (n - 1);
    int32_t low = (int32_t)at;
    if (low >= n - 1) return sorted[n - 1];
    return sorted[low] + (at - low) * (sorted[low + 1] - sorted[low]);
}

#endif
