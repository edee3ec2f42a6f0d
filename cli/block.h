/* block.h - one MoE block of a checkpoint, ready to run: its plan, its packed weights and a workspace of
 * exactly the size that the plan needs.  Used by verify and run. */
#ifndef MOEWE_CLI_BLOCK_H
#define MOEWE_CLI_BLOCK_H

#include "../formats/model.h"
#include "../formats/safetensors.h"
#include "cli.h"

/* A checkpoint that is open, and the device that its blocks run on. */
typedef struct cli_model {
    const char *dir;
    model_config config;
    st_store *store;
    moewe_device *device;
} cli_model;

/* Prints what went wrong and returns CLI_FAILED; close also what failed to open. */
int cli_model_open(cli_model *m, const char *dir, const cli_common *common);
void cli_model_close(cli_model *m);

typedef struct cli_block {
    char name[256];
    moewe_config config; /* as planned */
    model_block source;  /* views into the checkpoint; biases stay there */
    moewe_plan *plan;
    moewe_need need;
    moewe_weights weights;
    moewe_span packed, workspace;
    const moewe_device *device;
} cli_block;

typedef enum cli_routing {
    CLI_ROUTES,  /* the block chooses by itself */
    CLI_GIVEN,   /* the caller passes ids and weights, which are final: no scale is applied to them */
    CLI_EXPERTS  /* likewise, and the routed experts alone are run: no shared expert, no latent projections */
} cli_routing;

int cli_block_open(cli_block *b, const cli_model *m, int32_t layer, int32_t max_tokens, const cli_common *common,
                   cli_routing routing);
void cli_block_close(cli_block *b);

/* ---- rows of numbers ------------------------------------------------------------------ */

uint16_t cli_bf16(float value); /* to nearest, ties to even; NaN stays NaN */

/* An integer tensor of n ids as int32; one that does not fit becomes -1, which no expert and no token has.  Allocated. */
int32_t *cli_ids(const st_tensor *t, uint64_t n);

/* n elements of an f32, bf16 or f16 tensor as f32. */
void cli_to_f32(const void *data, st_dtype dtype, uint64_t n, float *out);

/* n values as dtype (f32 or bf16) into out, which is aligned for it. */
void cli_from_f32(const float *values, uint64_t n, int32_t dtype, void *out);

/* FNV-1a, 64 bits: bits of two runs compared by eye. */
uint64_t cli_hash(const void *data, uint64_t bytes);

#endif
