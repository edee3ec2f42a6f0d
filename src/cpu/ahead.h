/* ahead.h - asking for the lines of weights that are read next, a few with every step. */
#ifndef MOEWE_CPU_AHEAD_H
#define MOEWE_CPU_AHEAD_H

#include "cpu.h"

/* From `from` on, lines more with each step. */
typedef struct lines_ahead { const uint8_t *from; int32_t lines; } lines_ahead;

static inline void ask_ahead(const lines_ahead *a, int32_t step)
{
    const uint8_t *p = a->from + (int64_t)step * a->lines * 64;
    for (int32_t i = 0; i < a->lines; i++) __builtin_prefetch(p + i * 64, 0, 3);
}

/* The elements of span K's that are read after those of panel p from column at: of the next panel, or of the first
 * one further on.  from NULL, lines 0: none; else as many lines as they are. */
static inline lines_ahead next_lines(const cpu_panel *panels, int32_t n_panels, int32_t p, int32_t at, int32_t k, int32_t span)
{
    const cpu_panel *next = p + 1 < n_panels ? &panels[p + 1] : panels;
    int32_t from = p + 1 < n_panels ? at : at + span, n = k - from < span ? k - from : span;
    int32_t width = cpu_padded(next->cols);
    if (!next->packed || n <= 0) return (lines_ahead){NULL, 0};
    return (lines_ahead){next->data + cpu_element_bytes(&next->format, width, from),
                         (int32_t)(cpu_element_bytes(&next->format, width, n) / 64)};
}

#endif
