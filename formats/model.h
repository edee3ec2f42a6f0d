/* model.h - config.json: what the model is.  What differs between families is data (family.h); this header
 * is what the rest of the program sees of it. */
#ifndef MOEWE_FORMATS_MODEL_H
#define MOEWE_FORMATS_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <moewe.h>

#include "error.h"
#include "family.h"
#include "safetensors.h"
#include "weight_format.h"

enum { MODEL_MAX_EOS = 8 };

typedef struct model_config {
    family  *family;
    json_t  *document;      /* config.json; owned, as are the next two */
    json_t  *quant_document; /* hf_quant_config.json, or NULL */
    char    *path;          /* what the family calls the file */
    weight_quant quant;     /* how matrices are stored */
    char     file[512];     /* the config.json, for messages */
    char     model_type[48];
    int32_t  n_layers, hidden, vocab;
    /* Of a decoder that the engine runs; 0 in other families. */
    int32_t  engine;        /* it is one */
    int32_t  n_heads, n_kv_heads, head_dim;
    int32_t  max_position;
    int32_t  dense_inter;   /* width of the MLP of dense layers; 0 when there are none */
    float    rms_eps;
    double   rope_theta;
    int32_t  sliding_window;   /* 0 = full attention */
    int32_t  attention_bias;   /* q, k, v and o have biases */
    int32_t  qk_norm;          /* RMSNorm on each head of q and k */
    int32_t  tie_embeddings;
    int32_t  bos_id;           /* -1 = none */
    int32_t  n_eos;
    int32_t  eos_ids[MODEL_MAX_EOS];
    int32_t  weight_dtype;     /* moewe_dtype that the config names; tensors say for themselves */
    uint8_t *layer_is_moe;     /* [n_layers] */
    moewe_config moe;          /* of the MoE layers; dtypes, max_tokens and limit left at 0 */
} model_config;

/* path: a config.json, the directory that holds one (generation_config.json beside it adds
 * end-of-text ids), or what gguf_locate finds a GGUF file in (gguf.h).  Unknown model_type, missing fields, wrong types, values out of range, and
 * fields that contradict each other are errors naming file, field, found and expected. */
int  model_config_load(const char *path, model_config *out, fmt_error *e);
void model_config_free(model_config *c);

/* The config of one layer's MoE block, as model_config.moe. */
int model_layer_moe(const model_config *c, int32_t layer, moewe_config *out, fmt_error *e);

/* Module path of a layer's MoE block as transformers names it: "model.layers.3.mlp". */
void model_block_name(const model_config *c, int32_t layer, char *buf, size_t cap);

/* "3" or a module path -> layer number; an unknown one or a dense layer is an error. */
int model_block_find(const model_config *c, const char *name, int32_t *layer, fmt_error *e);

/* One MoE block's tensors as moewe_weights views into the store; every shape is checked against the
 * config.  w.gate and up have one dtype.  The store must outlive the views. */
typedef struct model_block {
    moewe_weights w;
    moewe_config  moe;     /* model_layer_moe of the layer */
    int32_t       w_dtype; /* of gate and up */
    int32_t       down_dtype;
    void         *owned[32]; /* lists of experts; biases, factors and tables in the type that the views want */
    int32_t       n_owned;
    const st_tensor **experts; /* [n_expert_tensors]: all that gate, up and down are made of; owned */
    size_t        n_expert_tensors;
    uint64_t      bytes;    /* of all its tensors on disk */
} model_block;
int  model_block_open(const model_config *c, const st_store *s, int32_t layer, model_block *out, fmt_error *e);
void model_block_close(model_block *b);

/* The rest of a decoder, for the engine: full tensor names (or NULL in *name when the family has
 * no such tensor) with their expected shapes. */
typedef enum model_part {
    MODEL_EMBED, MODEL_FINAL_NORM, MODEL_LM_HEAD,                      /* layer ignored */
    MODEL_ATTN_NORM, MODEL_MLP_NORM, MODEL_Q, MODEL_K, MODEL_V, MODEL_O, MODEL_Q_NORM, MODEL_K_NORM,
    MODEL_DENSE_GATE, MODEL_DENSE_UP, MODEL_DENSE_DOWN,
    MODEL_Q_BIAS, MODEL_K_BIAS, MODEL_V_BIAS, MODEL_O_BIAS, MODEL_PART_COUNT
} model_part;
/* The tensor, checked; NULL with *e untouched and *absent = 1 when the config says there is none. */
const st_tensor *model_part_find(const model_config *c, const st_store *s, model_part part, int32_t layer,
                                 int *absent, fmt_error *e);

/* A matrix of the decoder with what it is multiplied by. */
typedef struct model_matrix {
    const st_tensor *t;  /* its elements */
    int32_t rows, cols;
    moewe_matrix m;      /* the view, but for scale.tensor */
    float   factor;      /* what scale.tensor is to point at, where has_factor */
    int     has_factor;
    void   *owned;       /* elements that no view of the store could show, or NULL: the caller frees it after packing */
} model_matrix;
/* As model_part_find, of a part that is a matrix. */
int model_part_matrix(const model_config *c, const st_store *s, model_part part, int32_t layer, model_matrix *out,
                      int *absent, fmt_error *e);

#endif
