/* cli.c - owns the program's voice: messages on stderr, the last flush of stdout.  Never decides what is
 * an error; the commands do. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *command_name; /* NULL before a command is known */
static int write_error;          /* errno of the first flush of stdout that failed */

void cli_begin(const char *command)
{
    command_name = command;
}

/* Arguments and file names may hold anything: a message stays one line and cannot drive a terminal. */
static void say(const char *format, va_list args)
{
    char text[2048];
    vsnprintf(text, sizeof text, format, args);
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == 0x7f) *p = '?';
    if (command_name)
        fprintf(stderr, "moewe %s: %s\n", command_name, text);
    else
        fprintf(stderr, "moewe: %s\n", text);
}

int cli_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    return CLI_FAILED;
}

int cli_usage(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    return CLI_USAGE;
}

int cli_flush(void)
{
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    if (!write_error) write_error = errno ? errno : EIO;
    return -1;
}

int cli_finish(int status)
{
    if (!cli_flush() || status != CLI_OK) return status; /* the first message is enough */
    if (write_error == EPIPE) return CLI_FAILED;
    return cli_fail("cannot write to standard output: %s", strerror(write_error));
}

cli_size cli_size_text(uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    cli_size s;
    double value = (double)bytes / 1024;
    size_t unit = 0;
    if (bytes < 1024) {
        snprintf(s.text, sizeof s.text, "%llu bytes", (unsigned long long)bytes);
        return s;
    }
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(s.text, sizeof s.text, "%llu bytes (%.2f %s)", (unsigned long long)bytes, value, units[unit]);
    return s;
}

double cli_seconds(void)
{
    struct timespec t = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

moewe_status cli_device_open(const cli_common *common, moewe_device **out)
{
    moewe_device_desc d;
    MOEWE_INIT(d);
    d.kind = MOEWE_DEVICE_CPU;
    d.n_threads = common->threads;
    d.pin = common->pin;
    d.backend = common->backend;
    return moewe_device_open(&d, out);
}
