/* gguf_value.c - values of a GGUF file's metadata as numbers, texts and lists.  What lies in the file was checked by
 * gguf.c; here types and ranges are. */
#include <inttypes.h>
#include <string.h>

#include "gguf.h"

static int is_int(gguf_type t)
{
    return t <= GGUF_I32 || t == GGUF_U64 || t == GGUF_I64;
}

static uint64_t little(const uint8_t *at, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes; i-- > 0;) v = v << 8 | at[i];
    return v;
}

gguf_text gguf_take_text(gguf_value *v)
{
    gguf_text t = {(const char *)v->at + 8, (size_t)little(v->at, 8)};
    v->at += 8 + t.bytes;
    v->count--;
    return t;
}

int64_t gguf_take_int(gguf_value *v)
{
    static const uint8_t widths[GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    int bytes = widths[v->type], is_signed = v->type == GGUF_I8 || v->type == GGUF_I16 || v->type == GGUF_I32;
    uint64_t bits = little(v->at, bytes);
    v->at += bytes;
    v->count--;
    if (is_signed && bits >> (8 * bytes - 1)) bits |= UINT64_MAX << (8 * bytes);
    if (v->type == GGUF_U64 && bits > INT64_MAX) return INT64_MAX;
    int64_t out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

double gguf_take_real(gguf_value *v)
{
    if (v->type == GGUF_F32) {
        uint32_t bits = (uint32_t)little(v->at, 4);
        float f;
        memcpy(&f, &bits, sizeof f);
        v->at += 4;
        v->count--;
        return (double)f;
    }
    if (v->type == GGUF_F64) {
        uint64_t bits = little(v->at, 8);
        double d;
        memcpy(&d, &bits, sizeof d);
        v->at += 8;
        v->count--;
        return d;
    }
    return (double)gguf_take_int(v);
}

/* The value, of a type that ok accepts; NULL when it is absent (*missing) or another (the error is set). */
static const gguf_value *need(const gguf *g, const char *key, int array, int (*ok)(gguf_type), const char *what,
                              int *there, fmt_error *e)
{
    static const char *const names[GGUF_TYPE_COUNT] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                       "bool", "string", "array", "u64", "i64", "f64"};
    const gguf_value *v = gguf_find(g, key);
    if (there) *there = v != NULL;
    if (v && v->array == array && ok(v->type)) return v;
    if (v)
        fmt_fail(e, "%.300s: %s has type %s%s, %s is expected", gguf_file(g), key, v->array ? "array of " : "",
                 names[v->type], what);
    else if (!there)
        fmt_fail(e, "%.300s: %s is missing, %s is expected", gguf_file(g), key, what);
    return NULL;
}

/* 0: there and right; 1: absent, which is allowed; -1: an error. */
static int outcome(const gguf_value *v, const int *there)
{
    return v ? 0 : there && !*there ? 1 : -1;
}

int gguf_need_int(const gguf *g, const char *key, int64_t low, int64_t high, int64_t *out, int *there, fmt_error *e)
{
    const gguf_value *v = need(g, key, 0, is_int, "an integer", there, e);
    int how = outcome(v, there);
    if (how) return how < 0 ? -1 : 0;
    gguf_value copy = *v;
    int64_t number = gguf_take_int(&copy);
    if (number < low || number > high)
        return fmt_fail(e, "%.300s: %s is %" PRId64 ", %" PRId64 " to %" PRId64 " is expected", gguf_file(g), key,
                        number, low, high);
    *out = number;
    return 0;
}

static int is_number(gguf_type t)
{
    return is_int(t) || t == GGUF_F32 || t == GGUF_F64;
}

int gguf_need_real(const gguf *g, const char *key, double *out, int *there, fmt_error *e)
{
    const gguf_value *v = need(g, key, 0, is_number, "a number", there, e);
    int how = outcome(v, there);
    if (how) return how < 0 ? -1 : 0;
    gguf_value copy = *v;
    double number = gguf_take_real(&copy);
    if (!(number - number == 0)) return fmt_fail(e, "%.300s: %s is no finite number", gguf_file(g), key);
    *out = number;
    return 0;
}

static int is_bool(gguf_type t)
{
    return t == GGUF_BOOL;
}

int gguf_need_bool(const gguf *g, const char *key, int *out, int *there, fmt_error *e)
{
    const gguf_value *v = need(g, key, 0, is_bool, "true or false", there, e);
    int how = outcome(v, there);
    if (how) return how < 0 ? -1 : 0;
    if (*v->at > 1) return fmt_fail(e, "%.300s: %s is %d, 0 or 1 is expected", gguf_file(g), key, *v->at);
    *out = *v->at;
    return 0;
}

static int is_string(gguf_type t)
{
    return t == GGUF_STRING;
}

int gguf_need_text(const gguf *g, const char *key, gguf_text *out, int *there, fmt_error *e)
{
    const gguf_value *v = need(g, key, 0, is_string, "a string", there, e);
    int how = outcome(v, there);
    if (how) return how < 0 ? -1 : 0;
    gguf_value copy = *v;
    *out = gguf_take_text(&copy);
    return 0;
}

int gguf_need_list(const gguf *g, const char *key, int of_text, gguf_value *out, int *there, fmt_error *e)
{
    const gguf_value *v = need(g, key, 1, of_text ? is_string : is_int,
                               of_text ? "an array of strings" : "an array of integers", there, e);
    int how = outcome(v, there);
    if (how) return how < 0 ? -1 : 0;
    *out = *v;
    return 0;
}

int gguf_text_is(gguf_text t, const char *word)
{
    return t.bytes == strlen(word) && memcmp(t.at, word, t.bytes) == 0;
}
