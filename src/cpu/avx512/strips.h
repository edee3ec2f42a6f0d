/* strips.h - the AVX-512 blocks, shared by both AVX-512 levels.  A strip is n rows (1 to 6) by all
 * columns of the panel (16 to 64): up to 24 of the 32 registers hold results, four the weights of one
 * k, and x comes by broadcast from memory.  One chain of fused multiply-adds per result. */
#include <immintrin.h>

#include "../cpu.h"

enum { ROWS = 6, VECTORS = CPU_COLS / CPU_LANES };

static inline __m512 load_f32(const void *w, int64_t i)
{
    return _mm512_loadu_ps((const float *)w + i);
}

static inline __m512 load_f16(const void *w, int64_t i)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)w + i)));
}

/* Columns of an even k are the low halves of the pairs, of an odd k the high ones. */
static inline __m512 load_pairs(const void *w, int64_t i, int odd)
{
    __m512i p = _mm512_loadu_si512((const uint32_t *)w + i);
    return _mm512_castsi512_ps(odd ? _mm512_and_si512(p, _mm512_set1_epi32((int)0xffff0000u)) : _mm512_slli_epi32(p, 16));
}

#define UNROLL _Pragma("GCC unroll 8")

#define STEP(load, k)                                                                                                  \
    do {                                                                                                               \
        __m512 w_[VECTORS];                                                                                            \
        UNROLL for (int v = 0; v < m; v++) w_[v] = (load);                                                             \
        UNROLL for (int r = 0; r < n; r++)                                                                             \
        {                                                                                                              \
            __m512 x_ = _mm512_set1_ps(xb[r * CPU_BLOCK + (k)]);                                                       \
            UNROLL for (int v = 0; v < m; v++) acc[r][v] = _mm512_fmadd_ps(x_, w_[v], acc[r][v]);                      \
        }                                                                                                              \
    } while (0)

/* n rows by m vectors of columns, both constant in every call. */
#define STRIP(type, element, WALK)                                                                                     \
    static inline __attribute__((always_inline)) void strip_##type(const element *xb, const int n, const int m,        \
                                                                   const void *w, int32_t k, float *c, int add)        \
    {                                                                                                                  \
        const int32_t width = m * CPU_LANES;                                                                           \
        __m512 acc[ROWS][VECTORS];                                                                                     \
        UNROLL for (int r = 0; r < n; r++)                                                                             \
        UNROLL for (int v = 0; v < m; v++) acc[r][v] = _mm512_setzero_ps();                                            \
        WALK;                                                                                                          \
        UNROLL for (int r = 0; r < n; r++)                                                                             \
        UNROLL for (int v = 0; v < m; v++)                                                                             \
        {                                                                                                              \
            float *to = c + r * CPU_COLS + v * CPU_LANES;                                                              \
            if (add) acc[r][v] = _mm512_add_ps(_mm512_loadu_ps(to), acc[r][v]);                                        \
            _mm512_storeu_ps(to, acc[r][v]);                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static inline __attribute__((always_inline)) void rows_##type(const element *xb, int32_t rows, const int m,        \
                                                                  const void *w, int32_t k, float *c, int add)         \
    {                                                                                                                  \
        for (; rows >= ROWS; rows -= ROWS, xb += ROWS * CPU_BLOCK, c += ROWS * CPU_COLS)                               \
            strip_##type(xb, ROWS, m, w, k, c, add);                                                                   \
        switch (rows) {                                                                                                \
        case 5: strip_##type(xb, 5, m, w, k, c, add); break;                                                           \
        case 4: strip_##type(xb, 4, m, w, k, c, add); break;                                                           \
        case 3: strip_##type(xb, 3, m, w, k, c, add); break;                                                           \
        case 2: strip_##type(xb, 2, m, w, k, c, add); break;                                                           \
        case 1: strip_##type(xb, 1, m, w, k, c, add); break;                                                           \
        default: break;                                                                                                \
        }                                                                                                              \
    }                                                                                                                  \
    static void block_##type(const element *xb, int32_t rows, const void *w, int32_t width, int32_t k, float *c, int add) \
    {                                                                                                                  \
        switch (width / CPU_LANES) {                                                                                   \
        case 4: rows_##type(xb, rows, 4, w, k, c, add); break;                                                         \
        case 3: rows_##type(xb, rows, 3, w, k, c, add); break;                                                         \
        case 2: rows_##type(xb, rows, 2, w, k, c, add); break;                                                         \
        default: rows_##type(xb, rows, 1, w, k, c, add); break;                                                        \
        }                                                                                                              \
    }

STRIP(f32, float, for (int32_t i = 0; i < k; i++) STEP(load_f32(w, (int64_t)i * width + v * CPU_LANES), i))
STRIP(f16, float, for (int32_t i = 0; i < k; i++) STEP(load_f16(w, (int64_t)i * width + v * CPU_LANES), i))
STRIP(bf16, float, for (int32_t i = 0; i < k; i += 2) {
    int64_t pair = (int64_t)(i / 2) * width;
    STEP(load_pairs(w, pair + v * CPU_LANES, 0), i);
    STEP(load_pairs(w, pair + v * CPU_LANES, 1), i + 1);
})
