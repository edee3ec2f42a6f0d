/* tok_internal.h - what the files of the tokenizer share: the loaded tables, and the scratch of one encode.
 * For formats/tok_*.c and formats/tokenizer.c (and the fuzzer of tests/tokenizer) only. */
#ifndef MOEWE_FORMATS_TOK_INTERNAL_H
#define MOEWE_FORMATS_TOK_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "tokenizer.h"

enum {
    TOK_MAX_IDS     = 1 << 22,   /* ids index tables: a lying id must not ask for gigabytes */
    TOK_MAX_FILE    = 256 << 20, /* bytes of a tokenizer.json */
    TOK_MAX_TEXT    = 1 << 30,   /* bytes of one text: positions are kept in 32 bits */
    TOK_MAX_CONTENT = 1024,      /* bytes of one added token: bounds the work at each position of a text */
    TOK_MAX_PATTERN = 1 << 14,   /* bytes of one regular expression */
    TOK_MAX_DEPTH   = 8,         /* Sequence within Sequence */
    TOK_MAX_STEPS   = 16,        /* splitting steps of a pre_tokenizer */
};

/* tok_entry.flags */
enum {
    TOK_IN_MODEL    = 1, /* an entry of model.vocab: only these take part in BPE */
    TOK_ADDED       = 2,
    TOK_SPECIAL     = 4,
    TOK_LSTRIP      = 8,
    TOK_RSTRIP      = 16,
    TOK_SINGLE_WORD = 32,
};

/* One id.  flags == 0: a hole, nothing has this id. */
typedef struct tok_entry {
    const char *spelled; /* as in the file */
    const char *bytes;   /* what it stands for in text */
    uint32_t    spelled_len, bytes_len;
    uint32_t    flags;
} tok_entry;

typedef struct tok_merge {
    int32_t left, right; /* left < 0: a free slot */
    int32_t rank, joined;
} tok_merge;

typedef struct tok_trie_node {
    uint32_t child, sibling; /* index + 1; 0: none */
    int32_t  id;             /* -1: no token ends here */
    uint8_t  byte;
} tok_trie_node;

typedef struct tok_trie {
    tok_trie_node *nodes;
    uint32_t       count, room;
    uint32_t       root[256]; /* index + 1 */
} tok_trie;

typedef enum tok_behavior {
    TOK_ISOLATED,
    TOK_REMOVED,
    TOK_MERGED_WITH_PREVIOUS,
    TOK_MERGED_WITH_NEXT,
    TOK_CONTIGUOUS,
} tok_behavior;

typedef struct tok_split {
    pcre2_code  *code;
    tok_behavior behavior;
    bool         invert;
} tok_split;

struct tok {
    char      *arena; /* every string of entries[] */
    tok_entry *entries;
    int32_t    vocab;

    uint32_t *slots; /* spelled -> id + 1, open addressing */
    uint32_t  slot_mask;

    tok_merge *merges; /* (left, right) -> rank, joined, open addressing */
    uint32_t   merge_mask;

    uint32_t longest;      /* bytes of the longest spelled entry of the model */
    int32_t  byte_id[256]; /* byte -> id of its one-character entry, -1 where there is none */

    bool byte_level, prefix_space, ignore_merges, nfc;

    tok_split   steps[TOK_MAX_STEPS]; /* before ByteLevel, in order */
    int         n_steps;
    tok_split   gpt2;    /* ByteLevel's own expression; code == NULL: use_regex false */
    pcre2_code *word;    /* one character that counts as part of a word, for single_word */
    pcre2_code *suspect; /* one character that may not be in NFC as it stands */

    tok_trie raw, normalized; /* added tokens that match before and after the normalizer */

    int32_t *frame; /* TemplateProcessing: ids, and -1 where the text goes; NULL: the text alone */
    size_t   n_frame;
};

typedef struct tok_span {
    uint32_t from, to;
} tok_span;

typedef struct tok_spans {
    tok_span *at;
    size_t    count, room;
} tok_spans;

typedef struct tok_symbol {
    int32_t  id;         /* -1: merged into the one on its left */
    uint32_t prev, next; /* UINT32_MAX: none */
} tok_symbol;

typedef struct tok_candidate {
    int32_t  rank, joined;
    uint32_t pos;
} tok_candidate;

/* The scratch of one tok_encode: a tok is read-only, so nothing here may live in it. */
typedef struct tok_job {
    const tok           *t;
    fmt_error           *e;
    pcre2_match_data    *match;
    pcre2_match_context *context;
    pcre2_jit_stack     *stack;
    int32_t             *ids;
    size_t               n_ids, ids_room;
    tok_spans            spans, next, last;
    char                *prefixed; /* a piece with the space that add_prefix_space puts before it */
    size_t               prefixed_room;
    char                *spelled; /* a piece in the byte-level alphabet */
    tok_symbol          *symbols;
    tok_candidate       *heap;
    size_t               piece_room; /* bytes of a piece that symbols and heap are large enough for */
} tok_job;

/* tok_load.c */
int tok_load(const char *file, const json_t *root, tok **out, fmt_error *e);

/* tok_bpe.c: the vocabulary, the merges, and the merging of one piece. */
uint32_t tok_byte_char(uint8_t byte);                   /* the character that stands for a byte */
int      tok_char_byte(uint32_t c);                     /* the byte that a character stands for; -1: none */
int      tok_vocab_room(tok *t, size_t entries);        /* -1: out of memory */
void     tok_vocab_add(tok *t, int32_t id);             /* entries[id].spelled must not be there yet */
int32_t  tok_vocab_find(const tok *t, const char *spelled, size_t bytes);
int      tok_merges_room(tok *t, size_t merges);        /* -1: out of memory */
void     tok_merges_put(tok *t, int32_t left, int32_t right, int32_t rank, int32_t joined);
int      tok_bpe_piece(tok_job *j, const char *piece, size_t bytes);
int      tok_bpe_byte(tok_job *j, uint8_t byte);

/* tok_regex.c: Oniguruma patterns in PCRE2.  The functions that report take `what` for the field's name. */
int  tok_regex_compile(const char *file, const char *what, const char *pattern, size_t bytes, bool literal,
                       pcre2_code **out, fmt_error *e);
int  tok_regex_classes(const char *file, tok *t, fmt_error *e); /* word, and suspect when nfc */
int  tok_regex_split(tok_job *j, const tok_split *s, const char *base, tok_span in, tok_spans *out);
/* 1: matches at or after the start, *at and *end tell where; 0: no; -1: reported. */
int  tok_regex_find(tok_job *j, const pcre2_code *code, const char *s, size_t bytes, size_t start, size_t *at,
                    size_t *end);

/* tok_added.c: added tokens in a text. */
int  tok_trie_add(tok_trie *trie, const char *content, size_t bytes, int32_t id); /* -1: out of memory */
int  tok_added_scan(tok_job *j, const tok_trie *trie, const char *s, size_t bytes,
                    int (*rest)(tok_job *, const char *, size_t));

/* tokenizer.c */
size_t tok_utf8_char(const char *s, size_t bytes, uint32_t *c); /* length of the character at s; 0: not UTF-8 */
int    tok_emit(tok_job *j, int32_t id);

#endif
