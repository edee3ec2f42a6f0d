/* plan_json.c - the answer of moewe plan for programs: fields are added, never renamed. */
#include <jansson.h>

#include "plan_out.h"

/* Sets a field; a null value, which is out of memory, makes *bad nonzero. */
static void put(json_t *o, const char *name, json_t *value, int *bad)
{
    if (json_object_set_new(o, name, value)) *bad = 1;
}

static void put_bytes(json_t *o, const char *name, uint64_t bytes, int *bad)
{
    put(o, name, bytes > INT64_MAX ? json_null() : json_integer((json_int_t)bytes), bad);
}

static void put_number(json_t *o, const char *name, int64_t value, int *bad)
{
    put(o, name, json_integer((json_int_t)value), bad);
}

static json_t *regions(const plan_answer *a, int *bad)
{
    static const char *const stages[] = {"route", "sort", "gemm1", "gemm2", "combine"};
    json_t *list = json_array();
    moewe_region r;
    for (int32_t i = 0; list && a->layer && i < moewe_plan_region_count(a->layer); i++) {
        if (moewe_plan_region(a->layer, i, &r)) {
            *bad = 1;
            break;
        }
        json_t *one =
            json_pack("{s:s, s:I, s:I, s:s, s:s}", "name", r.name, "offset", (json_int_t)r.offset, "bytes",
                      (json_int_t)r.bytes, "first_stage", stages[r.first_stage], "last_stage", stages[r.last_stage]);
        if (json_array_append_new(list, one)) *bad = 1;
    }
    return list;
}

static void put_layer(json_t *o, const plan_answer *a, int *bad)
{
    const planner_plan *p = &a->plan;
    const moewe_config *c = &p->moe;
    put_number(o, "tokens", p->ask.tokens, bad);
    put_number(o, "call_tokens", p->call_tokens, bad);
    put_number(o, "moe_layers", a->facts->n_moe_layers, bad);
    put_number(o, "hidden", a->facts->hidden, bad);
    put_number(o, "inter", c->inter, bad);
    put_number(o, "shared_inter", c->shared_inter, bad);
    put_number(o, "latent", c->latent, bad);
    put_number(o, "experts", a->facts->n_experts, bad);
    put_number(o, "local_experts", p->shard.n_local, bad);
    put_number(o, "top_k", c->top_k, bad);
    put(o, "dtype", json_string(moewe_dtype_name(p->ask.dtype)), bad);
    put(o, "weights_dtype", json_string(moewe_dtype_name(a->w_dtype)), bad);
    put_bytes(o, "workspace_limit", p->ask.workspace_limit, bad);
    put_bytes(o, "workspace_bytes", a->need.bytes, bad);
    put_bytes(o, "workspace_fast_bytes", p->workspace_fast, bad);
    put_bytes(o, "workspace_floor_bytes", p->workspace_floor, bad);
    put_number(o, "workspace_align", a->need.align, bad);
    put_number(o, "lanes", p->ask.lanes, bad);
    put_bytes(o, "workspaces_bytes", p->workspaces, bad);
    put_bytes(o, "one_pass_bytes", a->one_pass, bad);
    put_bytes(o, "one_per_layer_bytes", a->one_per_layer, bad);
    put(o, "regions", regions(a, bad), bad);
}

static json_t *weights(const plan_answer *a, int *bad)
{
    const planner_plan *p = &a->plan;
    static const char *const names[PLANNER_PART_COUNT] = {
        [PLANNER_EXPERTS] = "experts_bytes",      [PLANNER_SHARED] = "shared_bytes",
        [PLANNER_ROUTER] = "router_bytes",        [PLANNER_DENSE] = "dense_bytes",
        [PLANNER_ATTENTION] = "attention_bytes",  [PLANNER_NORMS] = "norms_bytes",
        [PLANNER_EMBEDDINGS] = "embeddings_bytes"};
    json_t *o = json_object();
    put(o, "expert_format", json_string(p->expert_format.name), bad);
    put(o, "linear_format", json_string(p->linear_format.name), bad);
    put(o, "plain_format", json_string(p->plain_format.name), bad);
    put(o, "quantization", json_string(a->facts->quant), bad);
    for (int i = 0; i < PLANNER_PART_COUNT; i++) put_bytes(o, names[i], p->part[i].values, bad);
    put_bytes(o, "scales_bytes", p->scales, bad);
    put_bytes(o, "bytes", p->weights, bad);
    return o;
}

static json_t *caches(const plan_answer *a, int *bad)
{
    const planner_plan *p = &a->plan;
    json_t *o = json_object();
    put(o, "dtype", json_string(p->kv_fp8 ? "fp8" : "bf16"), bad);
    put_number(o, "context", p->ask.context, bad);
    put_number(o, "sequences", p->ask.sequences, bad);
    put_bytes(o, "bytes_per_token", p->kv_per_token, bad);
    put_bytes(o, "window_bytes_per_sequence", p->kv_window, bad);
    put_bytes(o, "bytes", p->kv, bad);
    put_bytes(o, "state_bytes", p->state, bad);
    return o;
}

static json_t *ranks(const plan_answer *a, int *bad)
{
    const planner_shard *s = &a->plan.shard;
    json_t *o = json_object(), *each = json_array();
    put_number(o, "tp", s->tp, bad);
    put_number(o, "ep", s->ep, bad);
    put_number(o, "dp", s->dp, bad);
    put_number(o, "expert_tp", s->expert_tp, bad);
    put_number(o, "gathered", s->gathered, bad);
    put_number(o, "kv_copies", s->kv_copies, bad);
    for (int32_t i = 0; i < s->ep; i++) {
        int32_t first, count;
        planner_experts_of((int32_t)a->facts->n_experts, s->ep, i, &first, &count);
        if (json_array_append_new(each, json_integer(count))) *bad = 1;
    }
    put(o, "experts_per_rank", each, bad);
    return o;
}

static json_t *compare(const plan_answer *a, int *bad)
{
    json_t *o = json_object();
    put(o, "between_gemms", json_string(a->scratch_type), bad);
    for (int i = 0; i < PLANNER_LAYOUT_COUNT; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_bytes", planner_layout_name((planner_layout)i));
        put_bytes(o, name, a->scratch[i], bad);
    }
    return o;
}

static json_t *on_cpu(const plan_answer *a, int *bad)
{
    json_t *o = json_object();
    put_bytes(o, "packed_layer_bytes", a->cpu.packed_layer, bad);
    put_bytes(o, "packed_layers_bytes", a->cpu.packed_layers, bad);
    put_bytes(o, "workspace_bytes", a->cpu.workspace, bad);
    if (!a->cpu.engine) return o;
    put_bytes(o, "engine_weights_bytes", a->cpu.weights, bad);
    put_bytes(o, "engine_kv_bytes", a->cpu.kv, bad);
    return o;
}

static void put_fit(json_t *o, const planner_plan *p, int *bad)
{
    put_bytes(o, "memory", p->ask.memory, bad);
    put(o, "utilization", json_real(p->ask.utilization), bad);
    put_bytes(o, "budget_bytes", p->budget, bad);
    put(o, "fits", json_boolean(p->fits), bad);
    put_bytes(o, "left_bytes", p->left, bad);
    put_bytes(o, "short_by_bytes", p->short_by, bad);
    put_bytes(o, "kv_tokens", p->kv_tokens, bad); /* null: any number */
    put(o, "change", p->fits ? json_null() : json_string(p->change), bad);
}

int plan_print_json(const plan_answer *a)
{
    int bad = 0;
    json_t *o = json_object();
    put(o, "config", json_string(a->facts->file), &bad);
    put(o, "model_type", json_string(a->facts->model_type), &bad);
    put(o, "family", json_string(a->facts->family), &bad);
    put(o, "exact", json_boolean(a->facts->exact), &bad);
    put(o, "backend", json_string(moewe_device_backend(a->device)), &bad);
    put_number(o, "threads", moewe_device_threads(a->device), &bad);
    put_number(o, "layers", a->facts->n_layers, &bad);
    put_bytes(o, "parameters", a->facts->params, &bad);
    put_bytes(o, "routed_parameters", a->facts->routed_params, &bad);
    put(o, "ranks", ranks(a, &bad), &bad);
    put(o, "weights", weights(a, &bad), &bad);
    put(o, "kv_cache", caches(a, &bad), &bad);
    put_layer(o, a, &bad);
    put_bytes(o, "total_bytes", a->plan.total, &bad);
    if (a->plan.budget) put_fit(o, &a->plan, &bad);
    if (a->compare) put(o, "compare", compare(a, &bad), &bad);
    if (a->on_cpu) put(o, "cpu", on_cpu(a, &bad), &bad);
    if (bad || !o) {
        json_decref(o);
        return cli_fail("the plan cannot be made JSON: no memory, or a name that is no UTF-8");
    }
    bad = json_dumpf(o, stdout, JSON_INDENT(2));
    json_decref(o);
    putchar('\n');
    return bad ? cli_fail("cannot write the plan to standard output") : CLI_OK;
}
