/* text_out.h - generated text on its way to stdout: ends before a stop text, and is valid UTF-8 whatever
 * bytes the model makes.  Fixed size, never allocates. */
#ifndef MOEWE_CLI_TEXT_OUT_H
#define MOEWE_CLI_TEXT_OUT_H

#include <stddef.h>

enum { TEXT_OUT_STOP_MAX = 200 };

/* Zeroed but for stop. */
typedef struct text_out {
    const char *stop; /* NULL = none; 1 to TEXT_OUT_STOP_MAX bytes */
    char held[512];   /* may turn out to be white space before the stop text, or its beginning */
    size_t n_held;
    char part[64]; /* of a character that is not complete */
    size_t n_part;
} text_out;

/* Prints what is certain to be printed; 1 when the stop text is complete: then nothing may follow. */
int text_out_put(text_out *t, const char *bytes, size_t n);

/* After the last bytes; stopped: whether text_out_put said 1. */
void text_out_end(text_out *t, int stopped);

#endif
