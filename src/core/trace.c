/* trace.c - log lines to the caller's function, or nowhere. */
#include "core.h"

#include <stdarg.h>
#include <stdio.h>

static moewe_log_fn sink;
static void *sink_ctx;
static moewe_log_level sink_level;

MOEWE_API void moewe_log_set(moewe_log_fn fn, void *ctx, moewe_log_level max_level)
{
    moewe_log_level from_env;
    sink = fn;
    sink_ctx = ctx;
    sink_level = moewe_env_log(&from_env) ? from_env : max_level;
}

void moewe_trace(moewe_log_level level, const char *format, ...)
{
    if (!sink || level > sink_level) return;
    char line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sink(sink_ctx, level, line);
}
