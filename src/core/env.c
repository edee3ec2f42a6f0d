/* env.c - the environment variables that the library reads; the one getenv. */
#include "core.h"

#include <stdlib.h>

enum { ENV_BACKEND, ENV_THREADS, ENV_LOG };

static const struct { const char *name, *text; } variables[] = {
    [ENV_BACKEND] = {"MOEWE_BACKEND", "back end to open when the caller names none"},
    [ENV_THREADS] = {"MOEWE_THREADS", "threads of a CPU device when the caller names no number"},
    [ENV_LOG] = {"MOEWE_LOG", "error, warn, info or trace: overrides the level of moewe_log_set"},
};

static const char *value_of(int index)
{
    const char *v = getenv(variables[index].name);
    return v && *v ? v : NULL;
}

const char *moewe_env_backend(void)
{
    return value_of(ENV_BACKEND);
}

const char *moewe_env_threads(void)
{
    return value_of(ENV_THREADS);
}

int moewe_env_log(moewe_log_level *level)
{
    static const char *const names[] = {"error", "warn", "info", "trace"};
    const char *v = value_of(ENV_LOG);
    for (int i = 0; v && i < 4; i++)
        if (!strcmp(v, names[i])) {
            *level = (moewe_log_level)i;
            return 1;
        }
    return 0;
}

MOEWE_API size_t moewe_env_describe(char *buf, size_t cap)
{
    size_t len = 0;
    if (cap) buf[0] = 0;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *v = value_of((int)i);
        if (v)
            moewe_append(buf, cap, &len, "%s=%s: %s\n", variables[i].name, v, variables[i].text);
        else
            moewe_append(buf, cap, &len, "%s unset: %s\n", variables[i].name, variables[i].text);
    }
    return len;
}
