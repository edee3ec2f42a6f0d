/* backend.h - the only door between core and the back ends.  Core validates, plans and checks every
 * argument; a back end sees canonical configs and checked pointers, and only computes.  Back ends
 * never see each other. */
#ifndef MOEWE_BACKEND_H
#define MOEWE_BACKEND_H

#include <moewe.h>

enum { MOEWE_ALIGN = 64, MOEWE_NAME_BYTES = 64, MOEWE_MAX_REGIONS = 16, MOEWE_THREADS_MAX = 1024 };

/* ---- errors and log lines ----------------------------------------------------- */

/* Stores the sentence for moewe_last_error on this thread and returns s. */
moewe_status moewe_fail(moewe_status s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void         moewe_trace(moewe_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- memory --------------------------------------------------------------------- */

void *moewe_host_alloc(const moewe_allocator *a, size_t bytes, size_t align); /* zero filled; NULL when there is none */
void  moewe_host_free(const moewe_allocator *a, void *ptr, size_t bytes);

/* a * b and a + b that stick at UINT64_MAX, which no real size reaches. */
uint64_t moewe_mul(uint64_t a, uint64_t b);
uint64_t moewe_add(uint64_t a, uint64_t b);
uint64_t moewe_align_up(uint64_t bytes, uint64_t align);

/* One walk books a workspace: with base NULL it counts, with a base it yields pointers. */
typedef struct carve {
    uint8_t      *base;
    uint64_t      at;        /* bytes so far; UINT64_MAX after an overflow */
    moewe_region *regions;   /* filled when not NULL, room for MOEWE_MAX_REGIONS */
    int32_t       n_regions;
} carve;

/* The next count * each bytes, rounded up to MOEWE_ALIGN.  NULL while counting. */
void *carve_take(carve *c, const char *name, uint64_t count, uint64_t each, moewe_stage first, moewe_stage last);

/* ---- objects ---------------------------------------------------------------------- */

typedef struct moewe_backend moewe_backend;

struct moewe_device {
    const moewe_backend *backend;
    moewe_allocator      allocator;
    moewe_executor       executor;  /* run NULL: the back end's own threads */
    int32_t              ordinal;
    int32_t              n_threads; /* 0 when open is called: it decides */
    int32_t              pin;       /* 1: its own threads stay on CPUs, or open fails */
    void                *state;     /* the back end's own */
};

/* What a back end decided; frozen in the plan. */
typedef struct moewe_choice {
    int32_t  chunk_tokens; /* tokens that are routed, computed and combined at a time */
    uint64_t mid_bytes;    /* room for activated rows between the two GEMMs: the pairs in flight */
} moewe_choice;

struct moewe_plan {
    const moewe_device *dev;
    moewe_config        cfg;  /* canonical: no field left at its default */
    char                name[MOEWE_NAME_BYTES];
    moewe_choice        choice;
    moewe_need          need;
    moewe_region        regions[MOEWE_MAX_REGIONS];
    int32_t             n_regions;
};

/* Dtypes that a whole matrix may have; those with scales beside the elements, and those with scales inside. */
static inline int moewe_dtype_scaled(int32_t t) { return t >= MOEWE_DTYPE_E4M3 && t <= MOEWE_DTYPE_I4; }
static inline int moewe_dtype_blocked(int32_t t) { return t >= MOEWE_DTYPE_Q8_0 && t <= MOEWE_DTYPE_Q6_K; }
static inline int moewe_dtype_of_weights(int32_t t) { return t > 0 && t < MOEWE_DTYPE_E8M0; }

/* Width of the rows that routed experts read and write. */
static inline int32_t moewe_expert_width(const moewe_config *c) { return c->latent ? c->latent : c->hidden; }
static inline int moewe_act_gated(int32_t act) { return act < MOEWE_ACT_RELU2; }

/* Shape of one matrix of the layer, as core checked it. */
typedef struct moewe_shape { int32_t n, rows, cols; } moewe_shape;

struct moewe_backend {
    const char *name;
    int32_t     kind; /* moewe_device_kind */

    /* 1 when it can run here; else 0 and one reason in why. */
    int (*probe)(char *why, size_t cap);
    moewe_status (*open)(moewe_device *dev);
    void (*close)(moewe_device *dev);

    moewe_status (*alloc)(const moewe_device *dev, uint64_t bytes, void **out);
    void (*free)(const moewe_device *dev, void *ptr, uint64_t bytes);
    moewe_status (*copy)(const moewe_device *dev, void *dst, const void *src, uint64_t bytes);
    moewe_status (*sync)(const moewe_device *dev, void *stream);
    moewe_status (*parallel)(const moewe_device *dev, moewe_task_fn fn, void *task, int32_t count);

    /* Sets plan->choice for dev and cfg so that book needs at most limit bytes (UINT64_MAX: no limit, as
     * fast as possible; 0: as little as possible).  A limit that is too small gets the least there is. */
    void (*choose)(moewe_plan *plan, uint64_t limit);
    /* Takes every region in order; pointers go to the back end's own struct at views (NULL: count only). */
    void (*book)(const moewe_plan *plan, carve *c, void *views);
    /* Lines for moewe_plan_describe about kernels and tiles. */
    size_t (*describe)(const moewe_plan *plan, char *buf, size_t cap);

    /* By dtype, scale.dtype, scale.rows and scale.cols of m.  UINT64_MAX: too large. */
    uint64_t (*packed_bytes)(moewe_shape shape, const moewe_matrix *m);
    uint32_t (*layout)(void);                                   /* tag of packed matrices */
    moewe_status (*pack)(const moewe_device *dev, moewe_shape shape, const moewe_matrix *src, void *dst,
                         void *stream);

    moewe_status (*run)(const moewe_plan *plan, const moewe_weights *w, const moewe_io *io, void *base, void *stream,
                        moewe_stage first, moewe_stage last);
    moewe_status (*linear)(const moewe_device *dev, const moewe_linear *lin, int32_t n_tokens, const void *x,
                           int64_t x_stride, void *y, int64_t y_stride);
};

/* Every back end in this build, best first; ends with NULL. */
extern const moewe_backend *const moewe_backends[];
extern const moewe_backend moewe_cpu_amx, moewe_cpu_avx512bf16, moewe_cpu_avx512, moewe_cpu_avx2, moewe_cpu_scalar;

#endif
