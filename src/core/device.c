/* device.c - opens a back end on a device; owns the table of back ends. */
#include "core.h"

#include <stdlib.h>

const moewe_backend *const moewe_backends[] = {
#if defined(__x86_64__)
    &moewe_cpu_amx, &moewe_cpu_avx512bf16, &moewe_cpu_avx512, &moewe_cpu_avx2,
#endif
    &moewe_cpu_scalar, NULL};

/* 0: nobody said, the back end decides. */
static moewe_status choose_threads(const moewe_device_desc *d, int32_t *out)
{
    const char *from_env = moewe_env_threads();
    int32_t n = d->n_threads ? d->n_threads : d->executor ? d->executor->n_threads : 0;
    if (!n && from_env) {
        char *end;
        long value = strtol(from_env, &end, 10);
        if (*end || value < 1 || value > MOEWE_THREADS_MAX)
            return moewe_fail(MOEWE_E_ARG, "moewe_device_open: MOEWE_THREADS is '%s', needs 1 to %d", from_env,
                              MOEWE_THREADS_MAX);
        n = (int32_t)value;
    }
    if (n < 0 || n > MOEWE_THREADS_MAX)
        return moewe_fail(MOEWE_E_ARG, "moewe_device_open: n_threads is %d, needs 1 to %d", n, MOEWE_THREADS_MAX);
    *out = n;
    return MOEWE_OK;
}

static moewe_status choose_backend(const moewe_device_desc *d, const moewe_backend **out)
{
    const char *name = d->backend ? d->backend : moewe_env_backend();
    char why[160], first_why[160] = "none is compiled in";
    int known = 0, tried = 0;
    for (int i = 0; moewe_backends[i]; i++) {
        const moewe_backend *b = moewe_backends[i];
        if (name && strcmp(name, b->name)) continue;
        known = 1;
        if (d->kind != MOEWE_DEVICE_BEST && d->kind != b->kind) continue;
        if (b->probe(why, sizeof why)) {
            *out = b;
            return MOEWE_OK;
        }
        if (!tried++) memcpy(first_why, why, sizeof why);
    }
    if (name && !known) {
        char names[160] = "";
        size_t len = 0;
        for (int i = 0; moewe_backends[i]; i++)
            moewe_append(names, sizeof names, &len, "%s%s", i ? ", " : "", moewe_backends[i]->name);
        return moewe_fail(MOEWE_E_ARG, "moewe_device_open: %s is '%s', this build has %s",
                          d->backend ? "backend" : "MOEWE_BACKEND", name, names);
    }
    if (name && !tried)
        return moewe_fail(MOEWE_E_ARG, "moewe_device_open: backend '%s' is not of device kind %d", name, d->kind);
    return moewe_fail(MOEWE_E_DEVICE, "moewe_device_open: no back end%s%s for device kind %d can run here: %s",
                      name ? " named " : "", name ? name : "", d->kind, first_why);
}

static moewe_status check_desc(const moewe_device_desc *d)
{
    if (d->struct_size != sizeof *d)
        return moewe_fail(MOEWE_E_ABI, "moewe_device_desc.struct_size is %u, this library knows %zu", d->struct_size,
                          sizeof *d);
    if (d->kind < MOEWE_DEVICE_BEST || d->kind > MOEWE_DEVICE_CUDA)
        return moewe_fail(MOEWE_E_ARG, "moewe_device_desc.kind is %d, needs %d to %d", d->kind, MOEWE_DEVICE_BEST,
                          MOEWE_DEVICE_CUDA);
    if (d->ordinal < 0)
        return moewe_fail(MOEWE_E_ARG, "moewe_device_desc.ordinal is %d, needs 0 or more", d->ordinal);
    if (d->allocator && (!d->allocator->alloc || !d->allocator->free))
        return moewe_fail(MOEWE_E_ARG, "moewe_device_desc.allocator needs both alloc and free");
    if (d->executor && (!d->executor->run || d->executor->n_threads < 1 || d->executor->n_threads > MOEWE_THREADS_MAX))
        return moewe_fail(MOEWE_E_ARG, "moewe_device_desc.executor has %d threads%s, needs 1 to %d and a run function",
                          d->executor->n_threads, d->executor->run ? "" : " and no run", MOEWE_THREADS_MAX);
    if (d->pin < 0 || d->pin > 1)
        return moewe_fail(MOEWE_E_ARG, "moewe_device_desc.pin is %d, needs 0 or 1", d->pin);
    if (d->pin && d->executor)
        return moewe_fail(MOEWE_E_ARG, "moewe_device_desc.pin is 1 with an executor, whose threads are the caller's to pin");
    if (d->reserved)
        return moewe_fail(MOEWE_E_ARG, "moewe_device_desc.reserved is %d, needs 0", d->reserved);
    return MOEWE_OK;
}

moewe_status moewe_device_open(const moewe_device_desc *desc, moewe_device **out)
{
    moewe_device_desc d;
    const moewe_backend *b = NULL;
    if (!out) return moewe_fail(MOEWE_E_ARG, "moewe_device_open: out is NULL");
    MOEWE_INIT(d);
    moewe_status s = desc ? check_desc(desc) : MOEWE_OK;
    if (!s && desc) d = *desc;
    if (!s) s = choose_backend(&d, &b);
    if (s) return s;

    moewe_allocator a = {0};
    if (d.allocator) a = *d.allocator;
    int32_t threads = 0;
    s = choose_threads(&d, &threads);
    if (s) return s;

    moewe_device *dev = moewe_host_alloc(&a, sizeof *dev, MOEWE_ALIGN);
    if (!dev) return moewe_fail(MOEWE_E_NOMEM, "moewe_device_open: no %zu bytes for a device", sizeof *dev);
    dev->backend = b;
    dev->allocator = a;
    dev->ordinal = d.ordinal;
    dev->n_threads = threads;
    dev->pin = d.pin;
    if (d.executor) dev->executor = *d.executor;
    s = b->open(dev);
    if (s) {
        moewe_host_free(&a, dev, sizeof *dev);
        return s;
    }
    moewe_trace(MOEWE_LOG_INFO, "device %s opened with %d threads", b->name, dev->n_threads);
    *out = dev;
    return MOEWE_OK;
}

void moewe_device_close(moewe_device *dev)
{
    if (!dev) return;
    dev->backend->close(dev);
    moewe_allocator a = dev->allocator;
    moewe_host_free(&a, dev, sizeof *dev);
}

const char *moewe_device_backend(const moewe_device *dev)
{
    return dev ? dev->backend->name : "";
}

int32_t moewe_device_threads(const moewe_device *dev)
{
    return dev ? dev->n_threads : 0;
}

size_t moewe_device_list(char *buf, size_t cap)
{
    size_t len = 0;
    char why[160];
    if (cap) buf[0] = 0;
    for (int i = 0; moewe_backends[i]; i++)
        moewe_append(buf, cap, &len, "%s: %s\n", moewe_backends[i]->name,
                     moewe_backends[i]->probe(why, sizeof why) ? "yes" : why);
    return len;
}

moewe_status moewe_device_alloc(const moewe_device *dev, moewe_need need, moewe_span *out)
{
    void *p = NULL;
    if (!dev || !out) return moewe_fail(MOEWE_E_ARG, "moewe_device_alloc: %s is NULL", dev ? "out" : "dev");
    if (need.align > 4096 || (need.align & (need.align - 1)))
        return moewe_fail(MOEWE_E_ARG, "moewe_device_alloc: align is %u, needs a power of two up to 4096", need.align);
    if (need.place != (dev->backend->kind == MOEWE_DEVICE_CUDA ? MOEWE_PLACE_CUDA : MOEWE_PLACE_HOST))
        return moewe_fail(MOEWE_E_WS_PLACE, "moewe_device_alloc: need.place is %d, which is not where device %s has memory",
                          need.place, dev->backend->name);
    if (need.bytes) {
        moewe_status s = dev->backend->alloc(dev, need.bytes, &p);
        if (s) return s;
    }
    *out = (moewe_span){p, need.bytes};
    return MOEWE_OK;
}

void moewe_device_free(const moewe_device *dev, moewe_span mem)
{
    if (dev && mem.ptr) dev->backend->free(dev, mem.ptr, mem.bytes);
}

moewe_status moewe_device_copy(const moewe_device *dev, void *dst, const void *src, uint64_t bytes)
{
    if (!dev || (bytes && (!dst || !src)))
        return moewe_fail(MOEWE_E_ARG, "moewe_device_copy: %s is NULL", !dev ? "dev" : !dst ? "dst" : "src");
    return bytes ? dev->backend->copy(dev, dst, src, bytes) : MOEWE_OK;
}

moewe_status moewe_device_sync(const moewe_device *dev, void *stream)
{
    if (!dev) return moewe_fail(MOEWE_E_ARG, "moewe_device_sync: dev is NULL");
    return dev->backend->sync(dev, stream);
}

moewe_status moewe_device_for(const moewe_device *dev, moewe_task_fn fn, void *task, int32_t count)
{
    if (!dev || !fn || count < 0)
        return moewe_fail(MOEWE_E_ARG, "moewe_device_for: %s", !dev ? "dev is NULL" : !fn ? "fn is NULL" : "count is negative");
    return count ? dev->backend->parallel(dev, fn, task, count) : MOEWE_OK;
}
