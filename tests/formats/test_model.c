/* test_model.c - config.json: the shipped checkpoints as a person reads their files, and mutations of them that
 * are either another spelling of the same model or an error with a reason. */
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "files.h"
#include "formats/model.h"

#define QWEN3   MOEWE_SOURCE_DIR "/tests/data/vectors/qwen3_moe"
#define MIXTRAL MOEWE_SOURCE_DIR "/tests/data/vectors/mixtral"

static void test_wordmath(void **state)
{
    model_config c;
    fmt_error e = {""};
    (void)state;
    assert_int_equal(model_config_load(MOEWE_SOURCE_DIR "/models/wordmath", &c, &e), 0);
    assert_string_equal(c.file, MOEWE_SOURCE_DIR "/models/wordmath/config.json");
    assert_string_equal(c.model_type, "qwen3_moe");
    assert_int_equal(c.n_layers, 4);
    assert_int_equal(c.hidden, 256);
    assert_int_equal(c.vocab, 960);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.max_position, 2048);
    assert_int_equal(c.dense_inter, 0);
    assert_true(c.rms_eps == 1e-6f);
    assert_true(c.rope_theta == 1e4);
    assert_int_equal(c.sliding_window, 0);
    assert_int_equal(c.attention_bias, 0);
    assert_int_equal(c.qk_norm, 1);
    assert_int_equal(c.tie_embeddings, 1);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.n_eos, 1); /* 908 in both files */
    assert_int_equal(c.eos_ids[0], 908);
    assert_int_equal(c.weight_dtype, MOEWE_DTYPE_BF16);
    for (int l = 0; l < 4; l++) assert_int_equal(c.layer_is_moe[l], 1);
    assert_int_equal(c.moe.struct_size, sizeof c.moe);
    assert_int_equal(c.moe.hidden, 256);
    assert_int_equal(c.moe.inter, 128);
    assert_int_equal(c.moe.n_experts, 32);
    assert_int_equal(c.moe.top_k, 4);
    assert_int_equal(c.moe.score, MOEWE_SCORE_SOFTMAX);
    assert_int_equal(c.moe.act, MOEWE_ACT_SWIGLU);
    assert_int_equal(c.moe.flags, MOEWE_FLAG_RENORMALIZE);
    assert_int_equal(c.moe.max_tokens, 0);
    model_config_free(&c);
    model_config_free(NULL);
}

static void test_vectors(void **state)
{
    model_config c;
    fmt_error e = {""};
    (void)state;
    assert_int_equal(model_config_load(QWEN3 "/config.json", &c, &e), 0);
    assert_int_equal(c.head_dim, 16); /* absent: 64 / 4 */
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(c.moe.inter, 48);
    assert_int_equal(c.moe.n_experts, 8);
    assert_int_equal(c.moe.top_k, 3);
    assert_int_equal(c.moe.flags, 0);
    assert_int_equal(c.tie_embeddings, 0);
    model_config_free(&c);

    assert_int_equal(model_config_load(MIXTRAL, &c, &e), 0);
    assert_string_equal(c.model_type, "mixtral");
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.qk_norm, 0);
    assert_true(c.rope_theta == 1e6);
    assert_true(c.rms_eps == 1e-5f);
    assert_int_equal(c.bos_id, 1);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 2);
    assert_int_equal(c.dense_inter, 0);
    assert_int_equal(c.moe.inter, 80);
    assert_int_equal(c.moe.n_experts, 8);
    assert_int_equal(c.moe.top_k, 3);
    assert_int_equal(c.moe.score, MOEWE_SCORE_SOFTMAX);
    assert_int_equal(c.moe.flags, MOEWE_FLAG_RENORMALIZE);
    assert_int_equal(c.layer_is_moe[0] && c.layer_is_moe[1], 1);
    model_config_free(&c);
}

/* The folder's config.json becomes base's with the fields of patch; a field whose value is "-" is taken out. */
static void put_mutation(const char *base, const char *patch)
{
    char path[512];
    const char *key;
    json_t *value;
    snprintf(path, sizeof path, "%s/config.json", base);
    json_t *config = json_load_file(path, 0, NULL), *changes = json_loads(patch, 0, NULL);
    assert_non_null(config);
    if (!changes) fail_msg("the test's patch is not JSON: %s", patch);
    json_object_foreach(changes, key, value)
    {
        const char *text = json_string_value(value);
        if (text && strcmp(text, "-") == 0) {
            assert_int_equal(json_object_del(config, key), 0);
        } else {
            assert_int_equal(json_object_set(config, key, value), 0);
        }
    }
    assert_int_equal(json_dump_file(config, in_folder("config.json"), 0), 0);
    json_decref(changes);
    json_decref(config);
}

static void load_mutation(const char *base, const char *patch, model_config *c)
{
    fmt_error e = {""};
    put_mutation(base, patch);
    if (model_config_load(in_folder(""), c, &e) != 0) fail_msg("%s: %s", patch, e.text);
}

static void test_spellings(void **state)
{
    static const char *const same[] = {
        "{\"num_local_experts\":\"-\",\"num_experts\":8}",
        "{\"num_experts\":8}",
        "{\"num_experts\":null}",
        "{\"dtype\":\"-\",\"torch_dtype\":\"bfloat16\"}",
        "{\"torch_dtype\":\"bfloat16\"}",
        "{\"rope_parameters\":\"-\",\"rope_theta\":10000}",
        "{\"rope_parameters\":\"-\"}",
        "{\"rope_parameters\":{\"rope_theta\":10000.0}}",
        "{\"rope_parameters\":null,\"rope_theta\":10000.0,\"rope_scaling\":null}",
        "{\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"default\"}}",
        "{\"partial_rotary_factor\":1.0}",
        "{\"head_dim\":16}",
        "{\"head_dim\":null}",
        "{\"norm_topk_prob\":\"-\"}",
        "{\"rms_norm_eps\":\"-\"}",
        "{\"sliding_window\":4096}",
        "{\"use_sliding_window\":\"-\",\"sliding_window\":4096}",
        "{\"use_sliding_window\":true}",
        "{\"mlp_only_layers\":null,\"decoder_sparse_step\":null}",
        "{\"mlp_only_layers\":\"-\",\"decoder_sparse_step\":\"-\"}",
        "{\"intermediate_size\":\"-\"}",
        "{\"hidden_act\":\"swish\"}",
        "{\"tie_word_embeddings\":\"-\"}",
        "{\"attention_bias\":\"-\"}",
        "{\"bos_token_id\":\"-\",\"eos_token_id\":\"-\"}",
        "{\"quantization_config\":null}",
        "{\"eos_token_id\":[]}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        model_config c;
        load_mutation(QWEN3, same[i], &c);
        assert_int_equal(c.moe.n_experts, 8);
        assert_int_equal(c.weight_dtype, MOEWE_DTYPE_BF16);
        assert_true(c.rope_theta == 1e4);
        assert_true(c.rms_eps == 1e-6f);
        assert_int_equal(c.head_dim, 16);
        assert_int_equal(c.moe.flags, 0);
        assert_int_equal(c.moe.act, MOEWE_ACT_SWIGLU);
        assert_int_equal(c.sliding_window, 0);
        assert_int_equal(c.layer_is_moe[0] && c.layer_is_moe[1], 1);
        assert_int_equal(c.tie_embeddings || c.attention_bias || c.dense_inter, 0);
        assert_int_equal(c.bos_id, -1);
        assert_int_equal(c.n_eos, 0);
        model_config_free(&c);
    }
    empty_folder();
}

static void test_values(void **state)
{
    model_config c;
    (void)state;
    load_mutation(QWEN3,
                  "{\"use_sliding_window\":true,\"sliding_window\":77,\"attention_bias\":true,"
                  "\"rope_parameters\":{\"rope_theta\":5e6},\"head_dim\":128,\"num_key_value_heads\":null,"
                  "\"eos_token_id\":[3,9,3],\"bos_token_id\":0,\"torch_dtype\":\"float16\",\"dtype\":null,"
                  "\"norm_topk_prob\":true,\"hidden_act\":\"gelu\"}",
                  &c);
    assert_int_equal(c.sliding_window, 77);
    assert_int_equal(c.attention_bias, 1);
    assert_true(c.rope_theta == 5e6);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[0], 3);
    assert_int_equal(c.eos_ids[1], 9);
    assert_int_equal(c.bos_id, 0);
    assert_int_equal(c.weight_dtype, MOEWE_DTYPE_F16);
    assert_int_equal(c.moe.flags, MOEWE_FLAG_RENORMALIZE);
    assert_int_equal(c.moe.act, MOEWE_ACT_GEGLU);
    model_config_free(&c);

    load_mutation(MIXTRAL,
                  "{\"sliding_window\":4096,\"rope_parameters\":\"-\",\"rms_norm_eps\":\"-\",\"dtype\":\"float32\","
                  "\"hidden_act\":\"gelu_pytorch_tanh\",\"norm_topk_prob\":false}",
                  &c);
    assert_int_equal(c.sliding_window, 4096);
    assert_true(c.rope_theta == 1e6); /* MixtralConfig's default */
    assert_true(c.rms_eps == 1e-5f);
    assert_int_equal(c.weight_dtype, MOEWE_DTYPE_F32);
    assert_int_equal(c.moe.act, MOEWE_ACT_GEGLU_TANH);
    assert_int_equal(c.moe.flags, MOEWE_FLAG_RENORMALIZE); /* not a field of this family */
    model_config_free(&c);

    load_mutation(MIXTRAL, "{\"dtype\":\"-\"}", &c);
    assert_int_equal(c.weight_dtype, MOEWE_DTYPE_DEFAULT);
    model_config_free(&c);

    /* Defaults of Qwen3MoeConfig and MixtralConfig in transformers. */
    load_mutation(QWEN3,
                  "{\"num_local_experts\":\"-\",\"moe_intermediate_size\":\"-\",\"num_experts_per_tok\":\"-\","
                  "\"intermediate_size\":\"-\",\"hidden_act\":\"-\",\"decoder_sparse_step\":2}",
                  &c);
    assert_int_equal(c.moe.n_experts, 128);
    assert_int_equal(c.moe.inter, 768);
    assert_int_equal(c.moe.top_k, 8);
    assert_int_equal(c.moe.act, MOEWE_ACT_SWIGLU);
    assert_int_equal(c.dense_inter, 6144);
    model_config_free(&c);
    load_mutation(MIXTRAL, "{\"intermediate_size\":\"-\",\"num_local_experts\":\"-\",\"num_experts_per_tok\":null}", &c);
    assert_int_equal(c.moe.n_experts, 8);
    assert_int_equal(c.moe.inter, 14336);
    assert_int_equal(c.moe.top_k, 2);
    model_config_free(&c);
    empty_folder();
}

/* layer i has experts iff num_experts > 0, i is not listed and (i + 1) % step == 0 */
static void test_layer_kinds(void **state)
{
    static const struct {
        const char *patch, *kinds;
        int dense_inter;
    } rows[] = {
        {"{\"num_hidden_layers\":6}", "111111", 0},
        {"{\"num_hidden_layers\":6,\"decoder_sparse_step\":2}", "010101", 80},
        {"{\"num_hidden_layers\":7,\"decoder_sparse_step\":3}", "0010010", 80},
        {"{\"num_hidden_layers\":4,\"decoder_sparse_step\":5}", "0000", 80},
        {"{\"num_hidden_layers\":5,\"mlp_only_layers\":[0,3,3]}", "01101", 80},
        {"{\"num_hidden_layers\":6,\"mlp_only_layers\":[1,2],\"decoder_sparse_step\":2}", "000101", 80},
        {"{\"num_local_experts\":0,\"moe_intermediate_size\":\"-\",\"num_experts_per_tok\":\"-\"}", "00", 80},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        model_config c;
        load_mutation(QWEN3, rows[i].patch, &c);
        assert_int_equal(c.n_layers, strlen(rows[i].kinds));
        for (int l = 0; l < c.n_layers; l++) assert_int_equal(c.layer_is_moe[l], rows[i].kinds[l] == '1');
        assert_int_equal(c.dense_inter, rows[i].dense_inter);
        model_config_free(&c);
    }
    empty_folder();
}

static void test_refused(void **state)
{
    static const struct {
        const char *base, *patch;
        const char *words[5];
    } rows[] = {
        {QWEN3,
         "{\"model_type\":\"qwen9_moe\",\"num_local_experts\":\"-\",\"hidden_size\":null}",
         {"model_type 'qwen9_moe' is not known", "missing hidden_size, an expert count (such as num_experts)"}},
        {QWEN3,
         "{\"model_type\":\"-\",\"moe_intermediate_size\":\"-\",\"intermediate_size\":\"-\"}",
         {"model_type is missing", "missing", "an expert width (such as moe_intermediate_size)"}},
        {QWEN3, "{\"model_type\":7}", {"model_type is 7", "string"}},
        {QWEN3,
         "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}",
         {"quantization_config", "quant_method", "gptq", "not supported", "compressed-tensors"}},
        {QWEN3,
         "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}",
         {"quantization_config", "quant_method", "awq", "not supported"}},
        {QWEN3,
         "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"weights\":"
         "{\"num_bits\":4,\"type\":\"int\",\"symmetric\":false,\"group_size\":128}}}}}",
         {"quantization_config", "compressed-tensors", "20 bits of scales", "symmetric"}},
        {QWEN3, "{\"quantization_config\":{\"quant_method\":\"magic\"}}", {"quant_method", "magic", "expected fp8"}},
        {QWEN3, "{\"quantization_config\":[4]}", {"quantization_config", "no object"}},
        {QWEN3, "{\"hidden_size\":\"-\"}", {"hidden_size is missing", "integer"}},
        {QWEN3, "{\"hidden_size\":null}", {"hidden_size is null", "integer"}},
        {QWEN3, "{\"hidden_size\":\"64\"}", {"hidden_size is \"64\"", "integer"}},
        {QWEN3, "{\"hidden_size\":64.0}", {"hidden_size is 64.0", "integer"}},
        {QWEN3, "{\"hidden_size\":true}", {"hidden_size is true", "integer"}},
        {QWEN3, "{\"hidden_size\":0}", {"hidden_size is 0", "from 1 to 2147483647"}},
        {QWEN3, "{\"hidden_size\":-64}", {"hidden_size is -64", "from 1"}},
        {QWEN3, "{\"hidden_size\":2147483648}", {"hidden_size is 2147483648", "2147483647"}},
        {QWEN3, "{\"hidden_size\":66}", {"hidden_size is 66", "num_attention_heads 4"}},
        {QWEN3, "{\"num_hidden_layers\":0}", {"num_hidden_layers is 0", "from 1"}},
        {QWEN3, "{\"num_hidden_layers\":-1}", {"num_hidden_layers is -1"}},
        {QWEN3, "{\"num_hidden_layers\":2000000000}", {"num_hidden_layers is 2000000000", "65536"}},
        {QWEN3, "{\"vocab_size\":\"-\"}", {"vocab_size is missing"}},
        {QWEN3, "{\"max_position_embeddings\":{}}", {"max_position_embeddings is {}"}},
        {QWEN3,
         "{\"num_attention_heads\":6,\"num_key_value_heads\":4,\"head_dim\":16}",
         {"num_attention_heads is 6", "num_key_value_heads 4", "multiple"}},
        {QWEN3, "{\"num_key_value_heads\":8}", {"num_attention_heads is 4", "num_key_value_heads 8"}},
        {QWEN3, "{\"num_key_value_heads\":\"-\"}", {"num_key_value_heads is missing"}},
        {QWEN3, "{\"num_key_value_heads\":0}", {"num_key_value_heads is 0"}},
        {QWEN3, "{\"head_dim\":15}", {"head_dim is 15", "even"}},
        {QWEN3, "{\"hidden_size\":60}", {"head_dim is 15", "even"}},
        {QWEN3, "{\"head_dim\":1073741824}", {"head_dim 1073741824", "4294967296"}},
        {QWEN3, "{\"num_experts_per_tok\":9}", {"num_experts_per_tok is 9", "from 1 to 8"}},
        {QWEN3, "{\"num_experts_per_tok\":0}", {"num_experts_per_tok is 0"}},
        {QWEN3, "{\"num_local_experts\":2.5}", {"num_local_experts is 2.5", "from 0"}},
        {QWEN3, "{\"num_local_experts\":\"8\"}", {"num_local_experts is \"8\"", "number"}},
        {QWEN3, "{\"num_local_experts\":-8}", {"num_local_experts is -8", "from 0"}},
        {QWEN3, "{\"num_experts\":16}", {"num_experts is 16", "num_local_experts is 8", "equal"}},
        {QWEN3, "{\"moe_intermediate_size\":0}", {"moe_intermediate_size is 0", "from 1"}},
        {QWEN3, "{\"moe_intermediate_size\":{}}", {"moe_intermediate_size is {}", "number"}},
        {QWEN3, "{\"moe_intermediate_size\":[48]}", {"moe_intermediate_size has 1 entries", "each of 2 layers"}},
        {QWEN3, "{\"moe_intermediate_size\":[]}", {"moe_intermediate_size has 0 entries", "each of 2 layers"}},
        {QWEN3, "{\"moe_intermediate_size\":[48,\"x\"],\"mlp_only_layers\":[0]}", {"moe_intermediate_size is \"x\""}},
        {QWEN3, "{\"decoder_sparse_step\":0}", {"decoder_sparse_step is 0"}},
        {QWEN3, "{\"decoder_sparse_step\":1.5}", {"decoder_sparse_step is 1.5", "integer"}},
        {QWEN3, "{\"decoder_sparse_step\":2,\"intermediate_size\":-5}", {"intermediate_size is -5", "from 1"}},
        {QWEN3, "{\"mlp_only_layers\":3}", {"mlp_only_layers is 3", "array"}},
        {QWEN3, "{\"mlp_only_layers\":[0,2]}", {"mlp_only_layers[1] is 2", "0 to 1"}},
        {QWEN3, "{\"mlp_only_layers\":[-1]}", {"mlp_only_layers[0] is -1", "0 to 1"}},
        {QWEN3, "{\"mlp_only_layers\":[\"0\"]}", {"mlp_only_layers[0] is \"0\"", "0 to 1"}},
        {QWEN3, "{\"norm_topk_prob\":1}", {"norm_topk_prob is 1", "true or false"}},
        {QWEN3, "{\"attention_bias\":\"no\"}", {"attention_bias is \"no\"", "true or false"}},
        {QWEN3, "{\"tie_word_embeddings\":0}", {"tie_word_embeddings is 0", "true or false"}},
        {QWEN3, "{\"use_sliding_window\":2}", {"use_sliding_window is 2"}},
        {QWEN3, "{\"sliding_window\":-2}", {"sliding_window is -2"}},
        {QWEN3, "{\"hidden_act\":\"gelu_10\"}", {"hidden_act is 'gelu_10'", "silu"}},
        {QWEN3, "{\"hidden_act\":1}", {"hidden_act is 1", "activation"}},
        {QWEN3, "{\"dtype\":\"float8_e4m3fn\"}", {"dtype is \"float8_e4m3fn\"", "bfloat16"}},
        {QWEN3, "{\"torch_dtype\":\"float16\"}", {"dtype is \"bfloat16\"", "torch_dtype is \"float16\"", "equal"}},
        {QWEN3, "{\"rms_norm_eps\":0}", {"rms_norm_eps is 0", "above 0"}},
        {QWEN3, "{\"rms_norm_eps\":\"1e-6\"}", {"rms_norm_eps is \"1e-6\"", "number"}},
        {QWEN3, "{\"rope_theta\":-1}", {"rope_theta is -1", "above 0"}},
        {QWEN3, "{\"rope_theta\":20000.0}", {"rope_theta is 20000", "rope_parameters.rope_theta is 10000", "equal"}},
        {QWEN3, "{\"rope_parameters\":{\"rope_theta\":\"x\"}}", {"rope_theta is \"x\"", "number"}},
        {QWEN3,
         "{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4}}",
         {"rope_parameters.rope_type is \"yarn\"", "default"}},
        {QWEN3,
         "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
         {"rope_parameters.full_attention is an object"}},
        {QWEN3, "{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", {"partial_rotary_factor is 0.5", "1.0"}},
        {QWEN3, "{\"partial_rotary_factor\":0.25}", {"partial_rotary_factor is 0.25", "1.0"}},
        {QWEN3, "{\"rope_parameters\":[]}", {"rope_parameters is []", "object"}},
        {QWEN3,
         "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}",
         {"rope_scaling.type is \"linear\"", "default"}},
        {QWEN3, "{\"rope_scaling\":{\"rope_type\":\"llama3\"}}", {"rope_scaling.rope_type is \"llama3\"", "default"}},
        {QWEN3, "{\"rope_scaling\":{\"rope_type\":3}}", {"rope_scaling.rope_type is 3"}},
        {QWEN3, "{\"eos_token_id\":256}", {"eos_token_id is 256", "0 to 255"}},
        {QWEN3, "{\"eos_token_id\":-1}", {"eos_token_id is -1", "0 to 255"}},
        {QWEN3, "{\"eos_token_id\":[1,\"2\"]}", {"eos_token_id is \"2\"", "0 to 255"}},
        {QWEN3, "{\"eos_token_id\":\"</s>\"}", {"eos_token_id is \"</s>\"", "token id"}},
        {QWEN3, "{\"eos_token_id\":[0,1,2,3,4,5,6,7,8]}", {"eos_token_id", "8"}},
        {QWEN3, "{\"bos_token_id\":300}", {"bos_token_id is 300", "0 to 255"}},
        {MIXTRAL, "{\"num_local_experts\":0}", {"num_local_experts is 0", "from 1"}},
        {MIXTRAL, "{\"num_experts\":16}", {"num_experts is 16", "num_local_experts is 8", "equal"}},
        {MIXTRAL, "{\"num_experts_per_tok\":9}", {"num_experts_per_tok is 9", "from 1 to 8"}},
        {MIXTRAL, "{\"sliding_window\":\"4096\"}", {"sliding_window is \"4096\""}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *words[7] = {in_folder("config.json")};
        model_config c;
        fmt_error e = {""};
        for (int k = 0; k < 5; k++) words[k + 1] = rows[i].words[k];
        put_mutation(rows[i].base, rows[i].patch);
        memset(&c, 0x5a, sizeof c);
        if (model_config_load(in_folder(""), &c, &e) == 0) fail_msg("accepted: %s", rows[i].patch);
        assert_mentions(e.text, words);
        assert_int_equal(c.n_layers, 0x5a5a5a5a); /* nothing was written */
    }
    empty_folder();
}

static void test_generation_config(void **state)
{
    static const struct {
        const char *text, *words[3];
    } bad[] = {
        {"", {"not valid JSON"}},
        {"[]", {"object"}},
        {"{\"eos_token_id\":300}", {"eos_token_id is 300", "0 to 255"}},
        {"{\"eos_token_id\":{}}", {"eos_token_id is {}"}},
        {"{\"eos_token_id\":1,\"eos_token_id\":2}", {"duplicate"}},
        {"{\"eos_token_id\":[10,11,12,13,14,15,16,17]}", {"eos_token_id", "8"}},
    };
    model_config c;
    fmt_error e = {""};
    (void)state;
    put_text("generation_config.json", "{\"eos_token_id\":[7,5,200],\"bos_token_id\":9,\"temperature\":0.7}");
    load_mutation(QWEN3, "{\"eos_token_id\":5}", &c);
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos_ids[0], 5);
    assert_int_equal(c.eos_ids[1], 7);
    assert_int_equal(c.eos_ids[2], 200);
    model_config_free(&c);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put_text("generation_config.json", bad[i].text);
        assert_int_equal(model_config_load(in_folder(""), &c, &e), -1);
        assert_mentions(e.text, (const char *[]){"generation_config.json", bad[i].words[0], bad[i].words[1], NULL});
    }
    empty_folder();
}

static void test_files(void **state)
{
    model_config c;
    fmt_error e = {""};
    char here[1024];
    (void)state;
    assert_int_equal(model_config_load(in_folder("absent"), &c, &e), -1);
    assert_mentions(e.text, (const char *[]){"/absent", "No such file", NULL});
    assert_int_equal(model_config_load(in_folder(""), &c, &e), -1);
    assert_mentions(e.text, (const char *[]){"/config.json", "No such file", NULL});
    put_text("config.json", "{\"model_type\":\"mixtral\",");
    assert_int_equal(model_config_load(in_folder("config.json"), &c, &e), -1);
    assert_mentions(e.text, (const char *[]){"/config.json", "not valid JSON", NULL});
    put_text("config.json", "{\"model_type\":\"mixtral\",\"model_type\":\"qwen3_moe\"}");
    assert_int_equal(model_config_load(in_folder(""), &c, &e), -1);
    assert_mentions(e.text, (const char *[]){"/config.json", "duplicate", "model_type", NULL});
    put_text("config.json", "[]");
    assert_int_equal(model_config_load(in_folder(""), &c, &e), -1);
    assert_mentions(e.text, (const char *[]){"/config.json", "array", "object", NULL});
    assert_int_equal(truncate(in_folder("config.json"), 20000000), 0);
    assert_int_equal(model_config_load(in_folder(""), &c, &e), -1);
    assert_mentions(e.text, (const char *[]){"/config.json", "20000000", "16777216", NULL});

    /* a bare file name: generation_config.json is looked for in the working directory */
    put_text("generation_config.json", "{\"eos_token_id\":77}");
    put_mutation(QWEN3, "{}");
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(in_folder("")), 0);
    int failed = model_config_load("config.json", &c, &e);
    assert_int_equal(chdir(here), 0);
    assert_int_equal(failed, 0);
    assert_string_equal(c.file, "config.json");
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 77);
    model_config_free(&c);
    empty_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wordmath), cmocka_unit_test(test_vectors),           cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_values),   cmocka_unit_test(test_layer_kinds),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_files),    cmocka_unit_test(test_generation_config),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
