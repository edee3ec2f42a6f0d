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

/* gate and up have one dtype, down may have another; all matrices of a list are stored alike. */
static int same_dtype(const block_reader *r, const stored *m, int down, const stored *first)
{
    int32_t *dtype = down ? &r->out->down_dtype : &r->out->w_dtype;
    char has[STORED_WORDS_CAP], needs[STORED_WORDS_CAP];
    if (!*dtype) *dtype = m->dtype;
    if (*dtype == m->dtype && (!first || stored_alike(m, first))) return 0;
    if (*dtype == m->dtype) {
        stored_words(m, has);
        stored_words(first, needs);
        return fmt_fail(r->e, "%.300s: tensor '%.120s' is stored as %s, %s is expected as in '%.120s'", m->t->file, m->t->name,
                        has, needs, first->t->name);
    }
    return fmt_fail(r->e, "%.300s: tensor '%.120s' has dtype %s, %s is expected as in the block's other experts",
                    m->t->file, m->t->name, st_dtype_name(m->t->dtype), moewe_dtype_name(*dtype));
}

/* One tensor of all experts, n * shape.rows rows. */
static int expert_tensor(const block_reader *r, const json_t *name, int64_t rows, int64_t cols, int down, stored *out)
{
    int64_t n = r->out->moe.n_experts;
    return block_stored(r, name, 0, (stored_shape){n, rows, cols}, 1, out) || same_dtype(r, out, down, NULL) ? -1 : 0;
}

/* Its rows from first on, every step-th, as a matrix of each expert. */
static int expert_view(const block_reader *r, const stored *m, int64_t first, int64_t step, moewe_matrix *out)
{
    int64_t n = r->out->moe.n_experts;
    if (m->offset)
        return fmt_fail(r->e, "%.300s: tensor '%.120s' is int8 in words of 32 bits, which is supported where each expert has its "
                              "own tensors",
                        m->t->file, m->t->name);
    if (stored_view(m, first, step, out, r->e)) return -1;
    if (!m->factor) return 0;
    float *factors = block_own(r, (uint64_t)n, sizeof *factors);
    for (int64_t i = 0; factors && i < n; i++) factors[i] = stored_factor(m, i);
    out->scale.tensor = factors;
    return factors ? 0 : -1;
}

/* ---- a tensor for each expert ------------------------------------------------------------------------------------- */

/* Tables of one kind of matrix, an entry an expert. */
typedef struct expert_lists {
    const void **elements, **scales;
    float *factors;
} expert_lists;

/* Copies what bytes with an offset stand for. */
static int convert(const block_reader *r, const stored *m, int32_t n, void **copies, const void **out, int32_t i)
{
    uint64_t each = (uint64_t)m->row_bytes * (uint64_t)m->shape.rows;
    if (!*copies && !(*copies = block_own(r, (uint64_t)n, each))) return -1;
    char *to = (char *)*copies + (uint64_t)i * each;
    stored_convert(m, to);
    *out = to;
    return 0;
}

static int one_kind(const block_reader *r, const json_t *names, int64_t rows, int64_t cols, int down, moewe_matrix *to)
{
    int32_t n = r->out->moe.n_experts;
    expert_lists l = {block_own(r, (uint64_t)n, sizeof *l.elements), NULL, NULL};
    stored first, m;
    void *copies = NULL;
    if (!l.elements) return -1;
    for (int32_t i = 0; i < n; i++) {
        if (block_stored(r, names, i, (stored_shape){0, rows, cols}, 1, &m) || same_dtype(r, &m, down, i ? &first : NULL))
            return -1;
        if (!i) {
            first = m;
            if (stored_view(&m, 0, 1, to, r->e)) return -1;
            if (m.scale.data && !(l.scales = block_own(r, (uint64_t)n, sizeof *l.scales))) return -1;
            if (m.factor && !(l.factors = block_own(r, (uint64_t)n, sizeof *l.factors))) return -1;
        }
        l.elements[i] = m.t->data;
        if (m.offset && convert(r, &m, n, &copies, &l.elements[i], i)) return -1;
        if (l.scales) l.scales[i] = m.scale.data;
        if (l.factors) l.factors[i] = stored_factor(&m, 0);
    }
    to->data = to->scale.data = NULL;
    to->expert_stride = to->scale.expert_stride = 0;
    to->experts = l.elements;
    to->scale.experts = l.scales;
    to->scale.tensor = l.factors;
    return 0;
}

static int per_expert(const block_reader *r, const json_t *form)
{
    const moewe_config *m = &r->out->moe;
    moewe_weights *w = &r->out->w;
    int64_t inter = m->inter, width = width_of(m);
    if (get(form, "gate") && one_kind(r, get(form, "gate"), inter, width, 0, &w->gate)) return -1;
    return one_kind(r, get(form, "up"), inter, width, 0, &w->up) || one_kind(r, get(form, "down"), width, inter, 1, &w->down)
               ? -1
               : 0;
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

/* The rows and columns of a plain tensor that stores them the other way round. */
static int turned(const block_reader *r, const stored *m, int64_t first, int64_t step, moewe_matrix *out)
{
    int64_t each = moewe_dtype_bytes(m->dtype), rows = m->shape.cols, cols = m->shape.rows;
    if (m->scale.data || m->factor || !each)
        return fmt_fail(r->e, "%.300s: tensor '%.120s' is quantised and stored with rows and columns exchanged, which is not "
                              "supported",
                        m->t->file, m->t->name);
    memset(out, 0, sizeof *out);
    out->dtype = m->dtype;
    out->data = (const char *)m->t->data + first * each;
    out->row_stride = step * each;
    out->col_stride = rows * each;
    out->expert_stride = rows * cols * each;
    return 0;
}

/* gate and up in one [experts][rows][cols], or [experts][cols][rows] when transposed. */
static int fused(const block_reader *r, const json_t *form)
{
    const moewe_config *m = &r->out->moe;
    moewe_weights *w = &r->out->w;
    const char *order = word(form, "order");
    int alone = strcmp(order, "none") == 0, in_turns = strcmp(order, "interleaved") == 0;
    int64_t inter = m->inter, cols = width_of(m), rows = alone ? inter : 2 * inter;
    int64_t up_first = alone ? 0 : in_turns ? 1 : inter, step = in_turns ? 2 : 1;
    const st_tensor *found = block_find(r, word(form, "gate_up"), 0);
    /* codes of gpt-oss are rows of the matrix, though its plain weights are not */
    int transposed = st_dtype_moewe(found->dtype) && is_transposed(r, form, found, rows, cols);
    int (*view)(const block_reader *, const stored *, int64_t, int64_t, moewe_matrix *) = transposed ? turned : expert_view;
    stored both, down;
    if (expert_tensor(r, get(form, "gate_up"), transposed ? cols : rows, transposed ? rows : cols, 0, &both) ||
        expert_tensor(r, get(form, "down"), transposed ? inter : cols, transposed ? cols : inter, 1, &down) ||
        view(r, &both, up_first, step, &w->up) || (!alone && view(r, &both, 0, step, &w->gate)))
        return -1;
    return view(r, &down, 0, 1, &w->down);
}

/* gate, up and down in a tensor each: [experts][inter][width] and the like, or flat [experts * inter][width]. */
static int separate(const block_reader *r, const json_t *form, int flat)
{
    const moewe_config *m = &r->out->moe;
    int64_t n = m->n_experts, inter = m->inter, cols = width_of(m);
    const struct {
        const char *key;
        int64_t rows, cols;
        moewe_matrix *to;
    } kinds[] = {{"gate", inter, cols, &r->out->w.gate}, {"up", inter, cols, &r->out->w.up}, {"down", cols, inter, &r->out->w.down}};
    for (int k = 0; k < 3; k++) {
        stored t;
        if (!flat) {
            if (expert_tensor(r, get(form, kinds[k].key), kinds[k].rows, kinds[k].cols, k == 2, &t) ||
                expert_view(r, &t, 0, 1, kinds[k].to))
                return -1;
            continue;
        }
        if (block_stored(r, get(form, kinds[k].key), 0, (stored_shape){0, n * inter, cols}, 1, &t) ||
            same_dtype(r, &t, k == 2, NULL))
            return -1;
        if (t.scale.data || t.factor)
            return fmt_fail(r->e, "%.300s: tensor '%.120s' is quantised with all experts' rows in one matrix, which is not "
                                  "supported",
                            t.t->file, t.t->name);
        t.shape = (stored_shape){n, inter, cols};
        /* down is stored as [inter][width] and read the other way */
        if (k == 2 ? turned(r, &t, 0, 1, kinds[k].to) : expert_view(r, &t, 0, 1, kinds[k].to)) return -1;
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

/* The tensors that were taken since the block had so many. */
static int keep_tensors(const block_reader *r, size_t before)
{
    model_block *b = r->out;
    b->n_expert_tensors = r->used->n - before;
    b->experts = block_own(r, b->n_expert_tensors, sizeof *b->experts);
    if (!b->experts) return -1;
    memcpy(b->experts, r->used->list + before, b->n_expert_tensors * sizeof *b->experts);
    return 0;
}

int block_experts(const block_reader *r)
{
    const json_t *form = find_form(r, r->e);
    const char *kind = word(form, "form");
    size_t before = r->used->n;
    int failed;
    if (!form) return -1;
    if (strcmp(kind, "stacked") == 0)
        failed = block_find(r, word(form, "gate_up"), 0) ? fused(r, form)
                                                         : !block_need(r, get(form, "gate_up"), 0, -1, NULL);
    else if (strcmp(kind, "per_expert") == 0)
        failed = per_expert(r, form);
    else
        failed = separate(r, form, strcmp(kind, "flat") == 0);
    return failed || keep_tensors(r, before) || biases(r, form) ? -1 : 0;
}
