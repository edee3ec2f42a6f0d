/* test_oracle.c - a small random checkpoint with what the reference vectors lack (sliding window, biases, a dense
 * layer, tied embeddings, several stored dtypes, odd sizes) against a decoder written out plainly in f64. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    HIDDEN = 24,
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 10,
    VOCAB = 40,
    LAYERS = 3,
    DENSE_LAYER = 1,
    DENSE_INTER = 20,
    INTER = 12,
    EXPERTS = 5,
    TOP_K = 2,
    WINDOW = 37,
    TOKENS = 100,
    MAX_TENSORS = 128
};
static const double theta = 10000.0, eps = 1e-6;

/* ---- the checkpoint ------------------------------------------------------------------ */

typedef struct checkpoint {
    char dir[64];
    char names[MAX_TENSORS][80];
    st_tensor tensors[MAX_TENSORS];
    double *values[MAX_TENSORS]; /* as stored */
    size_t n;
    uint64_t rng;
} checkpoint;

static double uniform(checkpoint *c)
{
    c->rng = c->rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(c->rng >> 11) * 0x1p-53 * 2.0 - 1.0;
}

/* rows x cols values around center; cols 0 makes a vector.  Few bits each, so that every dtype holds them exactly. */
static void add(checkpoint *c, const char *name, st_dtype dtype, int64_t rows, int64_t cols, double center,
                double spread)
{
    int64_t n = rows * (cols ? cols : 1);
    st_tensor *t = &c->tensors[c->n];
    unsigned char *data = malloc((size_t)n * st_dtype_bytes(dtype));
    double *values = malloc((size_t)n * sizeof *values);
    assert_true(c->n < MAX_TENSORS && data && values);
    snprintf(c->names[c->n], sizeof c->names[0], "%s", name);
    for (int64_t i = 0; i < n; i++) {
        float f = (float)(rint((center + spread * uniform(c)) * 64.0) / 64.0);
        uint32_t bits;
        uint16_t half;
        values[i] = f;
        memcpy(&bits, &f, 4);
        if (dtype == ST_F32) memcpy(data + 4 * i, &f, 4);
        half = (uint16_t)(bits >> 16);
        if (dtype == ST_F16) { /* normal in f16: |f| >= 2^-6 or 0 */
            half = (uint16_t)(bits >> 16 & 0x8000u);
            if (f != 0.0f) half |= (uint16_t)((((bits >> 23 & 255u) - 112u) << 10) | (bits >> 13 & 0x3FFu));
        }
        if (dtype != ST_F32) memcpy(data + 2 * i, &half, 2);
    }
    *t = (st_tensor){.name = c->names[c->n], .dtype = dtype, .rank = cols ? 2 : 1, .data = data};
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->bytes = (uint64_t)n * st_dtype_bytes(dtype);
    c->values[c->n++] = values;
}

static void add_layer(checkpoint *c, int layer)
{
    static const struct {
        const char *name;
        st_dtype dtype;
        int rows, cols;
        double center;
    } parts[] = {
        {"input_layernorm.weight", ST_F32, HIDDEN, 0, 1.0},
        {"post_attention_layernorm.weight", ST_BF16, HIDDEN, 0, 1.0},
        {"self_attn.q_proj.weight", ST_BF16, HEADS * DIM, HIDDEN, 0.0},
        {"self_attn.k_proj.weight", ST_F32, KV_HEADS * DIM, HIDDEN, 0.0},
        {"self_attn.v_proj.weight", ST_BF16, KV_HEADS * DIM, HIDDEN, 0.0},
        {"self_attn.o_proj.weight", ST_F16, HIDDEN, HEADS * DIM, 0.0},
        {"self_attn.q_proj.bias", ST_F32, HEADS * DIM, 0, 0.0},
        {"self_attn.k_proj.bias", ST_BF16, KV_HEADS * DIM, 0, 0.0},
        {"self_attn.v_proj.bias", ST_F16, KV_HEADS * DIM, 0, 0.0},
        {"self_attn.o_proj.bias", ST_F32, HIDDEN, 0, 0.0},
        {"self_attn.q_norm.weight", ST_F16, DIM, 0, 1.0},
        {"self_attn.k_norm.weight", ST_F32, DIM, 0, 1.0},
    };
    static const char *const mlp[] = {"gate_proj", "up_proj", "down_proj"};
    char name[80];
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, parts[i].name);
        add(c, name, parts[i].dtype, parts[i].rows, parts[i].cols, parts[i].center, 0.3);
    }
    for (int e = 0; e < (layer == DENSE_LAYER ? 1 : EXPERTS); e++)
        for (int k = 0; k < 3; k++) {
            int inter = layer == DENSE_LAYER ? DENSE_INTER : INTER;
            snprintf(name, sizeof name, "model.layers.%d.mlp.", layer);
            if (layer != DENSE_LAYER) snprintf(name + strlen(name), sizeof name - strlen(name), "experts.%d.", e);
            snprintf(name + strlen(name), sizeof name - strlen(name), "%s.weight", mlp[k]);
            add(c, name, layer == 2 ? ST_F32 : ST_BF16, k == 2 ? HIDDEN : inter, k == 2 ? inter : HIDDEN, 0.0, 0.5);
        }
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", layer);
    if (layer != DENSE_LAYER) add(c, name, ST_BF16, EXPERTS, HIDDEN, 0.0, 0.5);
}

static void checkpoint_make(checkpoint *c)
{
    char path[128];
    fmt_error e = {""};
    FILE *f;
    memset(c, 0, sizeof *c);
    c->rng = 42;
    snprintf(c->dir, sizeof c->dir, "/tmp/moewe-oracle-XXXXXX");
    assert_non_null(mkdtemp(c->dir));
    add(c, "model.embed_tokens.weight", ST_F16, VOCAB, HIDDEN, 0.0, 1.0);
    add(c, "model.norm.weight", ST_BF16, HIDDEN, 0, 1.0, 0.3);
    for (int i = 0; i < LAYERS; i++) add_layer(c, i);
    snprintf(path, sizeof path, "%s/model.safetensors", c->dir);
    if (st_write(path, c->tensors, c->n, &e)) fail_msg("%s", e.text);
    snprintf(path, sizeof path, "%s/config.json", c->dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(
        f,
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": %d, \"num_attention_heads\": %d, "
        "\"num_key_value_heads\": %d, \"head_dim\": %d, \"vocab_size\": %d, \"num_hidden_layers\": %d, "
        "\"mlp_only_layers\": [%d], \"intermediate_size\": %d, \"moe_intermediate_size\": %d, \"num_experts\": %d, "
        "\"num_experts_per_tok\": %d, \"sliding_window\": %d, \"use_sliding_window\": true, "
        "\"attention_bias\": true, \"norm_topk_prob\": true, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\", "
        "\"rope_theta\": %.1f, \"rms_norm_eps\": %g, \"max_position_embeddings\": 128, \"decoder_sparse_step\": 1, "
        "\"torch_dtype\": \"bfloat16\"}\n",
        HIDDEN, HEADS, KV_HEADS, DIM, VOCAB, LAYERS, DENSE_LAYER, DENSE_INTER, INTER, EXPERTS, TOP_K, WINDOW, theta,
        eps);
    assert_int_equal(fclose(f), 0);
}

static void checkpoint_drop(checkpoint *c)
{
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", c->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", c->dir);
    unlink(path);
    rmdir(c->dir);
    for (size_t i = 0; i < c->n; i++) {
        free((void *)(uintptr_t)c->tensors[i].data);
        free(c->values[i]);
    }
}

static const double *part(const checkpoint *c, int layer, const char *name)
{
    char full[80];
    if (layer < 0)
        snprintf(full, sizeof full, "model.%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    for (size_t i = 0; i < c->n; i++)
        if (!strcmp(c->names[i], full)) return c->values[i];
    fail_msg("the checkpoint has no %s", full);
    return NULL;
}

/* ---- the oracle ------------------------------------------------------------------------ */

static void times(const double *w, const double *bias, const double *x, double *y, int rows, int cols)
{
    for (int r = 0; r < rows; r++) {
        y[r] = bias ? bias[r] : 0.0;
        for (int k = 0; k < cols; k++) y[r] += w[r * cols + k] * x[k];
    }
}

static void norm(const double *x, const double *w, double *y, int n)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = w[i] * x[i] / sqrt(sum / n + eps);
}

static void rotate(double *x, int pos)
{
    for (int i = 0; i < DIM / 2; i++) {
        double angle = pos * pow(theta, -2.0 * i / DIM), a = x[i], b = x[i + DIM / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + DIM / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void swiglu(const double *gate, const double *up, const double *down, const double *x, int inter, double scale,
                   double *h)
{
    double g[DENSE_INTER], u[DENSE_INTER], y[HIDDEN];
    times(gate, NULL, x, g, inter, HIDDEN);
    times(up, NULL, x, u, inter, HIDDEN);
    for (int i = 0; i < inter; i++) g[i] = g[i] / (1.0 + exp(-g[i])) * u[i];
    times(down, NULL, g, y, HIDDEN, inter);
    for (int i = 0; i < HIDDEN; i++) h[i] += scale * y[i];
}

static void mlp(const checkpoint *c, int layer, const double *x, double *h)
{
    double score[EXPERTS], chosen[EXPERTS] = {0}, sum = 0.0;
    if (layer == DENSE_LAYER) {
        swiglu(part(c, layer, "mlp.gate_proj.weight"), part(c, layer, "mlp.up_proj.weight"),
               part(c, layer, "mlp.down_proj.weight"), x, DENSE_INTER, 1.0, h);
        return;
    }
    times(part(c, layer, "mlp.gate.weight"), NULL, x, score, EXPERTS, HIDDEN);
    for (int k = 0; k < TOP_K; k++) {
        int best = -1;
        for (int e = 0; e < EXPERTS; e++)
            if (chosen[e] == 0.0 && (best < 0 || score[e] > score[best])) best = e;
        chosen[best] = exp(score[best]); /* softmax over all, divided by the sum of the chosen, is softmax over those */
        sum += chosen[best];
    }
    for (int e = 0; e < EXPERTS; e++) {
        char gate[64], up[64], down[64];
        if (chosen[e] == 0.0) continue;
        snprintf(gate, sizeof gate, "mlp.experts.%d.gate_proj.weight", e);
        snprintf(up, sizeof up, "mlp.experts.%d.up_proj.weight", e);
        snprintf(down, sizeof down, "mlp.experts.%d.down_proj.weight", e);
        swiglu(part(c, layer, gate), part(c, layer, up), part(c, layer, down), x, INTER, chosen[e] / sum, h);
    }
}

static void attention(const checkpoint *c, int layer, double h[TOKENS][HIDDEN])
{
    static double q[TOKENS][HEADS][DIM], k[TOKENS][KV_HEADS][DIM], v[TOKENS][KV_HEADS][DIM];
    for (int t = 0; t < TOKENS; t++) {
        double x[HIDDEN];
        norm(h[t], part(c, layer, "input_layernorm.weight"), x, HIDDEN);
        times(part(c, layer, "self_attn.q_proj.weight"), part(c, layer, "self_attn.q_proj.bias"), x, q[t][0],
              HEADS * DIM, HIDDEN);
        times(part(c, layer, "self_attn.k_proj.weight"), part(c, layer, "self_attn.k_proj.bias"), x, k[t][0],
              KV_HEADS * DIM, HIDDEN);
        times(part(c, layer, "self_attn.v_proj.weight"), part(c, layer, "self_attn.v_proj.bias"), x, v[t][0],
              KV_HEADS * DIM, HIDDEN);
        for (int i = 0; i < HEADS; i++) {
            norm(q[t][i], part(c, layer, "self_attn.q_norm.weight"), q[t][i], DIM);
            rotate(q[t][i], t);
        }
        for (int i = 0; i < KV_HEADS; i++) {
            norm(k[t][i], part(c, layer, "self_attn.k_norm.weight"), k[t][i], DIM);
            rotate(k[t][i], t);
        }
    }
    for (int t = 0; t < TOKENS; t++) {
        double out[HEADS][DIM] = {{0}}, y[HIDDEN];
        for (int i = 0; i < HEADS; i++) {
            int kv = i / (HEADS / KV_HEADS), first = t - WINDOW + 1 > 0 ? t - WINDOW + 1 : 0;
            double total = 0.0;
            for (int s = first; s <= t; s++) {
                double score = 0.0;
                for (int d = 0; d < DIM; d++) score += q[t][i][d] * k[s][kv][d];
                score = exp(score / sqrt(DIM));
                total += score;
                for (int d = 0; d < DIM; d++) out[i][d] += score * v[s][kv][d];
            }
            for (int d = 0; d < DIM; d++) out[i][d] /= total;
        }
        times(part(c, layer, "self_attn.o_proj.weight"), part(c, layer, "self_attn.o_proj.bias"), out[0], y, HIDDEN,
              HEADS * DIM);
        for (int d = 0; d < HIDDEN; d++) h[t][d] += y[d];
    }
}

static void oracle(const checkpoint *c, const int32_t *ids, float *logits)
{
    static double h[TOKENS][HIDDEN];
    const double *embed = part(c, -1, "embed_tokens.weight");
    for (int t = 0; t < TOKENS; t++) memcpy(h[t], embed + ids[t] * HIDDEN, sizeof h[t]);
    for (int layer = 0; layer < LAYERS; layer++) {
        attention(c, layer, h);
        for (int t = 0; t < TOKENS; t++) {
            double x[HIDDEN];
            norm(h[t], part(c, layer, "post_attention_layernorm.weight"), x, HIDDEN);
            mlp(c, layer, x, h[t]);
        }
    }
    for (int t = 0; t < TOKENS; t++) {
        double x[HIDDEN], y[VOCAB];
        norm(h[t], part(c, -1, "norm.weight"), x, HIDDEN);
        times(embed, NULL, x, y, VOCAB, HIDDEN);
        for (int i = 0; i < VOCAB; i++) logits[t * VOCAB + i] = (float)y[i];
    }
}

/* ---- the test ---------------------------------------------------------------------------- */

static void everything_else(void **state)
{
    static float expected[TOKENS * VOCAB], got[TOKENS * VOCAB], again[TOKENS * VOCAB];
    static checkpoint c;
    engine_options o = {.max_batch = 128, .max_logits = 128};
    /* the sums on the way to a row of logits, each off by at most a unit of 2^-24 a product */
    double sums = LAYERS * (2.0 * HIDDEN + WINDOW + DIM + HEADS * DIM + DENSE_INTER) + HIDDEN;
    int32_t ids[TOKENS];
    double error;
    engine *g;
    (void)state;

    checkpoint_make(&c);
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * i + 3 * i) % VOCAB;
    oracle(&c, ids, expected);

    g = engine_with(c.dir, o);
    assert_int_equal(engine_config(g)->sliding_window, WINDOW);
    assert_true(engine_config(g)->attention_bias && engine_config(g)->tie_embeddings);
    prompt_run(g, 0, ids, TOKENS, TOKENS, TOKENS, got);
    error = relative_error(got, expected, TOKENS * VOCAB);
    print_message("f32: relative error of the logits %.2e, allowed %.2e\n", error, sums * 0x1p-24);
    assert_true(error <= sums * 0x1p-24);
    prompt_run(g, 0, ids, TOKENS, 3, TOKENS, again);
    assert_memory_equal(again, got, sizeof got);
    engine_close(g);

    o.dtype = MOEWE_DTYPE_BF16;
    g = engine_with(c.dir, o);
    prompt_run(g, 0, ids, TOKENS, TOKENS, TOKENS, got);
    error = relative_error(got, expected, TOKENS * VOCAB);
    print_message("bf16: relative error of the logits %.2e, allowed %.2e\n", error, (8.0 * LAYERS + 2.0) / 256.0);
    assert_true(error <= (8.0 * LAYERS + 2.0) / 256.0);
    prompt_run(g, 0, ids, TOKENS, 3, TOKENS, again);
    assert_memory_equal(again, got, sizeof got);
    engine_close(g);
    checkpoint_drop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_else)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
