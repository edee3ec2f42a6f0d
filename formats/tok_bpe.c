/* tok_bpe.c - the tables of byte-level BPE and the merging of one piece.
 * Owns the byte alphabet, both hash tables and the heap.  Never looks at JSON and never splits text. */
#include "tok_internal.h"

#include <stdlib.h>
#include <string.h>

/* GPT-2's alphabet: a byte that prints stands for itself, the others for U+0100 and on, in byte order. */
static bool prints(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

uint32_t tok_byte_char(uint8_t byte)
{
    if (prints(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte < 0xa1) return 0x100u + 0x21u + (byte - 0x7fu);
    return 0x143u; /* the soft hyphen, 0xad */
}

int tok_char_byte(uint32_t c)
{
    if (c < 0x100) return prints(c) ? (int)c : -1;
    if (c <= 0x120) return (int)(c - 0x100);
    if (c <= 0x142) return (int)(c - 0x121 + 0x7f);
    return c == 0x143 ? 0xad : -1;
}

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 0x100000001b3u;
    return h ^ (h >> 29);
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 32);
}

/* A power of two of which `used` fill at most half. */
static size_t table_size(size_t used)
{
    size_t size = 16;
    while (size / 2 < used) size *= 2;
    return size;
}

int tok_vocab_room(tok *t, size_t entries)
{
    size_t size = table_size(entries);
    t->slots = calloc(size, sizeof *t->slots);
    t->slot_mask = (uint32_t)(size - 1);
    return t->slots ? 0 : -1;
}

void tok_vocab_add(tok *t, int32_t id)
{
    uint64_t h = hash_bytes(t->entries[id].spelled, t->entries[id].spelled_len);
    while (t->slots[h & t->slot_mask]) h++;
    t->slots[h & t->slot_mask] = (uint32_t)id + 1;
}

int32_t tok_vocab_find(const tok *t, const char *spelled, size_t bytes)
{
    for (uint64_t h = hash_bytes(spelled, bytes);; h++) {
        uint32_t slot = t->slots[h & t->slot_mask];
        if (!slot) return -1;
        const tok_entry *entry = &t->entries[slot - 1];
        if (entry->spelled_len == bytes && memcmp(entry->spelled, spelled, bytes) == 0) return (int32_t)(slot - 1);
    }
}

int tok_merges_room(tok *t, size_t merges)
{
    size_t size = table_size(merges);
    t->merges = malloc(size * sizeof *t->merges);
    if (!t->merges) return -1;
    t->merge_mask = (uint32_t)(size - 1);
    for (size_t i = 0; i < size; i++) t->merges[i].left = -1;
    return 0;
}

/* A pair that is listed twice keeps its later rank, as in tokenizers. */
void tok_merges_put(tok *t, int32_t left, int32_t right, int32_t rank, int32_t joined)
{
    uint64_t h = hash_pair(left, right);
    tok_merge *m = &t->merges[h & t->merge_mask];
    while (m->left >= 0 && (m->left != left || m->right != right)) m = &t->merges[++h & t->merge_mask];
    *m = (tok_merge){.left = left, .right = right, .rank = rank, .joined = joined};
}

static const tok_merge *find_merge(const tok *t, int32_t left, int32_t right)
{
    for (uint64_t h = hash_pair(left, right);; h++) {
        const tok_merge *m = &t->merges[h & t->merge_mask];
        if (m->left < 0) return NULL;
        if (m->left == left && m->right == right) return m;
    }
}

static bool before(const tok_candidate *a, const tok_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static void heap_push(tok_candidate *heap, size_t *count, tok_candidate c)
{
    size_t i = (*count)++;
    while (i > 0 && before(&c, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = c;
}

static tok_candidate heap_pop(tok_candidate *heap, size_t *count)
{
    tok_candidate top = heap[0], c = heap[--*count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *count) break;
        if (child + 1 < *count && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &c)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = c;
    return top;
}

static void consider(tok_job *j, size_t *count, uint32_t pos)
{
    const tok_symbol *s = &j->symbols[pos];
    if (s->next == UINT32_MAX) return;
    const tok_merge *m = find_merge(j->t, s->id, j->symbols[s->next].id);
    if (m) heap_push(j->heap, count, (tok_candidate){.rank = m->rank, .joined = m->joined, .pos = pos});
}

/* Lowest rank first, leftmost among equals.  The heap holds a candidate for every adjacent pair, and stale ones: a
 * symbol only ever grows, so a candidate is stale exactly when its place no longer merges to the same token.
 * n-1 candidates at first and two more a merge, of which there are at most n-1: never more than 3n. */
static void merge_all(tok_job *j, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i + 1 < n; i++) consider(j, &count, (uint32_t)i);
    while (count > 0) {
        tok_candidate c = heap_pop(j->heap, &count);
        tok_symbol *left = &j->symbols[c.pos];
        if (left->id < 0 || left->next == UINT32_MAX) continue;
        tok_symbol *right = &j->symbols[left->next];
        const tok_merge *m = find_merge(j->t, left->id, right->id);
        if (!m || m->joined != c.joined) continue;
        left->id = m->joined;
        right->id = -1;
        left->next = right->next;
        if (right->next != UINT32_MAX) j->symbols[right->next].prev = c.pos;
        if (left->prev != UINT32_MAX) consider(j, &count, left->prev);
        consider(j, &count, c.pos);
    }
}

static int piece_room(tok_job *j, size_t bytes)
{
    if (bytes <= j->piece_room) return 0;
    size_t room = bytes < 64 ? 64 : bytes;
    if (room > SIZE_MAX / (3 * sizeof *j->heap)) return fmt_fail(j->e, "a piece of %zu bytes is too long", bytes);
    j->piece_room = 0;
    free(j->symbols);
    free(j->heap);
    j->symbols = malloc(room * sizeof *j->symbols);
    j->heap = malloc(3 * room * sizeof *j->heap);
    if (!j->symbols || !j->heap) return fmt_fail(j->e, "no memory to tokenize a piece of %zu bytes", bytes);
    j->piece_room = room;
    return 0;
}

static size_t put_char(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* The id of a piece that is a vocabulary entry as it stands; -1: it is none. */
static int32_t whole(tok_job *j, const char *piece, size_t bytes)
{
    const tok *t = j->t;
    size_t n = 0;
    if (bytes > t->longest) return -1;
    if (t->byte_level) {
        for (size_t i = 0; i < bytes; i++) {
            if (n + 2 > t->longest + 2) return -1;
            n += put_char(j->spelled + n, tok_byte_char((uint8_t)piece[i]));
        }
        piece = j->spelled;
        bytes = n;
    }
    int32_t id = tok_vocab_find(t, piece, bytes);
    return id >= 0 && (t->entries[id].flags & TOK_IN_MODEL) ? id : -1;
}

/* tokenizers drops a character that has no entry when there is no unk_token; losing text in silence is no answer. */
int tok_bpe_byte(tok_job *j, uint8_t byte)
{
    if (!j->t->byte_level) {
        return fmt_fail(j->e, "the text has byte 0x%02x, which is not UTF-8, and the tokenizer is not byte-level",
                        byte);
    }
    int32_t id = j->t->byte_id[byte];
    if (id < 0) return fmt_fail(j->e, "the text has byte 0x%02x, for which the tokenizer has no token", byte);
    return tok_emit(j, id);
}

int tok_bpe_piece(tok_job *j, const char *piece, size_t bytes)
{
    const tok *t = j->t;
    if (bytes == 0) return 0;
    if (t->ignore_merges) {
        int32_t id = whole(j, piece, bytes);
        if (id >= 0) return tok_emit(j, id);
    }
    if (piece_room(j, bytes) != 0) return -1;

    size_t n = 0;
    for (size_t i = 0; i < bytes; n++) {
        uint32_t c = 0;
        size_t length = t->byte_level ? 1 : tok_utf8_char(piece + i, bytes - i, &c);
        int32_t id = t->byte_level ? t->byte_id[(uint8_t)piece[i]] : tok_vocab_find(t, piece + i, length);
        if (id < 0 || !(t->entries[id].flags & TOK_IN_MODEL)) {
            if (t->byte_level) return tok_bpe_byte(j, (uint8_t)piece[i]);
            return fmt_fail(j->e, "the text has the character U+%04X, for which the tokenizer has no token",
                            (unsigned)c);
        }
        j->symbols[n].id = id;
        j->symbols[n].prev = n ? (uint32_t)n - 1 : UINT32_MAX;
        j->symbols[n].next = (uint32_t)n + 1;
        i += length;
    }
    j->symbols[n - 1].next = UINT32_MAX;
    merge_all(j, n);
    for (uint32_t i = 0; i != UINT32_MAX; i = j->symbols[i].next) {
        if (tok_emit(j, j->symbols[i].id) != 0) return -1;
    }
    return 0;
}
