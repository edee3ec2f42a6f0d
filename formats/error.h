/* error.h - how formats/ and engine/ say what went wrong: one sentence for the user that names the
 * file, the field, what was found and what was expected.  Never printed here; the caller owns it. */
#ifndef MOEWE_FORMATS_ERROR_H
#define MOEWE_FORMATS_ERROR_H

typedef struct fmt_error { char text[768]; } fmt_error;

/* Writes the sentence (cut to fit, control characters replaced by '?') and returns -1.  e may be NULL. */
int fmt_fail(fmt_error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
