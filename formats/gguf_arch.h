/* gguf_arch.h - the architectures whose GGUF files are read: a table of names and of metadata keys beside the fields
 * of config.json.  For formats/gguf_*.c and formats/tok_gguf.c only. */
#ifndef MOEWE_FORMATS_GGUF_ARCH_H
#define MOEWE_FORMATS_GGUF_ARCH_H

#include "gguf.h"

typedef enum gguf_shape {
    GGUF_AS_IT_IS,
    GGUF_EXPERTS,  /* [experts][rows][cols]: a matrix for each */
    GGUF_GATE_UP,  /* likewise, gate rows and then up rows */
    GGUF_AS_ROW    /* [cols] in GGUF, [1][cols] in the checkpoint */
} gguf_shape;

/* Parts that only some architectures have. */
enum { GGUF_HAS_SHARED = 1, GGUF_HAS_SELECT_BIAS = 2, GGUF_HAS_MLA = 4 };

/* A tensor of a layer, or of the whole model.  {e} is the expert, {s} the architecture's word for the shared one. */
typedef struct gguf_name {
    const char *gguf; /* after "blk.N." in a layer */
    const char *name; /* after "model.layers.N." */
    const char *up;   /* of GGUF_GATE_UP: the second one */
    gguf_shape  shape;
    int         needs; /* one of the parts above, or 0 */
} gguf_name;

typedef enum gguf_field_type { GGUF_FIELD_INT, GGUF_FIELD_REAL, GGUF_FIELD_BOOL } gguf_field_type;

typedef struct gguf_field {
    const char     *key;   /* after the architecture's name and a dot */
    const char     *field; /* of config.json */
    gguf_field_type type;
    int             optional;
    const char     *tensor; /* without the key: the columns of this tensor of a layer, or NULL */
} gguf_field;

typedef struct gguf_arch {
    const char *arch, *model_type;
    const char *sigmoid_type;   /* model_type where the router's score is a sigmoid, or NULL */
    const char *shared;         /* {s} */
    int         parts;
    int         whole;          /* every tensor is known: others are refused */
    int         renormalizes;   /* norm_topk_prob where the file does not say */
    int         dense_by_tensor; /* layers without a router are listed in mlp_only_layers */
    const gguf_field *fields;
    size_t      n_fields;
} gguf_arch;

extern const gguf_field gguf_common_fields[];
extern const size_t     gguf_n_common_fields;

/* That of general.architecture; NULL with a sentence that names the known ones. */
const gguf_arch *gguf_arch_of(const gguf *g, fmt_error *e);
/* By the checkpoint's model_type; NULL when there is none. */
const gguf_arch *gguf_arch_by_type(const char *model_type);

/* The row that a tensor's name matches, and its layer (-1: none); NULL when the architecture has no such tensor. */
const gguf_name *gguf_name_find(const gguf_arch *a, gguf_text name, int32_t *layer);

/* The checkpoint's name: of a row's name or up, a layer and an expert.  Works like snprintf. */
size_t gguf_name_fill(const gguf_arch *a, const char *name, int32_t layer, int64_t expert, char *buf, size_t cap);

/* "ARCH.KEY" */
enum { GGUF_KEY_CAP = 128 };
void gguf_key(const gguf_arch *a, const char *key, char buf[GGUF_KEY_CAP]);

#endif
