/* problems.h - the problems of an eval file (JSON lines of {"question", "answer"}) and the prompts made of
 * them. */
#ifndef MOEWE_CLI_PROBLEMS_H
#define MOEWE_CLI_PROBLEMS_H

#include <stddef.h>

#include "answer.h"

typedef struct problem {
    char *question, *solution;
    answer expected;
} problem;

typedef struct problems {
    problem *list;
    size_t n;
} problems;

/* Prints "FILE:LINE: ..." and returns CLI_FAILED when a line is not what it should be. */
int problems_read(problems *p, const char *path);
void problems_free(problems *p);

/* "Question: Q\nAnswer:" behind shots worked examples, the problems that follow this one (after the last
 * comes the first).  The caller frees it; NULL when there is no memory. */
char *problems_prompt(const problems *p, size_t index, size_t shots);

#endif
