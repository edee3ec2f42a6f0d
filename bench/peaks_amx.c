/* peaks_amx.c - tile products whose operands stay in the tiles: two by two tiles of A and B into four of C. */
#include "peaks.h"

#include <immintrin.h>

enum { ROWS = 16, ROW_BYTES = 64, UNROLL = 4 };

/* As LDTILECFG reads it: palette 1, every tile 16 rows of 64 bytes.  Static, because gcc 12 may drop the stores to a
 * local one that only the instruction reads. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = {ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES},
    .rows = {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS},
};

/* bf16 2^-7 and a little more, or small int8: zeros would be cheaper for the power budget than real operands. */
static void load_operands(void)
{
    static const uint16_t ordinary[2] = {0x3c01, 0xbc03};
    uint16_t tile[ROWS * ROW_BYTES / 2];
    for (int i = 0; i < ROWS * ROW_BYTES / 2; i++) tile[i] = ordinary[i & 1];
    __asm__ volatile("" : : "r"(tile) : "memory"); /* likewise */
    _tile_loadconfig(&tile_config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, tile, ROW_BYTES);
    _tile_loadd(5, tile, ROW_BYTES);
    _tile_loadd(6, tile, ROW_BYTES);
    _tile_loadd(7, tile, ROW_BYTES);
}

double bench_bf16_amx(int64_t rounds)
{
    load_operands();
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < UNROLL; i++) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_release();
    return UNROLL * 4 * 16 * 16 * 32 * 2;
}

double bench_int8_amx(int64_t rounds)
{
    load_operands();
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < UNROLL; i++) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_release();
    return UNROLL * 4 * 16 * 16 * 64 * 2;
}
