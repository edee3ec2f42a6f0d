/* engine.h - runs a decoder with MoE layers (Qwen3-MoE) on a moewe device.  engine_open plans and
 * takes every byte: packed weights, KV cache, one locked MoE workspace, activations; afterwards
 * nothing is allocated.  Includes the public header and formats/ only. */
#ifndef MOEWE_ENGINE_H
#define MOEWE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include <moewe.h>

#include "../formats/error.h"
#include "../formats/model.h"

typedef struct engine engine;

typedef struct engine_options {
    const char *backend;         /* NULL = best */
    int32_t     pin;             /* 1: threads stay on CPUs of their own */
    int32_t     threads;         /* 0 = one per core */
    int32_t     dtype;           /* MOEWE_DTYPE_F32 (default) or BF16: activations and KV cache */
    int32_t     max_sequences;   /* 0 = 1 */
    int32_t     context;         /* tokens per sequence; 0 = the model's max_position */
    int32_t     max_batch;       /* tokens per forward, at least max_sequences; 0 = 512 or max_sequences */
    int32_t     max_logits;      /* rows per forward whose logits may be wanted: at least max_sequences, at most
                                    max_batch; 0 = max_sequences */
    uint64_t    workspace_limit; /* of the MoE workspace; 0 = none */
} engine_options;

/* Where every byte is; the parts add up to total to the byte. */
typedef struct engine_memory {
    uint64_t weights;      /* packed for the kernels */
    uint64_t kv_cache;
    uint64_t workspace;    /* the one that all MoE layers share */
    uint64_t activations;  /* with tables and the logits */
    uint64_t total;
    uint64_t mapped;       /* checkpoint files, read through the page cache; not in total */
    uint64_t workspace_per_layer_sum; /* what one workspace a layer would have taken */
} engine_memory;

int  engine_open(const char *dir, const engine_options *opt, engine **out, fmt_error *e);
void engine_close(engine *g); /* NULL is allowed */

const model_config  *engine_config(const engine *g);
const moewe_device  *engine_device(const engine *g);
void                 engine_memory_get(const engine *g, engine_memory *out);
const engine_options *engine_options_get(const engine *g); /* with the defaults filled */

/* One forward pass over n_tokens rows, at most max_batch: row i is token ids[i] of sequence seq[i] at
 * position pos[i].  The positions of one sequence in a batch ascend by one and continue what its KV cache holds
 * (pos 0 starts it anew); a violation is an error.  The row's logits are computed where want[i] is nonzero
 * and stand in engine_logits in row order: [wanted][vocab], f32; at most max_logits rows may be wanted, and want
 * NULL wants none.  A batch of no tokens is allowed.  A batch that is refused changes nothing; after a pass that
 * failed while it ran (the sentence says "forward pass"), its sequences hold nothing and start anew from pos 0. */
typedef struct engine_batch {
    int32_t        n_tokens;
    const int32_t *ids, *seq, *pos;
    const uint8_t *want;
} engine_batch;
int          engine_forward(engine *g, const engine_batch *b, fmt_error *e);
const float *engine_logits(const engine *g, int32_t wanted_index);

/* Bits contract: a row's logits depend on its sequence's tokens alone, not on the batch. */

#endif
