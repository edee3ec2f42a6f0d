/* family.h - what is known about a model's family, applied to one config.json.  The knowledge is data, one
 * descriptor a family in formats/families/ (docs/checkpoints.md explains the fields); nothing that reads it
 * asks which family it has. */
#ifndef MOEWE_FORMATS_FAMILY_H
#define MOEWE_FORMATS_FAMILY_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "error.h"

typedef struct family family;

/* config: the whole document, which must outlive the family; file: its name in messages, which must too.  The language model is found
 * where the family nests it (text_config and the like).  An unknown model_type is read with the generic descriptor
 * when its fields are there, and else refused with the list of what is missing. */
int  family_open(const json_t *config, const char *file, family **out, fmt_error *e);
void family_close(family *f); /* NULL is allowed */

const char   *family_model_type(const family *f); /* as config.json says */
const char   *family_name(const family *f);       /* of the descriptor */
int           family_exact(const family *f);      /* its tensor list was compared with a checkpoint */
const json_t *family_text_config(const family *f); /* the object that describes the language model */
const json_t *family_config(const family *f);      /* the whole document */
const json_t *family_block(const family *f);       /* the descriptor's "block" */
const json_t *family_descriptor(const family *f);

int32_t     family_layers(const family *f);
int         family_is_moe(const family *f, int32_t layer);
int         family_hash_layer(const family *f, int32_t layer); /* experts by token id there */
const char *family_mixer(const family *f, int32_t layer); /* kind of its attention or mixer: "gqa", "mla", ... */
/* That kind in kinds.json: elements of KV cache a token ("kv"), "window", "window_kv", "state"; NULL: none. */
const json_t *family_kind(const family *f, int32_t layer);

/* ---- values ------------------------------------------------------------------------------------------------- */

/* A field of the language model's object, then of the whole document; "a.b" looks inside objects.  NULL: absent or null. */
const json_t *family_field(const family *f, const char *name);

/* A variable of the descriptor for one layer (lists hold an entry a layer).  *null becomes 1 and *out 0 when its
 * value is null; null may be NULL.  -1 with file, field, found and expected. */
int family_variable(const family *f, int32_t layer, const char *name, double *out, int *null, fmt_error *e);

/* Values that stand in for variables of the same name, as a deployment that cuts the model has them; ends with a
 * NULL name. */
typedef struct family_override { const char *name; double value; } family_override;

/* An expression over the variables; overrides may be NULL. */
int family_eval(const family *f, int32_t layer, const family_override *overrides, const char *expression, double *out,
                fmt_error *e);
/* The same, which must be an integer in [low, high]. */
int family_int(const family *f, int32_t layer, const char *expression, int64_t low, int64_t high, int64_t *out,
               fmt_error *e);

/* A constant of the descriptor: a number, or [field, default] that config.json decides; NULL and null give
 * fallback.  A list in config.json has an entry a layer. */
int family_constant(const family *f, int32_t layer, const json_t *constant, double fallback, double *out, fmt_error *e);

/* ---- tensors ------------------------------------------------------------------------------------------------- */

typedef enum family_part { FAMILY_TOP, FAMILY_LAYER, FAMILY_MIXER, FAMILY_DENSE, FAMILY_MOE } family_part;

enum { FAMILY_MAX_RANK = 4 };

/* One tensor of the model, or count of them that differ in the number of the expert only. */
typedef struct family_tensor {
    family_part part;
    const char *name;   /* FAMILY_TOP: whole; else what follows "layers.N.", with {e} for the expert */
    const char *role;   /* FAMILY_MOE: "router", "expert", "shared", "latent", "bias", "hash", "scale"; else "" */
    int64_t     count;
    int32_t     rank;
    int64_t     dims[FAMILY_MAX_RANK];
} family_tensor;

typedef int (*family_tensor_fn)(void *ctx, const family_tensor *t);

/* Every tensor of a layer, or with layer -1 those outside the layers; stops at the first nonzero result and returns it.
 * Spellings that differ between releases are given once, as the descriptor's first. */
int family_tensors(const family *f, int32_t layer, const family_override *overrides, family_tensor_fn fn, void *ctx,
                   fmt_error *e);

#endif
