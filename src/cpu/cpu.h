/* cpu.h - what the files of cpu/ share: the kernel table, the packed layout, a run's state. */
#ifndef MOEWE_CPU_H
#define MOEWE_CPU_H

#include "../backend.h"
#include "threads.h"

enum {
    CPU_COLS = 64,  /* output columns of one panel: the unit of packing and of work */
    CPU_LANES = 16, /* the last panel is a multiple of this wide */
    CPU_ROWS = 32,  /* rows of one tile: its f32 results, two tiles for gate and up, stay in L1 */
    CPU_BLOCK = 64, /* K is walked in blocks of this many: one chain a block, blocks added in order.  The
                       error of a dot product then grows with sqrt(BLOCK + K / BLOCK), not with sqrt(K) */
};

/* One panel: up to CPU_COLS rows of a weight matrix, which are columns of the result.
 * Packed: [K][width] elements, bf16 in pairs [K / 2][width][2] (what vdpbf16ps and AMX read, and what
 * splits into f32 with a shift and a mask), K padded to even, width a multiple of CPU_LANES.
 * Plain: element (row c, column k) at data + c * row_stride + k * col_stride. */
typedef struct cpu_panel {
    const uint8_t *data;
    int64_t        row_stride, col_stride; /* plain only */
    int32_t        packed;
    int32_t        cols;                   /* real ones; the padding is zero */
} cpu_panel;

typedef struct cpu_act { int32_t kind; float limit, alpha, beta; } cpu_act;

/* What a level does better than its neighbours; scalar fills every entry. */
typedef struct cpu_kernels {
    /* c[r * CPU_COLS + j] = sum over k of x[r][k] * panel(j, k), for r < rows <= CPU_ROWS and all padded
     * columns j; x rows are of x_dtype, the panel of w_dtype. */
    void (*tile)(const void *const *x, int32_t x_dtype, int32_t rows, const cpu_panel *panel, int32_t w_dtype, int32_t k,
                 float *c);
    /* u[i] = act(g[i], u[i]); g unused by ungated acts. */
    void (*act)(const cpu_act *a, const float *g, float *u, int32_t n);
    /* y[i] += w * x[i] */
    void (*add_scaled)(float *y, float w, const float *x, int32_t n);
    void (*to_f32)(float *y, const void *x, int32_t dtype, int32_t n);
    void (*from_f32)(void *y, int32_t dtype, const float *x, int32_t n);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_scalar, cpu_kernels_avx2, cpu_kernels_avx512, cpu_kernels_avx512bf16;

/* ---- devices ------------------------------------------------------------------ */

typedef struct cpu_state {
    const cpu_kernels *kernels;
    cpu_threads       *threads; /* NULL: the caller's executor */
} cpu_state;

static inline const cpu_state *cpu_of(const moewe_device *dev) { return dev->state; }

typedef enum cpu_level { CPU_SCALAR, CPU_AVX2, CPU_AVX512, CPU_AVX512BF16 } cpu_level;
/* 1 when CPU and OS both allow it; else 0 and which of their tests failed. */
int cpu_allows(cpu_level level, char *why, size_t cap);

/* fn(task, i, count) for all i on the device's threads or executor. */
void cpu_parallel(const moewe_device *dev, moewe_task_fn fn, void *task, int32_t count);

/* ---- packed matrices ------------------------------------------------------------ */

#define CPU_LAYOUT_PANEL 0x6d700001u /* the one packed layout of all CPU levels, version 1 */

uint32_t     cpu_layout(void);
uint64_t     cpu_packed_bytes(moewe_shape shape, int32_t dtype);
moewe_status cpu_pack(const moewe_device *dev, moewe_shape shape, const moewe_matrix *src, void *dst, void *stream);
/* The k columns from column at of a plain panel, in the packed order; padding is zero. */
void cpu_pack_block(const cpu_panel *panel, int32_t dtype, int32_t width, int32_t at, int32_t k, void *dst);
/* Panel p of matrix e; m is canonical. */
cpu_panel cpu_panel_of(const moewe_matrix *m, moewe_shape shape, int32_t e, int32_t p);
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
    uint8_t     *mid;       /* activated rows, x_dtype */
    float       *acc;       /* [chunk][hidden], when y is not f32 */
    uint8_t     *z;         /* [chunk][latent], x_dtype: what latent experts read, then their sum */
    float       *z_acc;     /* [chunk][latent] */
    uint8_t     *tiles;     /* [threads][cpu_route_tile_bytes] */
} cpu_views;

void     cpu_choose(moewe_plan *plan, uint64_t limit);
void     cpu_book(const moewe_plan *plan, carve *c, void *views);
uint64_t cpu_route_tile_bytes(const moewe_config *cfg);

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
