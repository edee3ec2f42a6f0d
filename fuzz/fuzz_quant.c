/* fuzz_quant.c - a small checkpoint whose experts are stored in one of the quantised forms, with tensors, dtypes and
 * extents exchanged as the input says.  What is accepted is packed and run, so that every byte that a view promises is
 * read where a sanitizer looks on; what is refused is refused in words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../formats/model.h"
#include "fuzz.h"

enum { HIDDEN = 64, INTER = 32, EXPERTS = 2, MOST = 64 };

typedef struct file {
    st_tensor t[MOST];
    char names[MOST][96];
    size_t n;
    fuzz_reader *r;
} file;

static const char *const methods[] = {
    "{}",
    "{\"quant_method\":\"fp8\",\"weight_block_size\":[16,16]}",
    "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}",
    "{\"quant_method\":\"fp8\"}",
    "{\"quant_method\":\"mxfp4\"}",
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}",
    "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,"
    "\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32}}}}",
    "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,"
    "\"type\":\"int\",\"strategy\":\"channel\"}}}}",
    "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,"
    "\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[16,32]}}}}"};

/* Now and then another dtype, rank or extent than what was meant; now and then no tensor. */
static void add(file *f, const char *base, const char *tail, st_dtype dtype, int32_t rank, const int64_t *shape)
{
    static const st_dtype others[] = {ST_U8, ST_I8, ST_F8_E4M3, ST_F8_E8M0, ST_F16, ST_BF16, ST_F32, ST_I32, ST_I64, ST_F8_E5M2};
    uint64_t odd = fuzz_take(f->r, 1);
    st_tensor *t = &f->t[f->n];
    if (f->n == MOST || odd == 1) return;
    if (odd == 2) dtype = others[fuzz_take(f->r, 1) % (sizeof others / sizeof *others)];
    if (odd == 3) rank = fuzz_range(f->r, 0, 4);
    snprintf(f->names[f->n], sizeof f->names[0], "%s%s", base, tail);
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->names[i], f->names[f->n]) == 0) return;
    *t = (st_tensor){.name = f->names[f->n], .dtype = dtype, .rank = rank};
    t->bytes = st_dtype_bytes(dtype);
    for (int32_t i = 0; i < rank; i++) {
        t->shape[i] = odd == 4 && fuzz_take(f->r, 1) % 2 ? fuzz_range(f->r, 0, 70) : i < 4 ? shape[i] : 1;
        t->bytes *= (uint64_t)t->shape[i];
    }
    f->n++;
}

/* A matrix, or EXPERTS of them, in form kind. */
static void add_matrix(file *f, const char *base, int kind, int stacked, int64_t rows, int64_t cols)
{
    const int64_t n = EXPERTS, one[4] = {1, 1, 1, 1};
    int32_t lead = stacked ? 1 : 0;
#define SHAPE(...) ((const int64_t[5]){n, __VA_ARGS__} + !stacked)
    switch (kind) {
    case 0: add(f, base, "", ST_BF16, 2 + lead, SHAPE(rows, cols)); break;
    case 1:
    case 2:
    case 8:
        add(f, base, "", ST_F8_E4M3, 2 + lead, SHAPE(rows, cols));
        if (kind == 8)
            add(f, base, "_scale", ST_BF16, 2 + lead, SHAPE((rows + 15) / 16, (cols + 31) / 32));
        else
            add(f, base, "_scale_inv", ST_F32, 2 + lead,
                SHAPE(kind == 1 ? (rows + 15) / 16 : (rows + 127) / 128, kind == 1 ? (cols + 15) / 16 : (cols + 127) / 128));
        break;
    case 3:
        add(f, base, "", ST_F8_E4M3, 2 + lead, SHAPE(rows, cols));
        add(f, base, "_scale", ST_F32, lead, SHAPE(1, 1));
        break;
    case 4:
        add(f, base, "_blocks", ST_U8, 3 + lead, SHAPE(rows, cols / 32, 16));
        add(f, base, "_scales", ST_U8, 2 + lead, SHAPE(rows, cols / 32));
        break;
    case 5:
        add(f, base, fuzz_take(f->r, 1) % 2 ? "_packed" : "", ST_U8, 2 + lead, SHAPE(rows, cols / 2));
        add(f, base, "_scale", ST_F8_E4M3, 2 + lead, SHAPE(rows, cols / 16));
        add(f, base, fuzz_take(f->r, 1) % 2 ? "_global_scale" : "_scale_2", ST_F32, lead, SHAPE(1, 1));
        break;
    case 6:
        add(f, base, "_packed", ST_I32, 2 + lead, SHAPE(rows, cols / 8));
        add(f, base, "_scale", ST_BF16, 2 + lead, SHAPE(rows, cols / 32));
        break;
    default:
        if (fuzz_take(f->r, 1) % 2)
            add(f, base, "", ST_I8, 2 + lead, SHAPE(rows, cols));
        else
            add(f, base, "_packed", ST_I32, 2 + lead, SHAPE(rows, cols / 4));
        add(f, base, "_scale", ST_F16, 2 + lead, SHAPE(rows, 1));
    }
    if (fuzz_take(f->r, 1) == 5) add(f, base, "_zero_point", ST_I32, 1, one);
    if (fuzz_take(f->r, 1) == 5) add(f, base, "_shape", ST_I64, 1, (const int64_t[4]){2, 1, 1, 1});
#undef SHAPE
}

static void write_tensors(const file *f)
{
    uint64_t bytes = 1;
    fmt_error e;
    st_tensor *t = malloc(MOST * sizeof *t);
    for (size_t i = 0; i < f->n; i++) bytes = f->t[i].bytes > bytes ? f->t[i].bytes : bytes;
    uint8_t *data = malloc(bytes);
    FUZZ_MUST(t && data);
    for (uint64_t i = 0; i < bytes; i++) data[i] = (uint8_t)(i * 37 % 251);
    memcpy(t, f->t, f->n * sizeof *t);
    for (size_t i = 0; i < f->n; i++) t[i].data = data;
    if (st_write(fuzz_path("model.safetensors"), t, f->n, &e)) FUZZ_MUST(!"the checkpoint was written");
    free(data);
    free(t);
}

static void write_config(const char *method)
{
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"qwen3_moe\",\"hidden_size\":%d,\"moe_intermediate_size\":%d,\"intermediate_size\":64,"
                     "\"num_experts\":%d,\"num_experts_per_tok\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                     "\"head_dim\":16,\"num_hidden_layers\":1,\"vocab_size\":16,\"max_position_embeddings\":8,"
                     "\"quantization_config\":%s}",
                     HIDDEN, INTER, EXPERTS, strcmp(method, "{}") ? method : "null");
    FUZZ_MUST(n > 0 && (size_t)n < sizeof text);
    fuzz_write("config.json", text, (size_t)n);
}

/* What a view promises is there. */
static void run(const model_block *b)
{
    const moewe_device *dev = fuzz_device(1);
    static float x[3 * HIDDEN], y[3 * HIDDEN];
    moewe_config c = b->moe;
    moewe_plan *plan = NULL;
    moewe_need need, packed;
    moewe_weights w;
    moewe_span mem = {NULL, 0}, ws = {NULL, 0};
    moewe_io io;
    c.max_tokens = 3;
    c.w_dtype = b->w_dtype;
    c.down_dtype = b->down_dtype;
    MOEWE_INIT(io);
    for (int i = 0; i < 3 * HIDDEN; i++) x[i] = (float)(i % 7 - 3);
    io.n_tokens = 3;
    io.x = x;
    io.y = y;
    if (moewe_plan_create(dev, &c, &plan) || moewe_plan_need(plan, &need) || moewe_weights_need(plan, &b->w, &packed)) {
        fuzz_check_sentence(moewe_last_error(), 1024); /* blocks that the library does not compute with */
        moewe_plan_destroy(plan);
        return;
    }
    FUZZ_MUST(!moewe_device_alloc(dev, need, &ws) && !moewe_device_alloc(dev, packed, &mem));
    FUZZ_MUST(!moewe_weights_pack(plan, &b->w, mem, NULL, &w) && !moewe_run(plan, &w, &io, ws, NULL));
    moewe_device_free(dev, mem);
    moewe_device_free(dev, ws);
    moewe_plan_destroy(plan);
}

static void fill(file *f, int kind, int stacked)
{
    static const char block[] = "model.layers.0.mlp.";
    char name[80];
    snprintf(name, sizeof name, "%sgate.weight", block);
    add(f, name, "", ST_F32, 2, (const int64_t[4]){EXPERTS, HIDDEN, 1, 1});
    if (stacked) {
        snprintf(name, sizeof name, "%sexperts.gate_up_proj", block);
        add_matrix(f, name, kind, 1, 2 * INTER, HIDDEN);
        snprintf(name, sizeof name, "%sexperts.down_proj", block);
        add_matrix(f, name, fuzz_take(f->r, 1) == 7 ? 0 : kind, 1, HIDDEN, INTER);
        return;
    }
    for (int e = 0; e < EXPERTS; e++)
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "%sexperts.%d.%s_proj.weight", block, e, k == 0 ? "gate" : k == 1 ? "up" : "down");
            add_matrix(f, name, kind, 0, k == 2 ? HIDDEN : INTER, k == 2 ? INTER : HIDDEN);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { METHODS = sizeof methods / sizeof *methods };
    fuzz_reader r = {data, size};
    static file f;
    model_config c;
    model_block b;
    st_store *s = NULL;
    fmt_error e = {""};
    int kind = fuzz_range(&r, 0, METHODS - 1), stacked = fuzz_range(&r, 0, 1), other = fuzz_range(&r, 0, 15);
    f.n = 0;
    f.r = &r;
    fill(&f, kind, stacked);
    write_tensors(&f);
    write_config(methods[other < METHODS ? other : kind]);
    FUZZ_MUST(!st_open(fuzz_path(""), &s, &e) && !model_config_load(fuzz_path(""), &c, &e));
    if (model_block_open(&c, s, 0, &b, &e)) {
        fuzz_check_sentence(e.text, sizeof e.text);
    } else {
        run(&b);
        model_block_close(&b);
    }
    model_config_free(&c);
    st_close(s);
    return 0;
}
