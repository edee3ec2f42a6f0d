/* tok_added.c - finds added tokens in a text, leftmost and longest first, and hands on what lies between them.
 * Owns the tries.  Never changes the text. */
#include "tok_internal.h"

#include <stdlib.h>

static int new_node(tok_trie *trie, uint8_t byte, uint32_t sibling, uint32_t *out)
{
    if (trie->count == trie->room) {
        if (trie->room > UINT32_MAX / 4) return -1;
        uint32_t room = trie->room ? trie->room * 2 : 64;
        tok_trie_node *nodes = realloc(trie->nodes, (size_t)room * sizeof *nodes);
        if (!nodes) return -1;
        trie->nodes = nodes;
        trie->room = room;
    }
    trie->nodes[trie->count] = (tok_trie_node){.byte = byte, .sibling = sibling, .id = -1};
    *out = ++trie->count;
    return 0;
}

static uint32_t child_of(const tok_trie *trie, uint32_t node, uint8_t byte)
{
    uint32_t c = trie->nodes[node - 1].child;
    while (c && trie->nodes[c - 1].byte != byte) c = trie->nodes[c - 1].sibling;
    return c;
}

int tok_trie_add(tok_trie *trie, const char *content, size_t bytes, int32_t id)
{
    uint32_t node = trie->root[(uint8_t)content[0]];
    if (!node) {
        if (new_node(trie, (uint8_t)content[0], 0, &node) != 0) return -1;
        trie->root[(uint8_t)content[0]] = node;
    }
    for (size_t i = 1; i < bytes; i++) {
        uint32_t child = child_of(trie, node, (uint8_t)content[i]);
        if (!child) {
            if (new_node(trie, (uint8_t)content[i], trie->nodes[node - 1].child, &child) != 0) return -1;
            trie->nodes[node - 1].child = child;
        }
        node = child;
    }
    trie->nodes[node - 1].id = id;
    return 0;
}

/* The longest token at s; -1: none. */
static int32_t longest_at(const tok_trie *trie, const char *s, size_t bytes, size_t *length)
{
    int32_t id = -1;
    uint32_t node = trie->root[(uint8_t)s[0]];
    for (size_t i = 1; node; i++) {
        if (trie->nodes[node - 1].id >= 0) {
            id = trie->nodes[node - 1].id;
            *length = i;
        }
        node = i < bytes ? child_of(trie, node, (uint8_t)s[i]) : 0;
    }
    return id;
}

/* The character that ends at s + end; its length, or 0 when there is none. */
static size_t char_before(const char *s, size_t end, uint32_t *c)
{
    for (size_t n = 1; n <= 4 && n <= end; n++) {
        if (((uint8_t)s[end - n] & 0xc0) != 0x80) return tok_utf8_char(s + end - n, n, c) == n ? n : 0;
    }
    return 0;
}

/* Unicode's White_Space, all of it. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* 1, 0, or -1 for an error that was reported. */
static int is_word(tok_job *j, const char *s, size_t length)
{
    size_t at = 0, end = 0;
    return length ? tok_regex_find(j, j->t->word, s, length, 0, &at, &end) : 0;
}

static int stands_alone(tok_job *j, const char *s, size_t bytes, size_t from, size_t to)
{
    uint32_t c = 0;
    size_t left = char_before(s, from, &c), right = tok_utf8_char(s + to, bytes - to, &c);
    int word = is_word(j, s + from - left, left);
    if (word != 0) return word < 0 ? -1 : 0;
    word = is_word(j, s + to, right);
    return word < 0 ? -1 : !word;
}

/* What tokenizers' added vocabulary does, in its odd cases too: a match that is no single word hides the shorter ones
 * inside it, and a match inside the white space that the token before it took along still counts, unless it strips on
 * its left (there nothing is left of it; where tokenizers panics over that, the match is passed over as well). */
int tok_added_scan(tok_job *j, const tok_trie *trie, const char *s, size_t bytes,
                   int (*rest)(tok_job *, const char *, size_t))
{
    size_t done = 0;                     /* text before this is dealt with */
    size_t space_from = 1, space_to = 0; /* the last run of white space seen, so that none is walked twice */
    for (size_t at = 0; at < bytes && trie->count;) {
        size_t length = 0;
        int32_t id = longest_at(trie, s + at, bytes - at, &length);
        if (id < 0) {
            at++;
            continue;
        }
        size_t from = at, to = at + length;
        uint32_t flags = j->t->entries[id].flags, c = 0;
        at = to;
        if (flags & TOK_SINGLE_WORD) {
            int alone = stands_alone(j, s, bytes, from, to);
            if (alone < 0) return -1;
            if (!alone) continue;
        }
        if (flags & TOK_LSTRIP) {
            for (size_t n; from > done && (n = char_before(s, from, &c)) != 0 && is_space(c);) from -= n;
        }
        if (flags & TOK_RSTRIP) {
            if (to < space_from || to > space_to) {
                space_from = space_to = to;
                for (size_t n; (n = tok_utf8_char(s + space_to, bytes - space_to, &c)) != 0 && is_space(c);) {
                    space_to += n;
                }
            }
            to = space_to;
        }
        if ((flags & TOK_LSTRIP) && done >= to) continue;
        if (done < from && rest(j, s + done, from - done) != 0) return -1;
        if (tok_emit(j, id) != 0) return -1;
        done = to;
    }
    return done < bytes ? rest(j, s + done, bytes - done) : 0;
}
