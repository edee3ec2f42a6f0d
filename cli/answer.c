/* answer.c - the scoring of GSM8K: the number after the last "####", compared as text without commas and
 * spaces.  Never looks at the same byte twice. */
#include "answer.h"

#include <string.h>

static void read_number(answer *a, char c)
{
    int in_number = (c >= '0' && c <= '9') || c == '.' || c == '-';
    if (in_number && a->length < (int)sizeof a->number - 1)
        a->number[a->length++] = c;
    else if (c != ',' && c != ' ' && !(c == '$' && !a->length))
        a->reading = 0; /* a number too long for any answer ends too */
}

int answer_feed(answer *a, const char *text, size_t bytes)
{
    static const char question[] = "Question:";
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        a->hashes = c == '#' ? a->hashes + 1 : 0;
        if (a->hashes >= 4) {
            a->length = 0;
            a->reading = 1;
        } else if (a->reading) {
            read_number(a, c);
        }
        /* 'Q' stands only at the start of the word, so a mismatch restarts there or nowhere. */
        a->asked = c == question[a->asked] ? a->asked + 1 : c == question[0];
        if (a->asked == (int)sizeof question - 1) {
            a->asked = 0;
            return 1;
        }
    }
    return 0;
}

int answer_end(answer *a)
{
    while (a->length && a->number[a->length - 1] == '.') a->length--;
    return a->length > 0;
}

int answer_equal(const answer *a, const answer *b)
{
    return a->length == b->length && !memcmp(a->number, b->number, (size_t)a->length);
}
