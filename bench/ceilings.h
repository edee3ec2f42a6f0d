/* ceilings.h - what the machine gives at this minute: memory read bandwidth and peak arithmetic, on a device's own
 * threads. */
#ifndef MOEWE_BENCH_CEILINGS_H
#define MOEWE_BENCH_CEILINGS_H

#include <moewe.h>

#include "../formats/error.h"
#include "peaks.h"

#define BENCH_READ_BYTES ((uint64_t)4 << 30) /* far more than any cache */

typedef struct bench_reader {
    const moewe_device *dev;
    moewe_span mem; /* in 2 MiB pages where the system has them */
} bench_reader;

/* Takes bytes (a multiple of 8 MiB, at least one), or a quarter of what is free when that is less. */
int  bench_reader_open(bench_reader *r, const moewe_device *dev, uint64_t bytes, fmt_error *e);
void bench_reader_close(bench_reader *r);

/* Bytes a second; the better of two access patterns: one stream a thread, and four with prefetches. */
double bench_reader_measure(const bench_reader *r);

/* Operations a second of a loop on all threads; 0 where it cannot run. */
double bench_peak_measure(const moewe_device *dev, bench_peak p);

/* The fastest loop here that could serve layers whose weights have this dtype, found by trying; BENCH_PEAK_COUNT when
 * there is none. */
bench_peak bench_peak_of_dtype(const moewe_device *dev, int32_t w_dtype);

#endif
