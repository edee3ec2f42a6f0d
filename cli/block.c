/* block.c - opens one MoE block of a checkpoint and takes exactly the memory that its plan asks for.
 * Never runs it; the commands do. */
#include "block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the checkpoint ---------------------------------------------------------------------- */

int cli_model_open(cli_model *m, const char *dir, const cli_common *common)
{
    fmt_error e;
    memset(m, 0, sizeof *m);
    if (model_config_load(dir, &m->config, &e)) return cli_fail("%s", e.text);
    m->dir = dir; /* from here on config is to be freed */
    if (st_open(dir, &m->store, &e)) return cli_fail("%s", e.text);
    if (cli_device_open(common, &m->device)) return cli_fail("%s", moewe_last_error());
    return CLI_OK;
}

void cli_model_close(cli_model *m)
{
    moewe_device_close(m->device);
    st_close(m->store);
    if (m->dir) model_config_free(&m->config);
    memset(m, 0, sizeof *m);
}

/* ---- the block ---------------------------------------------------------------------------- */

static void drop(moewe_matrix *m)
{
    memset(m, 0, sizeof *m);
}

/* What belongs to a choice that is no longer made. */
static void give_routing(cli_block *b)
{
    moewe_config *c = &b->config;
    c->score = MOEWE_SCORE_GIVEN;
    c->flags &= ~(uint32_t)MOEWE_FLAG_RENORMALIZE;
    c->n_group = c->top_group = c->group_best = 0;
    c->routed_scale = 1;
    drop(&b->source.w.router);
    b->source.w.select_bias = b->source.w.expert_scale = NULL;
    b->source.w.hash_ids = NULL;
    b->source.w.hash_rows = 0;
}

static void keep_experts_only(cli_block *b)
{
    moewe_weights *w = &b->source.w;
    moewe_matrix *const others[] = {&w->shared_gate, &w->shared_up, &w->shared_down, &w->shared_scale, &w->latent_in, &w->latent_out};
    if (b->config.latent) b->config.hidden = b->config.latent;
    b->config.latent = b->config.shared_inter = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) drop(others[i]);
}

static void configure(cli_block *b, int32_t max_tokens, const cli_common *common, cli_routing routing)
{
    moewe_config *c = &b->config;
    *c = b->source.moe;
    c->name = b->name;
    c->max_tokens = max_tokens;
    c->x_dtype = c->y_dtype = common->dtype;
    c->w_dtype = b->source.w_dtype;
    c->down_dtype = b->source.down_dtype;
    c->workspace_limit = common->workspace_limit;
    if (routing != CLI_ROUTES) give_routing(b);
    if (routing == CLI_EXPERTS) keep_experts_only(b);
}

static int take_memory(cli_block *b)
{
    moewe_need packed;
    if (moewe_weights_need(b->plan, &b->source.w, &packed)) return -1;
    b->weights = b->source.w;
    if (packed.bytes && (moewe_device_alloc(b->device, packed, &b->packed) ||
                         moewe_weights_pack(b->plan, &b->source.w, b->packed, NULL, &b->weights)))
        return -1;
    return moewe_device_alloc(b->device, b->need, &b->workspace) ? -1 : 0;
}

int cli_block_open(cli_block *b, const cli_model *m, int32_t layer, int32_t max_tokens, const cli_common *common,
                   cli_routing routing)
{
    fmt_error e;
    moewe_need floor_need;
    memset(b, 0, sizeof *b);
    b->device = m->device;
    model_block_name(&m->config, layer, b->name, sizeof b->name);
    if (model_block_open(&m->config, m->store, layer, &b->source, &e)) {
        b->device = NULL;
        return cli_fail("%s", e.text);
    }
    configure(b, max_tokens, common, routing);
    if (moewe_plan_floor(m->device, &b->config, &floor_need)) return cli_fail("%s: %s", m->dir, moewe_last_error());
    if (common->workspace_limit && common->workspace_limit < floor_need.bytes)
        return cli_fail("%s: --workspace-limit is %llu bytes, block %s needs at least %llu", m->dir,
                        (unsigned long long)common->workspace_limit, b->name, (unsigned long long)floor_need.bytes);
    if (moewe_plan_create(m->device, &b->config, &b->plan) || moewe_plan_need(b->plan, &b->need) || take_memory(b))
        return cli_fail("%s: %s", m->dir, moewe_last_error());
    return CLI_OK;
}

void cli_block_close(cli_block *b)
{
    if (!b->device) return;
    moewe_device_free(b->device, b->workspace);
    moewe_device_free(b->device, b->packed);
    moewe_plan_destroy(b->plan);
    model_block_close(&b->source);
    memset(b, 0, sizeof *b);
}

/* ---- numbers ------------------------------------------------------------------------------- */

uint16_t cli_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40); /* quiet, and no carry into Inf */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ffu, bits;
    float value;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 is exact */
        value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | mantissa << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void cli_to_f32(const void *data, st_dtype dtype, uint64_t n, float *out)
{
    const char *bytes = data; /* of no promised alignment */
    if (dtype == ST_F32) {
        if (n) memcpy(out, data, n * sizeof *out);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, bytes + 2 * i, sizeof half);
        if (dtype == ST_F16) {
            out[i] = from_f16(half);
        } else {
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&out[i], &bits, sizeof bits);
        }
    }
}

void cli_from_f32(const float *values, uint64_t n, int32_t dtype, void *out)
{
    uint16_t *halves = out;
    if (dtype == MOEWE_DTYPE_F32) {
        if (n) memcpy(out, values, n * sizeof *values);
        return;
    }
    for (uint64_t i = 0; i < n; i++) halves[i] = cli_bf16(values[i]);
}

int32_t *cli_ids(const st_tensor *t, uint64_t n)
{
    const char *from = t->data;
    int32_t *ids = malloc(n * sizeof *ids + 1);
    for (uint64_t i = 0; ids && i < n; i++) {
        int64_t wide;
        if (t->dtype == ST_I32) {
            memcpy(&ids[i], from + i * sizeof(int32_t), sizeof(int32_t));
            continue;
        }
        memcpy(&wide, from + i * sizeof wide, sizeof wide);
        ids[i] = wide < 0 || wide > INT32_MAX ? -1 : (int32_t)wide;
    }
    return ids;
}

uint64_t cli_hash(const void *data, uint64_t bytes)
{
    const unsigned char *p = data;
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}
