/* kernels_avx2.c - AVX2 and FMA.  A strip is n rows by m vectors of 8 columns, 8 of the 16
 * registers holding results (with 12, gcc spills): few rows take many columns, so that the chains of additions stay many
 * enough to hide the latency of an FMA.  One chain of fused multiply-adds per result.  Whole-number weights:
 * tile_maddubs.h. */
#include <immintrin.h>

#include "../cpu.h"

enum { ROWS = 4, VECTORS = 8, STEP_COLS = 8 };

static inline __m256 load_f32(const void *w, int64_t i)
{
    return _mm256_loadu_ps((const float *)w + i);
}

static inline __m256 load_f16(const void *w, int64_t i)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)w + i)));
}

/* Columns of an even k are the low halves of the pairs, of an odd k the high ones. */
static inline __m256 load_pairs(const void *w, int64_t i, int odd)
{
    __m256i p = _mm256_loadu_si256((const __m256i *)((const uint32_t *)w + i));
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(p, _mm256_set1_epi32((int)0xffff0000u)) : _mm256_slli_epi32(p, 16));
}

#define UNROLL _Pragma("GCC unroll 8")

#define STEP(load, k)                                                                                                  \
    do {                                                                                                               \
        UNROLL for (int v = 0; v < m; v++)                                                                             \
        {                                                                                                              \
            __m256 w_ = (load);                                                                                        \
            UNROLL for (int r = 0; r < n; r++)                                                                         \
                acc[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(xb + r * CPU_BLOCK + (k)), w_, acc[r][v]);             \
        }                                                                                                              \
    } while (0)

/* n rows by m vectors from column j on; n and m are constant in every call. */
#define STRIP(type, WALK)                                                                                              \
    static inline __attribute__((always_inline)) void strip_##type(const float *xb, const int n, const int m,          \
                                                                   const void *w, int32_t width, int32_t j, int32_t k, \
                                                                   float *c, int add)                                  \
    {                                                                                                                  \
        __m256 acc[ROWS][VECTORS];                                                                                     \
        UNROLL for (int r = 0; r < n; r++)                                                                             \
        UNROLL for (int v = 0; v < m; v++) acc[r][v] = _mm256_setzero_ps();                                            \
        WALK;                                                                                                          \
        UNROLL for (int r = 0; r < n; r++)                                                                             \
        UNROLL for (int v = 0; v < m; v++)                                                                             \
        {                                                                                                              \
            float *to = c + r * CPU_COLS + j + v * STEP_COLS;                                                          \
            if (add) acc[r][v] = _mm256_add_ps(_mm256_loadu_ps(to), acc[r][v]);                                        \
            _mm256_storeu_ps(to, acc[r][v]);                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    /* All columns of n rows: m vectors at a time, then two, since width is a multiple of 16. */                       \
    static inline __attribute__((always_inline)) void rows_##type(const float *xb, const int n, const int m,           \
                                                                  const void *w, int32_t width, int32_t k, float *c,   \
                                                                  int add)                                             \
    {                                                                                                                  \
        int32_t j = 0;                                                                                                 \
        for (; j + m * STEP_COLS <= width; j += m * STEP_COLS) strip_##type(xb, n, m, w, width, j, k, c, add);         \
        for (; j < width; j += 2 * STEP_COLS) strip_##type(xb, n, 2, w, width, j, k, c, add);                          \
    }                                                                                                                  \
    static void block_##type(const float *xb, int32_t rows, const void *w, int32_t width, int32_t k, float *c, int add) \
    {                                                                                                                  \
        for (; rows >= ROWS; rows -= ROWS, xb += ROWS * CPU_BLOCK, c += ROWS * CPU_COLS)                               \
            rows_##type(xb, ROWS, 2, w, width, k, c, add);                                                             \
        switch (rows) {                                                                                                \
        case 3: rows_##type(xb, 3, 2, w, width, k, c, add); break;                                                     \
        case 2: rows_##type(xb, 2, 4, w, width, k, c, add); break;                                                     \
        case 1: rows_##type(xb, 1, 8, w, width, k, c, add); break;                                                     \
        default: break;                                                                                                \
        }                                                                                                              \
    }

STRIP(f32, for (int32_t i = 0; i < k; i++) STEP(load_f32(w, (int64_t)i * width + j + v * STEP_COLS), i))
STRIP(f16, for (int32_t i = 0; i < k; i++) STEP(load_f16(w, (int64_t)i * width + j + v * STEP_COLS), i))
STRIP(bf16, for (int32_t i = 0; i < k; i += 2) {
    int64_t pair = (int64_t)(i / 2) * width + j;
    STEP(load_pairs(w, pair + v * STEP_COLS, 0), i);
    STEP(load_pairs(w, pair + v * STEP_COLS, 1), i + 1);
})

#define CPU_LEVEL cpu_kernels_avx2
#include "tile_maddubs.h"

#include "../kernels_body.h"

CPU_KERNELS(CPU_LEVEL);
