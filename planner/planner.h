/* planner.h - what a model takes on each rank of a deployment, from its config.json alone: weights, KV cache, recurrent
 * state, the moewe workspace; whether that fits a budget, and which one change would make it.  Needs no weights and no
 * GPU.  Family knowledge is formats/family.h's; the workspace is a moewe_plan's; nothing here has a formula of its own
 * for either. */
#ifndef MOEWE_PLANNER_PLANNER_H
#define MOEWE_PLANNER_PLANNER_H

#include <stddef.h>
#include <stdint.h>

#include <moewe.h>

#include "../formats/error.h"
#include "../formats/weight_format.h"
#include "scratch.h"

/* ---- the model ------------------------------------------------------------------------------------------------ */

typedef struct planner_model planner_model;

/* path: a config.json, a folder that holds one, or, where no such file is, the name of a model that this program knows
 * ("nemotron-3-super", "openai/gpt-oss-20b").  A file may also hold the config under "config". */
int  planner_open(const char *path, planner_model **out, fmt_error *e);
void planner_close(planner_model *m); /* NULL is allowed */

typedef struct planner_facts {
    const char *file;       /* for messages: a path, or "NAME (built in)" */
    const char *model_type; /* as config.json says */
    const char *family;     /* whose row describes it */
    const char *quant;      /* quant_method, or "none" */
    int exact;              /* the tensor list was compared with a checkpoint of this family */
    int32_t n_layers, n_moe_layers;
    int64_t max_position;   /* 0 = the config does not say */
    int64_t hidden, inter, shared_inter, latent, n_experts, n_null, top_k; /* of the widest MoE layer */
    int gated;
    uint64_t params, routed_params; /* of the language model, without multi-token prediction */
} planner_facts;

const planner_facts *planner_model_facts(const planner_model *m);

/* Names of the models that are built in; NULL past the end. */
const char *planner_known_name(size_t index);

/* ---- the question --------------------------------------------------------------------------------------------- */

typedef struct planner_ask {
    const weight_format *weights; /* of what the checkpoint quantises (of all matrices, when it does not); NULL = its own */
    int32_t  kv_fp8;          /* 1 = fp8, 0 = bf16, -1 = fp8 where the config asks for it, else bf16 */
    int32_t  dtype;           /* moewe_dtype of the layers' activations */
    int32_t  tokens;          /* that one rank may batch */
    int64_t  context;         /* tokens of a sequence; 0 = the model's maximum, or 4096 */
    int64_t  sequences;       /* on each data-parallel rank; 0 = 1 */
    int32_t  tp, ep, dp;      /* 0 = 1, but dp: the fewest that ep needs */
    int32_t  lanes;           /* workspaces; 0 = 1 */
    uint64_t workspace_limit; /* of a lane; 0 = none */
    uint64_t memory;          /* of a rank; 0 = no question of fit */
    double   utilization;     /* share of it that may be used; 0 = 0.9 */
} planner_ask;

/* ---- the answer ------------------------------------------------------------------------------------------------- */

typedef enum planner_part {
    PLANNER_EXPERTS, PLANNER_SHARED, PLANNER_ROUTER, PLANNER_DENSE, PLANNER_ATTENTION, PLANNER_NORMS,
    PLANNER_EMBEDDINGS, PLANNER_PART_COUNT
} planner_part;

const char *planner_part_name(planner_part part); /* "experts" */

typedef struct planner_shard {
    int32_t tp, ep, dp;
    int32_t expert_tp;  /* ways in which each expert is cut */
    int32_t n_local;    /* experts of rank 0, which has the most */
    int32_t gathered;   /* ranks whose tokens meet in one MoE call */
    int32_t kv_copies;  /* ranks that hold the same KV cache, on average over the layers */
} planner_shard;

typedef struct planner_plan {
    planner_ask   ask;   /* with the defaults filled */
    planner_shard shard;
    weight_format expert_format, linear_format, plain_format;

    weight_bytes part[PLANNER_PART_COUNT]; /* of rank 0, which has the most */
    uint64_t weights;                       /* all of them */
    uint64_t scales;                        /* in weights */

    int      kv_fp8;
    uint64_t kv_per_token;    /* of one token of one sequence, in the layers whose cache grows */
    uint64_t kv_window;       /* of one sequence, in the layers that keep a window, at this context */
    uint64_t kv;              /* of all sequences at this context */
    uint64_t state;           /* recurrent state of all sequences */

    moewe_config moe;         /* as planned for the workspace */
    int32_t  call_tokens;     /* in one MoE call, after the gather */
    uint64_t workspace_fast, workspace_floor;
    uint64_t workspace;       /* within the limit */
    uint64_t workspaces;      /* all lanes */

    uint64_t total;
    uint64_t budget;          /* 0 = none was given; else the next four say something */
    int      fits;
    uint64_t left, short_by;  /* one of them 0 */
    uint64_t kv_tokens;       /* that fit beside all else, over all sequences; UINT64_MAX = any number */
    char     change[384];     /* the options of the one change that makes it fit */
} planner_plan;

/* dev: any device; what the library plans for it is what the workspace is. */
int planner_make(const planner_model *m, const planner_ask *ask, const moewe_device *dev, planner_plan *out,
                 fmt_error *e);

/* Which experts a rank has: the first n_experts % ep ranks have one more than the others. */
void planner_experts_of(int32_t n_experts, int32_t ep, int32_t rank, int32_t *first, int32_t *count);

/* size over parts without a rest, each part a multiple of tile unless there is only one; the sentence names size,
 * parts, tile and the numbers of parts that work. */
int planner_split(const char *what, int64_t size, int32_t parts, uint32_t tile, int64_t *each, fmt_error *e);

/* The call that planner_scratch compares. */
planner_call planner_call_of(const planner_model *m, const planner_plan *p);

/* ---- this machine ------------------------------------------------------------------------------------------------ */

/* What moewe run and, for the families that it runs, the engine take on a CPU device, where nothing is sharded and
 * formats that moewe does not compute with are held as the plain one.  From the library's own size functions, with shapes for data. */
typedef struct planner_cpu {
    int      engine;          /* a decoder that the engine has places for: the next two are what it takes */
    uint64_t weights, kv;
    uint64_t workspace;
    uint64_t packed_layer;    /* packed weights of the largest MoE layer: moewe run */
    uint64_t packed_layers;   /* of all MoE layers */
} planner_cpu;

typedef struct planner_cpu_ask {
    int32_t  dtype;           /* moewe_dtype of the activations */
    const weight_format *weights; /* as in planner_ask */
    int32_t  tokens;          /* in a batch */
    int32_t  context, sequences;
    uint64_t workspace_limit;
} planner_cpu_ask;

int planner_on_cpu(const planner_model *m, const planner_cpu_ask *ask, const moewe_device *dev, planner_cpu *out,
                   fmt_error *e);

#endif
