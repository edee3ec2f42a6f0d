/* safetensors_write.c - owns writing a safetensors file so that a reader sees the whole new file or none of it.
 * Never follows a link or replaces anything but a regular file, never leaves its temporary file behind. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "safetensors.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const char *path, const st_tensor *t, size_t n, fmt_error *e)
{
    const char **names = calloc(n + 1, sizeof *names);
    int failed = 0;
    if (!names) return fmt_fail(e, "%.300s: no memory for the names of %zu tensors", path, n);
    for (size_t i = 0; i < n; i++) names[i] = t[i].name ? t[i].name : "";
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n && !failed; i++) {
        if (!*names[i] || strcmp(names[i], "__metadata__") == 0)
            failed = fmt_fail(e, "%.300s: '%s' is no name for a tensor", path, names[i]);
        else if (i && strcmp(names[i], names[i - 1]) == 0)
            failed = fmt_fail(e, "%.300s: two tensors to write have the name '%.120s'", path, names[i]);
    }
    free(names);
    return failed;
}

static int check_tensor(const char *path, const st_tensor *t, fmt_error *e)
{
    char shape[96];
    uint64_t bytes = st_dtype_bytes(t->dtype);
    int bad = !bytes || t->rank < 0 || t->rank > ST_MAX_RANK;
    for (int32_t i = 0; !bad && i < t->rank; i++)
        bad = t->shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes);
    if (bad)
        return fmt_fail(e, "%.300s: tensor '%.120s': its dtype %d, rank %d or shape cannot be written", path, t->name,
                        (int)t->dtype, t->rank);
    if (bytes == t->bytes && (t->data || !bytes)) return 0;
    st_shape_text(t, shape, sizeof shape);
    return fmt_fail(e, "%.300s: tensor '%.120s' has %" PRIu64 " bytes of data, shape %s in %s takes %" PRIu64, path,
                    t->name, t->data ? t->bytes : 0, shape, st_dtype_name(t->dtype), bytes);
}

/* The JSON object, or NULL: out of memory, a name that is not UTF-8, or offsets past 63 bits. */
static json_t *build_header(const st_tensor *t, size_t n)
{
    json_t *root = json_object();
    int64_t at = 0;
    for (size_t i = 0; root && i < n; i++) {
        int64_t end = 0;
        json_t *shape = json_array(), *entry = NULL;
        int bad = !shape || t[i].bytes > INT64_MAX || __builtin_add_overflow(at, (int64_t)t[i].bytes, &end);
        for (int32_t d = 0; !bad && d < t[i].rank; d++) bad = json_array_append_new(shape, json_integer(t[i].shape[d]));
        if (!bad)
            entry = json_pack("{s:s, s:O, s:[I, I]}", "dtype", st_dtype_name(t[i].dtype), "shape", shape,
                              "data_offsets", (json_int_t)at, (json_int_t)end);
        json_decref(shape);
        if (!entry || json_object_set_new(root, t[i].name, entry)) {
            json_decref(root);
            root = NULL;
        }
        at = end;
    }
    return root;
}

static int write_all(int fd, const void *data, uint64_t bytes, const char *path, fmt_error *e)
{
    const char *p = data;
    uint64_t left = bytes;
    while (left) {
        size_t piece = left > (UINT64_C(1) << 30) ? (size_t)1 << 30 : (size_t)left;
        ssize_t n = write(fd, p, piece);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return fmt_fail(e, "%.300s: writing failed with %" PRIu64 " of %" PRIu64 " bytes to go: %s", path, left,
                            bytes, n < 0 ? strerror(errno) : "nothing was written");
        p += n;
        left -= (uint64_t)n;
    }
    return 0;
}

static int write_file(int fd, const char *path, const char *text, const st_tensor *t, size_t n, fmt_error *e)
{
    static const char blanks[8] = "        ";
    size_t length = strlen(text), pad = (8 - length % 8) % 8; /* so that the data section is aligned */
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)((uint64_t)(length + pad) >> (8 * i));
    if (write_all(fd, prefix, sizeof prefix, path, e) || write_all(fd, text, length, path, e) ||
        write_all(fd, blanks, pad, path, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (write_all(fd, t[i].data, t[i].bytes, path, e)) return -1;
    if (fsync(fd) != 0) return fmt_fail(e, "%.300s: its bytes did not reach the disk: %s", path, strerror(errno));
    return 0;
}

/* Directory part of path, "." when it has none; allocated. */
static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

/* A file without a name in that directory: it is gone when the process ends, however it ends.  Where the
 * file system has none, a named one, in name. */
static int open_temporary(const char *dir, const char *path, char *name, size_t cap, int *named, fmt_error *e)
{
    *named = 0;
    int fd = open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0) return fd;
    *named = errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL;
    for (int attempt = 0; *named && attempt < 100; attempt++) {
        snprintf(name, cap, "%s/.moewe-%ld-%d", dir, (long)getpid(), attempt);
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) break;
    }
    return fd >= 0 ? fd : fmt_fail(e, "%.300s: cannot be written: %s", path, strerror(errno));
}

/* Gives the nameless file a name beside path, so that it can be renamed over it. */
static int name_temporary(int fd, const char *dir, const char *path, char *name, size_t cap, fmt_error *e)
{
    char self[48];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(name, cap, "%s/.moewe-%ld-%d", dir, (long)getpid(), attempt);
        if (!linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW)) return 0;
        if (errno != EEXIST) break;
    }
    name[0] = 0;
    return fmt_fail(e, "%.300s: cannot be put in place: %s", path, strerror(errno));
}

static int write_and_rename(const char *path, const char *text, const st_tensor *t, size_t n, fmt_error *e)
{
    char *dir = directory_of(path);
    size_t cap = dir ? strlen(dir) + 48 : 0;
    char *name = dir ? calloc(cap, 1) : NULL;
    int named = 0, failed;
    if (!name) {
        free(dir);
        return fmt_fail(e, "%.300s: no memory to write it", path);
    }
    int fd = open_temporary(dir, path, name, cap, &named, e);
    failed = fd < 0;
    if (!failed) {
        failed = write_file(fd, path, text, t, n, e);
        if (!failed && !named) failed = name_temporary(fd, dir, path, name, cap, e);
        if (close(fd) != 0 && !failed) failed = fmt_fail(e, "%.300s: closing it failed: %s", path, strerror(errno));
        if (!failed && rename(name, path) != 0)
            failed = fmt_fail(e, "%.300s: cannot be put in place: %s", path, strerror(errno));
        if (failed && name[0]) unlink(name);
    }
    free(name);
    free(dir);
    return failed ? -1 : 0;
}

int st_write(const char *path, const st_tensor *tensors, size_t n, fmt_error *e)
{
    struct stat st;
    if (check_names(path, tensors, n, e)) return -1;
    for (size_t i = 0; i < n; i++)
        if (check_tensor(path, &tensors[i], e)) return -1;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* rename would replace a device or a link by a file */
        return fmt_fail(e, "%.300s: exists and is not a regular file, which is all that is replaced", path);

    json_t *root = build_header(tensors, n);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text)
        return fmt_fail(e, "%.300s: no header for its %zu tensors (a name that is not UTF-8, or no memory)", path, n);
    int failed = write_and_rename(path, text, tensors, n, e);
    free(text);
    return failed;
}
