/* internal.h - what the files of planner/ share: the walk over a model's tensors and caches as one rank has them.
 * Never included outside planner/. */
#ifndef MOEWE_PLANNER_INTERNAL_H
#define MOEWE_PLANNER_INTERNAL_H

#include <stdlib.h>
#include <string.h>

#include "../formats/family.h"
#include "planner.h"

struct planner_model {
    char *file;           /* for messages */
    json_t *root;         /* the document */
    json_t *hf;           /* hf_quant_config.json, or NULL */
    family *family;
    weight_quant quant;
    planner_facts facts;
};

/* One kind of tensor of one layer, as one rank has it. */
typedef struct planner_tensor {
    planner_part part;
    const char *module;  /* name without ".weight" */
    int64_t layer;       /* -1: outside the layers */
    uint64_t count;      /* of them: local experts, or 1 */
    uint64_t rows, cols; /* of a vector rows is 1 */
    int matrix;          /* may be quantised */
    int of_expert;
    uint32_t stored;     /* bytes of an element, where no format says: a table of ids; 0 elsewhere */
    const char *inner_name; /* of what is cut inside it, or NULL */
    int64_t inner;          /* the whole of it */
    int32_t inner_parts;
} planner_tensor;

typedef int (*planner_tensor_fn)(void *ctx, const planner_tensor *t);

/* Every tensor of the model as rank 0 of the deployment has it; stops at the first nonzero result. */
int planner_walk(const planner_model *m, const planner_shard *s, planner_tensor_fn fn, void *ctx, fmt_error *e);

/* Of one sequence on one rank. */
typedef struct planner_cache {
    uint64_t per_token;   /* elements, in layers that keep every token */
    uint64_t window;      /* elements, in layers that keep a window, of a context this long */
    uint64_t state_bytes;
} planner_cache;
int planner_cache_of(const planner_model *m, const planner_shard *s, int64_t context, planner_cache *out, fmt_error *e);

/* A MoE layer's config on one rank: widths, experts; dtypes, max_tokens and limit left at 0. */
int planner_moe_of(const planner_model *m, const planner_shard *s, int32_t layer, moewe_config *out, fmt_error *e);

int planner_is_gated(const planner_model *m);

/* Module of a tensor of the layer's block, as the descriptor names it; {e} is expert 0. */
enum { PLANNER_MODULE_BYTES = 256 };
void planner_block_module(const planner_model *m, int32_t layer, const char *name, char buf[PLANNER_MODULE_BYTES]);

/* A matrix of cols columns in the format that q gives the module, or plain where moewe has none such. */
moewe_matrix planner_matrix_of(const weight_quant *q, const char *module, int of_expert, int64_t cols);

/* Sets w_dtype and down_dtype, as planner_matrix_of has them. */
void planner_expert_dtypes(const planner_model *m, const weight_quant *q, int32_t layer, moewe_config *c);
/* The experts' matrices likewise: up (and gate), down. */
void planner_expert_matrices(const planner_model *m, const weight_quant *q, int32_t layer, const moewe_config *c,
                             moewe_matrix *up, moewe_matrix *down);

/* Fills the defaults and checks that the counts of ranks go together. */
int planner_shard_of(const planner_facts *f, const planner_ask *ask, planner_shard *out, fmt_error *e);

/* *sum += value; -1 when that does not fit. */
static inline int planner_add(uint64_t *sum, uint64_t value)
{
    return __builtin_add_overflow(*sum, value, sum) ? -1 : 0;
}

#endif
