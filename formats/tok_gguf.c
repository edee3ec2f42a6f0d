/* tok_gguf.c - a tokenizer.json made of what a GGUF file says of its tokenizer: byte-level BPE with one of the
 * pre-tokenizers that are known by name.  A tokenizer.json that the file carries whole goes before that.  Never
 * tokenizes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf.h"

/* tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5 };

static const char qwen2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* tokenizer.ggml.pre: an expression before the bytes (NULL: that of ByteLevel itself), and the normalizer. */
static const struct {
    const char *pre, *expression, *normalizer;
} pres[] = {{"qwen2", qwen2, "NFC"}, {"gpt-2", NULL, NULL}};

typedef struct maker {
    const gguf *g;
    fmt_error *e;
} maker;

static int no_memory(const maker *m)
{
    return fmt_fail(m->e, "%.300s: no memory for its tokenizer", gguf_file(m->g));
}

/* Token i as a string with a zero at its end, in buf, which grows. */
static int text_of(const maker *m, gguf_text t, uint64_t i, char **buf, size_t *room)
{
    if (memchr(t.at, '\0', t.bytes))
        return fmt_fail(m->e, "%.300s: tokenizer.ggml.tokens[%" PRIu64 "] holds a zero byte", gguf_file(m->g), i);
    if (t.bytes + 1 > *room) {
        char *more = realloc(*buf, 2 * t.bytes + 64);
        if (!more) return no_memory(m);
        *buf = more;
        *room = 2 * t.bytes + 64;
    }
    memcpy(*buf, t.at, t.bytes);
    (*buf)[t.bytes] = '\0';
    return 0;
}

static int add_token(const maker *m, const char *token, uint64_t id, int64_t type, json_t *vocab, json_t *added)
{
    if (type == TYPE_UNUSED) return 0;
    if (json_object_get(vocab, token))
        return fmt_fail(m->e, "%.300s: tokenizer.ggml.tokens has '%.60s' twice, with the ids %lld and %" PRIu64,
                        gguf_file(m->g), token, (long long)json_integer_value(json_object_get(vocab, token)), id);
    if (json_object_set_new(vocab, token, json_integer((json_int_t)id)))
        return fmt_fail(m->e, "%.300s: tokenizer.ggml.tokens[%" PRIu64 "] is no UTF-8", gguf_file(m->g), id);
    if (type != TYPE_CONTROL && type != TYPE_USER) return 0;
    json_t *o = json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id, "content", token, "single_word",
                          0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", type == TYPE_CONTROL);
    return json_array_append_new(added, o) ? no_memory(m) : 0;
}

static int add_tokens(const maker *m, json_t *vocab, json_t *added)
{
    gguf_value tokens, types = {0};
    int typed = 0, failed = 0;
    char *buf = NULL;
    size_t room = 0;
    if (gguf_need_list(m->g, "tokenizer.ggml.tokens", 1, &tokens, NULL, m->e) ||
        gguf_need_list(m->g, "tokenizer.ggml.token_type", 0, &types, &typed, m->e))
        return -1;
    if (typed && types.count != tokens.count)
        return fmt_fail(m->e, "%.300s: tokenizer.ggml.token_type has %" PRIu64 " items, tokenizer.ggml.tokens %" PRIu64,
                        gguf_file(m->g), types.count, tokens.count);
    for (uint64_t i = 0; !failed && tokens.count; i++) {
        int64_t type = typed ? gguf_take_int(&types) : TYPE_NORMAL;
        failed = text_of(m, gguf_take_text(&tokens), i, &buf, &room) || add_token(m, buf, i, type, vocab, added);
    }
    free(buf);
    return failed ? -1 : 0;
}

static int add_merges(const maker *m, json_t *merges)
{
    gguf_value list;
    if (gguf_need_list(m->g, "tokenizer.ggml.merges", 1, &list, NULL, m->e)) return -1;
    for (uint64_t i = 0; list.count; i++) {
        gguf_text t = gguf_take_text(&list);
        if (json_array_append_new(merges, json_stringn(t.at, t.bytes)))
            return fmt_fail(m->e, "%.300s: tokenizer.ggml.merges[%" PRIu64 "] is no UTF-8", gguf_file(m->g), i);
    }
    return 0;
}

/* The token put before or after a text: a piece of a template; NULL with the sentence when there is none. */
static json_t *special(const maker *m, const char *id_key, json_t *specials)
{
    gguf_value tokens;
    char *name = NULL;
    size_t room = 0;
    int64_t id;
    if (gguf_need_list(m->g, "tokenizer.ggml.tokens", 1, &tokens, NULL, m->e) ||
        gguf_need_int(m->g, id_key, 0, tokens.count > INT32_MAX ? INT32_MAX : (int64_t)tokens.count - 1, &id, NULL,
                      m->e))
        return NULL;
    for (int64_t i = 0; i < id; i++) gguf_take_text(&tokens);
    json_t *piece = NULL;
    if (text_of(m, gguf_take_text(&tokens), (uint64_t)id, &name, &room) == 0) {
        json_t *token = json_pack("{s:s, s:[I], s:[s]}", "id", name, "ids", (json_int_t)id, "tokens", name);
        piece = json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", name, "type_id", 0);
        if (json_object_set_new(specials, name, token) || !piece) {
            no_memory(m);
            json_decref(piece);
            piece = NULL;
        }
    }
    free(name);
    return piece;
}

/* What an encoded text begins and ends with. */
static int add_frame(const maker *m, json_t *root)
{
    int bos = 0, eos = 0, there = 0;
    if (gguf_need_bool(m->g, "tokenizer.ggml.add_bos_token", &bos, &there, m->e) ||
        gguf_need_bool(m->g, "tokenizer.ggml.add_eos_token", &eos, &there, m->e))
        return -1;
    if (!bos && !eos) return 0;
    json_t *single = json_array(), *specials = json_object();
    int failed = bos && json_array_append_new(single, special(m, "tokenizer.ggml.bos_token_id", specials));
    if (!failed && json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0)))
        failed = no_memory(m);
    if (!failed) failed = eos && json_array_append_new(single, special(m, "tokenizer.ggml.eos_token_id", specials));
    json_t *frame = failed ? NULL
                           : json_pack("{s:s, s:O, s:[], s:O}", "type", "TemplateProcessing", "single", single, "pair",
                                       "special_tokens", specials);
    json_decref(single);
    json_decref(specials);
    if (failed) return -1;
    return json_object_set_new(root, "post_processor", frame) ? no_memory(m) : 0;
}

static json_t *byte_level(int use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex",
                     use_regex);
}

const char *gguf_pre_of(const json_t *tokenizer)
{
    const json_t *pre = json_object_get(tokenizer, "pre_tokenizer"), *parts = json_object_get(pre, "pretokenizers");
    const json_t *first = parts ? json_array_get(parts, 0) : pre,
                 *last = parts ? json_array_get(parts, json_array_size(parts) - 1) : pre;
    const char *expression = json_string_value(json_object_get(json_object_get(first, "pattern"), "Regex"));
    int own = !json_is_false(json_object_get(last, "use_regex"));
    if (json_array_size(parts) > 2) return NULL;
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (pres[i].expression ? expression && !own && strcmp(expression, pres[i].expression) == 0
                               : first == last && own)
            return pres[i].pre;
    return NULL;
}

static int add_pre(const maker *m, json_t *root)
{
    gguf_text pre;
    size_t i = 0;
    if (gguf_need_text(m->g, "tokenizer.ggml.pre", &pre, NULL, m->e)) return -1;
    while (i < sizeof pres / sizeof *pres && !gguf_text_is(pre, pres[i].pre)) i++;
    if (i == sizeof pres / sizeof *pres)
        return fmt_fail(
            m->e,
            "%.300s: tokenizer.ggml.pre is '%.*s', supported are qwen2 and gpt-2, and files that carry a whole "
            "tokenizer.json (tokenizer.huggingface.json)",
            gguf_file(m->g), pre.bytes > 60 ? 60 : (int)pre.bytes, pre.at);
    json_t *parts = json_array();
    int failed = !parts;
    if (pres[i].expression)
        failed |=
            json_array_append_new(parts, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                                   pres[i].expression, "behavior", "Isolated", "invert", 0));
    failed |= json_array_append_new(parts, byte_level(pres[i].expression == NULL)) ||
              json_object_set_new(root, "pre_tokenizer",
                                  json_pack("{s:s, s:O}", "type", "Sequence", "pretokenizers", parts)) ||
              json_object_set_new(root, "decoder", byte_level(1));
    if (pres[i].normalizer)
        failed |= json_object_set_new(root, "normalizer", json_pack("{s:s}", "type", pres[i].normalizer));
    json_decref(parts);
    return failed ? no_memory(m) : 0;
}

static json_t *make(const maker *m)
{
    gguf_text model;
    if (gguf_need_text(m->g, "tokenizer.ggml.model", &model, NULL, m->e)) return NULL;
    if (!gguf_text_is(model, "gpt2")) {
        fmt_fail(m->e, "%.300s: tokenizer.ggml.model is '%.*s', supported is gpt2 (byte-level BPE)", gguf_file(m->g),
                 model.bytes > 60 ? 60 : (int)model.bytes, model.at);
        return NULL;
    }
    json_t *vocab = json_object(), *merges = json_array(), *added = json_array();
    json_t *root = json_pack("{s:s, s:O, s:{s:s, s:O, s:O}}", "version", "1.0", "added_tokens", added, "model", "type",
                             "BPE", "vocab", vocab, "merges", merges);
    int failed = !vocab || !merges || !added || !root
                     ? no_memory(m)
                     : add_pre(m, root) || add_tokens(m, vocab, added) || add_merges(m, merges) || add_frame(m, root);
    json_decref(vocab);
    json_decref(merges);
    json_decref(added);
    if (!failed) return root;
    json_decref(root);
    return NULL;
}

/* The file's own tokenizer.json, when it has one. */
static json_t *carried(const maker *m, int *there)
{
    gguf_text text;
    json_error_t why;
    if (gguf_need_text(m->g, "tokenizer.huggingface.json", &text, there, m->e) || !*there) return NULL;
    json_t *root = json_loadb(text.at, text.bytes, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        fmt_fail(m->e, "%.300s: tokenizer.huggingface.json is not valid JSON: line %d: %s", gguf_file(m->g), why.line,
                 why.text);
    if (!root || json_is_object(root)) return root;
    fmt_fail(m->e, "%.300s: tokenizer.huggingface.json holds a JSON array, an object is expected", gguf_file(m->g));
    json_decref(root);
    return NULL;
}

static int has_none(const gguf *g)
{
    return !gguf_find(g, "tokenizer.huggingface.json") && !gguf_find(g, "tokenizer.ggml.model");
}

json_t *gguf_tokenizer(const char *file, int *absent, fmt_error *e)
{
    gguf *g = NULL;
    if (gguf_open(file, &g, e)) return NULL;
    const maker m = {g, e};
    int there = 0, none = absent && has_none(g);
    if (absent) *absent = none;
    json_t *root = none ? NULL : carried(&m, &there);
    if (!root && !there && !none) root = make(&m);
    gguf_close(g);
    return root;
}
