/* tokenizer.h - tokenizer.json (Hugging Face "tokenizers" form): byte-level BPE with its
 * pre-tokenizer regular expressions and added tokens.  A part that is not supported is refused by
 * name at open, never skipped.  Read-only after tok_open: any number of threads may use one. */
#ifndef MOEWE_FORMATS_TOKENIZER_H
#define MOEWE_FORMATS_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

typedef struct tok tok;

/* path: a tokenizer.json, the directory that holds one, or what gguf_locate finds a GGUF file in (gguf.h). */
int  tok_open(const char *path, tok **out, fmt_error *e);
void tok_close(tok *t); /* NULL is allowed */

int32_t tok_vocab(const tok *t);                       /* one more than the largest id */
int32_t tok_find(const tok *t, const char *content);   /* id of an added token or of a vocabulary entry as spelled in the file; -1 */
int     tok_is_special(const tok *t, int32_t id);

/* Text (any bytes, NUL too) to ids, as tokenizers' encode(text, add_special_tokens=True) does.  *ids is allocated for
 * the caller, who frees it with free(). */
int tok_encode(const tok *t, const char *text, size_t bytes, int32_t **ids, size_t *count, fmt_error *e);

/* The bytes that one id stands for (a view that lives as long as t; special tokens give their
 * content).  NULL and 0 for an id outside the vocabulary.  Never allocates. */
const char *tok_bytes(const tok *t, int32_t id, size_t *bytes);

/* Length of the longest prefix of buf that ends on a UTF-8 boundary, so that a stream may be cut
 * there; bytes that can never become valid UTF-8 count as complete. */
size_t tok_utf8_complete(const char *buf, size_t bytes);

#endif
