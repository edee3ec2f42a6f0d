/* check_plan.c - the rules of a plan's sizes, checked for one config from outside, through the public header.  The
 * sums are done again in 128 bits; must not use the library's own arithmetic. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_regions(const moewe_plan *plan, moewe_need need)
{
    unsigned __int128 sum = 0;
    uint64_t end = 0;
    moewe_region r, before = {0};
    int32_t n = moewe_plan_region_count(plan);
    FUZZ_MUST(n > 0 && need.bytes && need.align && !(need.align & (need.align - 1)) && !(need.bytes % need.align));
    for (int32_t i = 0; i < n; i++) {
        FUZZ_MUST(moewe_plan_region(plan, i, &r) == MOEWE_OK);
        FUZZ_MUST(r.name && r.name[0] && r.bytes && r.offset % need.align == 0 && r.offset < need.bytes);
        FUZZ_MUST(r.bytes <= need.bytes - r.offset);
        FUZZ_MUST(r.first_stage >= 0 && r.first_stage <= r.last_stage && r.last_stage < MOEWE_STAGE_COUNT);
        if (i) FUZZ_MUST(r.offset >= before.offset);
        for (int32_t k = 0; k < i; k++) {
            moewe_region o;
            FUZZ_MUST(moewe_plan_region(plan, k, &o) == MOEWE_OK);
            int apart = o.offset + o.bytes <= r.offset || r.offset + r.bytes <= o.offset;
            FUZZ_MUST(apart || o.last_stage < r.first_stage || r.last_stage < o.first_stage);
        }
        sum += r.bytes;
        if (r.offset + r.bytes > end) end = r.offset + r.bytes;
        before = r;
    }
    FUZZ_MUST(end == need.bytes && sum >= need.bytes); /* no gaps, and nothing behind the last region */
    FUZZ_MUST(moewe_plan_region(plan, n, &r) == MOEWE_E_ARG && moewe_plan_region(plan, -1, &r) == MOEWE_E_ARG);
}

static void check_text(const moewe_plan *plan)
{
    char part[64];
    size_t length = moewe_plan_describe(plan, NULL, 0);
    char *whole = malloc(length + 1);
    FUZZ_MUST(whole && moewe_plan_describe(plan, whole, length + 1) == length && strlen(whole) == length);
    FUZZ_MUST(length && whole[length - 1] == '\n');
    FUZZ_MUST(moewe_plan_describe(plan, part, sizeof part) == length);
    FUZZ_MUST(strlen(part) == (length < sizeof part ? length : sizeof part - 1) && !strncmp(part, whole, strlen(part)));
    free(whole);
}

/* What n lanes of this plan take together. */
static void check_lanes(const moewe_device *dev, const moewe_plan *plan, moewe_need need, int32_t n)
{
    unsigned __int128 all = (unsigned __int128)need.bytes * (unsigned)n;
    moewe_workspace *ws = NULL;
    moewe_need total = {0};
    FUZZ_MUST(moewe_workspace_create(dev, n, &ws) == MOEWE_OK && moewe_workspace_reserve(ws, plan) == MOEWE_OK);
    if (moewe_workspace_need(ws, &total) == MOEWE_OK)
        FUZZ_MUST(total.bytes == all && total.align == need.align);
    else
        FUZZ_MUST(all >= UINT64_MAX);
    moewe_workspace_destroy(ws);
}

/* How many elements of a dtype lie in how many bytes, and how many bytes one takes where each is packed by itself. */
static uint32_t stored(int32_t dtype, uint32_t *bytes, uint32_t *alone)
{
    *alone = dtype == MOEWE_DTYPE_F32 ? 4 : dtype <= MOEWE_DTYPE_BF16 ? 2 : 1;
    *bytes = *alone;
    switch (dtype) {
    case MOEWE_DTYPE_E2M1:
    case MOEWE_DTYPE_I4: return 2;
    case MOEWE_DTYPE_Q8_0: *bytes = 34; return 32;
    case MOEWE_DTYPE_Q4_0: *bytes = 18; return 32;
    case MOEWE_DTYPE_Q4_K: *bytes = 144; return 256;
    case MOEWE_DTYPE_Q6_K: *bytes = 210; return 256;
    default: return 1;
    }
}

typedef struct sizes { unsigned __int128 least, most; } sizes;

/* Every bit at least once; padded to 16 rows and 32 columns at most, an eighth for scales, and alignment of matrices
 * and of every 64 rows. */
static void add_matrix(sizes *s, int64_t n, int64_t rows, int64_t cols, int32_t dtype)
{
    uint32_t bytes, alone, together = stored(dtype, &bytes, &alone);
    unsigned __int128 padded = (unsigned __int128)(unsigned)((rows + 15) / 16 * 16) * (unsigned)((cols + 31) / 32 * 32);
    s->least += (unsigned __int128)n * (unsigned __int128)rows * (unsigned __int128)(cols / together) * bytes;
    s->most += (unsigned __int128)n * (padded * alone + padded / 8 + 64 * (unsigned __int128)(rows / 64 + 2)) + 64;
}

/* Packed weights hold every element at least once, and not much more; the views are never followed. */
static void check_weights(const moewe_plan *plan, const moewe_config *c)
{
    static const float anything;
    int gated = c->act < MOEWE_ACT_RELU2;
    int64_t n = c->n_local ? c->n_local : c->n_experts - c->first_expert, width = c->latent ? c->latent : c->hidden;
    int32_t w_dtype = c->w_dtype ? c->w_dtype : MOEWE_DTYPE_F32, down_dtype = c->down_dtype ? c->down_dtype : w_dtype;
    int32_t dense_dtype = w_dtype <= MOEWE_DTYPE_BF16 ? w_dtype : MOEWE_DTYPE_E4M3; /* whose rows may be any width */
    const moewe_matrix m = {.data = &anything, .dtype = w_dtype}, dense = {.data = &anything, .dtype = dense_dtype};
    sizes s = {0, 0};
    moewe_weights w;
    moewe_need need;
    MOEWE_INIT(w);
    w.up = w.down = m;
    w.down.dtype = down_dtype;
    if (gated) w.gate = m;
    for (int i = 0; i <= gated; i++) add_matrix(&s, n, c->inter, width, w_dtype);
    add_matrix(&s, n, width, c->inter, down_dtype);
    if (c->shared_inter) {
        w.shared_up = w.shared_down = dense;
        if (gated) w.shared_gate = dense;
        for (int i = 0; i <= gated; i++) add_matrix(&s, 1, c->shared_inter, c->hidden, dense_dtype);
        add_matrix(&s, 1, c->hidden, c->shared_inter, dense_dtype);
    }
    if (c->latent) {
        w.latent_in = w.latent_out = dense;
        add_matrix(&s, 1, c->latent, c->hidden, dense_dtype);
        add_matrix(&s, 1, c->hidden, c->latent, dense_dtype);
    }
    if (moewe_weights_need(plan, &w, &need) == MOEWE_OK)
        FUZZ_MUST(need.bytes >= s.least && need.bytes <= s.most);
    else
        FUZZ_MUST(s.most >= UINT64_MAX);
}

static void check_limit(const moewe_device *dev, moewe_config c, uint64_t limit, moewe_need floor, moewe_need fast)
{
    moewe_plan *plan = NULL;
    moewe_need need;
    c.workspace_limit = limit;
    if (!limit) return;
    moewe_status s = moewe_plan_create(dev, &c, &plan);
    if (limit < floor.bytes) {
        FUZZ_MUST(s == MOEWE_E_WS_LIMIT && !plan);
        return;
    }
    FUZZ_MUST(s == MOEWE_OK && moewe_plan_need(plan, &need) == MOEWE_OK);
    FUZZ_MUST(need.bytes <= limit && need.bytes >= floor.bytes && need.bytes <= fast.bytes);
    if (limit >= fast.bytes) FUZZ_MUST(need.bytes == fast.bytes); /* room that nothing needs is not taken */
    check_regions(plan, need);
    moewe_plan_destroy(plan);
}

/* Without a limit, 0 when the config is refused. */
static uint64_t bytes_of(const moewe_device *dev, moewe_config c, int32_t max_tokens, uint64_t limit)
{
    moewe_plan *plan = NULL;
    moewe_need need = {0};
    c.max_tokens = max_tokens;
    c.workspace_limit = limit;
    if (moewe_plan_create(dev, &c, &plan)) return 0;
    FUZZ_MUST(moewe_plan_need(plan, &need) == MOEWE_OK);
    moewe_plan_destroy(plan);
    return need.bytes;
}

static void check_growth(const moewe_device *dev, const moewe_config *c, moewe_need floor, uint64_t limit)
{
    int32_t t = c->max_tokens, more[] = {t, t < INT32_MAX ? t + 1 : t, t < INT32_MAX / 2 ? 2 * t : INT32_MAX, INT32_MAX};
    for (int32_t i = 1; i < 4; i++) {
        moewe_config larger = *c;
        moewe_need its_floor;
        larger.max_tokens = more[i];
        FUZZ_MUST(moewe_plan_floor(dev, &larger, &its_floor) == MOEWE_OK && its_floor.bytes == floor.bytes);
        FUZZ_MUST(bytes_of(dev, *c, more[i - 1], 0) <= bytes_of(dev, *c, more[i], 0));
        if (limit >= floor.bytes)
            FUZZ_MUST(bytes_of(dev, *c, more[i - 1], limit) <= bytes_of(dev, *c, more[i], limit));
    }
}

int fuzz_check_plan(const moewe_device *dev, const moewe_config *cfg, uint64_t extra_limit)
{
    moewe_config c = *cfg;
    moewe_plan *plan = NULL;
    moewe_need need, floor;
    c.workspace_limit = 0;
    moewe_status s = moewe_plan_create(dev, &c, &plan), floor_status = moewe_plan_floor(dev, &c, &floor);
    if (s) {
        FUZZ_MUST(!plan && s != MOEWE_E_WS_LIMIT && s != MOEWE_E_INTERNAL);
        FUZZ_MUST(floor_status == s || floor_status == MOEWE_OK); /* too large for 64 bits only without a limit */
        fuzz_check_sentence(moewe_last_error(), 512);
        return 0;
    }
    FUZZ_MUST(floor_status == MOEWE_OK && moewe_plan_need(plan, &need) == MOEWE_OK);
    FUZZ_MUST(floor.bytes && floor.bytes <= need.bytes && floor.align == need.align && floor.place == need.place);
    check_regions(plan, need);
    check_text(plan);
    check_lanes(dev, plan, need, 1 + (int32_t)(extra_limit % 4096));
    check_weights(plan, cfg);
    moewe_plan_destroy(plan);

    uint64_t between = floor.bytes + (need.bytes - floor.bytes) / 2;
    const uint64_t limits[] = {1,          floor.bytes - 1, floor.bytes,    floor.bytes + 1, between,
                               need.bytes, UINT64_MAX,      need.bytes - 1, extra_limit};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) check_limit(dev, c, limits[i], floor, need);
    check_growth(dev, &c, floor, extra_limit);
    check_growth(dev, &c, floor, between);
    return 1;
}
