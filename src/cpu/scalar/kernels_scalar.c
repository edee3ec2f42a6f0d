/* kernels_scalar.c - the level that runs anywhere: plain loops, multiply then add.  Fills every entry
 * of the table. */
#include "../cpu.h"

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
