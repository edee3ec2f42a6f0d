/* model_internal.h - what model*.c share: names on disk and tensors in a dtype that moewe computes with. */
#ifndef MOEWE_FORMATS_MODEL_INTERNAL_H
#define MOEWE_FORMATS_MODEL_INTERNAL_H

#include "model.h"

enum { MODEL_NAME_CAP = 192 };

/* Tensors that were taken, so that those that were not can be named. */
typedef struct block_used {
    const st_tensor **list;
    size_t            n, room;
} block_used;

/* One block being opened. */
typedef struct block_reader {
    const model_config *c;
    const st_store     *s;
    int32_t             layer;
    const json_t       *block; /* of the descriptor */
    model_block        *out;
    fmt_error          *e;
    block_used         *used; /* of a family that is not known; else NULL */
} block_reader;

/* Finds the tensor that the block's name ("../x": outside the block) stands for, under whichever prefix the
 * file uses; {e} is the expert.  NULL when there is none. */
const st_tensor *block_find(const block_reader *r, const char *name, int32_t expert);
/* The same with a list of spellings (or one string), of rank and shape as given (-1: any), in a dtype that moewe
 * computes with; absent or other ones are errors. */
const st_tensor *block_need(const block_reader *r, const json_t *names, int32_t expert, int32_t rank, const int64_t *shape);
const st_tensor *block_check(const block_reader *r, const st_tensor *t, int32_t rank, const int64_t *shape);

/* Memory that the block frees. */
void *block_own(const block_reader *r, uint64_t count, uint64_t size);
/* A tensor of n elements as f32, owned by the block. */
float *block_floats(const block_reader *r, const st_tensor *t, int64_t n);

/* Fills gate, up and down, with their biases. */
int block_experts(const block_reader *r);

/* Of a family that is not known: settles what config.json leaves open by the tensors' names, before anything is
 * opened, and refuses a block with tensors that nothing took, afterwards. */
int unknown_decide(const block_reader *r);
int unknown_check(const block_reader *r);

#endif
