/* forward.c - one pass of a batch through the decoder: checks the batch, then embedding, layers, final norm and the
 * logits of the wanted rows.  Must never allocate, and never compute a row from anything but its own sequence. */
#include "internal.h"

/* ---- spreading work over the device's threads ----------------------------------- */

typedef struct spread_task {
    engine_range_fn fn;
    void *ctx;
    int64_t n;
} spread_task;

static void spread_part(void *task, int32_t i, int32_t count)
{
    const spread_task *t = task;
    int64_t from = t->n * i / count, to = t->n * (i + 1) / count;
    if (from < to) t->fn(t->ctx, from, to);
}

moewe_status engine_spread(const engine *g, engine_range_fn fn, void *ctx, int64_t n, int64_t cost)
{
    enum { PART = 16384 }; /* operations, a few microseconds: less is not worth waking a thread */
    spread_task t = {fn, ctx, n};
    int64_t parts = 8 * (int64_t)g->threads, worth = n * cost / PART;
    if (n <= 0) return MOEWE_OK;
    if (parts > worth) parts = worth;
    if (parts > n) parts = n;
    if (parts <= 1 || g->threads == 1) {
        fn(ctx, 0, n);
        return MOEWE_OK;
    }
    return moewe_device_for(g->dev, spread_part, &t, (int32_t)parts);
}

/* ---- rows: embedding, residual, norm ---------------------------------------------- */

typedef struct rows_task {
    const engine *g;
    const int32_t *ids;  /* not NULL: h starts as the embedding */
    const void *add;     /* not NULL: added to h */
    const float *norm;   /* its result goes to out */
    const int32_t *rows; /* which rows, and item i goes to row i of out; NULL = all */
    void *out;
} rows_task;

ENGINE_INLINE void embed_row(const engine *g, int32_t id, void *h, int bf16)
{
    enum { PART = 256 }; /* whole blocks of every dtype */
    float part[PART];
    int32_t dtype = st_dtype_moewe(g->embed->dtype), hidden = g->config.hidden;
    const char *src = (const char *)g->embed->data + (uint64_t)id * moewe_dtype_row_bytes(dtype, hidden);
    for (int32_t at = 0; at < hidden; at += PART, src += moewe_dtype_row_bytes(dtype, PART)) {
        int32_t n = hidden - at < PART ? hidden - at : PART;
        engine_widen(src, dtype, part, n);
        for (int32_t i = 0; i < n; i++) act_store(h, at + i, part[i], bf16);
    }
}

ENGINE_INLINE void rows_range(const rows_task *t, int64_t from, int64_t to, int bf16)
{
    const engine *g = t->g;
    int32_t hidden = g->config.hidden;
    int64_t stride = hidden * (int64_t)(bf16 ? 2 : 4);
    for (int64_t item = from; item < to; item++) {
        int64_t row = t->rows ? t->rows[item] : item;
        void *h = (char *)g->h + row * stride;
        if (t->ids) embed_row(g, t->ids[row], h, bf16);
        if (t->add) {
            const void *add = (const char *)t->add + row * stride;
            for (int32_t i = 0; i < hidden; i++) act_store(h, i, act_load(h, i, bf16) + act_load(add, i, bf16), bf16);
        }
        engine_norm_row(h, t->norm, (char *)t->out + item * stride, hidden, g->config.rms_eps, bf16);
    }
}

ENGINE_CLONES static void rows_f32(void *task, int64_t from, int64_t to)
{
    rows_range(task, from, to, 0);
}

ENGINE_CLONES static void rows_bf16(void *task, int64_t from, int64_t to)
{
    rows_range(task, from, to, 1);
}

static moewe_status rows_run(const engine *g, const rows_task *t, int64_t n)
{
    return engine_spread(g, g->opt.dtype == MOEWE_DTYPE_BF16 ? rows_bf16 : rows_f32, (void *)(uintptr_t)t, n,
                         4 * (int64_t)g->config.hidden);
}

/* ---- dense MLP ---------------------------------------------------------------------- */

ENGINE_INLINE void swiglu_range(const engine *g, int64_t from, int64_t to, int bf16)
{
    for (int64_t i = from; i < to; i++) {
        float v = act_load(g->gate, i, bf16);
        float silu = act_round(v / (1.0f + expf(-v)), bf16);
        act_store(g->gate, i, silu * act_load(g->up, i, bf16), bf16);
    }
}

static void swiglu_f32(void *task, int64_t from, int64_t to)
{
    swiglu_range(task, from, to, 0);
}

static void swiglu_bf16(void *task, int64_t from, int64_t to)
{
    swiglu_range(task, from, to, 1);
}

static moewe_status linear(const engine *g, const moewe_linear *l, int32_t n, const void *x, void *y)
{
    return moewe_linear_run(g->dev, l, n, x, 0, y, 0, NULL);
}

static moewe_status mlp(engine *g, const engine_layer *layer, int32_t n)
{
    moewe_status s;
    if (layer->plan) {
        moewe_io io;
        MOEWE_INIT(io);
        io.n_tokens = n;
        io.x = g->x;
        io.y = g->y;
        return moewe_run_lane(g->workspace, &g->lane, layer->plan, &layer->moe, &io, NULL);
    }
    if ((s = linear(g, &layer->gate, n, g->x, g->gate))) return s;
    if ((s = linear(g, &layer->up, n, g->x, g->up))) return s;
    s = engine_spread(g, g->opt.dtype == MOEWE_DTYPE_BF16 ? swiglu_bf16 : swiglu_f32, g,
                      (int64_t)n * g->config.dense_inter, 16);
    return s ? s : linear(g, &layer->down, n, g->gate, g->y);
}

/* ---- the batch ------------------------------------------------------------------------ */

static int row_check(engine *g, const engine_batch *b, int32_t i, fmt_error *e)
{
    int32_t seq = b->seq[i], pos = b->pos[i], expected;
    if (b->ids[i] < 0 || b->ids[i] >= g->config.vocab)
        return fmt_fail(e, "row %d of the batch has token id %d; the model's vocabulary is 0 to %d", (int)i,
                        (int)b->ids[i], (int)g->config.vocab - 1);
    if (seq < 0 || seq >= g->opt.max_sequences)
        return fmt_fail(e, "row %d of the batch has sequence %d; the engine was opened for sequences 0 to %d", (int)i,
                        (int)seq, (int)g->opt.max_sequences - 1);
    if (pos < 0 || pos >= g->opt.context)
        return fmt_fail(e, "row %d of the batch has position %d; the context of sequence %d has positions 0 to %d",
                        (int)i, (int)pos, (int)seq, (int)g->opt.context - 1);
    expected = g->first[seq] >= 0 ? g->next[seq] : pos == 0 ? 0 : g->length[seq];
    if (pos != expected)
        return fmt_fail(e, "row %d of the batch has position %d of sequence %d; the next position there is %d", (int)i,
                        (int)pos, (int)seq, (int)expected);
    if (g->first[seq] < 0) g->first[seq] = pos;
    g->next[seq] = pos + 1;
    return 0;
}

/* Fills g->wanted; *n_wanted is how many. */
static int batch_check(engine *g, const engine_batch *b, int32_t *n_wanted, fmt_error *e)
{
    int64_t wanted = 0;
    if (b->n_tokens < 0 || b->n_tokens > g->opt.max_batch)
        return fmt_fail(e, "the batch has %d tokens; the engine was opened for 0 to %d", (int)b->n_tokens,
                        (int)g->opt.max_batch);
    if (b->n_tokens && (!b->ids || !b->seq || !b->pos))
        return fmt_fail(e, "the batch has %d tokens but no ids, sequences or positions", (int)b->n_tokens);
    for (int32_t i = 0; i < g->opt.max_sequences; i++) g->first[i] = -1;
    for (int32_t i = 0; i < b->n_tokens; i++) {
        if (row_check(g, b, i, e)) return -1;
        if (!b->want || !b->want[i]) continue;
        if (wanted < g->opt.max_logits) g->wanted[wanted] = i;
        wanted++;
    }
    if (wanted > g->opt.max_logits)
        return fmt_fail(e, "the batch wants logits of %lld rows; the engine was opened for %d (max_logits)",
                        (long long)wanted, (int)g->opt.max_logits);
    *n_wanted = (int32_t)wanted;
    return 0;
}

static moewe_status layers_run(engine *g, const engine_batch *b, int32_t n_wanted)
{
    int32_t n = b->n_tokens, n_layers = g->config.n_layers;
    rows_task rows = {g, b->ids, NULL, g->layers[0].attn_norm, NULL, g->x};
    moewe_status s = rows_run(g, &rows, n);

    rows.ids = NULL;
    rows.add = g->y;
    for (int32_t i = 0; i < n_layers && !s; i++) {
        const engine_layer *l = &g->layers[i];
        if ((s = linear(g, &l->q, n, g->x, g->q)) || (s = linear(g, &l->k, n, g->x, g->k)) ||
            (s = linear(g, &l->v, n, g->x, g->v)) || (s = engine_attention(g, i, b)) ||
            (s = linear(g, &l->o, n, g->a, g->y)))
            break;
        rows.norm = l->mlp_norm;
        if ((s = rows_run(g, &rows, n)) || (s = mlp(g, l, n)) || i + 1 == n_layers) break;
        rows.norm = g->layers[i + 1].attn_norm;
        s = rows_run(g, &rows, n);
    }
    if (s || !n_wanted) return s;
    rows.norm = g->final_norm;
    rows.rows = g->wanted;
    rows.out = g->xw;
    s = rows_run(g, &rows, n_wanted);
    return s ? s : linear(g, &g->lm_head, n_wanted, g->xw, g->logits);
}

int engine_forward(engine *g, const engine_batch *b, fmt_error *e)
{
    int32_t n_wanted = 0;
    if (batch_check(g, b, &n_wanted, e)) return -1;
    if (!b->n_tokens) return 0;

    /* A run that fails leaves the cache in between: those sequences then hold nothing. */
    for (int32_t i = 0; i < g->opt.max_sequences; i++)
        if (g->first[i] >= 0) g->length[i] = 0;
    if (layers_run(g, b, n_wanted))
        return fmt_fail(e, "forward pass of %d tokens: %s", (int)b->n_tokens, moewe_last_error());
    for (int32_t i = 0; i < g->opt.max_sequences; i++)
        if (g->first[i] >= 0) g->length[i] = g->next[i];
    return 0;
}

const float *engine_logits(const engine *g, int32_t wanted_index)
{
    if (wanted_index < 0 || wanted_index >= g->opt.max_logits) return NULL;
    return g->logits + (int64_t)wanted_index * g->config.vocab;
}
