/* tok_parts.c - the normalizer, pre_tokenizer, decoder and post_processor of a tokenizer.json.
 * Owns what each part may be.  Never touches the vocabulary's tables. */
#include "tok_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The type of a part, "" when it has none: never NULL, so that it can be compared. */
static const char *type_of(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    return type ? type : "";
}

/* The parts of a Sequence, which go by another name in each place; NULL with the error set when there are none. */
static const json_t *sequence(tok_reader *r, const char *part, const json_t *v, const char *list, int depth)
{
    const char *const keys[] = {"type", list, NULL};
    const json_t *parts = json_object_get(v, list);
    if (tok_object(r, part, v, keys) != 0) return NULL;
    if (!json_is_array(parts))
        tok_refuse(r, part, list, parts, "an array");
    else if (depth >= TOK_MAX_DEPTH)
        fmt_fail(r->e, "%s: %s is nested deeper than %d", r->file, part, (int)TOK_MAX_DEPTH);
    else
        return parts;
    return NULL;
}

static int check_byte_level(tok_reader *r, const char *part, const json_t *v, bool *prefix, bool *regex)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    bool trim = true; /* offsets are not computed here */
    if (tok_object(r, part, v, keys) != 0 || tok_bool(r, part, v, "add_prefix_space", true, prefix) != 0 ||
        tok_bool(r, part, v, "trim_offsets", true, &trim) != 0) {
        return -1;
    }
    return tok_bool(r, part, v, "use_regex", false, regex);
}

static int read_normalizer(tok_reader *r, const char *part, const json_t *v, int depth)
{
    static const char *const keys[] = {"type", NULL};
    if (!v || json_is_null(v)) return 0;
    if (strcmp(type_of(v), "NFC") == 0) {
        r->t->nfc = true;
        return tok_object(r, part, v, keys);
    }
    if (strcmp(type_of(v), "Sequence") != 0) {
        return tok_refuse(r, part, "type", json_object_get(v, "type"), "no normalizer, NFC, and a Sequence of it");
    }
    const json_t *parts = sequence(r, part, v, "normalizers", depth);
    if (!parts) return -1;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        if (read_normalizer(r, "normalizer.normalizers[]", json_array_get(parts, i), depth + 1) != 0) return -1;
    }
    return 0;
}

int tok_read_normalizer(tok_reader *r, const json_t *v)
{
    return read_normalizer(r, "normalizer", v, 0);
}

static int add_step(tok_reader *r, const char *part, const char *pattern, size_t bytes, bool literal,
                    tok_behavior behavior, bool invert)
{
    tok *t = r->t;
    if (t->n_steps == TOK_MAX_STEPS) {
        return fmt_fail(r->e, "%s: pre_tokenizer has more than %d steps", r->file, (int)TOK_MAX_STEPS);
    }
    char what[96];
    snprintf(what, sizeof what, "%s.pattern", part);
    tok_split *s = &t->steps[t->n_steps];
    if (tok_regex_compile(r->file, what, pattern, bytes, literal, &s->code, r->e) != 0) return -1;
    s->behavior = behavior;
    s->invert = invert;
    t->n_steps++;
    return 0;
}

static int read_split(tok_reader *r, const char *part, const json_t *v)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json_t *pattern = json_object_get(v, "pattern"), *behavior = json_object_get(v, "behavior");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    const char *name = json_string_value(behavior);
    bool invert = false;
    if (tok_object(r, part, v, keys) != 0 || tok_bool(r, part, v, "invert", true, &invert) != 0) return -1;
    size_t b = 0;
    while (name && b < 5 && strcmp(names[b], name) != 0) b++;
    if (!name || b == 5) {
        return tok_refuse(r, part, "behavior", behavior,
                          "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
    }
    const json_t *text = regex ? regex : string;
    if (json_object_size(pattern) != 1 || !json_is_string(text)) {
        return tok_refuse(r, part, "pattern", pattern, "an object with one string, Regex or String");
    }
    return add_step(r, part, json_string_value(text), json_string_length(text), text == string, (tok_behavior)b,
                    invert);
}

static int read_digits(tok_reader *r, const char *part, const json_t *v)
{
    static const char *const keys[] = {"type", "individual_digits", NULL};
    bool single = false;
    if (tok_object(r, part, v, keys) != 0 || tok_bool(r, part, v, "individual_digits", true, &single) != 0) return -1;
    return add_step(r, part, "\\p{N}", 5, false, single ? TOK_ISOLATED : TOK_CONTIGUOUS, false);
}

static int read_byte_level(tok_reader *r, const char *part, const json_t *v)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    tok *t = r->t;
    bool regex = true;
    if (check_byte_level(r, part, v, &t->prefix_space, &regex) != 0) return -1;
    t->byte_level = true;
    if (!regex) return 0;
    t->gpt2.behavior = TOK_ISOLATED;
    return tok_regex_compile(r->file, part, gpt2, sizeof gpt2 - 1, false, &t->gpt2.code, r->e);
}

static int read_pre_tokenizer(tok_reader *r, const char *part, const json_t *v, int depth)
{
    const char *type = type_of(v);
    if (r->t->byte_level) {
        return tok_refuse(r, part, "type", json_object_get(v, "type"), "nothing after ByteLevel, which comes last");
    }
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(r, part, v);
    if (strcmp(type, "Split") == 0) return read_split(r, part, v);
    if (strcmp(type, "Digits") == 0) return read_digits(r, part, v);
    if (strcmp(type, "Sequence") != 0) {
        return tok_refuse(r, part, "type", json_object_get(v, "type"),
                          "ByteLevel, Split, Digits, and a Sequence of them");
    }
    const json_t *parts = sequence(r, part, v, "pretokenizers", depth);
    if (!parts) return -1;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        char inner[64];
        snprintf(inner, sizeof inner, "pre_tokenizer.pretokenizers%s[%zu]", depth ? "[]" : "", i);
        if (read_pre_tokenizer(r, inner, json_array_get(parts, i), depth + 1) != 0) return -1;
    }
    return 0;
}

int tok_read_pre_tokenizer(tok_reader *r, const json_t *v)
{
    return !v || json_is_null(v) ? 0 : read_pre_tokenizer(r, "pre_tokenizer", v, 0);
}

/* Without a decoder tokenizers puts spaces between tokens: no byte-level tokenizer means that. */
static int read_decoder(tok_reader *r, const char *part, const json_t *v, int depth)
{
    bool ignored = false;
    if (strcmp(type_of(v), "ByteLevel") == 0) return check_byte_level(r, part, v, &ignored, &ignored);
    if (strcmp(type_of(v), "Sequence") != 0) {
        const json_t *found = json_is_object(v) ? json_object_get(v, "type") : v;
        return tok_refuse(r, part, json_is_object(v) ? "type" : NULL, found, "ByteLevel, and a Sequence of it alone");
    }
    const json_t *parts = sequence(r, part, v, "decoders", depth);
    if (!parts) return -1;
    if (json_array_size(parts) != 1) return tok_refuse(r, part, "decoders", parts, "ByteLevel alone");
    return read_decoder(r, "decoder.decoders[0]", json_array_get(parts, 0), depth + 1);
}

int tok_read_decoder(tok_reader *r, const json_t *v)
{
    return read_decoder(r, "decoder", v, 0);
}

/* The ids of special_tokens[NAME]; NULL with the error set. */
static const json_t *special_ids(tok_reader *r, const char *part, const json_t *v, const char *name)
{
    static const char *const keys[] = {"id", "ids", "tokens", NULL};
    const json_t *token = json_object_get(json_object_get(v, "special_tokens"), name);
    const json_t *ids = json_object_get(token, "ids");
    char inner[128];
    snprintf(inner, sizeof inner, "%s.special_tokens.%.64s", part, name);
    if (tok_object(r, inner, token, keys) != 0) return NULL;
    if (!json_is_array(ids)) tok_refuse(r, inner, "ids", ids, "an array of ids");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int32_t id = 0;
        if (tok_id(r, inner, "ids", json_array_get(ids, i), &id) != 0) return NULL;
        if (id >= r->t->vocab || !r->t->entries[id].flags) {
            fmt_fail(r->e, "%s: %s.ids has %d, which no token of the vocabulary has", r->file, inner, (int)id);
            return NULL;
        }
    }
    return json_is_array(ids) ? ids : NULL;
}

static int read_piece(tok_reader *r, const char *part, const json_t *v, const json_t *piece, size_t *n)
{
    tok *t = r->t;
    const json_t *text = json_object_get(piece, "Sequence"), *token = json_object_get(piece, "SpecialToken");
    const char *name = json_string_value(json_object_get(text ? text : token, "id"));
    if (json_object_size(piece) != 1 || !name || (text && strcmp(name, "A") != 0)) {
        return tok_refuse(r, part, "single[]", piece, "Sequence A, and SpecialToken with its id");
    }
    const json_t *ids = text ? NULL : special_ids(r, part, v, name);
    if (token && !ids) return -1;
    size_t count = text ? 1 : json_array_size(ids);
    int32_t *frame = realloc(t->frame, (*n + count + 1) * sizeof *frame);
    if (!frame) return fmt_fail(r->e, "%s: no memory for %s", r->file, part);
    t->frame = frame;
    if (text) frame[(*n)++] = -1;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        frame[(*n)++] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    return 0;
}

static int read_template(tok_reader *r, const char *part, const json_t *v)
{
    static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
    const json_t *single = json_object_get(v, "single");
    if (tok_object(r, part, v, keys) != 0) return -1;
    if (!json_is_array(single)) return tok_refuse(r, part, "single", single, "an array");
    if (r->t->frame) return fmt_fail(r->e, "%s: %s is a second TemplateProcessing, one is supported", r->file, part);
    size_t n = 0, texts = 0;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        texts += json_object_get(piece, "Sequence") != NULL;
        if (read_piece(r, part, v, piece, &n) != 0) return -1;
    }
    if (texts != 1) return tok_refuse(r, part, "single", single, "one Sequence A");
    r->t->n_frame = n;
    return 0;
}

static int read_post_processor(tok_reader *r, const char *part, const json_t *v, int depth)
{
    const char *type = type_of(v);
    bool ignored = false; /* ByteLevel only moves offsets here */
    if (strcmp(type, "ByteLevel") == 0) return check_byte_level(r, part, v, &ignored, &ignored);
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(r, part, v);
    if (strcmp(type, "Sequence") != 0) {
        return tok_refuse(r, part, "type", json_object_get(v, "type"),
                          "ByteLevel, TemplateProcessing, and a Sequence of them");
    }
    const json_t *parts = sequence(r, part, v, "processors", depth);
    if (!parts) return -1;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        char inner[64];
        snprintf(inner, sizeof inner, "post_processor.processors%s[%zu]", depth ? "[]" : "", i);
        if (read_post_processor(r, inner, json_array_get(parts, i), depth + 1) != 0) return -1;
    }
    return 0;
}

int tok_read_post_processor(tok_reader *r, const json_t *v)
{
    return !v || json_is_null(v) ? 0 : read_post_processor(r, "post_processor", v, 0);
}
