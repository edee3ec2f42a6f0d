/* cpu_features.c - which levels this CPU and this OS allow: CPUID for the instructions, XCR0 for the
 * registers that the OS saves. */
#include "cpu.h"

#include <stdio.h>

#if defined(__x86_64__)
#include <cpuid.h>

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

int cpu_allows(cpu_level level, char *why, size_t cap)
{
    if (level == CPU_SCALAR) return 1;
    uint32_t a, b = 0, c1 = 0, d, b7 = 0, a71 = 0, c = 0;
    __get_cpuid(1, &a, &b, &c1, &d);
    uint32_t saved = c1 & bit_OSXSAVE ? xcr0() : 0;
    b = 0;
    a = 0;
    if (__get_cpuid_count(7, 0, &a, &b7, &c, &d) && a >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);

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
    const feature bf16[] = {{"AVX512_BF16", (a71 & 1u << 5) != 0}};
    if (first_missing(avx2, 4, why, cap)) return 0;
    if (level >= CPU_AVX512 && first_missing(avx512, 5, why, cap)) return 0;
    return level < CPU_AVX512BF16 || !first_missing(bf16, 1, why, cap);
}

#else

int cpu_allows(cpu_level level, char *why, size_t cap)
{
    if (level == CPU_SCALAR) return 1;
    snprintf(why, cap, "no: this is not an x86-64 CPU");
    return 0;
}

#endif
