/* quantize_model.c - which matrices of a checkpoint are quantised, and how one is read and shared out over threads.
 * At any time it holds one matrix as f32 and its codes, and views of everything else. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "quantize_job.h"

static int no_memory(const quantize_job *j, uint64_t bytes)
{
    return fmt_fail(j->e, "%.300s: no memory for %" PRIu64 " bytes of a matrix that is quantised", j->ask->dir, bytes);
}

/* ---- the list ------------------------------------------------------------------------------------------------------ */

static int by_address(const void *a, const void *b)
{
    const st_tensor *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

int quantize_is_taken(const quantize_job *j, const st_tensor *t)
{
    return j->n_taken && bsearch(&t, j->taken, j->n_taken, sizeof *j->taken, by_address) != NULL;
}

/* The type of a matrix: that which was asked for, or Q8_0 where a row is no whole number of its blocks. */
static int choose_type(const quantize_job *j, quantize_matrix *m)
{
    m->type = j->ask->type;
    if (m->cols % m->type->multiple == 0) return 0;
    if (m->type->multiple == 256) m->type = quantize_type_find("q8_0", j->e);
    if (m->type && m->cols % m->type->multiple == 0) {
        j->report->other_type++;
        return 0;
    }
    return fmt_fail(j->e, "%.300s: rows of %.120s have %" PRId64 " elements, type %s needs a multiple of %d", j->ask->dir, m->name,
                    m->cols, j->ask->type->name, (int)j->ask->type->multiple);
}

/* Takes name over. */
static int add(quantize_job *j, char *name, const moewe_matrix *m, int32_t expert, int64_t rows, int64_t cols)
{
    if (j->n == j->room) {
        size_t room = j->room ? 2 * j->room : 256;
        quantize_matrix *more = realloc(j->list, room * sizeof *more);
        if (!more) {
            free(name);
            return no_memory(j, room * sizeof *more);
        }
        j->list = more;
        j->room = room;
    }
    j->list[j->n] = (quantize_matrix){name, m, expert, rows, cols, NULL};
    if (!name) return no_memory(j, 1);
    if (m->dtype > MOEWE_DTYPE_BF16)
        fmt_fail(j->e, "%.300s: %.120s is quantised already (%s), F32, BF16 or F16 is expected", j->ask->dir, name,
                 moewe_dtype_name(m->dtype));
    if (m->dtype > MOEWE_DTYPE_BF16 || choose_type(j, &j->list[j->n])) {
        free(name);
        return -1;
    }
    j->report->before += (uint64_t)rows * (uint64_t)cols * moewe_dtype_bytes(m->dtype);
    j->n++;
    return 0;
}

/* The form in which each expert has its own tensors, with names that other programs know. */
static const json_t *own_tensors(const quantize_job *j)
{
    const json_t *forms = json_object_get(family_block(j->c->family), "experts");
    for (size_t i = 0; i < json_array_size(forms); i++) {
        const json_t *form = json_array_get(forms, i);
        if (strcmp(json_string_value(json_object_get(form, "form")), "per_expert") == 0) return form;
    }
    return NULL;
}

/* What stands in the file before the names of a block's tensors: the first tensor's name without the part that the
 * descriptor has. */
static int stem_of(const quantize_job *j, const model_block *b, char stem[MODEL_NAME_CAP])
{
    static const char *const keys[] = {"gate_up", "gate", "up"};
    const json_t *forms = json_object_get(family_block(j->c->family), "experts");
    const char *name = b->experts[0]->name;
    size_t n = strlen(name);
    for (size_t i = 0; i < json_array_size(forms); i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const char *part = json_string_value(json_object_get(json_array_get(forms, i), keys[k]));
            char filled[MODEL_NAME_CAP];
            if (!part) continue;
            model_name_fill(part, 0, filled);
            size_t length = strlen(filled);
            if (n <= length || n - length >= MODEL_NAME_CAP || strcmp(name + n - length, filled) != 0) continue;
            snprintf(stem, MODEL_NAME_CAP, "%.*s", (int)(n - length), name);
            return 0;
        }
    return fmt_fail(j->e, "%.300s: nothing says what tensor '%.120s' would be called if its experts had their own", j->ask->dir,
                    name);
}

static int add_block(quantize_job *j, const model_block *b)
{
    const json_t *form = own_tensors(j);
    const moewe_config *m = &b->moe;
    int64_t width = m->latent ? m->latent : m->hidden;
    const struct {
        const char *key;
        const moewe_matrix *m;
        int64_t rows, cols;
    } kinds[] = {{"gate", &b->w.gate, m->inter, width}, {"up", &b->w.up, m->inter, width}, {"down", &b->w.down, width, m->inter}};
    char stem[MODEL_NAME_CAP], rest[MODEL_NAME_CAP];
    if (!form)
        return fmt_fail(j->e, "%.300s: %s models keep all experts in one tensor, and no form is known in which that is "
                              "quantised to %s",
                        j->c->file, j->c->model_type, j->ask->type->name);
    if (stem_of(j, b, stem)) return -1;
    for (int k = 0; k < 3; k++) {
        if (!kinds[k].m->data && !kinds[k].m->experts) continue;
        for (int32_t i = 0; i < m->n_experts; i++) {
            size_t bytes = 2 * MODEL_NAME_CAP;
            char *name = malloc(bytes);
            model_name_fill(json_string_value(json_object_get(form, kinds[k].key)), i, rest);
            if (name) snprintf(name, bytes, "%s%s", stem, rest);
            if (add(j, name, kinds[k].m, i, kinds[k].rows, kinds[k].cols)) return -1;
        }
    }
    return 0;
}

static int take_tensors(quantize_job *j, const st_tensor *const *t, size_t n)
{
    const st_tensor **more = realloc(j->taken, (j->n_taken + n + 1) * sizeof *more);
    if (!more) return no_memory(j, (j->n_taken + n + 1) * sizeof *more);
    j->taken = more;
    memcpy(j->taken + j->n_taken, t, n * sizeof *t);
    j->n_taken += n;
    return 0;
}

static int list_experts(quantize_job *j)
{
    j->blocks = calloc((size_t)j->c->n_layers, sizeof *j->blocks);
    if (!j->blocks) return no_memory(j, (uint64_t)j->c->n_layers * sizeof *j->blocks);
    for (int32_t l = 0; l < j->c->n_layers; l++) {
        model_block *b = &j->blocks[j->n_blocks];
        if (!j->c->layer_is_moe[l]) continue;
        if (model_block_open(j->c, j->s, l, b, j->e)) return -1;
        j->n_blocks++;
        if (add_block(j, b) || take_tensors(j, b->experts, b->n_expert_tensors)) return -1;
    }
    return 0;
}

/* A projection that the engine runs, where the layer has it. */
static int list_part(quantize_job *j, model_part part, int32_t layer)
{
    int absent = 0;
    model_matrix *m = &j->dense[j->n_dense];
    if (model_part_matrix(j->c, j->s, part, layer, m, &absent, j->e)) return absent ? 0 : -1;
    j->n_dense++;
    return add(j, strdup(m->t->name), &m->m, 0, m->rows, m->cols) || take_tensors(j, &m->t, 1) ? -1 : 0;
}

static int list_dense(quantize_job *j)
{
    static const model_part parts[] = {MODEL_Q,          MODEL_K,        MODEL_V,         MODEL_O,
                                       MODEL_DENSE_GATE, MODEL_DENSE_UP, MODEL_DENSE_DOWN};
    enum { PARTS = sizeof parts / sizeof *parts };
    if (j->ask->experts_only || !j->c->engine) return 0;
    j->dense = calloc((size_t)j->c->n_layers * PARTS + 1, sizeof *j->dense);
    if (!j->dense) return no_memory(j, (uint64_t)j->c->n_layers * PARTS * sizeof *j->dense);
    for (int32_t l = 0; l < j->c->n_layers; l++)
        for (int p = 0; p < PARTS; p++)
            if (list_part(j, parts[p], l)) return -1;
    return list_part(j, MODEL_LM_HEAD, 0);
}

/* ---- one matrix ---------------------------------------------------------------------------------------------------- */

static float element(const char *p, int32_t dtype)
{
    st_tensor one = {.dtype = dtype == MOEWE_DTYPE_F32 ? ST_F32 : dtype == MOEWE_DTYPE_BF16 ? ST_BF16 : ST_F16, .data = p};
    return model_float_at(&one, 0);
}

static void row_floats(const quantize_matrix *m, int64_t row, float *out)
{
    const moewe_matrix *v = m->m;
    const char *base = v->experts ? v->experts[m->expert] : (const char *)v->data + m->expert * v->expert_stride;
    const char *from = base + row * v->row_stride;
    for (int64_t c = 0; c < m->cols; c++) out[c] = element(from + c * v->col_stride, v->dtype);
}

/* Parts of the matrix, shared out. */
typedef struct parts {
    const quantize_job *j;
    const quantize_matrix *m;
    int64_t height;
    void *codes;
    int in_range; /* cleared by whoever finds something else */
} parts;

static void range_of(const parts *p, int32_t i, int64_t *from, int64_t *n)
{
    *from = i * p->height;
    *n = p->m->rows - *from < p->height ? p->m->rows - *from : p->height;
}

static void read_part(void *task, int32_t i, int32_t count)
{
    parts *p = task;
    int64_t from, n;
    int in_range = 1;
    float most = quantize_most(p->m->type);
    (void)count;
    range_of(p, i, &from, &n);
    float *w = p->j->w + from * p->m->cols;
    for (int64_t r = 0; r < n; r++) row_floats(p->m, from + r, w + r * p->m->cols);
    for (int64_t k = 0; k < n * p->m->cols; k++) in_range &= fabsf(w[k]) <= most; /* which no NaN is */
    if (!in_range) __atomic_store_n(&p->in_range, 0, __ATOMIC_RELAXED);
}

static void quantize_part(void *task, int32_t i, int32_t count)
{
    const parts *p = task;
    const quantize_type *t = p->m->type;
    int64_t from, n;
    (void)count;
    range_of(p, i, &from, &n);
    quantize_rows(t, p->j->w + from * p->m->cols, n, p->m->cols, p->j->factor,
                  (uint8_t *)p->codes + quantize_code_bytes(t, from, p->m->cols),
                  p->j->scales + quantize_scale_bytes(t, from, p->m->cols));
}

static int share(const quantize_job *j, moewe_task_fn fn, parts *p)
{
    int32_t count = (int32_t)((p->m->rows + p->height - 1) / p->height);
    if (j->ask->device) return moewe_device_for(j->ask->device, fn, p, count) ? fmt_fail(j->e, "%s", moewe_last_error()) : 0;
    for (int32_t i = 0; i < count; i++) fn(p, i, count);
    return 0;
}

/* old, or a larger one in its place; NULL when there is no memory, and old is as it was. */
static void *room_for(const quantize_job *j, void *old, uint64_t *room, uint64_t bytes)
{
    if (old && bytes <= *room) return old;
    void *more = bytes < SIZE_MAX ? realloc(old, (size_t)bytes + 1) : NULL;
    if (more)
        *room = bytes;
    else
        no_memory(j, bytes);
    return more;
}

/* Buffers for a matrix. */
static int make_room(quantize_job *j, uint64_t floats, uint64_t code_bytes, uint64_t scale_bytes)
{
    void *w = room_for(j, j->w, &j->w_room, floats * sizeof(float));
    if (w) j->w = w;
    void *codes = w ? room_for(j, j->codes, &j->codes_room, code_bytes) : NULL;
    if (codes) j->codes = codes;
    void *scales = codes ? room_for(j, j->scales, &j->scales_room, scale_bytes) : NULL;
    if (scales) j->scales = scales;
    return scales ? 0 : -1;
}

/* Some number of the matrix, which is held, is. */
static int out_of_range(const quantize_job *j, const quantize_matrix *m)
{
    const float *w = j->w;
    float most = quantize_most(m->type);
    while (fabsf(*w) <= most) w++;
    return fmt_fail(j->e, "%.300s: %.120s holds %g, type %s takes numbers of at most %g in magnitude", j->ask->dir, m->name,
                    (double)*w, m->type->name, (double)most);
}

int quantize_take(quantize_job *j, size_t i, void *codes)
{
    const quantize_matrix *m = &j->list[i];
    uint64_t code_bytes = quantize_code_bytes(m->type, m->rows, m->cols);
    uint64_t scale_bytes = quantize_scale_bytes(m->type, m->rows, m->cols);
    parts p = {.j = j, .m = m, .height = m->type->rows > 1 ? m->type->rows : 16, .in_range = 1};
    if (make_room(j, (uint64_t)m->rows * (uint64_t)m->cols, codes ? 0 : code_bytes, scale_bytes)) return -1;
    p.codes = codes ? codes : j->codes;
    if (share(j, read_part, &p)) return -1;
    if (!p.in_range) return out_of_range(j, m);
    j->factor = quantize_factor(m->type, j->w, m->rows * m->cols);
    if (share(j, quantize_part, &p)) return -1;
    j->held = i;
    j->done++;
    j->report->after += code_bytes + scale_bytes;
    if (j->ask->progress) j->ask->progress(j->ask->ctx, j->done, j->n);
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

/* What is there is never replaced: it may be the checkpoint that is read.  Of folders quantize_store.c sees to it. */
static int check_out(const quantize_job *j)
{
    struct stat st;
    if (!*j->ask->out)
        return fmt_fail(j->e, "the name of what is to be written is empty, a %s is expected",
                        quantize_is_gguf(j->ask->type) ? "file" : "folder");
    if (!quantize_is_gguf(j->ask->type) || lstat(j->ask->out, &st) != 0) return 0;
    return fmt_fail(j->e, "%.300s: is there already, a name of nothing is expected for a GGUF file", j->ask->out);
}

static int run(quantize_job *j)
{
    if (check_out(j)) return -1;
    /* A GGUF file says of each matrix what it is, plain ones too: add looks at those that matter. */
    if (j->c->quant.quantized && strcmp(j->c->quant.method, "gguf") != 0)
        return fmt_fail(j->e, "%.300s: is quantised already (quant_method '%.40s'), a plain checkpoint is expected", j->c->file,
                        j->c->quant.method);
    if (list_experts(j) || list_dense(j)) return -1;
    if (!j->n)
        return fmt_fail(j->e, "%.300s: has no experts and no projections to quantise", j->c->file);
    qsort(j->taken, j->n_taken, sizeof *j->taken, by_address);
    j->held = j->n;
    j->report->matrices = j->n;
    return quantize_is_gguf(j->ask->type) ? quantize_write_gguf(j) : quantize_write_store(j);
}

int quantize_model(const model_config *c, const st_store *s, const quantize_ask *ask, quantize_report *report, fmt_error *e)
{
    quantize_job j = {.c = c, .s = s, .ask = ask, .report = report, .e = e};
    memset(report, 0, sizeof *report);
    int failed = run(&j);
    for (size_t i = 0; i < j.n_blocks; i++) model_block_close(&j.blocks[i]);
    for (size_t i = 0; i < j.n; i++) free(j.list[i].name);
    free(j.blocks);
    free(j.dense);
    free(j.list);
    free(j.taken);
    free(j.w);
    free(j.codes);
    free(j.scales);
    return failed ? -1 : 0;
}
