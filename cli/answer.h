/* answer.h - finds the number after the last "####" in a text that comes in pieces, and where the model
 * begins a question of its own.  Fixed size, never allocates. */
#ifndef MOEWE_CLI_ANSWER_H
#define MOEWE_CLI_ANSWER_H

#include <stddef.h>

typedef struct answer {
    char number[64]; /* digits, '.', '-'; without commas and spaces */
    int length;
    int hashes;  /* '#' in a row just now */
    int reading; /* behind a "####" whose number has not ended */
    int asked;   /* characters of "Question:" just now */
} answer;

/* Start from a zeroed answer.  Returns 1 when "Question:" has been completed; the rest is not looked at. */
int answer_feed(answer *a, const char *text, size_t bytes);

/* Whether there is a number; drops a full stop that ends it.  To be called after the last piece. */
int answer_end(answer *a);

int answer_equal(const answer *a, const answer *b); /* both ended */

#endif
