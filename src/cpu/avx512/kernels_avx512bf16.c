/* kernels_avx512bf16.c - AVX-512 with BF16 and VNNI: bf16 rows on bf16 weights through vdpbf16ps, which adds
 * the products of a pair of k at once; whole-number weights by rows in int8 through vpdpbusd; everything else as in
 * kernels_avx512.c. */
#include "strips.h"
#include "tile_vnni.h"

static inline __m512bh load_bf16_pairs(const void *w, int64_t i)
{
    return (__m512bh)_mm512_loadu_si512((const uint32_t *)w + i);
}

static inline __m512bh broadcast_pair(const uint16_t *x)
{
    uint32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32((int)pair);
}

STRIP(pairs, uint16_t, for (int32_t i = 0; i < k; i += 2) {
    __m512bh w_[VECTORS];
    UNROLL for (int v = 0; v < m; v++) w_[v] = load_bf16_pairs(w, (int64_t)(i / 2) * width + v * CPU_LANES);
    UNROLL for (int r = 0; r < n; r++)
    {
        __m512bh x_ = broadcast_pair(xb + r * CPU_BLOCK + i);
        UNROLL for (int v = 0; v < m; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], x_, w_[v]);
    }
})

#define CPU_BF16_PAIRS
#include "../kernels_body.h"

CPU_KERNELS(cpu_kernels_avx512bf16);
