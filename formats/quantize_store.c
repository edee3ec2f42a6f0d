/* quantize_store.c - the quantised checkpoint as a folder: model.safetensors, config.json with the quantization_config
 * that other programs read, and copies of the tokenizer's files.  The folder is made under a passing name and renamed
 * when complete.  Never writes into a folder that holds anything. */
#include <errno.h>
#include <inttypes.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "gguf.h"
#include "quantize_job.h"

/* ---- tensors --------------------------------------------------------------------------------------------------------- */

typedef enum piece_kind { PIECE_COPY, PIECE_CODES, PIECE_SCALES, PIECE_FACTOR, PIECE_SHAPE } piece_kind;

typedef struct piece {
    piece_kind kind;
    size_t matrix;
} piece;

typedef struct store_out {
    quantize_job *j;
    st_tensor *t; /* [n], with names of their own but for copies */
    piece *p;
    size_t n;
    float number;    /* what PIECE_FACTOR shows */
    int64_t shape[2]; /* what PIECE_SHAPE shows */
} store_out;

static int is_fp8_blocks(const quantize_type *t)
{
    return t->dtype == MOEWE_DTYPE_E4M3 && t->rows > 1;
}

static st_dtype scale_type(const quantize_type *t)
{
    return t->scale_dtype == MOEWE_DTYPE_F32    ? ST_F32
           : t->scale_dtype == MOEWE_DTYPE_BF16 ? ST_BF16
           : t->scale_dtype == MOEWE_DTYPE_E4M3 ? ST_F8_E4M3
                                                : ST_U8;
}

/* A tensor of the matrix: its name with tail behind it. */
static int add(store_out *o, size_t matrix, piece_kind kind, const char *tail, st_dtype dtype, int32_t rank, int64_t d0, int64_t d1)
{
    const char *name = o->j->list[matrix].name;
    size_t bytes = strlen(name) + strlen(tail) + 1;
    char *whole = malloc(bytes);
    st_tensor *t = &o->t[o->n];
    if (!whole) return fmt_fail(o->j->e, "%.300s: no memory for the names of its tensors", o->j->ask->out);
    snprintf(whole, bytes, "%s%s", name, tail);
    *t = (st_tensor){.name = whole, .dtype = dtype, .rank = rank, .shape = {d0, d1}};
    t->bytes = st_dtype_bytes(dtype) * (uint64_t)(rank > 0 ? d0 : 1) * (uint64_t)(rank > 1 ? d1 : 1);
    o->p[o->n++] = (piece){kind, matrix};
    return 0;
}

static int add_matrix(store_out *o, size_t i)
{
    const quantize_matrix *m = &o->j->list[i];
    const quantize_type *t = m->type;
    int64_t wide = t->cols && t->cols < m->cols ? t->cols : m->cols, across = (m->cols + wide - 1) / wide;
    int64_t down = t->rows ? (m->rows + t->rows - 1) / t->rows : 1;
    int four_ints = t->dtype == MOEWE_DTYPE_I4, failed;
    if (four_ints)
        failed = add(o, i, PIECE_CODES, "_packed", ST_I32, 2, m->rows, m->cols / 8);
    else if (t->dtype == MOEWE_DTYPE_E2M1)
        failed = add(o, i, PIECE_CODES, "_packed", ST_U8, 2, m->rows, m->cols / 2);
    else
        failed = add(o, i, PIECE_CODES, "", t->dtype == MOEWE_DTYPE_I8 ? ST_I8 : ST_F8_E4M3, 2, m->rows, m->cols);
    if (!failed && t->scale_dtype)
        failed = add(o, i, PIECE_SCALES, is_fp8_blocks(t) ? "_scale_inv" : "_scale", scale_type(t), 2, down, across);
    if (!failed && t->has_factor)
        failed = add(o, i, PIECE_FACTOR, t->scale_dtype ? "_global_scale" : "_scale", ST_F32, 1, 1, 0);
    return failed || (four_ints && add(o, i, PIECE_SHAPE, "_shape", ST_I64, 1, 2, 0)) ? -1 : 0;
}

static int fill(void *ctx, size_t index, const void **data, fmt_error *e)
{
    store_out *o = ctx;
    quantize_job *j = o->j;
    const piece *p = &o->p[index];
    const quantize_matrix *m = &j->list[p->matrix];
    (void)e;
    if (p->kind == PIECE_CODES && quantize_take(j, p->matrix, NULL)) return -1;
    o->number = m->type->scale_dtype ? 1.0f / j->factor : j->factor; /* a global scale divides */
    o->shape[0] = m->rows;
    o->shape[1] = m->cols;
    *data = p->kind == PIECE_CODES    ? (const void *)j->codes
            : p->kind == PIECE_SCALES ? (const void *)j->scales
            : p->kind == PIECE_FACTOR ? (const void *)&o->number
                                      : (const void *)o->shape;
    return 0;
}

/* What stays as it is, then every matrix. */
static int list_tensors(store_out *o)
{
    quantize_job *j = o->j;
    size_t all = st_count(j->s) + 3 * j->n;
    o->t = calloc(all + 1, sizeof *o->t);
    o->p = calloc(all + 1, sizeof *o->p);
    if (!o->t || !o->p) return fmt_fail(j->e, "%.300s: no memory for a list of %zu tensors", j->ask->out, all);
    for (size_t i = 0; i < st_count(j->s); i++) {
        if (quantize_is_taken(j, st_at(j->s, i))) continue;
        o->t[o->n] = *st_at(j->s, i);
        o->p[o->n++].kind = PIECE_COPY;
        j->report->kept++;
    }
    for (size_t i = 0; i < j->n; i++)
        if (add_matrix(o, i)) return -1;
    return 0;
}

static void store_free(store_out *o)
{
    for (size_t i = 0; i < o->n; i++)
        if (o->p[i].kind != PIECE_COPY) free((char *)(uintptr_t)o->t[i].name);
    free(o->t);
    free(o->p);
}

/* ---- config.json --------------------------------------------------------------------------------------------------------- */

/* Modules with a matrix that stays plain. */
static json_t *plain_modules(const store_out *o)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < o->n; i++) {
        const st_tensor *t = &o->t[i];
        size_t n = strlen(t->name), tail = strlen(".weight");
        if (o->p[i].kind != PIECE_COPY || t->rank != 2 || n <= tail || strcmp(t->name + n - tail, ".weight") != 0 ||
            strstr(t->name, "embed"))
            continue;
        if (json_array_append_new(list, json_stringn(t->name, n - tail))) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* The "weights" of a group of compressed-tensors, and the name of the format. */
static json_t *compressed_weights(const quantize_type *t, const char **format)
{
    int is_float = t->dtype == MOEWE_DTYPE_E4M3 || t->dtype == MOEWE_DTYPE_E2M1;
    int bits = t->dtype == MOEWE_DTYPE_E4M3 || t->dtype == MOEWE_DTYPE_I8 ? 8 : 4;
    const char *strategy = !t->scale_dtype ? "tensor" : !t->cols ? "channel" : t->has_factor ? "tensor_group" : "group";
    *format = t->dtype == MOEWE_DTYPE_E4M3             ? "float-quantized"
              : t->dtype == MOEWE_DTYPE_I8             ? "int-quantized"
              : t->dtype == MOEWE_DTYPE_I4             ? "pack-quantized"
              : t->scale_dtype == MOEWE_DTYPE_E4M3     ? "nvfp4-pack-quantized"
                                                       : "mxfp4-pack-quantized";
    json_t *w = json_pack("{s:i, s:s, s:b, s:s, s:n, s:b, s:s, s:n}", "num_bits", bits, "type", is_float ? "float" : "int",
                          "symmetric", 1, "strategy", strategy, "block_structure", "dynamic", 0, "observer", "minmax", "actorder");
    json_t *size = t->cols && t->scale_dtype ? json_integer(t->cols) : json_null();
    if (w && json_object_set_new(w, "group_size", size)) {
        json_decref(w);
        return NULL;
    }
    return w;
}

static json_t *quantization_config(const store_out *o)
{
    const quantize_type *t = o->j->ask->type;
    const char *format;
    json_t *plain = plain_modules(o), *q = NULL;
    if (!plain) return NULL;
    if (is_fp8_blocks(t)) {
        q = json_pack("{s:s, s:s, s:s, s:[i, i], s:O}", "quant_method", "fp8", "fmt", "e4m3", "activation_scheme", "dynamic",
                      "weight_block_size", (int)t->rows, (int)t->cols, "modules_to_not_convert", plain);
    } else {
        json_t *weights = compressed_weights(t, &format);
        if (weights)
            q = json_pack("{s:s, s:s, s:s, s:n, s:n, s:O, s:{s:{s:[s], s:o, s:n, s:n, s:s}}}", "quant_method", "compressed-tensors",
                          "format", format, "quantization_status", "compressed", "global_compression_ratio", "kv_cache_scheme",
                          "ignore", plain, "config_groups", "group_0", "targets", "Linear", "weights", weights,
                          "input_activations", "output_activations", "format", format);
    }
    json_decref(plain);
    return q;
}

static int write_document(const quantize_job *j, const char *dir, const char *name, const json_t *document)
{
    char *path = fmt_path_join(dir, name, j->e);
    int failed = !path;
    if (!failed && json_dump_file(document, path, JSON_INDENT(2) | JSON_PRESERVE_ORDER))
        failed = fmt_fail(j->e, "%.300s: cannot be written: %s", path, strerror(errno));
    free(path);
    return failed;
}

static int write_config(const store_out *o, const char *dir)
{
    quantize_job *j = o->j;
    json_t *config = json_deep_copy(j->c->document), *q = quantization_config(o);
    int failed = 0;
    if (!config || !q || json_object_set(config, "quantization_config", q))
        failed = fmt_fail(j->e, "%.300s: no memory for its config.json", j->ask->out);
    if (!failed) failed = write_document(j, dir, "config.json", config);
    json_decref(config);
    json_decref(q);
    return failed;
}

/* ---- the folder ------------------------------------------------------------------------------------------------------------ */

static const char *const companions[] = {"generation_config.json", "tokenizer.json",     "tokenizer_config.json",
                                         "special_tokens_map.json", "added_tokens.json", "vocab.json",
                                         "merges.txt",              "tokenizer.model",   "chat_template.jinja",
                                         "chat_template.json"};
enum { COMPANIONS = sizeof companions / sizeof *companions };

static int copy_bytes(int from, int to, const char *source, const char *path, fmt_error *e)
{
    char buffer[65536];
    for (;;) {
        ssize_t n = read(from, buffer, sizeof buffer), at = 0;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fmt_fail(e, "%.300s: cannot be read for a copy: %s", source, strerror(errno));
        if (n == 0) return 0;
        while (at < n) {
            ssize_t put = write(to, buffer + at, (size_t)(n - at));
            if (put < 0 && errno != EINTR) return fmt_fail(e, "%.300s: cannot be written: %s", path, strerror(errno));
            if (put > 0) at += put;
        }
    }
}

/* A file beside config.json, where there is one. */
static int copy_companion(const quantize_job *j, const char *dir, const char *name)
{
    int absent = 0, failed = -1;
    uint64_t bytes;
    char *from = fmt_path_join(j->ask->dir, name, j->e), *to = from ? fmt_path_join(dir, name, j->e) : NULL;
    int in = to ? fmt_open_regular(from, &bytes, &absent, j->e) : -1;
    if (in >= 0) {
        int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        failed = out < 0 ? fmt_fail(j->e, "%.300s: cannot be written: %s", to, strerror(errno)) : copy_bytes(in, out, from, to, j->e);
        if (out >= 0 && close(out) != 0 && !failed) failed = fmt_fail(j->e, "%.300s: closing it failed: %s", to, strerror(errno));
        close(in);
    } else if (absent) {
        failed = 0;
    }
    free(from);
    free(to);
    return failed;
}

/* A GGUF file has the tokenizer inside, and nothing beside it that belongs to it. */
static int write_companions(const quantize_job *j, const char *dir)
{
    char *file = NULL;
    int absent = 0, failed = 0;
    if (gguf_locate(j->ask->dir, &file, j->e)) return -1;
    for (int i = 0; !file && i < COMPANIONS && !failed; i++) failed = copy_companion(j, dir, companions[i]);
    json_t *tokenizer = file ? gguf_tokenizer(file, &absent, j->e) : NULL;
    if (file) failed = tokenizer ? write_document(j, dir, "tokenizer.json", tokenizer) : !absent;
    json_decref(tokenizer);
    free(file);
    return failed;
}

static int fill_folder(store_out *o, const char *dir)
{
    quantize_job *j = o->j;
    char *model = fmt_path_join(dir, "model.safetensors", j->e);
    int failed = !model || list_tensors(o) || st_write_filled(model, o->t, o->n, fill, o, j->e) || write_config(o, dir) ||
                 write_companions(j, dir);
    free(model);
    return failed ? -1 : 0;
}

static void remove_folder(const char *dir)
{
    static const char *const own[] = {"model.safetensors", "config.json"};
    fmt_error ignored;
    for (int i = 0; i < COMPANIONS + 2; i++) {
        char *path = fmt_path_join(dir, i < 2 ? own[i] : companions[i - 2], &ignored);
        if (path) unlink(path);
        free(path);
    }
    rmdir(dir);
}

int quantize_write_store(quantize_job *j)
{
    store_out o = {.j = j};
    struct stat st;
    size_t n = strlen(j->ask->out), bytes = n + 32;
    while (n > 1 && j->ask->out[n - 1] == '/') n--;
    if (lstat(j->ask->out, &st) == 0 && (!S_ISDIR(st.st_mode) || (rmdir(j->ask->out) != 0 && errno != ENOENT)))
        return fmt_fail(j->e, "%.300s: is there already, a name of nothing or of an empty folder is expected", j->ask->out);
    char *dir = malloc(bytes);
    if (!dir) return fmt_fail(j->e, "%.300s: no memory to write it", j->ask->out);
    snprintf(dir, bytes, "%.*s.partial-%ld", (int)n, j->ask->out, (long)getpid());
    int failed = mkdir(dir, 0777) != 0 ? fmt_fail(j->e, "%.300s: cannot be made: %s", dir, strerror(errno)) : 0;
    if (!failed) {
        failed = fill_folder(&o, dir);
        if (!failed && rename(dir, j->ask->out) != 0)
            failed = fmt_fail(j->e, "%.300s: cannot be put in place: %s", j->ask->out, strerror(errno));
        if (failed) remove_folder(dir);
    }
    store_free(&o);
    free(dir);
    return failed ? -1 : 0;
}
