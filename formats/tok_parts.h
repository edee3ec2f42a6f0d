/* tok_parts.h - how the two readers of tokenizer.json (tok_load.c, tok_parts.c) take fields and refuse values. */
#ifndef MOEWE_FORMATS_TOK_PARTS_H
#define MOEWE_FORMATS_TOK_PARTS_H

#include "tok_internal.h"

typedef struct tok_reader {
    tok        *t;
    const char *file;
    fmt_error  *e;
} tok_reader;

/* "FILE: FIELD is VALUE, supported: SUPPORTED"; part may be empty, key NULL. */
int tok_refuse(tok_reader *r, const char *part, const char *key, const json_t *found, const char *supported);
/* An object whose keys are all in the list: a key that is not known may change what the others mean. */
int tok_object(tok_reader *r, const char *part, const json_t *o, const char *const *keys);
int tok_bool(tok_reader *r, const char *part, const json_t *o, const char *key, bool required, bool *out);
/* An id of the vocabulary, or of one to be made. */
int tok_id(tok_reader *r, const char *part, const char *key, const json_t *v, int32_t *out);

/* tok_parts.c: all that is not the vocabulary.  The frame needs the vocabulary to be there. */
int tok_read_normalizer(tok_reader *r, const json_t *v);
int tok_read_pre_tokenizer(tok_reader *r, const json_t *v);
int tok_read_decoder(tok_reader *r, const json_t *v);
int tok_read_post_processor(tok_reader *r, const json_t *v);

#endif
