/* family_data.h - the descriptors of formats/families/, compiled in.  Only family.c sees them. */
#ifndef MOEWE_FORMATS_FAMILY_DATA_H
#define MOEWE_FORMATS_FAMILY_DATA_H

#include <stddef.h>

typedef struct family_text {
    const char          *model_type; /* NULL for kinds.json */
    const char          *name;       /* of the file, without .json */
    const unsigned char *text;
    size_t               bytes;
} family_text;

extern const family_text family_texts[];
extern const size_t      family_text_count;

#endif
