/* test_model_block.c - from names to tensors: block names, the views of a MoE block in both forms on disk, the
 * other parts of the decoder, and checkpoints in which one tensor is not as the config says. */
#include <inttypes.h>

#include "files.h"
#include "formats/model.h"

#define WORDMATH MOEWE_SOURCE_DIR "/models/wordmath"
#define VECTORS  MOEWE_SOURCE_DIR "/tests/data/vectors"

typedef struct opened {
    model_config c;
    st_store *s;
} opened;

static opened open_model(const char *dir)
{
    opened m;
    fmt_error e = {""};
    if (model_config_load(dir, &m.c, &e) != 0) fail_msg("%s", e.text);
    if (st_open(dir, &m.s, &e) != 0) fail_msg("%s", e.text);
    return m;
}

static void close_model(opened *m)
{
    st_close(m->s);
    model_config_free(&m->c);
}

/* Where moewe.h says that an element is. */
static const unsigned char *element(const moewe_matrix *m, int64_t rows, int64_t cols, int64_t e, int64_t r, int64_t c)
{
    int64_t size = m->dtype == MOEWE_DTYPE_F32 ? 4 : 2;
    int64_t col = m->col_stride ? m->col_stride : size, row = m->row_stride ? m->row_stride : cols * size;
    int64_t expert = m->expert_stride ? m->expert_stride : rows * row;
    const unsigned char *base = m->experts ? m->experts[e] : (const unsigned char *)m->data + e * expert;
    return base + r * row + c * col;
}

static unsigned bits16(const moewe_matrix *m, int64_t rows, int64_t cols, int64_t e, int64_t r, int64_t c)
{
    const unsigned char *p = element(m, rows, cols, e, r, c);
    return p[0] | (unsigned)p[1] << 8;
}

static void test_names(void **state)
{
    opened m = open_model(VECTORS "/mixtral");
    opened q = open_model(VECTORS "/qwen3_moe");
    static const char *const bad[] = {"",
                                      "2",
                                      "-1",
                                      "01",
                                      "1 ",
                                      "99999999999999999999",
                                      "model.layers.2.mlp",
                                      "model.layers.1",
                                      "model.layers..mlp",
                                      "model.layers.1.mlp.experts",
                                      "model.layers.01.mlp",
                                      "model.layers.1.block_sparse_moe.",
                                      "layers.1.mlp"};
    char name[64];
    int32_t layer = -1;
    fmt_error e = {""};
    (void)state;
    model_block_name(&m.c, 1, name, sizeof name);
    assert_string_equal(name, "model.layers.1.mlp");
    model_block_name(&q.c, 12345, name, sizeof name);
    assert_string_equal(name, "model.layers.12345.mlp");
    model_block_name(&q.c, 1, name, 6);
    assert_string_equal(name, "model");

    assert_int_equal(model_block_find(&m.c, "1", &layer, &e), 0);
    assert_int_equal(layer, 1);
    assert_int_equal(model_block_find(&m.c, "model.layers.0.mlp", &layer, &e), 0);
    assert_int_equal(layer, 0);
    assert_int_equal(model_block_find(&m.c, "model.layers.1.block_sparse_moe", &layer, &e), 0);
    assert_int_equal(layer, 1);
    assert_int_equal(model_block_find(&q.c, "model.layers.1.mlp", &layer, &e), 0);
    assert_int_equal(model_block_find(&q.c, "model.layers.1.block_sparse_moe", &layer, &e), -1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        layer = 77;
        assert_int_equal(model_block_find(&m.c, bad[i], &layer, &e), -1);
        assert_int_equal(layer, 77);
        assert_mentions(e.text, (const char *[]){"config.json", bad[i], NULL});
    }
    assert_int_equal(model_block_find(&m.c, "7", &layer, &e), -1);
    assert_mentions(e.text, (const char *[]){"'7'", "0 to 1", NULL});

    m.c.layer_is_moe[0] = 0;
    assert_int_equal(model_block_find(&m.c, "model.layers.0.mlp", &layer, &e), -1);
    assert_mentions(e.text, (const char *[]){"layer 0 is dense", "first is 1", NULL});
    m.c.layer_is_moe[1] = 0;
    assert_int_equal(model_block_find(&m.c, "1", &layer, &e), -1);
    assert_mentions(e.text, (const char *[]){"layer 1 is dense", "all 2 layers", NULL});
    close_model(&m);
    close_model(&q);
}

/* The values were read from the files with Python's struct module. */
static void test_separate_experts(void **state)
{
    model_block b;
    fmt_error e = {""};
    opened m = open_model(WORDMATH);
    (void)state;
    assert_int_equal(model_block_open(&m.c, m.s, 0, &b, &e), 0);
    assert_int_equal(b.w.struct_size, sizeof b.w);
    assert_int_equal(b.w_dtype, MOEWE_DTYPE_BF16);
    assert_int_equal(b.w.up.dtype, MOEWE_DTYPE_BF16);
    assert_int_equal(b.w.router.dtype, MOEWE_DTYPE_BF16);
    assert_null(b.w.select_bias);
    assert_null(b.w.shared_gate.data);
    assert_int_equal(bits16(&b.w.up, 128, 256, 10, 0, 1), 0x3d09);
    assert_int_equal(bits16(&b.w.up, 128, 256, 10, 0, 130), 0xbcf8);
    assert_int_equal(bits16(&b.w.up, 128, 256, 10, 127, 255), 0x3b42);
    model_block_close(&b);
    assert_int_equal(model_block_open(&m.c, m.s, 1, &b, &e), 0);
    assert_int_equal(b.bytes, 6307840);
    model_block_close(&b);
    assert_int_equal(model_block_open(&m.c, m.s, 2, &b, &e), 0);
    assert_int_equal(bits16(&b.w.gate, 128, 256, 7, 0, 0), 0xbb31);
    assert_int_equal(bits16(&b.w.gate, 128, 256, 7, 127, 255), 0x3cac);
    assert_int_equal(bits16(&b.w.router, 32, 256, 0, 0, 1), 0x3d3a);
    assert_int_equal(bits16(&b.w.router, 32, 256, 0, 31, 255), 0x3d9f);
    model_block_close(&b);
    assert_int_equal(model_block_open(&m.c, m.s, 3, &b, &e), 0);
    assert_int_equal(bits16(&b.w.down, 256, 128, 31, 0, 1), 0x3d3f);
    assert_int_equal(bits16(&b.w.down, 256, 128, 31, 1, 2), 0xbdc4); /* element 130 */
    assert_int_equal(bits16(&b.w.down, 256, 128, 31, 255, 127), 0x3d96);
    model_block_close(&b);
    model_block_close(NULL);
    assert_int_equal(model_block_open(&m.c, m.s, 4, &b, &e), -1);
    assert_int_equal(model_block_open(&m.c, m.s, -1, &b, &e), -1);
    close_model(&m);

    m = open_model(VECTORS "/mixtral");
    assert_int_equal(model_block_open(&m.c, m.s, 1, &b, &e), 0);
    assert_int_equal(b.bytes, 246784);
    assert_int_equal(bits16(&b.w.gate, 80, 64, 5, 0, 0), 0x3d97); /* w1 */
    assert_int_equal(bits16(&b.w.gate, 80, 64, 5, 79, 63), 0xbda2);
    assert_int_equal(bits16(&b.w.up, 80, 64, 5, 0, 0), 0xbddf); /* w3 */
    assert_int_equal(bits16(&b.w.up, 80, 64, 5, 79, 63), 0x3d16);
    assert_int_equal(bits16(&b.w.down, 64, 80, 5, 0, 0), 0x3ce6); /* w2 */
    assert_int_equal(bits16(&b.w.down, 64, 80, 5, 63, 79), 0xbdcb);
    assert_int_equal(bits16(&b.w.router, 8, 64, 0, 0, 30), 0xbd33);
    model_block_close(&b);
    close_model(&m);
}

/* ---- a checkpoint small enough to break: hidden 4, inter 2, 3 experts, one MoE layer and one dense one ------- */

enum { HIDDEN = 4, INTER = 2, EXPERTS = 3, MAX_TENSORS = 64 };

static const char small_config[] = "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":2,\"hidden_size\":4,\"vocab_"
                                   "size\":6,\"num_attention_heads\":2,"
                                   "\"num_key_value_heads\":1,\"head_dim\":6,\"max_position_embeddings\":9,\"hidden_"
                                   "act\":\"silu\",\"intermediate_size\":5,"
                                   "\"moe_intermediate_size\":2,\"num_experts\":3,\"num_experts_per_tok\":2,\"mlp_only_"
                                   "layers\":[1],\"attention_bias\":true%s}";

typedef struct checkpoint {
    st_tensor t[MAX_TENSORS];
    char names[MAX_TENSORS][96];
    float values[2048];
    size_t n, used;
} checkpoint;

/* Element (r, c) of the tensor is start + r * cols + c. */
static st_tensor *add(checkpoint *p, int32_t rank, int64_t d0, int64_t d1, int64_t d2, float start, const char *format,
                      int layer, int expert)
{
    st_tensor *t = &p->t[p->n];
    int64_t count = d0 * (rank > 1 ? d1 : 1) * (rank > 2 ? d2 : 1);
    assert_true(p->n < MAX_TENSORS && p->used + (size_t)count <= 2048);
    snprintf(p->names[p->n], sizeof p->names[0], format, layer, expert);
    *t = (st_tensor){.name = p->names[p->n], .dtype = ST_F32, .rank = rank, .shape = {d0, d1, d2}};
    t->data = p->values + p->used;
    t->bytes = (uint64_t)count * 4;
    for (int64_t i = 0; i < count; i++) p->values[p->used++] = start + (float)i;
    p->n++;
    return t;
}

static void add_decoder(checkpoint *p)
{
    add(p, 2, 6, HIDDEN, 0, 0, "model.embed_tokens.weight", 0, 0);
    add(p, 1, HIDDEN, 0, 0, 0, "model.norm.weight", 0, 0);
    add(p, 2, 6, HIDDEN, 0, 0, "lm_head.weight", 0, 0);
    for (int l = 0; l < 2; l++) {
        add(p, 1, HIDDEN, 0, 0, 0, "model.layers.%d.input_layernorm.weight", l, 0);
        add(p, 1, HIDDEN, 0, 0, 0, "model.layers.%d.post_attention_layernorm.weight", l, 0);
        add(p, 2, 12, HIDDEN, 0, 0, "model.layers.%d.self_attn.q_proj.weight", l, 0);
        add(p, 2, 6, HIDDEN, 0, 0, "model.layers.%d.self_attn.k_proj.weight", l, 0);
        add(p, 2, 6, HIDDEN, 0, 0, "model.layers.%d.self_attn.v_proj.weight", l, 0);
        add(p, 2, HIDDEN, 12, 0, 0, "model.layers.%d.self_attn.o_proj.weight", l, 0);
        add(p, 1, 6, 0, 0, 0, "model.layers.%d.self_attn.q_norm.weight", l, 0);
        add(p, 1, 6, 0, 0, 0, "model.layers.%d.self_attn.k_norm.weight", l, 0);
        add(p, 1, 12, 0, 0, 0, "model.layers.%d.self_attn.q_proj.bias", l, 0);
        add(p, 1, 6, 0, 0, 0, "model.layers.%d.self_attn.k_proj.bias", l, 0);
        add(p, 1, 6, 0, 0, 0, "model.layers.%d.self_attn.v_proj.bias", l, 0);
        add(p, 1, HIDDEN, 0, 0, 0, "model.layers.%d.self_attn.o_proj.bias", l, 0);
    }
    add(p, 2, 5, HIDDEN, 0, 0, "model.layers.%d.mlp.gate_proj.weight", 1, 0);
    add(p, 2, 5, HIDDEN, 0, 0, "model.layers.%d.mlp.up_proj.weight", 1, 0);
    add(p, 2, HIDDEN, 5, 0, 0, "model.layers.%d.mlp.down_proj.weight", 1, 0);
}

/* gate of expert e starts at 100 (e + 1), up at 100 (e + 1) + 8, down at 100 (e + 1) + 50. */
static void add_experts(checkpoint *p, int stacked)
{
    add(p, 2, EXPERTS, HIDDEN, 0, 0, "model.layers.%d.mlp.gate.weight", 0, 0);
    if (stacked) {
        float *first = p->values + p->used, *second = first + EXPERTS * 2 * INTER * HIDDEN;
        add(p, 3, EXPERTS, 2 * INTER, HIDDEN, 0, "model.layers.%d.mlp.experts.gate_up_proj", 0, 0);
        add(p, 3, EXPERTS, HIDDEN, INTER, 0, "model.layers.%d.mlp.experts.down_proj", 0, 0);
        for (int e = 0; e < EXPERTS; e++) {
            for (int i = 0; i < 16; i++) first[16 * e + i] = 100.0f * (float)(e + 1) + (float)i;
            for (int i = 0; i < 8; i++) second[8 * e + i] = 100.0f * (float)(e + 1) + 50 + (float)i;
        }
        return;
    }
    for (int e = EXPERTS - 1; e >= 0; e--) {
        add(p, 2, HIDDEN, INTER, 0, 100.0f * (float)(e + 1) + 50, "model.layers.%d.mlp.experts.%d.down_proj.weight", 0,
            e);
        add(p, 2, INTER, HIDDEN, 0, 100.0f * (float)(e + 1) + 8, "model.layers.%d.mlp.experts.%d.up_proj.weight", 0, e);
        add(p, 2, INTER, HIDDEN, 0, 100.0f * (float)(e + 1), "model.layers.%d.mlp.experts.%d.gate_proj.weight", 0, e);
    }
}

static void put_checkpoint(const checkpoint *p, const char *more_config)
{
    char config[1024];
    fmt_error e = {""};
    snprintf(config, sizeof config, small_config, more_config);
    put_text("config.json", config);
    if (st_write(in_folder("model.safetensors"), p->t, p->n, &e) != 0) fail_msg("%s", e.text);
}

static checkpoint *new_checkpoint(int stacked)
{
    checkpoint *p = calloc(1, sizeof *p);
    assert_non_null(p);
    add_decoder(p);
    add_experts(p, stacked);
    return p;
}

static float value(const moewe_matrix *m, int64_t rows, int64_t cols, int64_t e, int64_t r, int64_t c)
{
    float v;
    memcpy(&v, element(m, rows, cols, e, r, c), sizeof v);
    return v;
}

static void test_both_forms(void **state)
{
    (void)state;
    for (int stacked = 0; stacked < 2; stacked++) {
        checkpoint *p = new_checkpoint(stacked);
        model_block b;
        fmt_error e = {""};
        put_checkpoint(p, "");
        opened m = open_model(in_folder(""));
        if (model_block_open(&m.c, m.s, 0, &b, &e) != 0) fail_msg("%s", e.text);
        assert_int_equal(b.w_dtype, MOEWE_DTYPE_F32);
        assert_int_equal(b.bytes, 4 * (3 * 4 + 3 * (8 + 8 + 8)));
        for (int x = 0; x < EXPERTS; x++)
            for (int i = 0; i < INTER; i++)
                for (int h = 0; h < HIDDEN; h++) {
                    float base = 100.0f * (float)(x + 1);
                    assert_true(value(&b.w.gate, INTER, HIDDEN, x, i, h) == base + (float)(i * HIDDEN + h));
                    assert_true(value(&b.w.up, INTER, HIDDEN, x, i, h) == base + 8 + (float)(i * HIDDEN + h));
                    assert_true(value(&b.w.down, HIDDEN, INTER, x, h, i) == base + 50 + (float)(h * INTER + i));
                }
        assert_true(value(&b.w.router, EXPERTS, HIDDEN, 0, 2, 1) == 9);
        model_block_close(&b);
        assert_int_equal(model_block_open(&m.c, m.s, 1, &b, &e), -1);
        assert_mentions(e.text, (const char *[]){"layer 1 is dense", NULL});
        close_model(&m);
        free(p);
    }
    empty_folder();
}

/* One tensor of the block is dropped (shape 0), has another shape or another dtype. */
static void test_broken_blocks(void **state)
{
    static const struct {
        int stacked;
        const char *name;
        int64_t d0, d1;
        st_dtype dtype;
        const char *words[3];
    } rows[] = {
        {0, "gate.weight", 0, 0, ST_F32, {"has no tensor", "[3, 4]"}},
        {0, "gate.weight", 4, 3, ST_F32, {"[4, 3]", "[3, 4]"}},
        {0, "gate.weight", 3, 4, ST_I32, {"I32", "BF16"}},
        {0, "experts.1.up_proj.weight", 0, 0, ST_F32, {"has no tensor", "[2, 4]"}},
        {0, "experts.0.gate_proj.weight", 0, 0, ST_F32, {"has no tensor", "[2, 4]"}},
        {0, "experts.2.down_proj.weight", 0, 0, ST_F32, {"has no tensor", "[4, 2]"}},
        {0, "experts.2.gate_proj.weight", 4, 2, ST_F32, {"[4, 2]", "[2, 4]"}},
        {0, "experts.1.down_proj.weight", 2, 4, ST_F32, {"[2, 4]", "[4, 2]"}},
        {0, "experts.1.down_proj.weight", 4, 2, ST_BF16, {"BF16", "f32"}},
        {0, "experts.1.down_proj.weight", 4, 2, ST_F8_E4M3, {"F8_E4M3", "BF16"}},
        {1, "experts.gate_up_proj", 0, 0, ST_F32, {"has no tensor"}},
        {1, "experts.down_proj", 0, 0, ST_F32, {"has no tensor", "[3, 4, 2]"}},
        {1, "experts.gate_up_proj", 4, 3, ST_F32, {"[4, 3, 4]", "[3, 4, 4]"}},
        {1, "experts.down_proj", 4, 3, ST_F32, {"[4, 3, 2]", "[3, 4, 2]"}},
        {1, "experts.down_proj", 3, 4, ST_U8, {"U8", "BF16"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        checkpoint *p = new_checkpoint(rows[i].stacked);
        char name[96];
        size_t at = 0;
        model_block b;
        fmt_error e = {""};
        snprintf(name, sizeof name, "model.layers.0.mlp.%s", rows[i].name);
        while (at < p->n && strcmp(p->t[at].name, name) != 0) at++;
        assert_true(at < p->n);
        st_tensor *t = &p->t[at];
        t->shape[0] = rows[i].d0;
        t->shape[1] = rows[i].d1;
        t->dtype = rows[i].dtype;
        t->bytes = (uint64_t)(t->shape[0] * t->shape[1] * (t->rank > 2 ? t->shape[2] : 1)) * st_dtype_bytes(t->dtype);
        if (!rows[i].d0) *t = p->t[--p->n];
        put_checkpoint(p, "");
        opened m = open_model(in_folder(""));
        if (model_block_open(&m.c, m.s, 0, &b, &e) == 0) fail_msg("row %zu was opened", i);
        /* without the stacked gate and up, the separate form is what is missed */
        const char *missed = rows[i].stacked && !rows[i].d0 && strstr(name, "gate_up") ? "experts.0.gate_proj" : name;
        assert_mentions(e.text,
                        (const char *[]){"model.safetensors", missed, rows[i].words[0], rows[i].words[1], NULL});
        close_model(&m);
        free(p);
    }

    checkpoint *p = new_checkpoint(1);
    model_block b;
    fmt_error e = {""};
    add(p, 2, INTER, HIDDEN, 0, 0, "model.layers.%d.mlp.experts.%d.gate_proj.weight", 0, 0);
    put_checkpoint(p, "");
    opened m = open_model(in_folder(""));
    assert_int_equal(model_block_open(&m.c, m.s, 0, &b, &e), -1);
    assert_mentions(e.text, (const char *[]){"model.safetensors", "both", "gate_up_proj", "experts.0.gate_proj", NULL});
    close_model(&m);
    free(p);
    empty_folder();
}

static void test_parts(void **state)
{
    static const struct {
        model_part part;
        int layer;
        const char *name; /* NULL: absent */
    } rows[] = {
        {MODEL_EMBED, -1, "model.embed_tokens.weight"},
        {MODEL_FINAL_NORM, 99, "model.norm.weight"},
        {MODEL_LM_HEAD, 0, "lm_head.weight"},
        {MODEL_ATTN_NORM, 1, "model.layers.1.input_layernorm.weight"},
        {MODEL_MLP_NORM, 0, "model.layers.0.post_attention_layernorm.weight"},
        {MODEL_Q, 1, "model.layers.1.self_attn.q_proj.weight"},
        {MODEL_K, 1, "model.layers.1.self_attn.k_proj.weight"},
        {MODEL_V, 1, "model.layers.1.self_attn.v_proj.weight"},
        {MODEL_O, 0, "model.layers.0.self_attn.o_proj.weight"},
        {MODEL_Q_NORM, 1, "model.layers.1.self_attn.q_norm.weight"},
        {MODEL_K_NORM, 1, "model.layers.1.self_attn.k_norm.weight"},
        {MODEL_DENSE_GATE, 1, "model.layers.1.mlp.gate_proj.weight"},
        {MODEL_DENSE_UP, 1, "model.layers.1.mlp.up_proj.weight"},
        {MODEL_DENSE_DOWN, 1, "model.layers.1.mlp.down_proj.weight"},
        {MODEL_DENSE_GATE, 0, NULL},
        {MODEL_DENSE_DOWN, 0, NULL},
        {MODEL_Q_BIAS, 1, "model.layers.1.self_attn.q_proj.bias"},
        {MODEL_K_BIAS, 1, "model.layers.1.self_attn.k_proj.bias"},
        {MODEL_V_BIAS, 1, "model.layers.1.self_attn.v_proj.bias"},
        {MODEL_O_BIAS, 1, "model.layers.1.self_attn.o_proj.bias"},
    };
    checkpoint *p = new_checkpoint(0);
    fmt_error e = {""};
    int absent = -1;
    (void)state;
    put_checkpoint(p, "");
    opened m = open_model(in_folder(""));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const st_tensor *t = model_part_find(&m.c, m.s, rows[i].part, rows[i].layer, &absent, &e);
        if (rows[i].name && !t) fail_msg("%s: %s", rows[i].name, e.text);
        assert_int_equal(absent, rows[i].name == NULL);
        if (rows[i].name)
            assert_string_equal(t->name, rows[i].name);
        else
            assert_null(t);
    }
    assert_string_equal(e.text, "");
    assert_null(model_part_find(&m.c, m.s, MODEL_Q, 2, &absent, &e));
    assert_int_equal(absent, 0);
    assert_mentions(e.text, (const char *[]){"layer 2", "0 to 1", NULL});
    assert_null(model_part_find(&m.c, m.s, MODEL_PART_COUNT, 0, &absent, &e));
    close_model(&m);

    put_checkpoint(p, ",\"tie_word_embeddings\":true");
    m = open_model(in_folder(""));
    assert_null(model_part_find(&m.c, m.s, MODEL_LM_HEAD, 0, &absent, &e));
    assert_int_equal(absent, 1);
    close_model(&m);

    /* every tensor of the decoder in turn: one row too many, then gone */
    size_t decoder = p->n - 10;
    for (size_t i = 0; i < decoder; i++)
        for (int gone = 0; gone < 2; gone++) {
            checkpoint *bad = malloc(sizeof *bad);
            int failures = 0;
            assert_non_null(bad);
            *bad = *p;
            bad->t[i].shape[0]++;
            bad->t[i].bytes = (uint64_t)(bad->t[i].shape[0] * (bad->t[i].rank > 1 ? bad->t[i].shape[1] : 1)) * 4;
            if (gone) bad->t[i] = bad->t[--bad->n];
            put_checkpoint(bad, "");
            m = open_model(in_folder(""));
            for (int part = 0; part < MODEL_PART_COUNT; part++)
                for (int l = 0; l < (part <= MODEL_LM_HEAD ? 1 : 2); l++) {
                    if (model_part_find(&m.c, m.s, (model_part)part, l, &absent, &e) || absent) continue;
                    failures++;
                    assert_mentions(e.text, (const char *[]){"model.safetensors", p->t[i].name, "[", "expected", NULL});
                }
            assert_int_equal(failures, 1);
            close_model(&m);
            free(bad);
        }
    free(p);
    empty_folder();

    m = open_model(VECTORS "/mixtral");
    assert_null(model_part_find(&m.c, m.s, MODEL_Q_NORM, 0, &absent, &e));
    assert_int_equal(absent, 1);
    assert_null(model_part_find(&m.c, m.s, MODEL_Q_BIAS, 0, &absent, &e));
    assert_int_equal(absent, 1);
    assert_null(model_part_find(&m.c, m.s, MODEL_DENSE_UP, 0, &absent, &e));
    assert_int_equal(absent, 1);
    assert_non_null(model_part_find(&m.c, m.s, MODEL_LM_HEAD, 0, NULL, &e));
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),      cmocka_unit_test(test_separate_experts),
        cmocka_unit_test(test_both_forms), cmocka_unit_test(test_broken_blocks),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
