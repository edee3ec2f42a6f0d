/* shape.c - layer shapes from the planner's models or from numbers.  Holds no table of models. */
#include "shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../planner/planner.h"

/* ---- numbers ------------------------------------------------------------------------------- */

static int act_of(const char *name, int32_t *out)
{
    static const struct {
        const char *name;
        int32_t act;
    } acts[] = {{"swiglu", MOEWE_ACT_SWIGLU}, {"geglu", MOEWE_ACT_GEGLU},         {"geglu_tanh", MOEWE_ACT_GEGLU_TANH},
                {"reglu", MOEWE_ACT_REGLU},   {"relu2", MOEWE_ACT_RELU2},         {"relu", MOEWE_ACT_RELU},
                {"silu", MOEWE_ACT_SILU},     {"gelu", MOEWE_ACT_GELU},           {"gelu_tanh", MOEWE_ACT_GELU_TANH}};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(acts[i].name, name)) {
            *out = acts[i].act;
            return 0;
        }
    return -1;
}

static int read_numbers(const char *text, bench_shape *out, fmt_error *e)
{
    static const char form[] = "expected hidden,inter,experts,top_k and perhaps an activation, such as "
                               "2048,768,128,8,swiglu";
    moewe_config *c = &out->whole;
    int32_t *const fields[] = {&c->hidden, &c->inter, &c->n_experts, &c->top_k};
    const char *at = text;
    MOEWE_INIT(*c);
    for (size_t i = 0; i < 4; i++) {
        char *end;
        long n = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (n < 1 || n > INT32_MAX || (*end && *end != ','))
            return fmt_fail(e, "shape '%.100s': number %zu is missing or out of range, %s", text, i + 1, form);
        *fields[i] = (int32_t)n;
        at = *end ? end + 1 : end;
    }
    if (at[-1] == ',' && act_of(at, &c->act))
        return fmt_fail(e, "shape '%.100s': '%.40s' is no activation, expected swiglu, geglu, geglu_tanh, reglu, relu2, "
                           "relu, silu, gelu or gelu_tanh", text, at);
    snprintf(out->name, sizeof out->name, "%d,%d,%d,%d,%s", (int)c->hidden, (int)c->inter, (int)c->n_experts,
             (int)c->top_k, at[-1] == ',' ? at : "swiglu");
    return 0;
}

/* ---- models -------------------------------------------------------------------------------- */

/* The smallest model whose name begins with text; NULL when there is none. */
static planner_model *open_smallest(const char *text)
{
    planner_model *best = NULL, *m;
    size_t length = strlen(text);
    const char *name;
    for (size_t i = 0; length && (name = planner_known_name(i)); i++) {
        if (strncasecmp(name, text, length) || planner_open(name, &m, NULL)) continue;
        if (best && planner_model_facts(best)->params <= planner_model_facts(m)->params) {
            planner_close(m);
            continue;
        }
        planner_close(best);
        best = m;
    }
    return best;
}

/* What the planner calls it, without a remark, a folder or an ending. */
static void short_name(const char *file, char *out, size_t cap)
{
    const char *remark = strstr(file, " (built in)"), *slash = strrchr(file, '/');
    if (remark)
        snprintf(out, cap, "%.*s", (int)(remark - file), file);
    else
        snprintf(out, cap, "%.60s", slash ? slash + 1 : file);
}

static int read_model(planner_model *m, const moewe_device *dev, bench_shape *out, fmt_error *e)
{
    const planner_facts *f = planner_model_facts(m);
    const planner_ask ask = {.tokens = 1, .kv_fp8 = -1, .dtype = MOEWE_DTYPE_F32};
    planner_plan *p = malloc(sizeof *p);
    if (!p) return fmt_fail(e, "%s: no memory for its plan", f->file);
    int bad = planner_make(m, &ask, dev, p, e);
    if (!bad && !f->n_moe_layers) bad = fmt_fail(e, "%s: found no MoE layer, timing a layer needs one", f->file);
    if (!bad) {
        out->whole = p->moe;
        out->whole.name = NULL;
        out->whole.max_tokens = out->whole.x_dtype = out->whole.y_dtype = out->whole.w_dtype = out->whole.down_dtype = 0;
        out->whole.workspace_limit = 0;
        short_name(f->file, out->name, sizeof out->name);
    }
    free(p);
    return bad;
}

int bench_shape_find(const char *text, const moewe_device *dev, bench_shape *out, fmt_error *e)
{
    planner_model *m = NULL;
    memset(out, 0, sizeof *out);
    if (*text >= '0' && *text <= '9' && strchr(text, ',')) return read_numbers(text, out, e);
    if (planner_open(text, &m, e)) m = open_smallest(text);
    int bad = m ? read_model(m, dev, out, e) : -1;
    planner_close(m);
    return bad;
}

moewe_config bench_shape_experts(const bench_shape *s)
{
    moewe_config c;
    MOEWE_INIT(c);
    c.hidden = s->whole.latent ? s->whole.latent : s->whole.hidden;
    c.inter = s->whole.inter;
    c.n_experts = s->whole.n_experts;
    c.top_k = s->whole.top_k;
    c.act = s->whole.act < MOEWE_ACT_RELU2 ? MOEWE_ACT_SWIGLU : s->whole.act;
    c.score = MOEWE_SCORE_GIVEN;
    return c;
}
