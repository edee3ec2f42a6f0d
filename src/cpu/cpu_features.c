/* cpu_features.c - which levels this CPU and this OS allow: CPUID for the instructions, XCR0 for the
 * registers that the OS saves; tile registers must be asked for, once a process. */
#include "cpu.h"

#include <stdio.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM and its feature, of arch_prctl */

typedef struct feature { const char *name; int has; } feature;

static uint32_t xcr0(void)
{
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static int first_missing(const feature *f, int n, char *why, size_t cap)
{
    for (int i = 0; i < n; i++)
        if (!f[i].has) {
            snprintf(why, cap, "no: %s is missing", f[i].name);
            return 1;
        }
    return 0;
}

static int may_use_tiles(char *why, size_t cap)
{
    if (!syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA)) return 1;
    snprintf(why, cap, "no: the system refuses tile registers (arch_prctl)");
    return 0;
}

int cpu_allows(cpu_level level, char *why, size_t cap)
{
    if (level == CPU_SCALAR) return 1;
    uint32_t a, b = 0, c1 = 0, d, b7 = 0, a71 = 0, c = 0, c71, d7 = 0;
    __get_cpuid(1, &a, &b, &c1, &d);
    uint32_t saved = c1 & bit_OSXSAVE ? xcr0() : 0;
    b = 0;
    a = 0;
    if (__get_cpuid_count(7, 0, &a, &b7, &c, &d7) && a >= 1) __get_cpuid_count(7, 1, &a71, &b, &c71, &d);

    const feature avx2[] = {
        {"saving of YMM registers by the OS (XCR0)", (saved & 0x6) == 0x6},
        {"AVX2", (b7 & bit_AVX2) != 0},
        {"FMA", (c1 & bit_FMA) != 0},
        {"F16C", (c1 & bit_F16C) != 0},
    };
    const feature avx512[] = {
        {"saving of ZMM registers by the OS (XCR0)", (saved & 0xe6) == 0xe6},
        {"AVX512F", (b7 & bit_AVX512F) != 0},
        {"AVX512BW", (b7 & bit_AVX512BW) != 0},
        {"AVX512DQ", (b7 & bit_AVX512DQ) != 0},
        {"AVX512VL", (b7 & bit_AVX512VL) != 0},
    };
    const feature bf16[] = {
        {"AVX512_BF16", (a71 & 1u << 5) != 0},
        {"AVX512_VNNI", (c & bit_AVX512VNNI) != 0},
        {"AVX512_VBMI", (c & bit_AVX512VBMI) != 0},
    };
    const feature amx[] = {
        {"AMX_TILE", (d7 & 1u << 24) != 0},
        {"AMX_BF16", (d7 & 1u << 22) != 0},
        {"AMX_INT8", (d7 & 1u << 25) != 0},
        {"saving of tile registers by the OS (XCR0)", (saved & 0x60000) == 0x60000},
    };
    if (first_missing(avx2, 4, why, cap)) return 0;
    if (level >= CPU_AVX512 && first_missing(avx512, 5, why, cap)) return 0;
    if (level >= CPU_AVX512BF16 && first_missing(bf16, 3, why, cap)) return 0;
    return level < CPU_AMX || (!first_missing(amx, 4, why, cap) && may_use_tiles(why, cap));
}

#else

int cpu_allows(cpu_level level, char *why, size_t cap)
{
    if (level == CPU_SCALAR) return 1;
    snprintf(why, cap, "no: this is not an x86-64 CPU");
    return 0;
}

#endif
