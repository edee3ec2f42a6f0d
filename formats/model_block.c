/* model_block.c - owns the way from a model_config and a store to tensors: names of blocks and parts, their
 * expected shapes, the views of a MoE block.  Never copies tensor data, never asks which family it has. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "families.h"

/* ---- names ------------------------------------------------------------------------------------------------ */

static size_t expand_into(char *buf, size_t at, const char *text, int32_t layer, int32_t expert)
{
    for (; *text && at + 1 < MODEL_NAME_CAP; text++) {
        if (text[0] == '{' && (text[1] == 'L' || text[1] == 'E') && text[2] == '}') {
            int n = snprintf(buf + at, MODEL_NAME_CAP - at, "%d", (int)(text[1] == 'L' ? layer : expert));
            at += (size_t)n;
            text += 2;
        } else {
            buf[at++] = *text;
        }
    }
    if (at >= MODEL_NAME_CAP) at = MODEL_NAME_CAP - 1;
    buf[at] = '\0';
    return at;
}

void model_expand(const char *prefix, const char *name, int32_t layer, int32_t expert, char buf[MODEL_NAME_CAP])
{
    expand_into(buf, expand_into(buf, 0, prefix, layer, expert), name, layer, expert);
}

void model_block_name(const model_config *c, int32_t layer, char *buf, size_t cap)
{
    char name[MODEL_NAME_CAP];
    model_expand(c->family->module, "", layer, 0, name);
    snprintf(buf, cap, "%s", name);
}

/* A layer number without sign or leading zeros; *end is what follows it.  -1 when there is none. */
static int64_t parse_layer(const char *text, const char **end)
{
    int64_t n = 0;
    const char *p = text;
    while (*p >= '0' && *p <= '9' && p - text < 10) n = n * 10 + (*p++ - '0');
    *end = p;
    return p == text || (*text == '0' && p - text > 1) ? -1 : n;
}

/* The layer in a name that follows the template (a '.' at the template's end is no part of the name), or -1. */
static int64_t match_template(const char *template, const char *name)
{
    const char *hole = strstr(template, "{L}"), *end;
    size_t before = (size_t)(hole - template), after = strlen(hole + 3);
    if (strncmp(name, template, before) != 0) return -1;
    int64_t layer = parse_layer(name + before, &end);
    if (after && hole[2 + after] == '.') after--;
    return layer >= 0 && strncmp(end, hole + 3, after) == 0 && end[after] == '\0' ? layer : -1;
}

int model_block_find(const model_config *c, const char *name, int32_t *layer, fmt_error *e)
{
    const char *end;
    char example[MODEL_NAME_CAP];
    int64_t n = parse_layer(name, &end);
    if (n < 0 || *end) n = match_template(c->family->module, name);
    if (n < 0) n = match_template(c->family->prefix, name);
    if (n < 0) {
        model_expand(c->family->module, "", c->n_layers - 1, 0, example);
        return fmt_fail(e, "%.300s: '%.120s' names no block of %s, a layer from 0 to %d or a name like %s is expected",
                        c->file, name, c->model_type, c->n_layers - 1, example);
    }
    if (n >= c->n_layers)
        return fmt_fail(e, "%.300s: '%.120s' is layer %" PRId64 ", the model has layers 0 to %d", c->file, name, n,
                        c->n_layers - 1);
    if (!c->layer_is_moe[n]) {
        int32_t first = 0;
        while (first < c->n_layers && !c->layer_is_moe[first]) first++;
        if (first == c->n_layers)
            return fmt_fail(e, "%.300s: layer %" PRId64 " is dense, as are all %d layers: there is no MoE block",
                            c->file, n, c->n_layers);
        return fmt_fail(e, "%.300s: layer %" PRId64 " is dense, a layer with experts is expected (the first is %d)",
                        c->file, n, first);
    }
    *layer = (int32_t)n;
    return 0;
}

/* ---- tensors ---------------------------------------------------------------------------------------------- */

/* A tensor of that shape, in a dtype that moewe computes with. */
static const st_tensor *need_weight(const st_store *s, const char *name, int32_t rank, const int64_t *shape,
                                    fmt_error *e)
{
    const st_tensor *t = st_need(s, name, rank, shape, e);
    if (t && !st_dtype_moewe(t->dtype)) {
        fmt_fail(e, "%.300s: tensor '%.120s' has dtype %s, F32, BF16 or F16 is expected", t->file, name,
                 st_dtype_name(t->dtype));
        return NULL;
    }
    return t;
}

const st_tensor *model_part_find(const model_config *c, const st_store *s, model_part part, int32_t layer, int *absent,
                                 fmt_error *e)
{
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t vocab = c->vocab, hidden = c->hidden, dense = c->dense_inter, head = c->head_dim;
    const struct {
        int in_layer, there;
        int32_t rank;
        int64_t shape[2];
    } parts[MODEL_PART_COUNT] = {
        [MODEL_EMBED] = {0, 1, 2, {vocab, hidden}},
        [MODEL_FINAL_NORM] = {0, 1, 1, {hidden}},
        [MODEL_LM_HEAD] = {0, !c->tie_embeddings, 2, {vocab, hidden}},
        [MODEL_ATTN_NORM] = {1, 1, 1, {hidden}},
        [MODEL_MLP_NORM] = {1, 1, 1, {hidden}},
        [MODEL_Q] = {1, 1, 2, {q, hidden}},
        [MODEL_K] = {1, 1, 2, {kv, hidden}},
        [MODEL_V] = {1, 1, 2, {kv, hidden}},
        [MODEL_O] = {1, 1, 2, {hidden, q}},
        [MODEL_Q_NORM] = {1, c->qk_norm, 1, {head}},
        [MODEL_K_NORM] = {1, c->qk_norm, 1, {head}},
        [MODEL_DENSE_GATE] = {1, 2, 2, {dense, hidden}},
        [MODEL_DENSE_UP] = {1, 2, 2, {dense, hidden}},
        [MODEL_DENSE_DOWN] = {1, 2, 2, {hidden, dense}},
        [MODEL_Q_BIAS] = {1, c->attention_bias, 1, {q}},
        [MODEL_K_BIAS] = {1, c->attention_bias, 1, {kv}},
        [MODEL_V_BIAS] = {1, c->attention_bias, 1, {kv}},
        [MODEL_O_BIAS] = {1, c->attention_bias, 1, {hidden}},
    };
    enum { IN_DENSE_LAYERS = 2 };
    char name[MODEL_NAME_CAP];

    if (absent) *absent = 0;
    if ((unsigned)part >= MODEL_PART_COUNT || (parts[part].in_layer && (layer < 0 || layer >= c->n_layers))) {
        fmt_fail(e, "%.300s: part %d of layer %d was asked for, the model has layers 0 to %d", c->file, (int)part,
                 layer, c->n_layers - 1);
        return NULL;
    }
    int there = parts[part].there == IN_DENSE_LAYERS ? !c->layer_is_moe[layer] : parts[part].there;
    if (!there || !c->family->part[part]) {
        if (absent) *absent = 1;
        return NULL;
    }
    model_expand("", c->family->part[part], layer, 0, name);
    return need_weight(s, name, parts[part].rank, parts[part].shape, e);
}

/* ---- a MoE block ------------------------------------------------------------------------------------------ */

/* All matrices of gate, up and down share one dtype: the first tensor sets it. */
static int same_dtype(model_block *b, const st_tensor *t, fmt_error *e)
{
    int32_t dtype = st_dtype_moewe(t->dtype);
    b->bytes += t->bytes;
    if (!b->w_dtype) b->w_dtype = dtype;
    if (b->w_dtype == dtype) return 0;
    return fmt_fail(e, "%.300s: tensor '%.120s' has dtype %s, %s is expected as in the block's other experts", t->file,
                    t->name, st_dtype_name(t->dtype), moewe_dtype_name(b->w_dtype));
}

static int open_stacked(const model_config *c, const st_store *s, const char *gate_up_name, const char *down_name,
                        model_block *b, fmt_error *e)
{
    const int64_t experts = c->moe.n_experts, inter = c->moe.inter, hidden = c->moe.hidden;
    const st_tensor *gate_up = need_weight(s, gate_up_name, 3, (const int64_t[]){experts, 2 * inter, hidden}, e);
    const st_tensor *down = gate_up ? need_weight(s, down_name, 3, (const int64_t[]){experts, hidden, inter}, e) : NULL;
    if (!down || same_dtype(b, gate_up, e) || same_dtype(b, down, e)) return -1;

    int64_t row = hidden * (int64_t)st_dtype_bytes(gate_up->dtype); /* the file holds 2 * experts * inter of them */
    b->w.gate.data = gate_up->data;
    b->w.up.data = (const char *)gate_up->data + inter * row;
    b->w.down.data = down->data;
    b->w.gate.row_stride = b->w.up.row_stride = row;
    b->w.gate.expert_stride = b->w.up.expert_stride = 2 * inter * row;
    return 0;
}

static int open_separate(const model_config *c, const st_store *s, const char *prefix, int32_t layer, model_block *b,
                         fmt_error *e)
{
    const model_family *f = c->family;
    const int64_t n = c->moe.n_experts, wide[2] = {c->moe.inter, c->moe.hidden},
                  tall[2] = {c->moe.hidden, c->moe.inter};
    const struct {
        const char *name;
        const int64_t *shape;
        moewe_matrix *m;
    } kinds[3] = {
        {f->expert_gate, wide, &b->w.gate}, {f->expert_up, wide, &b->w.up}, {f->expert_down, tall, &b->w.down}};
    char name[MODEL_NAME_CAP];

    /* n is no longer only the config's word: the router tensor has a row for each */
    b->pointers = calloc((size_t)n, 3 * sizeof *b->pointers);
    if (!b->pointers) return fmt_fail(e, "%.300s: no memory for the list of %" PRId64 " experts", c->file, n);
    for (int k = 0; k < 3; k++) {
        const void **list = b->pointers + k * n;
        for (int32_t i = 0; i < n; i++) {
            model_expand(prefix, kinds[k].name, layer, i, name);
            const st_tensor *t = need_weight(s, name, 2, kinds[k].shape, e);
            if (!t || same_dtype(b, t, e)) return -1;
            list[i] = t->data;
        }
        kinds[k].m->experts = list;
    }
    return 0;
}

static int open_experts(const model_config *c, const st_store *s, int32_t layer, model_block *b, fmt_error *e)
{
    const model_family *f = c->family;
    char gate_up[MODEL_NAME_CAP], down[MODEL_NAME_CAP], first[MODEL_NAME_CAP];
    if (f->stacked_gate_up) {
        model_expand(f->prefix, f->stacked_gate_up, layer, 0, gate_up);
        model_expand(f->prefix, f->stacked_down, layer, 0, down);
        model_expand(f->prefix, f->expert_gate, layer, 0, first);
        if (st_find(s, gate_up)) {
            if (!st_find(s, first)) return open_stacked(c, s, gate_up, down, b, e);
            return fmt_fail(e, "%.300s: holds both '%.120s' and '%.120s', one form of the experts is expected",
                            st_find(s, first)->file, gate_up, first);
        }
    }
    return open_separate(c, s, f->prefix, layer, b, e);
}

static int open_block(const model_config *c, const st_store *s, int32_t layer, model_block *b, fmt_error *e)
{
    char name[MODEL_NAME_CAP];
    model_expand(c->family->prefix, c->family->router, layer, 0, name);
    const st_tensor *router = need_weight(s, name, 2, (const int64_t[]){c->moe.n_experts, c->moe.hidden}, e);
    if (!router || open_experts(c, s, layer, b, e)) return -1;
    b->bytes += router->bytes;
    b->w.router.data = router->data;
    b->w.router.dtype = st_dtype_moewe(router->dtype);
    b->w.gate.dtype = b->w.up.dtype = b->w.down.dtype = b->w_dtype;
    return 0;
}

int model_block_open(const model_config *c, const st_store *s, int32_t layer, model_block *out, fmt_error *e)
{
    model_block b;
    char number[16];
    int32_t found;

    memset(&b, 0, sizeof b);
    MOEWE_INIT(b.w);
    snprintf(number, sizeof number, "%d", layer);
    if (model_block_find(c, number, &found, e)) return -1;
    if (open_block(c, s, layer, &b, e)) {
        model_block_close(&b);
        return -1;
    }
    *out = b;
    return 0;
}

void model_block_close(model_block *b)
{
    if (!b) return;
    free(b->pointers);
    b->pointers = NULL;
}
