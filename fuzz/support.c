/* support.c - files, devices and input values of the fuzz targets.  Never looks at what a target tests. */
#include "fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[256];

_Noreturn void fuzz_broken(const char *file, int line, const char *rule)
{
    fprintf(stderr, "%s:%d: broken rule: %s\nlast error of the library: %s\n", file, line, rule, moewe_last_error());
    abort();
}

void fuzz_check_sentence(const char *text, size_t cap)
{
    size_t n = strnlen(text, cap);
    FUZZ_MUST(n > 0 && n < cap);
    for (size_t i = 0; i < n; i++) FUZZ_MUST((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
}

static void remove_folder(void)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "a.safetensors",
                                        "b.safetensors",     "config.json",                  "generation_config.json",
                                        "tokenizer.json",    "m.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) fuzz_remove(names[i]);
    rmdir(folder);
}

static void make_folder(void)
{
    const char *base = getenv("TMPDIR");
    if (!base || !*base) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    int n = snprintf(folder, sizeof folder, "%s/moewe-fuzz-XXXXXX", base);
    if (n < 0 || (size_t)n >= sizeof folder || !mkdtemp(folder)) {
        fprintf(stderr, "fuzz: no folder under %s: %s\n", base, strerror(errno));
        exit(2);
    }
    atexit(remove_folder);
}

const char *fuzz_path(const char *name)
{
    static char paths[4][384];
    static unsigned next;
    char *path = paths[next++ % 4];
    if (!folder[0]) make_folder();
    snprintf(path, sizeof paths[0], *name ? "%s/%s" : "%s", folder, name);
    return path;
}

void fuzz_write(const char *name, const void *data, size_t size)
{
    const char *path = fuzz_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || (size && write(fd, data, size) != (ssize_t)size) || close(fd)) {
        fprintf(stderr, "fuzz: %s cannot be written: %s\n", path, strerror(errno));
        exit(2);
    }
}

void fuzz_remove(const char *name)
{
    unlink(fuzz_path(name));
}

static moewe_device *devices[3];

static void close_devices(void)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) moewe_device_close(devices[i]);
}

const moewe_device *fuzz_device(int32_t threads)
{
    static int registered;
    moewe_device **dev = &devices[threads == 1 ? 0 : threads == 2 ? 1 : 2];
    moewe_device_desc desc;
    if (!registered++) atexit(close_devices);
    if (*dev) return *dev;
    MOEWE_INIT(desc);
    desc.kind = MOEWE_DEVICE_CPU;
    desc.n_threads = threads;
    FUZZ_MUST(moewe_device_open(&desc, dev) == MOEWE_OK);
    return *dev;
}

uint64_t fuzz_take(fuzz_reader *r, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && r->size; i++, r->data++, r->size--) value |= (uint64_t)*r->data << (8 * i);
    return value;
}

int32_t fuzz_range(fuzz_reader *r, int32_t low, int32_t high)
{
    uint64_t span = (uint64_t)((int64_t)high - low) + 1;
    return (int32_t)(low + (int64_t)(fuzz_take(r, span <= 256 ? 1 : span <= 65536 ? 2 : 4) % span));
}
