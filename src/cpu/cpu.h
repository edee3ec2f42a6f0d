/* cpu.h - what the files of cpu/ share: the kernel table, the packed layout, a run's state. */
#ifndef MOEWE_CPU_H
#define MOEWE_CPU_H

#include "../backend.h"
#include "threads.h"

enum {
    CPU_COLS = 64,  /* output columns of one panel: the unit of packing and of work */
    CPU_LANES = 16, /* the last panel is a multiple of this wide */
    CPU_MOST_ROWS = 64,  /* of a tile of any level */
    CPU_MOST_PANELS = 8, /* that a task takes side by side */
    CPU_ROWS = 32,  /* rows of one tile: its f32 results, two tiles for gate and up, stay in L1 */
    CPU_STEP = 32,  /* K's of one AMX instruction: what scaled elements are padded to */
    CPU_BLOCK = 64, /* K is walked in blocks of this many: one chain a block, blocks added in order.  The
                       error of a dot product then grows with sqrt(BLOCK + K / BLOCK), not with sqrt(K) */
};

/* What the elements of a matrix are, and what multiplies them.  A value times its scales is the weight; codes of
 * K quants (GGUF) have a minimum that is subtracted. */
typedef enum cpu_values { CPU_F32, CPU_BF16, CPU_F16, CPU_E4M3, CPU_I8, CPU_E2M1, CPU_I4, CPU_U4 } cpu_values;
typedef enum cpu_scales {
    CPU_SCALES_NONE, CPU_SCALES_F32, CPU_SCALES_BF16, CPU_SCALES_F16, CPU_SCALES_E4M3, CPU_SCALES_E8M0,
    CPU_SCALES_K4, /* Q4_K: a byte of scale and one of minimum for 32, d and dmin in f16 for 256 */
    CPU_SCALES_K6  /* Q6_K: a signed byte of scale for 16, d in f16 for 256 */
} cpu_scales;

typedef struct cpu_format {
    int32_t values, scales;
    int32_t block;  /* K's that one scale is for; of whole rows, a number no K reaches */
    int32_t source; /* the matrix's dtype: where plain rows have codes and scales */
} cpu_format;

/* One panel: up to CPU_COLS rows of a weight matrix, which are columns of the result; width is their number rounded
 * up to CPU_LANES, K is padded with zeros.  Packed:
 *     f32, f16   [K][width]
 *     bf16       [K / 2][width][2]  what vdpbf16ps and AMX read, and what splits into f32 with a shift and a mask
 *     bytes      [K / 4][width][4]  a dword is 4 K's of a column: 0 2 in the low half, then 1 3
 *     nibbles    [K / 8][width]     a dword is 8 K's of a column: 0 2 4 6 in the low half, lowest bits first, then
 *                                   1 3 5 7: shifts of both halves give pairs, here and above
 * K padded to 2 for bf16 and to CPU_STEP for bytes and nibbles, which have their scales before them (cpu_pack.c).
 * Plain: as moewe_matrix says. */
typedef struct cpu_panel {
    cpu_format     format;
    const uint8_t *data;
    const uint8_t *scales;  /* of packed ones; of plain ones where their first block of rows is */
    float          factor;  /* of all its values */
    int32_t        packed;
    int32_t        cols;    /* real ones; the padding is zero */
    int64_t        row_stride, col_stride;                         /* plain only, and the next */
    int64_t        scale_row_stride, scale_col_stride;
    int32_t        first_row, scale_rows;
} cpu_panel;

static inline int cpu_same_format(const cpu_format *a, const cpu_format *b)
{
    return a->values == b->values && a->scales == b->scales && a->block == b->block;
}
/* c of so many rows times the panel's factor. */
static inline void cpu_apply_factor(const cpu_panel *p, int32_t rows, float *c)
{
    if (p->factor != 1.0f)
        for (int32_t i = 0; i < rows * CPU_COLS; i++) c[i] *= p->factor;
}

/* In which order a dword or two of whole-number codes have their K's, which rounded rows follow. */
enum { CPU_ORDER_NONE, CPU_ORDER_BYTES, CPU_ORDER_NIBBLES };
static inline int32_t cpu_order(cpu_values v)
{
    return v <= CPU_E4M3 ? CPU_ORDER_NONE : v == CPU_I8 ? CPU_ORDER_BYTES : CPU_ORDER_NIBBLES;
}

static inline int cpu_scaled(const cpu_format *f) { return f->values >= CPU_E4M3; }
static inline int cpu_nibbles(const cpu_format *f) { return f->values >= CPU_E2M1; }

typedef struct cpu_act { int32_t kind; float limit, alpha, beta; } cpu_act;

/* For the x_dtype of a tile: rows are what cpu_kernels.round made, in the order of the panels' codes. */
enum { CPU_X_ROUNDED = -1 };

/* What a level does better than its neighbours; scalar fills every entry. */
typedef struct cpu_kernels {
    int32_t rows; /* that a tile may have */
    /* c[p][r * CPU_COLS + j] = sum over k of x[r][k] * panels[p](j, k), for p < n_panels, r < rows and all padded
     * columns j; x rows are of x_dtype. */
    void (*tile)(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panels, int32_t n_panels,
                 int32_t k, float *const *c);
    /* Scales, times the outer ones of K quants, of block b of a panel of k K's, for all padded columns; minima are
     * written for CPU_SCALES_K4 only.  The panel's factor is not in them. */
    void (*scales)(const cpu_panel *panel, int32_t width, int32_t k, int32_t b, float *scale, float *min);
    /* Rounds n values of x to int8 into a row of k from its column at on, a multiple of CPU_STEP; the rest of the last
     * block are zeros.  A row takes cpu_rounded_bytes(k); its parts may be written by several threads. */
    void (*round)(void *row, int32_t k, int32_t at, const void *x, int32_t x_dtype, int32_t n, int32_t order);
    /* u[i] = act(g[i], u[i]); g unused by ungated acts. */
    void (*act)(const cpu_act *a, const float *g, float *u, int32_t n);
    /* y[i] += w * x[i] */
    void (*add_scaled)(float *y, float w, const float *x, int32_t n);
    void (*to_f32)(float *y, const void *x, int32_t dtype, int32_t n);
    void (*from_f32)(void *y, int32_t dtype, const float *x, int32_t n);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_scalar, cpu_kernels_avx2, cpu_kernels_avx512, cpu_kernels_avx512bf16,
    cpu_kernels_amx;

/* ---- devices ------------------------------------------------------------------ */

typedef struct cpu_state {
    const cpu_kernels *kernels;
    cpu_threads       *threads; /* NULL: the caller's executor */
    int32_t            n_nodes; /* that the threads run on; 0: not known */
    cpu_numbers        nodes;
} cpu_state;

static inline const cpu_state *cpu_of(const moewe_device *dev) { return dev->state; }

moewe_status cpu_open(moewe_device *dev, const cpu_kernels *k);
void         cpu_close(moewe_device *dev);
moewe_status cpu_alloc(const moewe_device *dev, uint64_t bytes, void **out);
void         cpu_free(const moewe_device *dev, void *ptr, uint64_t bytes);

typedef enum cpu_level { CPU_SCALAR, CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_AMX } cpu_level;
/* 1 when CPU and OS both allow it; else 0 and which of their tests failed. */
int cpu_allows(cpu_level level, char *why, size_t cap);

/* fn(task, i, count) for all i on the device's threads or executor. */
void cpu_parallel(const moewe_device *dev, moewe_task_fn fn, void *task, int32_t count);

/* ---- packed matrices ------------------------------------------------------------ */

#define CPU_LAYOUT_PANEL 0x6d700001u /* the one packed layout of all CPU levels, version 1 */

uint32_t     cpu_layout(void);
uint64_t     cpu_packed_bytes(moewe_shape shape, const moewe_matrix *m);
moewe_status cpu_pack(const moewe_device *dev, moewe_shape shape, const moewe_matrix *src, void *dst, void *stream);
/* The order of a dtype's codes. */
int32_t      cpu_order_of(int32_t dtype);
uint64_t     cpu_rounded_bytes(int32_t k);
/* Panel p of matrix e; m is canonical. */
cpu_panel cpu_panel_of(const moewe_matrix *m, moewe_shape shape, int32_t e, int32_t p);
/* Bytes of k K's of a packed panel's elements. */
uint64_t     cpu_element_bytes(const cpu_format *f, int32_t width, int64_t k);
/* The k columns from column at of a plain panel of cols_k in all, in the packed order, K padded as there.  k is at
 * most CPU_PACK_K and at a multiple of CPU_BLOCK. */
enum { CPU_PACK_K = 256 };
void cpu_pack_block(const cpu_panel *panel, int32_t width, int32_t at, int32_t k, void *dst);

/* Stored scales of block b (of format.block K's) for all padded columns, and outer ones ([width] or, with minima,
 * [width][2] f16) of K quants; packed into room for plain panels. */
typedef struct cpu_scale_room { uint8_t inner[CPU_COLS * 4]; uint16_t outer[CPU_COLS * 2]; } cpu_scale_room;
typedef struct cpu_raw_scales { const uint8_t *inner; const uint16_t *outer; } cpu_raw_scales;
cpu_raw_scales cpu_scales_of(const cpu_panel *panel, int32_t width, int32_t k, int32_t b, cpu_scale_room *room);

static inline int32_t cpu_panels(int32_t rows) { return (rows + CPU_COLS - 1) / CPU_COLS; }
static inline int32_t cpu_padded(int32_t cols) { return (cols + CPU_LANES - 1) / CPU_LANES * CPU_LANES; }

/* ---- workspace ------------------------------------------------------------------ */

typedef struct cpu_segment {
    int32_t  expert;  /* local; n_local + i for identity expert i; -1 for the shared expert */
    int32_t  first, rows; /* in order[] (shared: tokens of the chunk) */
    uint32_t reserved;
    uint64_t mid;     /* byte offset of the first row's activated values */
} cpu_segment;

typedef struct cpu_views {
    int32_t     *ids;       /* [chunk][top_k], when the layer routes */
    float       *weights;   /* [chunk][top_k] */
    float       *shared;    /* [chunk]: weight of the shared expert */
    int32_t     *order;     /* [chunk * top_k]: pairs by expert, then by token and slot */
    int32_t     *offsets;   /* [n_local + n_null + 1] into order */
    cpu_segment *segments;  /* [n_local + n_null + 1]: the pairs in flight */
    uint8_t     *xq;        /* [chunk][cpu_rounded_bytes]: what experts read, when their weights are whole numbers */
    uint8_t     *mid;       /* activated rows, x_dtype or rounded */
    float       *acc;       /* [chunk][hidden], when y is not f32 */
    uint8_t     *z;         /* [chunk][latent], x_dtype: what latent experts read, then their sum */
    float       *z_acc;     /* [chunk][latent] */
    uint8_t     *tiles;     /* [threads][cpu_route_tile_bytes] */
} cpu_views;

void     cpu_choose(moewe_plan *plan, uint64_t limit);
void     cpu_book(const moewe_plan *plan, carve *c, void *views);
uint64_t cpu_route_tile_bytes(const moewe_config *cfg);
uint64_t cpu_xq_row_bytes(const moewe_config *cfg); /* 0: x is not rounded */
uint64_t cpu_mid_row_bytes(const moewe_config *cfg, int shared);

/* ---- stages ----------------------------------------------------------------------- */

/* Chooses top_k experts from logits[n_experts + n_null] and weighs them; hashed: takes these ids instead, if
 * not NULL.  scratch has cpu_choice_floats floats. */
void    cpu_choose_experts(const moewe_config *cfg, const moewe_weights *w, const float *logits, const int32_t *hashed,
                           float *scratch, int32_t *ids, float *weights);
int64_t cpu_choice_floats(const moewe_config *cfg);

moewe_status cpu_run(const moewe_plan *plan, const moewe_weights *w, const moewe_io *io, void *base, void *stream,
                     moewe_stage first, moewe_stage last);
moewe_status cpu_linear(const moewe_device *dev, const moewe_linear *lin, int32_t n_tokens, const void *x,
                        int64_t x_stride, void *y, int64_t y_stride);

#endif
