/* cpu_codes.h - codes and scales of plain matrices, for packing. */
#ifndef MOEWE_CPU_CODES_H
#define MOEWE_CPU_CODES_H

#include "cpu.h"

/* codes[i] = element at + i of a row of a scaled plain panel: a byte, or the low half of one. */
void cpu_row_codes(const cpu_panel *panel, int32_t row, int32_t at, int32_t k, uint8_t *codes);

/* Bytes of a column's scale of one block, and of what K quants have for CPU_OUTER K's. */
enum { CPU_OUTER = 256 };
uint32_t cpu_scale_bytes(int32_t scales);
uint32_t cpu_outer_bytes(int32_t scales);

/* They, as stored; cpu_scale_at writes cpu_scale_bytes. */
void cpu_scale_at(const cpu_panel *panel, int32_t row, int32_t block, uint8_t *to);
void cpu_outer_at(const cpu_panel *panel, int32_t row, int32_t outer, uint16_t *to);

#endif
