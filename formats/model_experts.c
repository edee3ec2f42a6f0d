/* model_experts.c - the forms in which checkpoints store experts, as views: a tensor for each, stacked, fused
 * gate and up in halves or in turns, transposed, flat.  Never copies a weight. */
#include <stdio.h>
#include <string.h>

#include "model_internal.h"

static const json_t *get(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static const char *word(const json_t *o, const char *key)
{
    return json_string_value(get(o, key));
}

static int32_t width_of(const moewe_config *m)
{
    return m->latent ? m->latent : m->hidden;
}

/* All matrices of gate, up and down share one dtype: the first tensor sets it. */
static int same_dtype(const block_reader *r, const st_tensor *t)
{
    int32_t dtype = st_dtype_moewe(t->dtype);
    r->out->bytes += t->bytes;
    if (!r->out->w_dtype) r->out->w_dtype = dtype;
    if (r->out->w_dtype == dtype) return 0;
    return fmt_fail(r->e, "%.300s: tensor '%.120s' has dtype %s, %s is expected as in the block's other experts",
                    t->file, t->name, st_dtype_name(t->dtype), moewe_dtype_name(r->out->w_dtype));
}

/* One tensor of all experts. */
static const st_tensor *need_expert_tensor(const block_reader *r, const json_t *name, int32_t rank,
                                           const int64_t *shape)
{
    const st_tensor *t = block_need(r, name, 0, rank, shape);
    return t && same_dtype(r, t) ? NULL : t;
}

/* ---- a tensor for each expert ------------------------------------------------------------------------------------- */

static int per_expert(const block_reader *r, const json_t *form)
{
    const moewe_config *m = &r->out->moe;
    const int64_t wide[2] = {m->inter, width_of(m)}, tall[2] = {width_of(m), m->inter};
    const struct {
        const char *key;
        const int64_t *shape;
        moewe_matrix *to;
    } kinds[] = {{"gate", wide, &r->out->w.gate}, {"up", wide, &r->out->w.up}, {"down", tall, &r->out->w.down}};
    const void **list = block_own(r, (uint64_t)m->n_experts * 3, sizeof *list);
    if (!list) return -1;
    for (int k = 0; k < 3; k++, list += m->n_experts) {
        if (!get(form, kinds[k].key)) continue;
        for (int32_t i = 0; i < m->n_experts; i++) {
            const st_tensor *t = block_need(r, get(form, kinds[k].key), i, 2, kinds[k].shape);
            if (!t || same_dtype(r, t)) return -1;
            list[i] = t->data;
        }
        kinds[k].to->experts = list;
    }
    return 0;
}

/* ---- all experts in one tensor ---------------------------------------------------------------------------------------- */

/* Saved either way in different releases: the shape of gate and up tells, and where both of its extents are the same,
 * that of down does, whose extents then differ. */
static int is_transposed(const block_reader *r, const json_t *form, const st_tensor *t, int64_t rows, int64_t cols)
{
    const st_tensor *down = block_find(r, word(form, "down"), 0);
    if (!word(form, "transposed")) return json_is_true(get(form, "transposed"));
    if (rows != cols || !down) return t->rank == 3 && !(t->shape[1] == rows && t->shape[2] == cols);
    return down->rank == 3 && down->shape[2] == cols;
}

/* gate and up in one [experts][rows][cols], or [experts][cols][rows] when transposed. */
static int fused(const block_reader *r, const json_t *form)
{
    const moewe_config *m = &r->out->moe;
    const char *order = word(form, "order");
    int alone = strcmp(order, "none") == 0, in_turns = strcmp(order, "interleaved") == 0;
    int64_t n = m->n_experts, inter = m->inter, cols = width_of(m), rows = alone ? inter : 2 * inter;
    const st_tensor *first = block_find(r, word(form, "gate_up"), 0);
    int transposed = is_transposed(r, form, first, rows, cols);
    const int64_t up_shape[] = {n, transposed ? cols : rows, transposed ? rows : cols};
    const int64_t down_shape[] = {n, transposed ? inter : cols, transposed ? cols : inter};
    const st_tensor *up = need_expert_tensor(r, get(form, "gate_up"), 3, up_shape);
    const st_tensor *down = up ? need_expert_tensor(r, get(form, "down"), 3, down_shape) : NULL;
    if (!down) return -1;

    moewe_weights *w = &r->out->w;
    int64_t each = (int64_t)st_dtype_bytes(up->dtype), row = transposed ? each : cols * each;
    w->up.data = (const char *)up->data + (alone ? 0 : in_turns ? row : inter * row);
    w->up.row_stride = in_turns ? 2 * row : row;
    w->up.col_stride = transposed ? rows * each : each;
    w->up.expert_stride = rows * cols * each;
    if (!alone) {
        w->gate = w->up;
        w->gate.data = up->data;
    }
    w->down.data = down->data;
    w->down.row_stride = transposed ? each : inter * each;
    w->down.col_stride = transposed ? cols * each : each;
    w->down.expert_stride = cols * inter * each;
    return 0;
}

/* gate, up and down in a tensor each: [experts][inter][width] and the like, or flat [experts * inter][width]. */
static int separate(const block_reader *r, const json_t *form, int flat)
{
    const moewe_config *m = &r->out->moe;
    int64_t n = m->n_experts, inter = m->inter, cols = width_of(m);
    const int64_t flat_shape[] = {n * inter, cols}, wide[] = {n, inter, cols}, tall[] = {n, cols, inter};
    const struct {
        const char *key;
        const int64_t *shape;
        moewe_matrix *to;
    } kinds[] = {{"gate", wide, &r->out->w.gate}, {"up", wide, &r->out->w.up}, {"down", tall, &r->out->w.down}};
    for (int k = 0; k < 3; k++) {
        const st_tensor *t =
            need_expert_tensor(r, get(form, kinds[k].key), flat ? 2 : 3, flat ? flat_shape : kinds[k].shape);
        if (!t) return -1;
        kinds[k].to->data = t->data;
        if (flat && k == 2) { /* stored as [inter][width], read the other way */
            int64_t each = (int64_t)st_dtype_bytes(t->dtype);
            kinds[k].to->row_stride = each;
            kinds[k].to->col_stride = cols * each;
            kinds[k].to->expert_stride = inter * cols * each;
        }
    }
    return 0;
}

/* ---- biases --------------------------------------------------------------------------------------------------------- */

static int biases(const block_reader *r, const json_t *form)
{
    const json_t *names = get(r->block, "expert_bias");
    const moewe_config *m = &r->out->moe;
    int64_t n = m->n_experts, inter = m->inter, width = width_of(m);
    if (!names) return 0;
    const st_tensor *up = block_need(r, get(names, "gate_up"), 0, 2, (const int64_t[]){n, 2 * inter});
    const st_tensor *down = up ? block_need(r, get(names, "down"), 0, 2, (const int64_t[]){n, width}) : NULL;
    float *both = down ? block_floats(r, up, n * 2 * inter) : NULL;
    float *split = both ? block_own(r, (uint64_t)(n * 2 * inter), sizeof *split) : NULL;
    float *d = split ? block_floats(r, down, n * width) : NULL;
    if (!d) return -1;
    int in_turns = strcmp(word(form, "order"), "interleaved") == 0;
    for (int64_t e = 0; e < n; e++)
        for (int64_t i = 0; i < inter; i++) {
            const float *from = both + e * 2 * inter;
            split[e * inter + i] = from[in_turns ? 2 * i : i];
            split[(n + e) * inter + i] = from[in_turns ? 2 * i + 1 : inter + i];
        }
    r->out->w.gate.bias = split;
    r->out->w.up.bias = split + n * inter;
    r->out->w.down.bias = d;
    return 0;
}

/* ---- forms ------------------------------------------------------------------------------------------------------------ */

/* A tensor by which the form is recognised. */
static const st_tensor *mark_of(const block_reader *r, const json_t *form)
{
    static const char *const keys[] = {"gate_up", "gate", "up"};
    const st_tensor *t = NULL;
    for (int i = 0; !t && i < 3; i++)
        if (word(form, keys[i])) t = block_find(r, word(form, keys[i]), 0);
    return t;
}

static const json_t *find_form(const block_reader *r, fmt_error *e)
{
    const json_t *forms = get(r->block, "experts"), *found = NULL;
    for (size_t i = 0; i < json_array_size(forms); i++) {
        const json_t *form = json_array_get(forms, i);
        const st_tensor *t = mark_of(r, form);
        if (!t) continue;
        if (found) {
            fmt_fail(e, "%.300s: holds both '%.120s' and '%.120s', one form of the experts is expected", t->file,
                     mark_of(r, found)->name, t->name);
            return NULL;
        }
        found = form;
    }
    /* None is there: the first form's complaint names the tensor that is missing. */
    return found ? found : json_array_get(forms, 0);
}

int block_experts(const block_reader *r)
{
    const json_t *form = find_form(r, r->e);
    const char *kind = word(form, "form");
    int failed;
    if (!form) return -1;
    if (strcmp(kind, "stacked") == 0)
        failed = block_find(r, word(form, "gate_up"), 0) ? fused(r, form)
                                                         : !block_need(r, get(form, "gate_up"), 0, -1, NULL);
    else if (strcmp(kind, "per_expert") == 0)
        failed = per_expert(r, form);
    else
        failed = separate(r, form, strcmp(kind, "flat") == 0);
    if (failed || biases(r, form)) return -1;
    moewe_weights *w = &r->out->w;
    w->gate.dtype = w->up.dtype = w->down.dtype = r->out->w_dtype;
    return 0;
}
