/* ceilings.c - measures read bandwidth and peak arithmetic with the threads that layers run on.  Work is cut into small
 * tasks that the threads take one after another, so that one that lost its core for a moment does not set the result. */
#include "ceilings.h"

#include "../formats/clones.h"
#include "clock.h"
#include "machine.h"

enum { READ_PASSES = 3, PEAK_PASSES = 3, PEAK_TASKS = 40 }; /* tasks: of each thread */
static const uint64_t read_chunk = (uint64_t)8 << 20;
static const double peak_task_seconds = 0.002;

/* ---- memory ------------------------------------------------------------------------------ */

typedef uint64_t half_line __attribute__((vector_size(32)));
enum { LINE = 2, LINES_AHEAD = 64 }; /* a line is so many half_lines; asked for so far ahead */

typedef struct read_task {
    const uint8_t *data;
    int streams;
} read_task;

static volatile uint64_t read_sink; /* what was read is used */

/* Reads `streams` streams of n lines each, side by side; wide loads, or the loads and not the memory set the rate. */
static inline __attribute__((always_inline)) void read_streams(const half_line *p, size_t n, const size_t streams)
{
    half_line a = {0}, b = {0};
    for (size_t i = 0; i < n; i++)
        for (size_t s = 0; s < streams; s++) {
            const half_line *line = p + (s * n + i) * LINE;
            __builtin_prefetch(line + LINES_AHEAD * LINE, 0, 3);
            a ^= line[0];
            b ^= line[1];
        }
    a ^= b;
    if (a[0] == 1) read_sink = a[0];
}

FMT_CLONES static void read_one(const half_line *p, size_t lines)
{
    read_streams(p, lines, 1);
}

FMT_CLONES static void read_four(const half_line *p, size_t lines)
{
    read_streams(p, lines / 4, 4);
}

static void read_some(void *task, int32_t i, int32_t count)
{
    const read_task *t = task;
    const half_line *p = (const half_line *)(const void *)(t->data + (uint64_t)i * read_chunk);
    (void)count;
    (t->streams == 1 ? read_one : read_four)(p, read_chunk / (LINE * sizeof *p));
}

int bench_reader_open(bench_reader *r, const moewe_device *dev, uint64_t bytes, fmt_error *e)
{
    uint64_t share = bench_memory_available() / 4, asked = bytes;
    *r = (bench_reader){0};
    if (share && bytes > share) bytes = share;
    bytes = bytes / read_chunk * read_chunk;
    if (!bytes)
        return fmt_fail(e, "read bandwidth over %llu bytes was asked for, and %llu are a quarter of the free memory; at least "
                           "%llu are needed", (unsigned long long)asked, (unsigned long long)share,
                        (unsigned long long)read_chunk);
    r->dev = dev;
    if (moewe_device_alloc(dev, (moewe_need){bytes, 64, MOEWE_PLACE_HOST}, &r->mem))
        return fmt_fail(e, "%s", moewe_last_error());
    return 0;
}

void bench_reader_close(bench_reader *r)
{
    if (r->dev) moewe_device_free(r->dev, r->mem);
    *r = (bench_reader){0};
}

double bench_reader_measure(const bench_reader *r)
{
    double best = 0;
    for (int pass = 0; pass < READ_PASSES; pass++)
        for (int streams = 1; streams <= 4; streams += 3) {
            read_task t = {r->mem.ptr, streams};
            double start = bench_seconds();
            moewe_device_for(r->dev, read_some, &t, (int32_t)(r->mem.bytes / read_chunk));
            double rate = (double)r->mem.bytes / (bench_seconds() - start);
            if (rate > best) best = rate;
        }
    return best;
}

/* ---- arithmetic ---------------------------------------------------------------------------- */

typedef struct peak_task {
    bench_peak peak;
    int64_t rounds;
} peak_task;

static void compute_some(void *task, int32_t i, int32_t count)
{
    const peak_task *t = task;
    (void)i;
    (void)count;
    bench_peak_run(t->peak, t->rounds);
}

/* So many that a task takes long against the cost of taking it. */
static int64_t rounds_of_task(bench_peak p)
{
    for (int64_t rounds = 1000;; rounds *= 2) {
        double start = bench_seconds();
        bench_peak_run(p, rounds);
        if (bench_seconds() - start >= peak_task_seconds) return rounds;
    }
}

static double best_rate(const moewe_device *dev, bench_peak p, int passes)
{
    double best = 0;
    if (!bench_peak_here(p)) return 0;
    peak_task t = {p, rounds_of_task(p)};
    double each = bench_peak_run(p, t.rounds);
    int32_t tasks = moewe_device_threads(dev) * PEAK_TASKS;
    for (int pass = 0; pass < passes; pass++) {
        double start = bench_seconds();
        moewe_device_for(dev, compute_some, &t, tasks);
        double rate = each * tasks / (bench_seconds() - start);
        if (rate > best) best = rate;
    }
    return best;
}

double bench_peak_measure(const moewe_device *dev, bench_peak p)
{
    return best_rate(dev, p, PEAK_PASSES);
}

/* Whether products of weights of this dtype may be formed so without more error than their activations' rounding. */
static int serves(bench_peak p, int32_t w_dtype)
{
    switch (p) {
    case BENCH_BF16_AVX512:
    case BENCH_BF16_AMX: return w_dtype != MOEWE_DTYPE_F32;
    case BENCH_INT8_AVX512:
    case BENCH_INT8_AMX: return w_dtype != MOEWE_DTYPE_F32 && w_dtype != MOEWE_DTYPE_BF16 && w_dtype != MOEWE_DTYPE_F16;
    default: return 1;
    }
}

bench_peak bench_peak_of_dtype(const moewe_device *dev, int32_t w_dtype)
{
    bench_peak best = BENCH_PEAK_COUNT;
    double most = 0;
    for (int p = 0; p < BENCH_PEAK_COUNT; p++) {
        double rate = serves((bench_peak)p, w_dtype) ? best_rate(dev, (bench_peak)p, 1) : 0; /* they differ by factors */
        if (rate <= most) continue;
        most = rate;
        best = (bench_peak)p;
    }
    return best;
}
