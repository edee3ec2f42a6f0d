/* values.c - stored numbers to f32.  Owns the conversions that are not worth inlining; never rounds. */
#include "../formats/gguf.h"
#include "internal.h"

float engine_f16_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3FFu;
    if (exponent == 31) return engine_bits_float(sign | 0x7F800000u | fraction << 13);
    if (exponent) return engine_bits_float(sign | (exponent + 112u) << 23 | fraction << 13);
    return engine_bits_float(sign | engine_float_bits((float)fraction * 0x1p-24f));
}

void engine_widen(const void *src, int32_t dtype, float *dst, int64_t n)
{
    const unsigned char *p = src;
    if (dtype == MOEWE_DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    if (gguf_row_floats(dtype, src, n, dst) == 0) return;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, p + 2 * i, sizeof bits);
        dst[i] = dtype == MOEWE_DTYPE_BF16 ? engine_bf16_float(bits) : engine_f16_float(bits);
    }
}
