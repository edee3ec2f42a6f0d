/* support.h - what the engine's tests share: reference tensors by name, an engine by options, a prompt run as one or
 * many batches.  Values to compare with always come from the reference files. */
#ifndef MOEWE_TESTS_ENGINE_SUPPORT_H
#define MOEWE_TESTS_ENGINE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "engine/generate.h"
#include "formats/safetensors.h"

#define WORDMATH TEST_MODELS "/wordmath"

enum { END_OF_TEXT = 908 }; /* eos_token_id of wordmath's config.json */

st_store *reference_open(const char *dir);

/* Ids of an I32 or I64 tensor; the caller frees them. */
int32_t *reference_ids(const st_store *s, const char *name, int32_t *count);
/* An F32 tensor, copied; the caller frees it. */
float *reference_floats(const st_store *s, const char *name, int64_t *count);

engine *engine_with(const char *dir, engine_options o);

/* Feeds ids to sequence seq in forward passes of at most chunk tokens and copies the logits of the last n_rows
 * positions to out[n_rows][vocab]. */
void prompt_run(engine *g, int32_t seq, const int32_t *ids, int32_t n, int32_t chunk, int32_t n_rows, float *out);

/* |a - b| / |b| over all elements, in f64. */
double relative_error(const float *a, const float *b, int64_t n);

#endif
