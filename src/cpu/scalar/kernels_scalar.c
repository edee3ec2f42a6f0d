/* kernels_scalar.c - the level that runs anywhere: plain loops, multiply then add.  Fills every entry
 * of the table. */
#include <math.h>

#include "../rounded.h"

typedef float (*element_fn)(const void *panel, int64_t index);

static float element_f32(const void *panel, int64_t i);
static float element_bf16(const void *panel, int64_t i);
static float element_f16(const void *panel, int64_t i);

/* width is a constant in each caller below, so that the compiler keeps acc in registers. */
static inline __attribute__((always_inline)) void row_block(const float *x, const void *w, element_fn element, int32_t width,
                                                            int32_t step, int32_t k, float *c, int add)
{
    float acc[CPU_LANES];
    for (int32_t j0 = 0; j0 < width; j0 += CPU_LANES) {
        for (int j = 0; j < CPU_LANES; j++) acc[j] = 0.0f;
        for (int32_t i = 0; i < k; i++)
            for (int j = 0; j < CPU_LANES; j++) {
                int64_t column = j0 + j;
                int64_t index = step == 2 ? ((int64_t)(i / 2) * width + column) * 2 + (i & 1) : (int64_t)i * width + column;
                acc[j] += x[i] * element(w, index);
            }
        for (int j = 0; j < CPU_LANES; j++) c[j0 + j] = add ? c[j0 + j] + acc[j] : acc[j];
    }
}

#define BLOCK(type, step)                                                                                              \
    static void block_##type(const float *xb, int32_t rows, const void *w, int32_t width, int32_t k, float *c, int add) \
    {                                                                                                                  \
        for (int32_t r = 0; r < rows; r++)                                                                             \
            row_block(xb + r * CPU_BLOCK, w, element_##type, width, step, k, c + r * CPU_COLS, add);                   \
    }

BLOCK(f32, 1)
BLOCK(bf16, 2)
BLOCK(f16, 1)

/* ---- whole-number weights ------------------------------------------------------------ */

static inline int32_t code_value(int32_t values, uint32_t c)
{
    static const int8_t e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    switch (values) {
    case CPU_I8: return (int8_t)c;
    case CPU_E2M1: return e2m1[c];
    case CPU_I4: return (int32_t)c - 8;
    default: return (int32_t)c;
    }
}

/* k K's of all columns in the order of rounded rows: out[k][width]. */
static void decode_codes(int32_t values, const uint8_t *w, int32_t width, int32_t k, int8_t *out)
{
    int32_t nibbles = values != CPU_I8;
    for (int32_t i = 0; i < k; i++)
        for (int32_t j = 0; j < width; j++) {
            int32_t at = nibbles ? i / 8 : i / 4, byte = w[(at * width + j) * 4 + i % 4];
            int32_t code = !nibbles ? byte : i % 8 < 4 ? byte & 15 : byte >> 4;
            out[i * width + j] = (int8_t)code_value(values, (uint32_t)code);
        }
}

/* Chain i of a row, added to c. */
static void add_chain(const int8_t *w, const int8_t *q, int32_t width, int32_t chain, const float *scale, float x_scale,
                      const float *min, float x_sum, float *c)
{
    int32_t sum[CPU_COLS] = {0};
    for (int32_t k = 0; k < chain; k++)
        for (int32_t j = 0; j < width; j++) sum[j] += w[k * width + j] * q[k];
    for (int32_t j = 0; j < width; j++) c[j] = fmaf((float)sum[j], scale[j] * x_scale, c[j]);
    if (min)
        for (int32_t j = 0; j < width; j++) c[j] = fmaf(-min[j], x_sum, c[j]);
}

static void tile_ints(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panels, int32_t n_panels,
                      int32_t k, float *const *c)
{
    int8_t q[CPU_ROWS * INT_SPAN], codes[INT_SPAN * CPU_COLS];
    _Alignas(64) uint8_t room[INT_SPAN * CPU_COLS];
    float scale[INT_SPAN / 16 * CPU_COLS], min[INT_SPAN / 16 * CPU_COLS];
    float x_scale[CPU_ROWS * INT_STEPS], x_sum[CPU_ROWS * INT_STEPS];
    const int_rows to = {q, x_scale, x_sum, NULL};
    const cpu_format *f = &panels[0].format;
    int32_t chain = cpu_chain(f);
    for (int32_t at = 0; at < k; at += INT_SPAN) {
        int32_t n = k - at < INT_SPAN ? k - at : INT_SPAN, padded = (n + CPU_STEP - 1) / CPU_STEP * CPU_STEP;
        int32_t chains = (n + chain - 1) / chain; /* none of padding alone: it has no scales */
        take_rows(x, x_dtype, rows, k, at, n, f, 0, &to);
        for (int32_t p = 0; p < n_panels; p++) {
            int32_t width = cpu_padded(panels[p].cols);
            const uint8_t *w = room;
            if (panels[p].packed)
                w = panels[p].data + cpu_element_bytes(f, width, at);
            else
                cpu_pack_block(&panels[p], width, at, n, room);
            decode_codes(f->values, w, width, padded, codes);
            chain_scales(&cpu_kernels_scalar, &panels[p], width, k, at, chain, chains, scale, min);
            for (int32_t r = 0; r < rows; r++) {
                float *cr = c[p] + r * CPU_COLS;
                if (!at) memset(cr, 0, CPU_COLS * sizeof *cr);
                for (int32_t i = 0; i < chains; i++) {
                    int32_t b = r * INT_STEPS + i * chain / CPU_STEP;
                    add_chain(codes + i * chain * width, q + r * INT_SPAN + i * chain, width, chain, scale + i * CPU_COLS,
                              x_scale[b], f->scales == CPU_SCALES_K4 ? min + i * CPU_COLS : NULL, x_sum[b], cr);
                }
            }
        }
    }
}

/* ---- the table --------------------------------------------------------------------- */

#include "../kernels_body.h"

static float element_f32(const void *panel, int64_t i)
{
    return ((const float *)panel)[i];
}

static float element_bf16(const void *panel, int64_t i)
{
    return bf16_f32(((const uint16_t *)panel)[i]);
}

static float element_f16(const void *panel, int64_t i)
{
    return f16_f32(((const uint16_t *)panel)[i]);
}

CPU_KERNELS(cpu_kernels_scalar);
