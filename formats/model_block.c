/* model_block.c - owns the way from a model_config and a store to tensors: names of blocks and parts, their
 * expected shapes, the views of a MoE block.  Never copies a weight (biases and tables become f32 and int32), never
 * asks which family it has. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_internal.h"

/* ---- names ------------------------------------------------------------------------------------------------ */

void model_name_fill(const char *template, int32_t n, char buf[MODEL_NAME_CAP])
{
    const char *hole = strchr(template, '{');
    if (!hole || !hole[1] || hole[2] != '}')
        snprintf(buf, MODEL_NAME_CAP, "%s", template);
    else
        snprintf(buf, MODEL_NAME_CAP, "%.*s%d%s", (int)(hole - template), template, (int)n, hole + 3);
}

static const char *module_of(const model_config *c)
{
    return json_string_value(json_object_get(family_block(c->family), "module"));
}

static const char *layer_word(const model_config *c)
{
    const char *w = json_string_value(json_object_get(family_descriptor(c->family), "layer_word"));
    return w ? w : "layers";
}

void model_block_name(const model_config *c, int32_t layer, char *buf, size_t cap)
{
    char name[MODEL_NAME_CAP];
    model_name_fill(module_of(c), layer, name);
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

/* The layer in a name that follows the template "before{i}after", or -1. */
static int64_t match_template(const char *template, const char *name)
{
    const char *hole = strstr(template, "{i}"), *end;
    size_t before = hole ? (size_t)(hole - template) : 0;
    if (!hole || strncmp(name, template, before) != 0) return -1;
    int64_t layer = parse_layer(name + before, &end);
    return layer >= 0 && strcmp(end, hole + 3) == 0 ? layer : -1;
}

/* The layer in a name as the block's tensors have it on disk, or -1. */
static int64_t match_disk(const model_config *c, const char *name)
{
    const json_t *prefixes = json_object_get(family_descriptor(c->family), "prefixes");
    const json_t *disks = json_object_get(family_block(c->family), "disk");
    char template[MODEL_NAME_CAP];
    for (size_t p = 0; p < json_array_size(prefixes); p++)
        for (size_t d = 0; d < json_array_size(disks); d++) {
            snprintf(template, sizeof template, "%s%s.{i}.%s", json_string_value(json_array_get(prefixes, p)),
                     layer_word(c), json_string_value(json_array_get(disks, d)));
            size_t n = strlen(template);
            if (n && template[n - 1] == '.') template[n - 1] = 0;
            int64_t layer = match_template(template, name);
            if (layer >= 0) return layer;
        }
    return -1;
}

int model_block_find(const model_config *c, const char *name, int32_t *layer, fmt_error *e)
{
    const char *end;
    char example[MODEL_NAME_CAP];
    int64_t n = parse_layer(name, &end);
    if (n < 0 || *end) n = match_template(module_of(c), name);
    if (n < 0) n = match_disk(c, name);
    if (n < 0) {
        model_block_name(c, c->n_layers - 1, example, sizeof example);
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

/* The tensor of a part, unchecked where it is quantised, and its extents. */
static const st_tensor *find_part(const model_config *c, const st_store *s, model_part part, int32_t layer, int64_t shape[2],
                                  int *absent, fmt_error *e)
{
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t vocab = c->vocab, hidden = c->hidden, dense = c->dense_inter, head = c->head_dim;
    const struct {
        const char *name;
        int in_layer, there;
        int32_t rank;
        int64_t shape[2];
    } parts[MODEL_PART_COUNT] = {
        [MODEL_EMBED] = {"model.embed_tokens.weight", 0, 1, 2, {vocab, hidden}},
        [MODEL_FINAL_NORM] = {"model.norm.weight", 0, 1, 1, {hidden}},
        [MODEL_LM_HEAD] = {"lm_head.weight", 0, !c->tie_embeddings, 2, {vocab, hidden}},
        [MODEL_ATTN_NORM] = {"model.layers.{i}.input_layernorm.weight", 1, 1, 1, {hidden}},
        [MODEL_MLP_NORM] = {"model.layers.{i}.post_attention_layernorm.weight", 1, 1, 1, {hidden}},
        [MODEL_Q] = {"model.layers.{i}.self_attn.q_proj.weight", 1, 1, 2, {q, hidden}},
        [MODEL_K] = {"model.layers.{i}.self_attn.k_proj.weight", 1, 1, 2, {kv, hidden}},
        [MODEL_V] = {"model.layers.{i}.self_attn.v_proj.weight", 1, 1, 2, {kv, hidden}},
        [MODEL_O] = {"model.layers.{i}.self_attn.o_proj.weight", 1, 1, 2, {hidden, q}},
        [MODEL_Q_NORM] = {"model.layers.{i}.self_attn.q_norm.weight", 1, c->qk_norm, 1, {head}},
        [MODEL_K_NORM] = {"model.layers.{i}.self_attn.k_norm.weight", 1, c->qk_norm, 1, {head}},
        [MODEL_DENSE_GATE] = {"model.layers.{i}.mlp.gate_proj.weight", 1, 2, 2, {dense, hidden}},
        [MODEL_DENSE_UP] = {"model.layers.{i}.mlp.up_proj.weight", 1, 2, 2, {dense, hidden}},
        [MODEL_DENSE_DOWN] = {"model.layers.{i}.mlp.down_proj.weight", 1, 2, 2, {hidden, dense}},
        [MODEL_Q_BIAS] = {"model.layers.{i}.self_attn.q_proj.bias", 1, c->attention_bias, 1, {q}},
        [MODEL_K_BIAS] = {"model.layers.{i}.self_attn.k_proj.bias", 1, c->attention_bias, 1, {kv}},
        [MODEL_V_BIAS] = {"model.layers.{i}.self_attn.v_proj.bias", 1, c->attention_bias, 1, {kv}},
        [MODEL_O_BIAS] = {"model.layers.{i}.self_attn.o_proj.bias", 1, c->attention_bias, 1, {hidden}},
    };
    enum { IN_DENSE_LAYERS = 2 };
    char name[MODEL_NAME_CAP], packed[MODEL_NAME_CAP + 8];

    if (absent) *absent = 0;
    if ((unsigned)part >= MODEL_PART_COUNT || (parts[part].in_layer && (layer < 0 || layer >= c->n_layers))) {
        fmt_fail(e, "%.300s: part %d of layer %d was asked for, the model has layers 0 to %d", c->file, (int)part,
                 layer, c->n_layers - 1);
        return NULL;
    }
    int there = parts[part].there == IN_DENSE_LAYERS ? !c->layer_is_moe[layer] : parts[part].there;
    if (!there || !c->engine) {
        if (absent) *absent = 1;
        return NULL;
    }
    model_name_fill(parts[part].name, layer, name);
    snprintf(packed, sizeof packed, "%s_packed", name);
    memcpy(shape, parts[part].shape, sizeof parts[part].shape);
    const st_tensor *t = st_find(s, name);
    if (!t) t = st_find(s, packed);
    return t && parts[part].rank == 2 && !st_dtype_moewe(t->dtype)
               ? t
               : need_weight(s, name, parts[part].rank, parts[part].shape, e);
}

const st_tensor *model_part_find(const model_config *c, const st_store *s, model_part part, int32_t layer, int *absent,
                                 fmt_error *e)
{
    int64_t shape[2] = {0, 0};
    const st_tensor *t = find_part(c, s, part, layer, shape, absent, e);
    return t && !st_dtype_moewe(t->dtype) ? need_weight(s, t->name, -1, NULL, e) : t;
}

int model_part_matrix(const model_config *c, const st_store *s, model_part part, int32_t layer, model_matrix *out,
                      int *absent, fmt_error *e)
{
    int64_t shape[2] = {0, 0};
    stored m;
    memset(out, 0, sizeof *out);
    const st_tensor *t = find_part(c, s, part, layer, shape, absent, e);
    if (!t || stored_open(c, s, t, (stored_shape){0, shape[0], shape[1]}, 0, &m, e) || stored_view(&m, 0, 1, &out->m, e))
        return -1;
    out->t = t;
    out->rows = (int32_t)shape[0];
    out->cols = (int32_t)shape[1];
    out->has_factor = m.factor != NULL;
    out->factor = stored_factor(&m, 0);
    if (!m.offset) return 0;
    out->owned = malloc((size_t)m.row_bytes * (size_t)shape[0] + 1);
    if (!out->owned) return fmt_fail(e, "%.300s: no memory for a copy of tensor '%.120s'", t->file, t->name);
    stored_convert(&m, out->owned);
    out->m.data = out->owned;
    return 0;
}

/* ---- a MoE block ------------------------------------------------------------------------------------------ */

/* With tail behind the name. */
static const st_tensor *find_spelling(const block_reader *r, const char *name, const char *tail, int32_t expert)
{
    const json_t *prefixes = json_object_get(family_descriptor(r->c->family), "prefixes"),
                 *disks = json_object_get(r->block, "disk");
    char filled[MODEL_NAME_CAP], whole[2 * MODEL_NAME_CAP];
    int outside = strncmp(name, "../", 3) == 0;
    model_name_fill(outside ? name + 3 : name, expert, filled);
    for (size_t p = 0; p < json_array_size(prefixes); p++)
        for (size_t d = 0; d < json_array_size(disks); d++) {
            snprintf(whole, sizeof whole, "%s%s.%d.%s%s%s", json_string_value(json_array_get(prefixes, p)),
                     layer_word(r->c), (int)r->layer, outside ? "" : json_string_value(json_array_get(disks, d)),
                     filled, tail);
            const st_tensor *t = st_find(r->s, whole);
            if (t) return t;
        }
    return NULL;
}

const st_tensor *block_find(const block_reader *r, const char *name, int32_t expert)
{
    static const char *const tails[] = {"", "_packed", "_blocks"};
    const st_tensor *t = NULL;
    for (size_t i = 0; !t && i < (r->c->quant.quantized ? sizeof tails / sizeof *tails : 1); i++)
        t = find_spelling(r, name, tails[i], expert);
    return t;
}

static const st_tensor *take(const block_reader *r, const st_tensor *t)
{
    block_used *u = r->used;
    if (!t) return t;
    if (u->n == u->room) {
        size_t room = u->room ? 2 * u->room : 64;
        const st_tensor **more = realloc(u->list, room * sizeof *more);
        if (!more) {
            fmt_fail(r->e, "%.300s: no memory for a list of %zu tensors", r->c->file, room);
            return NULL;
        }
        u->list = more;
        u->room = room;
    }
    u->list[u->n++] = t;
    return t;
}

/* The first spelling that is there; none: the sentence, as of a tensor of that shape. */
static const st_tensor *find_listed(const block_reader *r, const json_t *names, int32_t expert, int32_t rank,
                                    const int64_t *shape)
{
    size_t n = json_is_array(names) ? json_array_size(names) : 1;
    const char *first = json_string_value(json_is_array(names) ? json_array_get(names, 0) : names);
    for (size_t i = 0; i < n; i++) {
        const st_tensor *t =
            block_find(r, json_string_value(json_is_array(names) ? json_array_get(names, i) : names), expert);
        if (t) return t;
    }
    /* As the file that is here would name it: under the prefix that its router or embedding has, else the first. */
    const json_t *prefixes = json_object_get(family_descriptor(r->c->family), "prefixes"),
                 *disks = json_object_get(r->block, "disk");
    const st_tensor *router = NULL;
    const json_t *routers = json_object_get(r->block, "router");
    for (size_t i = 0; !router && i < json_array_size(routers); i++)
        router = block_find(r, json_string_value(json_array_get(routers, i)), 0);
    char filled[MODEL_NAME_CAP], whole[2 * MODEL_NAME_CAP];
    model_name_fill(strncmp(first, "../", 3) == 0 ? first + 3 : first, expert, filled);
    snprintf(whole, sizeof whole, "%s%s.%d.%s%s", json_string_value(json_array_get(prefixes, 0)), layer_word(r->c),
             (int)r->layer, strncmp(first, "../", 3) == 0 ? "" : json_string_value(json_array_get(disks, 0)), filled);
    if (router) {
        const char *tail = strstr(router->name, json_string_value(json_array_get(routers, 0)));
        if (tail) snprintf(whole, sizeof whole, "%.*s%s", (int)(tail - router->name), router->name, filled);
    }
    need_weight(r->s, whole, rank, shape, r->e);
    return NULL;
}

const st_tensor *block_need(const block_reader *r, const json_t *names, int32_t expert, int32_t rank,
                            const int64_t *shape)
{
    const st_tensor *t = find_listed(r, names, expert, rank, shape);
    if (t) t = need_weight(r->s, t->name, rank, shape, r->e);
    if (!t || model_is_plain(t)) return take(r, t);
    fmt_fail(r->e, "%.300s: tensor '%.120s' has dtype %s, F32, BF16 or F16 is expected", t->file, t->name, st_dtype_name(t->dtype));
    return NULL;
}

int block_stored(const block_reader *r, const json_t *names, int32_t expert, stored_shape shape, int of_expert, stored *out)
{
    const int64_t extents[] = {shape.n, shape.rows, shape.cols};
    const st_tensor *t = find_listed(r, names, expert, shape.n ? 3 : 2, shape.n ? extents : extents + 1);
    if (!t || stored_open(r->c, r->s, t, shape, of_expert, out, r->e) || !take(r, t)) return -1;
    for (int32_t i = 0; i < out->n_beside; i++)
        if (!take(r, out->beside[i])) return -1;
    r->out->bytes += out->bytes;
    return 0;
}

void *block_own(const block_reader *r, uint64_t count, uint64_t size)
{
    model_block *b = r->out;
    void *p = b->n_owned < (int32_t)(sizeof b->owned / sizeof *b->owned) ? calloc(count ? count : 1, size) : NULL;
    if (!p) {
        fmt_fail(r->e, "%.300s: no memory for %" PRIu64 " x %" PRIu64 " bytes of tables of layer %d", r->c->file, count,
                 size, (int)r->layer);
        return NULL;
    }
    b->owned[b->n_owned++] = p;
    return p;
}

float *block_floats(const block_reader *r, const st_tensor *t, int64_t n)
{
    float *out = block_own(r, (uint64_t)n, sizeof *out);
    for (int64_t i = 0; out && i < n; i++) out[i] = model_float_at(t, i);
    return out;
}

static const char *word(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* A vector of n, also stored as [1, n]. */
static const float *vector(const block_reader *r, const json_t *names, int64_t n)
{
    const st_tensor *t = block_need(r, names, 0, -1, NULL);
    if (!t) return NULL;
    int64_t elements = 1;
    for (int32_t i = 0; i < t->rank; i++) elements *= t->shape[i];
    if (elements != n) {
        char shape[96];
        st_shape_text(t, shape, sizeof shape);
        fmt_fail(r->e, "%.300s: tensor '%.120s' has shape %s, %" PRId64 " elements are expected", t->file, t->name,
                 shape, n);
        return NULL;
    }
    r->out->bytes += t->bytes;
    return block_floats(r, t, n);
}

/* What is multiplied with all of each of n matrices, owned by the block. */
static const float *factors(const block_reader *r, const stored *m, int64_t n)
{
    float *out = block_own(r, (uint64_t)n, sizeof *out);
    for (int64_t i = 0; out && i < n; i++) out[i] = stored_factor(m, i);
    return out;
}

/* A matrix that is not an expert's, whole. */
static int stored_matrix(const block_reader *r, const stored *m, int64_t first, moewe_matrix *out)
{
    if (m->offset)
        return fmt_fail(r->e, "%.300s: tensor '%.120s' is int8 in words of 32 bits, which is supported for experts only",
                        m->t->file, m->t->name);
    if (stored_view(m, first, 1, out, r->e)) return -1;
    return m->factor && !(out->scale.tensor = factors(r, m, 1)) ? -1 : 0;
}

static int matrix(const block_reader *r, const json_t *names, int64_t rows, int64_t cols, moewe_matrix *out)
{
    stored m;
    return block_stored(r, names, 0, (stored_shape){0, rows, cols}, 0, &m) || stored_matrix(r, &m, 0, out) ? -1 : 0;
}

/* The bias, where the checkpoint has one. */
static int optional_bias(const block_reader *r, const char *key, const json_t *o, int64_t n, moewe_matrix *out)
{
    const char *name = word(o, key);
    if (!name || !block_find(r, name, 0)) return 0;
    out->bias = vector(r, json_object_get(o, key), n);
    return out->bias ? 0 : -1;
}

static int hash_table(const block_reader *r)
{
    const char *name = word(json_object_get(r->block, "hash"), "table");
    const st_tensor *t = block_find(r, name, 0);
    int32_t k = r->out->moe.top_k;
    if (!t || t->rank != 2 || t->shape[1] != k || t->shape[0] > INT32_MAX ||
        (t->dtype != ST_I64 && t->dtype != ST_I32)) {
        char shape[96] = "absent";
        if (t) st_shape_text(t, shape, sizeof shape);
        return fmt_fail(r->e, "%.300s: table '%.120s' of layer %d is %s, integers [vocab, %d] are expected", r->c->file,
                        name, (int)r->layer, shape, (int)k);
    }
    int32_t *ids = block_own(r, (uint64_t)(t->shape[0] * k), sizeof *ids);
    if (!ids) return -1;
    for (int64_t i = 0; i < t->shape[0] * k; i++) {
        int64_t wide = 0;
        if (t->dtype == ST_I64)
            memcpy(&wide, (const char *)t->data + 8 * i, 8);
        else {
            int32_t narrow;
            memcpy(&narrow, (const char *)t->data + 4 * i, 4);
            wide = narrow;
        }
        if (wide < 0 || wide >= r->out->moe.n_experts + r->out->moe.n_null)
            return fmt_fail(r->e, "%.300s: '%.120s' holds expert %" PRId64 ", 0 to %d is expected", t->file, t->name,
                            wide, r->out->moe.n_experts + r->out->moe.n_null - 1);
        ids[i] = (int32_t)wide;
    }
    r->out->w.hash_ids = ids;
    r->out->w.hash_rows = (int32_t)t->shape[0];
    return 0;
}

static int open_router(const block_reader *r)
{
    const moewe_config *m = &r->out->moe;
    moewe_weights *w = &r->out->w;
    const json_t *select = json_object_get(r->block, "select_bias");
    int64_t n = (int64_t)m->n_experts + m->n_null;
    double biased = 1;
    if (matrix(r, json_object_get(r->block, "router"), n, m->hidden, &w->router) ||
        optional_bias(r, "router_bias", r->block, n, &w->router))
        return -1;
    if (family_hash_layer(r->c->family, r->layer)) return hash_table(r);
    if (family_constant(r->c->family, r->layer, json_object_get(r->block, "bias_when"), 1, &biased, r->e)) return -1;
    if (biased != 0 && select && json_is_true(json_object_get(r->block, "select_bias_if_there"))) {
        biased = 0;
        for (size_t i = 0; i < json_array_size(select); i++)
            if (block_find(r, json_string_value(json_array_get(select, i)), 0)) biased = 1;
    }
    if (biased != 0 && select && !(w->select_bias = vector(r, select, n))) return -1;
    if (word(r->block, "expert_scale") && !(w->expert_scale = vector(r, json_object_get(r->block, "expert_scale"), n)))
        return -1;
    return 0;
}

static int open_latent(const block_reader *r)
{
    const moewe_config *m = &r->out->moe;
    const json_t *l = json_object_get(r->block, "latent");
    if (!m->latent) return 0;
    return matrix(r, json_object_get(l, "down"), m->latent, m->hidden, &r->out->w.latent_in) ||
                   matrix(r, json_object_get(l, "up"), m->hidden, m->latent, &r->out->w.latent_out) ||
                   optional_bias(r, "down_bias", l, m->latent, &r->out->w.latent_in) ||
                   optional_bias(r, "up_bias", l, m->hidden, &r->out->w.latent_out)
               ? -1
               : 0;
}

static int open_shared(const block_reader *r)
{
    const moewe_config *m = &r->out->moe;
    moewe_weights *w = &r->out->w;
    const json_t *s = json_object_get(r->block, "shared"), *forms = json_object_get(s, "forms"), *form = NULL;
    if (!m->shared_inter) return 0;
    for (size_t i = 0; !form && i < json_array_size(forms); i++) {
        const json_t *f = json_array_get(forms, i);
        if (block_find(r, word(f, "gate_up") ? word(f, "gate_up") : word(f, "up"), 0)) form = f;
    }
    if (!form) form = json_array_get(forms, 0);
    if (word(form, "gate_up")) {
        stored both;
        if (block_stored(r, json_object_get(form, "gate_up"), 0, (stored_shape){0, 2 * (int64_t)m->shared_inter, m->hidden}, 0,
                         &both) ||
            stored_matrix(r, &both, 0, &w->shared_gate) || stored_matrix(r, &both, m->shared_inter, &w->shared_up))
            return -1;
    } else {
        if (word(form, "gate") && matrix(r, json_object_get(form, "gate"), m->shared_inter, m->hidden, &w->shared_gate))
            return -1;
        if (matrix(r, json_object_get(form, "up"), m->shared_inter, m->hidden, &w->shared_up)) return -1;
    }
    if (matrix(r, json_object_get(form, "down"), m->hidden, m->shared_inter, &w->shared_down)) return -1;
    const char *scalar = word(s, "gate_scalar");
    if (!scalar || (json_is_true(json_object_get(s, "gate_if_there")) && !block_find(r, scalar, 0))) return 0;
    return matrix(r, json_object_get(s, "gate_scalar"), 1, m->hidden, &w->shared_scale);
}

static int open_parts(const block_reader *r)
{
    return open_router(r) || block_experts(r) || open_latent(r) || open_shared(r) ? -1 : 0;
}

static int open_unknown(const block_reader *r)
{
    return unknown_decide(r) || open_parts(r) || unknown_check(r) ? -1 : 0;
}

int model_block_open(const model_config *c, const st_store *s, int32_t layer, model_block *out, fmt_error *e)
{
    model_block b;
    block_used used = {NULL, 0, 0};
    const block_reader r = {c, s, layer, family_block(c->family), &b, e, &used};
    char number[16];
    int32_t found;

    memset(&b, 0, sizeof b);
    MOEWE_INIT(b.w);
    snprintf(number, sizeof number, "%d", (int)layer);
    if (model_block_find(c, number, &found, e) || model_layer_moe(c, layer, &b.moe, e)) return -1;
    int failed = json_object_get(r.block, "unknown") ? open_unknown(&r) : open_parts(&r);
    free(used.list);
    if (failed) {
        model_block_close(&b);
        return -1;
    }
    *out = b;
    return 0;
}

void model_block_close(model_block *b)
{
    if (!b) return;
    for (int32_t i = 0; i < b->n_owned; i++) free(b->owned[i]);
    b->n_owned = 0;
}
