/* gguf.c - owns the mappings of a GGUF file and the tables of its keys and tensors.  Trusts nothing in it: a count,
 * length or offset is used only after it was checked against the bytes that are there.  Knows no architecture. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "gguf.h"

enum { DEFAULT_ALIGN = 32, MAX_ALIGN = 1 << 20 };

/* A text for "%.*s", cut so that the rest of a sentence stays. */
#define SHOWN(text) (text).bytes > 120 ? 120 : (int)(text).bytes, (text).at

typedef struct part {
    char *path;
    void *map;
    size_t bytes;
} part;

typedef struct key_row {
    gguf_text key;
    gguf_value value;
} key_row;

struct gguf {
    part *parts;
    size_t n_parts, room;
    key_row *keys; /* of the first part, ascending */
    size_t n_keys;
    gguf_tensor *tensors; /* ascending names once open */
    size_t n_tensors;
};

static const gguf_kind kinds[] = {
    {0, "F32", 1, 4, ST_F32},
    {1, "F16", 1, 2, ST_F16},
    {2, "Q4_0", 32, 18, ST_Q4_0},
    {3, "Q4_1", 32, 20, ST_DTYPE_NONE},
    {6, "Q5_0", 32, 22, ST_DTYPE_NONE},
    {7, "Q5_1", 32, 24, ST_DTYPE_NONE},
    {8, "Q8_0", 32, 34, ST_Q8_0},
    {10, "Q2_K", 256, 84, ST_DTYPE_NONE},
    {11, "Q3_K", 256, 110, ST_DTYPE_NONE},
    {12, "Q4_K", 256, 144, ST_Q4_K},
    {13, "Q5_K", 256, 176, ST_DTYPE_NONE},
    {14, "Q6_K", 256, 210, ST_Q6_K},
    {16, "IQ2_XXS", 256, 66, ST_DTYPE_NONE},
    {17, "IQ2_XS", 256, 74, ST_DTYPE_NONE},
    {18, "IQ3_XXS", 256, 98, ST_DTYPE_NONE},
    {19, "IQ1_S", 256, 50, ST_DTYPE_NONE},
    {20, "IQ4_NL", 32, 18, ST_DTYPE_NONE},
    {21, "IQ3_S", 256, 110, ST_DTYPE_NONE},
    {22, "IQ2_S", 256, 82, ST_DTYPE_NONE},
    {23, "IQ4_XS", 256, 136, ST_DTYPE_NONE},
    {24, "I8", 1, 1, ST_I8},
    {25, "I16", 1, 2, ST_I16},
    {26, "I32", 1, 4, ST_I32},
    {27, "I64", 1, 8, ST_I64},
    {28, "F64", 1, 8, ST_F64},
    {29, "IQ1_M", 256, 56, ST_DTYPE_NONE},
    {30, "BF16", 1, 2, ST_BF16},
    {34, "TQ1_0", 256, 54, ST_DTYPE_NONE},
    {35, "TQ2_0", 256, 66, ST_DTYPE_NONE},
    {39, "MXFP4", 32, 17, ST_DTYPE_NONE},
    {40, "NVFP4", 64, 36, ST_DTYPE_NONE},
};

const gguf_kind *gguf_kind_of(st_dtype dtype)
{
    for (size_t i = 0; dtype != ST_DTYPE_NONE && i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].dtype == dtype) return &kinds[i];
    return NULL;
}

/* ---- which file ----------------------------------------------------------------------------------------------- */

static int ends_like_gguf(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0;
}

/* "-00002-of-00005.gguf" at the end of name; 0 when there is none. */
static int split_of(const char *name, unsigned *number, unsigned *count)
{
    size_t n = strlen(name);
    const char *tail = n > 20 ? name + n - 20 : "";
    if (tail[0] != '-' || strncmp(tail + 6, "-of-", 4) != 0 || strcasecmp(tail + 15, ".gguf") != 0) return 0;
    for (int i = 0; i < 5; i++)
        if (!isdigit((unsigned char)tail[1 + i]) || !isdigit((unsigned char)tail[10 + i])) return 0;
    return sscanf(tail, "-%5u-of-%5u", number, count) == 2;
}

static int starts_like_gguf(const char *path)
{
    char head[4] = {0};
    uint64_t bytes;
    int absent = 0, fd = fmt_open_regular(path, &bytes, &absent, NULL);
    if (fd < 0) return 0;
    ssize_t n = read(fd, head, sizeof head);
    close(fd);
    return n == sizeof head && memcmp(head, "GGUF", sizeof head) == 0;
}

/* The name of the folder's one GGUF file; parts of a split one but for the first do not count. */
static int only_one(const char *dir, char **name, fmt_error *e)
{
    DIR *d = opendir(dir);
    int failed = 0;
    if (!d) return 0; /* whoever reads the folder's files will say what is wrong with it */
    for (struct dirent *entry; !failed && (entry = readdir(d));) {
        unsigned number = 1, count;
        if (!ends_like_gguf(entry->d_name) || (split_of(entry->d_name, &number, &count) && number != 1)) continue;
        if (*name)
            failed = fmt_fail(e, "%.200s: holds the GGUF files '%.120s' and '%.120s', name the one that is meant", dir,
                              *name, entry->d_name);
        else if (!(*name = strdup(entry->d_name)))
            failed = fmt_fail(e, "%.300s: no memory to read it", dir);
    }
    closedir(d);
    return failed;
}

int gguf_locate(const char *path, char **file, fmt_error *e)
{
    struct stat st;
    char *name = NULL;
    int there = stat(path, &st) == 0, failed = 0;
    *file = NULL;
    if (there && S_ISDIR(st.st_mode)) {
        char *config = fmt_path_join(path, "config.json", e);
        if (!config) return -1;
        int plain = access(config, F_OK) == 0;
        free(config);
        if (plain) return 0;
        failed = only_one(path, &name, e);
        if (!failed && name && !(*file = fmt_path_join(path, name, e))) failed = -1;
        free(name);
        return failed;
    }
    if (!ends_like_gguf(path) && !(there && S_ISREG(st.st_mode) && starts_like_gguf(path))) return 0;
    *file = strdup(path);
    return *file ? 0 : fmt_fail(e, "%.300s: no memory to read it", path);
}

/* ---- bytes ---------------------------------------------------------------------------------------------------- */

typedef struct cursor {
    const char *path;
    const uint8_t *start, *at, *end;
    fmt_error *e;
} cursor;

static uint64_t where(const cursor *c)
{
    return (uint64_t)(c->at - c->start);
}

static uint64_t left(const cursor *c)
{
    return (uint64_t)(c->end - c->at);
}

static int ended(const cursor *c, const char *what, uint64_t needed)
{
    return fmt_fail(c->e,
                    "%.300s: byte %" PRIu64 ": %s takes %" PRIu64 " bytes, the file has %" PRIu64 " more (truncated?)",
                    c->path, where(c), what, needed, left(c));
}

static int take(cursor *c, const char *what, uint64_t bytes, uint64_t *out)
{
    if (left(c) < bytes) return ended(c, what, bytes);
    *out = 0;
    for (uint64_t i = bytes; i-- > 0;) *out = *out << 8 | c->at[i];
    c->at += bytes;
    return 0;
}

static int take_text(cursor *c, const char *what, gguf_text *out)
{
    uint64_t bytes = 0;
    if (take(c, what, 8, &bytes)) return -1;
    if (bytes > left(c)) return ended(c, what, bytes);
    out->at = (const char *)c->at;
    out->bytes = (size_t)bytes;
    c->at += bytes;
    return 0;
}

/* Of keys and tensors: letters that every terminal and every table can have. */
static int take_name(cursor *c, const char *what, size_t most, gguf_text *out)
{
    uint64_t begin = where(c);
    if (take_text(c, what, out)) return -1;
    int bad = !out->bytes || out->bytes > most;
    for (size_t i = 0; !bad && i < out->bytes; i++) bad = out->at[i] < 0x21 || out->at[i] > 0x7e;
    if (!bad) return 0;
    return fmt_fail(
        c->e, "%.300s: byte %" PRIu64 ": %s of %zu bytes ('%.*s'), 1 to %zu printable ASCII characters are expected",
        c->path, begin, what, out->bytes, out->bytes > 60 ? 60 : (int)out->bytes, out->at, most);
}

/* ---- keys ----------------------------------------------------------------------------------------------------- */

static const uint8_t widths[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

static int read_items(cursor *c, gguf_text key, gguf_value *v)
{
    uint64_t bytes;
    gguf_text item;
    v->at = c->at;
    if (v->type == GGUF_STRING) {
        for (uint64_t i = 0; i < v->count; i++)
            if (take_text(c, "a string", &item)) return -1;
        return 0;
    }
    if (__builtin_mul_overflow(v->count, (uint64_t)widths[v->type], &bytes) || bytes > left(c))
        return fmt_fail(c->e,
                        "%.300s: %.*s: %" PRIu64 " items of %d bytes do not fit in the %" PRIu64 " bytes that are left",
                        c->path, SHOWN(key), v->count, widths[v->type], left(c));
    c->at += bytes;
    return 0;
}

static int read_value(cursor *c, gguf_text key, gguf_value *v)
{
    uint64_t type = 0, item = 0;
    if (take(c, "the type of a value", 4, &type)) return -1;
    *v = (gguf_value){.count = 1, .array = type == GGUF_ARRAY};
    if (v->array &&
        (take(c, "the type of an array's items", 4, &item) || take(c, "the length of an array", 8, &v->count)))
        return -1;
    uint64_t of = v->array ? item : type;
    if (of >= GGUF_TYPE_COUNT || of == GGUF_ARRAY)
        return fmt_fail(c->e, "%.300s: %.*s: its %s have type %" PRIu64 ", %s", c->path, SHOWN(key),
                        v->array ? "items" : "values", of,
                        of == GGUF_ARRAY ? "arrays of arrays are not supported" : "known are 0 to 12");
    v->type = (gguf_type)of;
    return read_items(c, key, v);
}

static int compare_text(gguf_text a, gguf_text b)
{
    int order = memcmp(a.at, b.at, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int by_key(const void *a, const void *b)
{
    return compare_text(((const key_row *)a)->key, ((const key_row *)b)->key);
}

static int read_keys(cursor *c, uint64_t n, key_row **out)
{
    enum { LEAST = 8 + 1 + 4 + 1 }; /* bytes of a key and its value */
    if (n > left(c) / LEAST)
        return fmt_fail(c->e,
                        "%.300s: says that it has %" PRIu64 " keys, there is no room for them in its %" PRIu64 " bytes",
                        c->path, n, (uint64_t)(c->end - c->start));
    key_row *keys = calloc((size_t)n + 1, sizeof *keys);
    if (!keys) return fmt_fail(c->e, "%.300s: no memory for %" PRIu64 " keys", c->path, n);
    *out = keys;
    for (uint64_t i = 0; i < n; i++)
        if (take_name(c, "a key", GGUF_MAX_KEY, &keys[i].key) || read_value(c, keys[i].key, &keys[i].value)) return -1;
    qsort(keys, (size_t)n, sizeof *keys, by_key);
    for (uint64_t i = 1; i < n; i++)
        if (by_key(&keys[i - 1], &keys[i]) == 0)
            return fmt_fail(c->e, "%.300s: the key '%.*s' is there twice", c->path, SHOWN(keys[i].key));
    return 0;
}

static const gguf_value *find_key(const key_row *keys, size_t n, const char *key)
{
    const key_row wanted = {.key = {key, strlen(key)}};
    const key_row *found = n ? bsearch(&wanted, keys, n, sizeof *keys, by_key) : NULL;
    return found ? &found->value : NULL;
}

const gguf_value *gguf_find(const gguf *g, const char *key)
{
    return find_key(g->keys, g->n_keys, key);
}

/* ---- tensors -------------------------------------------------------------------------------------------------- */

static int read_shape(cursor *c, gguf_tensor *t)
{
    uint64_t rank = 0, extent = 0;
    if (take(c, "the rank of a tensor", 4, &rank)) return -1;
    if (rank > GGUF_MAX_RANK)
        return fmt_fail(c->e, "%.300s: tensor '%.*s' has %" PRIu64 " extents, at most %d are supported", c->path,
                        SHOWN(t->name), rank, GGUF_MAX_RANK);
    t->rank = (int32_t)rank;
    for (uint64_t i = 0; i < rank; i++) {
        if (take(c, "an extent of a tensor", 8, &extent)) return -1;
        if (extent < 1 || extent > INT64_MAX)
            return fmt_fail(c->e, "%.300s: tensor '%.*s' has the extent %" PRIu64 ", 1 to 2^63 - 1 is expected",
                            c->path, SHOWN(t->name), extent);
        t->shape[rank - 1 - i] = (int64_t)extent;
    }
    return 0;
}

static int read_kind(cursor *c, gguf_tensor *t)
{
    uint64_t type = 0, bytes, row = t->rank ? (uint64_t)t->shape[t->rank - 1] : 1;
    if (take(c, "the type of a tensor", 4, &type)) return -1;
    for (size_t i = 0; !t->kind && i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].id == type) t->kind = &kinds[i];
    if (!t->kind)
        return fmt_fail(c->e, "%.300s: tensor '%.*s' has type %" PRIu64 ", which is not known", c->path, SHOWN(t->name),
                        type);
    if (row % t->kind->block)
        return fmt_fail(c->e,
                        "%.300s: tensor '%.*s' has rows of %" PRIu64 " elements, whole blocks of %u are expected of %s",
                        c->path, SHOWN(t->name), row, t->kind->block, t->kind->name);
    int large = __builtin_mul_overflow(row / t->kind->block, (uint64_t)t->kind->bytes, &bytes);
    for (int32_t i = 0; i + 1 < t->rank; i++) large |= __builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes);
    if (large) return fmt_fail(c->e, "%.300s: the size of tensor '%.*s' does not fit 64 bits", c->path, SHOWN(t->name));
    t->bytes = bytes;
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const gguf_tensor *s = a, *t = b;
    return s->data != t->data ? (s->data < t->data ? -1 : 1) : (s->bytes > t->bytes) - (s->bytes < t->bytes);
}

static int by_name(const void *a, const void *b)
{
    return compare_text(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

/* Offsets become places: inside the data, aligned, each byte of one tensor. */
static int place(const cursor *c, gguf_tensor *t, size_t n, const uint64_t *offsets, uint64_t align)
{
    uint64_t begin = (where(c) + align - 1) / align * align, whole = (uint64_t)(c->end - c->start);
    uint64_t data_bytes = begin < whole ? whole - begin : 0;
    for (size_t i = 0; i < n; i++) {
        if (offsets[i] % align)
            return fmt_fail(
                c->e, "%.300s: tensor '%.*s' is at byte %" PRIu64 " of the data, a multiple of %" PRIu64 " is expected",
                c->path, SHOWN(t[i].name), offsets[i], align);
        if (offsets[i] > data_bytes || t[i].bytes > data_bytes - offsets[i])
            return fmt_fail(c->e,
                            "%.300s: tensor '%.*s' has %" PRIu64 " bytes from byte %" PRIu64
                            " of the data on, the file has %" PRIu64 " bytes of data (truncated?)",
                            c->path, SHOWN(t[i].name), t[i].bytes, offsets[i], data_bytes);
        t[i].data = c->start + begin + offsets[i];
    }
    if (n) qsort(t, n, sizeof *t, by_place);
    for (size_t i = 1; i < n; i++)
        if (t[i].data < t[i - 1].data + t[i - 1].bytes)
            return fmt_fail(c->e, "%.300s: tensors '%.*s' and '%.*s' share bytes", c->path, SHOWN(t[i - 1].name),
                            SHOWN(t[i].name));
    return 0;
}

static int read_tensors(cursor *c, gguf *g, uint64_t n, uint64_t align)
{
    enum { LEAST = 8 + 1 + 4 + 4 + 8 }; /* bytes that say what a tensor is */
    if (n > left(c) / LEAST)
        return fmt_fail(
            c->e, "%.300s: says that it has %" PRIu64 " tensors, there is no room for them in its %" PRIu64 " bytes",
            c->path, n, (uint64_t)(c->end - c->start));
    gguf_tensor *more = realloc(g->tensors, (g->n_tensors + (size_t)n + 1) * sizeof *more);
    if (more) g->tensors = more;
    uint64_t *offsets = more ? calloc((size_t)n + 1, sizeof *offsets) : NULL;
    if (!offsets) return fmt_fail(c->e, "%.300s: no memory for %" PRIu64 " tensors", c->path, n);
    int failed = 0;
    gguf_tensor *t = more + g->n_tensors;
    for (uint64_t i = 0; !failed && i < n; i++) {
        t[i] = (gguf_tensor){.file = c->path};
        failed = take_name(c, "a tensor's name", GGUF_MAX_NAME, &t[i].name) || read_shape(c, &t[i]) ||
                 read_kind(c, &t[i]) || take(c, "the place of a tensor", 8, &offsets[i]);
    }
    if (!failed) failed = place(c, t, (size_t)n, offsets, align);
    if (!failed) g->n_tensors += (size_t)n;
    free(offsets);
    return failed ? -1 : 0;
}

/* ---- a part --------------------------------------------------------------------------------------------------- */

static int check_head(cursor *c, uint64_t *n_tensors, uint64_t *n_keys)
{
    uint64_t version = 0;
    if (left(c) < 24 || memcmp(c->at, "GGUF", 4) != 0)
        return fmt_fail(c->e, "%.300s: is no GGUF file: %s", c->path,
                        left(c) < 24 ? "it has fewer than 24 bytes" : "it does not begin with the letters GGUF");
    c->at += 4;
    if (take(c, "the version", 4, &version)) return -1;
    if (version != 2 && version != 3)
        return fmt_fail(c->e, "%.300s: is GGUF version %" PRIu64 "%s, 2 and 3 are supported", c->path, version,
                        version && !(version & 0xffff) ? " (written on a big-endian machine)" : "");
    return take(c, "the number of tensors", 8, n_tensors) || take(c, "the number of keys", 8, n_keys) ? -1 : 0;
}

/* An unsigned number of the first part's kind, where the key is there. */
static int head_number(const cursor *c, const key_row *keys, size_t n, const char *key, uint64_t most, uint64_t *out)
{
    const gguf_value *v = find_key(keys, n, key);
    if (!v) return 0;
    gguf_value copy = *v;
    int64_t number =
        v->array || v->type == GGUF_STRING || v->type == GGUF_F32 || v->type == GGUF_F64 || v->type == GGUF_BOOL
            ? -1
            : gguf_take_int(&copy);
    if (number < 0 || (uint64_t)number > most)
        return fmt_fail(c->e, "%.300s: %s is no integer from 0 to %" PRIu64, c->path, key, most);
    *out = (uint64_t)number;
    return 0;
}

static int map_part(gguf *g, char *path, cursor *c, fmt_error *e)
{
    uint64_t bytes = 0;
    if (g->n_parts == g->room) {
        size_t room = g->room ? 2 * g->room : 1;
        part *more = path ? realloc(g->parts, room * sizeof *more) : NULL;
        if (!more) {
            free(path);
            return fmt_fail(e, "no memory for a list of %zu GGUF files", room);
        }
        g->parts = more;
        g->room = room;
    }
    if (!path) return fmt_fail(e, "no memory for the name of a GGUF file");
    part *p = &g->parts[g->n_parts++];
    *p = (part){.path = path};
    int fd = fmt_open_regular(path, &bytes, NULL, e);
    if (fd < 0) return -1;
    if (bytes < 24 || bytes > SIZE_MAX) {
        close(fd);
        return fmt_fail(e, "%.300s: has %" PRIu64 " bytes, a GGUF file has at least 24", path, bytes);
    }
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    int why = errno;
    close(fd);
    if (map == MAP_FAILED)
        return fmt_fail(e, "%.300s: %" PRIu64 " bytes cannot be mapped: %s", path, bytes, strerror(why));
    p->map = map;
    p->bytes = (size_t)bytes;
    *c = (cursor){path, map, map, (const uint8_t *)map + bytes, e};
    return 0;
}

/* What the metadata says of the split; without a word there is none. */
typedef struct split {
    uint64_t number, count, tensors;
} split;

/* Takes path over.  Keys of parts after the first are looked at for the split and forgotten. */
static int add_part(gguf *g, char *path, split *s, fmt_error *e)
{
    cursor c = {0};
    uint64_t n_tensors = 0, n_keys = 0, align = DEFAULT_ALIGN;
    key_row *keys = NULL;
    *s = (split){0, 1, UINT64_MAX};
    if (map_part(g, path, &c, e)) return -1;
    int failed = check_head(&c, &n_tensors, &n_keys) || read_keys(&c, n_keys, &keys) ||
                 head_number(&c, keys, (size_t)n_keys, "general.alignment", MAX_ALIGN, &align) ||
                 head_number(&c, keys, (size_t)n_keys, "split.no", UINT16_MAX, &s->number) ||
                 head_number(&c, keys, (size_t)n_keys, "split.count", UINT16_MAX, &s->count) ||
                 head_number(&c, keys, (size_t)n_keys, "split.tensors.count", INT64_MAX, &s->tensors);
    if (!failed && (!align || (align & (align - 1))))
        failed = fmt_fail(e, "%.300s: general.alignment is %" PRIu64 ", a power of two is expected", c.path, align);
    if (!failed) failed = read_tensors(&c, g, n_tensors, align);
    if (!failed && g->n_parts == 1) {
        g->keys = keys;
        g->n_keys = (size_t)n_keys;
    } else {
        free(keys);
    }
    return failed ? -1 : 0;
}

/* ---- a file and its other parts ------------------------------------------------------------------------------- */

static int add_others(gguf *g, const split *first, fmt_error *e)
{
    const char *path = g->parts[0].path;
    unsigned number = 0, count = 0;
    if (!split_of(path, &number, &count) || number != 1 || count != first->count || first->number)
        return fmt_fail(e,
                        "%.300s: is part %" PRIu64 " of %" PRIu64
                        " of a model (split.no, split.count), the first is expected, with a name that "
                        "ends in -00001-of-%05u.gguf",
                        path, first->number + 1, first->count, (unsigned)first->count);
    for (unsigned i = 2; i <= count; i++) {
        split s;
        char *other = strdup(g->parts[0].path);
        if (other) {
            char digits[12];
            snprintf(digits, sizeof digits, "%05u", i);
            memcpy(other + strlen(other) - 19, digits, 5);
        }
        if (add_part(g, other, &s, e)) return -1;
        if (s.number != i - 1 || s.count != count)
            return fmt_fail(e, "%.300s: says that it is part %" PRIu64 " of %" PRIu64 ", part %u of %u is expected",
                            g->parts[i - 1].path, s.number + 1, s.count, i, count);
    }
    if (first->tensors != UINT64_MAX && first->tensors != g->n_tensors)
        return fmt_fail(e, "%.300s: split.tensors.count is %" PRIu64 ", the %u parts have %zu tensors",
                        g->parts[0].path, first->tensors, count, g->n_tensors);
    return 0;
}

static int open_all(gguf *g, const char *file, fmt_error *e)
{
    split first;
    if (add_part(g, strdup(file), &first, e)) return -1;
    if (first.count > 1 && add_others(g, &first, e)) return -1;
    if (g->n_tensors) qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (by_name(&g->tensors[i - 1], &g->tensors[i]) == 0)
            return fmt_fail(e, "%.300s: the tensor '%.*s' is there twice", g->tensors[i].file,
                            SHOWN(g->tensors[i].name));
    return 0;
}

int gguf_open(const char *file, gguf **out, fmt_error *e)
{
    gguf *g = calloc(1, sizeof *g);
    if (!g) return fmt_fail(e, "%.300s: no memory to open it", file);
    if (open_all(g, file, e)) {
        gguf_close(g);
        return -1;
    }
    *out = g;
    return 0;
}

void gguf_close(gguf *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_parts; i++) {
        if (g->parts[i].map) munmap(g->parts[i].map, g->parts[i].bytes);
        free(g->parts[i].path);
    }
    free(g->parts);
    free(g->keys);
    free(g->tensors);
    free(g);
}

const char *gguf_file(const gguf *g)
{
    return g->parts[0].path;
}

uint64_t gguf_mapped_bytes(const gguf *g)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < g->n_parts; i++) sum += g->parts[i].bytes;
    return sum;
}

size_t gguf_tensor_count(const gguf *g)
{
    return g->n_tensors;
}

const gguf_tensor *gguf_tensor_at(const gguf *g, size_t index)
{
    return index < g->n_tensors ? &g->tensors[index] : NULL;
}

const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name)
{
    const gguf_tensor wanted = {.name = {name, strlen(name)}};
    return g->n_tensors ? bsearch(&wanted, g->tensors, g->n_tensors, sizeof *g->tensors, by_name) : NULL;
}
