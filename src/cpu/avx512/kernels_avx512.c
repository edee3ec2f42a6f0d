/* kernels_avx512.c - AVX-512 without BF16: every product in f32. */
#include "strips.h"

#include "../kernels_body.h"

CPU_KERNELS(cpu_kernels_avx512);
