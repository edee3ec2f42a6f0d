/* kernels_avx512.c - AVX-512 without BF16 and VNNI: products in f32, and AVX2's for whole-number weights. */
#include "strips.h"

#define CPU_LEVEL cpu_kernels_avx512
#include "../avx2/tile_maddubs.h"

#include "../kernels_body.h"

CPU_KERNELS(CPU_LEVEL);
