/* tokenizer.c - the tokenizer's public face: open, encode, look up.
 * Owns the order of the stages of an encode.  Never changes a tok after it is open, so that threads may share one.
 *
 * Text that is not UTF-8: tokenizers takes only strings, so there is no behaviour to follow.  Replacing what is wrong
 * by U+FFFD would lose it; here every byte that belongs to no character becomes the token of that byte alone, a piece
 * of its own between the pieces of the text around it, and decoding gives the same bytes back. */
#include "tok_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "file.h"
#include "gguf.h"

void tok_close(tok *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_steps; i++) pcre2_code_free(t->steps[i].code);
    pcre2_code_free(t->gpt2.code);
    pcre2_code_free(t->word);
    pcre2_code_free(t->suspect);
    free(t->raw.nodes);
    free(t->normalized.nodes);
    free(t->frame);
    free(t->slots);
    free(t->merges);
    free(t->entries);
    free(t->arena);
    free(t);
}

int tok_open(const char *path, tok **out, fmt_error *e)
{
    *out = NULL;
    struct stat st;
    char *file = NULL;
    if (gguf_locate(path, &file, e) != 0) return -1;
    int of_gguf = file != NULL;
    if (!of_gguf && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        file = fmt_path_join(path, "tokenizer.json", e);
        if (!file) return -1;
    }
    const char *name = file ? file : path;
    json_t *root = of_gguf ? gguf_tokenizer(name, NULL, e) : fmt_json_load(name, TOK_MAX_FILE, NULL, e);
    int rc = root ? tok_load(name, root, out, e) : -1;
    json_decref(root);
    free(file);
    return rc;
}

int32_t tok_vocab(const tok *t)
{
    return t->vocab;
}

int32_t tok_find(const tok *t, const char *content)
{
    return tok_vocab_find(t, content, strlen(content));
}

int tok_is_special(const tok *t, int32_t id)
{
    return id >= 0 && id < t->vocab && (t->entries[id].flags & TOK_SPECIAL) != 0;
}

const char *tok_bytes(const tok *t, int32_t id, size_t *bytes)
{
    if (id < 0 || id >= t->vocab || !t->entries[id].flags) {
        *bytes = 0;
        return NULL;
    }
    *bytes = t->entries[id].bytes_len;
    return t->entries[id].bytes;
}

/* How many bytes the character has that starts with s, and the range of its second byte; 0: none starts so. */
static size_t utf8_lead(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

size_t tok_utf8_char(const char *s, size_t bytes, uint32_t *c)
{
    static const uint8_t mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint8_t low = 0, high = 0;
    size_t n = bytes ? utf8_lead((uint8_t)s[0], &low, &high) : 0;
    if (n == 0 || n > bytes) return 0;
    *c = (uint8_t)s[0] & mask[n];
    for (size_t i = 1; i < n; i++) {
        uint8_t b = (uint8_t)s[i];
        if (b < (i == 1 ? low : 0x80) || b > (i == 1 ? high : 0xbf)) return 0;
        *c = *c << 6 | (b & 0x3f);
    }
    return n;
}

size_t tok_utf8_complete(const char *buf, size_t bytes)
{
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        const uint8_t *s = (const uint8_t *)buf + bytes - back;
        uint8_t low = 0, high = 0;
        if ((*s & 0xc0) == 0x80) continue;
        if (utf8_lead(*s, &low, &high) <= back) break;
        if (back >= 2 && (s[1] < low || s[1] > high)) break;
        return bytes - back;
    }
    return bytes;
}

int tok_emit(tok_job *j, int32_t id)
{
    if (j->n_ids == j->ids_room) {
        size_t room = j->ids_room ? j->ids_room * 2 : 64;
        int32_t *ids = room <= SIZE_MAX / sizeof *ids ? realloc(j->ids, room * sizeof *ids) : NULL;
        if (!ids) return fmt_fail(j->e, "no memory for %zu token ids", room);
        j->ids = ids;
        j->ids_room = room;
    }
    j->ids[j->n_ids++] = id;
    return 0;
}

/* ByteLevel: the space in front, its own expression; then the model. */
static int byte_level_span(tok_job *j, const char *base, tok_span span, bool may_prefix)
{
    const tok *t = j->t;
    if (t->prefix_space && may_prefix && base[span.from] != ' ') {
        size_t n = (size_t)(span.to - span.from) + 1;
        if (n > j->prefixed_room) {
            char *buf = realloc(j->prefixed, n * 2);
            if (!buf) return fmt_fail(j->e, "no memory to put a space before a piece of %zu bytes", n - 1);
            j->prefixed = buf;
            j->prefixed_room = n * 2;
        }
        j->prefixed[0] = ' ';
        memcpy(j->prefixed + 1, base + span.from, n - 1);
        base = j->prefixed;
        span = (tok_span){.from = 0, .to = (uint32_t)n};
    }
    if (!t->gpt2.code) return tok_bpe_piece(j, base + span.from, span.to - span.from);
    j->last.count = 0;
    if (tok_regex_split(j, &t->gpt2, base, span, &j->last) != 0) return -1;
    for (size_t i = 0; i < j->last.count; i++) {
        if (tok_bpe_piece(j, base + j->last.at[i].from, j->last.at[i].to - j->last.at[i].from) != 0) return -1;
    }
    return 0;
}

/* The pre-tokenizer and the model, on valid UTF-8. */
static int encode_run(tok_job *j, const char *s, size_t bytes, bool may_prefix)
{
    tok_span whole = {.from = 0, .to = (uint32_t)bytes};
    tok_spans *in = &j->spans, *out = &j->next;
    if (j->t->n_steps == 0) return byte_level_span(j, s, whole, may_prefix);
    in->count = 0;
    if (tok_regex_split(j, &j->t->steps[0], s, whole, in) != 0) return -1;
    for (int k = 1; k < j->t->n_steps; k++) {
        out->count = 0;
        for (size_t i = 0; i < in->count; i++) {
            if (tok_regex_split(j, &j->t->steps[k], s, in->at[i], out) != 0) return -1;
        }
        tok_spans *swap = in;
        in = out;
        out = swap;
    }
    for (size_t i = 0; i < in->count; i++) {
        if (byte_level_span(j, s, in->at[i], may_prefix || in->at[i].from > 0) != 0) return -1;
    }
    return 0;
}

static size_t valid_prefix(const char *s, size_t bytes)
{
    size_t n = 0;
    uint32_t c = 0;
    for (size_t length; n < bytes && (length = tok_utf8_char(s + n, bytes - n, &c)) != 0;) n += length;
    return n;
}

static int encode_piece(tok_job *j, const char *s, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t run = valid_prefix(s + at, bytes - at);
        if (run > 0 && encode_run(j, s + at, run, at == 0) != 0) return -1;
        at += run;
        if (at == bytes) break;
        if (tok_bpe_byte(j, (uint8_t)s[at++]) != 0) return -1;
    }
    return 0;
}

/* NFC leaves a text alone that has none of the suspect characters; what it would do to others is not done here. */
static int encode_normalized(tok_job *j, const char *s, size_t bytes)
{
    for (size_t at = 0; j->t->nfc && at < bytes;) {
        size_t run = valid_prefix(s + at, bytes - at), from = 0, to = 0;
        int found = run ? tok_regex_find(j, j->t->suspect, s + at, run, 0, &from, &to) : 0;
        if (found < 0) return -1;
        if (found > 0) {
            uint32_t c = 0;
            tok_utf8_char(s + at + from, run - from, &c);
            return fmt_fail(j->e,
                            "the text has U+%04X, which Unicode normalization (NFC, asked for by the tokenizer) may "
                            "change; only text without combining marks and such letters is supported",
                            (unsigned)c);
        }
        at += run + 1;
    }
    return tok_added_scan(j, &j->t->normalized, s, bytes, encode_piece);
}

/* TemplateProcessing: the frame's own ids, and the text's where it says so. */
static int put_in_frame(tok_job *j)
{
    const tok *t = j->t;
    int32_t *text = j->ids;
    size_t n = j->n_ids;
    if (!t->frame) return 0;
    j->ids = NULL;
    j->n_ids = j->ids_room = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < t->n_frame; i++) {
        if (t->frame[i] >= 0) rc = tok_emit(j, t->frame[i]);
        for (size_t k = 0; rc == 0 && t->frame[i] < 0 && k < n; k++) rc = tok_emit(j, text[k]);
    }
    free(text);
    return rc;
}

int tok_encode(const tok *t, const char *text, size_t bytes, int32_t **ids, size_t *count, fmt_error *e)
{
    *ids = NULL;
    *count = 0;
    if (bytes > TOK_MAX_TEXT)
        return fmt_fail(e, "the text has %zu bytes, at most %d are tokenized at once", bytes, TOK_MAX_TEXT);
    tok_job j = {.t = t, .e = e};
    int rc = 0;
    if (t->ignore_merges) {
        j.spelled = malloc((size_t)t->longest + 2);
        if (!j.spelled) rc = fmt_fail(e, "no memory to tokenize a text");
    }
    if (rc == 0 && bytes > 0) rc = tok_added_scan(&j, &t->raw, text, bytes, encode_normalized);
    if (rc == 0) rc = put_in_frame(&j);
    if (rc == 0 && !j.ids) { /* no tokens: still something to free() */
        j.ids = malloc(sizeof *j.ids);
        if (!j.ids) rc = fmt_fail(e, "no memory for the token ids");
    }
    if (rc == 0) {
        *ids = j.ids;
        *count = j.n_ids;
    } else {
        free(j.ids);
    }
    pcre2_match_data_free(j.match);
    pcre2_match_context_free(j.context);
    pcre2_jit_stack_free(j.stack);
    free(j.spans.at);
    free(j.next.at);
    free(j.last.at);
    free(j.prefixed);
    free(j.spelled);
    free(j.symbols);
    free(j.heap);
    return rc;
}
