/* peaks.h - loops that do nothing but one kind of arithmetic, from registers or tiles: what the CPU could compute at
 * best.  Each level's file has its own -m flags; a loop runs only where bench_peak_here says so. */
#ifndef MOEWE_BENCH_PEAKS_H
#define MOEWE_BENCH_PEAKS_H

#include <stdint.h>

typedef enum bench_peak {
    BENCH_FMA_AVX2, BENCH_FMA_AVX512, BENCH_BF16_AVX512, BENCH_INT8_AVX512, BENCH_BF16_AMX, BENCH_INT8_AMX,
    BENCH_PEAK_COUNT
} bench_peak;

const char *bench_peak_name(bench_peak p); /* "avx512_vdpbf16ps" */
int bench_peak_here(bench_peak p);         /* the CPU has it and the system lets us use it */

/* Runs the loop rounds times on this thread; returns additions and multiplications done. */
double bench_peak_run(bench_peak p, int64_t rounds);

/* The loops; each returns the operations of one round. */
double bench_fma_avx2(int64_t rounds);
double bench_fma_avx512(int64_t rounds);
double bench_bf16_avx512(int64_t rounds);
double bench_int8_avx512(int64_t rounds);
double bench_bf16_amx(int64_t rounds);
double bench_int8_amx(int64_t rounds);

#endif
