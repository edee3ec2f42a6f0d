/* dtype.c - the table of element types: names and sizes.  What their bits mean is the back ends' to know. */
#include "core.h"

typedef struct dtype_row { const char *name; int32_t elements; uint32_t bytes; } dtype_row; /* bytes of so many */

static const dtype_row rows[] = {
    [MOEWE_DTYPE_F32] = {"f32", 1, 4},     [MOEWE_DTYPE_F16] = {"f16", 1, 2},      [MOEWE_DTYPE_BF16] = {"bf16", 1, 2},
    [MOEWE_DTYPE_E4M3] = {"e4m3", 1, 1},   [MOEWE_DTYPE_E2M1] = {"e2m1", 2, 1},    [MOEWE_DTYPE_I8] = {"i8", 1, 1},
    [MOEWE_DTYPE_I4] = {"i4", 2, 1},       [MOEWE_DTYPE_Q8_0] = {"q8_0", 32, 34},  [MOEWE_DTYPE_Q4_0] = {"q4_0", 32, 18},
    [MOEWE_DTYPE_Q4_K] = {"q4_k", 256, 144}, [MOEWE_DTYPE_Q6_K] = {"q6_k", 256, 210}, [MOEWE_DTYPE_E8M0] = {"e8m0", 1, 1},
};

static const dtype_row *row_of(int32_t dtype)
{
    static const dtype_row unknown = {"?", 0, 0};
    return dtype > 0 && dtype < (int32_t)(sizeof rows / sizeof *rows) ? &rows[dtype] : &unknown;
}

MOEWE_API const char *moewe_dtype_name(int32_t dtype)
{
    return row_of(dtype)->name;
}

MOEWE_API uint32_t moewe_dtype_bytes(int32_t dtype)
{
    return row_of(dtype)->elements == 1 ? row_of(dtype)->bytes : 0;
}

MOEWE_API uint64_t moewe_dtype_row_bytes(int32_t dtype, int64_t n)
{
    const dtype_row *row = row_of(dtype);
    if (!row->elements || n < 0 || n % row->elements) return 0;
    return (uint64_t)(n / row->elements) * row->bytes;
}
