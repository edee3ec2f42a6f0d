/* gguf_bytes.h - GGUF files laid out by hand for tests, after the published specification.  Must not use the code under
 * test. */
#ifndef MOEWE_TESTS_FORMATS_GGUF_BYTES_H
#define MOEWE_TESTS_FORMATS_GGUF_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* Types of values and tensors, as numbered in files. */
enum { V_U8 = 0, V_U32 = 4, V_I32 = 5, V_F32 = 6, V_BOOL = 7, V_STRING = 8, V_ARRAY = 9 };
enum { T_F32 = 0, T_F16 = 1, T_Q4_0 = 2, T_Q8_0 = 8, T_Q4_K = 12, T_Q5_K = 13, T_Q6_K = 14, T_I8 = 24, T_BF16 = 30 };

void gg_start(void);
void gg_u32(const char *key, uint32_t v);
void gg_f32(const char *key, float v);
void gg_bool(const char *key, int v);
void gg_text(const char *key, const char *v);
void gg_texts(const char *key, const char *const *list); /* NULL ends it */
void gg_ints(const char *key, const int32_t *list, size_t n);

/* Byte i of the tensor's data is i + first; extents as in the file, innermost first, 0 ends them. */
void gg_tensor(const char *name, uint32_t type, uint8_t first, const uint64_t *extents);

/* The file's bytes, valid until the next start. */
const uint8_t *gg_bytes(size_t *n);
void gg_finish(const char *name); /* into the folder */

/* All of a qwen3moe decoder: one layer, hidden 32, 2 heads of 16 and 1 of keys, 2 experts of 32, 6 tokens.  What is
 * said of the tokenizer and the MoE block are left out. */
void gg_decoder(void);

#endif
