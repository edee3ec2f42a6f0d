/* peaks_avx2.c - f32 fused multiply-add in YMM registers.  In assembly, because a compiler that spills a sum measures
 * the cache. */
#include "peaks.h"

/* More chains than latency times instructions a cycle, so that none waits for itself. */
enum { CHAINS = 12 };

#define CLEAR(n) "vxorps %%ymm" #n ", %%ymm" #n ", %%ymm" #n "\n\t"
#define FMA(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n\t"
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)

double bench_fma_avx2(int64_t rounds)
{
    static const float operands[2] = {0.5f, 1.25f};
    __asm__ volatile("vbroadcastss %1, %%ymm14\n\tvbroadcastss %2, %%ymm15\n\t" EACH(CLEAR)
                     "1:\n\t" EACH(FMA) "dec %0\n\tjnz 1b\n\tvzeroupper"
                     : "+r"(rounds)
                     : "m"(operands[0]), "m"(operands[1])
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm14", "xmm15");
    return CHAINS * 8 * 2;
}
