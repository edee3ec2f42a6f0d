/* expression.c - see expression.h: recursive descent over one line of text, with a limit on its depth. */
#include "expression.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32, NAME_CAP = 64 };

typedef struct parser {
    const char *text, *at;
    expression_name_fn name;
    void *ctx;
    fmt_error *e;
    int depth;
} parser;

static int either(parser *p, double *out);

static int wrong(const parser *p, const char *what)
{
    return fmt_fail(p->e, "expression '%.120s': %s at '%.40s'", p->text, what, p->at);
}

static void skip(parser *p)
{
    while (*p->at == ' ') p->at++;
}

/* The operator, when it stands here; words must end where they end. */
static int take(parser *p, const char *operator)
{
    size_t n = strlen(operator);
    skip(p);
    if (strncmp(p->at, operator, n)) return 0;
    if (isalpha((unsigned char)operator[0]) && (isalnum((unsigned char)p->at[n]) || p->at[n] == '_')) return 0;
    p->at += n;
    return 1;
}

static int exact(const parser *p, double v)
{
    return fabs(v) < 0x1p53 ? 0 : wrong(p, "a value beyond 2^53");
}

static int primary(parser *p, double *out)
{
    char name[NAME_CAP];
    size_t n = 0;
    skip(p);
    if (p->depth >= MAX_DEPTH) return wrong(p, "nesting too deep");
    if (take(p, "(")) {
        p->depth++;
        if (either(p, out)) return -1;
        p->depth--;
        return take(p, ")") ? 0 : wrong(p, "')' is expected");
    }
    if (isdigit((unsigned char)*p->at)) {
        char *end;
        *out = strtod(p->at, &end);
        p->at = end;
        return exact(p, *out);
    }
    while ((isalnum((unsigned char)p->at[n]) || p->at[n] == '_') && n + 1 < NAME_CAP) n++;
    if (!n) return wrong(p, "a number or a name is expected");
    memcpy(name, p->at, n);
    name[n] = 0;
    p->at += n;
    return p->name(p->ctx, name, out, p->e) ? -1 : exact(p, *out);
}

static int unary(parser *p, double *out)
{
    if (!take(p, "-")) return primary(p, out);
    if (primary(p, out)) return -1;
    *out = -*out;
    return 0;
}

static int product(parser *p, double *out)
{
    double right;
    if (unary(p, out)) return -1;
    for (;;) {
        int whole = take(p, "//"), over = whole || take(p, "/");
        if (!over && !take(p, "*")) return 0;
        if (unary(p, &right)) return -1;
        if (over && right == 0) return wrong(p, "a division by 0 ends");
        *out = whole ? floor(*out / right) : over ? *out / right : *out * right;
        if (exact(p, *out)) return -1;
    }
}

static int sum(parser *p, double *out)
{
    double right;
    if (product(p, out)) return -1;
    for (;;) {
        int plus = take(p, "+");
        if (!plus && !take(p, "-")) return 0;
        if (product(p, &right)) return -1;
        *out = plus ? *out + right : *out - right;
        if (exact(p, *out)) return -1;
    }
}

static int comparison(parser *p, double *out)
{
    static const char *const operators[] = {"==", "!=", "<=", ">=", "<", ">"};
    double r;
    if (sum(p, out)) return -1;
    for (int i = 0; i < 6; i++) {
        if (!take(p, operators[i])) continue;
        if (sum(p, &r)) return -1;
        const int results[] = {*out == r, *out != r, *out <= r, *out >= r, *out<r, *out> r};
        *out = results[i];
        return 0;
    }
    return 0;
}

static int negation(parser *p, double *out)
{
    if (!take(p, "not")) return comparison(p, out);
    if (p->depth >= MAX_DEPTH) return wrong(p, "nesting too deep");
    p->depth++;
    if (negation(p, out)) return -1;
    p->depth--;
    *out = *out == 0;
    return 0;
}

static int both(parser *p, double *out)
{
    double right;
    if (negation(p, out)) return -1;
    while (take(p, "and")) {
        if (negation(p, &right)) return -1;
        *out = *out != 0 && right != 0;
    }
    return 0;
}

static int either(parser *p, double *out)
{
    double right;
    if (both(p, out)) return -1;
    while (take(p, "or")) {
        if (both(p, &right)) return -1;
        *out = *out != 0 || right != 0;
    }
    return 0;
}

int expression_eval(const char *text, expression_name_fn name, void *ctx, double *out, fmt_error *e)
{
    parser p = {text, text, name, ctx, e, 0};
    if (either(&p, out)) return -1;
    skip(&p);
    return *p.at ? wrong(&p, "the end is expected") : 0;
}
