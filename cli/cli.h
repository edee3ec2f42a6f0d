/* cli.h - what the commands of the program share: how they speak to the user, the options that most
 * of them have, and the list of commands.  Only cli/ includes it. */
#ifndef MOEWE_CLI_H
#define MOEWE_CLI_H

#include <stddef.h>
#include <stdint.h>

#include <moewe.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 }; /* exit statuses */

/* Names the command for the messages below. */
void cli_begin(const char *command);

/* One line on stderr, "moewe COMMAND: ...", control characters replaced; return CLI_FAILED and CLI_USAGE. */
int cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Writes out what stdout holds now; nonzero when that fails, and cli_finish will say why. */
int cli_flush(void);

/* The last flush: a write that failed turns CLI_OK into CLI_FAILED, with a message
 * unless the reader has simply gone away. */
int cli_finish(int status);

/* "12345 bytes (12.06 KiB)" */
typedef struct cli_size {
    char text[64];
} cli_size;
cli_size cli_size_text(uint64_t bytes);

double cli_seconds(void); /* of a clock that only goes forward */

/* ---- options that most commands have ------------------------------------------------ */

typedef struct cli_common {
    const char *backend; /* NULL = best */
    int32_t threads;     /* 0 = one per CPU */
    int pin;             /* 1: they stay on CPUs */
    int32_t dtype;       /* moewe_dtype of the activations */
    uint64_t workspace_limit;
} cli_common;

moewe_status cli_device_open(const cli_common *common, moewe_device **out);

/* ---- commands ------------------------------------------------------------------------- */

/* argv[0] is the command's name; the result is the exit status. */
typedef int (*cli_command)(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_bench(int argc, char **argv);

#endif
