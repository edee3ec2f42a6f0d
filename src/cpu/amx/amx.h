/* amx.h - what the AMX kernels share: tile shapes. */
#ifndef MOEWE_CPU_AMX_H
#define MOEWE_CPU_AMX_H

#include "../avx512/ints.h"

/* Tiles 0 to 3 are results, 4 is x, 5 and 6 are weights in turn.  Rows of a tile go in bands. */
enum { AMX_ROWS = 64, AMX_BAND = 16, AMX_COLS = 16, AMX_FEW = 6 };

typedef struct amx_config {
    uint8_t  palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
} amx_config;

/* Bands of so many rows of x, and so many bytes of each an instruction. */
static inline void amx_configure(int32_t rows, int32_t bytes)
{
    amx_config c = {.palette = 1};
    for (int i = 0; i < 7; i++) {
        c.rows[i] = (uint8_t)(i < 5 ? rows : bytes / 4);
        c.row_bytes[i] = (uint16_t)(i == 4 ? bytes : 64);
    }
    __asm__ volatile("" : : "g"(&c) : "memory"); /* gcc 12 knows of no read of c by the next */
    _tile_loadconfig(&c);
}

/* A tile of whole numbers (cpu_ints) on the panels, all of one format. */
void amx_tile_ints(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panels, int32_t n_panels, int32_t k,
                   float *const *c);

#define UNROLL16 _Pragma("GCC unroll 16")

#endif
