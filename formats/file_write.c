/* file_write.c - owns writing a file so that a reader sees the whole new file or none of it.  Never follows a link or
 * replaces anything but a regular file, never leaves its temporary file behind. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

int fmt_write_all(int fd, const void *data, uint64_t bytes, const char *path, fmt_error *e)
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

int fmt_write_file(const char *path, fmt_write_fn put, void *ctx, fmt_error *e)
{
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* rename would replace a device or a link by a file */
        return fmt_fail(e, "%.300s: exists and is not a regular file, which is all that is replaced", path);
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
        failed = put(ctx, fd, path, e);
        if (!failed && fsync(fd) != 0)
            failed = fmt_fail(e, "%.300s: its bytes did not reach the disk: %s", path, strerror(errno));
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
