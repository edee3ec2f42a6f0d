/* ref.h - owns the declarations of the oracle: each stage of a layer in plain C and f64.
 *
 * Compiled into tests only.  It must never see src/core or src/cpu, never be linked into the library,
 * never allocate (callers pass scratch) and never be made fast: it is here to be read.
 *
 * Every value travels with a bound on what correct f32 arithmetic, in any order of summation, may
 * differ from it: a ref_value {v, e} says "the exact value is v, and an implementation that stores
 * what the config says is within e of it".  The bounds are forward error analysis: unit roundoffs
 * times numbers of operations times sums of absolute values.  Nothing in them is measured or tuned.
 */
#ifndef MOEWE_REF_H
#define MOEWE_REF_H

#include <moewe.h>

typedef struct ref_value {
    double v; /* exact up to f64 */
    double e; /* largest allowed difference */
} ref_value;

/* Half the distance from 1 to the next number, relative error of one rounding to nearest. */
double ref_unit(int32_t dtype);

/* One element of memory that is whole bytes. */
double ref_load(const void *p, int32_t dtype);

/* One element of a view, scaled. */
typedef struct ref_weight {
    double v;     /* the weight */
    double size;  /* magnitudes of what it is the sum of: |v| but for Q4_K, which subtracts a minimum */
    double reach; /* at least 1: the most that something computed before scaling is multiplied by */
} ref_weight;
ref_weight ref_weight_at(const moewe_matrix *m, int32_t rows, int32_t cols, int32_t expert, int32_t row, int32_t col);
double ref_element(const moewe_matrix *m, int32_t rows, int32_t cols, int32_t expert, int32_t row, int32_t col);
int    ref_absent(const moewe_matrix *m);

/* From now on bounds have room for what a back end rounds x to before it meets weights with scales: of E4M3 to
 * BF16, and where codes are whole numbers (E2M1 counts halves) to I8 in blocks of 32 that share a scale.  F32, at the
 * start: not at all.  The one thing here that is kept between calls, since it is the back end's and no argument's. */
void ref_operands(int32_t of_e4m3, int32_t of_codes);

/* cfg with the defaults that moewe.h states filled in. */
moewe_config ref_defaults(const moewe_config *cfg);

/* Width of the rows that routed experts read and write. */
int32_t ref_width(const moewe_config *cfg);

/* y_r = sum_c m[expert][r][c] * x_c + bias_r. */
ref_value ref_gemv_row(const moewe_matrix *m, int32_t expert, int32_t rows, int32_t cols, int32_t row,
                       const ref_value *x);
void ref_gemv(const moewe_matrix *m, int32_t expert, int32_t rows, int32_t cols, const ref_value *x, ref_value *y);

/* Activation of one gate value (ignored by ungated acts) and one up value, clamped to limit (0 = not). */
int       ref_gated(int32_t act);
ref_value ref_act(const moewe_config *cfg, double limit, ref_value gate, ref_value up);

/* ROUTE.  Logits are [n_experts + n_null].  Scores are what the choice compares, before the bias, where there is a
 * bias or there are groups; without either it compares the logits. */
void ref_logits(const moewe_config *cfg, const moewe_weights *w, const ref_value *x, ref_value *logits);
void ref_softcap(const moewe_config *cfg, ref_value *logits);
void ref_scores(const moewe_config *cfg, const ref_value *logits, ref_value *scores);

/* The top_k ids, best first.  margin: by how much the choice could have gone otherwise, the least gap
 * between something chosen and something not (experts, and groups); an implementation is held to this
 * choice only where margin.v > margin.e. */
void ref_choose(const moewe_config *cfg, const ref_value *scores, const float *select_bias, int32_t *ids,
                ref_value *margin);

/* Weights of the chosen before renormalising: their scores, or a softmax over them.  An id that is no expert
 * weighs 0 and takes no part in a softmax. */
void ref_weigh(const moewe_config *cfg, const ref_value *scores, const int32_t *ids, ref_value *weights);

/* SPARSEMIXER chooses and weighs in one: margin counts the order of the choices and who is in play too. */
void ref_sparsemixer(const moewe_config *cfg, const ref_value *logits, int32_t *ids, ref_value *weights,
                     ref_value *margin);

/* Renormalised where the config says so, and scaled once, by expert_scale too (NULL: none). */
void ref_finish(const moewe_config *cfg, const float *expert_scale, const int32_t *ids, ref_value *weights);

/* Routing of one token, by logits, router, table or given ids.  scratch: 2 * (n_experts + n_null) values. */
void ref_route(const moewe_config *cfg, const moewe_weights *w, const moewe_io *io, int32_t token, const ref_value *x,
               int32_t *ids, ref_value *weights, ref_value *margin, ref_value *scratch);

/* latent_in . x, stored in x_dtype. */
void ref_latent_in(const moewe_config *cfg, const moewe_weights *w, const ref_value *x, ref_value *z);

/* GEMM1 with activation, stored in x_dtype, and GEMM2 of an expert or (expert < 0) of the shared one. */
void ref_gemm1(const moewe_config *cfg, const moewe_weights *w, int32_t expert, const ref_value *x, ref_value *mid);
void ref_gemm2(const moewe_config *cfg, const moewe_weights *w, int32_t expert, const ref_value *mid, ref_value *out);

/* How many values ref_layer_row needs as scratch. */
size_t ref_scratch(const moewe_config *cfg);

/* One token, all stages.  ids and weights (top_k each) and margin are written as by ref_route; y (hidden) is not yet rounded to y_dtype, its bound has room for that. */
void ref_layer_row(const moewe_config *cfg, const moewe_weights *w, const moewe_io *io, int32_t token,
                   int32_t *ids, ref_value *weights, ref_value *margin, ref_value *y, ref_value *scratch);

/* Room that `terms` f32 roundings take in a sum of magnitude `sum_abs`. */
double ref_error_bound(double terms, double sum_abs);

#endif /* MOEWE_REF_H */
