/* fuzz_run.c - bytes as a small layer of any kind, run in workspaces of exactly the size that its plan needs: without
 * a limit, at the floor and between, on one thread and on two, with plain and with packed weights.  The results must
 * be the same bits, and a sanitizer sees every access outside. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

enum { WIDTH = 70, EXPERTS = 12, TOKENS = 9, ARRAYS = 40 };

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

static moewe_matrix matrix(layer *l, int32_t n, int32_t rows, int32_t cols, int32_t dtype, int biased)
{
    moewe_matrix m = {.data = numbers(l, (size_t)n * (size_t)rows * (size_t)cols, dtype), .dtype = dtype};
    if (biased) m.bias = numbers(l, (size_t)n * (size_t)rows, MOEWE_DTYPE_F32);
    if (random32(l) % 4 == 0) { /* the same elements as the transpose of another matrix */
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
    c->w_dtype = fuzz_range(r, MOEWE_DTYPE_F32, MOEWE_DTYPE_BF16);
    c->shared_inter = fuzz_range(r, 0, 1) ? fuzz_range(r, 0, WIDTH) : 0;
    c->latent = fuzz_range(r, 0, 2) ? 0 : fuzz_range(r, 0, WIDTH);
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
    w->down = matrix(l, n, width, c->inter, c->w_dtype, bits & 2);
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
