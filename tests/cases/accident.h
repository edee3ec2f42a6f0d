/* accident.h - owns what the runners of tests/data/cases.json share: a case's parameters and expectations, of which it
 * keeps count, and the numbers of its documented generator.  It must never let an expectation pass unread: one that no
 * runner asked for fails the test, unless not_here.json says why. */
#ifndef MOEWE_TESTS_ACCIDENT_H
#define MOEWE_TESTS_ACCIDENT_H

#include <jansson.h>

#include "../support/layer_case.h"

enum { CHECKED_MAX = 64, CHECKED_CHARS = 48 };

typedef struct accident {
    const char *id;
    const json_t *params, *expect;
    const char *backend;        /* that runs now */
    const moewe_device *dev;
    char checked[CHECKED_MAX][CHECKED_CHARS]; /* "exact.routed_rows", "props.0", "out" */
    int n_checked;
} accident;

/* ---- parameters; a missing one fails the test ---- */

int64_t     number(const json_t *object, const char *key);
int64_t     number_or(const json_t *object, const char *key, int64_t otherwise);
double      real_or(const json_t *object, const char *key, double otherwise);
const char *text_or(const json_t *object, const char *key, const char *otherwise);
double      real_at(const json_t *array, size_t i);
double      logit_at(const json_t *array, size_t i); /* "nan" too */

/* ---- expectations ---- */

/* Says that something of expect was checked: "out", "props.1", "exact.routed_rows". */
void checked(accident *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
int  has_expectation(const accident *a, const char *section, const char *key);

/* Fails unless value is what expect[section][key] says: equal for "exact", no more for "max", no less for "min". */
void expects(accident *a, const char *section, const char *key, uint64_t value);

/* The status is one that the case's error_class allows. */
void refused_as(accident *a, moewe_status status);

/* Rows of expect[key] against y, each element within the case's tol. */
void expects_rows(accident *a, const char *key, const float *y, int64_t stride);

/* ---- the generator of the conventions ---- */

float value(uint64_t seed, uint64_t i, double scale);
void  fill_values(float *p, uint64_t n, uint64_t seed, double scale);

/* ---- layers as cases describe them ---- */

/* hidden, intermediate, experts, top_k, activation and its constants, from object; F32 throughout, ids GIVEN. */
moewe_config config_of(const json_t *object);
int32_t      activation_of(const char *name);

/* y = layer with exactly the memory that the plan needs, which held NaN before. */
moewe_status try_layer(const moewe_device *dev, const moewe_config *cfg, const moewe_weights *w, const moewe_io *io,
                       int pattern);

/* A plan's bytes, and those of one of its regions (0: none of that name). */
uint64_t need_of(const moewe_device *dev, const moewe_config *cfg);
uint64_t region_of(const moewe_device *dev, const moewe_config *cfg, const char *name);

/* Address space that costs memory only where it is written. */
void *sparse(uint64_t bytes);
void  sparse_free(void *p, uint64_t bytes);

/* All experts of all three matrices are views of these few rows of numbers, which lets a layer have the width that a
 * case names without its memory.  cfg's w_dtype; release with thin_free. */
typedef struct thin {
    void *block;
    const void **experts;
} thin;
moewe_weights thin_weights(const moewe_config *cfg, thin *t);
void          thin_free(thin *t);

/* ---- runners, each with the cases that it takes; a table ends with a NULL id ---- */

typedef void runner(accident *a);
typedef struct entry {
    const char *id;
    runner *run;
    int once; /* on the first back end only: the runner opens devices of its own, or no back end matters */
} entry;

extern const entry layer_entries[], route_entries[], edge_entries[], sizing_entries[], manager_entries[],
    limit_entries[], parallel_entries[];

/* ---- what the linker's wraps count while armed; see case_manager.c ---- */

void count_allocations(void);
int  allocations(void); /* since then; counting ends */

#endif
