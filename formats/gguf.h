/* gguf.h - GGUF files: the container, memory-mapped with every count and offset checked before use, and the three
 * documents that the rest of formats/ makes of one: tensors under the names of a Hugging Face checkpoint, a
 * config.json, a tokenizer.json.  Which architectures are known is a table in gguf_arch.c. */
#ifndef MOEWE_FORMATS_GGUF_H
#define MOEWE_FORMATS_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "error.h"
#include "safetensors.h"

/* ---- which file ----------------------------------------------------------------------------------------------- */

/* *file becomes the GGUF file that path stands for: path itself when it ends in .gguf or begins like one, the only
 * one (or the first of the only split one) of a folder without config.json.  NULL: path stands for none.  Allocated.
 * Several in a folder are an error. */
int gguf_locate(const char *path, char **file, fmt_error *e);

/* ---- the container -------------------------------------------------------------------------------------------- */

enum { GGUF_MAX_RANK = 4, GGUF_MAX_NAME = 255, GGUF_MAX_KEY = 65535 };

/* Values of metadata, as numbered in files. */
typedef enum gguf_type {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY,
    GGUF_U64, GGUF_I64, GGUF_F64, GGUF_TYPE_COUNT
} gguf_type;

typedef struct gguf_text {
    const char *at; /* in the mapping: not ended by a zero */
    size_t      bytes;
} gguf_text;

/* One value, or an array of them: checked to lie in the file. */
typedef struct gguf_value {
    gguf_type      type; /* of an array: that of its items */
    int            array;
    uint64_t       count; /* items left */
    const uint8_t *at;
} gguf_value;

/* A type of tensors, as numbered in files. */
typedef struct gguf_kind {
    uint32_t    id;
    const char *name;         /* "Q8_0" */
    uint32_t    block, bytes; /* elements of a row that are stored together, and in how many bytes */
    st_dtype    dtype;        /* ST_DTYPE_NONE: none that moewe computes with */
} gguf_kind;

typedef struct gguf_tensor {
    gguf_text        name;
    const gguf_kind *kind;
    int32_t          rank;
    int64_t          shape[GGUF_MAX_RANK]; /* outermost first: the file has it the other way round */
    const uint8_t   *data;
    uint64_t         bytes;
    const char      *file;
} gguf_tensor;

typedef struct gguf gguf;

/* A file, with the other parts when it is the first of a split one. */
int  gguf_open(const char *file, gguf **out, fmt_error *e);
void gguf_close(gguf *g); /* NULL is allowed */

const char        *gguf_file(const gguf *g);
uint64_t           gguf_mapped_bytes(const gguf *g); /* of all parts */
size_t             gguf_tensor_count(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t index); /* in ascending byte order of names */
const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name);
const gguf_value  *gguf_find(const gguf *g, const char *key);   /* NULL when absent */

const gguf_kind *gguf_kind_of(st_dtype dtype); /* NULL: GGUF has no such type */

/* ---- values (gguf_value.c) ------------------------------------------------------------------------------------ */

/* The next item of an array (or the value itself): moves v, which is a copy of the caller's.  Type and count are
 * looked at by the caller. */
gguf_text gguf_take_text(gguf_value *v);
int64_t   gguf_take_int(gguf_value *v);  /* of any integer type; what does not fit becomes INT64_MAX */
double    gguf_take_real(gguf_value *v); /* of any number */

/* A value of that kind under key, or an error that names file and key.  *there says whether the key is there; with
 * there == NULL it must be. */
int gguf_need_int(const gguf *g, const char *key, int64_t low, int64_t high, int64_t *out, int *there, fmt_error *e);
int gguf_need_real(const gguf *g, const char *key, double *out, int *there, fmt_error *e);
int gguf_need_bool(const gguf *g, const char *key, int *out, int *there, fmt_error *e);
int gguf_need_text(const gguf *g, const char *key, gguf_text *out, int *there, fmt_error *e);
/* An array of strings, or of integers. */
int gguf_need_list(const gguf *g, const char *key, int of_text, gguf_value *out, int *there, fmt_error *e);

int gguf_text_is(gguf_text t, const char *word);

/* ---- what is made of it --------------------------------------------------------------------------------------- */

/* Tensors under the names that the architecture's checkpoints have, experts one by one, as views into the mapping;
 * *names holds the names.  Both are the caller's to free.  A type that moewe does not compute with is an error. */
int gguf_tensors(const gguf *g, st_tensor **out, size_t *n, char **names, fmt_error *e);

/* The same facts as a config.json of transformers; quantization_config names the type of each matrix. */
json_t *gguf_config(const char *file, fmt_error *e);

/* tokenizer.json of transformers' tokenizers (tok_gguf.c).  NULL without an error where the file has none and absent,
 * which may be NULL, can say so. */
json_t *gguf_tokenizer(const char *file, int *absent, fmt_error *e);
/* The name that GGUF has for the pre_tokenizer of such a document; NULL: none that is known here. */
const char *gguf_pre_of(const json_t *tokenizer);

/* A row of n elements in blocks (MOEWE_DTYPE_Q8_0, Q4_0, Q4_K, Q6_K) as f32; -1 where there is no such row. */
int gguf_row_floats(int32_t dtype, const void *row, int64_t n, float *out);

/* ---- writing -------------------------------------------------------------------------------------------------- */

typedef struct gguf_out {
    char     name[GGUF_MAX_NAME + 1]; /* as GGUF names it: gguf_name_of */
    st_dtype dtype;
    int32_t  rank;
    int64_t  shape[GGUF_MAX_RANK];    /* outermost first */
} gguf_out;

/* Writes the bytes of tensor index, packed, into buf. */
typedef int (*gguf_fill_fn)(void *ctx, size_t index, void *buf, uint64_t bytes, fmt_error *e);

/* A GGUF file of the checkpoint in the folder source_dir, whose config.json, tokenizer.json and
 * generation_config.json become its metadata.  One tensor is in memory at a time.  As st_write, nothing half-written
 * stays.  Of model_type qwen3_moe only. */
int gguf_write(const char *path, const char *source_dir, const gguf_out *t, size_t n, gguf_fill_fn fill, void *ctx,
               fmt_error *e);

/* The GGUF name of a tensor of a checkpoint; *expert is the number of an expert's matrix, which GGUF stacks with the
 * others, else -1.  0, or -1 when GGUF has no name for it. */
int gguf_name_of(const char *model_type, const char *name, char *buf, size_t cap, int32_t *expert);

#endif
