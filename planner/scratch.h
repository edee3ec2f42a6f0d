/* scratch.h - what other libraries' layouts of scratch memory take for the same call, as arithmetic: docs/planner.md
 * says where each comes from.  Never used to plan anything; only to compare. */
#ifndef MOEWE_PLANNER_SCRATCH_H
#define MOEWE_PLANNER_SCRATCH_H

#include <stdint.h>

#include "../formats/error.h"

/* Of the values between the two GEMMs: bits of one, and bytes of a scale for each scale_group of them. */
typedef struct planner_mid {
    const char *name;
    uint32_t bits, scale_group, scale_bytes;
} planner_mid;

extern const planner_mid planner_mid_bf16, planner_mid_fp8, planner_mid_nvfp4, planner_mid_mxfp4;

/* One call of one layer on one rank. */
typedef struct planner_call {
    uint64_t tokens;   /* in the call, after any gather */
    uint64_t top_k;
    uint64_t experts;  /* in all */
    uint64_t n_local;  /* on this rank */
    uint64_t width;    /* that experts read and write: hidden, or the latent width */
    uint64_t inter;    /* on this rank */
    int gated;
    planner_mid mid;
    uint64_t layers;   /* MoE layers */
} planner_call;

typedef enum planner_layout {
    PLANNER_ONE_PASS,      /* activated rows of all pairs and 8 bytes of maps each */
    PLANNER_PER_CALL,      /* trtllm-gen style: padded rows of both GEMMs */
    PLANNER_CUTLASS,       /* FlashInfer CUTLASS: permuted copies, un-activated rows, scales */
    PLANNER_CUTEDSL,       /* CuteDSL wrapper of one layer, with its own output */
    PLANNER_PER_LAYER,     /* that in each layer */
    PLANNER_BATCHED,       /* [local expert][token] rows, twice */
    PLANNER_LAYOUT_COUNT
} planner_layout;

const char *planner_layout_name(planner_layout layout); /* for JSON: "one_pass" */
const char *planner_layout_text(planner_layout layout); /* for people */

/* UINT64_MAX when the bytes do not fit in 64 bits. */
uint64_t planner_scratch(planner_layout layout, const planner_call *c);

/* One pass over tokens of a chunk instead of all. */
uint64_t planner_chunk(const planner_call *c, uint64_t chunk);

#endif
