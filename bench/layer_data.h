/* layer_data.h - what a timed layer works on: packed weights of enough layers to come from memory, and rows with
 * routings of known experts. */
#ifndef MOEWE_BENCH_LAYER_DATA_H
#define MOEWE_BENCH_LAYER_DATA_H

#include <moewe.h>

#include "../formats/error.h"
#include "weight_type.h"

typedef struct layer_set {
    const moewe_device *dev;
    int32_t n_layers;
    moewe_weights *weights;   /* [n_layers], packed */
    moewe_span *mem;          /* [n_layers], what they lie in */
    float *tensor;            /* of the matrices whose experts have a factor of their own */
    uint64_t layer_bytes;     /* packed, of one layer */
    uint64_t expert_bytes;    /* packed, of one routed expert */
    uint64_t always_bytes;    /* packed, of what every call reads: router, shared expert, latent projections */
} layer_set;

/* cfg has its w_dtype; its score says whether there is a router.  At least total bytes of weights in all, or as much of
 * that as fits in a half of what is free; at least one layer. */
int  layer_set_open(layer_set *s, const moewe_device *dev, const moewe_config *cfg, const bench_type *type,
                    uint64_t total, fmt_error *e);
void layer_set_close(layer_set *s); /* also what failed to open */

typedef struct layer_rows {
    int32_t n_routings;       /* used in turn */
    int32_t n_x;              /* rows for each routing, when the layer's own router must find it, or the same for all */
    void *x, *y;              /* [n_x][tokens][hidden], [tokens][hidden] */
    uint64_t x_bytes;         /* of one [tokens][hidden] */
    int32_t *ids;             /* [n_routings][tokens][top_k] */
    float *ids_weights;       /* [tokens][top_k] */
    int32_t *distinct;        /* [n_routings] experts that the routing has */
} layer_rows;

/* cfg with max_tokens; skew: popularity of the experts as 1 / rank^skew, 0 = all alike. */
int  layer_rows_open(layer_rows *r, const moewe_config *cfg, double skew, fmt_error *e);
void layer_rows_close(layer_rows *r);

#endif
