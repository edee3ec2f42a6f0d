/* gguf_bytes.c - the writer that gguf_bytes.h describes. */
#include <string.h>

#include "files.h"
#include "gguf_bytes.h"

typedef struct bytes {
    uint8_t at[1 << 16];
    size_t n;
} bytes;

static bytes keys, infos, data, whole;
static uint64_t n_keys, n_tensors;

static void add(bytes *b, const void *from, size_t n)
{
    assert_true(n <= sizeof b->at - b->n);
    memcpy(b->at + b->n, from, n);
    b->n += n;
}

static void number(bytes *b, uint64_t v, int width)
{
    for (int i = 0; i < width; i++) add(b, &(uint8_t){(uint8_t)(v >> 8 * i)}, 1);
}

static void string(bytes *b, const char *text)
{
    number(b, strlen(text), 8);
    add(b, text, strlen(text));
}

static void pad(bytes *b)
{
    while (b->n % 32) number(b, 0, 1);
}

static void key(const char *name, uint32_t type)
{
    string(&keys, name);
    number(&keys, type, 4);
    n_keys++;
}

void gg_start(void)
{
    keys.n = infos.n = data.n = 0;
    n_keys = n_tensors = 0;
}

void gg_u32(const char *name, uint32_t v)
{
    key(name, V_U32);
    number(&keys, v, 4);
}

void gg_f32(const char *name, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    key(name, V_F32);
    number(&keys, bits, 4);
}

void gg_bool(const char *name, int v)
{
    key(name, V_BOOL);
    number(&keys, (uint64_t)v, 1);
}

void gg_text(const char *name, const char *v)
{
    key(name, V_STRING);
    string(&keys, v);
}

void gg_texts(const char *name, const char *const *list)
{
    uint64_t n = 0;
    while (list[n]) n++;
    key(name, V_ARRAY);
    number(&keys, V_STRING, 4);
    number(&keys, n, 8);
    for (uint64_t i = 0; i < n; i++) string(&keys, list[i]);
}

void gg_ints(const char *name, const int32_t *list, size_t n)
{
    key(name, V_ARRAY);
    number(&keys, V_I32, 4);
    number(&keys, n, 8);
    for (size_t i = 0; i < n; i++) number(&keys, (uint32_t)list[i], 4);
}

static uint64_t bytes_of(uint32_t type, uint64_t elements)
{
    switch (type) {
    case T_F32:
        return 4 * elements;
    case T_F16:
    case T_BF16:
        return 2 * elements;
    case T_Q4_0:
        return elements / 32 * 18;
    case T_Q8_0:
        return elements / 32 * 34;
    case T_Q4_K:
        return elements / 256 * 144;
    case T_Q5_K:
        return elements / 256 * 176;
    case T_Q6_K:
        return elements / 256 * 210;
    default:
        return elements;
    }
}

void gg_tensor(const char *name, uint32_t type, uint8_t first, const uint64_t *extents)
{
    uint64_t elements = 1;
    uint32_t rank = 0;
    for (; extents[rank]; rank++) elements *= extents[rank];
    string(&infos, name);
    number(&infos, rank, 4);
    for (uint32_t i = 0; i < rank; i++) number(&infos, extents[i], 8);
    number(&infos, type, 4);
    number(&infos, data.n, 8);
    for (uint64_t i = 0; i < bytes_of(type, elements); i++) number(&data, (uint8_t)(first + i), 1);
    pad(&data);
    n_tensors++;
}

const uint8_t *gg_bytes(size_t *n)
{
    whole.n = 0;
    add(&whole, "GGUF", 4);
    number(&whole, 3, 4);
    number(&whole, n_tensors, 8);
    number(&whole, n_keys, 8);
    add(&whole, keys.at, keys.n);
    add(&whole, infos.at, infos.n);
    pad(&whole);
    add(&whole, data.at, data.n);
    *n = whole.n;
    return whole.at;
}

void gg_finish(const char *name)
{
    size_t n;
    const uint8_t *all = gg_bytes(&n);
    put_bytes(name, all, n);
}

#define EXTENTS(...) ((const uint64_t[]){__VA_ARGS__, 0})

void gg_decoder(void)
{
    gg_start();
    gg_text("general.architecture", "qwen3moe");
    gg_u32("qwen3moe.block_count", 1);
    gg_u32("qwen3moe.context_length", 64);
    gg_u32("qwen3moe.embedding_length", 32);
    gg_u32("qwen3moe.feed_forward_length", 96);
    gg_u32("qwen3moe.attention.head_count", 2);
    gg_u32("qwen3moe.attention.head_count_kv", 1);
    gg_u32("qwen3moe.attention.key_length", 16);
    gg_f32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-5f);
    gg_f32("qwen3moe.rope.freq_base", 5000.0f);
    gg_u32("qwen3moe.expert_count", 2);
    gg_u32("qwen3moe.expert_used_count", 1);
    gg_u32("qwen3moe.expert_feed_forward_length", 32);
    gg_tensor("token_embd.weight", T_F16, 1, EXTENTS(32, 6));
    gg_tensor("output_norm.weight", T_F32, 2, EXTENTS(32));
    gg_tensor("blk.0.attn_norm.weight", T_F32, 3, EXTENTS(32));
    gg_tensor("blk.0.ffn_norm.weight", T_F32, 4, EXTENTS(32));
    gg_tensor("blk.0.attn_q.weight", T_Q8_0, 5, EXTENTS(32, 32));
    gg_tensor("blk.0.attn_k.weight", T_Q8_0, 6, EXTENTS(32, 16));
    gg_tensor("blk.0.attn_v.weight", T_Q4_0, 7, EXTENTS(32, 16));
    gg_tensor("blk.0.attn_output.weight", T_BF16, 8, EXTENTS(32, 32));
    gg_tensor("blk.0.attn_q_norm.weight", T_F32, 9, EXTENTS(16));
    gg_tensor("blk.0.attn_k_norm.weight", T_F32, 10, EXTENTS(16));
}
