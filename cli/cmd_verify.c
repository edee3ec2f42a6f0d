/* cmd_verify.c - moewe verify: blocks of a checkpoint against recorded inputs and outputs.  The allowed
 * error is computed in one place, allowed_error, from the dtypes and the lengths of the sums. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "args.h"
#include "block.h"

enum { ROWS_ALL, ROWS_ONE };
static const args_word rows_words[] = {{"all", ROWS_ALL}, {"one", ROWS_ONE}, {NULL, 0}};

typedef struct verify_pair {
    int32_t layer;
    const st_tensor *input, *output;
} verify_pair;

typedef struct verify_job {
    cli_common common;
    const char *reference_path, *tokens;
    int32_t rows;
    cli_model model;
    st_store *reference, *token_store;
    const st_tensor *token_tensor;
    verify_pair *pairs;
    size_t n_pairs;
} verify_job;

/* Largest relative error (Frobenius) that two correct computations may show.
 *
 * f32: reference and block each add up chains of dot products, of length hidden and then inter (latent
 * experts: hidden, latent, inter, latent), in orders of their own.  Each addition rounds by at most u = 2^-24
 * of its partial sum, with a sign that is as good as random, so a chain of n drifts by u * sqrt(n) of its
 * result, all chains of one side by u * sqrt(hidden + inter), and the difference of the two sides by
 * u * sqrt(2 * (hidden + inter)).
 *
 * bf16: x, the values between the GEMMs and y are stored with u = 2^-8; sums stay f32.  A rounded value v in
 * [2^e, 2^(e+1)) is off by anything up to u * 2^e, in the mean square by u * 2^e / sqrt(3), at most u / sqrt(3) of v.
 * Such errors reach y and are independent: x through gate, which silu passes on times at most 1.28, x through up, the
 * middle, and y itself: u / sqrt(3) * sqrt(1.28^2 + 3) = 1.24 u.  A square passes an error on doubled.  Latent experts
 * round twice more: once before the activation and once after it.
 *
 * Quantised weights: the reference is the plain model's, so what rounding the weights does is allowed as well.  A float
 * with m bits of mantissa is off by u / sqrt(3), u = 2^-(m + 1), as above.  An integer code of a block whose largest
 * weight has code q is off by 1 / sqrt(12) in the mean square, where the root mean square of the block is taken to be
 * at least q / 4, as it is in weights that a normal distribution could have drawn.  Errors of gate, up and down are
 * independent.  Activations may become codes of 8 bits on the way, before each of the three. */
static double quantised_error(int32_t w_dtype)
{
    switch (w_dtype) {
    case MOEWE_DTYPE_E4M3: return 0x1p-4 / sqrt(3);
    case MOEWE_DTYPE_E2M1: return 0x1p-2 / sqrt(3);
    case MOEWE_DTYPE_I8:
    case MOEWE_DTYPE_Q8_0: return 4.0 / 127 / sqrt(12);
    case MOEWE_DTYPE_Q6_K: return 4.0 / 31 / sqrt(12);
    case MOEWE_DTYPE_I4:
    case MOEWE_DTYPE_Q4_0:
    case MOEWE_DTYPE_Q4_K: return 4.0 / 7.5 / sqrt(12);
    default: return 0;
    }
}

static double allowed_rounding(int32_t dtype, const moewe_config *c)
{
    double inter = c->inter > c->shared_inter ? c->inter : c->shared_inter;
    if (dtype == MOEWE_DTYPE_BF16) {
        double into = c->act == MOEWE_ACT_RELU2 ? 4 : 1.28 * 1.28 + 1;
        double squares = (c->latent ? 2 : 1) * into + (c->latent ? 3 : 2);
        return 0x1p-8 * sqrt(squares / 3);
    }
    return 0x1p-24 * sqrt(2.0 * ((double)c->hidden + inter + 2.0 * (double)c->latent));
}

static double allowed_error(int32_t dtype, const moewe_config *c)
{
    double up = quantised_error(c->w_dtype), down = quantised_error(c->down_dtype), rounding = allowed_rounding(dtype, c);
    double into = c->act == MOEWE_ACT_RELU2 ? 4 : 1.28 * 1.28 + 1, codes = quantised_error(MOEWE_DTYPE_I8);
    if (up > 0) up = hypot(up, codes);
    if (down > 0) down = hypot(down, codes);
    return sqrt(rounding * rounding + into * up * up + down * down);
}

/* Largest relative error of routing weights: a logit of hidden products drifts by u * sqrt(hidden) of the largest
 * logit, as above, the difference of two sides by u * sqrt(2 * hidden) of it.  It stands in the exponent of exp, and
 * so is the relative error of a softmax; of sigmoid and sqrt(softplus) it is less.  The sum of n scores adds
 * u * sqrt(2 * n), exp, division and scales a few u. */
static double allowed_weights(const moewe_config *c, double largest_logit)
{
    double n = (double)c->n_experts + (double)c->n_null;
    return 0x1p-24 * (sqrt(2.0 * (double)c->hidden) * largest_logit + sqrt(2.0 * n) + 8);
}

/* ---- what there is to compare -------------------------------------------------------------- */

static int ends_with(const char *text, const char *tail, size_t *head)
{
    size_t n = strlen(text), t = strlen(tail);
    if (n <= t || strcmp(text + n - t, tail)) return 0;
    *head = n - t;
    return 1;
}

static int by_layer(const void *a, const void *b)
{
    int32_t x = ((const verify_pair *)a)->layer, y = ((const verify_pair *)b)->layer;
    return (x > y) - (x < y);
}

/* A tensor of f32 rows that are as wide as the model. */
static int check_rows(const verify_job *j, const st_tensor *t)
{
    char shape[160];
    st_shape_text(t, shape, sizeof shape);
    if (t->dtype != ST_F32 || t->rank != 2 || t->shape[1] != j->model.config.hidden || t->shape[0] < 1 ||
        t->shape[0] > INT32_MAX)
        return cli_fail("%s: tensor '%s' is %s %s, expected F32 [rows, %d]", t->file, t->name, st_dtype_name(t->dtype),
                        shape, (int)j->model.config.hidden);
    return CLI_OK;
}

static int find_output(const verify_job *j, size_t head, verify_pair *p)
{
    size_t bytes = head + sizeof ".output";
    char *name = malloc(bytes);
    if (!name) return cli_fail("no memory for a name of %zu bytes", bytes);
    snprintf(name, bytes, "%.*s.output", (int)head, p->input->name);
    p->output = st_find(j->reference, name);
    free(name);
    if (!p->output)
        return cli_fail("%s: tensor '%s' has no partner, expected '%.*s.output'", p->input->file, p->input->name,
                        (int)head, p->input->name);
    if (check_rows(j, p->input) || check_rows(j, p->output)) return CLI_FAILED;
    if (p->input->shape[0] != p->output->shape[0])
        return cli_fail("%s: tensor '%s' has %lld rows, expected %lld as '%s' has", p->output->file, p->output->name,
                        (long long)p->output->shape[0], (long long)p->input->shape[0], p->input->name);
    return CLI_OK;
}

static int find_layer(const verify_job *j, size_t head, verify_pair *p)
{
    fmt_error e;
    char *name = strndup(p->input->name, head);
    if (!name) return cli_fail("no memory for a name of %zu bytes", head);
    int bad = model_block_find(&j->model.config, name, &p->layer, &e);
    free(name);
    return bad ? cli_fail("%s: tensor '%s': %s", p->input->file, p->input->name, e.text) : CLI_OK;
}

static int find_pairs(verify_job *j)
{
    size_t n = st_count(j->reference), head;
    j->pairs = calloc(n + 1, sizeof *j->pairs);
    if (!j->pairs) return cli_fail("no memory for a list of %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        verify_pair *p = &j->pairs[j->n_pairs];
        p->input = st_at(j->reference, i);
        if (!ends_with(p->input->name, ".input", &head)) continue;
        if (find_layer(j, head, p) || find_output(j, head, p)) return CLI_FAILED;
        j->n_pairs++;
    }
    if (!j->n_pairs)
        return cli_fail("%s: none of its %zu tensors is a NAME.input, expected a pair NAME.input and NAME.output",
                        j->reference_path, n);
    qsort(j->pairs, j->n_pairs, sizeof *j->pairs, by_layer);
    return CLI_OK;
}

/* ---- one block ------------------------------------------------------------------------------- */

/* Everything a comparison holds, for one exit. */
typedef struct verify_rows {
    int32_t n, width;
    float *input;  /* as recorded */
    float *logits; /* of the recorded input */
    double largest_logit;
    void *x, *y;        /* of the plan's dtype */
    float *output;      /* y as f32 */
    int32_t *token_ids; /* or NULL */
} verify_rows;

static void rows_free(verify_rows *r)
{
    free(r->input);
    free(r->logits);
    free(r->x);
    free(r->y);
    free(r->output);
    free(r->token_ids);
}

static int rows_take(verify_rows *r, const verify_pair *p, const moewe_config *c, int32_t dtype)
{
    uint64_t n = (uint64_t)p->input->shape[0] * (uint64_t)c->hidden;
    r->n = (int32_t)p->input->shape[0];
    r->width = c->hidden;
    r->input = malloc(n * sizeof *r->input);
    r->output = malloc(n * sizeof *r->output);
    r->x = malloc(n * moewe_dtype_bytes(dtype));
    r->y = malloc(n * moewe_dtype_bytes(dtype));
    r->logits = malloc((uint64_t)r->n * ((uint64_t)c->n_experts + (uint64_t)c->n_null) * sizeof *r->logits);
    if (!r->input || !r->output || !r->x || !r->y || !r->logits)
        return cli_fail("no memory for %d rows of %d numbers", (int)r->n, (int)r->width);
    cli_to_f32(p->input->data, ST_F32, n, r->input);
    cli_from_f32(r->input, n, dtype, r->x);
    return CLI_OK;
}

static float element(const moewe_matrix *m, int64_t row, int64_t column, int64_t columns)
{
    int64_t size = moewe_dtype_bytes(m->dtype);
    int64_t column_stride = m->col_stride ? m->col_stride : size;
    int64_t row_stride = m->row_stride ? m->row_stride : columns * size;
    const char *base = m->experts ? m->experts[0] : m->data;
    float value;
    cli_to_f32(base + row * row_stride + column * column_stride,
               m->dtype == MOEWE_DTYPE_F32   ? ST_F32
               : m->dtype == MOEWE_DTYPE_F16 ? ST_F16
                                             : ST_BF16,
               1, &value);
    return value;
}

/* Router logits of the recorded rows.  Which experts are chosen is not continuous in x: rounding x to bf16
 * may swap two that are nearly equal, and no bound on rounding covers that.  So in bf16 the choice is the
 * recorded input's, and the error is that of the arithmetic; f32 checks the router itself. */
static int route(verify_rows *r, const moewe_config *c, const moewe_matrix *router)
{
    int32_t n = c->n_experts + c->n_null;
    if (router->dtype > MOEWE_DTYPE_BF16)
        return cli_fail("the router is stored as %s, f32, bf16 or f16 is expected", moewe_dtype_name(router->dtype));
    double *row = malloc((size_t)r->width * sizeof *row);
    if (!row) return cli_fail("no memory for a row of %d numbers", (int)r->width);
    for (int32_t e = 0; e < n; e++) {
        for (int32_t k = 0; k < r->width; k++) row[k] = (double)element(router, e, k, r->width);
        for (int32_t t = 0; t < r->n; t++) {
            double sum = router->bias ? (double)router->bias[e] : 0;
            for (int32_t k = 0; k < r->width; k++) sum += row[k] * (double)r->input[(int64_t)t * r->width + k];
            r->logits[(int64_t)t * n + e] = (float)sum;
            if (fabs(sum) > r->largest_logit) r->largest_logit = fabs(sum);
        }
    }
    free(row);
    return CLI_OK;
}

/* n rows from first on. */
static moewe_io rows_io(const cli_block *b, const verify_rows *r, int32_t first, int32_t n)
{
    size_t at = (size_t)first * (size_t)r->width * moewe_dtype_bytes(b->config.x_dtype);
    int64_t choices = (int64_t)b->config.n_experts + b->config.n_null;
    moewe_io io;
    MOEWE_INIT(io);
    io.n_tokens = n;
    io.x = (const char *)r->x + at;
    io.y = (char *)r->y + at;
    io.logits = b->config.x_dtype == MOEWE_DTYPE_F32 ? NULL : r->logits + first * choices;
    io.token_ids = r->token_ids ? r->token_ids + first : NULL;
    return io;
}

static int run_rows(const cli_block *b, verify_rows *r, int32_t step)
{
    for (int32_t t = 0; t < r->n; t += step) {
        moewe_io io = rows_io(b, r, t, step);
        if (moewe_run(b->plan, &b->weights, &io, b->workspace, NULL)) return cli_fail("%s", moewe_last_error());
    }
    return CLI_OK;
}

/* ---- comparisons ------------------------------------------------------------------------------- */

typedef struct verify_error {
    double relative, largest;
} verify_error;

static verify_error error_of(const float *got, const st_tensor *want_tensor, uint64_t n)
{
    double difference = 0, norm = 0, largest = 0;
    const char *want_bytes = want_tensor->data;
    for (uint64_t i = 0; i < n; i++) {
        float want;
        memcpy(&want, want_bytes + i * sizeof want, sizeof want);
        double d = (double)got[i] - (double)want;
        difference += d * d;
        norm += (double)want * (double)want;
        if (!(fabs(d) <= largest)) largest = fabs(d); /* a NaN stays */
    }
    /* Outputs that are zero everywhere leave nothing to be relative to. */
    return (verify_error){norm > 0 ? sqrt(difference / norm) : sqrt(difference), largest};
}

/* The recorded argument of the block's experts: NULL when there is none of that form. */
static const st_tensor *expert_tensor(const verify_job *j, const verify_pair *p, const char *what, int integers,
                                      int64_t rows, int64_t cols)
{
    char name[320];
    size_t head = strlen(p->input->name) - strlen(".input");
    snprintf(name, sizeof name, "%.*s.experts.%s", (int)head, p->input->name, what);
    const st_tensor *t = st_find(j->reference, name);
    int typed = t && (integers ? t->dtype == ST_I64 || t->dtype == ST_I32 : t->dtype == ST_F32);
    return typed && t->rank == 2 && t->shape[0] == rows && (cols < 0 || t->shape[1] == cols) ? t : NULL;
}

/* What came of comparing choices with the recorded ones. */
typedef struct verify_choice {
    int64_t rows, differ;  /* rows 0: nothing was recorded */
    double error, allowed; /* of the weights, relative to the largest */
} verify_choice;

typedef struct choice {
    int32_t id;
    float weight;
} choice;

static int by_id(const void *a, const void *b)
{
    const choice *x = a, *y = b;
    return x->id != y->id ? (x->id > y->id) - (x->id < y->id) : (x->weight > y->weight) - (x->weight < y->weight);
}

/* Sums of what compare_row found. */
typedef struct weight_error {
    double plain, unscaled, largest;
} weight_error;

/* Ids as sets, and the weights of those that are equal.  Some families scale the weights and some the experts' sum,
 * which is the same sum; their recorded weights are without the scale. */
static int compare_row(const moewe_config *c, choice *got, choice *want, weight_error *e)
{
    double scale = c->routed_scale != 0 ? (double)c->routed_scale : 1;
    int same = 1;
    qsort(got, (size_t)c->top_k, sizeof *got, by_id);
    qsort(want, (size_t)c->top_k, sizeof *want, by_id);
    for (int32_t i = 0; i < c->top_k; i++) same &= got[i].id == want[i].id;
    for (int32_t i = 0; same && i < c->top_k; i++) {
        double w = (double)want[i].weight, plain = fabs((double)got[i].weight - w);
        double unscaled = fabs((double)got[i].weight / scale - w);
        if (!(plain <= e->plain)) e->plain = plain; /* a NaN stays */
        if (!(unscaled <= e->unscaled)) e->unscaled = unscaled;
        if (fabs(w) > e->largest) e->largest = fabs(w);
    }
    return same;
}

static const void *region_of(const moewe_plan *plan, moewe_span workspace, const char *name)
{
    moewe_region r;
    for (int32_t i = 0; i < moewe_plan_region_count(plan); i++)
        if (!moewe_plan_region(plan, i, &r) && strcmp(r.name, name) == 0) return (const char *)workspace.ptr + r.offset;
    return NULL;
}

/* Routes ROUTE_PIECE rows at a time through a plan of its own, since one with a limit may have no ROUTE stage apart. */
enum { ROUTE_PIECE = 128 };

static int compare_rows(const cli_block *b, const verify_rows *r, const moewe_plan *plan, moewe_span workspace,
                        const int32_t *ids, const float *weights, verify_choice *out)
{
    int32_t k = b->config.top_k;
    const int32_t *got_ids = region_of(plan, workspace, "ids");
    const float *got_weights = region_of(plan, workspace, "weights");
    weight_error e = {0, 0, 0};
    choice *got = malloc(2 * (size_t)k * sizeof *got), *want = got ? got + k : NULL;
    if (!got || !got_ids || !got_weights) {
        free(got);
        return cli_fail("%s", got ? "the plan has no regions 'ids' and 'weights'" : "no memory for a row of choices");
    }
    for (int32_t t = 0; t < r->n; t++) {
        int32_t in = t % ROUTE_PIECE, left = r->n - t;
        moewe_io io = rows_io(b, r, t, left < ROUTE_PIECE ? left : ROUTE_PIECE);
        if (!in && moewe_run_stages(plan, &b->source.w, &io, workspace, NULL, MOEWE_STAGE_ROUTE, MOEWE_STAGE_ROUTE)) {
            free(got);
            return cli_fail("%s", moewe_last_error());
        }
        for (int32_t i = 0; i < k; i++) {
            got[i] = (choice){got_ids[in * k + i], got_weights[in * k + i]};
            want[i] = (choice){ids[(int64_t)t * k + i], weights[(int64_t)t * k + i]};
        }
        out->differ += !compare_row(&b->config, got, want, &e);
        out->rows++;
    }
    free(got);
    out->error = (e.unscaled < e.plain ? e.unscaled : e.plain) / (e.largest > 0 ? e.largest : 1);
    out->allowed = allowed_weights(&b->config, r->largest_logit);
    return CLI_OK;
}

static int compare_choice(const verify_job *j, const cli_block *b, const verify_rows *r, const verify_pair *p,
                          verify_choice *out)
{
    int32_t k = b->config.top_k;
    moewe_config c = b->config;
    moewe_plan *plan = NULL;
    moewe_span workspace = {0};
    moewe_need need;
    const st_tensor *ids = expert_tensor(j, p, "arg1", 1, r->n, -1), *w = expert_tensor(j, p, "arg2", 0, r->n, -1);
    if (!ids || !w) return CLI_OK;
    if (ids->shape[1] != k || w->shape[1] != k)
        return cli_fail("%s: tensor '%s' has %lld experts a token and '%s' %lld, expected %d as the block chooses",
                        ids->file, ids->name, (long long)ids->shape[1], w->name, (long long)w->shape[1], (int)k);
    int32_t *want = cli_ids(ids, (uint64_t)r->n * (uint64_t)k);
    float *weights = malloc((uint64_t)r->n * (uint64_t)k * sizeof *weights);
    int status = want && weights ? CLI_OK : cli_fail("no memory for the choices of %d tokens", (int)r->n);
    c.workspace_limit = 0;
    c.max_tokens = r->n < ROUTE_PIECE ? r->n : ROUTE_PIECE;
    if (!status && (moewe_plan_create(b->device, &c, &plan) || moewe_plan_need(plan, &need) ||
                    moewe_device_alloc(b->device, need, &workspace)))
        status = cli_fail("%s", moewe_last_error());
    if (!status) {
        cli_to_f32(w->data, ST_F32, (uint64_t)r->n * (uint64_t)k, weights);
        status = compare_rows(b, r, plan, workspace, want, weights, out);
    }
    moewe_device_free(b->device, workspace);
    moewe_plan_destroy(plan);
    free(want);
    free(weights);
    return status;
}

/* The routed experts alone, given the recorded ids and weights; relative error, or -1 when they were not recorded. */
static double experts_error(const verify_job *j, const cli_block *whole, const verify_pair *p, double *allowed,
                            int *status)
{
    cli_block b;
    int64_t rows = p->input->shape[0];
    int32_t k = whole->config.top_k, width = whole->config.latent ? whole->config.latent : whole->config.hidden;
    const st_tensor *x = expert_tensor(j, p, "arg0", 0, rows, width), *ids = expert_tensor(j, p, "arg1", 1, rows, k);
    const st_tensor *w = expert_tensor(j, p, "arg2", 0, rows, k), *y = expert_tensor(j, p, "out", 0, rows, width);
    double error = -1;
    cli_common common = j->common;
    common.workspace_limit = 0;
    if (!x || !ids || !w || !y || j->common.dtype != MOEWE_DTYPE_F32) return -1;
    uint64_t n = (uint64_t)rows * (uint64_t)width, pairs = (uint64_t)rows * (uint64_t)k;
    int failed = cli_block_open(&b, &j->model, p->layer, (int32_t)rows, &common, CLI_EXPERTS);
    size_t each = moewe_dtype_bytes(j->common.dtype);
    float *values = malloc(n * sizeof *values), *weights = malloc(pairs * sizeof *weights);
    void *in = malloc(n * each), *out = malloc(n * each);
    int32_t *given = cli_ids(ids, pairs);
    if (!failed && (!values || !weights || !in || !out || !given))
        failed = cli_fail("no memory for %llu numbers", (unsigned long long)n);
    if (!failed) {
        moewe_io io;
        MOEWE_INIT(io);
        cli_to_f32(x->data, ST_F32, n, values);
        cli_from_f32(values, n, j->common.dtype, in);
        cli_to_f32(w->data, ST_F32, pairs, weights);
        io.n_tokens = (int32_t)rows;
        io.x = in;
        io.y = out;
        io.topk_ids = given;
        io.topk_weights = weights;
        if (moewe_run(b.plan, &b.weights, &io, b.workspace, NULL)) failed = cli_fail("%s", moewe_last_error());
    }
    if (!failed) {
        cli_to_f32(out, j->common.dtype == MOEWE_DTYPE_F32 ? ST_F32 : ST_BF16, n, values);
        error = error_of(values, y, n).relative;
        *allowed = allowed_error(j->common.dtype, &b.config);
    }
    free(values);
    free(weights);
    free(in);
    free(out);
    free(given);
    cli_block_close(&b);
    *status = failed;
    return error;
}

/* Prints the block's line; 1 when it passes. */
static int compare(const cli_block *b, const verify_rows *r, const verify_pair *p, const verify_choice *chosen,
                   double experts, double experts_allowed)
{
    uint64_t n = (uint64_t)r->n * (uint64_t)r->width;
    int32_t dtype = b->config.y_dtype;
    cli_to_f32(r->y, dtype == MOEWE_DTYPE_F32 ? ST_F32 : ST_BF16, n, r->output);
    verify_error error = error_of(r->output, p->output, n);
    double allowed = allowed_error(dtype, &b->config);
    int pass = error.relative <= allowed && experts <= experts_allowed;
    if (chosen->rows) pass &= !chosen->differ && chosen->error <= chosen->allowed;
    printf("%s: %d tokens, relative error %.3e, largest error %.3e, allowed %.3e, %.1f%% of it", b->name, (int)r->n,
           error.relative, error.largest, allowed, 100 * error.relative / allowed);
    if (experts >= 0) printf(", experts given the ids %.3e", experts);
    if (chosen->differ) printf(", ids differ in %lld rows", (long long)chosen->differ);
    if (chosen->rows && !chosen->differ) printf(", ids equal, weights %.3e of %.3e", chosen->error, chosen->allowed);
    printf(", workspace %llu bytes, bits %016llx, %s\n", (unsigned long long)b->need.bytes,
           (unsigned long long)cli_hash(r->y, n * moewe_dtype_bytes(dtype)), pass ? "ok" : "FAIL");
    return pass;
}

/* Layers that choose experts by token: the reference's input_ids, or what --token-ids names. */
static int take_tokens(const verify_job *j, const cli_block *b, verify_rows *r)
{
    const st_tensor *t = j->token_tensor ? j->token_tensor : st_find(j->reference, "input_ids");
    uint64_t n = 1;
    if (!b->weights.hash_ids) return CLI_OK;
    for (int32_t i = 0; t && i < t->rank; i++) n *= (uint64_t)t->shape[i];
    if (!t || (t->dtype != ST_I64 && t->dtype != ST_I32) || n != (uint64_t)r->n)
        return cli_fail("%s: block %s chooses experts by token id and needs %d of them, found %s", j->reference_path,
                        b->name, (int)r->n, t ? "another number or type" : "no tensor 'input_ids' and no --token-ids");
    r->token_ids = cli_ids(t, n);
    return r->token_ids ? CLI_OK : cli_fail("no memory for %d token ids", (int)r->n);
}

static int verify_pair_run(const verify_job *j, const verify_pair *p, int *pass)
{
    cli_block b;
    verify_rows r = {0};
    verify_choice chosen = {0, 0, 0, 0};
    double experts = -1, experts_allowed = 0;
    int32_t tokens = (int32_t)p->input->shape[0], step = j->rows == ROWS_ONE ? 1 : tokens;
    int status = cli_block_open(&b, &j->model, p->layer, step, &j->common, CLI_ROUTES);
    if (!status) status = rows_take(&r, p, &b.config, j->common.dtype);
    if (!status) status = take_tokens(j, &b, &r);
    if (!status) status = route(&r, &b.config, &b.source.w.router);
    if (!status) status = compare_choice(j, &b, &r, p, &chosen);
    if (!status) experts = experts_error(j, &b, p, &experts_allowed, &status);
    if (!status) status = run_rows(&b, &r, step);
    if (!status) *pass = compare(&b, &r, p, &chosen, experts, experts_allowed);
    rows_free(&r);
    cli_block_close(&b);
    return status;
}

static int open_tokens(verify_job *j)
{
    fmt_error e;
    const char *colon = j->tokens ? strrchr(j->tokens, ':') : NULL;
    if (!j->tokens) return CLI_OK;
    if (!colon) return cli_fail("--token-ids: '%s' is no FILE:TENSOR", j->tokens);
    char *path = strndup(j->tokens, (size_t)(colon - j->tokens));
    if (!path) return cli_fail("no memory for a path");
    int bad = st_open(path, &j->token_store, &e);
    free(path);
    if (bad) return cli_fail("--token-ids: %s", e.text);
    j->token_tensor = st_find(j->token_store, colon + 1);
    return j->token_tensor ? CLI_OK : cli_fail("--token-ids: there is no tensor '%s'", colon + 1);
}

static int verify(verify_job *j, const char *dir)
{
    fmt_error e;
    size_t passed = 0;
    char path[4096];
    int status = cli_model_open(&j->model, dir, &j->common);
    if (status) return status;
    if (!j->reference_path) {
        const char *slash = strrchr(dir, '/');
        struct stat st;
        int is_file = stat(dir, &st) == 0 && S_ISREG(st.st_mode);
        size_t length = !is_file ? strlen(dir) : slash ? (size_t)(slash - dir) : 0;
        if (length >= sizeof path || snprintf(path, sizeof path, "%.*s%sreference.safetensors", (int)length, dir,
                                              is_file && !slash ? "" : "/") >= (int)sizeof path)
            return cli_fail("%s: the path is longer than %zu bytes", dir, sizeof path - 1);
        j->reference_path = path;
    }
    if (st_open(j->reference_path, &j->reference, &e)) return cli_fail("%s", e.text);
    status = open_tokens(j);
    if (!status) status = find_pairs(j);
    for (size_t i = 0; i < j->n_pairs && !status; i++) {
        int pass = 0;
        status = verify_pair_run(j, &j->pairs[i], &pass);
        passed += (size_t)pass;
    }
    if (status) return status;
    printf("%zu of %zu blocks pass\n", passed, j->n_pairs);
    return passed == j->n_pairs ? CLI_OK : CLI_FAILED;
}

int cmd_verify(int argc, char **argv)
{
    static const char *const positionals[] = {"DIR"};
    const char *dir = NULL;
    verify_job j = {.common = {.dtype = MOEWE_DTYPE_F32}};
    const args_option options[] = {
        {.name = "--reference",
         .metavar = "FILE",
         .kind = ARGS_TEXT,
         .out = &j.reference_path,
         .help = "inputs and outputs (default: reference.safetensors in the model's folder)"},
        {.name = "--token-ids",
         .metavar = "FILE:TENSOR",
         .kind = ARGS_TEXT,
         .out = &j.tokens,
         .help = "for layers that choose experts by token id (default: input_ids of the reference)"},
        ARGS_DTYPE(j.common, "of x, the values between the GEMMs, and y (default: f32)"),
        {.name = "--rows",
         .metavar = "one|all",
         .kind = ARGS_WORD,
         .out = &j.rows,
         .words = rows_words,
         .help = "rows one by one, or all at once (default): the same bits"},
        ARGS_COMMON(j.common),
        ARGS_PIN(j.common),
    };
    const args_spec spec = {
        .synopsis = "DIR [options]",
        .about =
            "Runs block NAME of the checkpoint DIR on every tensor NAME.input (f32, [rows][hidden]) of the\n"
            "reference, in model order, and compares the result with NAME.output.  One line a block: relative\n"
            "error (Frobenius), largest error, the relative error that rounding allows and the percentage of\n"
            "it, the workspace, and a 64-bit hash of the result's bytes, which is the same for every limit,\n"
            "number of threads and --rows.  Where the reference has the arguments and the result of the experts\n"
            "(NAME.experts.arg0, arg1, arg2, out), the chosen ids are compared as sets, and the largest error of a\n"
            "weight with what rounding of the logits allows; in f32 the experts alone are run on the ids and\n"
            "weights that were recorded.\n"
            "\n"
            "The allowed error is 2^-24 * sqrt(2 * (hidden + inter)) in f32 and 1.24 * 2^-8 in bf16 (more\n"
            "where a square doubles errors or latent rows are rounded too; where weights are quantised, what that\n"
            "does to weights of a normal distribution is added).  In bf16 the\n"
            "experts are those that the unrounded input chooses, because a near tie may fall either way once\n"
            "x is rounded.\n"
            "\n"
            "Exit status 0 when there is at least one block and all pass.",
        .positionals = positionals,
        .values = &dir,
        .n_positionals = 1,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;
    status = verify(&j, dir);
    free(j.pairs);
    st_close(j.reference);
    st_close(j.token_store);
    cli_model_close(&j.model);
    return status;
}
