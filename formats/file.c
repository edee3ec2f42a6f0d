/* file.c - owns how formats/ opens input files and reads small JSON documents.  Never maps a file, never
 * interprets a document. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

int fmt_open_regular(const char *path, uint64_t *bytes, int *absent, fmt_error *e)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* else the open of a FIFO waits for a writer */
    if (fd < 0) {
        if (absent && errno == ENOENT) {
            *absent = 1;
            return -1;
        }
        return fmt_fail(e, "%.400s: cannot be opened for reading: %s", path, strerror(errno));
    }
    if (fstat(fd, &st) != 0) {
        fmt_fail(e, "%.400s: cannot be examined: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        fmt_fail(e, "%.400s: is %s, a regular file is expected", path,
                 S_ISDIR(st.st_mode)    ? "a directory"
                 : S_ISFIFO(st.st_mode) ? "a FIFO"
                                        : "a device or socket");
    } else {
        *bytes = (uint64_t)st.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

/* Reads exactly bytes; a file that shrinks meanwhile is an error. */
static int read_all(int fd, char *buf, size_t bytes, const char *path, fmt_error *e)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = read(fd, buf + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fmt_fail(e, "%.400s: reading failed: %s", path, strerror(errno));
        if (n == 0) return fmt_fail(e, "%.400s: ended after %zu of %zu bytes while being read", path, done, bytes);
        done += (size_t)n;
    }
    return 0;
}

json_t *fmt_json_load(const char *path, uint64_t limit, int *absent, fmt_error *e)
{
    uint64_t bytes = 0;
    json_t *root = NULL;
    json_error_t why;
    int fd = fmt_open_regular(path, &bytes, absent, e);
    if (fd < 0) return NULL;
    if (bytes > limit) {
        fmt_fail(e, "%.400s: has %" PRIu64 " bytes, a file of this kind has at most %" PRIu64, path, bytes, limit);
        close(fd);
        return NULL;
    }
    char *text = malloc((size_t)bytes + 1);
    if (!text) {
        fmt_fail(e, "%.400s: no memory for its %" PRIu64 " bytes", path, bytes);
    } else if (read_all(fd, text, (size_t)bytes, path, e) == 0) {
        root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &why);
        if (!root) fmt_fail(e, "%.400s: is not valid JSON: line %d: %s", path, why.line, why.text);
    }
    free(text);
    close(fd);
    if (root && !json_is_object(root)) {
        fmt_fail(e, "%.400s: holds a JSON array, an object is expected", path);
        json_decref(root);
        root = NULL;
    }
    return root;
}

void fmt_json_text(const json_t *value, char *buf, size_t cap)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    int n = snprintf(buf, cap, "%s", text ? text : "a value");
    if (n >= (int)cap && cap > 4) memcpy(buf + cap - 4, "...", 4);
    free(text);
}

char *fmt_path_join(const char *dir, const char *name, fmt_error *e)
{
    size_t n = strlen(dir), m = strlen(name);
    char *path = malloc(n + m + 2);
    if (!path) {
        fmt_fail(e, "%.400s: no memory for the path of %.100s", dir, name);
        return NULL;
    }
    memcpy(path, dir, n);
    if (n && path[n - 1] != '/') path[n++] = '/';
    memcpy(path + n, name, m + 1);
    return path;
}
