/* error.c - owns the one way in which formats/ and engine/ word a failure.  Never prints, never
 * allocates, never looks at the sentence's meaning. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"

/* Names come from files of strangers: a sentence must stay one line and must not drive a terminal. */
static void replace_controls(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p == 0x7f) *p = '?';
        if (*p == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f) { /* U+0080 to U+009F, also controls */
            p[0] = '?';
            p[1] = '?';
        }
    }
}

/* A sentence that was cut may end inside a UTF-8 sequence. */
static void drop_partial_character(char *text)
{
    size_t n = strlen(text), back = 0;
    while (back < 3 && back < n && ((unsigned char)text[n - 1 - back] & 0xc0) == 0x80) back++;
    if (back >= n) return;
    unsigned char lead = (unsigned char)text[n - 1 - back];
    size_t want = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (want > back) text[n - 1 - back] = '\0';
}

int fmt_fail(fmt_error *e, const char *format, ...)
{
    if (!e) return -1;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    if (n < 0) strcpy(e->text, "an error message could not be formatted");
    if (n >= (int)sizeof e->text) drop_partial_character(e->text);
    replace_controls(e->text);
    return -1;
}
