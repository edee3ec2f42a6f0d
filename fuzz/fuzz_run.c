/* fuzz_run.c - bytes as a small layer of any kind, run in workspaces of exactly the size that its plan needs: without
 * a limit, at the floor and between, on one thread and on two, with plain and with packed weights.  The results must
 * be the same bits, and a sanitizer sees every access outside. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

enum { WIDTH = 70, EXPERTS = 12, TOKENS = 9, ARRAYS = 64 };

typedef struct layer {
    moewe_config cfg;
    moewe_weights w;
    moewe_io io;
    uint64_t seed;
    void *owned[ARRAYS];
    int n_owned;
    float *y_before;
    size_t y_bytes;
} layer;

static uint32_t random32(layer *l)
{
    l->seed = l->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(l->seed >> 33);
}

static void *own(layer *l, size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    FUZZ_MUST(p && l->n_owned < ARRAYS);
    return l->owned[l->n_owned++] = p;
}

/* Ordinary numbers below 1 in size, in any of the dtypes. */
static void *numbers(layer *l, size_t n, int32_t dtype)
{
    uint8_t *p = own(l, n * moewe_dtype_bytes(dtype));
    for (size_t i = 0; i < n; i++) {
        float f = (float)(int32_t)(random32(l) % 2001) / 1000.0f - 1.0f;
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        uint16_t half = dtype == MOEWE_DTYPE_BF16 ? (uint16_t)(bits >> 16) : (uint16_t)(random32(l) % 0x3c00 | (bits >> 31) << 15);
        if (dtype == MOEWE_DTYPE_F32)
            memcpy(p + 4 * i, &f, 4);
        else
            memcpy(p + 2 * i, &half, 2);
    }
    return p;
}

/* ---- weights with scales ---- */

/* Rows are so many elements or a multiple. */
static int32_t unit_of(int32_t dtype)
{
    switch (dtype) {
    case MOEWE_DTYPE_E2M1:
    case MOEWE_DTYPE_I4: return 2;
    case MOEWE_DTYPE_Q8_0:
    case MOEWE_DTYPE_Q4_0: return 32;
    case MOEWE_DTYPE_Q4_K:
    case MOEWE_DTYPE_Q6_K: return 256;
    default: return 1;
    }
}

static int32_t whole(int32_t n, int32_t dtype)
{
    int32_t unit = unit_of(dtype);
    return (n + unit - 1) / unit * unit;
}

/* Random codes, without a NaN: E4M3 and, in blocks, the f16 of d. */
static void *codes(layer *l, size_t bytes, int32_t dtype)
{
    static const struct { int32_t dtype, size, at, n; } blocks[] = {
        {MOEWE_DTYPE_Q8_0, 34, 0, 1}, {MOEWE_DTYPE_Q4_0, 18, 0, 1}, {MOEWE_DTYPE_Q4_K, 144, 0, 2},
        {MOEWE_DTYPE_Q6_K, 210, 208, 1}};
    uint8_t *p = own(l, bytes);
    for (size_t i = 0; i < bytes; i++) {
        p[i] = (uint8_t)(random32(l) >> 8);
        if (dtype == MOEWE_DTYPE_E4M3 && (p[i] & 0x7f) == 0x7f) p[i] ^= 0x40;
    }
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        for (size_t i = 0; dtype == blocks[b].dtype && i < bytes; i += (size_t)blocks[b].size)
            for (int32_t h = 0; h < blocks[b].n; h++) p[i + (size_t)(blocks[b].at + 2 * h + 1)] &= 0xbb; /* below 2 */
    return p;
}

/* Elements of any dtype in blocks of any form, a factor, both, or nothing. */
static moewe_scale scales(layer *l, int32_t n, int32_t rows, int32_t cols)
{
    static const int32_t dtypes[] = {MOEWE_DTYPE_F32, MOEWE_DTYPE_BF16, MOEWE_DTYPE_F16, MOEWE_DTYPE_E4M3,
                                     MOEWE_DTYPE_E8M0};
    static const int32_t high[] = {0, 1, 2, 5, 64, 128}, wide[] = {0, 16, 32, 64, 128, 192};
    moewe_scale s = {.dtype = dtypes[random32(l) % 5], .rows = high[random32(l) % 6], .cols = wide[random32(l) % 6]};
    int32_t block_rows = s.rows ? s.rows : rows, block_cols = s.cols ? s.cols : cols;
    size_t down = (size_t)((rows + block_rows - 1) / block_rows);
    size_t across = (size_t)((cols + block_cols - 1) / block_cols);
    size_t count = (size_t)n * down * across;
    uint32_t form = random32(l) % 8;
    if (form == 0) return (moewe_scale){0};
    if (form < 4) s.tensor = numbers(l, (size_t)n, MOEWE_DTYPE_F32);
    if (form == 1) return (moewe_scale){.tensor = s.tensor};
    if (s.dtype <= MOEWE_DTYPE_BF16) {
        s.data = numbers(l, count, s.dtype);
    } else {
        uint8_t *p = codes(l, count, MOEWE_DTYPE_E4M3);
        for (size_t i = 0; s.dtype == MOEWE_DTYPE_E8M0 && i < count; i++) p[i] = (uint8_t)(118 + p[i] % 12);
        s.data = p;
    }
    if (random32(l) % 4 == 0) { /* the columns' next to one another */
        s.row_stride = s.dtype == MOEWE_DTYPE_F32 ? 4 : s.dtype <= MOEWE_DTYPE_BF16 ? 2 : 1;
        s.col_stride = (int64_t)down * s.row_stride;
        s.expert_stride = (int64_t)across * s.col_stride;
    }
    return s;
}

static void *elements(layer *l, int32_t n, int32_t rows, int32_t cols, int32_t dtype)
{
    if (dtype <= MOEWE_DTYPE_BF16) return numbers(l, (size_t)n * (size_t)rows * (size_t)cols, dtype);
    return codes(l, (size_t)n * (size_t)rows * (size_t)moewe_dtype_row_bytes(dtype, cols), dtype);
}

static moewe_matrix matrix(layer *l, int32_t n, int32_t rows, int32_t cols, int32_t dtype, int biased)
{
    moewe_matrix m = {.data = elements(l, n, rows, cols, dtype), .dtype = dtype};
    if (biased) m.bias = numbers(l, (size_t)n * (size_t)rows, MOEWE_DTYPE_F32);
    if (dtype >= MOEWE_DTYPE_E4M3 && dtype <= MOEWE_DTYPE_I4) m.scale = scales(l, n, rows, cols);
    if (random32(l) % 4 == 0 && moewe_dtype_bytes(dtype)) { /* the same elements as the transpose of another matrix */
        m.row_stride = moewe_dtype_bytes(dtype);
        m.col_stride = (int64_t)rows * m.row_stride;
        m.expert_stride = (int64_t)cols * m.col_stride;
    }
    return m;
}

static void choose_config(layer *l, fuzz_reader *r)
{
    moewe_config *c = &l->cfg;
    MOEWE_INIT(*c);
    c->score = fuzz_range(r, MOEWE_SCORE_SOFTMAX, MOEWE_SCORE_GIVEN);
    c->act = fuzz_range(r, MOEWE_ACT_SWIGLU, MOEWE_ACT_GELU_TANH);
    c->hidden = fuzz_range(r, 1, WIDTH);
    c->inter = fuzz_range(r, 1, WIDTH);
    c->n_experts = fuzz_range(r, 1, EXPERTS);
    c->n_null = fuzz_range(r, 0, 3) ? 0 : fuzz_range(r, 1, 3);
    c->top_k = fuzz_range(r, 1, c->n_experts);
    c->max_tokens = fuzz_range(r, 1, TOKENS);
    c->first_expert = fuzz_range(r, 0, 2) ? 0 : fuzz_range(r, 0, c->n_experts - 1);
    c->n_local = fuzz_range(r, 0, c->n_experts - c->first_expert);
    if (!c->n_null && c->score < MOEWE_SCORE_SPARSEMIXER && c->n_experts % 2 == 0 && fuzz_range(r, 0, 1)) {
        c->n_group = 2;
        c->top_group = c->top_k > c->n_experts / 2 ? 2 : fuzz_range(r, 1, 2);
        c->group_best = fuzz_range(r, 0, c->n_experts / 2);
    }
    c->x_dtype = fuzz_range(r, 0, 1) ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32;
    c->y_dtype = fuzz_range(r, 0, 1) ? MOEWE_DTYPE_BF16 : MOEWE_DTYPE_F32;
    c->w_dtype = fuzz_range(r, MOEWE_DTYPE_F32, MOEWE_DTYPE_Q6_K);
    c->down_dtype = random32(l) % 2 ? 0 : MOEWE_DTYPE_F32 + (int32_t)(random32(l) % MOEWE_DTYPE_Q6_K);
    c->shared_inter = fuzz_range(r, 0, 1) ? fuzz_range(r, 0, WIDTH) : 0;
    c->latent = fuzz_range(r, 0, 2) ? 0 : fuzz_range(r, 0, WIDTH);
    c->hidden = whole(c->hidden, c->w_dtype);
    c->inter = whole(c->inter, c->down_dtype ? c->down_dtype : c->w_dtype);
    c->shared_inter = whole(c->shared_inter, c->w_dtype);
    c->latent = whole(c->latent, c->w_dtype);
    c->flags = (uint32_t)fuzz_range(r, 0, 3);
    if (c->score == MOEWE_SCORE_GIVEN) c->flags &= ~(uint32_t)MOEWE_FLAG_RENORMALIZE;
    c->act_limit = (float)fuzz_range(r, 0, 2);
    c->shared_limit = (float)fuzz_range(r, 0, 2);
    c->act_alpha = 1.702f;
    c->act_beta = (float)fuzz_range(r, 0, 1);
    c->logit_softcap = (float)fuzz_range(r, 0, 1) * 5.0f;
    c->sparsemixer_eps = (float)fuzz_range(r, 0, 2) * 0.1f;
    c->renorm_eps = (float)fuzz_range(r, 0, 1) * 1e-6f;
    c->renorm_floor = (float)fuzz_range(r, 0, 1) * 0.5f;
    c->routed_scale = (float)fuzz_range(r, 0, 2);
    c->shared_scale = (float)fuzz_range(r, 0, 2) * 0.5f;
}

static void make_weights(layer *l, fuzz_reader *r)
{
    const moewe_config *c = &l->cfg;
    moewe_weights *w = &l->w;
    int32_t n = c->n_local ? c->n_local : c->n_experts - c->first_expert, choices = c->n_experts + c->n_null;
    int32_t width = c->latent ? c->latent : c->hidden, gated = c->act < MOEWE_ACT_RELU2, bits = fuzz_range(r, 0, 255);
    MOEWE_INIT(*w);
    if (gated) w->gate = matrix(l, n, c->inter, width, c->w_dtype, bits & 1);
    w->up = matrix(l, n, c->inter, width, c->w_dtype, bits & 1);
    w->down = matrix(l, n, width, c->inter, c->down_dtype ? c->down_dtype : c->w_dtype, bits & 2);
    if (c->score != MOEWE_SCORE_GIVEN) w->router = matrix(l, 1, choices, c->hidden, MOEWE_DTYPE_F32, bits & 4);
    if (bits & 8 && c->score != MOEWE_SCORE_SPARSEMIXER) w->select_bias = numbers(l, (size_t)choices, MOEWE_DTYPE_F32);
    if (bits & 16) w->expert_scale = numbers(l, (size_t)choices, MOEWE_DTYPE_F32);
    if (c->latent) {
        w->latent_in = matrix(l, 1, c->latent, c->hidden, c->w_dtype, bits & 32);
        w->latent_out = matrix(l, 1, c->hidden, c->latent, c->w_dtype, bits & 32);
    }
    if (!c->shared_inter) return;
    if (gated) w->shared_gate = matrix(l, 1, c->shared_inter, c->hidden, c->w_dtype, 0);
    w->shared_up = matrix(l, 1, c->shared_inter, c->hidden, c->w_dtype, bits & 64);
    w->shared_down = matrix(l, 1, c->hidden, c->shared_inter, c->w_dtype, 0);
    if (bits & 128) w->shared_scale = matrix(l, 1, 1, c->hidden, MOEWE_DTYPE_F32, 0);
}

static int32_t *some_ids(layer *l, size_t n, int32_t low, int32_t high)
{
    int32_t *ids = own(l, n * sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = low + (int32_t)(random32(l) % (uint32_t)(high - low + 1));
    return ids;
}

static void make_io(layer *l, fuzz_reader *r)
{
    const moewe_config *c = &l->cfg;
    moewe_io *io = &l->io;
    int32_t n = fuzz_range(r, 0, c->max_tokens), choices = c->n_experts + c->n_null, bits = fuzz_range(r, 0, 255);
    size_t rows = (size_t)n, slots = rows * (size_t)c->top_k;
    MOEWE_INIT(*io);
    io->n_tokens = n;
    io->x = numbers(l, rows * (size_t)c->hidden, c->x_dtype);
    l->y_bytes = rows * (size_t)c->hidden * moewe_dtype_bytes(c->y_dtype);
    l->y_before = numbers(l, rows * (size_t)c->hidden, c->y_dtype);
    io->y_add = bits & 1;
    if (bits & 2) io->n_valid = some_ids(l, 1, 0, n);
    if (c->score == MOEWE_SCORE_GIVEN) {
        io->topk_ids = some_ids(l, slots, -1, choices);
        io->topk_weights = numbers(l, slots, MOEWE_DTYPE_F32);
        return;
    }
    if (bits & 4) io->logits = numbers(l, rows * (size_t)choices, MOEWE_DTYPE_F32);
    if (bits & 8 && c->score < MOEWE_SCORE_SPARSEMIXER) {
        l->w.hash_rows = 5;
        l->w.hash_ids = some_ids(l, 5 * (size_t)c->top_k, -1, choices);
        io->token_ids = some_ids(l, rows, -1, 5);
    }
}

/* y of one run in a workspace of exactly its size; NULL when the limit is below the floor. */
static void *run_once(layer *l, int32_t threads, uint64_t limit, int packed, int fill)
{
    const moewe_device *dev = fuzz_device(threads);
    moewe_config c = l->cfg;
    moewe_plan *plan = NULL;
    moewe_need need, room;
    moewe_weights w = l->w;
    moewe_io io = l->io;
    void *pack = NULL, *y = malloc(l->y_bytes ? l->y_bytes : 1);
    c.workspace_limit = limit;
    FUZZ_MUST(y && moewe_plan_create(dev, &c, &plan) == MOEWE_OK && moewe_plan_need(plan, &need) == MOEWE_OK);
    if (l->y_bytes) memcpy(y, l->y_before, l->y_bytes);
    if (packed) {
        FUZZ_MUST(moewe_weights_need(plan, &l->w, &room) == MOEWE_OK);
        pack = aligned_alloc(room.align, (size_t)room.bytes);
        FUZZ_MUST(pack && moewe_weights_pack(plan, &l->w, (moewe_span){pack, room.bytes}, NULL, &w) == MOEWE_OK);
    }
    void *workspace = aligned_alloc(need.align, (size_t)need.bytes);
    FUZZ_MUST(workspace);
    memset(workspace, fill, (size_t)need.bytes);
    io.y = y;
    FUZZ_MUST(moewe_run(plan, &w, &io, (moewe_span){workspace, need.bytes}, NULL) == MOEWE_OK);
    if (io.n_tokens) FUZZ_MUST(moewe_run(plan, &w, &io, (moewe_span){workspace, need.bytes - 1}, NULL) == MOEWE_E_WS_SMALL);
    free(workspace);
    free(pack);
    moewe_plan_destroy(plan);
    return y;
}

static void compare(layer *l, const void *wanted, int32_t threads, uint64_t limit, int packed, int fill)
{
    void *y = run_once(l, threads, limit, packed, fill);
    FUZZ_MUST(memcmp(y, wanted, l->y_bytes) == 0);
    free(y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_reader r = {data, size};
    layer l = {.seed = fuzz_take(&r, 2)};
    moewe_need fast, floor;
    moewe_plan *plan = NULL;
    uint64_t part = fuzz_take(&r, 1);
    choose_config(&l, &r);
    make_weights(&l, &r);
    make_io(&l, &r);
    FUZZ_MUST(moewe_plan_create(fuzz_device(1), &l.cfg, &plan) == MOEWE_OK);
    FUZZ_MUST(moewe_plan_need(plan, &fast) == MOEWE_OK && moewe_plan_floor(fuzz_device(1), &l.cfg, &floor) == MOEWE_OK);
    moewe_plan_destroy(plan);

    void *y = run_once(&l, 1, 0, 0, 0);
    compare(&l, y, 1, 0, 1, 0xff);
    compare(&l, y, 1, floor.bytes, 0, 0xff);
    compare(&l, y, 1, floor.bytes + (fast.bytes - floor.bytes) * part / 256, 1, 0x7f);
    compare(&l, y, 2, 0, 0, 0x80);
    free(y);
    for (int i = 0; i < l.n_owned; i++) free(l.owned[i]);
    return 0;
}
