/* peaks_avx512.c - f32 multiply-add, bf16 pairs and int8 fours in ZMM registers.  In assembly: see peaks_avx2.c. */
#include "peaks.h"

enum { CHAINS = 24 };

#define CLEAR(n) "vpxord %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n\t"
#define FMA(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n\t"
#define BF16(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n\t"
#define INT8(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n\t"
#define EACH(f)                                                                                                        \
    f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15) f(16) f(17) f(18) f(19) f(20) \
        f(21) f(22) f(23)

/* first and second fill 32 bits each of the operands. */
#define LOOP(f, rounds, first, second)                                                                                 \
    __asm__ volatile("vpbroadcastd %1, %%zmm30\n\tvpbroadcastd %2, %%zmm31\n\t" EACH(CLEAR)                            \
                     "1:\n\t" EACH(f) "dec %0\n\tjnz 1b\n\tvzeroupper"                                                 \
                     : "+r"(rounds)                                                                                    \
                     : "m"(first), "m"(second)                                                                         \
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",  \
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",       \
                       "xmm21", "xmm22", "xmm23", "xmm30", "xmm31")

double bench_fma_avx512(int64_t rounds)
{
    static const float operands[2] = {0.5f, 1.25f};
    LOOP(FMA, rounds, operands[0], operands[1]);
    return CHAINS * 16 * 2;
}

double bench_bf16_avx512(int64_t rounds)
{
    static const uint32_t operands[2] = {0x3f003f00, 0x3c013c01}; /* 0.5 and a little more than 2^-7 */
    LOOP(BF16, rounds, operands[0], operands[1]);
    return CHAINS * 32 * 2;
}

double bench_int8_avx512(int64_t rounds)
{
    static const uint32_t operands[2] = {0x03020103, 0xfb04fd02};
    LOOP(INT8, rounds, operands[0], operands[1]);
    return CHAINS * 64 * 2;
}
