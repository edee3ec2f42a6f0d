/* files.h - a throw-away folder for tests and what they put into it and look up in it.  Must not use the code
 * under test. */
#ifndef MOEWE_TESTS_FORMATS_FILES_H
#define MOEWE_TESTS_FORMATS_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* cmocka group fixtures: one folder under TMPDIR, and its removal with all that is in it. */
int folder_make(void **state);
int folder_remove(void **state);

/* The path of NAME in the folder; valid until the eighth next call. */
const char *in_folder(const char *name);

void   put_bytes(const char *name, const void *bytes, size_t n);
void   put_text(const char *name, const char *text);
char  *read_bytes(const char *path, size_t *n); /* free() it */
size_t count_files(void);                       /* in the folder */
void   empty_folder(void);

/* Header text and n_data bytes of data (byte i is i) as a safetensors file whose length field says claimed. */
void put_safetensors(const char *name, const char *header, size_t header_bytes, uint64_t claimed, size_t n_data);

/* Every word of the list (NULL ends it) occurs in text. */
void assert_mentions(const char *text, const char *const *words);

#endif
