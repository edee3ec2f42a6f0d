/* safetensors.h - tensors of a checkpoint, memory-mapped; every header field is checked before use.
 * Owns the mappings; never copies tensor data.  A store is read-only after st_open: any number of
 * threads may use it. */
#ifndef MOEWE_FORMATS_SAFETENSORS_H
#define MOEWE_FORMATS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

enum { ST_MAX_RANK = 8 };

typedef enum st_dtype {
    ST_BOOL, ST_U8, ST_I8, ST_F8_E5M2, ST_F8_E4M3, ST_F8_E8M0, ST_I16, ST_U16, ST_F16, ST_BF16,
    ST_I32, ST_U32, ST_F32, ST_F64, ST_I64, ST_U64, ST_DTYPE_COUNT,
    /* Of GGUF files only: blocks along a row, with their scales inside. */
    ST_Q8_0 = ST_DTYPE_COUNT, ST_Q4_0, ST_Q4_K, ST_Q6_K, ST_DTYPE_NONE
} st_dtype;

typedef struct st_tensor {
    const char *name;
    st_dtype    dtype;
    int32_t     rank;                /* 0 for a scalar */
    int64_t     shape[ST_MAX_RANK];  /* outermost first, row-major */
    const void *data;                /* in the mapping, no alignment promised */
    uint64_t    bytes;
    const char *file;                /* that holds it, for messages */
} st_tensor;

typedef struct st_store st_store;

/* path: a .safetensors file, a directory with model.safetensors.index.json (its shards) or
 * model.safetensors, or what gguf_locate finds a GGUF file in (gguf.h).  Refuses headers that overlap, leave gaps, lie about sizes or repeat a name,
 * index entries whose shard or tensor is missing, and dtypes or ranks it does not know. */
int  st_open(const char *path, st_store **out, fmt_error *e);
void st_close(st_store *s); /* NULL is allowed */

const st_tensor *st_find(const st_store *s, const char *name); /* NULL when absent */
size_t           st_count(const st_store *s);
const st_tensor *st_at(const st_store *s, size_t index); /* in ascending byte order of names */
uint64_t         st_mapped_bytes(const st_store *s);     /* of all files together */

/* As st_find, but absent tensors, another rank or another shape are errors that name file, tensor,
 * found and expected; an extent of -1 in shape matches anything, and so does a rank of -1. */
const st_tensor *st_need(const st_store *s, const char *name, int32_t rank, const int64_t *shape, fmt_error *e);

const char *st_dtype_name(st_dtype d);  /* "BF16" */
uint32_t    st_dtype_bytes(st_dtype d); /* of an element; 0 where a block holds several */
int32_t     st_dtype_moewe(st_dtype d); /* the moewe_dtype, or 0 when moewe has none */
void        st_shape_text(const st_tensor *t, char *buf, size_t cap); /* "[32, 256]" */

/* Writes tensors (file and data order: as given; data packed, row-major) to path: into a file without a
 * name that is put in place when complete, so that nothing half-written stays, however the process ends. */
int st_write(const char *path, const st_tensor *tensors, size_t n, fmt_error *e);

/* The same; where a tensor's data is NULL, fill is asked for it when its turn comes, and what it gives must stay until
 * fill is asked again. */
typedef int (*st_fill_fn)(void *ctx, size_t index, const void **data, fmt_error *e);
int st_write_filled(const char *path, const st_tensor *tensors, size_t n, st_fill_fn fill, void *ctx, fmt_error *e);

#endif
