/* weight_format.c - the table of weight formats and the arithmetic of their bytes.  Never reads a config. */
#include "weight_format.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* name, bits of a value, bits of a group's scales, values in a group, rows in a block, stored in whole groups */
static const weight_format formats[] = {
    {"f32", 32, 0, 0, 0, 0},
    {"bf16", 16, 0, 0, 0, 0},
    {"f16", 16, 0, 0, 0, 0},
    {"fp8", 8, 32, 0, 0, 0},              /* one f32 scale a matrix */
    {"fp8_channel", 8, 32, 0, 1, 0},      /* one f32 scale a row */
    {"fp8_block128", 8, 32, 128, 128, 0}, /* one f32 scale for 128 x 128 */
    {"mxfp8", 8, 8, 32, 1, 0},
    {"nvfp4", 4, 8, 16, 1, 0},
    {"mxfp4", 4, 8, 32, 1, 0},
    {"nf4", 4, 32, 64, 1, 0},
    {"int8", 8, 32, 0, 1, 0},
    {"int4", 4, 16, 128, 1, 0}, /* symmetric, groups of 128 */
    {"q8_0", 8, 16, 32, 1, 1},
    {"q4_0", 4, 16, 32, 1, 1},
    {"q4_1", 4, 32, 32, 1, 1},
    {"q5_0", 5, 16, 32, 1, 1},
    {"q5_1", 5, 32, 32, 1, 1},
    {"iq4_nl", 4, 16, 32, 1, 1},
    {"q2_K", 2, 160, 256, 1, 1}, /* 84 bytes for 256 */
    {"q3_K", 3, 112, 256, 1, 1}, /* 110 */
    {"q4_K", 4, 128, 256, 1, 1}, /* 144 */
    {"q5_K", 5, 128, 256, 1, 1}, /* 176 */
    {"q6_K", 6, 144, 256, 1, 1}, /* 210 */
    {"iq4_xs", 4, 64, 256, 1, 1},
};

static const struct {
    const char *alias, *name;
} aliases[] = {
    {"fp16", "f16"},
    {"float16", "f16"},
    {"float32", "f32"},
    {"fp32", "f32"},
    {"bfloat16", "bf16"},
    {"fp8_e4m3", "fp8"},
    {"fp8_block", "fp8_block128"},
    {"fp4", "mxfp4"},
};

const weight_format *weight_format_at(size_t index)
{
    return index < sizeof formats / sizeof *formats ? &formats[index] : NULL;
}

const weight_format *weight_format_find(const char *name, fmt_error *e)
{
    char known[512] = "";
    size_t at = 0;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcasecmp(name, aliases[i].alias) == 0) name = aliases[i].name;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcasecmp(name, formats[i].name) == 0) return &formats[i];
    for (size_t i = 0; i < sizeof formats / sizeof *formats && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", formats[i].name);
    fmt_fail(e, "'%.60s' is no known weight format, expected one of %s", name, known);
    return NULL;
}

/* bits / 8, rounded up; -1 when the product does not fit. */
static int bytes_of(uint64_t n, uint64_t bits, uint64_t *out)
{
    uint64_t all;
    if (__builtin_mul_overflow(n, bits, &all) || __builtin_add_overflow(all, 7, &all)) return -1;
    *out = all / 8;
    return 0;
}

int weight_format_bytes(const weight_format *f, uint64_t count, uint64_t rows, uint64_t cols, weight_bytes *out)
{
    uint64_t matrix, row_groups, blocks, one_values, one_scales = 0;
    if (!rows || !cols || !count) {
        *out = (weight_bytes){0, 0};
        return 0;
    }
    row_groups = f->group ? (cols + f->group - 1) / f->group : 1;
    uint64_t stored = f->whole_groups ? row_groups * f->group : cols;
    blocks = f->block_rows ? (rows + f->block_rows - 1) / f->block_rows : 1;
    if (__builtin_mul_overflow(rows, stored, &matrix) || bytes_of(matrix, f->value_bits, &one_values)) return -1;
    if (f->scale_bits &&
        (__builtin_mul_overflow(blocks, row_groups, &matrix) || bytes_of(matrix, f->scale_bits, &one_scales)))
        return -1;
    return __builtin_mul_overflow(count, one_values, &out->values) ||
                   __builtin_mul_overflow(count, one_scales, &out->scales)
               ? -1
               : 0;
}

uint32_t weight_format_tile(const weight_format *f)
{
    uint32_t along = f->group ? f->group : 1, across = f->block_rows ? f->block_rows : 1;
    return along > across ? along : across;
}

/* ---- as moewe computes with them ------------------------------------------------------------------------------- */

/* Scales beside the elements, in the dtype that their bits and the format suggest. */
static int scaled_view(const weight_format *f, int64_t cols, moewe_matrix *out)
{
    static const float one = 1.0f;
    int floats = f->value_bits == 8 && strncmp(f->name, "int", 3) != 0;
    int e8m0 = strcmp(f->name, "mxfp4") == 0 || strcmp(f->name, "mxfp8") == 0, nv = strcmp(f->name, "nvfp4") == 0;
    int32_t dtype = floats                               ? MOEWE_DTYPE_E4M3
                    : e8m0 || nv                         ? MOEWE_DTYPE_E2M1
                    : strncmp(f->name, "int", 3) != 0    ? 0
                    : f->value_bits == 8                 ? MOEWE_DTYPE_I8
                    : f->value_bits == 4                 ? MOEWE_DTYPE_I4
                                                         : 0;
    if (!dtype || f->whole_groups || !moewe_dtype_row_bytes(dtype, cols)) return -1;
    if (f->group && f->group < cols && f->group != 16 && f->group != 32 && f->group % 64) return -1;
    out->dtype = dtype;
    if (nv || !f->block_rows) out->scale.tensor = &one;
    if (!f->block_rows) return 0;
    out->scale.data = &one;
    out->scale.rows = (int32_t)f->block_rows;
    out->scale.cols = (int32_t)f->group;
    out->scale.dtype = e8m0               ? MOEWE_DTYPE_E8M0
                       : nv               ? MOEWE_DTYPE_E4M3
                       : f->scale_bits == 16 ? MOEWE_DTYPE_BF16
                       : f->scale_bits == 32 ? MOEWE_DTYPE_F32
                                             : 0;
    return out->scale.dtype ? 0 : -1;
}

int weight_format_view(const weight_format *f, int64_t cols, moewe_matrix *out)
{
    static const struct {
        const char *name;
        int32_t dtype;
    } whole[] = {{"f32", MOEWE_DTYPE_F32},   {"bf16", MOEWE_DTYPE_BF16}, {"f16", MOEWE_DTYPE_F16},  {"q8_0", MOEWE_DTYPE_Q8_0},
                 {"q4_0", MOEWE_DTYPE_Q4_0}, {"q4_K", MOEWE_DTYPE_Q4_K}, {"q6_K", MOEWE_DTYPE_Q6_K}};
    memset(out, 0, sizeof *out);
    out->data = f;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(f->name, whole[i].name) == 0) {
            out->dtype = whole[i].dtype;
            return moewe_dtype_row_bytes(out->dtype, cols) ? 0 : -1;
        }
    return scaled_view(f, cols, out);
}
