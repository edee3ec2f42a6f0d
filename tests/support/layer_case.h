/* layer_case.h - owns what the layer tests share: random layers in exactly sized memory, a list of the back
 * ends that run here, and comparison with the oracle.  It must never include anything of src/core or src/cpu. */
#ifndef MOEWE_TESTS_LAYER_CASE_H
#define MOEWE_TESTS_LAYER_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <moewe.h>

#include "../../src/ref/ref.h"

/* Fails the running test with a sentence of one's own. */
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) fail_msg(__VA_ARGS__);                                                                       \
    } while (0)
#define CHECK_OK(call)                                                                                                 \
    do {                                                                                                               \
        moewe_status check_ok_ = (call);                                                                               \
        if (check_ok_) fail_msg("%s: %s: %s", #call, moewe_status_name(check_ok_), moewe_last_error());                 \
    } while (0)

/* ---- numbers ---- */

typedef struct rng {
    uint64_t state;
} rng;

uint64_t rng_next(rng *r);
int32_t  rng_range(rng *r, int32_t low, int32_t high); /* both may come */
double   rng_real(rng *r);                             /* in (-1, 1) */

int32_t dtype_size(int32_t dtype);
void    store(void *p, int32_t dtype, double v); /* rounded to nearest, ties to even */

/* ---- memory ---- */

void *must_alloc(uint64_t bytes, uint32_t align); /* exactly bytes, so that a sanitizer guards both ends */
void  fill_pattern(void *p, uint64_t bytes, int pattern); /* 0 zeros, 1 0xff, 2 f32 NaN, 3 random */
enum { PATTERNS = 4 };

/* ---- back ends ---- */

enum { BACKENDS_MAX = 8 };
typedef struct backend_list {
    int32_t n;
    char name[BACKENDS_MAX][32];
} backend_list;

backend_list  cpu_backends(void); /* fails the test when there is none; prints those that cannot run here as skipped */
moewe_device *open_backend(const char *name, int32_t n_threads);

/* Calls edge with each back end's name and a device of two threads. */
typedef void edge_fn(const char *backend, const moewe_device *dev);
void on_every_backend(edge_fn *edge);

/* The oracle's bounds are for this back end from now on. */
void oracle_for(const char *backend);

/* ---- sentences ---- */

/* moewe_last_error holds this word, or this number; and it is one line, not an empty one. */
void says(const char *part);
void says_number(uint64_t number);
void one_sentence(void);

/* ---- layers ---- */

enum {
    WITH_BIAS1 = 1 << 0,       /* on gate and up */
    WITH_BIAS2 = 1 << 1,       /* on down */
    WITH_SELECT_BIAS = 1 << 2,
    WITH_LOGITS = 1 << 3,      /* passed by the caller, no router */
    WITH_SHARED_SCALE = 1 << 4,
    WITH_UNALIGNED = 1 << 5,   /* matrices start at odd addresses */
    WITH_TRANSPOSED = 1 << 6,  /* columns contiguous: row_stride is one element */
    WITH_POINTERS = 1 << 7,    /* one pointer per expert, in an order of their own */
    WITH_STRIDES = 1 << 8,     /* rows of x and y are further apart than they are long */
    WITH_Y_ADD = 1 << 9,
    WITH_SHARED_BIAS = 1 << 10,
    WITH_EXPERT_SCALE = 1 << 11,
    WITH_HASH = 1 << 12,       /* ids by token id; only with a score that can be looked up, see case_build */
    WITH_LATENT_BIAS = 1 << 13,
    WITH_EVERYTHING = (1 << 14) - 1
};

enum { BLOCKS_MAX = 128 };
typedef struct layer_case {
    moewe_config cfg; /* defaults filled in */
    moewe_weights w;
    moewe_io io; /* io.y is y0, which no run writes */
    uint64_t y_bytes;
    int32_t *ids, *tokens;
    float *given;
    void *blocks[BLOCKS_MAX];
    int32_t n_blocks;
} layer_case;

typedef struct weight_kind weight_kind; /* weight_kind.h */

/* Memory that case_free frees; returns it. */
void *case_keep(layer_case *c, void *p);

/* cfg->max_tokens 0 becomes n_tokens (at least 1).  SPARSEMIXER and GIVEN have no WITH_HASH, SPARSEMIXER no
 * WITH_SELECT_BIAS: the library refuses them. */
void case_build(layer_case *c, const moewe_config *cfg, int32_t n_tokens, unsigned with, uint64_t seed);
/* The same with these kinds of weights for cfg's w_dtype and down_dtype; latent and shared matrices are of the first,
 * and so is the router where seed is odd. */
void case_build_of(layer_case *c, const moewe_config *cfg, int32_t n_tokens, unsigned with, uint64_t seed,
                   const weight_kind *gate_up, const weight_kind *down);
void case_free(layer_case *c);
int64_t case_x_stride(const layer_case *c);
int64_t case_y_stride(const layer_case *c);

/* The test shape most tables start from. */
moewe_config small_config(void);

/* One run with a plan of its own and an exact workspace filled with pattern.  limit 0: none.  w NULL: as the
 * case has it.  y (c->y_bytes) starts as y0. */
moewe_status case_try(const moewe_device *dev, const layer_case *c, const moewe_weights *w, uint64_t limit,
                      int pattern, void *y);
void case_run(const moewe_device *dev, const layer_case *c, const moewe_weights *w, uint64_t limit, int pattern,
              void *y);

/* Packs c->w for dev; *mem is to be freed. */
moewe_weights case_pack(const moewe_device *dev, const layer_case *c, void **mem);

typedef struct tally {
    int64_t rows, skipped; /* skipped: the choice of experts is too near to a tie to hold f32 to it */
    double worst;          /* largest error over bound */
} tally;

/* What the oracle says y is: n_tokens rows of hidden values; margins, one a row, as ref_route has them.  Both to be
 * freed. */
ref_value *case_wanted(const layer_case *c, ref_value **margins);
/* Every element of y within its bound; what names the case in messages. */
void case_compare(const layer_case *c, const void *y, const ref_value *wanted, const ref_value *margins, tally *t,
                  const char *what);
/* Both in one. */
void case_check(const layer_case *c, const void *y, tally *t, const char *what);
/* case_run and case_check in one. */
void check_run(const char *backend, const moewe_device *dev, const layer_case *c, const char *what);
/* Fails when more than a few rows in a hundred were skipped. */
void tally_check(const tally *t, const char *what);

#endif
