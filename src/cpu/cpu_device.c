/* cpu_device.c - opens and closes a CPU device.  Owns where its threads stay and where its memory lies: whole pages,
 * huge ones where the system gives them, all of them there before alloc returns, spread over the nodes of the threads.
 *
 * Tasks are not tied to threads, so every worker reads every weight sooner or later: no page has one reader to be near.
 * What pages in turn on every node give is the bandwidth of all nodes, to each worker and at any time. */
#include "cpu.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- threads ---------------------------------------------------------------------- */

static moewe_status open_threads(moewe_device *dev, cpu_state *state)
{
    cpu_numbers allowed;
    cpu_place *places = NULL;
    char why[600];
    int error = cpu_allowed(&allowed);
    int32_t n = error ? 0 : cpu_numbers_count(&allowed), found = -1;
    if (error) snprintf(why, sizeof why, "the CPUs that this process may use are not known (%s)", strerror(error));
    if (!dev->n_threads) dev->n_threads = n < 1 ? 1 : n > MOEWE_THREADS_MAX ? MOEWE_THREADS_MAX : n;
    size_t bytes = (size_t)n * sizeof *places;
    if (n) {
        places = moewe_host_alloc(&dev->allocator, bytes, MOEWE_ALIGN);
        if (!places)
            return moewe_fail(MOEWE_E_NOMEM, "moewe_device_open: no %zu bytes for a list of %d CPUs", bytes, n);
        found = cpu_places(CPU_TOPOLOGY_ROOT, &allowed, places, why, sizeof why);
    }
    moewe_status s = MOEWE_OK;
    if (found > 0)
        state->n_nodes = cpu_nodes(places, found < dev->n_threads ? found : dev->n_threads, &state->nodes);
    else
        moewe_trace(MOEWE_LOG_WARN, "device %s knows no memory nodes: %s", dev->backend->name, why);
    if (dev->pin && found < 0)
        s = moewe_fail(MOEWE_E_DEVICE, "moewe_device_open: pin needs to know the CPUs: %s", why);
    else if (dev->pin && found < dev->n_threads)
        s = moewe_fail(MOEWE_E_DEVICE, "moewe_device_open: pin needs a CPU for each of %d threads, this one may use %d",
                       dev->n_threads, found);
    else if (!dev->executor.run)
        s = cpu_threads_open(&dev->allocator, dev->n_threads, dev->pin ? places : NULL, &state->threads);
    moewe_host_free(&dev->allocator, places, bytes);
    return s;
}

moewe_status cpu_open(moewe_device *dev, const cpu_kernels *k)
{
    cpu_state *state = moewe_host_alloc(&dev->allocator, sizeof *state, MOEWE_ALIGN);
    if (!state) return moewe_fail(MOEWE_E_NOMEM, "moewe_device_open: no %zu bytes for a CPU device", sizeof *state);
    state->kernels = k;
    moewe_status s = open_threads(dev, state);
    if (s) {
        moewe_host_free(&dev->allocator, state, sizeof *state);
        return s;
    }
    dev->state = state;
    return MOEWE_OK;
}

void cpu_close(moewe_device *dev)
{
    cpu_state *state = dev->state;
    cpu_threads_close(state->threads);
    moewe_host_free(&dev->allocator, state, sizeof *state);
}

/* ---- memory ------------------------------------------------------------------------- */

/* A slice is what one thread takes pages for at a time. */
enum { HUGE_PAGE = 2 << 20, SLICE = 8 << 20 };

/* NULL and errno when there is none.  Larger than a huge page: from a multiple of one on, so as to be made of them. */
static uint8_t *map(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), spare = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint64_t whole = moewe_align_up(bytes, page) + spare;
    errno = ENOMEM;
    if (bytes > SIZE_MAX / 2) return NULL;
    uint8_t *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    uint64_t head = spare ? (spare - (uintptr_t)p % spare) % spare : 0, tail = spare - head;
    if ((head && munmap(p, head)) || (tail && munmap(p + whole - tail, tail))) {
        int error = errno;
        munmap(p, whole);
        errno = error;
        return NULL;
    }
    return p + head;
}

typedef struct slices {
    uint8_t   *p;
    uint64_t   bytes;
    atomic_int error; /* of one that got no pages */
} slices;

/* Memory that is only promised may be missing later; and where nodes were not to be had, pages come from the node of
 * the thread that touches them first. */
static void take_slice(void *task, int32_t i, int32_t count)
{
    slices *s = task;
    uint64_t from = (uint64_t)i * SLICE, n = i + 1 < count ? SLICE : s->bytes - from;
    if (atomic_load(&s->error)) return;
#ifdef MADV_POPULATE_WRITE
    if (!madvise(s->p + from, n, MADV_POPULATE_WRITE)) return;
    if (errno != EINVAL) {
        atomic_store(&s->error, errno);
        return;
    }
#endif
    for (uint64_t at = 0; at < n; at += 4096) ((volatile uint8_t *)s->p)[from + at] = 0;
}

moewe_status cpu_alloc(const moewe_device *dev, uint64_t bytes, void **out)
{
    const cpu_state *state = cpu_of(dev);
    slices s = {.p = map(bytes), .bytes = bytes};
    int error = errno;
    if (s.p) {
        /* Both are wishes: a system that knows neither gives the memory all the same. */
        madvise(s.p, bytes, MADV_HUGEPAGE);
        if (state->n_nodes > 1)
            syscall(SYS_mbind, s.p, bytes, MPOL_INTERLEAVE, state->nodes.words, (unsigned long)CPU_SET_BITS, 0);
        cpu_parallel(dev, take_slice, &s, (int32_t)((bytes + SLICE - 1) / SLICE));
        error = atomic_load(&s.error);
        if (!error) {
            *out = s.p;
            return MOEWE_OK;
        }
        munmap(s.p, bytes);
    }
    return moewe_fail(MOEWE_E_NOMEM, "moewe_device_alloc: the system has no %llu bytes (%s)", (unsigned long long)bytes,
                      strerror(error));
}

void cpu_free(const moewe_device *dev, void *ptr, uint64_t bytes)
{
    (void)dev;
    munmap(ptr, bytes);
}
