/* cpu_codes.c - where plain matrices keep codes and scales: a row's codes as bytes, a block's scale as f32.  GGUF's
 * blocks are read here and nowhere else in the library.  Source: the block structs of GGUF (ggml-common.h), the
 * microscaling (OCP MX) and FP8 (OFP8) specifications. */
#include "cpu_codes.h"

static uint16_t half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

/* ---- codes --------------------------------------------------------------------------- */

/* Elements from on of a Q4_K block: 32 low halves, then the 32 high halves of the same bytes, four times. */
static void q4_k_codes(const uint8_t *block, int32_t from, int32_t n, uint8_t *codes)
{
    const uint8_t *q = block + 16;
    for (int32_t i = from; i < from + n; i++) *codes++ = (uint8_t)(q[i / 64 * 32 + i % 32] >> (i % 64 < 32 ? 0 : 4) & 15);
}

/* Of a Q6_K block, as signed bytes: low halves in ql, two more bits in qh, minus 32. */
static void q6_k_codes(const uint8_t *block, int32_t from, int32_t n, uint8_t *codes)
{
    const uint8_t *ql = block, *qh = block + 128;
    for (int32_t i = from; i < from + n; i++) {
        int32_t half = i / 128, in = i % 128, quarter = in / 32, l = in % 32;
        int32_t low = ql[half * 64 + l + (quarter & 1) * 32] >> (quarter < 2 ? 0 : 4) & 15;
        int32_t high = qh[half * 32 + l] >> (2 * quarter) & 3;
        *codes++ = (uint8_t)((low | high << 4) - 32);
    }
}

void cpu_row_codes(const cpu_panel *p, int32_t row, int32_t at, int32_t k, uint8_t *codes)
{
    const uint8_t *from = p->data + (int64_t)row * p->row_stride;
    switch (p->format.source) {
    case MOEWE_DTYPE_E2M1:
    case MOEWE_DTYPE_I4:
        for (int32_t i = 0; i < k; i++) codes[i] = from[(at + i) / 2] >> ((at + i) % 2 ? 4 : 0) & 15;
        break;
    case MOEWE_DTYPE_Q8_0:
        for (int32_t i = 0; i < k; i++) codes[i] = from[(int64_t)((at + i) / 32) * 34 + 2 + (at + i) % 32];
        break;
    case MOEWE_DTYPE_Q4_0:
        for (int32_t i = 0; i < k; i++) {
            int32_t in = (at + i) % 32;
            codes[i] = from[(int64_t)((at + i) / 32) * 18 + 2 + in % 16] >> (in < 16 ? 0 : 4) & 15;
        }
        break;
    case MOEWE_DTYPE_Q4_K:
    case MOEWE_DTYPE_Q6_K:
        for (int32_t i = 0; i < k;) {
            int32_t in = (at + i) % 256, n = 256 - in < k - i ? 256 - in : k - i;
            const uint8_t *b = from + (int64_t)((at + i) / 256) * (p->format.source == MOEWE_DTYPE_Q4_K ? 144 : 210);
            if (p->format.source == MOEWE_DTYPE_Q4_K)
                q4_k_codes(b, in, n, codes + i);
            else
                q6_k_codes(b, in, n, codes + i);
            i += n;
        }
        break;
    default: /* E4M3 and I8: a byte each */
        for (int32_t i = 0; i < k; i++) codes[i] = from[(int64_t)(at + i) * p->col_stride];
    }
}

/* ---- scales ------------------------------------------------------------------------------ */

uint32_t cpu_scale_bytes(int32_t scales)
{
    switch (scales) {
    case CPU_SCALES_NONE: return 0;
    case CPU_SCALES_F32: return 4;
    case CPU_SCALES_BF16:
    case CPU_SCALES_F16:
    case CPU_SCALES_K4: return 2;
    default: return 1;
    }
}

uint32_t cpu_outer_bytes(int32_t scales)
{
    return scales == CPU_SCALES_K4 ? 4 : scales == CPU_SCALES_K6 ? 2 : 0;
}

/* Scale i (0 to 7) and minimum of a Q4_K block, 6 bits each in 12 bytes. */
static void q4_k_scale(const uint8_t *block, int32_t i, uint8_t *to)
{
    const uint8_t *s = block + 4;
    if (i < 4) {
        to[0] = s[i] & 63;
        to[1] = s[i + 4] & 63;
    } else {
        to[0] = (uint8_t)((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
        to[1] = (uint8_t)(s[i + 4] >> 4 | (s[i] >> 6) << 4);
    }
}

void cpu_scale_at(const cpu_panel *p, int32_t row, int32_t b, uint8_t *to)
{
    const uint8_t *from = p->data + (int64_t)row * p->row_stride;
    switch (p->format.source) {
    case MOEWE_DTYPE_Q8_0: memcpy(to, from + (int64_t)b * 34, 2); break;
    case MOEWE_DTYPE_Q4_0: memcpy(to, from + (int64_t)b * 18, 2); break;
    case MOEWE_DTYPE_Q4_K: q4_k_scale(from + (int64_t)(b / 8) * 144, b % 8, to); break;
    case MOEWE_DTYPE_Q6_K: *to = from[(int64_t)(b / 16) * 210 + 192 + b % 16]; break;
    default:
        memcpy(to, p->scales + (int64_t)((p->first_row + row) / p->scale_rows) * p->scale_row_stride +
                       (int64_t)b * p->scale_col_stride, cpu_scale_bytes(p->format.scales));
    }
}

void cpu_outer_at(const cpu_panel *p, int32_t row, int32_t b, uint16_t *to)
{
    const uint8_t *from = p->data + (int64_t)row * p->row_stride;
    if (p->format.source == MOEWE_DTYPE_Q4_K) {
        to[0] = half_at(from + (int64_t)b * 144);
        to[1] = half_at(from + (int64_t)b * 144 + 2);
    } else {
        to[0] = half_at(from + (int64_t)b * 210 + 208);
    }
}
