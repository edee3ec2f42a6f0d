/* gguf_tensors.c - owns the way from a GGUF file's tensors to those of a checkpoint: names, and a view for each expert
 * of a stack.  Never copies a weight. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_arch.h"

enum { MOST = 1 << 20 }; /* tensors: an expert takes a byte in a file and a hundred in the table */

/* Counts while out is NULL, else fills. */
typedef struct listing {
    const gguf *g;
    const gguf_arch *arch;
    st_tensor *out;
    char *names;
    size_t n, name_bytes;
    fmt_error *e;
} listing;

static int refuse(const listing *l, const gguf_tensor *t, const char *why)
{
    return fmt_fail(l->e, "%.300s: tensor '%.*s' %s", t->file, (int)t->name.bytes, t->name.at, why);
}

/* One tensor, of the elements that begin at byte from of t. */
static int add(listing *l, const gguf_tensor *t, const char *name, int32_t layer, int64_t expert, uint64_t from,
               int32_t rank, const int64_t *shape, uint64_t bytes)
{
    char *at = l->out ? l->names + l->name_bytes : NULL;
    size_t length, cap = at ? GGUF_MAX_NAME + 64 : 0;
    if (++l->n > MOST) return refuse(l, t, "makes more than the 1048576 tensors that are supported");
    if (name)
        length = gguf_name_fill(l->arch, name, layer, expert, at, cap);
    else
        length = (size_t)snprintf(at, cap, "%.*s", (int)t->name.bytes, t->name.at);
    l->name_bytes += length + 1;
    if (!at) return 0;
    st_tensor *to = &l->out[l->n - 1];
    *to = (st_tensor){
        .name = at, .dtype = t->kind->dtype, .rank = rank, .data = t->data + from, .bytes = bytes, .file = t->file};
    for (int32_t i = 0; i < rank; i++) to->shape[i] = shape[i];
    return 0;
}

/* Each expert's rows, from first on. */
static int add_experts(listing *l, const gguf_tensor *t, const char *name, int32_t layer, int64_t first, int64_t rows)
{
    const int64_t shape[2] = {rows, t->shape[2]};
    uint64_t expert = t->bytes / (uint64_t)t->shape[0], row = expert / (uint64_t)t->shape[1];
    for (int64_t i = 0; i < t->shape[0]; i++)
        if (add(l, t, name, layer, i, (uint64_t)i * expert + (uint64_t)first * row, 2, shape, (uint64_t)rows * row))
            return -1;
    return 0;
}

static int visit(listing *l, const gguf_tensor *t)
{
    static const char block[] = "blk.";
    int32_t layer;
    const gguf_name *row = gguf_name_find(l->arch, t->name, &layer);
    if (t->kind->dtype == ST_DTYPE_NONE) {
        char why[160];
        snprintf(why, sizeof why, "has type %s, supported are F32, F16, BF16, Q8_0, Q4_0, Q4_K and Q6_K",
                 t->kind->name);
        return refuse(l, t, why);
    }
    if (!row) {
        /* Part of a block, or of a decoder that the engine runs: without it the result would be another. */
        const char *dot =
            layer >= 0 ? memchr(t->name.at + sizeof block - 1, '.', t->name.bytes - (sizeof block - 1)) : NULL;
        int of_block = dot && (strncmp(dot, ".ffn_", 5) == 0 || strncmp(dot, ".exp_", 5) == 0);
        char why[120];
        snprintf(why, sizeof why, "is none that a model of architecture %s is known to have", l->arch->arch);
        if (l->arch->whole || of_block) return refuse(l, t, why);
        return add(l, t, NULL, -1, -1, 0, t->rank, t->shape, t->bytes);
    }
    if (row->shape == GGUF_AS_ROW && t->rank == 1)
        return add(l, t, row->name, layer, -1, 0, 2, (const int64_t[]){1, t->shape[0]}, t->bytes);
    if (row->shape != GGUF_EXPERTS && row->shape != GGUF_GATE_UP)
        return add(l, t, row->name, layer, -1, 0, t->rank, t->shape, t->bytes);
    if (t->rank != 3 || (row->shape == GGUF_GATE_UP && t->shape[1] % 2))
        return refuse(l, t,
                      row->shape == GGUF_EXPERTS ? "has no three extents (experts, rows, columns)"
                                                 : "has no three extents (experts, gate and up rows, columns)");
    if (row->shape == GGUF_EXPERTS) return add_experts(l, t, row->name, layer, 0, t->shape[1]);
    return add_experts(l, t, row->name, layer, 0, t->shape[1] / 2) ||
                   add_experts(l, t, row->up, layer, t->shape[1] / 2, t->shape[1] / 2)
               ? -1
               : 0;
}

static int visit_all(listing *l)
{
    l->n = l->name_bytes = 0;
    for (size_t i = 0; i < gguf_tensor_count(l->g); i++)
        if (visit(l, gguf_tensor_at(l->g, i))) return -1;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

/* Blocks of version 2: an older Q4_0 had the same size and other bytes. */
static int check_version(const gguf *g, fmt_error *e)
{
    int64_t version = 2;
    int there;
    return gguf_need_int(g, "general.quantization_version", 2, 2, &version, &there, e);
}

int gguf_tensors(const gguf *g, st_tensor **out, size_t *n, char **names, fmt_error *e)
{
    listing l = {.g = g, .arch = gguf_arch_of(g, e), .e = e};
    if (!l.arch || check_version(g, e) || visit_all(&l)) return -1;
    st_tensor *tensors = calloc(l.n + 1, sizeof *tensors);
    char *text = malloc(l.name_bytes + GGUF_MAX_NAME + 64);
    l.out = tensors;
    l.names = text;
    int failed = !tensors || !text ? fmt_fail(e, "%.300s: no memory for the names of %zu tensors", gguf_file(g), l.n)
                                   : visit_all(&l);
    if (!failed && l.n) qsort(tensors, l.n, sizeof *tensors, by_name);
    for (size_t i = 1; !failed && i < l.n; i++)
        if (by_name(&tensors[i - 1], &tensors[i]) == 0)
            failed = fmt_fail(e, "%.300s: two of its tensors hold '%.200s'", gguf_file(g), tensors[i].name);
    if (failed) {
        free(tensors);
        free(text);
        return -1;
    }
    *out = tensors;
    *n = l.n;
    *names = text;
    return 0;
}
