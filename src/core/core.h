/* core.h - what the files of core/ share with each other and nobody else sees. */
#ifndef MOEWE_CORE_H
#define MOEWE_CORE_H

#include "../backend.h"

/* Fills every default of cfg into out, or says which field is wrong. */
moewe_status moewe_config_canonical(const moewe_config *cfg, moewe_config *out, char name[MOEWE_NAME_BYTES]);

/* Lays out plan (dev, cfg and name are set) for cfg.workspace_limit and books its regions. */
moewe_status moewe_plan_lay_out(moewe_plan *plan);
moewe_need   moewe_plan_least(const moewe_plan *plan);

/* Shapes of the layer's matrices; n == 0: the config has no such matrix. */
typedef enum moewe_part {
    MOEWE_PART_GATE, MOEWE_PART_UP, MOEWE_PART_DOWN, MOEWE_PART_ROUTER, MOEWE_PART_SHARED_GATE, MOEWE_PART_SHARED_UP,
    MOEWE_PART_SHARED_DOWN, MOEWE_PART_SHARED_SCALE, MOEWE_PART_LATENT_IN, MOEWE_PART_LATENT_OUT, MOEWE_PART_COUNT
} moewe_part;
moewe_shape   moewe_part_shape(const moewe_config *cfg, moewe_part part);
moewe_matrix *moewe_part_of(moewe_weights *w, moewe_part part);
const char   *moewe_part_name(moewe_part part);
static inline int moewe_matrix_absent(const moewe_matrix *m) { return !m->data && !m->experts; }

/* dtype, layout and strides of one matrix; where names the caller's function and the matrix. */
moewe_status moewe_matrix_check(const moewe_backend *b, const char *where, const char *name, const moewe_matrix *m,
                                moewe_shape shape);
/* Strides that were left at 0 filled in. */
moewe_matrix moewe_matrix_canonical(const moewe_matrix *m, moewe_shape shape);
/* A view of data that from was packed into; what stays outside (bias, scale.tensor) is from's. */
moewe_matrix moewe_matrix_packed(const moewe_matrix *from, void *data, uint32_t layout);
moewe_status moewe_weights_check(const moewe_plan *plan, const char *where, const moewe_weights *w, int need_router);

/* n rows (at least one) of row_bytes, stride bytes apart. */
typedef struct moewe_rows {
    const char *name; /* as messages say it */
    const void *base;
    int64_t     stride;
    uint64_t    row_bytes;
    int32_t     n;
    uint32_t    element;
} moewe_rows;
moewe_status moewe_rows_check(const char *where, const moewe_rows *rows);
moewe_status moewe_rows_apart(const char *where, const moewe_rows *a, const moewe_rows *b);

/* Values of environment variables; NULL = unset. */
const char *moewe_env_threads(void);
const char *moewe_env_backend(void);
int         moewe_env_log(moewe_log_level *level); /* 1 when set */

/* Appends like snprintf to a text whose length so far is *len; cap counts from buf. */
void moewe_append(char *buf, size_t cap, size_t *len, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
