/* args.h - command lines: options by table, positional arguments, --help.  Prints help and usage errors;
 * every value is checked whole, none is guessed. */
#ifndef MOEWE_CLI_ARGS_H
#define MOEWE_CLI_ARGS_H

#include <stddef.h>
#include <stdint.h>

#include "cli.h"

typedef enum args_kind {
    ARGS_FLAG, /* no value; out: int, set to 1 */
    ARGS_TEXT, /* out: const char * */
    ARGS_INT,  /* out: int32_t, in [low, high] */
    ARGS_U64,  /* out: uint64_t */
    ARGS_SIZE, /* out: uint64_t, at least 1; 4096, 64K, 512MiB, 2GiB */
    ARGS_REAL, /* out: double, in [low, high] */
    ARGS_WORD  /* out: int32_t, the value of one of words */
} args_kind;

typedef struct args_word { /* the list ends with a NULL name */
    const char *name;
    int32_t value;
} args_word;

typedef struct args_option {
    const char *name; /* with its dashes */
    const char *metavar;
    args_kind kind;
    void *out;
    const char *help;
    double low, high;
    const args_word *words;
} args_option;

typedef struct args_spec {
    const char *synopsis; /* after "moewe COMMAND " */
    const char *about;    /* paragraphs for --help */
    const char *const *positionals; /* names, in order; all are needed */
    const char **values;  /* one for each */
    size_t n_positionals;
    const args_option *options; /* at most 64 */
    size_t n_options;
} args_spec;

enum { ARGS_GO = -1 };

/* ARGS_GO, or the status to exit with: help was printed, or a usage error. */
int args_parse(const args_spec *spec, int argc, char **argv);

extern const args_word args_f32_bf16[], args_weight_dtypes[];

/* The first three, and the fourth, options of cli_common, for a command's table. */
#define ARGS_COMMON(c)                                                                                                \
    {.name = "--backend", .metavar = "NAME", .kind = ARGS_TEXT, .out = &(c).backend,                                  \
     .help = "back end, as moewe info lists them (default: the best)"},                                               \
    {.name = "--threads", .metavar = "N", .kind = ARGS_INT, .out = &(c).threads, .low = 1, .high = 1024,              \
     .help = "threads (default: one per usable CPU); the result is the same"},                                        \
    {.name = "--workspace-limit", .metavar = "BYTES", .kind = ARGS_SIZE, .out = &(c).workspace_limit,                 \
     .help = "workspace at most this large (default: as fast as possible)"}
/* For commands whose speed matters. */
#define ARGS_PIN(c)                                                                                                   \
    {.name = "--pin", .kind = ARGS_FLAG, .out = &(c).pin, .help = "threads stay on CPUs of their own"}
#define ARGS_DTYPE(c, text)                                                                                           \
    {.name = "--dtype", .metavar = "f32|bf16", .kind = ARGS_WORD, .out = &(c).dtype, .words = args_f32_bf16, .help = text}

#endif
