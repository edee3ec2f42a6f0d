/* shape.h - the shape of a layer to time: of a model that the planner knows, or given as numbers. */
#ifndef MOEWE_BENCH_SHAPE_H
#define MOEWE_BENCH_SHAPE_H

#include <moewe.h>

#include "../formats/error.h"

typedef struct bench_shape {
    char name[64];      /* canonical: "qwen3-30b-a3b", or "2048,768,128,8,swiglu" */
    moewe_config whole; /* dtypes, max_tokens and limit left at 0 */
} bench_shape;

/* text: "H,I,E,K[,act]", a config.json, a folder with one, or a name as planner_open takes it; a name that is none but
 * begins some means the smallest model that begins so ("mixtral" is mixtral-8x7b). */
int bench_shape_find(const char *text, const moewe_device *dev, bench_shape *out, fmt_error *e);

/* The routed experts alone, by given ids and weights: SwiGLU where the model's experts are gated, else its own
 * activation; no shared expert, no latent projections, no constants of the model. */
moewe_config bench_shape_experts(const bench_shape *s);

#endif
