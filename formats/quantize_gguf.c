/* quantize_gguf.c - the quantised checkpoint as one GGUF file: the experts of a layer stacked, norms and routers in F32 as
 * other programs expect them, all else as it was.  Metadata is gguf_write's. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gguf.h"
#include "quantize_job.h"

/* Where a tensor's bytes come from: a tensor of the checkpoint, or count matrices one after another. */
typedef struct piece {
    const st_tensor *copy;
    size_t matrix, count;
} piece;

typedef struct gguf_job {
    quantize_job *j;
    gguf_out *t; /* [n] */
    piece *p;
    size_t n;
} gguf_job;

static st_dtype stored_type(int32_t dtype)
{
    return dtype == MOEWE_DTYPE_Q8_0   ? ST_Q8_0
           : dtype == MOEWE_DTYPE_Q4_0 ? ST_Q4_0
           : dtype == MOEWE_DTYPE_Q4_K ? ST_Q4_K
                                       : ST_Q6_K;
}

static gguf_out *next(gguf_job *g, const char *name, int32_t *expert)
{
    gguf_out *t = &g->t[g->n];
    if (!gguf_name_of(g->j->c->model_type, name, t->name, sizeof t->name, expert)) return t;
    fmt_fail(g->j->e, "%.300s: GGUF has no name for tensor '%.120s' of a %s model", g->j->ask->dir, name, g->j->c->model_type);
    return NULL;
}

/* Vectors, and the router whose rows are as few as experts, are kept exact. */
static int is_exact(const st_tensor *t)
{
    return t->rank < 2 || strstr(t->name, ".gate.weight") != NULL;
}

static int list_copies(gguf_job *g)
{
    for (size_t i = 0; i < st_count(g->j->s); i++) {
        const st_tensor *s = st_at(g->j->s, i);
        int32_t expert;
        if (quantize_is_taken(g->j, s)) continue;
        gguf_out *t = next(g, s->name, &expert);
        if (!t) return -1;
        if (s->rank > GGUF_MAX_RANK || !st_dtype_moewe(s->dtype))
            return fmt_fail(g->j->e, "%.300s: tensor '%.120s' is %s of rank %d, which a GGUF file cannot hold", s->file, s->name,
                            st_dtype_name(s->dtype), (int)s->rank);
        t->dtype = is_exact(s) ? ST_F32 : s->dtype;
        t->rank = s->rank;
        memcpy(t->shape, s->shape, (size_t)s->rank * sizeof *t->shape);
        g->p[g->n++].copy = s;
        g->j->report->kept++;
    }
    return 0;
}

/* Experts of one kind stand one after another in the list. */
static int list_matrices(gguf_job *g)
{
    const quantize_job *j = g->j;
    for (size_t i = 0; i < j->n;) {
        const quantize_matrix *m = &j->list[i];
        int32_t expert;
        gguf_out *t = next(g, m->name, &expert);
        if (!t) return -1;
        size_t count = 1;
        while (expert >= 0 && i + count < j->n && j->list[i + count].m == m->m) count++;
        t->dtype = stored_type(m->type->dtype);
        t->rank = expert >= 0 ? 3 : 2;
        int64_t *shape = t->shape;
        if (expert >= 0) *shape++ = (int64_t)count;
        shape[0] = m->rows;
        shape[1] = m->cols;
        g->p[g->n++] = (piece){NULL, i, count};
        i += count;
    }
    return 0;
}

static int fill(void *ctx, size_t index, void *buf, uint64_t bytes, fmt_error *e)
{
    gguf_job *g = ctx;
    const piece *p = &g->p[index];
    (void)e;
    if (p->copy && p->copy->dtype == g->t[index].dtype) {
        memcpy(buf, p->copy->data, bytes);
        return 0;
    }
    if (p->copy) {
        float *out = buf;
        for (uint64_t i = 0; i < bytes / sizeof *out; i++) out[i] = model_float_at(p->copy, (int64_t)i);
        return 0;
    }
    for (size_t i = 0; i < p->count; i++) {
        const quantize_matrix *m = &g->j->list[p->matrix + i];
        uint64_t each = quantize_code_bytes(m->type, m->rows, m->cols);
        if (quantize_take(g->j, p->matrix + i, (uint8_t *)buf + i * each)) return -1;
    }
    return 0;
}

int quantize_write_gguf(quantize_job *j)
{
    gguf_job g = {.j = j};
    size_t most = st_count(j->s) + j->n;
    g.t = calloc(most, sizeof *g.t);
    g.p = calloc(most, sizeof *g.p);
    int failed = !g.t || !g.p ? fmt_fail(j->e, "%.300s: no memory for a list of %zu tensors", j->ask->out, most) : 0;
    if (!failed) failed = list_copies(&g) || list_matrices(&g) || gguf_write(j->ask->out, j->ask->dir, g.t, g.n, fill, &g, j->e);
    free(g.t);
    free(g.p);
    return failed ? -1 : 0;
}
