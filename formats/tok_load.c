/* tok_load.c - tokenizer.json to a tok: the model, the added tokens, and the fields that all parts share.
 * Owns the rule that what is not known is refused by name.  Never tokenizes. */
#include "tok_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

int tok_refuse(tok_reader *r, const char *part, const char *key, const json_t *found, const char *supported)
{
    char text[96];
    const char *dot = *part && key ? "." : "";
    if (!found)
        return fmt_fail(r->e, "%s: %s%s%s is missing, supported: %s", r->file, part, dot, key ? key : "", supported);
    fmt_json_text(found, text, sizeof text);
    return fmt_fail(r->e, "%s: %s%s%s is %s, supported: %s", r->file, part, dot, key ? key : "", text, supported);
}

int tok_object(tok_reader *r, const char *part, const json_t *o, const char *const *keys)
{
    if (!json_is_object(o)) return tok_refuse(r, part, NULL, o, "an object");
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)o, key, value)
    {
        size_t i = 0;
        while (keys[i] && strcmp(keys[i], key) != 0) i++;
        if (!keys[i]) {
            return fmt_fail(r->e, "%s: %s%s%.64s is not known, so the tokenizer would not be read as it was meant",
                            r->file, part, *part ? "." : "", key);
        }
    }
    return 0;
}

int tok_bool(tok_reader *r, const char *part, const json_t *o, const char *key, bool required, bool *out)
{
    const json_t *v = json_object_get(o, key);
    if (!v && !required) return 0;
    if (!json_is_boolean(v)) return tok_refuse(r, part, key, v, "true and false");
    *out = json_is_true(v);
    return 0;
}

int tok_id(tok_reader *r, const char *part, const char *key, const json_t *v, int32_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TOK_MAX_IDS) {
        char supported[48], field[128];
        snprintf(supported, sizeof supported, "an integer from 0 to %d", TOK_MAX_IDS - 1);
        snprintf(field, sizeof field, key ? "%s\"%.64s\"" : "%s", part, key ? key : "");
        return tok_refuse(r, field, NULL, v, supported);
    }
    *out = (int32_t)json_integer_value(v);
    return 0;
}

/* What a vocabulary entry stands for: its characters as bytes, if each of them stands for one, else its own bytes. */
static size_t unmap(const char *spelled, size_t bytes, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t c = 0;
        size_t length = tok_utf8_char(spelled + i, bytes - i, &c);
        int byte = length ? tok_char_byte(c) : -1;
        if (byte < 0) {
            memcpy(out, spelled, bytes);
            return bytes;
        }
        out[n++] = (char)byte;
        i += length;
    }
    return n;
}

/* Ids and bytes of everything that gets an id, so that the tables are taken once. */
static int measure(tok_reader *r, const json_t *vocab, const json_t *added, size_t *entries, size_t *bytes)
{
    const char *key = NULL;
    json_t *value = NULL;
    int32_t id = 0, last = -1;
    json_object_foreach((json_t *)vocab, key, value)
    {
        if (tok_id(r, "model.vocab.", key, value, &id) != 0) return -1;
        if (id > last) last = id;
        *bytes += 2 * strlen(key);
    }
    *entries = json_object_size(vocab);
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i), *content = json_object_get(a, "content");
        char part[48];
        snprintf(part, sizeof part, "added_tokens[%zu].id", i);
        if (tok_id(r, part, NULL, json_object_get(a, "id"), &id) != 0) return -1;
        snprintf(part, sizeof part, "added_tokens[%zu]", i);
        if (!json_is_string(content) || json_string_length(content) == 0 ||
            json_string_length(content) > TOK_MAX_CONTENT) {
            return tok_refuse(r, part, "content", content, "a string of 1 to 1024 bytes");
        }
        if (id > last) last = id;
        *bytes += json_string_length(content);
    }
    *entries += json_array_size(added);
    r->t->vocab = last + 1;
    return 0;
}

static int read_vocab(tok_reader *r, const json_t *vocab, char **free_bytes)
{
    tok *t = r->t;
    const char *key = NULL;
    json_t *value = NULL;
    char *at = *free_bytes;
    json_object_foreach((json_t *)vocab, key, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        size_t n = strlen(key);
        tok_entry *entry = &t->entries[id];
        if (entry->flags) {
            return fmt_fail(r->e,
                            "%s: model.vocab gives id %d to \"%.64s\" and to \"%.64s\", an id belongs to one entry",
                            r->file, (int)id, entry->spelled, key);
        }
        memcpy(at, key, n);
        entry->spelled = at;
        entry->spelled_len = (uint32_t)n;
        at += n;
        *at++ = 0;
        entry->bytes = at;
        entry->bytes_len = (uint32_t)unmap(key, n, at);
        at += entry->bytes_len;
        entry->flags = TOK_IN_MODEL;
        if (n > t->longest) t->longest = (uint32_t)n;
        tok_vocab_add(t, id);
    }
    *free_bytes = at;
    for (int b = 0; b < 256; b++) {
        uint32_t c = tok_byte_char((uint8_t)b);
        char spelled[2] = {(char)(c < 0x80 ? c : 0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
        t->byte_id[b] = tok_vocab_find(t, spelled, c < 0x80 ? 1 : 2);
    }
    return 0;
}

/* tokenizers ignores the ids of added_tokens: a content that the vocabulary has takes its id from there, the others
 * count on from the vocabulary's size.  A file that says otherwise would mean two things, so it is refused. */
static int read_added(tok_reader *r, const json_t *added, size_t vocab_entries, char **free_bytes)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    tok *t = r->t;
    int64_t next = (int64_t)vocab_entries;
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *a = json_array_get(added, i);
        char part[48];
        snprintf(part, sizeof part, "added_tokens[%zu]", i);
        if (tok_object(r, part, a, keys) != 0) return -1;
        bool single = false, left = false, right = false, normalized = false, special = false;
        if (tok_bool(r, part, a, "single_word", true, &single) != 0 ||
            tok_bool(r, part, a, "lstrip", true, &left) != 0 || tok_bool(r, part, a, "rstrip", true, &right) != 0 ||
            tok_bool(r, part, a, "normalized", true, &normalized) != 0 ||
            tok_bool(r, part, a, "special", true, &special) != 0) {
            return -1;
        }
        const char *content = json_string_value(json_object_get(a, "content"));
        size_t n = json_string_length(json_object_get(a, "content"));
        int32_t id = (int32_t)json_integer_value(json_object_get(a, "id")), known = tok_vocab_find(t, content, n);
        tok_entry *entry = &t->entries[id];
        if (known >= 0 && (t->entries[known].flags & TOK_ADDED)) {
            return fmt_fail(r->e, "%s: %s.content \"%.64s\" is there twice", r->file, part, content);
        }
        if (id != (known >= 0 ? known : next)) {
            return fmt_fail(r->e, "%s: %s.id is %d, but \"%.64s\" gets id %lld from the vocabulary and its size",
                            r->file, part, (int)id, content, (long long)(known >= 0 ? known : next));
        }
        if (known < 0 && entry->flags) {
            return fmt_fail(r->e, "%s: %s.id is %d, which model.vocab gives to \"%.64s\"", r->file, part, (int)id,
                            entry->spelled);
        }
        if (known < 0) {
            memcpy(*free_bytes, content, n);
            entry->spelled = *free_bytes;
            entry->spelled_len = (uint32_t)n;
            *free_bytes += n;
            *(*free_bytes)++ = 0;
            tok_vocab_add(t, id);
            next++;
        }
        entry->bytes = entry->spelled;
        entry->bytes_len = entry->spelled_len;
        entry->flags |= TOK_ADDED | (special ? TOK_SPECIAL : 0u) | (left ? TOK_LSTRIP : 0u) |
                        (right ? TOK_RSTRIP : 0u) | (single ? TOK_SINGLE_WORD : 0u);
        if (tok_trie_add(normalized ? &t->normalized : &t->raw, content, n, id) != 0) {
            return fmt_fail(r->e, "%s: no memory for %s", r->file, part);
        }
        if (normalized && t->nfc) {
            tok_job j = {.t = t, .e = r->e};
            size_t at = 0, end = 0;
            int found = tok_regex_find(&j, t->suspect, content, n, 0, &at, &end);
            pcre2_match_data_free(j.match);
            pcre2_match_context_free(j.context);
            pcre2_jit_stack_free(j.stack);
            if (found < 0) return -1;
            if (found > 0) {
                return tok_refuse(r, part, "content", json_object_get(a, "content"),
                                  "content that the normalizer NFC surely leaves alone, as normalized is true");
            }
        }
    }
    return 0;
}

/* "a b" or ["a", "b"], in one array only one of the two. */
static int merge_halves(tok_reader *r, const json_t *m, size_t i, bool pairs, const char *half[2], size_t length[2])
{
    char part[48];
    snprintf(part, sizeof part, "model.merges[%zu]", i);
    if (pairs) {
        if (!json_is_array(m) || json_array_size(m) != 2)
            return tok_refuse(r, part, NULL, m, "an array of two strings");
        for (size_t k = 0; k < 2; k++) {
            const json_t *s = json_array_get(m, k);
            if (!json_is_string(s)) return tok_refuse(r, part, NULL, m, "an array of two strings");
            half[k] = json_string_value(s);
            length[k] = json_string_length(s);
        }
        return 0;
    }
    const char *s = json_string_value(m), *space = s ? strchr(s, ' ') : NULL;
    if (!space || strchr(space + 1, ' ')) return tok_refuse(r, part, NULL, m, "two strings with one space between");
    half[0] = s;
    length[0] = (size_t)(space - s);
    half[1] = space + 1;
    length[1] = json_string_length(m) - length[0] - 1;
    return 0;
}

static int32_t model_id(const tok *t, const char *s, size_t n)
{
    int32_t id = tok_vocab_find(t, s, n);
    return id >= 0 && (t->entries[id].flags & TOK_IN_MODEL) ? id : -1;
}

static int read_merges(tok_reader *r, const json_t *merges)
{
    tok *t = r->t;
    size_t count = json_array_size(merges);
    bool pairs = json_is_array(json_array_get(merges, 0));
    char *joined = malloc((size_t)t->longest + 1);
    if (!joined || tok_merges_room(t, count) != 0) {
        free(joined);
        return fmt_fail(r->e, "%s: no memory for %zu merges", r->file, count);
    }
    int rc = 0;
    int32_t rank = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const json_t *m = json_array_get(merges, i);
        const char *half[2] = {NULL, NULL};
        size_t length[2] = {0, 0};
        if (!pairs && json_is_string(m) && strncmp(json_string_value(m), "#version", 8) == 0) continue;
        rc = merge_halves(r, m, i, pairs, half, length);
        if (rc != 0) break;
        int32_t id[3] = {model_id(t, half[0], length[0]), model_id(t, half[1], length[1]), -1};
        if (id[0] >= 0 && id[1] >= 0 && length[0] + length[1] <= t->longest) {
            memcpy(joined, half[0], length[0]);
            memcpy(joined + length[0], half[1], length[1]);
            id[2] = model_id(t, joined, length[0] + length[1]);
        }
        if (id[2] < 0) {
            rc = fmt_fail(r->e, "%s: model.merges[%zu] joins \"%.64s\" and \"%.64s\", but %s is not in model.vocab",
                          r->file, i, half[0], half[1],
                          id[0] < 0   ? "the first"
                          : id[1] < 0 ? "the second"
                                      : "what they make");
            break;
        }
        tok_merges_put(t, id[0], id[1], rank++, id[2]);
    }
    free(joined);
    return rc;
}

static int read_model(tok_reader *r, const json_t *model)
{
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type"), *v = NULL;
    if (!json_is_object(model)) return tok_refuse(r, "model", NULL, model, "an object");
    /* Old files leave the type of a BPE model out. */
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0)) {
        return tok_refuse(r, "model", "type", type, "\"BPE\"");
    }
    if (tok_object(r, "model", model, keys) != 0) return -1;
    v = json_object_get(model, "dropout");
    if (v && !json_is_null(v) && !(json_is_number(v) && json_number_value(v) == 0.0)) {
        return tok_refuse(r, "model", "dropout", v, "null");
    }
    for (size_t i = 0; i < 2; i++) {
        v = json_object_get(model, empty[i]);
        if (v && !json_is_null(v) && !(json_is_string(v) && json_string_length(v) == 0)) {
            return tok_refuse(r, "model", empty[i], v, "null and \"\"");
        }
    }
    bool fallback = false, fuse = false;
    if (tok_bool(r, "model", model, "byte_fallback", false, &fallback) != 0 ||
        tok_bool(r, "model", model, "fuse_unk", false, &fuse) != 0 ||
        tok_bool(r, "model", model, "ignore_merges", false, &r->t->ignore_merges) != 0) {
        return -1;
    }
    if (fallback) return tok_refuse(r, "model", "byte_fallback", json_object_get(model, "byte_fallback"), "false");
    v = json_object_get(model, "vocab");
    if (!json_is_object(v) || json_object_size(v) == 0)
        return tok_refuse(r, "model", "vocab", v, "an object that is not empty");
    v = json_object_get(model, "merges");
    if (!json_is_array(v)) return tok_refuse(r, "model", "merges", v, "an array");
    v = json_object_get(model, "unk_token");
    if (v && !json_is_null(v) && !json_is_string(v)) return tok_refuse(r, "model", "unk_token", v, "null and a string");
    return 0;
}

/* The unknown token is for what has no entry: with all 256 bytes in the vocabulary there is no such thing. */
static int check_unknown(tok_reader *r, const json_t *unk)
{
    if (!json_is_string(unk)) return 0;
    for (int b = 0; b < 256; b++) {
        if (!r->t->byte_level || r->t->byte_id[b] < 0) {
            return tok_refuse(r, "model", "unk_token", unk,
                              "null, unless the vocabulary is byte-level and has every byte");
        }
    }
    return 0;
}

static int read_all(tok_reader *r, const json_t *root)
{
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    tok *t = r->t;
    if (tok_object(r, "", root, keys) != 0) return -1;
    const json_t *version = json_object_get(root, "version"), *added = json_object_get(root, "added_tokens");
    const json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0)) {
        return tok_refuse(r, "", "version", version, "\"1.0\"");
    }
    for (size_t i = 1; i <= 2; i++) {
        const json_t *v = json_object_get(root, keys[i]);
        if (v && !json_is_null(v)) return tok_refuse(r, "", keys[i], v, "null");
    }
    if (added && !json_is_array(added)) return tok_refuse(r, "", "added_tokens", added, "an array");
    if (read_model(r, model) != 0 || tok_read_normalizer(r, json_object_get(root, "normalizer")) != 0 ||
        tok_read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer")) != 0 ||
        tok_read_decoder(r, json_object_get(root, "decoder")) != 0 || tok_regex_classes(r->file, t, r->e) != 0) {
        return -1;
    }

    size_t entries = 0, bytes = 0;
    if (measure(r, vocab, added, &entries, &bytes) != 0) return -1;
    t->entries = calloc((size_t)t->vocab, sizeof *t->entries);
    t->arena = malloc(bytes + entries);
    if (!t->entries || !t->arena || tok_vocab_room(t, entries) != 0) {
        return fmt_fail(r->e, "%s: no memory for %zu vocabulary entries", r->file, entries);
    }
    char *free_bytes = t->arena;
    if (read_vocab(r, vocab, &free_bytes) != 0 || check_unknown(r, json_object_get(model, "unk_token")) != 0 ||
        read_merges(r, json_object_get(model, "merges")) != 0) {
        return -1;
    }
    if (read_added(r, added, json_object_size(vocab), &free_bytes) != 0) return -1;
    return tok_read_post_processor(r, json_object_get(root, "post_processor"));
}

int tok_load(const char *file, const json_t *root, tok **out, fmt_error *e)
{
    *out = NULL;
    tok *t = calloc(1, sizeof *t);
    if (!t) return fmt_fail(e, "%s: no memory for a tokenizer", file);
    tok_reader r = {.t = t, .file = file, .e = e};
    if (read_all(&r, root) != 0) {
        tok_close(t);
        return -1;
    }
    *out = t;
    return 0;
}
