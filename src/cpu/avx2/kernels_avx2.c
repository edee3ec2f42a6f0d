/* kernels_avx2.c - AVX2 and FMA: 4 rows by 16 columns of results in 8 of the 16 registers. */
#include <immintrin.h>

#include "../cpu.h"

enum { ROWS = 4 };

/* 16 columns of one k. */
typedef struct columns { __m256 lo, hi; } columns;

static inline columns load_f32(const void *w, int64_t i)
{
    const float *p = (const float *)w + i;
    return (columns){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline columns load_f16(const void *w, int64_t i)
{
    const __m128i *p = (const __m128i *)((const uint16_t *)w + i);
    return (columns){_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p + 1))};
}

/* Columns of an even k are the low halves of the pairs, of an odd k the high ones. */
static inline columns load_pairs(const void *w, int64_t i, int odd)
{
    const __m256i *p = (const __m256i *)((const uint32_t *)w + i);
    __m256i lo = _mm256_loadu_si256(p), hi = _mm256_loadu_si256(p + 1);
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    if (odd)
        return (columns){_mm256_castsi256_ps(_mm256_and_si256(lo, high)), _mm256_castsi256_ps(_mm256_and_si256(hi, high))};
    return (columns){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

#define STEP(cols, k)                                                                                                  \
    do {                                                                                                               \
        columns w_ = (cols);                                                                                           \
        _Pragma("GCC unroll 4") for (int r = 0; r < n; r++)                                                            \
        {                                                                                                              \
            __m256 x_ = _mm256_broadcast_ss(xb + r * CPU_BLOCK + (k));                                                 \
            lo[r] = _mm256_fmadd_ps(x_, w_.lo, lo[r]);                                                                 \
            hi[r] = _mm256_fmadd_ps(x_, w_.hi, hi[r]);                                                                 \
        }                                                                                                              \
    } while (0)

/* n rows, 1 to ROWS, a constant in every call. */
#define STRIP(type, WALK)                                                                                              \
    static inline __attribute__((always_inline)) void strip_##type(const float *xb, const int n, const void *w,        \
                                                                   int32_t width, int32_t k, float *c, int add)        \
    {                                                                                                                  \
        for (int32_t j = 0; j < width; j += CPU_LANES) {                                                               \
            __m256 lo[ROWS], hi[ROWS];                                                                                 \
            for (int r = 0; r < n; r++) lo[r] = hi[r] = _mm256_setzero_ps();                                           \
            WALK;                                                                                                      \
            for (int r = 0; r < n; r++) {                                                                              \
                float *to = c + r * CPU_COLS + j;                                                                      \
                if (add) {                                                                                             \
                    lo[r] = _mm256_add_ps(_mm256_loadu_ps(to), lo[r]);                                                 \
                    hi[r] = _mm256_add_ps(_mm256_loadu_ps(to + 8), hi[r]);                                             \
                }                                                                                                      \
                _mm256_storeu_ps(to, lo[r]);                                                                           \
                _mm256_storeu_ps(to + 8, hi[r]);                                                                       \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void block_##type(const float *xb, int32_t rows, const void *w, int32_t width, int32_t k, float *c, int add) \
    {                                                                                                                  \
        for (; rows >= ROWS; rows -= ROWS, xb += ROWS * CPU_BLOCK, c += ROWS * CPU_COLS)                               \
            strip_##type(xb, ROWS, w, width, k, c, add);                                                               \
        switch (rows) {                                                                                                \
        case 3: strip_##type(xb, 3, w, width, k, c, add); break;                                                       \
        case 2: strip_##type(xb, 2, w, width, k, c, add); break;                                                       \
        case 1: strip_##type(xb, 1, w, width, k, c, add); break;                                                       \
        default: break;                                                                                                \
        }                                                                                                              \
    }

STRIP(f32, for (int32_t i = 0; i < k; i++) STEP(load_f32(w, (int64_t)i * width + j), i))
STRIP(f16, for (int32_t i = 0; i < k; i++) STEP(load_f16(w, (int64_t)i * width + j), i))
STRIP(bf16, for (int32_t i = 0; i < k; i += 2) {
    int64_t pair = (int64_t)(i / 2) * width + j;
    STEP(load_pairs(w, pair, 0), i);
    STEP(load_pairs(w, pair, 1), i + 1);
})

#include "../kernels_body.h"

CPU_KERNELS(cpu_kernels_avx2);
