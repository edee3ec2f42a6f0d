/* weight_format.h - how weights are stored: bytes of a matrix in each quantisation format, and which format a model's
 * quantization_config gives to which module.  Knows no model. */
#ifndef MOEWE_FORMATS_WEIGHT_FORMAT_H
#define MOEWE_FORMATS_WEIGHT_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>
#include <moewe.h>

#include "error.h"

/* Values are grouped along a row (the input dimension).  A group, in a block of block_rows rows, has one scale; a last
 * group that is not full has one too.  Formats that store values and scales together (ggml's) are taken apart. */
typedef struct weight_format {
    const char *name;
    uint32_t value_bits;
    uint32_t scale_bits;   /* of a group: scale, minimum and zero point */
    uint32_t group;        /* values of a row in a group; 0 = the whole row (or matrix, see block_rows) */
    uint32_t block_rows;   /* rows that share a scale; 0 = all */
    uint32_t whole_groups; /* values too are stored in whole groups */
} weight_format;

/* NULL and a sentence with the names that are known. */
const weight_format *weight_format_find(const char *name, fmt_error *e);
const weight_format *weight_format_at(size_t index); /* NULL past the end */

typedef struct weight_bytes {
    uint64_t values, scales;
} weight_bytes;

/* Of count matrices of [rows][cols]; 0, or -1 when that does not fit in 64 bits. */
int weight_format_bytes(const weight_format *f, uint64_t count, uint64_t rows, uint64_t cols, weight_bytes *out);

/* What a split of an expert's inner width must leave a multiple of, so that no group and no block is cut. */
uint32_t weight_format_tile(const weight_format *f);

/* dtype and blocks of scales with which moewe computes with rows of cols elements in that format; pointers show where
 * there is data, not what.  -1: with none. */
int weight_format_view(const weight_format *f, int64_t cols, moewe_matrix *out);

/* ---- quantization_config ---------------------------------------------------------------------------------- */

enum { WEIGHT_QUANT_GROUPS = 16 };

typedef struct weight_patterns weight_patterns; /* of module names */

typedef struct weight_quant {
    weight_format plain;   /* of what is not quantised: from dtype or torch_dtype, else bf16 */
    weight_format linear;  /* of what is; plain without a quantization_config */
    weight_format experts; /* likewise, where the config says something else for them */
    weight_patterns *ignore;
    struct {
        weight_format format;
        weight_patterns *targets; /* NULL = all */
    } groups[WEIGHT_QUANT_GROUPS]; /* the first that names a module decides; none does: plain */
    size_t n_groups;
    int quantized;    /* anything is */
    int experts_only; /* the method converts experts and nothing else */
    int kv_fp8;       /* the checkpoint asks for an fp8 cache */
    char method[48];  /* for people: "fp8", "compressed-tensors" or "none" */
    const json_t *layers; /* modelopt's quantized_layers, or NULL; borrowed */
} weight_quant;

/* From the outer config and, where that is silent, from the text config (may be the same); hf: the object in
 * hf_quant_config.json, or NULL.  The JSON must outlive it. */
int weight_quant_read(const json_t *outer, const json_t *text, const json_t *hf, const char *file, weight_quant *out,
                       fmt_error *e);
void weight_quant_free(weight_quant *q);

/* Everything that is quantised, in another format; what is ignored stays so. */
void weight_quant_force(weight_quant *q, const weight_format *f);

/* Of a matrix.  module: "model.layers.3.mlp.experts.0.gate_proj", without ".weight". */
weight_format weight_quant_of(const weight_quant *q, const char *module, int of_expert);

/* Whether a pattern of an ignore list names the module or one that holds it: "lm_head", "gate" (whole parts of the
 * name, in a row), "model.layers.*.self_attn" ('*' is any text), "re:.*gate" (from the start). */
int weight_module_matches(const char *pattern, const char *module);

#endif
