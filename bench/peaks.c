/* peaks.c - which of the loops this CPU and this system run, and the door to them. */
#include "peaks.h"

#include <stddef.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM and its feature, of arch_prctl */
enum { SAVED_YMM = 0x6, SAVED_ZMM = 0xe6, SAVED_TILES = 0x60000 }; /* bits of XCR0 */

typedef struct cpu_bits {
    uint32_t saved; /* XCR0 */
    uint32_t c1, b7, c7, d7, a71;
} cpu_bits;

static cpu_bits read_bits(void)
{
    cpu_bits f = {0};
    uint32_t a = 0, b = 0, c = 0, d = 0, high;
    __get_cpuid(1, &a, &b, &f.c1, &d);
    if (f.c1 & bit_OSXSAVE) __asm__("xgetbv" : "=a"(f.saved), "=d"(high) : "c"(0));
    a = 0;
    if (__get_cpuid_count(7, 0, &a, &f.b7, &f.c7, &f.d7) && a >= 1) __get_cpuid_count(7, 1, &f.a71, &b, &c, &d);
    return f;
}

static int has_avx512(const cpu_bits *f)
{
    return (f->saved & SAVED_ZMM) == SAVED_ZMM && f->b7 & bit_AVX512F;
}

/* Tile registers must be asked for, once a process; asking again is allowed. */
static int has_tiles(const cpu_bits *f)
{
    return (f->saved & SAVED_TILES) == SAVED_TILES && f->d7 & 1u << 24 &&
           !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

int bench_peak_here(bench_peak p)
{
    cpu_bits f = read_bits();
    switch (p) {
    case BENCH_FMA_AVX2: return (f.saved & SAVED_YMM) == SAVED_YMM && f.b7 & bit_AVX2 && f.c1 & bit_FMA;
    case BENCH_FMA_AVX512: return has_avx512(&f);
    case BENCH_BF16_AVX512: return has_avx512(&f) && f.a71 & 1u << 5;
    case BENCH_INT8_AVX512: return has_avx512(&f) && f.c7 & 1u << 11;
    case BENCH_BF16_AMX: return f.d7 & 1u << 22 && has_tiles(&f);
    case BENCH_INT8_AMX: return f.d7 & 1u << 25 && has_tiles(&f);
    default: return 0;
    }
}

static double (*const loops[BENCH_PEAK_COUNT])(int64_t) = {
    bench_fma_avx2, bench_fma_avx512, bench_bf16_avx512, bench_int8_avx512, bench_bf16_amx, bench_int8_amx};

double bench_peak_run(bench_peak p, int64_t rounds)
{
    return loops[p](rounds) * (double)rounds;
}

#else

int bench_peak_here(bench_peak p)
{
    (void)p;
    return 0;
}

double bench_peak_run(bench_peak p, int64_t rounds)
{
    (void)p;
    (void)rounds;
    return 0;
}

#endif

const char *bench_peak_name(bench_peak p)
{
    static const char *const names[] = {"avx2_fma_f32",     "avx512_fma_f32", "avx512_vdpbf16ps",
                                        "avx512_vpdpbusd", "amx_bf16",       "amx_int8"};
    return p < BENCH_PEAK_COUNT ? names[p] : "none";
}
