/* text_out.c - prints generated text as soon as no later byte can change it.  Writes to stdout only. */
#include "text_out.h"

#include <stdio.h>
#include <string.h>

#include "../formats/tokenizer.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* ---- characters ------------------------------------------------------------------------------ */

/* Bytes of the valid character at the start of p, or 0 (Unicode 15, table 3-7). */
static size_t character(const unsigned char *p, size_t n)
{
    unsigned char low = 0x80, high = 0xbf;
    size_t length = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (!length || length > n) return 0;
    if (p[0] == 0xe0) low = 0xa0;  /* shorter forms exist */
    if (p[0] == 0xed) high = 0x9f; /* surrogates */
    if (p[0] == 0xf0) low = 0x90;
    if (p[0] == 0xf4) high = 0x8f; /* past U+10FFFF */
    for (size_t i = 1; i < length; i++, low = 0x80, high = 0xbf)
        if (p[i] < low || p[i] > high) return 0;
    return length;
}

static void print_characters(const char *bytes, size_t n)
{
    const unsigned char *p = (const unsigned char *)bytes;
    while (n) {
        size_t length = character(p, n);
        if (length)
            fwrite(p, 1, length, stdout);
        else
            fputs(replacement, stdout);
        if (!length) length = 1;
        p += length;
        n -= length;
    }
}

static void print_bytes(text_out *t, const char *bytes, size_t n)
{
    while (n) {
        size_t room = sizeof t->part - t->n_part, taken = n < room ? n : room;
        memcpy(t->part + t->n_part, bytes, taken);
        t->n_part += taken;
        bytes += taken;
        n -= taken;
        size_t complete = tok_utf8_complete(t->part, t->n_part);
        print_characters(t->part, complete);
        t->n_part -= complete;
        memmove(t->part, t->part + complete, t->n_part);
    }
}

/* ---- the stop text ---------------------------------------------------------------------------- */

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* How many of the bytes held at the end could begin the stop text. */
static size_t begun(const text_out *t)
{
    size_t n = strlen(t->stop);
    if (n > t->n_held) n = t->n_held;
    while (n && memcmp(t->held + t->n_held - n, t->stop, n)) n--;
    return n;
}

static void release(text_out *t, size_t keep)
{
    size_t n = t->n_held - keep;
    print_bytes(t, t->held, n);
    memmove(t->held, t->held + n, keep);
    t->n_held = keep;
}

int text_out_put(text_out *t, const char *bytes, size_t n)
{
    if (!t->stop) {
        print_bytes(t, bytes, n);
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        t->held[t->n_held++] = bytes[i];
        size_t keep = begun(t);
        if (keep == strlen(t->stop)) {
            t->n_held -= keep;
            while (t->n_held && is_space(t->held[t->n_held - 1])) t->n_held--;
            release(t, 0);
            return 1;
        }
        while (keep < t->n_held && is_space(t->held[t->n_held - keep - 1])) keep++;
        if (keep == sizeof t->held) keep = begun(t); /* more white space than anyone means to hide */
        release(t, keep);
    }
    return 0;
}

void text_out_end(text_out *t, int stopped)
{
    if (!stopped) release(t, 0);
    if (t->n_part) fputs(replacement, stdout);
    t->n_part = 0;
}
