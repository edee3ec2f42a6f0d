/* safetensors.c - owns the mappings of a checkpoint's files and the table of their tensors.  Trusts nothing in
 * a header: a field is used only after it was checked.  Never copies or converts tensor data, never writes. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>
#include <moewe.h>

#include "file.h"
#include "gguf.h"
#include "safetensors.h"

#define MAX_HEADER UINT64_C(100000000) /* as the reference implementation */
#define MAX_INDEX  (UINT64_C(256) << 20)
#define INDEX_NAME "model.safetensors.index.json"
#define PLAIN_NAME "model.safetensors"

typedef struct st_file {
    char *path;
    char *names; /* of its tensors, one after another */
    void *map;
    uint64_t bytes;
} st_file;

struct st_store {
    char *path;
    gguf *gguf; /* in place of mappings of its own, or NULL */
    st_file *files;
    size_t n_files;
    st_tensor *tensors; /* ascending names once open */
    size_t n_tensors;
};

static const struct dtype_row {
    char name[8];
    uint32_t bytes;
    int32_t moewe;
} dtypes[ST_DTYPE_NONE] = {
    [ST_BOOL] = {"BOOL", 1, 0},
    [ST_U8] = {"U8", 1, 0},
    [ST_I8] = {"I8", 1, 0},
    [ST_F8_E5M2] = {"F8_E5M2", 1, 0},
    [ST_F8_E4M3] = {"F8_E4M3", 1, 0},
    [ST_F8_E8M0] = {"F8_E8M0", 1, 0},
    [ST_I16] = {"I16", 2, 0},
    [ST_U16] = {"U16", 2, 0},
    [ST_F16] = {"F16", 2, MOEWE_DTYPE_F16},
    [ST_BF16] = {"BF16", 2, MOEWE_DTYPE_BF16},
    [ST_I32] = {"I32", 4, 0},
    [ST_U32] = {"U32", 4, 0},
    [ST_F32] = {"F32", 4, MOEWE_DTYPE_F32},
    [ST_F64] = {"F64", 8, 0},
    [ST_I64] = {"I64", 8, 0},
    [ST_U64] = {"U64", 8, 0},
    [ST_Q8_0] = {"Q8_0", 0, MOEWE_DTYPE_Q8_0},
    [ST_Q4_0] = {"Q4_0", 0, MOEWE_DTYPE_Q4_0},
    [ST_Q4_K] = {"Q4_K", 0, MOEWE_DTYPE_Q4_K},
    [ST_Q6_K] = {"Q6_K", 0, MOEWE_DTYPE_Q6_K},
};

const char *st_dtype_name(st_dtype d)
{
    return (unsigned)d < ST_DTYPE_NONE ? dtypes[d].name : "?";
}

uint32_t st_dtype_bytes(st_dtype d)
{
    return (unsigned)d < ST_DTYPE_NONE ? dtypes[d].bytes : 0;
}

int32_t st_dtype_moewe(st_dtype d)
{
    return (unsigned)d < ST_DTYPE_NONE ? dtypes[d].moewe : 0;
}

/* ---- one entry of a header ------------------------------------------------------------------------- */

typedef struct header {
    const char *path;
    const uint8_t *data; /* the data section */
    uint64_t data_bytes; /* from data to the end of the file */
    fmt_error *e;
} header;

static int read_dtype(const header *h, const char *name, const json_t *v, st_tensor *t)
{
    char found[64];
    for (int d = 0; json_is_string(v) && d < ST_DTYPE_COUNT; d++) {
        if (strcmp(json_string_value(v), dtypes[d].name) != 0) continue;
        t->dtype = (st_dtype)d;
        return 0;
    }
    fmt_json_text(v, found, sizeof found);
    return fmt_fail(h->e,
                    "%.300s: tensor '%.120s': dtype is %s, known are BOOL, U8, I8, F8_E5M2, F8_E4M3, F8_E8M0, I16, "
                    "U16, F16, BF16, I32, U32, F32, F64, I64 and U64",
                    h->path, name, found);
}

/* Also the size that dtype and shape give. */
static int read_shape(const header *h, const char *name, const json_t *v, st_tensor *t)
{
    char found[64];
    size_t rank = json_array_size(v);
    uint64_t bytes = dtypes[t->dtype].bytes;

    fmt_json_text(v, found, sizeof found);
    if (!json_is_array(v))
        return fmt_fail(h->e, "%.300s: tensor '%.120s': shape is %s, an array of integers is expected", h->path, name,
                        found);
    if (rank > ST_MAX_RANK)
        return fmt_fail(h->e, "%.300s: tensor '%.120s': shape has %zu extents, at most %d are supported", h->path, name,
                        rank, ST_MAX_RANK);
    t->rank = (int32_t)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *extent = json_array_get(v, i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return fmt_fail(h->e, "%.300s: tensor '%.120s': extent %zu of shape %s is not an integer of at least 0",
                            h->path, name, i, found);
        t->shape[i] = json_integer_value(extent);
        if (__builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes))
            return fmt_fail(h->e, "%.300s: tensor '%.120s': the size of shape %s in %s does not fit 64 bits", h->path,
                            name, found, dtypes[t->dtype].name);
    }
    t->bytes = bytes;
    return 0;
}

static int read_offsets(const header *h, const char *name, const json_t *v, st_tensor *t)
{
    char found[64], shape[96];
    const json_t *first = json_array_get(v, 0), *last = json_array_get(v, 1);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);

    if (json_array_size(v) != 2 || !json_is_integer(first) || !json_is_integer(last) || begin < 0 || end < begin) {
        fmt_json_text(v, found, sizeof found);
        return fmt_fail(h->e,
                        "%.300s: tensor '%.120s': data_offsets is %s, two integers 0 <= begin <= end are expected",
                        h->path, name, found);
    }
    st_shape_text(t, shape, sizeof shape);
    if ((uint64_t)(end - begin) != t->bytes)
        return fmt_fail(h->e,
                        "%.300s: tensor '%.120s': data_offsets [%" PRId64 ", %" PRId64 "] span %" PRId64
                        " bytes, shape %s in %s takes %" PRIu64,
                        h->path, name, (int64_t)begin, (int64_t)end, (int64_t)(end - begin), shape,
                        dtypes[t->dtype].name, t->bytes);
    if ((uint64_t)end > h->data_bytes)
        return fmt_fail(h->e,
                        "%.300s: tensor '%.120s': data_offsets [%" PRId64 ", %" PRId64 "] reach past the %" PRIu64
                        " bytes of data that the file has (truncated?)",
                        h->path, name, (int64_t)begin, (int64_t)end, h->data_bytes);
    t->data = h->data + begin;
    return 0;
}

static int read_entry(const header *h, const char *name, json_t *v, st_tensor *t)
{
    const json_t *dtype = json_object_get(v, "dtype"), *shape = json_object_get(v, "shape"),
                 *offsets = json_object_get(v, "data_offsets");
    if (!json_is_object(v))
        return fmt_fail(h->e, "%.300s: tensor '%.120s': its header entry is not a JSON object", h->path, name);
    if (!dtype || !shape || !offsets)
        return fmt_fail(h->e, "%.300s: tensor '%.120s': %s is missing", h->path, name,
                        !dtype   ? "dtype"
                        : !shape ? "shape"
                                 : "data_offsets");
    if (json_object_size(v) != 3)
        return fmt_fail(h->e,
                        "%.300s: tensor '%.120s': its header entry has %zu fields, expected are the 3 named dtype, "
                        "shape and data_offsets",
                        h->path, name, json_object_size(v));
    t->file = h->path;
    if (read_dtype(h, name, dtype, t) || read_shape(h, name, shape, t)) return -1;
    return read_offsets(h, name, offsets, t);
}

static int check_metadata(const header *h, json_t *v)
{
    const char *key;
    json_t *value;
    if (!json_is_object(v)) return fmt_fail(h->e, "%.300s: __metadata__ is not an object of strings", h->path);
    json_object_foreach(v, key, value)
    {
        if (!json_is_string(value))
            return fmt_fail(h->e, "%.300s: __metadata__: the value of '%.120s' is not a string", h->path, key);
    }
    return 0;
}

/* ---- one file ---------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const st_tensor *s = a, *t = b;
    uintptr_t p = (uintptr_t)s->data, q = (uintptr_t)t->data;
    if (p != q) return p < q ? -1 : 1;
    return (s->bytes > t->bytes) - (s->bytes < t->bytes); /* empty tensors come before what begins there */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

/* Sorts the file's tensors by place; together they are the data section, byte for byte. */
static int check_coverage(const header *h, st_tensor *t, size_t n)
{
    uint64_t at = 0;
    if (n) qsort(t, n, sizeof *t, by_place);
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)((const uint8_t *)t[i].data - h->data);
        if (begin < at)
            return fmt_fail(h->e,
                            "%.300s: tensor '%.120s' begins at byte %" PRIu64
                            " of the data, inside '%.120s', which ends "
                            "at %" PRIu64,
                            h->path, t[i].name, begin, t[i - 1].name, at);
        if (begin > at)
            return fmt_fail(h->e,
                            "%.300s: bytes %" PRIu64 " to %" PRIu64
                            " of the data, before tensor '%.120s', belong to no "
                            "tensor",
                            h->path, at, begin, t[i].name);
        at = begin + t[i].bytes;
    }
    if (at != h->data_bytes)
        return fmt_fail(
            h->e, "%.300s: its tensors end at byte %" PRIu64 " of the data, the file has %" PRIu64 " bytes of data",
            h->path, at, h->data_bytes);
    return 0;
}

static int read_entries(st_store *s, st_file *f, const header *h, json_t *root)
{
    const char *key;
    json_t *value;
    size_t n = json_object_size(root), text = 0, first = s->n_tensors;

    json_object_foreach(root, key, value) text += strlen(key) + 1;
    f->names = malloc(text + 1);
    st_tensor *more = realloc(s->tensors, (s->n_tensors + n + 1) * sizeof *more);
    if (more) s->tensors = more;
    if (!f->names || !more) return fmt_fail(h->e, "%.300s: no memory for the names of %zu tensors", h->path, n);

    char *name = f->names;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) {
            if (check_metadata(h, value)) return -1;
            continue;
        }
        st_tensor *t = &s->tensors[s->n_tensors];
        memset(t, 0, sizeof *t);
        if (read_entry(h, key, value, t)) return -1;
        t->name = strcpy(name, key);
        name += strlen(key) + 1;
        s->n_tensors++;
    }
    return check_coverage(h, s->tensors + first, s->n_tensors - first);
}

static int read_header(st_store *s, st_file *f, fmt_error *e)
{
    const uint8_t *bytes = f->map;
    uint64_t claimed = 0, after = f->bytes - 8;
    json_error_t why;

    for (int i = 7; i >= 0; i--) claimed = claimed << 8 | bytes[i];
    if (claimed > after)
        return fmt_fail(e,
                        "%.300s: says that its header has %" PRIu64 " bytes, the file has %" PRIu64 " bytes after the "
                        "8 that say so (truncated, or no safetensors file)",
                        f->path, claimed, after);
    if (claimed > MAX_HEADER)
        return fmt_fail(e, "%.300s: says that its header has %" PRIu64 " bytes, at most %" PRIu64 " are supported",
                        f->path, claimed, MAX_HEADER);
    json_t *root = json_loadb((const char *)bytes + 8, (size_t)claimed, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return fmt_fail(e, "%.300s: its header of %" PRIu64 " bytes is not valid JSON: byte %d: %s", f->path, claimed,
                        why.position, why.text);
    header h = {f->path, bytes + 8 + claimed, after - claimed, e};
    int failed = json_is_object(root)
                     ? read_entries(s, f, &h, root)
                     : fmt_fail(e, "%.300s: its header is a JSON array, an object is expected", f->path);
    json_decref(root);
    return failed;
}

/* Maps the file and appends its tensors.  Takes path over, even on failure. */
static int add_file(st_store *s, char *path, int *absent, fmt_error *e)
{
    uint64_t bytes = 0;
    st_file *more = path ? realloc(s->files, (s->n_files + 1) * sizeof *more) : NULL;
    if (!more) {
        free(path);
        return fmt_fail(e, "%.300s: no memory for its list of %zu files", s->path, s->n_files + 1);
    }
    s->files = more;
    st_file *f = &s->files[s->n_files++];
    memset(f, 0, sizeof *f);
    f->path = path;

    int fd = fmt_open_regular(path, &bytes, absent, e);
    if (fd < 0) return -1;
    if (bytes < 8 || bytes > SIZE_MAX) {
        close(fd);
        return fmt_fail(e, "%.300s: has %" PRIu64 " bytes, a safetensors file has at least the 8 of its header length",
                        path, bytes);
    }
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    int why = errno;
    close(fd);
    if (map == MAP_FAILED)
        return fmt_fail(e, "%.300s: %" PRIu64 " bytes cannot be mapped: %s", path, bytes, strerror(why));
    f->map = map;
    f->bytes = bytes;
    return read_header(s, f, e);
}

/* ---- a directory -------------------------------------------------------------------------------------- */

typedef struct shard_index {
    const char *dir, *path;
    json_t *map; /* tensor name -> file name */
} shard_index;

/* Shards lie beside their index: a name that leads elsewhere is an attack or a mistake. */
static int check_shard_name(const shard_index *ix, const char *tensor, const json_t *v, fmt_error *e)
{
    char found[96];
    const char *name = json_string_value(v);
    if (name && *name && !strchr(name, '/') && !strstr(name, "..") && strcmp(name, ".") != 0) return 0;
    fmt_json_text(v, found, sizeof found);
    return fmt_fail(e,
                    "%.300s: weight_map: tensor '%.120s' is in %s, a plain file name without '/' or '..' is expected",
                    ix->path, tensor, found);
}

static int add_shard(st_store *s, const shard_index *ix, const char *name, fmt_error *e)
{
    size_t first = s->n_tensors;
    int absent = 0;
    if (add_file(s, fmt_path_join(ix->dir, name, e), &absent, e))
        return absent ? fmt_fail(e, "%.300s: names the shard '%.120s', there is no such file in %.300s", ix->path, name,
                                 ix->dir)
                      : -1;
    for (size_t i = first; i < s->n_tensors; i++) {
        const char *tensor = s->tensors[i].name, *file = json_string_value(json_object_get(ix->map, tensor));
        if (!file)
            return fmt_fail(e, "%.300s: weight_map does not list tensor '%.120s', which shard '%.120s' holds", ix->path,
                            tensor, name);
        if (strcmp(file, name) != 0)
            return fmt_fail(e, "%.300s: weight_map says that tensor '%.120s' is in '%.120s', but '%.120s' holds it",
                            ix->path, tensor, file, name);
    }
    return 0;
}

static int add_shards(st_store *s, const shard_index *ix, json_t *seen, fmt_error *e)
{
    const char *tensor;
    json_t *value;
    if (!json_is_object(ix->map) || json_object_size(ix->map) == 0)
        return fmt_fail(e, "%.300s: weight_map is missing, empty or not an object", ix->path);
    json_object_foreach(ix->map, tensor, value)
    {
        if (check_shard_name(ix, tensor, value, e)) return -1;
        const char *name = json_string_value(value);
        if (json_object_get(seen, name)) continue;
        if (json_object_set_new(seen, name, json_true()))
            return fmt_fail(e, "%.300s: no memory for its shards", ix->path);
        if (add_shard(s, ix, name, e)) return -1;
    }
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    json_object_foreach(ix->map, tensor, value)
    {
        if (!st_find(s, tensor))
            return fmt_fail(e, "%.300s: weight_map says that tensor '%.120s' is in '%.120s', which does not hold it",
                            ix->path, tensor, json_string_value(value));
    }
    return 0;
}

static int open_directory(st_store *s, const char *dir, fmt_error *e)
{
    int no_index = 0, no_file = 0, failed = -1;
    shard_index ix = {dir, NULL, NULL};
    char *index_path = fmt_path_join(dir, INDEX_NAME, e);
    if (!index_path) return -1;
    json_t *root = fmt_json_load(index_path, MAX_INDEX, &no_index, e), *seen = json_object();
    ix.path = index_path;
    ix.map = json_object_get(root, "weight_map");
    if (!seen) {
        fmt_fail(e, "%.300s: no memory for its shards", dir);
    } else if (root) {
        failed = add_shards(s, &ix, seen, e);
    } else if (no_index) {
        failed = add_file(s, fmt_path_join(dir, PLAIN_NAME, e), &no_file, e);
        if (no_file) fmt_fail(e, "%.300s: holds neither %s nor %s", dir, INDEX_NAME, PLAIN_NAME);
    }
    json_decref(seen);
    json_decref(root);
    free(index_path);
    return failed;
}

/* ---- a GGUF file --------------------------------------------------------------------------------------- */

static int open_gguf(st_store *s, const char *path, fmt_error *e)
{
    st_file *f = calloc(1, sizeof *f);
    if (!f) return fmt_fail(e, "%.300s: no memory to open it", path);
    s->files = f;
    s->n_files = 1;
    f->path = strdup(path);
    if (!f->path) return fmt_fail(e, "%.300s: no memory to open it", path);
    if (gguf_open(path, &s->gguf, e)) return -1;
    f->bytes = gguf_mapped_bytes(s->gguf);
    return gguf_tensors(s->gguf, &s->tensors, &s->n_tensors, &f->names, e);
}

/* ---- the store ----------------------------------------------------------------------------------------- */

int st_open(const char *path, st_store **out, fmt_error *e)
{
    struct stat st;
    st_store *s = calloc(1, sizeof *s);
    char *copy = strdup(path), *of_gguf = NULL;
    int failed = -1;
    if (!s || !copy) {
        free(s);
        free(copy);
        return fmt_fail(e, "%.300s: no memory to open it", path);
    }
    s->path = copy;
    if (gguf_locate(path, &of_gguf, e) == 0) {
        if (of_gguf)
            failed = open_gguf(s, of_gguf, e);
        else if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            failed = open_directory(s, path, e);
        else
            failed = add_file(s, strdup(path), NULL, e);
    }
    free(of_gguf);
    if (failed) {
        st_close(s);
        return -1;
    }
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    *out = s;
    return 0;
}

void st_close(st_store *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_files; i++) {
        if (s->files[i].map) munmap(s->files[i].map, (size_t)s->files[i].bytes);
        free(s->files[i].names);
        free(s->files[i].path);
    }
    gguf_close(s->gguf);
    free(s->files);
    free(s->tensors);
    free(s->path);
    free(s);
}

const st_tensor *st_find(const st_store *s, const char *name)
{
    size_t low = 0, high = s->n_tensors;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(name, s->tensors[mid].name);
        if (order == 0) return &s->tensors[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

size_t st_count(const st_store *s)
{
    return s->n_tensors;
}

const st_tensor *st_at(const st_store *s, size_t index)
{
    return index < s->n_tensors ? &s->tensors[index] : NULL;
}

uint64_t st_mapped_bytes(const st_store *s)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < s->n_files; i++) sum += s->files[i].bytes;
    return sum;
}

static void shape_text(int32_t rank, const int64_t *shape, char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (int32_t i = 0; i < rank && n < cap; i++) {
        if (shape[i] < 0)
            n += (size_t)snprintf(buf + n, cap - n, "%s*", i ? ", " : "");
        else
            n += (size_t)snprintf(buf + n, cap - n, "%s%" PRId64, i ? ", " : "", shape[i]);
    }
    if (n < cap) snprintf(buf + n, cap - n, "]");
}

void st_shape_text(const st_tensor *t, char *buf, size_t cap)
{
    shape_text(t->rank, t->shape, buf, cap);
}

const st_tensor *st_need(const st_store *s, const char *name, int32_t rank, const int64_t *shape, fmt_error *e)
{
    char found[96], expected[96];
    const st_tensor *t = st_find(s, name);

    if (rank < 0)
        snprintf(expected, sizeof expected, "any");
    else
        shape_text(rank, shape, expected, sizeof expected);
    if (!t) {
        if (s->n_files == 1)
            fmt_fail(e, "%.300s: has no tensor '%.120s', one of shape %s is expected", s->files[0].path, name,
                     expected);
        else
            fmt_fail(e, "%.300s: its %zu files have no tensor '%.120s', one of shape %s is expected", s->path,
                     s->n_files, name, expected);
        return NULL;
    }
    int same = rank < 0 || t->rank == rank;
    for (int32_t i = 0; same && i < rank; i++) same = shape[i] == -1 || shape[i] == t->shape[i];
    if (same) return t;
    st_shape_text(t, found, sizeof found);
    fmt_fail(e, "%.300s: tensor '%.120s' has shape %s, %s is expected", t->file, name, found, expected);
    return NULL;
}
