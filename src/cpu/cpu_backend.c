/* cpu_backend.c - the CPU back ends: one set of stages over the kernel table of a level; what a plan
 * chooses and books.  Memory here is host memory. */
#include "cpu.h"

#include <stdio.h>

/* ---- device: see cpu_device.c ----------------------------------------------------- */

static moewe_status cpu_copy(const moewe_device *dev, void *dst, const void *src, uint64_t bytes)
{
    (void)dev;
    memmove(dst, src, bytes);
    return MOEWE_OK;
}

static moewe_status cpu_sync(const moewe_device *dev, void *stream)
{
    (void)dev;
    (void)stream;
    return MOEWE_OK;
}

static moewe_status cpu_for(const moewe_device *dev, moewe_task_fn fn, void *task, int32_t count)
{
    cpu_parallel(dev, fn, task, count);
    return MOEWE_OK;
}

/* ---- plan ----------------------------------------------------------------------- */

static uint64_t row_bytes(const moewe_config *c, int32_t width)
{
    return (uint64_t)width * moewe_dtype_bytes(c->x_dtype);
}

uint64_t cpu_xq_row_bytes(const moewe_config *c)
{
    return cpu_order_of(c->w_dtype) ? cpu_rounded_bytes(moewe_expert_width(c)) : 0;
}

/* The dtypes of a shared expert are its weights' matter, which no plan knows: it gets room for rows as they are. */
uint64_t cpu_mid_row_bytes(const moewe_config *c, int shared)
{
    if (shared) return row_bytes(c, c->shared_inter);
    return cpu_order_of(c->down_dtype) ? cpu_rounded_bytes(c->inter) : row_bytes(c, c->inter);
}

static uint64_t largest_row(const moewe_config *c)
{
    uint64_t routed = cpu_mid_row_bytes(c, 0), shared = cpu_mid_row_bytes(c, 1);
    return routed > shared ? routed : shared;
}

void cpu_book(const moewe_plan *plan, carve *c, void *views)
{
    const moewe_config *cfg = &plan->cfg;
    cpu_views unused, *v = views ? views : &unused;
    uint64_t chunk = (uint64_t)plan->choice.chunk_tokens, pairs = chunk * (uint64_t)cfg->top_k;
    uint64_t experts = (uint64_t)cfg->n_local + (uint64_t)cfg->n_null;
    uint64_t routed = cfg->score != MOEWE_SCORE_GIVEN;
    v->ids = carve_take(c, "ids", routed * pairs, sizeof *v->ids, MOEWE_STAGE_ROUTE, MOEWE_STAGE_SORT);
    v->weights = carve_take(c, "weights", routed * pairs, sizeof *v->weights, MOEWE_STAGE_ROUTE, MOEWE_STAGE_GEMM2);
    v->shared = carve_take(c, "shared", cfg->shared_inter ? chunk : 0, sizeof *v->shared, MOEWE_STAGE_ROUTE,
                           MOEWE_STAGE_GEMM2);
    v->order = carve_take(c, "order", pairs, sizeof *v->order, MOEWE_STAGE_SORT, MOEWE_STAGE_GEMM2);
    v->offsets = carve_take(c, "offsets", experts + 1, sizeof *v->offsets, MOEWE_STAGE_SORT, MOEWE_STAGE_GEMM2);
    v->segments = carve_take(c, "segments", experts + 1, sizeof *v->segments, MOEWE_STAGE_GEMM1, MOEWE_STAGE_GEMM2);
    v->xq = carve_take(c, "xq", chunk * cpu_xq_row_bytes(cfg), 1, MOEWE_STAGE_ROUTE, MOEWE_STAGE_GEMM1);
    v->mid = carve_take(c, "mid", plan->choice.mid_bytes, 1, MOEWE_STAGE_GEMM1, MOEWE_STAGE_GEMM2);
    v->acc = carve_take(c, "acc", cfg->y_dtype == MOEWE_DTYPE_F32 ? 0 : chunk * (uint64_t)cfg->hidden, sizeof *v->acc,
                        MOEWE_STAGE_ROUTE, MOEWE_STAGE_COMBINE);
    v->z = carve_take(c, "z", chunk * (uint64_t)cfg->latent, moewe_dtype_bytes(cfg->x_dtype), MOEWE_STAGE_ROUTE,
                      MOEWE_STAGE_COMBINE);
    v->z_acc = carve_take(c, "z_acc", chunk * (uint64_t)cfg->latent, sizeof *v->z_acc, MOEWE_STAGE_ROUTE,
                          MOEWE_STAGE_COMBINE);
    v->tiles = carve_take(c, "tiles", (uint64_t)plan->dev->n_threads, cpu_route_tile_bytes(cfg), MOEWE_STAGE_ROUTE,
                          MOEWE_STAGE_ROUTE);
}

static uint64_t need(moewe_plan *plan, int32_t chunk, uint64_t mid)
{
    carve c = {0};
    plan->choice = (moewe_choice){chunk, mid};
    cpu_book(plan, &c, NULL);
    return c.at;
}

/* Without a limit, enough is enough: the activated rows of a pass stay in the caches and the next pass
 * goes on with the next experts, so more room would buy nothing.  Tokens in a chunk are what weights
 * are read again for: f32 results go straight to y and a token costs only its maps; others need an f32
 * row of hidden for each token of a chunk, as latent experts do of latent, and whole-number weights one in int8. */
enum {
    MID_BYTES = 2 << 20,
    MID_ROWS = 64,
    ROWS_BYTES = 4 << 20,
    ROWS_TOKENS = 512,
    CHUNK_TOKENS = 16384,
    SMALL_BYTES = 1 << 20
};

static int32_t most_tokens(const moewe_config *c)
{
    int64_t tokens = CHUNK_TOKENS;
    int64_t row = c->y_dtype != MOEWE_DTYPE_F32 ? (int64_t)c->hidden * 4 : 0;
    row += (int64_t)c->latent * (4 + moewe_dtype_bytes(c->x_dtype)) + (int64_t)cpu_xq_row_bytes(c);
    if (row) {
        tokens = ROWS_BYTES / row;
        if (tokens < ROWS_TOKENS) tokens = ROWS_TOKENS;
    }
    return (int32_t)(tokens < c->max_tokens ? tokens : c->max_tokens);
}

/* Room for all rows of a chunk, or for as many as are worth it. */
static uint64_t most_mid(const moewe_config *c, int32_t chunk, uint64_t rows_cap, uint64_t bytes_cap)
{
    uint64_t held = (uint64_t)(c->top_k < c->n_local || c->score == MOEWE_SCORE_GIVEN ? c->top_k : c->n_local);
    uint64_t all = (uint64_t)chunk * (held * cpu_mid_row_bytes(c, 0) + cpu_mid_row_bytes(c, 1));
    uint64_t cap = rows_cap * largest_row(c);
    if (cap < bytes_cap) cap = bytes_cap;
    uint64_t mid = all < cap ? all : cap;
    if (mid < largest_row(c)) mid = largest_row(c);
    return moewe_align_up(mid, MOEWE_ALIGN);
}

/* What one pass over all pairs takes that keeps nothing but their activated rows and 16 bytes of maps
 * each: more than that is never worth it, but where it is next to nothing.  Holds for generous limits too. */
static uint64_t one_pass(const moewe_plan *plan)
{
    const moewe_config *c = &plan->cfg;
    uint64_t pairs = (uint64_t)c->max_tokens * (uint64_t)c->top_k;
    uint64_t bytes = moewe_add(moewe_mul(pairs, cpu_mid_row_bytes(c, 0) + 16),
                               (uint64_t)plan->dev->n_threads * cpu_route_tile_bytes(c));
    return bytes > SMALL_BYTES ? bytes : SMALL_BYTES;
}

void cpu_choose(moewe_plan *plan, uint64_t limit)
{
    const moewe_config *c = &plan->cfg;
    int32_t most = most_tokens(c), low = 1, high = most;
    uint64_t mid = most_mid(c, most, MID_ROWS, MID_BYTES);
    if (limit > one_pass(plan)) limit = one_pass(plan);
    if (need(plan, most, mid) <= limit) return;

    /* The most tokens that leave room for MID_ROWS rows, then rows in all the room that is left: need
     * is the limit itself then, and so does not fall as max_tokens grows. */
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (need(plan, middle, most_mid(c, middle, MID_ROWS, 0)) <= limit)
            low = middle;
        else
            high = middle - 1;
    }
    uint64_t without = need(plan, low, 0), least = moewe_align_up(largest_row(c), MOEWE_ALIGN);
    mid = limit > without ? (limit - without) / MOEWE_ALIGN * MOEWE_ALIGN : 0;
    uint64_t useful = most_mid(c, low, MID_ROWS, MID_BYTES);
    if (mid > useful) mid = useful;
    if (mid < least) mid = least;
    need(plan, low, mid);
}

static size_t cpu_describe(const moewe_plan *plan, char *buf, size_t cap)
{
    const moewe_config *c = &plan->cfg;
    uint64_t rows = plan->choice.mid_bytes / largest_row(c);
    int n = snprintf(buf, cap,
                     "kernel: panels of %d columns, tiles of up to %d rows\n"
                     "chunk: %d tokens, %llu rows in flight\n",
                     CPU_COLS, cpu_of(plan->dev)->kernels->rows, plan->choice.chunk_tokens, (unsigned long long)rows);
    return n < 0 ? 0 : (size_t)n;
}

/* ---- the table -------------------------------------------------------------------- */

#define LEVEL(id, text, level, kernels)                                                                                \
    static int probe_##id(char *why, size_t cap)                                                                       \
    {                                                                                                                  \
        return cpu_allows(level, why, cap);                                                                            \
    }                                                                                                                  \
    static moewe_status open_##id(moewe_device *dev)                                                                   \
    {                                                                                                                  \
        return cpu_open(dev, &kernels);                                                                                \
    }                                                                                                                  \
    const moewe_backend moewe_##id = {.name = text,                                                                    \
                                      .kind = MOEWE_DEVICE_CPU,                                                        \
                                      .probe = probe_##id,                                                             \
                                      .open = open_##id,                                                               \
                                      .close = cpu_close,                                                              \
                                      .alloc = cpu_alloc,                                                              \
                                      .free = cpu_free,                                                                \
                                      .copy = cpu_copy,                                                                \
                                      .sync = cpu_sync,                                                                \
                                      .parallel = cpu_for,                                                             \
                                      .choose = cpu_choose,                                                            \
                                      .book = cpu_book,                                                                \
                                      .describe = cpu_describe,                                                        \
                                      .packed_bytes = cpu_packed_bytes,                                                \
                                      .layout = cpu_layout,                                                            \
                                      .pack = cpu_pack,                                                                \
                                      .run = cpu_run,                                                                  \
                                      .linear = cpu_linear}

LEVEL(cpu_scalar, "cpu-scalar", CPU_SCALAR, cpu_kernels_scalar);
#if defined(__x86_64__)
LEVEL(cpu_avx2, "cpu-avx2", CPU_AVX2, cpu_kernels_avx2);
LEVEL(cpu_avx512, "cpu-avx512", CPU_AVX512, cpu_kernels_avx512);
LEVEL(cpu_avx512bf16, "cpu-avx512bf16", CPU_AVX512BF16, cpu_kernels_avx512bf16);
LEVEL(cpu_amx, "cpu-amx", CPU_AMX, cpu_kernels_amx);
#endif
