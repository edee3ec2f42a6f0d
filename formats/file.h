/* file.h - files of formats/: opening them without surprises, reading small JSON documents, writing whole files.
 * Never knows what a document means. */
#ifndef MOEWE_FORMATS_FILE_H
#define MOEWE_FORMATS_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "error.h"

/* Opens a regular file for reading and returns its descriptor, or -1.  A FIFO does not block, a folder or
 * device is refused.  When there is no such file and absent is not NULL, *absent becomes 1 and e stays as it was. */
int fmt_open_regular(const char *path, uint64_t *bytes, int *absent, fmt_error *e);

/* The JSON object in a file of at most limit bytes; a repeated key is an error.  NULL on failure; absent as above. */
json_t *fmt_json_load(const char *path, uint64_t limit, int *absent, fmt_error *e);

/* The value as JSON, cut to fit, for messages. */
void fmt_json_text(const json_t *value, char *buf, size_t cap);

/* Writes path: put fills a file without a name, which is put in place when complete, so that nothing half-written
 * stays, however the process ends. */
typedef int (*fmt_write_fn)(void *ctx, int fd, const char *path, fmt_error *e);
int fmt_write_file(const char *path, fmt_write_fn put, void *ctx, fmt_error *e);
int fmt_write_all(int fd, const void *data, uint64_t bytes, const char *path, fmt_error *e);

/* "DIR/NAME", allocated for the caller; NULL with e set when memory is out. */
char *fmt_path_join(const char *dir, const char *name, fmt_error *e);

#endif
