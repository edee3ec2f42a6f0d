/* GGUF files: containers laid out by hand, the tensors and the config.json that are made of them, and the writer
 * against bytes of the same layout. */
#include <jansson.h>
#include <string.h>

#include "files.h"
#include "gguf_bytes.h"
#include "formats/gguf.h"
#include "formats/model.h"
#include "formats/tokenizer.h"
#include "tests/data/quant_vectors.h"

#define EXTENTS(...) ((const uint64_t[]){__VA_ARGS__, 0})
#define WORDS(...)   ((const char *const[]){__VA_ARGS__, NULL})

/* The MoE block of gg_decoder. */
static void add_block(void)
{
    gg_tensor("blk.0.ffn_gate_inp.weight", T_F32, 11, EXTENTS(32, 2));
    gg_tensor("blk.0.ffn_gate_exps.weight", T_Q8_0, 12, EXTENTS(32, 32, 2));
    gg_tensor("blk.0.ffn_up_exps.weight", T_Q8_0, 13, EXTENTS(32, 32, 2));
    gg_tensor("blk.0.ffn_down_exps.weight", T_Q4_0, 14, EXTENTS(32, 32, 2));
}

static st_store *open_store(const char *name)
{
    st_store *s = NULL;
    fmt_error e;
    if (st_open(in_folder(name), &s, &e)) fail_msg("%s", e.text);
    return s;
}

static void refused(const char *name, const char *const *words)
{
    st_store *s = NULL;
    fmt_error e = {""};
    if (st_open(in_folder(name), &s, &e) == 0) fail_msg("accepted, though without '%s'", words[0]);
    assert_null(s);
    assert_mentions(e.text, words);
}

/* Byte i of the data that gg_tensor wrote is first + i. */
static void holds(const st_store *s, const char *name, st_dtype dtype, const char *shape, uint8_t first, uint64_t bytes)
{
    char found[96];
    const st_tensor *t = st_find(s, name);
    if (!t) fail_msg("no tensor %s", name);
    st_shape_text(t, found, sizeof found);
    assert_string_equal(found, shape);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->bytes, bytes);
    for (uint64_t i = 0; i < bytes; i++) assert_int_equal(((const uint8_t *)t->data)[i], (uint8_t)(first + i));
}

static void test_tensors(void **state)
{
    (void)state;
    gg_decoder();
    add_block();
    gg_finish("m.gguf");
    st_store *s = open_store("m.gguf");
    assert_int_equal(st_count(s), 11 + 3 * 2);
    holds(s, "model.embed_tokens.weight", ST_F16, "[6, 32]", 1, 6 * 64);
    holds(s, "model.norm.weight", ST_F32, "[32]", 2, 128);
    holds(s, "model.layers.0.self_attn.q_proj.weight", ST_Q8_0, "[32, 32]", 5, 32 * 34);
    holds(s, "model.layers.0.self_attn.o_proj.weight", ST_BF16, "[32, 32]", 8, 32 * 64);
    holds(s, "model.layers.0.mlp.gate.weight", ST_F32, "[2, 32]", 11, 256);
    holds(s, "model.layers.0.mlp.experts.0.gate_proj.weight", ST_Q8_0, "[32, 32]", 12, 32 * 34);
    holds(s, "model.layers.0.mlp.experts.1.gate_proj.weight", ST_Q8_0, "[32, 32]", (uint8_t)(12 + 32 * 34), 32 * 34);
    holds(s, "model.layers.0.mlp.experts.1.down_proj.weight", ST_Q4_0, "[32, 32]", (uint8_t)(14 + 32 * 18), 32 * 18);
    for (size_t i = 1; i < st_count(s); i++) assert_true(strcmp(st_at(s, i - 1)->name, st_at(s, i)->name) < 0);
    st_close(s);
}

static void test_fused(void **state)
{
    (void)state;
    gg_decoder();
    gg_tensor("blk.0.ffn_gate_inp.weight", T_F32, 11, EXTENTS(32, 2));
    gg_tensor("blk.0.ffn_gate_up_exps.weight", T_Q4_0, 20, EXTENTS(32, 64, 2));
    gg_tensor("blk.0.ffn_down_exps.weight", T_F32, 14, EXTENTS(32, 32, 2));
    gg_finish("m.gguf");
    st_store *s = open_store("m.gguf");
    for (int i = 0; i < 2; i++) {
        char name[80];
        uint8_t first = (uint8_t)(20 + i * 64 * 18);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.gate_proj.weight", i);
        holds(s, name, ST_Q4_0, "[32, 32]", first, 32 * 18);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.up_proj.weight", i);
        holds(s, name, ST_Q4_0, "[32, 32]", (uint8_t)(first + 32 * 18), 32 * 18);
    }
    st_close(s);
}

/* Shared experts, the bias for the choice, the gate of the shared expert; what has no other name keeps its own. */
static void test_other_architectures(void **state)
{
    (void)state;
    gg_start();
    gg_text("general.architecture", "qwen2moe");
    gg_tensor("blk.7.ffn_gate_inp_shexp.weight", T_F32, 1, EXTENTS(8));
    gg_tensor("blk.7.ffn_up_shexp.weight", T_F32, 2, EXTENTS(8, 2));
    gg_tensor("rope_freqs.weight", T_F32, 3, EXTENTS(8));
    gg_finish("m.gguf");
    st_store *s = open_store("m.gguf");
    holds(s, "model.layers.7.mlp.shared_expert_gate.weight", ST_F32, "[1, 8]", 1, 32);
    holds(s, "model.layers.7.mlp.shared_expert.up_proj.weight", ST_F32, "[2, 8]", 2, 64);
    holds(s, "rope_freqs.weight", ST_F32, "[8]", 3, 32);
    st_close(s);

    gg_start();
    gg_text("general.architecture", "deepseek2");
    gg_tensor("blk.12.exp_probs_b.bias", T_F32, 1, EXTENTS(4));
    gg_tensor("blk.12.ffn_down_shexp.weight", T_F32, 2, EXTENTS(8, 2));
    gg_tensor("blk.12.attn_kv_a_mqa.weight", T_F32, 3, EXTENTS(8, 2));
    gg_finish("m.gguf");
    s = open_store("m.gguf");
    holds(s, "model.layers.12.mlp.gate.e_score_correction_bias", ST_F32, "[4]", 1, 16);
    holds(s, "model.layers.12.mlp.shared_experts.down_proj.weight", ST_F32, "[2, 8]", 2, 64);
    holds(s, "model.layers.12.self_attn.kv_a_proj_with_mqa.weight", ST_F32, "[2, 8]", 3, 64);
    st_close(s);
}

static void test_config(void **state)
{
    (void)state;
    model_config c;
    fmt_error e;
    int32_t expert;
    char name[80];
    gg_decoder();
    gg_u32("tokenizer.ggml.eos_token_id", 5);
    gg_u32("tokenizer.ggml.eot_token_id", 4);
    gg_u32("tokenizer.ggml.bos_token_id", 3);
    add_block();
    gg_finish("m.gguf");
    if (model_config_load(in_folder("m.gguf"), &c, &e)) fail_msg("%s", e.text);
    assert_string_equal(c.model_type, "qwen3_moe");
    assert_string_equal(c.file, in_folder("m.gguf"));
    assert_int_equal(c.engine, 1);
    assert_int_equal(c.n_layers, 1);
    assert_int_equal(c.hidden, 32);
    assert_int_equal(c.vocab, 6);
    assert_int_equal(c.n_heads, 2);
    assert_int_equal(c.n_kv_heads, 1);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.max_position, 64);
    assert_true(c.rms_eps == 1e-5f);
    assert_true(c.rope_theta == 5000.0);
    assert_int_equal(c.tie_embeddings, 1);
    assert_int_equal(c.attention_bias, 0);
    assert_int_equal(c.bos_id, 3);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[0], 5);
    assert_int_equal(c.eos_ids[1], 4);
    assert_int_equal(c.layer_is_moe[0], 1);
    assert_int_equal(c.moe.inter, 32);
    assert_int_equal(c.moe.n_experts, 2);
    assert_int_equal(c.moe.top_k, 1);
    assert_int_equal(c.moe.flags, MOEWE_FLAG_RENORMALIZE);
    /* the type of each matrix, for plans */
    assert_string_equal(weight_quant_of(&c.quant, "model.layers.0.self_attn.q_proj", 0).name, "q8_0");
    assert_string_equal(weight_quant_of(&c.quant, "model.layers.0.self_attn.v_proj", 0).name, "q4_0");
    assert_string_equal(weight_quant_of(&c.quant, "model.layers.0.self_attn.o_proj", 0).name, "bf16");
    assert_string_equal(weight_quant_of(&c.quant, "model.layers.0.mlp.experts.0.up_proj", 1).name, "q8_0");
    assert_string_equal(weight_quant_of(&c.quant, "model.layers.0.mlp.gate", 0).name, "f32");
    model_config_free(&c);

    assert_int_equal(
        gguf_name_of("qwen3_moe", "model.layers.31.mlp.experts.127.down_proj.weight", name, sizeof name, &expert), 0);
    assert_string_equal(name, "blk.31.ffn_down_exps.weight");
    assert_int_equal(expert, 127);
    assert_int_equal(gguf_name_of("qwen3_moe", "lm_head.weight", name, sizeof name, &expert), 0);
    assert_string_equal(name, "output.weight");
    assert_int_equal(expert, -1);
    assert_int_equal(
        gguf_name_of("deepseek_v3", "model.layers.3.mlp.shared_experts.up_proj.weight", name, sizeof name, &expert), 0);
    assert_string_equal(name, "blk.3.ffn_up_shexp.weight");
    assert_int_equal(
        gguf_name_of("qwen3_moe", "model.layers.3.mlp.shared_experts.up_proj.weight", name, sizeof name, &expert), -1);
    assert_int_equal(gguf_name_of("qwen3_moe", "model.layers.03.mlp.gate.weight", name, sizeof name, &expert), -1);
    assert_int_equal(gguf_name_of("qwen3_moe", "model.layers.3.mlp.gate.weight", name, 10, &expert), -1);
    assert_int_equal(gguf_name_of("mixtral", "lm_head.weight", name, sizeof name, &expert), -1);
}

/* ---- the tokenizer -------------------------------------------------------------------------------------------- */

static void put_tokens(const char *pre, int add_bos)
{
    gg_decoder();
    gg_text("tokenizer.ggml.model", "gpt2");
    if (pre) gg_text("tokenizer.ggml.pre", pre);
    gg_texts("tokenizer.ggml.tokens", WORDS("a", "b", "ab", "\304\240", "<e>", "<b>", "[PAD6]"));
    gg_ints("tokenizer.ggml.token_type", (const int32_t[]){1, 1, 1, 1, 3, 4, 5}, 7);
    gg_texts("tokenizer.ggml.merges", WORDS("a b"));
    gg_u32("tokenizer.ggml.bos_token_id", 5);
    gg_bool("tokenizer.ggml.add_bos_token", add_bos);
    gg_finish("m.gguf");
}

static void encodes(const tok *t, const char *text, const int32_t *wanted, size_t n)
{
    int32_t *ids = NULL;
    size_t found = 0;
    fmt_error e;
    if (tok_encode(t, text, strlen(text), &ids, &found, &e)) fail_msg("%s", e.text);
    assert_int_equal(found, n);
    assert_memory_equal(ids, wanted, n * sizeof *ids);
    free(ids);
}

static void test_tokenizer(void **state)
{
    tok *t = NULL;
    size_t n;
    fmt_error e;
    (void)state;
    for (int bos = 0; bos < 2; bos++) {
        put_tokens(bos ? "gpt-2" : "qwen2", bos);
        if (tok_open(in_folder("m.gguf"), &t, &e)) fail_msg("%s", e.text);
        encodes(t, "ab <e>ba<b>", bos ? (const int32_t[]){5, 2, 3, 4, 1, 0, 5} : (const int32_t[]){2, 3, 4, 1, 0, 5},
                bos ? 7 : 6);
        assert_int_equal(tok_vocab(t), 6);
        assert_int_equal(tok_find(t, "<e>"), 4);
        assert_true(tok_is_special(t, 4));
        assert_false(tok_is_special(t, 5));
        assert_memory_equal(tok_bytes(t, 3, &n), " ", 1);
        assert_int_equal(n, 1);
        assert_null(tok_bytes(t, 6, &n));
        tok_close(t);
    }
    /* a tokenizer.json that is carried whole counts alone */
    gg_decoder();
    gg_text("tokenizer.ggml.model", "other");
    gg_text("tokenizer.huggingface.json",
            "{\"model\": {\"vocab\": {\"x\": 0}, \"merges\": []}, \"decoder\": {\"type\": \"ByteLevel\","
            "\"add_prefix_space\": false, \"trim_offsets\": false}}");
    gg_finish("m.gguf");
    if (tok_open(in_folder("m.gguf"), &t, &e)) fail_msg("%s", e.text);
    assert_int_equal(tok_vocab(t), 1);
    tok_close(t);
}

static void test_refused_tokenizers(void **state)
{
    static const struct {
        const char *words[3];
    } rows[] = {{{"tokenizer.ggml.pre is 'llama-bpe'", "qwen2"}},
                {{"tokenizer.ggml.pre is missing"}},
                {{"tokenizer.ggml.model is missing"}},
                {{"tokenizer.ggml.model is 'llama'", "gpt2"}},
                {{"tokenizer.ggml.tokens is missing"}},
                {{"tokenizer.ggml.tokens has type array of i32", "strings"}},
                {{"'a' twice, with the ids 0 and 1"}},
                {{"tokenizer.ggml.tokens[1] is no UTF-8"}},
                {{"token_type has 1 items, tokenizer.ggml.tokens 2"}},
                {{"tokenizer.ggml.merges is missing"}},
                {{"model.merges[0]", "not in model.vocab"}},
                {{"tokenizer.ggml.bos_token_id is 2, 0 to 1"}},
                {{"tokenizer.huggingface.json is not valid JSON"}},
                {{"tokenizer.huggingface.json holds a JSON array", "an object"}}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tok *t = NULL;
        fmt_error e = {""};
        gg_start();
        if (i >= 12) gg_text("tokenizer.huggingface.json", i == 12 ? "{\"a\": }" : "[]");
        if (i != 2) gg_text("tokenizer.ggml.model", i == 3 ? "llama" : "gpt2");
        if (i != 1) gg_text("tokenizer.ggml.pre", i == 0 ? "llama-bpe" : "qwen2");
        if (i == 5)
            gg_ints("tokenizer.ggml.tokens", (const int32_t[]){1}, 1);
        else if (i != 4)
            gg_texts("tokenizer.ggml.tokens", WORDS("a", i == 6 ? "a" : i == 7 ? "\303(" : "b"));
        if (i == 8) gg_ints("tokenizer.ggml.token_type", (const int32_t[]){1}, 1);
        if (i != 9) gg_texts("tokenizer.ggml.merges", i == 10 ? WORDS("a b") : WORDS(NULL));
        if (i == 11) gg_u32("tokenizer.ggml.bos_token_id", 2);
        gg_bool("tokenizer.ggml.add_bos_token", i == 11);
        gg_finish("m.gguf");
        assert_int_equal(tok_open(in_folder("m.gguf"), &t, &e), -1);
        assert_mentions(e.text, rows[i].words);
    }
}

/* ---- wrong files ---------------------------------------------------------------------------------------------- */

/* Two keys that are lists, an alignment, two tensors of one matrix each. */
static void small_file(void)
{
    gg_start();
    gg_text("general.architecture", "olmoe");
    gg_u32("general.alignment", 32);
    gg_ints("a.list", (const int32_t[]){1, 2, 3}, 3);
    gg_texts("b.list", WORDS("x", "yz"));
    gg_tensor("blk.0.ffn_norm.weight", T_F32, 0, EXTENTS(4, 2));
    gg_tensor("blk.1.ffn_norm.weight", T_F16, 0, EXTENTS(16));
}

static void test_patched(void **state)
{
    /* The text after whose last byte, and skip bytes further, width bytes become value. */
    static const struct {
        const char *after;
        int skip;
        uint64_t value;
        int width;
        const char *words[3];
    } rows[] = {
        {"GGUF", -1, 'g', 1, {"no GGUF file", "does not begin"}},
        {"GGUF", 0, 1, 4, {"version 1,", "2 and 3"}},
        {"GGUF", 0, 4, 4, {"version 4,"}},
        {"GGUF", 0, 0x03000000, 4, {"big-endian"}},
        {"GGUF", 4, UINT64_C(1) << 60, 8, {"1152921504606846976 tensors", "no room"}},
        {"GGUF", 4, 3, 8, {"m.gguf: byte"}},
        {"GGUF", 12, UINT64_MAX, 8, {"18446744073709551615 keys", "no room"}},
        {"general.alignment", -25, 0, 8, {"a key of 0 bytes"}},
        {"general.alignment", -25, UINT64_C(1) << 63, 8, {"a key takes 9223372036854775808 bytes", "truncated"}},
        {"general.alignment", -1, 7, 1, {"printable ASCII"}},
        {"general.alignment", -1, 0xc3, 1, {"printable ASCII"}},
        {"general.alignment", 0, 13, 4, {"general.alignment: its values have type 13"}},
        {"general.alignment", 0, V_F32, 4, {"general.alignment is no integer"}},
        {"general.alignment", 4, 0, 4, {"general.alignment is 0, a power of two"}},
        {"general.alignment", 4, 48, 4, {"general.alignment is 48, a power of two"}},
        {"general.alignment", 4, UINT32_C(1) << 31, 4, {"general.alignment is no integer from 0 to 1048576"}},
        {"a.list", 4, V_ARRAY, 4, {"a.list: its items have type 9", "arrays of arrays"}},
        {"a.list", 4, 99, 4, {"a.list: its items have type 99"}},
        {"a.list", 8, UINT64_C(1) << 62, 8, {"a.list: 4611686018427387904 items of 4 bytes"}},
        {"a.list", 8, UINT64_MAX, 8, {"a.list: 18446744073709551615 items"}},
        {"b.list", 8, UINT64_MAX, 8, {"truncated"}},
        {"b.list", 16, UINT64_MAX - 7, 8, {"a string takes 18446744073709551608 bytes"}},
        {"b.list", -6, 'a', 1, {"the key 'a.list' is there twice"}},
        {"blk.0.ffn_norm.weight", 0, 5, 4, {"'blk.0.ffn_norm.weight' has 5 extents, at most 4"}},
        {"blk.0.ffn_norm.weight", 4, 0, 8, {"has the extent 0"}},
        {"blk.0.ffn_norm.weight", 4, UINT64_C(1) << 63, 8, {"has the extent 9223372036854775808"}},
        {"blk.0.ffn_norm.weight", 4, UINT64_C(1) << 62, 8, {"does not fit 64 bits"}},
        {"blk.0.ffn_norm.weight", 12, UINT64_C(1) << 61, 8, {"does not fit 64 bits"}},
        {"blk.0.ffn_norm.weight", 20, 4, 4, {"has type 4, which is not known"}},
        {"blk.0.ffn_norm.weight", 20, T_Q5_K, 4, {"rows of 4 elements, whole blocks of 256", "Q5_K"}},
        {"blk.0.ffn_norm.weight", 24, 16, 8, {"at byte 16 of the data, a multiple of 32"}},
        {"blk.0.ffn_norm.weight", 24, 32, 8, {"share bytes"}},
        {"blk.1.ffn_norm.weight", 16, 64, 8, {"32 bytes from byte 64 of the data on, the file has 64"}},
        {"blk.1.ffn_norm.weight", 16, UINT64_MAX - 31, 8, {"from byte 18446744073709551584"}},
        {"blk.1.ffn_norm.weight", -17, '0', 1, {"'blk.0.ffn_norm.weight' is there twice"}},
    };
    (void)state;
    small_file();
    gg_finish("m.gguf");
    st_close(open_store("m.gguf"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n, length = strlen(rows[i].after);
        uint8_t patched[1024];
        const uint8_t *good = gg_bytes(&n), *at = memmem(good, n, rows[i].after, length);
        assert_true(at && n <= sizeof patched);
        memcpy(patched, good, n);
        for (int k = 0; k < rows[i].width; k++)
            patched[(at - good) + (ptrdiff_t)length + rows[i].skip + k] = (uint8_t)(rows[i].value >> 8 * k);
        put_bytes("m.gguf", patched, n);
        refused("m.gguf", rows[i].words);
    }
}

static void test_truncated(void **state)
{
    size_t n;
    (void)state;
    small_file();
    const uint8_t *good = gg_bytes(&n);
    for (size_t cut = 0; cut < n; cut++) {
        put_bytes("m.gguf", good, cut);
        refused("m.gguf", WORDS("m.gguf: "));
    }
}

static void test_refused_models(void **state)
{
    static const struct {
        const char *tensor;
        uint32_t type;
        uint64_t extents[4];
        const char *words[3];
    } rows[] = {
        {"blk.0.ffn_gate_exps.weight",
         T_Q5_K,
         {256, 2, 2},
         {"'blk.0.ffn_gate_exps.weight' has type Q5_K", "Q4_K and Q6_K"}},
        {"blk.0.ffn_gate_exps.weight", T_F32, {32, 64}, {"'blk.0.ffn_gate_exps.weight' has no three extents"}},
        {"blk.0.ffn_gate_up_exps.weight", T_F32, {32, 3, 2}, {"'blk.0.ffn_gate_up_exps.weight' has no three extents"}},
        {"blk.0.ffn_gate_exps.bias", T_F32, {32, 2}, {"'blk.0.ffn_gate_exps.bias' is none", "qwen3moe"}},
        {"blk.0.exp_probs_b.bias", T_F32, {2}, {"'blk.0.exp_probs_b.bias' is none"}},
        {"rope_freqs.weight", T_F32, {8}, {"'rope_freqs.weight' is none"}},
        {"blk.00.attn_norm.weight", T_F32, {32}, {"'blk.00.attn_norm.weight' is none"}},
        {"blk.0.ffn_norm.weigh", T_F32, {32}, {"is none"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gg_decoder();
        gg_tensor(rows[i].tensor, rows[i].type, 0, rows[i].extents);
        gg_finish("m.gguf");
        refused("m.gguf", rows[i].words);
    }
    gg_decoder();
    add_block();
    gg_tensor("blk.0.ffn_gate_up_exps.weight", T_F32, 0, EXTENTS(32, 64, 2));
    gg_finish("m.gguf");
    refused("m.gguf", WORDS("two of its tensors", "model.layers.0.mlp.experts.0.gate_proj.weight"));
    gg_decoder();
    gg_u32("general.quantization_version", 1);
    gg_finish("m.gguf");
    refused("m.gguf", WORDS("general.quantization_version is 1"));
    gg_start();
    gg_finish("m.gguf");
    refused("m.gguf", WORDS("general.architecture is missing"));
    gg_text("general.architecture", "mamba");
    gg_finish("m.gguf");
    refused("m.gguf", WORDS("'mamba'", "qwen3moe", "deepseek2"));
}

static void test_refused_configs(void **state)
{
    static const struct {
        const char *words[3];
    } rows[] = {{{"qwen3moe.rope.scaling.type has type u32", "a string"}},
                {{"rope_scaling", "\"yarn\""}},
                {{"partial_rotary_factor"}},
                {{"eos_token_id", "6"}},
                {{"qwen3moe.expert_gating_func is 2"}},
                {{"qwen3moe.expert_weights_norm has type u32", "true or false"}}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        model_config c;
        fmt_error e = {""};
        gg_decoder();
        if (i == 0) gg_u32("qwen3moe.rope.scaling.type", 1);
        if (i == 1) gg_text("qwen3moe.rope.scaling.type", "yarn");
        if (i == 2) gg_u32("qwen3moe.rope.dimension_count", 8);
        if (i == 3) gg_u32("tokenizer.ggml.eos_token_id", 6);
        if (i == 4) gg_u32("qwen3moe.expert_gating_func", 2);
        if (i == 5) gg_u32("qwen3moe.expert_weights_norm", 1);
        add_block();
        gg_finish("m.gguf");
        if (model_config_load(in_folder("m.gguf"), &c, &e) == 0) fail_msg("row %zu is accepted", i);
        assert_mentions(e.text, rows[i].words);
    }
}

/* ---- several files -------------------------------------------------------------------------------------------- */

static void part(const char *name, uint32_t no, uint32_t count, uint32_t tensors, const char *tensor)
{
    gg_start();
    if (no == 0) gg_text("general.architecture", "olmoe");
    gg_u32("split.no", no);
    gg_u32("split.count", count);
    gg_u32("split.tensors.count", tensors);
    gg_tensor(tensor, T_F32, (uint8_t)(10 * no), EXTENTS(8));
    gg_finish(name);
}

static void test_split(void **state)
{
    (void)state;
    empty_folder();
    part("m-00001-of-00002.gguf", 0, 2, 2, "blk.0.ffn_norm.weight");
    refused("m-00001-of-00002.gguf", WORDS("m-00002-of-00002.gguf", "cannot be opened"));
    part("m-00002-of-00002.gguf", 1, 2, 2, "output_norm.weight");
    st_store *s = open_store("m-00001-of-00002.gguf");
    assert_int_equal(st_count(s), 2);
    holds(s, "model.layers.0.post_attention_layernorm.weight", ST_F32, "[8]", 0, 32);
    holds(s, "model.norm.weight", ST_F32, "[8]", 10, 32);
    st_close(s);
    s = open_store(""); /* the folder: its other part does not count */
    assert_int_equal(st_count(s), 2);
    st_close(s);
    refused("m-00002-of-00002.gguf", WORDS("part 2 of 2", "the first is expected"));
    part("m-00002-of-00002.gguf", 0, 2, 2, "output_norm.weight");
    refused("m-00001-of-00002.gguf", WORDS("says that it is part 1 of 2, part 2 of 2 is expected"));
    part("m-00002-of-00002.gguf", 1, 2, 2, "blk.0.ffn_norm.weight");
    refused("m-00001-of-00002.gguf", WORDS("is there twice"));
    part("m-00002-of-00002.gguf", 1, 2, 2, "output_norm.weight");
    part("m-00001-of-00002.gguf", 0, 2, 3, "blk.0.ffn_norm.weight");
    refused("m-00001-of-00002.gguf", WORDS("split.tensors.count is 3, the 2 parts have 2"));
    part("other.gguf", 0, 2, 2, "blk.0.ffn_norm.weight");
    refused("other.gguf", WORDS("-00001-of-00002.gguf"));
}

static void test_locate(void **state)
{
    char *file = NULL;
    fmt_error e;
    (void)state;
    empty_folder();
    assert_int_equal(gguf_locate(in_folder("absent"), &file, &e), 0);
    assert_null(file);
    assert_int_equal(gguf_locate(in_folder(""), &file, &e), 0);
    assert_null(file);
    put_text("blob", "GGUF and more");
    assert_int_equal(gguf_locate(in_folder("blob"), &file, &e), 0);
    assert_string_equal(file, in_folder("blob"));
    free(file);
    put_text("blob", "something else");
    assert_int_equal(gguf_locate(in_folder("blob"), &file, &e), 0);
    assert_null(file);
    put_text("a.gguf", "");
    assert_int_equal(gguf_locate(in_folder(""), &file, &e), 0);
    assert_string_equal(file, in_folder("a.gguf"));
    free(file);
    put_text("B.GGUF", "");
    assert_int_equal(gguf_locate(in_folder(""), &file, &e), -1);
    assert_mentions(e.text, WORDS("a.gguf", "B.GGUF"));
    put_text("config.json", "{}");
    assert_int_equal(gguf_locate(in_folder(""), &file, &e), 0);
    assert_null(file);
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

static int fill(void *ctx, size_t index, void *buf, uint64_t bytes, fmt_error *e)
{
    const uint8_t *firsts = ctx;
    for (uint64_t i = 0; i < bytes; i++) ((uint8_t *)buf)[i] = (uint8_t)(firsts[index] + i);
    return firsts[index] == 255 ? fmt_fail(e, "filling failed") : 0;
}

static void test_write(void **state)
{
    static const char config[] =
        "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 1, \"hidden_size\": 32, \"vocab_size\": 6,"
        "\"max_position_embeddings\": 64, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16,"
        "\"rms_norm_eps\": 1e-05, \"rope_theta\": 5000.0, \"intermediate_size\": 96, \"num_experts\": 2, "
        "\"num_experts_per_tok\": 1,"
        "\"moe_intermediate_size\": 32, \"norm_topk_prob\": false}";
    gguf_out t[] = {{"token_embd.weight", ST_BF16, 2, {6, 32}}, {"blk.0.ffn_down_exps.weight", ST_Q8_0, 3, {2, 3, 32}}};
    uint8_t firsts[] = {17, 99};
    size_t n, wanted_n;
    fmt_error e;
    (void)state;
    empty_folder();
    put_text("config.json", config);
    if (gguf_write(in_folder("w.gguf"), in_folder(""), t, 2, fill, firsts, &e)) fail_msg("%s", e.text);
    gg_start();
    gg_text("general.architecture", "qwen3moe");
    gg_u32("general.quantization_version", 2);
    gg_u32("qwen3moe.vocab_size", 6);
    gg_u32("qwen3moe.block_count", 1);
    gg_u32("qwen3moe.context_length", 64);
    gg_u32("qwen3moe.embedding_length", 32);
    gg_u32("qwen3moe.feed_forward_length", 96);
    gg_u32("qwen3moe.attention.head_count", 2);
    gg_u32("qwen3moe.attention.head_count_kv", 1);
    gg_u32("qwen3moe.attention.key_length", 16);
    gg_u32("qwen3moe.attention.value_length", 16);
    gg_f32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-5f);
    gg_f32("qwen3moe.rope.freq_base", 5000.0f);
    gg_u32("qwen3moe.expert_count", 2);
    gg_u32("qwen3moe.expert_used_count", 1);
    gg_u32("qwen3moe.expert_feed_forward_length", 32);
    gg_bool("qwen3moe.expert_weights_norm", 0);
    gg_tensor("token_embd.weight", T_BF16, 17, EXTENTS(32, 6));
    gg_tensor("blk.0.ffn_down_exps.weight", T_Q8_0, 99, EXTENTS(32, 3, 2));
    char *found = read_bytes(in_folder("w.gguf"), &n);
    const uint8_t *wanted = gg_bytes(&wanted_n);
    assert_int_equal(n, wanted_n);
    assert_memory_equal(found, wanted, n);
    free(found);

    /* what fails leaves the old file, and no other */
    firsts[1] = 255;
    assert_int_equal(gguf_write(in_folder("w.gguf"), in_folder(""), t, 2, fill, firsts, &e), -1);
    assert_mentions(e.text, WORDS("filling failed"));
    t[1].shape[2] = 31;
    assert_int_equal(gguf_write(in_folder("w.gguf"), in_folder(""), t, 2, fill, firsts, &e), -1);
    assert_mentions(e.text, WORDS("blk.0.ffn_down_exps.weight", "Q8_0"));
    t[1] = t[0];
    assert_int_equal(gguf_write(in_folder("w.gguf"), in_folder(""), t, 2, fill, firsts, &e), -1);
    assert_mentions(e.text, WORDS("two tensors", "token_embd.weight"));
    assert_int_equal(
        gguf_write(in_folder("w.gguf"), MOEWE_SOURCE_DIR "/tests/data/vectors/mixtral", t, 1, fill, firsts, &e), -1);
    assert_mentions(e.text, WORDS("mixtral", "qwen3_moe only"));
    found = read_bytes(in_folder("w.gguf"), &n);
    assert_memory_equal(found, wanted, wanted_n);
    free(found);
    assert_int_equal(count_files(), 2);
}

/* ---- blocks --------------------------------------------------------------------------------------------------- */

/* Against what the gguf package says that the same blocks mean. */
static void test_row_floats(void **state)
{
    static const struct {
        int32_t dtype;
        int64_t n;
        const uint8_t *bytes;
        const uint32_t *values;
    } rows[] = {{MOEWE_DTYPE_Q8_0, 96, q8_0_bytes, q8_0_values},
                {MOEWE_DTYPE_Q4_0, 96, q4_0_bytes, q4_0_values},
                {MOEWE_DTYPE_Q4_K, 768, q4_k_bytes, q4_k_values},
                {MOEWE_DTYPE_Q6_K, 768, q6_k_bytes, q6_k_values}};
    float out[768];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(gguf_row_floats(rows[i].dtype, rows[i].bytes, rows[i].n, out), 0);
        for (int64_t k = 0; k < rows[i].n; k++) {
            float wanted;
            memcpy(&wanted, &rows[i].values[k], sizeof wanted);
            if (out[k] != wanted)
                fail_msg("%s, element %d: %a, expected %a", moewe_dtype_name(rows[i].dtype), (int)k, out[k], wanted);
        }
    }
    assert_int_equal(gguf_row_floats(MOEWE_DTYPE_F32, out, 32, out), -1);
    assert_int_equal(gguf_row_floats(MOEWE_DTYPE_Q8_0, q8_0_bytes, 33, out), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_other_architectures),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_patched),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_refused_models),
        cmocka_unit_test(test_refused_configs),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_locate),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_row_floats),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_refused_tokenizers),
    };
    return cmocka_run_group_tests_name("formats gguf", tests, folder_make, folder_remove);
}
