/* layer.h - times one MoE layer at several numbers of tokens, against ceilings that are measured around each. */
#ifndef MOEWE_BENCH_LAYER_H
#define MOEWE_BENCH_LAYER_H

#include <stddef.h>

#include <moewe.h>

#include "../formats/error.h"
#include "peaks.h"
#include "shape.h"
#include "weight_type.h"

typedef struct bench_layer_ask {
    const moewe_device *dev;
    bench_shape shape;
    bench_type type;
    int whole;               /* with the model's router, shared expert and activation */
    int32_t x_dtype, y_dtype;
    double skew;             /* experts are popular as 1 / rank^skew */
    double seconds;          /* for each number of tokens, about */
    uint64_t workspace_limit;
    uint64_t rotate_bytes;   /* weights in rotation, at least; 0 = 1.5 GB */
    uint64_t read_bytes;     /* that the read bandwidth is measured over; 0 = BENCH_READ_BYTES */
    int pinned;              /* the device's threads; for the record */
} bench_layer_ask;

typedef struct bench_ceiling {
    double read; /* bytes a second */
    double peak; /* operations a second; 0 = no loop runs here */
} bench_ceiling;

typedef struct bench_point {
    int32_t tokens, layers, routings, calls;
    double median, p10, p90;  /* seconds */
    double experts;           /* different ones that a call reads, on average over the calls */
    double bytes;             /* of packed weights that a call reads, likewise */
    double operations;        /* multiplications and additions of a call */
    uint64_t scratch;         /* what the plan needs */
    bench_peak peak;          /* the loop that is the ceiling of this type */
    bench_ceiling before, after;
    double roofline;          /* seconds at the mean of the ceilings */
} bench_point;

/* Nonzero stops. */
typedef int (*bench_point_fn)(void *ctx, const bench_point *p);

/* 0; or -1 and a sentence; or what fn returned. */
int bench_layer(const bench_layer_ask *ask, const int32_t *tokens, size_t n_tokens, bench_point_fn fn, void *ctx,
                fmt_error *e);

#endif
