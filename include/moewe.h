/* moewe.h - mixture-of-experts layers, run in memory that the caller owns.
 *
 * Data moves one way:
 *
 *     config --plan_create--> plan --plan_need--> bytes      (once, off the hot path)
 *     caller's workspace --run--> caller's output            (per call, allocates nothing)
 *
 *     moewe_device *dev; moewe_plan *plan; moewe_need need; moewe_config cfg;
 *     MOEWE_INIT(cfg);
 *     cfg.hidden = 4096; cfg.inter = 2048; cfg.n_experts = 256; cfg.top_k = 8;
 *     cfg.max_tokens = 512;
 *     if (moewe_device_open(NULL, &dev) ||
 *         moewe_plan_create(dev, &cfg, &plan) ||
 *         moewe_plan_need(plan, &need)) die(moewe_last_error());
 *     moewe_span ws = { my_alloc(need.bytes, need.align), need.bytes };
 *     if (moewe_run(plan, &weights, &io, ws, NULL)) die(moewe_last_error());
 *
 * MEMORY   The library never keeps a pointer that a run received, never grows,
 *          moves or frees caller memory, and allocates only in functions named
 *          *_open and *_create (small host objects) and moewe_device_alloc (which
 *          the caller asks for by name).  A workspace needs no initialisation
 *          and carries nothing from one run to the next.  moewe_workspace_lock is the
 *          one call that keeps memory, until unlock.
 *
 * THREADS  moewe_device and moewe_plan never change after creation: any number of
 *          threads may use one at once.  A workspace span or lane serves ONE run
 *          at a time; two runs may share it only when the second is ordered after
 *          the first (same stream, or an event between).  moewe_workspace: reserve,
 *          lock, unlock and destroy from one thread at a time and with no lane
 *          out; acquire, release and stats from any thread, none of which waits.
 *          moewe_last_error is per thread.  A run that finds the device's threads busy with
 *          another caller's run works on its own thread alone: nobody waits.  An executor
 *          may be called from several threads at once.
 *
 * LIVES    A device outlives its plans and workspaces.  A plan may be destroyed after it was
 *          reserved, a workspace before or after its plans.  Packed weights may be shared by
 *          plans on one kind of device that agree in hidden, inter, latent, shared_inter,
 *          n_local, n_experts + n_null, w_dtype, down_dtype and whether act is gated: the layout depends
 *          on shapes and dtypes only, and that the shapes agree is not checked.
 *
 * STREAMS  (No CUDA back end exists yet; what follows is what one will promise.)  On a CUDA device moewe_run only enqueues.  It never synchronises, never
 *          reads device memory on the host, and so may always be captured in a
 *          CUDA graph.  On a CPU device it returns when y is written.
 *
 * BITS     The bits of y[t] depend on x[t], its routing, the weights, the plan's dtypes
 *          and the back end, and on nothing else: not on n_tokens, the other rows,
 *          max_tokens, workspace_limit, the lane, what the workspace held before, the
 *          number of threads, packed or plain weights, nor eager or captured.
 *
 * SUM      y[t] = sum over the token's experts in ascending id (equal ids in slot order),
 *          then identity experts, then the shared expert, in f32, rounded once.  With latent
 *          experts: the shared expert, then latent_out times the others' sum (in x_dtype).
 *
 * ERRORS   Every function that can fail returns moewe_status, MOEWE_OK being 0.  The
 *          library never prints, exits or aborts.  On failure no output argument
 *          is written, except that a run that failed on the device leaves y
 *          unspecified.
 */
#ifndef MOEWE_H
#define MOEWE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef MOEWE_API
#if defined(_WIN32)
#define MOEWE_API __declspec(dllimport)
#else
#define MOEWE_API __attribute__((visibility("default")))
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ---------------------------------------------------------------- */

#define MOEWE_VERSION_MAJOR 0
#define MOEWE_VERSION_MINOR 1
#define MOEWE_VERSION_PATCH 0

/* Of the library that is loaded: major << 16 | minor << 8 | patch. */
MOEWE_API uint32_t moewe_version(void);
MOEWE_API const char *moewe_build_info(void); /* compiler, back ends, debug or release */

/* ---- status ----------------------------------------------------------------- */

/* Values are pinned: a number is never reused or renumbered. */
#define MOEWE_STATUS_MAP(X)                                                          \
    X(OK,            0, "success")                                                   \
    X(E_ARG,         1, "an argument or a descriptor field is invalid")              \
    X(E_ABI,         2, "struct_size is not one that this library knows")            \
    X(E_UNSUPPORTED, 3, "valid, but no back end on this device runs it")             \
    X(E_DEVICE,      4, "the device is absent or refused the request")               \
    X(E_NOMEM,       5, "an allocation failed")                                      \
    X(E_WS_SMALL,    6, "the workspace is smaller than the plan needs")              \
    X(E_WS_ALIGN,    7, "the workspace is not aligned as the plan needs")            \
    X(E_WS_PLACE,    8, "the memory is not on the plan's device")                    \
    X(E_WS_STATE,    9, "the workspace is locked, or is not locked, or has lanes out") \
    X(E_BUSY,       10, "the lane is in use")                                        \
    X(E_STALE,      11, "the lane predates the last unlock")                         \
    X(E_RANGE,      12, "n_tokens exceeds the plan's max_tokens")                    \
    X(E_LAYOUT,     13, "the weights are packed for another layout")                 \
    X(E_CUDA,       14, "a CUDA call failed")                                        \
    X(E_WS_LIMIT,   15, "no way to run within workspace_limit")                      \
    X(E_INTERNAL,   16, "an invariant of the library failed: please report")

typedef enum moewe_status {
#define MOEWE_STATUS_X(name, value, text) MOEWE_##name = value,
    MOEWE_STATUS_MAP(MOEWE_STATUS_X)
#undef MOEWE_STATUS_X
    MOEWE_STATUS_MAX_ = 0x7fffffff /* keeps the enum 32 bits wide */
} moewe_status;

MOEWE_API const char *moewe_status_name(moewe_status s); /* "MOEWE_E_WS_SMALL"; never NULL */
MOEWE_API const char *moewe_status_text(moewe_status s); /* the text above; never NULL */

/* What went wrong in the last call that failed on this thread, with the names and
 * numbers involved, e.g.
 *   "moewe_run: workspace has 1048576 bytes, plan 'decode' needs 1310720
 *    (largest region: mid, 786432)".
 * Never NULL, never freed, unchanged by calls that succeed. */
MOEWE_API const char *moewe_last_error(void);

/* Log lines at or below max_level go to fn, or nowhere (fn NULL, the default).  Set once, before
 * other threads call.  No line is written by a run that succeeds. */
typedef enum moewe_log_level { MOEWE_LOG_ERROR, MOEWE_LOG_WARN, MOEWE_LOG_INFO, MOEWE_LOG_TRACE } moewe_log_level;
typedef void (*moewe_log_fn)(void *ctx, moewe_log_level level, const char *line);
MOEWE_API void moewe_log_set(moewe_log_fn fn, void *ctx, moewe_log_level max_level);

/* One line per environment variable that the library reads: NAME=value (or "unset"), then what
 * it does.  Works like snprintf: returns the length that the whole text has. */
MOEWE_API size_t moewe_env_describe(char *buf, size_t cap);

/* ---- descriptors ------------------------------------------------------------ */

/* Every descriptor starts with struct_size; a field left at 0 means its default;
 * enumerations are stored as int32_t so that layout does not depend on a compiler.  Output
 * structs are written whole and need no initialisation, but for moewe_workspace_stats. */
static inline void moewe_desc_init(void *desc, size_t bytes)
{
    uint32_t size = (uint32_t)bytes;
    memset(desc, 0, bytes);
    memcpy(desc, &size, sizeof size);
}
#define MOEWE_INIT(d) moewe_desc_init(&(d), sizeof(d))

typedef struct moewe_span { void *ptr; uint64_t bytes; } moewe_span; /* memory; does not own it */

typedef enum moewe_place { MOEWE_PLACE_HOST, MOEWE_PLACE_CUDA } moewe_place;
typedef struct moewe_need { uint64_t bytes; uint32_t align; int32_t place; } moewe_need;

typedef enum moewe_dtype {
    MOEWE_DTYPE_DEFAULT = 0, MOEWE_DTYPE_F32 = 1, MOEWE_DTYPE_F16 = 2, MOEWE_DTYPE_BF16 = 3,
    /* Of weights only, with scales beside them (moewe_scale).  Two to a byte: the even column is in the low half. */
    MOEWE_DTYPE_E4M3 = 4, /* FP8, no infinities; sign, 4 bits of exponent, 3 of mantissa */
    MOEWE_DTYPE_E2M1 = 5, /* FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; two to a byte */
    MOEWE_DTYPE_I8 = 6,   /* -128 to 127 */
    MOEWE_DTYPE_I4 = 7,   /* -8 to 7, stored plus 8; two to a byte */
    /* Of weights only, in blocks along a row with the scales inside, as GGUF stores them. */
    MOEWE_DTYPE_Q8_0 = 8, MOEWE_DTYPE_Q4_0 = 9,  /* 32 elements in 34 and 18 bytes */
    MOEWE_DTYPE_Q4_K = 10, MOEWE_DTYPE_Q6_K = 11, /* 256 elements in 144 and 210 bytes */
    /* Of scales only. */
    MOEWE_DTYPE_E8M0 = 12 /* 2^(byte - 127); 255 is NaN */
} moewe_dtype;

MOEWE_API const char *moewe_dtype_name(int32_t dtype);  /* "bf16"; "?" for a number it does not know */
MOEWE_API uint32_t    moewe_dtype_bytes(int32_t dtype); /* per element; 0 likewise, and where it is not whole bytes */

/* Bytes of n elements in a row.  0 for a number it does not know and where n is not whole bytes or blocks. */
MOEWE_API uint64_t moewe_dtype_row_bytes(int32_t dtype, int64_t n);

/* Gated acts take two values from GEMM 1 (gate g, up u), the others one (u).
 * SWIGLU: silu(g) * u.  SWIGLU_OAI: g * sigmoid(alpha * g) * (u + beta).  GEGLU: gelu(g) * u,
 * with erf or (GEGLU_TANH) the tanh form.  REGLU: max(g, 0) * u.  RELU2: max(u, 0)^2.
 * A limit L > 0 clamps first: g to (-inf, L], u to [-L, L]; ungated u to (-inf, L].  SWIGLU_STEP is
 * SWIGLU but for clamping silu(g), not g, to (-inf, L]. */
typedef enum moewe_act {
    MOEWE_ACT_SWIGLU = 0, MOEWE_ACT_SWIGLU_STEP, MOEWE_ACT_SWIGLU_OAI, MOEWE_ACT_GEGLU, MOEWE_ACT_GEGLU_TANH,
    MOEWE_ACT_REGLU, /* gated up to here */
    MOEWE_ACT_RELU2, MOEWE_ACT_RELU, MOEWE_ACT_SILU, MOEWE_ACT_GELU, MOEWE_ACT_GELU_TANH
} moewe_act;

typedef enum moewe_score {          /* router logit -> score */
    MOEWE_SCORE_SOFTMAX = 0,        /* over all experts, then top-k */
    MOEWE_SCORE_SOFTMAX_TOPK = 1,   /* top-k of the logits, then softmax over the chosen */
    MOEWE_SCORE_SIGMOID = 2,
    MOEWE_SCORE_SQRTSOFTPLUS = 3,   /* sqrt(log(1 + exp(logit))) */
    MOEWE_SCORE_SPARSEMIXER = 4,    /* top_k times: the largest logit m, weighed by a softmax over the logits l
                                       still in play with (m - l) / max(|l|, m) <= 2 * sparsemixer_eps */
    MOEWE_SCORE_GIVEN = 5           /* the caller passes topk_ids and topk_weights */
} moewe_score;

enum {
    MOEWE_FLAG_RENORMALIZE     = 1u << 0, /* chosen weights are divided by max(sum + renorm_eps, renorm_floor);
                                             a divisor of 0 leaves 0 */
    MOEWE_FLAG_WEIGHT_ON_INPUT = 1u << 1  /* the routing weight multiplies x, not the expert's result */
};

/* ---- device: where a layer runs --------------------------------------------- */

typedef struct moewe_device moewe_device;

typedef enum moewe_device_kind { MOEWE_DEVICE_BEST = 0, MOEWE_DEVICE_CPU, MOEWE_DEVICE_CUDA } moewe_device_kind;

/* Host allocator for the small objects that *_open and *_create make.  alloc returns memory aligned
 * to align (a power of two, at most 64), or NULL.  Both may be called from any thread. */
typedef struct moewe_allocator {
    void  *ctx;
    void *(*alloc)(void *ctx, size_t bytes, size_t align);
    void  (*free)(void *ctx, void *ptr, size_t bytes);
} moewe_allocator;

/* A CPU device runs fn(task, i, count) for every i in [0, count) through this, so that a
 * host program may lend its own threads.  run must return only when all have run; it may run
 * them one after another, and is called from the thread that called the library.  Its threads need 1 MiB of
 * stack, as a caller of moewe_run does. */
typedef void (*moewe_task_fn)(void *task, int32_t i, int32_t count);
typedef struct moewe_executor {
    void   *ctx;
    int32_t n_threads;
    int32_t reserved; /* 0 */
    void  (*run)(void *ctx, moewe_task_fn fn, void *task, int32_t count);
} moewe_executor;

typedef struct moewe_device_desc {
    uint32_t               struct_size;
    int32_t                kind;      /* moewe_device_kind */
    int32_t                ordinal;   /* CUDA device number */
    int32_t                n_threads; /* CPU; 0 = one per CPU that the calling thread may use; at most 1024 */
    const char            *backend;   /* NULL = best; else a name from moewe_device_list */
    const moewe_allocator *allocator; /* NULL = malloc */
    const moewe_executor  *executor;  /* NULL = the device's own threads */
    int32_t                pin;       /* CPU; 0 = the system moves threads as it likes; 1 = each of the device's own stays
                                         on a CPU of its own, one of every core before the second of any and the memory
                                         nodes in turn; one CPU is left to the calling thread, which is not touched, and
                                         follows it.  Refused with more threads than CPUs and with an executor */
    int32_t                reserved;  /* 0 */
} moewe_device_desc;

/* desc may be NULL (all defaults); what it points at is copied.  Fails rather than falling back
 * when a kind or a back end was named and cannot run here; moewe_last_error says which test failed. */
MOEWE_API moewe_status moewe_device_open(const moewe_device_desc *desc, moewe_device **out);
MOEWE_API void         moewe_device_close(moewe_device *dev);           /* NULL is allowed */
MOEWE_API const char  *moewe_device_backend(const moewe_device *dev);   /* e.g. "cpu-avx512", "cuda-sm90" */
MOEWE_API int32_t      moewe_device_threads(const moewe_device *dev);   /* that a run uses; 1 on a GPU */

/* One line per compiled-in back end: name, "yes", or why not.  Works like snprintf. */
MOEWE_API size_t moewe_device_list(char *buf, size_t cap);

/* Memory on the device, aligned for every plan, zero filled, and really there: on a CPU every page
 * is taken at once, by the device's threads and from the memory nodes that they run on in turn.  moewe_device_free takes
 * the same span back.  copy goes either way between host and device, or within one; copy and sync wait. */
MOEWE_API moewe_status moewe_device_alloc(const moewe_device *dev, moewe_need need, moewe_span *out);
MOEWE_API void         moewe_device_free(const moewe_device *dev, moewe_span mem);
MOEWE_API moewe_status moewe_device_copy(const moewe_device *dev, void *dst, const void *src, uint64_t bytes);
MOEWE_API moewe_status moewe_device_sync(const moewe_device *dev, void *stream);

/* Runs fn(task, i, count) for every i in [0, count) on a CPU device's threads and returns when all
 * have run: for a caller's own work between layers, so that it needs no second set of threads.
 * The order is unspecified; when the threads are busy with another caller's run, the calling
 * thread does all of it.  MOEWE_E_UNSUPPORTED on a GPU. */
MOEWE_API moewe_status moewe_device_for(const moewe_device *dev, moewe_task_fn fn, void *task, int32_t count);

/* ---- plan: what will be done, and how much room it takes -------------------- */

typedef struct moewe_plan moewe_plan;

/* Widths go up to 2^20, experts to 65536, top_k to n_experts + n_null and at most 1024.  n_group excludes
 * n_null, SPARSEMIXER and GIVEN; a selection bias excludes SPARSEMIXER. */
typedef struct moewe_config {
    uint32_t struct_size;
    uint32_t flags;         /* MOEWE_FLAG_* */
    int32_t  hidden;        /* width of a row of x and of y */
    int32_t  inter;         /* width between the two GEMMs, after gating */
    int32_t  n_experts;     /* that the router chooses among, without n_null */
    int32_t  top_k;
    int32_t  max_tokens;    /* the plan serves every 0 <= n_tokens <= max_tokens */
    int32_t  first_expert;  /* experts held here: [first_expert, first_expert + n_local); others add nothing */
    int32_t  n_local;       /* 0 = all from first_expert on */
    int32_t  n_null;        /* identity experts: ids in [n_experts, n_experts + n_null) add w * x */
    int32_t  n_group;       /* experts are chosen from the top_group best of n_group equal groups; 0 = no groups */
    int32_t  top_group;
    int32_t  group_best;    /* a group ranks by the sum of its group_best best scores; 0 = 1 */
    int32_t  score;         /* moewe_score */
    int32_t  act;           /* moewe_act */
    int32_t  x_dtype;       /* F32 (default) or BF16; also the dtype of the values between the two GEMMs, but that
                               whole-number weights read both in int8, blocks of 32 with a scale each */
    int32_t  w_dtype;       /* of gate and up, any that weights may have; default F32 */
    int32_t  down_dtype;    /* likewise, of down; default w_dtype */
    int32_t  y_dtype;       /* F32 or BF16; default x_dtype */
    int32_t  shared_inter;  /* width of the always-on expert; 0 = none */
    int32_t  latent;        /* routed experts work on rows of this width, latent_in . x, and latent_out takes their
                               sum back to hidden; 0 = none: they work on hidden */
    float    act_limit;     /* of the routed experts' gate and up values; 0 = none */
    float    shared_limit;  /* likewise, of the shared expert's */
    float    act_alpha, act_beta; /* of SWIGLU_OAI, which has no default for them: both 0 are refused */
    float    logit_softcap; /* c > 0: router logits become c * tanh(logit / c); 0 = none */
    float    sparsemixer_eps;
    float    renorm_eps, renorm_floor;
    float    routed_scale;  /* 0 = 1; multiplies each routing weight, given ones too, exactly once */
    float    shared_scale;  /* 0 = 1; multiplies the shared expert's result */
    uint64_t workspace_limit; /* 0 = as fast as possible; else the plan works in chunks so that need <= limit, and is
                                 never larger than without one; below moewe_plan_floor: MOEWE_E_WS_LIMIT */
    const char *name;       /* appears in messages and logs; copied (63 bytes are kept); may be NULL */
} moewe_config;

/* Validates cfg, fills its defaults, chooses kernels and lays out the workspace.  Everything
 * that depends on shape is decided here; moewe_run only obeys.  dev must outlive the plan. */
MOEWE_API moewe_status moewe_plan_create(const moewe_device *dev, const moewe_config *cfg, moewe_plan **out);
MOEWE_API void         moewe_plan_destroy(moewe_plan *plan);           /* NULL is allowed */

/* Workspace for one run.  Exact: need.bytes is accepted and need.bytes - 1 is refused.
 * Never decreases as max_tokens grows.  Pure host arithmetic: the same answer with no GPU present. */
MOEWE_API moewe_status moewe_plan_need(const moewe_plan *plan, moewe_need *out);

/* The least workspace_limit with which this config can be planned at all; cfg->workspace_limit is
 * not looked at, and it does not depend on max_tokens. */
MOEWE_API moewe_status moewe_plan_floor(const moewe_device *dev, const moewe_config *cfg, moewe_need *out);

/* The plan in words (canonical config, back end, kernels, tiles, regions), one fact a line and
 * the same on every machine that makes the same choices: golden files hold it. */
MOEWE_API size_t moewe_plan_describe(const moewe_plan *plan, char *buf, size_t cap);

typedef enum moewe_stage {
    MOEWE_STAGE_ROUTE, MOEWE_STAGE_SORT, MOEWE_STAGE_GEMM1, MOEWE_STAGE_GEMM2, MOEWE_STAGE_COMBINE,
    MOEWE_STAGE_COUNT
} moewe_stage;

typedef struct moewe_region {
    const char *name;                     /* a constant of the library */
    uint64_t    offset, bytes;            /* within the workspace */
    int32_t     first_stage, last_stage;  /* regions overlap only when these do not */
} moewe_region;

/* For tests, dumps and memory maps.  The regions are in ascending offset and end at need.bytes; each
 * starts on a multiple of need.align.  index is below moewe_plan_region_count. */
MOEWE_API int32_t      moewe_plan_region_count(const moewe_plan *plan);
MOEWE_API moewe_status moewe_plan_region(const moewe_plan *plan, int32_t index, moewe_region *out);

/* ---- weights: views, never owned -------------------------------------------- */

/* What blocks of a matrix are multiplied by: the block of rows i * rows on and columns j * cols on by element
 * (i, j) of expert e, at (experts ? experts[e] : data + e * expert_stride) + i * row_stride + j * col_stride,
 * and all of expert e by tensor[e].  data == NULL and experts == NULL: by tensor[e] alone; tensor == NULL: by
 * elements alone.  The last blocks may be short. */
typedef struct moewe_scale {
    const void *data;
    const void *const *experts;
    const float *tensor;      /* [expert]; stays where it is when weights are packed */
    int64_t expert_stride, row_stride, col_stride; /* bytes; 0 = packed */
    int32_t dtype;            /* F32, BF16, F16, E4M3 or E8M0 */
    int32_t rows, cols;       /* of a block; 0 = as many as the matrix has; cols else 16, 32 or 64 times a number */
    int32_t reserved;         /* 0 */
} moewe_scale;

/* One matrix per expert, element (row r, column c) of expert e at
 *     (experts ? experts[e] : data + e * expert_stride) + r * row_stride + c * col_stride .
 * e counts from the first expert held here.  No alignment is asked for.  data == NULL and
 * experts == NULL: no such matrix.  Rows of dtypes with two elements to a byte, or with scales inside, are
 * contiguous: col_stride is 0. */
typedef struct moewe_matrix {
    const void *data;
    const void *const *experts; /* one pointer per expert, or NULL */
    const float *bias;          /* [expert][row], packed, or NULL; stays where it is when weights are packed */
    int64_t     expert_stride;  /* bytes; 0 = rows * row_stride */
    int64_t     row_stride;     /* bytes; 0 = packed */
    int64_t     col_stride;     /* bytes; 0 = one element */
    int32_t     dtype;          /* moewe_dtype; 0 is refused: a matrix has no default */
    uint32_t    layout;         /* 0 = as above; else the tag that a pack function wrote, strides unused */
    moewe_scale scale;          /* of E4M3, E2M1, I8 and I4; all 0 with other dtypes */
} moewe_matrix;

typedef struct moewe_weights {
    uint32_t     struct_size;
    uint32_t     reserved;
    moewe_matrix gate, up;       /* [n_local][inter][width], width = latent or hidden; no gate for ungated acts */
    moewe_matrix down;           /* [n_local][width][inter] */
    moewe_matrix router;         /* [1][n_experts + n_null][hidden]; absent when the caller passes logits or ids */
    const float *select_bias;    /* [n_experts + n_null], added to scores for the choice only; or NULL */
    const float *expert_scale;   /* [n_experts + n_null], multiplies the final weight of the expert; or NULL */
    const int32_t *hash_ids;     /* [hash_rows][top_k]: experts by token id instead of by score; weights still from
                                    scores.  NULL: by score */
    int32_t      hash_rows;      /* a token id outside [0, hash_rows) has no expert */
    int32_t      reserved2;      /* 0 */
    moewe_matrix latent_in, latent_out; /* [1][latent][hidden], [1][hidden][latent] */
    moewe_matrix shared_gate, shared_up, shared_down; /* one dense expert of shared_inter */
    moewe_matrix shared_scale;   /* [1][1][hidden]: y += sigmoid(shared_scale . x) * shared(x); absent = 1 */
} moewe_weights;

/* Room to repack src as the plan's kernels stream it.  need.bytes == 0: nothing to pack. */
MOEWE_API moewe_status moewe_weights_need(const moewe_plan *plan, const moewe_weights *src, moewe_need *out);

/* Fills mem (exactly as needed above, or larger) and writes views of it to out, which needs no
 * MOEWE_INIT and may be src itself; mem may not overlap what src views.  Of src, only what bias,
 * scale.tensor, select_bias, expert_scale and hash_ids point at is needed afterwards.  Plain weights run too, more
 * slowly, with the same bits. */
MOEWE_API moewe_status moewe_weights_pack(const moewe_plan *plan, const moewe_weights *src, moewe_span mem,
                                          void *stream, moewe_weights *out);

/* ---- run -------------------------------------------------------------------- */

/* Arrays of float and int32_t are ordinary C arrays, aligned as such.  With n_tokens 0 nothing is read or
 * written and x and y may be NULL; workspace and weights are checked all the same. */
typedef struct moewe_io {
    uint32_t       struct_size;
    int32_t        n_tokens;
    const void    *x;            /* [n_tokens][hidden], x_dtype; rows and stride are multiples of the element */
    int64_t        x_stride;     /* bytes; 0 = packed */
    const int32_t *n_valid;      /* in device memory: rows of x and y from *n_valid on (0 to n_tokens, others count as
                                    the nearer of these) are not touched; NULL = all valid */
    const float   *logits;       /* [n_tokens][n_experts + n_null]: weights.router is not looked at; NULL: it computes them */
    const int32_t *token_ids;    /* [n_tokens], with weights.hash_ids */
    const int32_t *topk_ids;     /* [n_tokens][top_k], with MOEWE_SCORE_GIVEN; an id outside
                                    [0, n_experts + n_null) means no expert in that slot; equal ids add up */
    const float   *topk_weights; /* likewise */
    void          *y;            /* [n_tokens][hidden], y_dtype; may not overlap x or the workspace */
    int64_t        y_stride;     /* bytes; 0 = packed */
    int32_t        y_add;        /* nonzero: the sum starts from y instead of 0 */
    uint32_t       reserved;     /* 0 */
} moewe_io;

/* stream is a cudaStream_t, or NULL (the default stream; and always on a CPU device). */
MOEWE_API moewe_status moewe_run(const moewe_plan *plan, const moewe_weights *w, const moewe_io *io,
                                 moewe_span workspace, void *stream);

/* The same, for stages first..last only: how tests compare two back ends stage by stage.
 * Regions keep what earlier stages wrote while the caller leaves the workspace alone.
 * MOEWE_E_UNSUPPORTED when the plan works in more than one chunk. */
MOEWE_API moewe_status moewe_run_stages(const moewe_plan *plan, const moewe_weights *w, const moewe_io *io,
                                        moewe_span workspace, void *stream, moewe_stage first, moewe_stage last);

/* ---- dense matrices: the projections around the layers ------------------------ */

/* y[t] = matrix . x[t] + bias on the layer's kernels, with the same contract on bits and memory (it
 * needs no workspace).  An engine's attention and output projections use it. */
typedef struct moewe_linear {
    uint32_t     struct_size;
    int32_t      rows, cols;       /* of the matrix; a row of y has rows elements, of x cols */
    int32_t      x_dtype, y_dtype; /* F32 (default) or BF16; y_dtype default x_dtype */
    int32_t      y_add;            /* nonzero: y += */
    moewe_matrix matrix;           /* one "expert" */
} moewe_linear;

MOEWE_API moewe_status moewe_linear_need(const moewe_device *dev, const moewe_linear *src, moewe_need *out);
MOEWE_API moewe_status moewe_linear_pack(const moewe_device *dev, const moewe_linear *src, moewe_span mem,
                                         void *stream, moewe_linear *out);
/* Strides in bytes, 0 = packed; rows may lie as those of moewe_run may. */
MOEWE_API moewe_status moewe_linear_run(const moewe_device *dev, const moewe_linear *lin, int32_t n_tokens,
                                        const void *x, int64_t x_stride, void *y, int64_t y_stride, void *stream);

/* ---- workspace manager: one block of memory for many plans ------------------- */

/* open:    moewe_workspace_reserve(ws, plan) for every plan, in any order
 *          moewe_workspace_need(ws)        -> what all lanes take together
 * lock:    moewe_workspace_lock(ws, mem)   -> from here no address changes
 * run:     moewe_lane_acquire / moewe_run_lane / moewe_lane_release
 * reopen:  moewe_workspace_unlock(ws)      -> old lanes are stale; recapture graphs
 *
 * All lanes are the same size, the largest that any reserved plan needs.  On CUDA give each
 * stream, and each set of graphs that may be in flight at once, its own lane. */
typedef struct moewe_workspace moewe_workspace;

typedef struct moewe_lane {
    moewe_span span;
    int32_t  index;
    uint32_t generation; /* counts locks; a captured graph is valid while it is unchanged */
    uint64_t ticket;     /* which acquire this lane came from */
} moewe_lane;

#define MOEWE_LANE_ANY (-1)

typedef struct moewe_workspace_stats {
    uint32_t    struct_size;
    int32_t     n_lanes, lanes_out, lanes_out_peak;
    uint32_t    generation;     /* 0 = never locked */
    int32_t     locked;
    uint64_t    lane_bytes;
    uint64_t    used_peak;      /* largest plan actually run: what a tighter reserve would save */
    uint64_t    refused;        /* acquires and runs turned away: not locked, too small, busy, stale, released */
    const char *largest;        /* name of the plan that set lane_bytes; valid until the next reserve or destroy */
} moewe_workspace_stats;

MOEWE_API moewe_status moewe_workspace_create(const moewe_device *dev, int32_t n_lanes, moewe_workspace **out);
MOEWE_API void         moewe_workspace_destroy(moewe_workspace *ws);   /* NULL allowed; frees no lane memory */
MOEWE_API moewe_status moewe_workspace_reserve(moewe_workspace *ws, const moewe_plan *plan);
MOEWE_API moewe_status moewe_workspace_need(const moewe_workspace *ws, moewe_need *out);
MOEWE_API moewe_status moewe_workspace_lock(moewe_workspace *ws, moewe_span mem);
MOEWE_API moewe_status moewe_workspace_unlock(moewe_workspace *ws);
/* out is made with MOEWE_INIT first. */
MOEWE_API moewe_status moewe_workspace_stats_get(const moewe_workspace *ws, moewe_workspace_stats *out);

/* Never waits: MOEWE_E_BUSY when the lane (or, with MOEWE_LANE_ANY, every lane) is out.  A lane may
 * be released as soon as its last run is enqueued; whoever acquires it next must use the same
 * stream or wait for that one. */
MOEWE_API moewe_status moewe_lane_acquire(moewe_workspace *ws, int32_t index, moewe_lane *out);
MOEWE_API moewe_status moewe_lane_release(moewe_workspace *ws, const moewe_lane *lane);

/* moewe_run, after checking that the lane is current (else MOEWE_E_STALE), out to this caller and not
 * released (else MOEWE_E_ARG, as for releasing it twice), and large enough (else MOEWE_E_WS_SMALL). */
MOEWE_API moewe_status moewe_run_lane(moewe_workspace *ws, const moewe_lane *lane, const moewe_plan *plan,
                                      const moewe_weights *w, const moewe_io *io, void *stream);

#ifdef __cplusplus
}
#endif
#endif /* MOEWE_H */
