/* error.c - status codes, the thread's last sentence, version and text helpers.  Never prints. */
#include "core.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512] = "no call has failed on this thread";

static const struct { moewe_status value; const char *name, *text; } statuses[] = {
#define X(name, value, text) {MOEWE_##name, "MOEWE_" #name, text},
    MOEWE_STATUS_MAP(X)
#undef X
};

MOEWE_API const char *moewe_status_name(moewe_status s)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].value == s) return statuses[i].name;
    return "MOEWE_UNKNOWN";
}

MOEWE_API const char *moewe_status_text(moewe_status s)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].value == s) return statuses[i].text;
    return "not a status of this library";
}

MOEWE_API const char *moewe_last_error(void)
{
    return last_error;
}

moewe_status moewe_fail(moewe_status s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    moewe_trace(MOEWE_LOG_ERROR, "%s: %s", moewe_status_name(s), last_error);
    return s;
}

MOEWE_API uint32_t moewe_version(void)
{
    return MOEWE_VERSION_MAJOR << 16 | MOEWE_VERSION_MINOR << 8 | MOEWE_VERSION_PATCH;
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

MOEWE_API const char *moewe_build_info(void)
{
    return "moewe " TEXT(MOEWE_VERSION_MAJOR) "." TEXT(MOEWE_VERSION_MINOR) "." TEXT(MOEWE_VERSION_PATCH)
#if defined(__clang__)
        ", clang " TEXT(__clang_major__) "." TEXT(__clang_minor__)
#elif defined(__GNUC__)
        ", gcc " TEXT(__GNUC__) "." TEXT(__GNUC_MINOR__)
#endif
#if defined(__x86_64__)
        ", x86-64: scalar, avx2, avx512, avx512bf16, amx"
#else
        ", scalar"
#endif
#ifdef NDEBUG
        ", release";
#else
        ", debug";
#endif
}

void moewe_append(char *buf, size_t cap, size_t *len, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t at = *len < cap ? *len : cap;
    int n = vsnprintf(cap ? buf + at : NULL, cap - at, format, args);
    va_end(args);
    if (n > 0) *len += (size_t)n;
}
