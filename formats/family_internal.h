/* family_internal.h - the parts of a family that family*.c share. */
#ifndef MOEWE_FORMATS_FAMILY_INTERNAL_H
#define MOEWE_FORMATS_FAMILY_INTERNAL_H

#include "family.h"

struct family {
    const char   *file;
    const char   *model_type, *name;
    const json_t *config, *text; /* the document, and the language model in it */
    json_t       *descriptor, *kinds;
    int32_t       n_layers;
    const char  **mixers;        /* [n_layers], or NULL while they are being found; strings of descriptor */
    uint8_t      *is_moe;        /* likewise */
};

/* Fills mixers, n_layers and is_moe. */
int family_find_layers(family *f, fmt_error *e);

#endif
