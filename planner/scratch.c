/* scratch.c - sizes of scratch memory in the layouts of other libraries, read from their sources and checked against
 * figures that people measured (tests/planner/test_scratch.c).  T tokens, k experts a token, P = T * k pairs, X width,
 * I inner width, L local experts.  Sums saturate: UINT64_MAX stands for "does not fit". */
#include "scratch.h"

#include <stddef.h>

const planner_mid planner_mid_bf16 = {"bf16", 16, 0, 0};
const planner_mid planner_mid_fp8 = {"fp8", 8, 128, 4}; /* f32 scales */
const planner_mid planner_mid_nvfp4 = {"nvfp4", 4, 16, 1};
const planner_mid planner_mid_mxfp4 = {"mxfp4", 4, 32, 1};

static uint64_t mul(uint64_t a, uint64_t b)
{
    uint64_t r;
    return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t r;
    return __builtin_add_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t up(uint64_t x, uint64_t to)
{
    uint64_t more = add(x, to - 1);
    return more == UINT64_MAX ? more : more / to * to;
}

static uint64_t min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* n values of the type between the GEMMs, without and with their scales. */
static uint64_t values(const planner_mid *m, uint64_t n)
{
    uint64_t bits = mul(n, m->bits);
    return bits == UINT64_MAX ? bits : (bits + 7) / 8;
}

static uint64_t with_scales(const planner_mid *m, uint64_t rows, uint64_t width)
{
    uint64_t groups = m->scale_group ? (width + m->scale_group - 1) / m->scale_group : 0;
    return add(values(m, mul(rows, width)), mul(mul(rows, groups), m->scale_bytes));
}

/* ---- one pass ------------------------------------------------------------------------------------- */

uint64_t planner_chunk(const planner_call *c, uint64_t chunk)
{
    uint64_t pairs = mul(min(chunk, c->tokens), c->top_k);
    return add(with_scales(&c->mid, pairs, c->inter), mul(pairs, 8));
}

/* ---- FlashInfer CUTLASS: getWorkspaceDeviceBufferSizes ------------------------------------------------- */

enum { CUTLASS_ALIGN = 128, CUTLASS_EXPERT_TABLE = 236 };

static uint64_t cutlass_blocks(uint64_t tokens, uint64_t n_local)
{
    uint64_t n = 32;
    while (n < 1024 && mul((tokens + n - 1) / n, n_local) > n) n *= 2;
    return (tokens + n - 1) / n;
}

/* Scale factors of block-scaled activations: rows padded for each expert, columns to what the swizzle holds. */
static uint64_t cutlass_scales(const planner_call *c, uint64_t pairs)
{
    uint64_t rows = add(min(pairs, mul(c->tokens, c->n_local)), mul(c->n_local, 127));
    uint64_t wide = max(c->width, c->inter), group = c->mid.scale_group;
    if (c->mid.bits >= 16 || group > 32) return 0; /* 128-wide f32 scales have another path */
    return mul(up(rows, 128), up(wide, group * 4) / group);
}

static uint64_t cutlass(const planner_call *c)
{
    uint64_t pairs = mul(c->tokens, c->top_k), wide = mul(mul(pairs, c->width), 2);
    uint64_t activated = values(&c->mid, mul(pairs, c->inter));
    /* the first GEMM's result before activation, when the activated one has another dtype */
    uint64_t raw = c->mid.bits == 16 ? 0 : mul(mul(mul(pairs, c->inter), 2), c->gated ? 2 : 1);
    uint64_t counts = mul(mul(cutlass_blocks(c->tokens, c->n_local), c->n_local), 4);
    const uint64_t parts[] = {
        mul(pairs, 4),                                                    /* permuted row to row */
        mul(pairs, 4),                                                    /* permuted experts */
        counts,                                                           /* blocked counts */
        counts,                                                           /* their sums */
        mul(mul(c->n_local, c->tokens), 4),                               /* blocked row to row: experts times tokens */
        mul(add(c->n_local, 1), 8),                                       /* first token of each expert */
        mul(pairs, 4),                                                    /* final scales */
        max(max(values(&c->mid, mul(pairs, c->width)), wide), activated), /* inputs: permuted x and GEMM 2's result */
        max(max(raw, wide), activated),                                   /* outputs: GEMM 1's result */
        mul(c->n_local, 8),                                               /* pointers of alpha scales */
        mul(c->n_local, 8),
        cutlass_scales(c, pairs),
        mul(c->n_local, CUTLASS_EXPERT_TABLE), /* problem shapes, strides and pointers of each GEMM */
        mul(c->n_local, CUTLASS_EXPERT_TABLE),
        mul(pairs, 4), /* source to destination */
    };
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) sum = add(sum, up(parts[i], CUTLASS_ALIGN));
    return sum;
}

/* ---- trtllm-gen: one allocation a buffer in each call --------------------------------------------------- */

enum { TRTLLM_TILE = 128 };

static uint64_t trtllm(const planner_call *c)
{
    uint64_t pairs = mul(c->tokens, c->top_k), full = min(c->experts, pairs);
    uint64_t tiles = add(full, (pairs - full) / TRTLLM_TILE), rows = mul(tiles, TRTLLM_TILE);
    uint64_t index = add(add(mul(c->experts, 4), 4 + 4), add(mul(pairs, 4 + 4 + 2), mul(add(rows, 1), 4)));
    index = add(index, add(mul(max(mul(c->experts, 2), 512), 4), mul(tiles, 4 + 4)));
    return add(add(with_scales(&c->mid, rows, c->inter), mul(mul(rows, c->width), 2)), index);
}

/* ---- CuteDSL: a wrapper that keeps its buffers ---------------------------------------------------------- */

enum { CUTEDSL_TILE = 256 };

static uint64_t cutedsl(const planner_call *c)
{
    uint64_t pairs = mul(c->tokens, c->top_k), t = CUTEDSL_TILE;
    uint64_t tiles = pairs <= c->n_local ? pairs : add(c->n_local, (pairs - c->n_local) / t);
    uint64_t rows = mul(tiles, t);
    uint64_t sort = add(mul(tiles, 4 + 4), add(mul(pairs, 4), add(mul(rows, 4), 4 + 4)));
    return add(add(with_scales(&c->mid, rows, c->inter), mul(mul(c->tokens, c->width), 2)), sort);
}

/* ---- batched experts: room for every token with every local expert --------------------------------------- */

static uint64_t batched(const planner_call *c)
{
    uint64_t rows = mul(c->n_local, c->tokens);
    uint64_t first = max(mul(c->inter, c->gated ? 2 : 1), c->width), second = max(c->inter, c->width);
    return add(mul(mul(rows, first), 2), mul(mul(rows, second), 2));
}

uint64_t planner_scratch(planner_layout layout, const planner_call *c)
{
    switch (layout) {
    case PLANNER_ONE_PASS:
        return planner_chunk(c, c->tokens);
    case PLANNER_PER_CALL:
        return trtllm(c);
    case PLANNER_CUTLASS:
        return cutlass(c);
    case PLANNER_CUTEDSL:
        return cutedsl(c);
    case PLANNER_PER_LAYER:
        return mul(cutedsl(c), c->layers);
    case PLANNER_BATCHED:
        return batched(c);
    case PLANNER_LAYOUT_COUNT:
        break;
    }
    return UINT64_MAX;
}

static const struct {
    const char *name, *text;
} layouts[PLANNER_LAYOUT_COUNT] = {
    [PLANNER_ONE_PASS] = {"one_pass", "one pass over all pairs: activated rows and 8 bytes of maps a pair"},
    [PLANNER_PER_CALL] = {"per_call", "allocated in every call (trtllm-gen layout, tiles of 128)"},
    [PLANNER_CUTLASS] = {"flashinfer_cutlass", "FlashInfer CUTLASS workspace (permuted copies)"},
    [PLANNER_CUTEDSL] = {"one_layer", "kept by one layer's wrapper (CuteDSL layout, tiles of 256)"},
    [PLANNER_PER_LAYER] = {"per_layer", "kept by the wrapper of every layer"},
    [PLANNER_BATCHED] = {"batched", "batched experts (every token for every local expert)"},
};

const char *planner_layout_name(planner_layout layout)
{
    return (unsigned)layout < PLANNER_LAYOUT_COUNT ? layouts[layout].name : "?";
}

const char *planner_layout_text(planner_layout layout)
{
    return (unsigned)layout < PLANNER_LAYOUT_COUNT ? layouts[layout].text : "?";
}
