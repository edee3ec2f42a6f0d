/* safetensors_write.c - owns the bytes of a safetensors file that is written; how they get into place is
 * file_write.c's. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "file.h"
#include "safetensors.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const char *path, const st_tensor *t, size_t n, fmt_error *e)
{
    const char **names = calloc(n + 1, sizeof *names);
    int failed = 0;
    if (!names) return fmt_fail(e, "%.300s: no memory for the names of %zu tensors", path, n);
    for (size_t i = 0; i < n; i++) names[i] = t[i].name ? t[i].name : "";
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n && !failed; i++) {
        if (!*names[i] || strcmp(names[i], "__metadata__") == 0)
            failed = fmt_fail(e, "%.300s: '%s' is no name for a tensor", path, names[i]);
        else if (i && strcmp(names[i], names[i - 1]) == 0)
            failed = fmt_fail(e, "%.300s: two tensors to write have the name '%.120s'", path, names[i]);
    }
    free(names);
    return failed;
}

static int check_tensor(const char *path, const st_tensor *t, int later, fmt_error *e)
{
    char shape[96];
    uint64_t bytes = st_dtype_bytes(t->dtype);
    int bad = !bytes || t->rank < 0 || t->rank > ST_MAX_RANK;
    for (int32_t i = 0; !bad && i < t->rank; i++)
        bad = t->shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes);
    if (bad)
        return fmt_fail(e, "%.300s: tensor '%.120s': its dtype %d, rank %d or shape cannot be written", path, t->name,
                        (int)t->dtype, t->rank);
    if (bytes == t->bytes && (t->data || later || !bytes)) return 0;
    st_shape_text(t, shape, sizeof shape);
    return fmt_fail(e, "%.300s: tensor '%.120s' has %" PRIu64 " bytes of data, shape %s in %s takes %" PRIu64, path,
                    t->name, t->data ? t->bytes : 0, shape, st_dtype_name(t->dtype), bytes);
}

/* The JSON object, or NULL: out of memory, a name that is not UTF-8, or offsets past 63 bits. */
static json_t *build_header(const st_tensor *t, size_t n)
{
    json_t *root = json_object();
    int64_t at = 0;
    for (size_t i = 0; root && i < n; i++) {
        int64_t end = 0;
        json_t *shape = json_array(), *entry = NULL;
        int bad = !shape || t[i].bytes > INT64_MAX || __builtin_add_overflow(at, (int64_t)t[i].bytes, &end);
        for (int32_t d = 0; !bad && d < t[i].rank; d++) bad = json_array_append_new(shape, json_integer(t[i].shape[d]));
        if (!bad)
            entry = json_pack("{s:s, s:O, s:[I, I]}", "dtype", st_dtype_name(t[i].dtype), "shape", shape,
                              "data_offsets", (json_int_t)at, (json_int_t)end);
        json_decref(shape);
        if (!entry || json_object_set_new(root, t[i].name, entry)) {
            json_decref(root);
            root = NULL;
        }
        at = end;
    }
    return root;
}

/* Tensors, and who has the data of those that have none yet. */
typedef struct contents {
    const char *text; /* the header */
    const st_tensor *t;
    size_t n;
    st_fill_fn fill; /* or NULL */
    void *ctx;
} contents;

static int write_data(int fd, const char *path, const contents *c, fmt_error *e)
{
    for (size_t i = 0; i < c->n; i++) {
        const void *data = c->t[i].data;
        if (!data && c->t[i].bytes && c->fill(c->ctx, i, &data, e)) return -1;
        if (fmt_write_all(fd, data, c->t[i].bytes, path, e)) return -1;
    }
    return 0;
}

static int write_file(void *ctx, int fd, const char *path, fmt_error *e)
{
    const contents *c = ctx;
    const char *text = c->text;
    static const char blanks[8] = "        ";
    size_t length = strlen(text), pad = (8 - length % 8) % 8; /* so that the data section is aligned */
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)((uint64_t)(length + pad) >> (8 * i));
    if (fmt_write_all(fd, prefix, sizeof prefix, path, e) || fmt_write_all(fd, text, length, path, e) ||
        fmt_write_all(fd, blanks, pad, path, e))
        return -1;
    return write_data(fd, path, c, e);
}

int st_write(const char *path, const st_tensor *tensors, size_t n, fmt_error *e)
{
    return st_write_filled(path, tensors, n, NULL, NULL, e);
}

int st_write_filled(const char *path, const st_tensor *tensors, size_t n, st_fill_fn fill, void *ctx, fmt_error *e)
{
    contents all = {NULL, tensors, n, fill, ctx};
    if (check_names(path, tensors, n, e)) return -1;
    for (size_t i = 0; i < n; i++)
        if (check_tensor(path, &tensors[i], fill != NULL, e)) return -1;
    json_t *root = build_header(tensors, n);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text)
        return fmt_fail(e, "%.300s: no header for its %zu tensors (a name that is not UTF-8, or no memory)", path, n);
    all.text = text;
    int failed = fmt_write_file(path, write_file, &all, e);
    free(text);
    return failed;
}
