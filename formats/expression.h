/* expression.h - the little language of the descriptors: numbers, names, + - * / // ( ), comparisons,
 * and, or, not.  Never knows what a name means. */
#ifndef MOEWE_FORMATS_EXPRESSION_H
#define MOEWE_FORMATS_EXPRESSION_H

#include "error.h"

/* Value of a name; a value that is null counts as 0.  -1 with e set when there is none. */
typedef int (*expression_name_fn)(void *ctx, const char *name, double *out, fmt_error *e);

/* -1 with a sentence that quotes the text when it does not parse, divides by 0 or leaves the range in which
 * a double counts exactly (2^53). */
int expression_eval(const char *text, expression_name_fn name, void *ctx, double *out, fmt_error *e);

#endif
