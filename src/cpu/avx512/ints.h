/* ints.h - whole-number codes as bytes: what VNNI and AMX share. */
#ifndef MOEWE_CPU_AVX512_INTS_H
#define MOEWE_CPU_AVX512_INTS_H

#include <immintrin.h>

#include "../ahead.h"
#include "../rounded.h"

/* Whole numbers that codes of nibbles stand for, plus offset, four times over: vpermb takes six bits of a byte, and
 * so needs none of the others cleared. */
static inline __m512i int_table(int32_t values, int8_t offset)
{
    const __m128i e2m1 = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i u4 = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m128i t = values == CPU_E2M1 ? e2m1 : values == CPU_I4 ? _mm_sub_epi8(u4, _mm_set1_epi8(8)) : u4;
    return _mm512_broadcast_i32x4(_mm_add_epi8(t, _mm_set1_epi8(offset)));
}

/* Bytes for the low and for the high nibbles of d. */
static inline __m512i int_low(__m512i table, __m512i d)
{
    return _mm512_permutexvar_epi8(d, table);
}

static inline __m512i int_high(__m512i table, __m512i d)
{
    return _mm512_permutexvar_epi8(_mm512_srli_epi16(d, 4), table);
}

/* k K's (a multiple of 8) of nibbles to bytes: out[k / 4][width][4]. */
static inline void int_decode(__m512i table, const uint8_t *w, int32_t width, int32_t k, uint8_t *out)
{
    for (int32_t i = 0; i < k; i += 8, w += width * 4, out += width * 8)
        for (int32_t j = 0; j < width * 4; j += 64) {
            __m512i d = _mm512_loadu_si512(w + j);
            _mm512_store_si512(out + j, int_low(table, d));
            _mm512_store_si512(out + width * 4 + j, int_high(table, d));
        }
}

#endif
