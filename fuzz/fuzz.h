/* fuzz.h - what the fuzz targets share.  A target is one LLVMFuzzerTestOneInput in a file of its own; libFuzzer
 * drives it in `make fuzz`, replay.c drives it over the corpus in `make check`.  Must never hide a failure: a
 * broken rule aborts, so that both of them stop with the input at hand. */
#ifndef MOEWE_FUZZ_H
#define MOEWE_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include <moewe.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Says which rule broke and aborts. */
#define FUZZ_MUST(rule)                                                                                                \
    do {                                                                                                               \
        if (!(rule)) fuzz_broken(__FILE__, __LINE__, #rule);                                                           \
    } while (0)
_Noreturn void fuzz_broken(const char *file, int line, const char *rule);

/* A sentence for the user: not empty, ended, one line, nothing that drives a terminal. */
void fuzz_check_sentence(const char *text, size_t cap);

/* One folder of this process, in memory where the system has such; the path of it or of NAME in it (valid until the
 * fourth next call).  A file that is written replaces the one before. */
const char *fuzz_path(const char *name);
void        fuzz_write(const char *name, const void *data, size_t size);
void        fuzz_remove(const char *name);

/* A CPU device with this many threads; opened once. */
const moewe_device *fuzz_device(int32_t threads);

/* Reads an input value by value; zeros when it has ended. */
typedef struct fuzz_reader {
    const uint8_t *data;
    size_t size;
} fuzz_reader;
uint64_t fuzz_take(fuzz_reader *r, size_t bytes);
/* low to high, both included. */
int32_t fuzz_range(fuzz_reader *r, int32_t low, int32_t high);

/* Every rule of a plan for this config: exact and monotone sizes, limits, regions, text.  Returns 1 when it can be
 * planned without a limit. */
int fuzz_check_plan(const moewe_device *dev, const moewe_config *cfg, uint64_t extra_limit);

#endif
