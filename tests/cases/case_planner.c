/* case_planner.c - owns the cases of kinds planner and shard_divisibility, and bytes of formats that cases of other
 * kinds name: through planner/, and through the library where packing is what a case is about.  It must never add a
 * field to a config that the case does not give, but the attention of a model that the case leaves out. */
#include "case_planner.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../planner/planner.h"

/* ---- models ---- */

static planner_model *try_open(const json_t *config, fmt_error *e)
{
    char path[] = "/tmp/moewe-case-XXXXXX";
    int fd = mkstemp(path);
    planner_model *m = NULL;

    e->text[0] = '\0';
    CHECK(fd >= 0 && !json_dumpfd(config, fd, 0), "test: no temporary file");
    close(fd);
    if (planner_open(path, &m, e)) m = NULL;
    unlink(path);
    return m;
}

static planner_model *open_model(const accident *a, const json_t *config)
{
    fmt_error e;
    planner_model *m = try_open(config, &e);

    CHECK(m != NULL, "%s: %s", a->id, e.text);
    return m;
}

static planner_model *open_known(const accident *a, const char *name)
{
    planner_model *m;
    fmt_error e;

    CHECK(!planner_open(name, &m, &e), "%s: %s", a->id, e.text);
    return m;
}

static void plan_of(const accident *a, const planner_model *m, const planner_ask *ask, planner_plan *out)
{
    fmt_error e;

    CHECK(!planner_make(m, ask, a->dev, out, &e), "%s: %s", a->id, e.text);
}

/* Attention and vocabulary, which cases about experts leave out; what is checked does not count them. */
static void add_attention(json_t *text)
{
    static const struct {
        const char *key;
        int value;
    } table[] = {{"num_attention_heads", 16}, {"num_key_value_heads", 16}, {"vocab_size", 1024}};

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!json_object_get(text, table[i].key)) json_object_set_new(text, table[i].key, json_integer(table[i].value));
}

static json_t *with_attention(const json_t *config)
{
    json_t *copy = json_deep_copy(config), *text = json_object_get(copy, "text_config");

    add_attention(text ? text : copy);
    return copy;
}

static void names_says(const accident *a, const fmt_error *e, const char *part)
{
    CHECK(strstr(e->text, part) != NULL, "%s: \"%s\" does not say \"%s\"", a->id, e->text, part);
}

static void names_number(const accident *a, const fmt_error *e, int64_t n)
{
    char digits[32];

    snprintf(digits, sizeof digits, "%lld", (long long)n);
    names_says(a, e, digits);
}

/* ---- formats ---- */

static weight_bytes bytes_in(const accident *a, const char *format, uint64_t count, uint64_t rows, uint64_t cols)
{
    const weight_format *f;
    weight_bytes b = {0, 0};
    fmt_error e;

    f = weight_format_find(format, &e);
    CHECK(f && !weight_format_bytes(f, count, rows, cols, &b), "%s: no bytes of %s", a->id, format);
    return b;
}

void packed_experts(accident *a)
{
    uint64_t n = (uint64_t)number(a->params, "experts"), h = (uint64_t)number(a->params, "hidden");
    uint64_t i = (uint64_t)number(a->params, "intermediate"), each;
    const char *format = text_or(a->params, "dtype", "");

    each = bytes_in(a, format, 1, 2 * i, h).values;
    expects(a, "exact", "w_gate_up_bytes", bytes_in(a, format, n, 2 * i, h).values);
    expects(a, "exact", "bytes_per_expert", each);
    expects(a, "exact", "first_expert_past_4gib", (((uint64_t)1 << 32) + each - 1) / each);
}

/* ---- splits ---- */

/* local_i of a split that is legal for the format's groups. */
static void split(accident *a)
{
    const weight_format *f;
    int64_t each;
    fmt_error e;

    f = weight_format_find(text_or(a->params, "weights", ""), &e);
    CHECK(f != NULL, "%s: %s", a->id, e.text);
    CHECK(!planner_split("intermediate", number(a->params, "intermediate"), (int32_t)number(a->params, "tp"),
                         weight_format_tile(f), &each, &e),
          "%s: %s", a->id, e.text);
    expects(a, "exact", "local_i", (uint64_t)each);
    if (has_expectation(a, "exact", "stored_local_i")) {
        weight_bytes one = bytes_in(a, f->name, 1, (uint64_t)each, (uint64_t)number(a->params, "hidden"));
        uint64_t rows = one.values * 8 / f->value_bits / (uint64_t)number(a->params, "hidden");

        expects(a, "exact", "stored_local_i", rows); /* and so stored over logical is 1 */
        CHECK((double)rows <= (double)each * real_or(json_object_get(a->expect, "max"), "stored_over_logical", 0.0),
              "%s: %llu rows stored", a->id, (unsigned long long)rows);
        checked(a, "max.stored_over_logical");
    }
}

static void refused_split(accident *a)
{
    static const char *const fields[] = {"intermediate", "tp"};
    const json_t *valid = json_object_get(a->expect, "valid_tp");
    int64_t tile = number_or(a->params, "group", number_or(a->params, "block", 0)), each;
    fmt_error e;

    if (!valid) valid = json_object_get(json_object_get(a->expect, "alternative"), "valid_tp");
    CHECK(planner_split("intermediate", number(a->params, "intermediate"), (int32_t)number(a->params, "tp"),
                        (uint32_t)tile, &each, &e) != 0,
          "%s: split into %lld", a->id, (long long)each);
    for (int i = 0; i < 2; i++) names_number(a, &e, number(a->params, fields[i]));
    names_number(a, &e, tile);
    for (size_t i = 0; i < json_array_size(valid); i++) names_number(a, &e, (int64_t)real_at(valid, i));
    for (size_t i = 0; i < json_array_size(valid); i++)
        CHECK(!planner_split("intermediate", number(a->params, "intermediate"), (int32_t)real_at(valid, i),
                             (uint32_t)tile, &each, &e),
              "%s: %s", a->id, e.text);
    if (json_object_get(a->expect, "error_class")) {
        checked(a, "error_class");
        checked(a, "error_must_name");
    }
}

static void ragged_blocks(accident *a)
{
    const json_t *list = json_object_get(a->params, "tp_list");
    int64_t i = number(a->params, "intermediate"), block = number(a->params, "block"), each;
    fmt_error e;

    expects(a, "exact", "scale_rows_per_half",
            bytes_in(a, text_or(a->params, "weights", ""), 1, (uint64_t)i, (uint64_t)block).scales / 4);
    for (size_t n = 0; n < json_array_size(list); n++) {
        int32_t tp = (int32_t)real_at(list, n);
        int failed = planner_split("intermediate", i, tp, (uint32_t)block, &each, &e);

        if (tp == 1) {
            CHECK(!failed && each == i, "%s: %s", a->id, e.text);
            checked(a, "props.0");
            continue;
        }
        if (!failed) continue;
        names_number(a, &e, i);
        names_number(a, &e, tp);
        names_number(a, &e, block);
    }
    checked(a, "props.1");
}

static void spread_experts(accident *a)
{
    const json_t *exact = json_object_get(a->expect, "exact"), *also = json_object_get(a->expect, "also");

    for (int i = 0; i < 2; i++) {
        const json_t *from = i ? also : a->params, *want = i ? also : exact;
        int32_t n = (int32_t)number(from, "experts"), ep = (int32_t)number(from, "ep"), first, count, at = 0;

        for (int32_t r = 0; r < ep; r++) {
            const json_t *firsts = json_object_get(want, "first_expert");

            planner_experts_of(n, ep, r, &first, &count);
            assert_int_equal(count, real_at(json_object_get(want, "local_experts"), (size_t)r));
            if (firsts) assert_int_equal(first, real_at(firsts, (size_t)r));
            assert_int_equal(first, at);
            at += count;
        }
        assert_int_equal(at, n);
    }
    checked(a, "exact.local_experts");
    checked(a, "exact.first_expert");
}

/* ---- models ---- */

/* A list of numbers under exact, one for each config. */
static void one_of(const accident *a, const char *key, size_t i, int64_t got)
{
    int64_t want = (int64_t)real_at(json_object_get(json_object_get(a->expect, "exact"), key), i);

    CHECK(got == want, "%s: config %zu has %s %lld, needs %lld", a->id, i, key, (long long)got, (long long)want);
}

static void other_names(accident *a)
{
    const json_t *configs = json_object_get(a->params, "configs");

    for (size_t i = 0; i < json_array_size(configs); i++) {
        json_t *config = with_attention(json_array_get(configs, i));
        planner_model *m = open_model(a, config);
        const planner_facts *f = planner_model_facts(m);

        one_of(a, "experts", i, f->n_experts);
        one_of(a, "top_k", i, f->top_k);
        one_of(a, "expert_intermediate", i, f->inter);
        planner_close(m);
        json_decref(config);
    }
    checked(a, "exact.experts");
    checked(a, "exact.top_k");
    checked(a, "exact.expert_intermediate");
}

static void no_scratch(const accident *a, const planner_model *m)
{
    planner_ask ask = {.kv_fp8 = -1, .dtype = MOEWE_DTYPE_BF16, .tokens = 512};
    planner_plan p;

    assert_int_equal(planner_model_facts(m)->n_moe_layers, 0);
    plan_of(a, m, &ask, &p);
    assert_int_equal(p.workspaces, 0);
    assert_int_equal(p.workspace, 0);
}

static void dense_or_incomplete(accident *a)
{
    const json_t *configs = json_object_get(a->params, "configs");
    json_t *dense = with_attention(json_array_get(configs, 0)),
           *incomplete = with_attention(json_array_get(configs, 1));
    planner_model *m = open_model(a, dense);
    fmt_error e;

    no_scratch(a, m);
    planner_close(m);
    checked(a, "props.0");
    m = try_open(incomplete, &e);
    CHECK(m == NULL, "%s: a model without a top-k opens", a->id);
    names_says(a, &e, "num_experts_per_tok");
    checked(a, "props.1");
    checked(a, "error_class");
    checked(a, "error_must_name");
    json_decref(dense);
    json_decref(incomplete);
}

static void division_by_none(accident *a)
{
    json_t *config = with_attention(json_object_get(a->params, "config"));
    planner_model *m;

    if (!json_object_get(config, "hidden_size")) json_object_set_new(config, "hidden_size", json_integer(4096));
    m = open_model(a, config);
    no_scratch(a, m);
    expects(a, "exact", "moe_layers", (uint64_t)planner_model_facts(m)->n_moe_layers);
    checked(a, "props.0");
    planner_close(m);
    json_decref(config);
}

/* In DeepSeek's words, whose moe_layer_freq it is. */
static void every_other_layer(accident *a)
{
    json_t *config = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:n, s:i, s:i}", "model_type",
        "deepseek_v2", "num_hidden_layers", (json_int_t)number(a->params, "num_layers"), "moe_layer_freq",
        (json_int_t)number(a->params, "moe_layer_freq"), "hidden_size", (json_int_t)number(a->params, "hidden"),
        "moe_intermediate_size", (json_int_t)number(a->params, "intermediate"), "intermediate_size",
        (json_int_t)number(a->params, "dense_intermediate"), "n_routed_experts",
        (json_int_t)number(a->params, "experts"), "num_experts_per_tok", 6, "first_k_dense_replace", 0,
        "n_shared_experts", 2, "num_attention_heads", 16, "num_key_value_heads", 16, "vocab_size", 1024, "kv_lora_rank",
        512, "q_lora_rank", "qk_rope_head_dim", 64, "v_head_dim", 128);
    planner_model *m;
    const planner_facts *f;

    CHECK(config != NULL, "test: no config");
    json_object_set_new(config, "qk_nope_head_dim", json_integer(128));
    m = open_model(a, config);
    f = planner_model_facts(m);
    expects(a, "exact", "moe_layers", (uint64_t)f->n_moe_layers);
    expects(a, "exact", "expert_params", f->routed_params);
    planner_close(m);
    json_decref(config);
}

static void nested_fields(accident *a)
{
    json_t *config = with_attention(json_object_get(a->params, "config"));
    planner_model *m = open_model(a, config);
    const planner_facts *f = planner_model_facts(m);

    expects(a, "exact", "moe_layers", (uint64_t)f->n_moe_layers);
    expects(a, "exact", "routed_params_per_layer", f->routed_params / (uint64_t)f->n_moe_layers);
    expects(a, "exact", "shared_params_per_layer", 3 * (uint64_t)f->hidden * (uint64_t)f->shared_inter);
    planner_close(m);
    json_decref(config);
}

static void every_tensor(accident *a)
{
    json_t *config = json_deep_copy(json_object_get(a->params, "config"));
    planner_model *m = open_model(a, config);

    expects(a, "exact", "total_params", planner_model_facts(m)->params);
    planner_close(m);
    json_decref(config);
}

static void lost_family(accident *a)
{
    json_t *config = with_attention(json_object_get(a->params, "config"));
    planner_model *m = open_model(a, config);
    const planner_facts *f = planner_model_facts(m);

    expects(a, "exact", "moe_layers", (uint64_t)f->n_moe_layers);
    expects(a, "exact", "routed_params_total", f->routed_params);
    checked(a, "props.0");
    planner_close(m);
    json_decref(config);
}

/* Qwen2's words: a shared expert of its own width. */
static void three_groups(accident *a)
{
    json_t *config = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i}", "model_type", "qwen2_moe", "num_hidden_layers",
        (json_int_t)number(a->params, "layers"), "hidden_size", (json_int_t)number(a->params, "hidden"),
        "moe_intermediate_size", (json_int_t)number(a->params, "intermediate"), "shared_expert_intermediate_size",
        (json_int_t)number(a->params, "shared_intermediate"), "num_experts", (json_int_t)number(a->params, "experts"),
        "num_experts_per_tok", 4, "num_attention_heads", 16, "num_key_value_heads", 16, "vocab_size", 1024);
    planner_ask ask = {.kv_fp8 = -1,
                       .dtype = MOEWE_DTYPE_BF16,
                       .tokens = 512,
                       .tp = (int32_t)number(a->params, "tp"),
                       .ep = (int32_t)number(a->params, "ep")};
    planner_model *m;
    planner_plan p;
    uint64_t gate_rows = (uint64_t)number(a->params, "hidden"); /* shared_expert_gate, [1][hidden], copied too */

    CHECK(config != NULL, "test: no config");
    m = open_model(a, config);
    plan_of(a, m, &ask, &p);
    assert_int_equal(p.shard.expert_tp, number(a->params, "etp"));
    expects(a, "exact", "routed_params_per_rank", p.part[PLANNER_EXPERTS].values / 2);
    {
        uint64_t shared = p.part[PLANNER_SHARED].values / 2, router = p.part[PLANNER_ROUTER].values / 2;

        /* the gate of Qwen2's shared expert is not one of the case's: it may be counted with either */
        if (shared > (uint64_t)number(json_object_get(a->expect, "exact"), "shared_params_per_rank"))
            shared -= gate_rows;
        else
            router -= gate_rows;
        expects(a, "exact", "shared_params_per_rank", shared);
        expects(a, "exact", "router_params_per_rank", router);
    }
    planner_close(m);
    json_decref(config);
}

/* The ways to share 16 ranks: what is cut and what is spread make 16 together. */
static void one_description(accident *a)
{
    static const int32_t eps[] = {1, 4, 16};
    planner_model *m = open_known(a, "qwen3-235b-a22b");
    int32_t tp = (int32_t)number(a->params, "tp");

    for (int i = 0; i < 3; i++) {
        planner_ask ask = {.kv_fp8 = -1, .dtype = MOEWE_DTYPE_BF16, .tokens = 512, .tp = tp, .ep = eps[i]};
        planner_plan p;

        plan_of(a, m, &ask, &p);
        assert_int_equal(p.shard.expert_tp * p.shard.ep, tp * p.shard.dp);
        assert_int_equal(p.shard.dp, 1);
    }
    checked(a, "props.0");
    checked(a, "props.1");
    planner_close(m);
}

/* The planner's workspace is the library's, for the tokens that were declared. */
static void never_less(accident *a)
{
    static const int32_t tokens[] = {1, 512, 8192};

    for (int i = 0; i < 3; i++) {
        planner_model *m = open_known(a, "qwen3-30b-a3b");
        planner_ask ask = {.kv_fp8 = -1, .dtype = MOEWE_DTYPE_BF16, .tokens = tokens[i]};
        moewe_config cfg;
        planner_plan p;

        plan_of(a, m, &ask, &p);
        cfg = p.moe;
        cfg.workspace_limit = 0;
        assert_int_equal(cfg.max_tokens, tokens[i]);
        assert_int_equal(p.workspace, need_of(a->dev, &cfg));
        planner_close(m);
    }
    checked(a, "props.0");
}

/* Layers of other widths and counts: parameters by layer, and the workspace of the one that needs most. */
static void by_layer(accident *a)
{
    const json_t *layers = json_object_get(a->params, "layers");
    uint64_t h = (uint64_t)number(a->params, "hidden"), params = 0, most = 0;
    moewe_workspace *ws;
    moewe_need need;

    CHECK_OK(moewe_workspace_create(a->dev, 1, &ws));
    for (size_t i = 0; i < json_array_size(layers); i++) {
        moewe_config cfg = config_of(json_array_get(layers, i));
        moewe_plan *plan;

        cfg.hidden = (int32_t)h;
        cfg.top_k = (int32_t)number(a->params, "top_k");
        cfg.max_tokens = (int32_t)number(a->params, "tokens");
        cfg.x_dtype = cfg.w_dtype = MOEWE_DTYPE_BF16;
        params += 3 * bytes_in(a, "bf16", (uint64_t)cfg.n_experts, (uint64_t)cfg.inter, h).values / 2;
        if (need_of(a->dev, &cfg) > most) most = need_of(a->dev, &cfg);
        CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
        CHECK_OK(moewe_workspace_reserve(ws, plan));
        moewe_plan_destroy(plan);
    }
    expects(a, "exact", "routed_params", params);
    CHECK_OK(moewe_workspace_need(ws, &need));
    assert_int_equal(need.bytes, most);
    checked(a, "props.0");
    moewe_workspace_destroy(ws);
}

static void mixed_formats(accident *a)
{
    const json_t *layers = json_object_get(a->params, "layers");
    uint64_t n = (uint64_t)number(a->params, "experts"), h = (uint64_t)number(a->params, "hidden");
    uint64_t i = (uint64_t)number(a->params, "intermediate");

    for (size_t l = 0; l < json_array_size(layers); l++) {
        const char *format = text_or(json_array_get(layers, l), "weights", "");
        weight_bytes up = bytes_in(a, format, 2 * n, i, h), down = bytes_in(a, format, n, h, i);

        one_of(a, "bytes", l, (int64_t)(up.values + up.scales + down.values + down.scales));
    }
    checked(a, "exact.bytes");
}

/* ---- packing ---- */

/* Packing fills memory that the caller gave and takes none of its own: no transient at all. */
static void pack_in_place(accident *a)
{
    moewe_config cfg = config_of(a->params);
    moewe_weights out;
    moewe_need need;
    moewe_plan *plan;
    moewe_span mem;
    layer_case c;
    int taken;

    cfg.hidden = 64;
    cfg.inter = 128;
    case_build(&c, &cfg, 1, 0, 1);
    c.cfg.max_tokens = 1;
    CHECK_OK(moewe_plan_create(a->dev, &c.cfg, &plan));
    CHECK_OK(moewe_weights_need(plan, &c.w, &need));
    mem = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    count_allocations();
    CHECK_OK(moewe_weights_pack(plan, &c.w, mem, NULL, &out));
    taken = allocations();
    assert_int_equal(taken, 0);
    if (has_expectation(a, "max", "transient_bytes")) expects(a, "max", "transient_bytes", (uint64_t)taken);
    if (has_expectation(a, "max", "peak_over_final")) {
        double final = 3.0 * cfg.n_experts * 64 * 128 * 4;

        CHECK((double)need.bytes <= final * real_or(json_object_get(a->expect, "max"), "peak_over_final", 0.0),
              "%s: %llu bytes for %g", a->id, (unsigned long long)need.bytes, final);
        checked(a, "max.peak_over_final");
    }
    free(mem.ptr);
    moewe_plan_destroy(plan);
    case_free(&c);
}

/* What is resident is what the matrices hold. */
static void resident(accident *a)
{
    moewe_config cfg = config_of(a->params);
    moewe_weights w;
    moewe_plan *plan;
    moewe_need need;
    double planned;
    thin t;

    cfg.hidden = 2048;
    cfg.inter = 768 / (int32_t)number(a->params, "tp");
    cfg.w_dtype = cfg.x_dtype = MOEWE_DTYPE_BF16;
    w = thin_weights(&cfg, &t);
    planned = 3.0 * cfg.n_experts * cfg.hidden * cfg.inter * 2.0;
    CHECK_OK(moewe_plan_create(a->dev, &cfg, &plan));
    CHECK_OK(moewe_weights_need(plan, &w, &need));
    CHECK((double)need.bytes >= planned && (double)need.bytes <= 1.01 * planned, "%s: %llu bytes for %g", a->id,
          (unsigned long long)need.bytes, planned);
    checked(a, "props.0");
    moewe_plan_destroy(plan);
    thin_free(&t);
}

const entry planner_entries[] = {
    {"C132", refused_split, 1},
    {"C133", split, 1},
    {"C134", split, 1},
    {"C136", split, 1},
    {"C137", refused_split, 1},
    {"C138", ragged_blocks, 1},
    {"C139", split, 1},
    {"C153", other_names, 1},
    {"C154", dense_or_incomplete, 1},
    {"C155", every_other_layer, 1},
    {"C157", nested_fields, 1},
    {"C160", every_tensor, 1},
    {"C161", three_groups, 1},
    {"C162", spread_experts, 1},
    {"C163", by_layer, 0},
    {"C165", mixed_formats, 1},
    {"C166", pack_in_place, 0},
    {"C167", pack_in_place, 0},
    {"C168", resident, 0},
    {"C171", never_less, 0},
    {"C187", one_description, 1},
    {"C191", division_by_none, 1},
    {"C197", lost_family, 1},
    {NULL, NULL, 0},
};
