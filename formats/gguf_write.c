/* gguf_write.c - owns the bytes of a GGUF file that is written: version 3, little-endian, metadata of the qwen3moe
 * architecture made of a checkpoint's config.json and tokenizer.json.  One tensor is in memory at a time. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "gguf.h"
#include "model.h"
#include "tokenizer.h"

enum { VERSION = 3, ALIGN = 32, MAX_TOKENIZER = 256 << 20 };

/* Bytes that grow; failed once memory is out. */
typedef struct buffer {
    uint8_t *at;
    size_t n, room;
    int failed;
} buffer;

typedef struct writer {
    const char *path;
    const gguf_out *t;
    size_t n;
    gguf_fill_fn fill;
    void *ctx;
    buffer head;
    uint64_t largest;
} writer;

/* ---- bytes ---------------------------------------------------------------------------------------------------- */

static void put(buffer *b, const void *bytes, size_t n)
{
    if (b->failed || n > b->room - b->n) {
        size_t room = 2 * b->room > b->n + n ? 2 * b->room : 2 * (b->n + n);
        uint8_t *more = b->failed ? NULL : realloc(b->at, room);
        if (!more) {
            b->failed = 1;
            return;
        }
        b->at = more;
        b->room = room;
    }
    if (n) memcpy(b->at + b->n, bytes, n);
    b->n += n;
}

static void put_int(buffer *b, uint64_t v, int bytes)
{
    uint8_t little[8];
    for (int i = 0; i < bytes; i++) little[i] = (uint8_t)(v >> 8 * i);
    put(b, little, (size_t)bytes);
}

static void put_text(buffer *b, const char *text, size_t n)
{
    put_int(b, n, 8);
    put(b, text, n);
}

/* ---- keys ----------------------------------------------------------------------------------------------------- */

/* Counts its keys. */
typedef struct metadata {
    buffer b;
    uint64_t n;
} metadata;

static void put_key(metadata *m, const char *key, gguf_type type)
{
    put_text(&m->b, key, strlen(key));
    put_int(&m->b, type, 4);
    m->n++;
}

static void key_int(metadata *m, const char *key, int64_t v)
{
    put_key(m, key, GGUF_U32);
    put_int(&m->b, (uint64_t)v, 4);
}

static void key_real(metadata *m, const char *key, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, key, GGUF_F32);
    put_int(&m->b, bits, 4);
}

static void key_bool(metadata *m, const char *key, int v)
{
    put_key(m, key, GGUF_BOOL);
    put_int(&m->b, v != 0, 1);
}

static void key_text(metadata *m, const char *key, const char *text)
{
    put_key(m, key, GGUF_STRING);
    put_text(&m->b, text, strlen(text));
}

static void key_list(metadata *m, const char *key, gguf_type item, uint64_t n)
{
    put_key(m, key, GGUF_ARRAY);
    put_int(&m->b, item, 4);
    put_int(&m->b, n, 8);
}

static void put_model(metadata *m, const model_config *c)
{
    json_int_t dense = json_integer_value(json_object_get(c->document, "intermediate_size"));
    key_text(m, "general.architecture", "qwen3moe");
    key_int(m, "general.quantization_version", 2);
    key_int(m, "qwen3moe.vocab_size", c->vocab);
    key_int(m, "qwen3moe.block_count", c->n_layers);
    key_int(m, "qwen3moe.context_length", c->max_position);
    key_int(m, "qwen3moe.embedding_length", c->hidden);
    key_int(m, "qwen3moe.feed_forward_length", dense > 0 && dense <= INT32_MAX ? (int64_t)dense : c->dense_inter);
    key_int(m, "qwen3moe.attention.head_count", c->n_heads);
    key_int(m, "qwen3moe.attention.head_count_kv", c->n_kv_heads);
    key_int(m, "qwen3moe.attention.key_length", c->head_dim);
    key_int(m, "qwen3moe.attention.value_length", c->head_dim);
    key_real(m, "qwen3moe.attention.layer_norm_rms_epsilon", c->rms_eps);
    if (c->sliding_window) key_int(m, "qwen3moe.attention.sliding_window", c->sliding_window);
    key_real(m, "qwen3moe.rope.freq_base", (float)c->rope_theta);
    key_int(m, "qwen3moe.expert_count", c->moe.n_experts);
    key_int(m, "qwen3moe.expert_used_count", c->moe.top_k);
    key_int(m, "qwen3moe.expert_feed_forward_length", c->moe.inter);
    key_bool(m, "qwen3moe.expert_weights_norm", (c->moe.flags & MOEWE_FLAG_RENORMALIZE) != 0);
}

/* ---- the tokenizer -------------------------------------------------------------------------------------------- */

enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5 };

typedef struct token_row {
    const char *text;
    uint8_t type; /* 0: nothing has this id */
} token_row;

static void list_tokens(const json_t *root, token_row *rows, int32_t n)
{
    const json_t *added = json_object_get(root, "added_tokens");
    const char *token;
    json_t *id;
    json_object_foreach(json_object_get(json_object_get(root, "model"), "vocab"), token, id)
    {
        json_int_t i = json_integer_value(id);
        if (i >= 0 && i < n) rows[i] = (token_row){token, TYPE_NORMAL};
    }
    for (size_t k = 0; k < json_array_size(added); k++) {
        const json_t *a = json_array_get(added, k);
        json_int_t i = json_integer_value(json_object_get(a, "id"));
        if (i >= 0 && i < n)
            rows[i] = (token_row){json_string_value(json_object_get(a, "content")),
                                  json_is_true(json_object_get(a, "special")) ? TYPE_CONTROL : TYPE_USER};
    }
}

static void put_tokens(metadata *m, const token_row *rows, int32_t n)
{
    char pad[24];
    key_list(m, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)n);
    for (int32_t i = 0; i < n; i++) {
        if (!rows[i].type) snprintf(pad, sizeof pad, "[PAD%d]", (int)i);
        const char *text = rows[i].type && rows[i].text ? rows[i].text : pad;
        put_text(&m->b, text, strlen(text));
    }
    key_list(m, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n);
    for (int32_t i = 0; i < n; i++) put_int(&m->b, rows[i].type ? rows[i].type : TYPE_UNUSED, 4);
}

static void put_merges(metadata *m, const json_t *merges)
{
    key_list(m, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *v = json_array_get(merges, i), *left = json_array_get(v, 0), *right = json_array_get(v, 1);
        if (json_is_string(v)) {
            put_text(&m->b, json_string_value(v), json_string_length(v));
            continue;
        }
        put_int(&m->b, json_string_length(left) + 1 + json_string_length(right), 8);
        put(&m->b, json_string_value(left), json_string_length(left));
        put(&m->b, " ", 1);
        put(&m->b, json_string_value(right), json_string_length(right));
    }
}

/* Whether an encoded text begins with the model's first token. */
static int starts_with_bos(const tok *t, const model_config *c, int *yes, fmt_error *e)
{
    int32_t *ids = NULL;
    size_t n = 0;
    if (tok_encode(t, "", 0, &ids, &n, e)) return -1;
    *yes = n > 0 && ids[0] == c->bos_id;
    free(ids);
    return 0;
}

/* The file is carried whole too: it says what no key does (normalizer, how added tokens take spaces along). */
static int put_tokenizer(metadata *m, const char *dir, const model_config *c, fmt_error *e)
{
    tok *t = NULL;
    int bos = 0, absent = 0;
    char *path = NULL, *text = NULL;
    if (gguf_locate(dir, &path, e)) return -1;
    int of_gguf = path != NULL;
    if (!of_gguf && !(path = fmt_path_join(dir, "tokenizer.json", e))) return -1;
    json_t *root = of_gguf ? gguf_tokenizer(path, &absent, e) : fmt_json_load(path, MAX_TOKENIZER, &absent, e);
    if (absent) {
        free(path);
        return 0;
    }
    int failed = !root || tok_open(dir, &t, e) || starts_with_bos(t, c, &bos, e);
    int32_t n = failed ? 0 : tok_vocab(t) > c->vocab ? tok_vocab(t) : c->vocab;
    token_row *rows = failed ? NULL : calloc((size_t)n + 1, sizeof *rows);
    if (!failed && (!rows || !(text = json_dumps(root, JSON_COMPACT))))
        failed = fmt_fail(e, "%.300s: no memory for its tokens", path);
    if (!failed) {
        list_tokens(root, rows, n);
        key_text(m, "tokenizer.ggml.model", "gpt2");
        if (gguf_pre_of(root)) key_text(m, "tokenizer.ggml.pre", gguf_pre_of(root));
        put_tokens(m, rows, n);
        put_merges(m, json_object_get(json_object_get(root, "model"), "merges"));
        if (c->n_eos) key_int(m, "tokenizer.ggml.eos_token_id", c->eos_ids[0]);
        if (c->n_eos > 1) key_int(m, "tokenizer.ggml.eot_token_id", c->eos_ids[1]);
        if (c->bos_id >= 0) key_int(m, "tokenizer.ggml.bos_token_id", c->bos_id);
        key_bool(m, "tokenizer.ggml.add_bos_token", bos);
        key_text(m, "tokenizer.huggingface.json", text);
    }
    free(rows);
    free(text);
    tok_close(t);
    json_decref(root);
    free(path);
    return failed ? -1 : 0;
}

static int put_metadata(metadata *m, const char *dir, fmt_error *e)
{
    model_config c;
    if (model_config_load(dir, &c, e)) return -1;
    int failed = 0;
    if (strcmp(c.model_type, "qwen3_moe") != 0)
        failed =
            fmt_fail(e, "%.300s: model_type is %s, GGUF files are written of qwen3_moe only", c.file, c.model_type);
    else if (c.n_eos > 2)
        failed = fmt_fail(e, "%.300s: the model has %d end-of-text ids, a GGUF file has room for 2", c.file, c.n_eos);
    if (!failed) {
        put_model(m, &c);
        failed = put_tokenizer(m, dir, &c, e);
    }
    model_config_free(&c);
    return failed;
}

/* ---- tensors -------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const writer *w, fmt_error *e)
{
    const char **names = calloc(w->n + 1, sizeof *names);
    int failed = names ? 0 : fmt_fail(e, "%.300s: no memory for the names of %zu tensors", w->path, w->n);
    for (size_t i = 0; !failed && i < w->n; i++) names[i] = w->t[i].name;
    if (!failed) qsort(names, w->n, sizeof *names, by_name);
    for (size_t i = 1; !failed && i < w->n; i++)
        if (strcmp(names[i], names[i - 1]) == 0)
            failed = fmt_fail(e, "%.300s: two tensors to write have the name '%.120s'", w->path, names[i]);
    free(names);
    return failed;
}

static int bytes_of(const writer *w, const gguf_out *t, uint64_t *out, fmt_error *e)
{
    const gguf_kind *kind = gguf_kind_of(t->dtype);
    int bad = !kind || t->rank < 1 || t->rank > GGUF_MAX_RANK || t->shape[t->rank - 1] < 1 || !*t->name;
    if (!bad) bad = t->shape[t->rank - 1] % kind->block != 0;
    uint64_t bytes = bad ? 0 : (uint64_t)t->shape[t->rank - 1] / kind->block * kind->bytes;
    for (int32_t i = 0; !bad && i + 1 < t->rank; i++)
        bad = t->shape[i] < 1 || __builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes);
    if (bad || bytes > INT64_MAX - ALIGN)
        return fmt_fail(e, "%.300s: tensor '%.120s': its dtype %s, rank %d or shape cannot be written", w->path,
                        t->name, st_dtype_name(t->dtype), (int)t->rank);
    *out = bytes;
    return 0;
}

static uint64_t padded(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int put_tensors(writer *w, fmt_error *e)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < w->n; i++) {
        const gguf_out *t = &w->t[i];
        uint64_t bytes = 0;
        if (bytes_of(w, t, &bytes, e)) return -1;
        put_text(&w->head, t->name, strlen(t->name));
        put_int(&w->head, (uint64_t)t->rank, 4);
        for (int32_t k = t->rank; k-- > 0;) put_int(&w->head, (uint64_t)t->shape[k], 8);
        put_int(&w->head, gguf_kind_of(t->dtype)->id, 4);
        put_int(&w->head, offset, 8);
        if (bytes > w->largest) w->largest = bytes;
        if (__builtin_add_overflow(offset, padded(bytes), &offset))
            return fmt_fail(e, "%.300s: its tensors take more than 2^64 bytes", w->path);
    }
    return 0;
}

static int put_head(writer *w, const char *dir, fmt_error *e)
{
    metadata m = {0};
    int failed = put_metadata(&m, dir, e);
    if (!failed) {
        put(&w->head, "GGUF", 4);
        put_int(&w->head, VERSION, 4);
        put_int(&w->head, w->n, 8);
        put_int(&w->head, m.n, 8);
        put(&w->head, m.b.at, m.b.n);
        failed = put_tensors(w, e);
    }
    if (!failed && (m.b.failed || w->head.failed)) failed = fmt_fail(e, "%.300s: no memory for its metadata", w->path);
    free(m.b.at);
    return failed;
}

static int write_file(void *ctx, int fd, const char *path, fmt_error *e)
{
    static const uint8_t zeros[ALIGN];
    const writer *w = ctx;
    int failed = fmt_write_all(fd, w->head.at, w->head.n, path, e) ||
                 fmt_write_all(fd, zeros, padded(w->head.n) - w->head.n, path, e);
    void *buf = failed || w->largest > SIZE_MAX ? NULL : malloc((size_t)w->largest + 1);
    if (!failed && !buf) failed = fmt_fail(e, "%.300s: no memory for a tensor of %" PRIu64 " bytes", path, w->largest);
    for (size_t i = 0; !failed && i < w->n; i++) {
        uint64_t bytes = 0;
        failed = bytes_of(w, &w->t[i], &bytes, e) || w->fill(w->ctx, i, buf, bytes, e) ||
                 fmt_write_all(fd, buf, bytes, path, e) || fmt_write_all(fd, zeros, padded(bytes) - bytes, path, e);
    }
    free(buf);
    return failed ? -1 : 0;
}

int gguf_write(const char *path, const char *source_dir, const gguf_out *t, size_t n, gguf_fill_fn fill, void *ctx,
               fmt_error *e)
{
    writer w = {.path = path, .t = t, .n = n, .fill = fill, .ctx = ctx};
    int failed = check_names(&w, e) || put_head(&w, source_dir, e) || fmt_write_file(path, write_file, &w, e);
    free(w.head.at);
    return failed ? -1 : 0;
}
