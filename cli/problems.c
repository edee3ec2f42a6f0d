/* problems.c - reads an eval file whole, every line checked. */
#include "problems.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cli.h"

static int add(problems *p, const char *question, const char *solution, const char *path, size_t line)
{
    if (!(p->n & (p->n - 1))) { /* full at each power of two */
        problem *more = realloc(p->list, (p->n ? p->n * 2 : 1) * sizeof *more);
        if (!more) return cli_fail("%s:%zu: no memory for more problems", path, line);
        p->list = more;
    }
    problem *one = &p->list[p->n];
    memset(one, 0, sizeof *one);
    answer_feed(&one->expected, solution, strlen(solution));
    if (!answer_end(&one->expected))
        return cli_fail("%s:%zu: \"answer\" has no number after its last \"####\", expected one", path, line);
    one->question = strdup(question);
    one->solution = strdup(solution);
    p->n++;
    if (!one->question || !one->solution) return cli_fail("%s:%zu: no memory for a problem", path, line);
    return CLI_OK;
}

static int read_line(problems *p, const char *text, size_t bytes, const char *path, size_t line)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root) return cli_fail("%s:%zu: not JSON at column %d: %s", path, line, error.column, error.text);
    const char *question = json_string_value(json_object_get(root, "question"));
    const char *solution = json_string_value(json_object_get(root, "answer"));
    int status;
    if (!question || !solution)
        status = cli_fail("%s:%zu: found no string \"%s\", expected {\"question\": \"...\", \"answer\": \"...\"}", path,
                          line, question ? "answer" : "question");
    else
        status = add(p, question, solution, path, line);
    json_decref(root);
    return status;
}

int problems_read(problems *p, const char *path)
{
    char *text = NULL;
    size_t room = 0, line = 0;
    ssize_t bytes;
    int status = CLI_OK;
    memset(p, 0, sizeof *p);
    FILE *f = fopen(path, "r");
    if (!f) return cli_fail("%s: %s", path, strerror(errno));
    while (!status && (errno = 0, bytes = getline(&text, &room, f)) >= 0) {
        line++;
        if (strspn(text, " \t\r\n") < (size_t)bytes) status = read_line(p, text, (size_t)bytes, path, line);
    }
    if (!status && (ferror(f) || errno)) status = cli_fail("%s: %s", path, strerror(errno ? errno : EIO));
    if (!status && !p->n) status = cli_fail("%s: found no problem in %zu lines, expected at least one", path, line);
    free(text);
    fclose(f);
    return status;
}

void problems_free(problems *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->list[i].question);
        free(p->list[i].solution);
    }
    free(p->list);
    memset(p, 0, sizeof *p);
}

char *problems_prompt(const problems *p, size_t index, size_t shots)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return NULL;
    for (size_t i = 1; i <= shots; i++) {
        const problem *shot = &p->list[(index + i) % p->n];
        fprintf(f, "Question: %s\nAnswer: %s\n\n", shot->question, shot->solution);
    }
    fprintf(f, "Question: %s\nAnswer:", p->list[index].question);
    int bad = ferror(f);
    if (fclose(f) || bad) {
        free(text);
        return NULL;
    }
    return text;
}
