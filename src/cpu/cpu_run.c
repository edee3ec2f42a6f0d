/* cpu_run.c - one layer, one parallel job in phases; a phase starts when the one before is done.
 *
 *     for each chunk of tokens
 *         ROUTE     tasks: a few tokens each   logits, choice, weights; x in int8; sums start at 0 or y
 *         LATENT_IN tasks: 64 columns of latent   z = latent_in . x, when experts work on latent rows
 *         sort      one thread                 pairs by expert, counting sort
 *         for each group of pairs whose activated rows fit in mid, experts ascending
 *             GEMM1 tasks: (expert, some panels of inter)   gather rows of x, gate, up, activation
 *             GEMM2 tasks: some panels of hidden            all experts of the group, in order
 *         LATENT_SUM, LATENT_OUT   the experts' sums back to hidden
 *         COMBINE   tasks: a few tokens each   rounds the sums to y, when y is not f32
 *
 * A column of hidden has one writer, which adds experts in ascending order: so the sum of a token does
 * not depend on who computed it, on the chunk or on the group. */
#include "cpu.h"

#include <math.h>
#include <stdatomic.h>

enum { ROUTE_TOKENS = 8, COMBINE_TOKENS = 16, LATENT_TOKENS = 256, TASKS_PER_THREAD = 3 };

typedef enum run_phase { PHASE_START, PHASE_ROUTE, PHASE_LATENT_IN, PHASE_GEMM1, PHASE_GEMM2, PHASE_LATENT_SUM, PHASE_LATENT_OUT,
               PHASE_COMBINE, PHASE_DONE } run_phase;

typedef struct run_state {
    const moewe_plan    *plan;
    const moewe_config  *cfg;
    const cpu_kernels   *kernels;
    const moewe_weights *w;
    const moewe_io      *io;
    cpu_views            v;
    cpu_act              act, shared_act;
    moewe_stage          first, last;
    int32_t              n_tokens;  /* valid ones */
    run_phase            phase;
    int32_t              token0, tokens;       /* of the chunk */
    int32_t              expert, row;          /* where the next group starts */
    int32_t              n_routed, n_segments; /* of the group; routed ones come first, the shared one last */
    int32_t              side;  /* panels of one of its tasks */
    int32_t              tasks; /* of the phase */
    atomic_int           next;  /* the next to take, for threads that a caller lends */
} run_state;

static int on(const run_state *s, moewe_stage stage)
{
    return s->first <= stage && stage <= s->last;
}

static int32_t n_slots(const run_state *s) /* local experts and identity experts */
{
    return s->cfg->n_local + s->cfg->n_null;
}

static const void *x_row(const run_state *s, int32_t token)
{
    return (const uint8_t *)s->io->x + (int64_t)(s->token0 + token) * s->io->x_stride;
}

static void *y_row(const run_state *s, int32_t token)
{
    return (uint8_t *)s->io->y + (int64_t)(s->token0 + token) * s->io->y_stride;
}

/* The token's sum: in y itself when that is f32. */
static float *sum_row(const run_state *s, int32_t token)
{
    return s->v.acc ? s->v.acc + (int64_t)token * s->cfg->hidden : y_row(s, token);
}

/* What routed experts read, and the sum that they add to. */
static const void *expert_row(const run_state *s, int32_t token)
{
    uint64_t bytes = (uint64_t)s->cfg->latent * moewe_dtype_bytes(s->cfg->x_dtype);
    return s->v.z ? s->v.z + (uint64_t)token * bytes : x_row(s, token);
}

static float *expert_sum_row(const run_state *s, int32_t token)
{
    return s->v.z_acc ? s->v.z_acc + (int64_t)token * s->cfg->latent : sum_row(s, token);
}

/* What experts read, in int8. */
static uint8_t *rounded_x_row(const run_state *s, int32_t token)
{
    return s->v.xq + (uint64_t)token * cpu_xq_row_bytes(s->cfg);
}

static const int32_t *chunk_ids(const run_state *s)
{
    return s->v.ids ? s->v.ids : s->io->topk_ids + (int64_t)s->token0 * s->cfg->top_k;
}

static float pair_weight(const run_state *s, int32_t pair)
{
    if (s->v.weights) return s->v.weights[pair];
    int64_t at = (int64_t)s->token0 * s->cfg->top_k + pair;
    float scale = s->w->expert_scale ? s->w->expert_scale[s->io->topk_ids[at]] : 1.0f;
    return s->io->topk_weights[at] * s->cfg->routed_scale * scale;
}

/* ---- ROUTE --------------------------------------------------------------------- */

uint64_t cpu_route_tile_bytes(const moewe_config *cfg)
{
    if (cfg->score == MOEWE_SCORE_GIVEN) return 0;
    uint64_t logits = (uint64_t)ROUTE_TOKENS * ((uint64_t)cfg->n_experts + (uint64_t)cfg->n_null);
    return moewe_align_up((logits + (uint64_t)cpu_choice_floats(cfg)) * sizeof(float), MOEWE_ALIGN);
}

static void router_logits(const run_state *s, int32_t token, int32_t n, float *logits)
{
    int32_t width = s->cfg->n_experts + s->cfg->n_null;
    moewe_shape shape = {1, width, s->cfg->hidden};
    const void *rows[ROUTE_TOKENS];
    _Alignas(64) float c[ROUTE_TOKENS * CPU_COLS];
    float *const results[] = {c};
    for (int32_t r = 0; r < n; r++) rows[r] = x_row(s, token + r);
    for (int32_t p = 0; p < cpu_panels(width); p++) {
        cpu_panel panel = cpu_panel_of(&s->w->router, shape, 0, p);
        s->kernels->tile(rows, s->cfg->x_dtype, n, &panel, 1, s->cfg->hidden, results);
        for (int32_t r = 0; r < n; r++)
            for (int32_t j = 0; j < panel.cols; j++) {
                float bias = s->w->router.bias ? s->w->router.bias[p * CPU_COLS + j] : 0.0f;
                logits[(int64_t)r * width + p * CPU_COLS + j] = c[r * CPU_COLS + j] + bias;
            }
    }
}

static void shared_weights(const run_state *s, int32_t token, int32_t n)
{
    const moewe_matrix *m = &s->w->shared_scale;
    const void *rows[ROUTE_TOKENS];
    _Alignas(64) float c[ROUTE_TOKENS * CPU_COLS];
    float *const results[] = {c};
    if (!m->data && !m->experts) {
        for (int32_t r = 0; r < n; r++) s->v.shared[token + r] = s->cfg->shared_scale;
        return;
    }
    cpu_panel panel = cpu_panel_of(m, (moewe_shape){1, 1, s->cfg->hidden}, 0, 0);
    for (int32_t r = 0; r < n; r++) rows[r] = x_row(s, token + r);
    s->kernels->tile(rows, s->cfg->x_dtype, n, &panel, 1, s->cfg->hidden, results);
    for (int32_t r = 0; r < n; r++) {
        float logit = c[r * CPU_COLS] + (m->bias ? m->bias[0] : 0.0f);
        s->v.shared[token + r] = s->cfg->shared_scale / (1.0f + expf(-logit));
    }
}

/* The token's row of hash_ids; a token outside the table gets a row of its own that names no expert. */
static const int32_t *hashed_ids(const run_state *s, int32_t token)
{
    if (!s->w->hash_ids) return NULL;
    int32_t id = s->io->token_ids[s->token0 + token];
    if (id >= 0 && id < s->w->hash_rows) return s->w->hash_ids + (int64_t)id * s->cfg->top_k;
    int32_t *none = s->v.ids + (int64_t)token * s->cfg->top_k;
    for (int32_t k = 0; k < s->cfg->top_k; k++) none[k] = -1;
    return none;
}

static void route_task(const run_state *s, int32_t task, int32_t thread)
{
    const moewe_config *cfg = s->cfg;
    int32_t token = task * ROUTE_TOKENS, n = s->tokens - token < ROUTE_TOKENS ? s->tokens - token : ROUTE_TOKENS;
    int32_t width = cfg->n_experts + cfg->n_null;
    if (s->v.ids) {
        float *logits = (float *)(void *)(s->v.tiles + (uint64_t)thread * cpu_route_tile_bytes(cfg));
        float *scratch = logits + (int64_t)ROUTE_TOKENS * width;
        if (!s->io->logits) router_logits(s, token, n, logits);
        for (int32_t r = 0; r < n; r++) {
            const float *row = s->io->logits ? s->io->logits + (int64_t)(s->token0 + token + r) * width
                                             : logits + (int64_t)r * width;
            int64_t pair = (int64_t)(token + r) * cfg->top_k;
            cpu_choose_experts(cfg, s->w, row, hashed_ids(s, token + r), scratch, s->v.ids + pair, s->v.weights + pair);
        }
    }
    if (cfg->shared_inter) shared_weights(s, token, n);
    for (int32_t r = token; r < token + n; r++) {
        float *sum = sum_row(s, r);
        if (!s->io->y_add)
            memset(sum, 0, (size_t)cfg->hidden * sizeof *sum);
        else if (s->v.acc)
            s->kernels->to_f32(sum, y_row(s, r), cfg->y_dtype, cfg->hidden);
        if (s->v.z_acc) memset(expert_sum_row(s, r), 0, (size_t)cfg->latent * sizeof *s->v.z_acc);
        if (s->v.xq && !cfg->latent)
            s->kernels->round(rounded_x_row(s, r), cfg->hidden, 0, x_row(s, r), cfg->x_dtype, cfg->hidden,
                              cpu_order_of(cfg->w_dtype));
    }
}

static void add_bias(float *c, const float *bias, int32_t n)
{
    for (int32_t i = 0; i < n; i++) c[i] += bias[i];
}

/* ---- latent projections ------------------------------------------------------------ */

static int32_t latent_tasks(const run_state *s, int32_t rows)
{
    return cpu_panels(rows) * ((s->tokens + LATENT_TOKENS - 1) / LATENT_TOKENS);
}

/* 64 columns of latent_in . x, or of latent_out . z, for a span of tokens. */
static void latent_task(const run_state *s, int32_t task, int in)
{
    const moewe_config *cfg = s->cfg;
    const moewe_matrix *m = in ? &s->w->latent_in : &s->w->latent_out;
    moewe_shape shape = in ? (moewe_shape){1, cfg->latent, cfg->hidden} : (moewe_shape){1, cfg->hidden, cfg->latent};
    int32_t spans = (s->tokens + LATENT_TOKENS - 1) / LATENT_TOKENS, p = task / spans, col = p * CPU_COLS;
    int32_t token = task % spans * LATENT_TOKENS, end = s->tokens - token < LATENT_TOKENS ? s->tokens : token + LATENT_TOKENS;
    cpu_panel panel = cpu_panel_of(m, shape, 0, p);
    _Alignas(64) float c[CPU_MOST_ROWS * CPU_COLS];
    float *const results[] = {c};
    const void *rows[CPU_MOST_ROWS];
    int32_t step = s->kernels->rows;
    for (; token < end; token += step) {
        int32_t n = end - token < step ? end - token : step;
        for (int32_t r = 0; r < n; r++) rows[r] = in ? x_row(s, token + r) : expert_row(s, token + r);
        s->kernels->tile(rows, cfg->x_dtype, n, &panel, 1, shape.cols, results);
        for (int32_t r = 0; r < n; r++) {
            float *cr = c + r * CPU_COLS;
            if (m->bias) add_bias(cr, m->bias + col, panel.cols);
            if (!in) {
                add_bias(sum_row(s, token + r) + col, cr, panel.cols);
                continue;
            }
            s->kernels->from_f32((uint8_t *)(uintptr_t)expert_row(s, token + r) +
                                     (uint64_t)col * moewe_dtype_bytes(cfg->x_dtype),
                                 cfg->x_dtype, cr, panel.cols);
            if (s->v.xq)
                s->kernels->round(rounded_x_row(s, token + r), cfg->latent, col, cr, MOEWE_DTYPE_F32, panel.cols,
                                  cpu_order_of(cfg->w_dtype));
        }
    }
}

/* ---- SORT ---------------------------------------------------------------------- */

/* Slot of a global id: local experts, then identity experts; -1 when it is not here. */
static int32_t slot_of(const moewe_config *cfg, int32_t id)
{
    if (id < 0 || id >= cfg->n_experts + cfg->n_null) return -1;
    if (id >= cfg->n_experts) return cfg->n_local + (id - cfg->n_experts);
    int32_t local = id - cfg->first_expert;
    return local >= 0 && local < cfg->n_local ? local : -1;
}

static void sort_pairs(const run_state *s)
{
    const int32_t *ids = chunk_ids(s);
    int32_t *off = s->v.offsets, slots = n_slots(s), pairs = s->tokens * s->cfg->top_k;
    memset(off, 0, ((size_t)slots + 1) * sizeof *off);
    for (int32_t p = 0; p < pairs; p++) {
        int32_t slot = slot_of(s->cfg, ids[p]);
        if (slot >= 0) off[slot + 1]++;
    }
    for (int32_t e = 0; e < slots; e++) off[e + 1] += off[e];
    for (int32_t p = 0; p < pairs; p++) {
        int32_t slot = slot_of(s->cfg, ids[p]);
        if (slot >= 0) s->v.order[off[slot]++] = p;
    }
    for (int32_t e = slots; e > 0; e--) off[e] = off[e - 1]; /* each start has moved to its end: move back */
    off[0] = 0;
}

/* ---- groups of pairs --------------------------------------------------------------- */

/* Rows of the expert at the cursor that are still to do; experts beyond the slots: the shared one. */
static int32_t rows_left(const run_state *s)
{
    if (s->expert < n_slots(s)) return s->v.offsets[s->expert + 1] - s->v.offsets[s->expert] - s->row;
    return s->cfg->shared_inter ? s->tokens - s->row : 0;
}

/* The next pairs, experts ascending, whose rows fit in mid.  0 when none is left. */
static int build_group(run_state *s)
{
    uint64_t used = 0;
    s->n_segments = s->n_routed = 0;
    while (s->expert <= n_slots(s)) {
        int32_t rows = rows_left(s), shared = s->expert == n_slots(s);
        int identity = !shared && s->expert >= s->cfg->n_local;
        int32_t expert = shared ? -1 : s->expert;
        if (rows && !identity) {
            uint64_t fit = (s->plan->choice.mid_bytes - used) / cpu_mid_row_bytes(s->cfg, shared);
            if (!fit) return 1;
            if ((uint64_t)rows > fit) rows = (int32_t)fit;
        }
        if (rows) {
            int32_t first = shared ? s->row : s->v.offsets[s->expert] + s->row;
            s->v.segments[s->n_segments++] = (cpu_segment){.expert = expert, .first = first, .rows = rows, .mid = used};
            if (!shared && !identity) s->n_routed++;
            if (!identity) used += (uint64_t)rows * cpu_mid_row_bytes(s->cfg, shared);
            s->row += rows;
        }
        if (rows_left(s)) return 1;
        s->expert++;
        s->row = 0;
    }
    return s->n_segments > 0;
}

static int32_t segment_token(const run_state *s, const cpu_segment *g, int32_t row)
{
    return g->expert < 0 ? g->first + row : s->v.order[g->first + row] / s->cfg->top_k;
}

/* In what order of K's a segment's activated rows are rounded, when they are: a shared expert's row has room for
 * that unless it is short. */
static int32_t mid_order(const run_state *s, int shared)
{
    int32_t order = cpu_order_of(shared ? s->w->shared_down.dtype : s->w->down.dtype);
    return shared && cpu_rounded_bytes(s->cfg->shared_inter) > cpu_mid_row_bytes(s->cfg, 1) ? CPU_ORDER_NONE : order;
}

static uint8_t *mid_row(const run_state *s, const cpu_segment *g, int32_t row)
{
    return s->v.mid + g->mid + (uint64_t)row * cpu_mid_row_bytes(s->cfg, g->expert < 0);
}

/* ---- GEMM1 -------------------------------------------------------------------------- */

static void scale_rows(const run_state *s, const cpu_segment *g, int32_t row, int32_t n, float *c)
{
    for (int32_t r = 0; r < n; r++) {
        float w = pair_weight(s, s->v.order[g->first + row + r]);
        for (int32_t j = 0; j < CPU_COLS; j++) c[r * CPU_COLS + j] *= w;
    }
}

/* Panels that a task does side by side: rows are read once for all of them, but every thread should get some
 * tasks.  With two matrices half as many columns. */
static int32_t side_by_side(const run_state *s, int64_t panels)
{
    int64_t fair = panels / ((int64_t)s->plan->dev->n_threads * TASKS_PER_THREAD);
    return fair < 1 ? 1 : fair < CPU_MOST_PANELS ? (int32_t)fair : CPU_MOST_PANELS;
}

static int32_t runs_of(int32_t rows, int32_t side)
{
    return (cpu_panels(rows) + side - 1) / side;
}

/* Bias, activation and rounding of a tile of rows by one panel, on its way to mid. */
static void finish_mid(const run_state *s, const cpu_segment *g, int32_t row, int32_t n, int32_t col, int32_t cols,
                       float *uc, float *gc)
{
    const moewe_config *cfg = s->cfg;
    int shared = g->expert < 0;
    const moewe_matrix *gate = shared ? &s->w->shared_gate : &s->w->gate, *up = shared ? &s->w->shared_up : &s->w->up;
    int32_t inter = shared ? cfg->shared_inter : cfg->inter, order = mid_order(s, shared);
    int64_t at = (int64_t)(shared ? 0 : g->expert) * inter + col;
    if (!shared && cfg->flags & MOEWE_FLAG_WEIGHT_ON_INPUT) {
        scale_rows(s, g, row, n, uc);
        if (gc) scale_rows(s, g, row, n, gc);
    }
    for (int32_t r = 0; r < n; r++) {
        float *u = uc + r * CPU_COLS, *gr = gc ? gc + r * CPU_COLS : NULL;
        if (up->bias) add_bias(u, up->bias + at, cols);
        if (gc && gate->bias) add_bias(gr, gate->bias + at, cols);
        s->kernels->act(shared ? &s->shared_act : &s->act, gr, u, cols);
        uint8_t *mid = mid_row(s, g, row + r);
        if (order)
            s->kernels->round(mid, inter, col, u, MOEWE_DTYPE_F32, cols, order);
        else
            s->kernels->from_f32(mid + (uint64_t)col * moewe_dtype_bytes(cfg->x_dtype), cfg->x_dtype, u, cols);
    }
}

/* Whether x is there in the order of this matrix. */
static int reads_rounded(const run_state *s, const moewe_matrix *m, int shared)
{
    return s->v.xq && !(shared && s->cfg->latent) && cpu_order_of(m->dtype) == cpu_order_of(s->cfg->w_dtype);
}

static void gemm1_task(const run_state *s, int32_t task)
{
    const moewe_config *cfg = s->cfg;
    int32_t side = s->side, runs = runs_of(cfg->inter, side), shared = task >= s->n_routed * runs;
    const cpu_segment *g = shared ? &s->v.segments[s->n_segments - 1] : &s->v.segments[task / runs];
    int32_t first = (shared ? task - s->n_routed * runs : task % runs) * side;
    int32_t inter = shared ? cfg->shared_inter : cfg->inter, expert = shared ? 0 : g->expert;
    const moewe_matrix *gate = shared ? &s->w->shared_gate : &s->w->gate, *up = shared ? &s->w->shared_up : &s->w->up;
    moewe_shape shape = {cfg->n_local, inter, shared ? cfg->hidden : moewe_expert_width(cfg)};
    int gated = moewe_act_gated(cfg->act), step = s->kernels->rows;
    int32_t panels = cpu_panels(inter) - first < side ? cpu_panels(inter) - first : side;
    int rounded = reads_rounded(s, up, shared) && (!gated || reads_rounded(s, gate, shared));
    int32_t x_dtype = rounded ? CPU_X_ROUNDED : cfg->x_dtype;
    _Alignas(64) float c[2 * CPU_MOST_PANELS][CPU_MOST_ROWS * CPU_COLS];
    cpu_panel of[2 * CPU_MOST_PANELS]; /* up and gate in turn, as results */
    float *results[2 * CPU_MOST_PANELS];
    const void *rows[CPU_MOST_ROWS];

    for (int32_t p = 0; p < panels; p++) {
        of[p * (1 + gated)] = cpu_panel_of(up, shape, expert, first + p);
        if (gated) of[2 * p + 1] = cpu_panel_of(gate, shape, expert, first + p);
    }
    for (int32_t p = 0; p < panels * (1 + gated); p++) results[p] = c[p];
    for (int32_t row = 0; row < g->rows; row += step) {
        int32_t n = g->rows - row < step ? g->rows - row : step;
        for (int32_t r = 0; r < n; r++) {
            int32_t token = segment_token(s, g, row + r);
            rows[r] = rounded ? rounded_x_row(s, token) : shared ? x_row(s, token) : expert_row(s, token);
        }
        s->kernels->tile(rows, x_dtype, n, of, panels * (1 + gated), shape.cols, results);
        for (int32_t p = 0; p < panels; p++)
            finish_mid(s, g, row, n, (first + p) * CPU_COLS, of[p * (1 + gated)].cols, results[p * (1 + gated)],
                       gated ? results[2 * p + 1] : NULL);
    }
}

/* ---- GEMM2 -------------------------------------------------------------------------- */

static void identity_columns(const run_state *s, const cpu_segment *g, int32_t col, int32_t cols)
{
    float x[CPU_MOST_PANELS * CPU_COLS];
    uint32_t each = moewe_dtype_bytes(s->cfg->x_dtype);
    for (int32_t r = 0; r < g->rows; r++) {
        int32_t pair = s->v.order[g->first + r], token = pair / s->cfg->top_k;
        s->kernels->to_f32(x, (const uint8_t *)expert_row(s, token) + (uint64_t)col * each, s->cfg->x_dtype, cols);
        s->kernels->add_scaled(expert_sum_row(s, token) + col, pair_weight(s, pair), x, cols);
    }
}

/* The panels from first on of an expert's result, added to its tokens' sums. */
static void expert_columns(const run_state *s, const cpu_segment *g, int32_t first, int32_t panels)
{
    const moewe_config *cfg = s->cfg;
    int shared = g->expert < 0, step = s->kernels->rows;
    int32_t inter = shared ? cfg->shared_inter : cfg->inter, expert = shared ? 0 : g->expert;
    const moewe_matrix *down = shared ? &s->w->shared_down : &s->w->down;
    moewe_shape shape = {cfg->n_local, shared ? cfg->hidden : moewe_expert_width(cfg), inter};
    int32_t x_dtype = mid_order(s, shared) ? CPU_X_ROUNDED : cfg->x_dtype;
    _Alignas(64) float c[CPU_MOST_PANELS][CPU_MOST_ROWS * CPU_COLS];
    cpu_panel of[CPU_MOST_PANELS];
    float *results[CPU_MOST_PANELS];
    const void *rows[CPU_MOST_ROWS];

    for (int32_t p = 0; p < panels; p++) {
        of[p] = cpu_panel_of(down, shape, expert, first + p);
        results[p] = c[p];
    }
    for (int32_t row = 0; row < g->rows; row += step) {
        int32_t n = g->rows - row < step ? g->rows - row : step;
        for (int32_t r = 0; r < n; r++) rows[r] = mid_row(s, g, row + r);
        s->kernels->tile(rows, x_dtype, n, of, panels, inter, results);
        for (int32_t r = 0; r < n; r++) {
            int32_t token = segment_token(s, g, row + r);
            float weight, *sum = shared ? sum_row(s, token) : expert_sum_row(s, token);
            if (shared)
                weight = s->v.shared[g->first + row + r];
            else if (cfg->flags & MOEWE_FLAG_WEIGHT_ON_INPUT)
                weight = 1.0f;
            else
                weight = pair_weight(s, s->v.order[g->first + row + r]);
            for (int32_t p = 0; p < panels; p++) {
                int32_t col = (first + p) * CPU_COLS;
                float *cr = c[p] + r * CPU_COLS;
                if (down->bias) add_bias(cr, down->bias + (int64_t)expert * shape.rows + col, of[p].cols);
                s->kernels->add_scaled(sum + col, weight, cr, of[p].cols);
            }
        }
    }
}

/* With latent experts their columns are not those of the shared one: tasks of each follow one another. */
static int32_t gemm2_tasks(const run_state *s)
{
    int32_t shared = s->cfg->latent && s->v.segments[s->n_segments - 1].expert < 0;
    return runs_of(moewe_expert_width(s->cfg), s->side) + (shared ? runs_of(s->cfg->hidden, s->side) : 0);
}

static void gemm2_task(const run_state *s, int32_t task)
{
    int32_t width = moewe_expert_width(s->cfg), runs = runs_of(width, s->side), only_shared = task >= runs;
    int32_t all = cpu_panels(only_shared ? s->cfg->hidden : width), first = (only_shared ? task - runs : task) * s->side;
    int32_t panels = all - first < s->side ? all - first : s->side, col = first * CPU_COLS;
    int32_t cols = width - col < panels * CPU_COLS ? width - col : panels * CPU_COLS;
    for (int32_t i = 0; i < s->n_segments; i++) {
        const cpu_segment *g = &s->v.segments[i];
        if (s->cfg->latent && (g->expert < 0) != only_shared) continue;
        if (g->expert >= s->cfg->n_local)
            identity_columns(s, g, col, cols);
        else
            expert_columns(s, g, first, panels);
    }
}

/* ---- phases -------------------------------------------------------------------------- */

static void do_task(void *state, int32_t task, int32_t thread)
{
    const run_state *s = state;
    switch (s->phase) {
    case PHASE_ROUTE: route_task(s, task, thread); break;
    case PHASE_GEMM1: gemm1_task(s, task); break;
    case PHASE_GEMM2: gemm2_task(s, task); break;
    case PHASE_LATENT_IN: latent_task(s, task, 1); break;
    case PHASE_LATENT_OUT: latent_task(s, task, 0); break;
    case PHASE_LATENT_SUM:
        for (int32_t t = task * COMBINE_TOKENS; t < s->tokens && t < (task + 1) * COMBINE_TOKENS; t++)
            s->kernels->from_f32((void *)(uintptr_t)expert_row(s, t), s->cfg->x_dtype, expert_sum_row(s, t), s->cfg->latent);
        break;
    default:
        for (int32_t t = task * COMBINE_TOKENS; t < s->tokens && t < (task + 1) * COMBINE_TOKENS; t++)
            s->kernels->from_f32(y_row(s, t), s->cfg->y_dtype, sum_row(s, t), s->cfg->hidden);
    }
}

static void enter(run_state *s, run_phase phase, int64_t tasks)
{
    s->phase = phase;
    s->tasks = (int32_t)tasks;
    atomic_store_explicit(&s->next, 0, memory_order_relaxed);
}

static void enter_chunk(run_state *s, int32_t token0)
{
    int32_t left = s->n_tokens - token0;
    s->token0 = token0;
    s->tokens = left < s->plan->choice.chunk_tokens ? left : s->plan->choice.chunk_tokens;
    s->expert = s->row = 0;
    if (s->tokens <= 0)
        enter(s, PHASE_DONE, 0);
    else
        enter(s, PHASE_ROUTE, on(s, MOEWE_STAGE_ROUTE) ? (s->tokens + ROUTE_TOKENS - 1) / ROUTE_TOKENS : 0);
}

static int32_t combine_tasks(const run_state *s)
{
    return (s->tokens + COMBINE_TOKENS - 1) / COMBINE_TOKENS;
}

static void enter_group(run_state *s)
{
    int more = (on(s, MOEWE_STAGE_GEMM1) || on(s, MOEWE_STAGE_GEMM2)) && build_group(s);
    if (!more) {
        enter(s, PHASE_LATENT_SUM, s->v.z && on(s, MOEWE_STAGE_COMBINE) ? combine_tasks(s) : 0);
        return;
    }
    int shared = s->v.segments[s->n_segments - 1].expert < 0;
    s->side = side_by_side(s, (int64_t)s->n_routed * cpu_panels(s->cfg->inter) + cpu_panels(s->cfg->shared_inter));
    int64_t tasks = (int64_t)s->n_routed * runs_of(s->cfg->inter, s->side) +
                    (shared ? runs_of(s->cfg->shared_inter, s->side) : 0);
    enter(s, PHASE_GEMM1, on(s, MOEWE_STAGE_GEMM1) ? tasks : 0);
}

/* From one phase to the next that has work; returns its tasks, 0 at the end. */
static int32_t advance(void *state)
{
    run_state *s = state;
    do {
        switch (s->phase) {
        case PHASE_START: enter_chunk(s, 0); break;
        case PHASE_ROUTE:
            enter(s, PHASE_LATENT_IN, s->v.z && on(s, MOEWE_STAGE_ROUTE) ? latent_tasks(s, s->cfg->latent) : 0);
            break;
        case PHASE_LATENT_IN:
            if (on(s, MOEWE_STAGE_SORT)) sort_pairs(s);
            enter_group(s);
            break;
        case PHASE_GEMM1:
            s->side = side_by_side(s, cpu_panels(moewe_expert_width(s->cfg)));
            enter(s, PHASE_GEMM2, on(s, MOEWE_STAGE_GEMM2) ? gemm2_tasks(s) : 0);
            break;
        case PHASE_GEMM2: enter_group(s); break;
        case PHASE_LATENT_SUM:
            enter(s, PHASE_LATENT_OUT, s->v.z && on(s, MOEWE_STAGE_COMBINE) ? latent_tasks(s, s->cfg->hidden) : 0);
            break;
        case PHASE_LATENT_OUT:
            enter(s, PHASE_COMBINE, s->v.acc && on(s, MOEWE_STAGE_COMBINE) ? combine_tasks(s) : 0);
            break;
        default: enter_chunk(s, s->token0 + s->tokens); break;
        }
    } while (!s->tasks && s->phase != PHASE_DONE);
    return s->tasks;
}

static void lent_thread(void *task, int32_t i, int32_t count)
{
    (void)count;
    run_state *s = task;
    for (;;) {
        int32_t at = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (at >= s->tasks) return;
        do_task(s, at, i);
    }
}

static moewe_status check_one_pass(const run_state *s)
{
    const moewe_config *cfg = s->cfg;
    if (s->first == MOEWE_STAGE_ROUTE && s->last == MOEWE_STAGE_COMBINE) return MOEWE_OK;
    uint64_t rows = moewe_mul((uint64_t)s->n_tokens, (uint64_t)cfg->top_k * cpu_mid_row_bytes(cfg, 0) +
                                                         cpu_mid_row_bytes(cfg, 1));
    if (s->n_tokens <= s->plan->choice.chunk_tokens && rows <= s->plan->choice.mid_bytes) return MOEWE_OK;
    return moewe_fail(MOEWE_E_UNSUPPORTED,
                      "moewe_run_stages: %d tokens take plan '%s' more than one pass (chunk of %d tokens, mid of %llu "
                      "bytes for up to %llu), single stages need one",
                      s->n_tokens, s->plan->name, s->plan->choice.chunk_tokens,
                      (unsigned long long)s->plan->choice.mid_bytes, (unsigned long long)rows);
}

moewe_status cpu_run(const moewe_plan *plan, const moewe_weights *w, const moewe_io *io, void *base, void *stream,
                     moewe_stage first, moewe_stage last)
{
    (void)stream;
    const moewe_config *cfg = &plan->cfg;
    const cpu_state *state = cpu_of(plan->dev);
    run_state s = {.plan = plan, .cfg = cfg, .kernels = state->kernels, .w = w, .io = io, .first = first, .last = last,
                   .act = {cfg->act, cfg->act_limit, cfg->act_alpha, cfg->act_beta},
                   .shared_act = {cfg->act, cfg->shared_limit, cfg->act_alpha, cfg->act_beta}, .n_tokens = io->n_tokens};
    carve c = {.base = base};
    cpu_book(plan, &c, &s.v);
    if (io->n_valid && *io->n_valid < s.n_tokens) s.n_tokens = *io->n_valid < 0 ? 0 : *io->n_valid;
    moewe_status status = check_one_pass(&s);
    if (status) return status;

    if (!plan->dev->executor.run) {
        cpu_job job = {advance, do_task, &s};
        cpu_threads_run(state->threads, &job);
        return MOEWE_OK;
    }
    while (advance(&s) > 0)
        plan->dev->executor.run(plan->dev->executor.ctx, lent_thread, &s, plan->dev->n_threads);
    return MOEWE_OK;
}
