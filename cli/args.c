/* args.c - parses command lines by table.  Never touches an out pointer whose option was not given, and
 * never accepts half a value. */
#include "args.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const args_word args_f32_bf16[] = {{"f32", MOEWE_DTYPE_F32}, {"bf16", MOEWE_DTYPE_BF16}, {NULL, 0}};
const args_word args_weight_dtypes[] = {
    {"f32", MOEWE_DTYPE_F32}, {"bf16", MOEWE_DTYPE_BF16}, {"f16", MOEWE_DTYPE_F16}, {NULL, 0}};

/* ---- values --------------------------------------------------------------------------- */

/* Decimal digits at the start of text; the rest is left in *end. */
static int read_digits(const char *text, uint64_t *out, const char **end)
{
    uint64_t n = 0;
    if (!isdigit((unsigned char)*text)) return -1;
    for (; isdigit((unsigned char)*text); text++)
        if (__builtin_mul_overflow(n, (uint64_t)10, &n) || __builtin_add_overflow(n, (uint64_t)(*text - '0'), &n))
            return -1;
    *out = n;
    *end = text;
    return 0;
}

static int set_int(const args_option *o, const char *text)
{
    uint64_t n;
    const char *end;
    int negative = *text == '-';
    if (read_digits(text + negative, &n, &end) || *end || n > INT32_MAX) return -1;
    int32_t value = negative ? -(int32_t)n : (int32_t)n;
    if (value < o->low || value > o->high) return -1;
    *(int32_t *)o->out = value;
    return 0;
}

static int set_u64(const args_option *o, const char *text)
{
    uint64_t n;
    const char *end;
    if (read_digits(text, &n, &end) || *end) return -1;
    *(uint64_t *)o->out = n;
    return 0;
}

static int set_size(const args_option *o, const char *text)
{
    static const char *const suffixes[] = {"", "K", "KiB", "M", "MiB", "G", "GiB"};
    uint64_t n;
    const char *end;
    if (read_digits(text, &n, &end) || !n) return -1;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (strcmp(end, suffixes[i])) continue;
        if (__builtin_mul_overflow(n, (uint64_t)1 << (10 * ((i + 1) / 2)), &n)) return -1;
        *(uint64_t *)o->out = n;
        return 0;
    }
    return -1;
}

static int set_real(const args_option *o, const char *text)
{
    char *end;
    if (!isdigit((unsigned char)*text) && *text != '.' && *text != '-') return -1;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < o->low || value > o->high) return -1;
    *(double *)o->out = value;
    return 0;
}

static int set_word(const args_option *o, const char *text)
{
    for (const args_word *w = o->words; w->name; w++)
        if (!strcmp(w->name, text)) {
            *(int32_t *)o->out = w->value;
            return 0;
        }
    return -1;
}

static int bad_value(const args_option *o, const char *text)
{
    switch (o->kind) {
    case ARGS_INT:
        return cli_usage("%s is '%s', expected a whole number from %.0f to %.0f", o->name, text, o->low, o->high);
    case ARGS_U64:
        return cli_usage("%s is '%s', expected a whole number from 0 to 2^64 - 1", o->name, text);
    case ARGS_SIZE:
        return cli_usage("%s is '%s', expected a number of bytes above 0, such as 4096, 64K, 512MiB or 2GiB", o->name,
                         text);
    case ARGS_REAL:
        return cli_usage("%s is '%s', expected a number from %g to %g", o->name, text, o->low, o->high);
    default:
        return cli_usage("%s is '%s', expected %s", o->name, text, o->metavar);
    }
}

static int set_value(const args_option *o, const char *text)
{
    int bad = 0;
    switch (o->kind) {
    case ARGS_FLAG:
        *(int *)o->out = 1;
        break;
    case ARGS_TEXT:
        *(const char **)o->out = text;
        break;
    case ARGS_INT:
        bad = set_int(o, text);
        break;
    case ARGS_U64:
        bad = set_u64(o, text);
        break;
    case ARGS_SIZE:
        bad = set_size(o, text);
        break;
    case ARGS_REAL:
        bad = set_real(o, text);
        break;
    case ARGS_WORD:
        bad = set_word(o, text);
        break;
    }
    return bad ? bad_value(o, text) : ARGS_GO;
}

/* ---- help ------------------------------------------------------------------------------- */

static int print_help(const args_spec *spec, const char *command)
{
    printf("usage: moewe %s %s\n\n%s\n\noptions:\n", command, spec->synopsis, spec->about);
    for (size_t i = 0; i < spec->n_options; i++) {
        const args_option *o = &spec->options[i];
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", o->name, o->metavar ? " " : "", o->metavar ? o->metavar : "");
        printf("  %-24s  %s\n", left, o->help);
    }
    printf("  %-24s  %s\n", "--help", "this text");
    return cli_finish(CLI_OK);
}

/* ---- the walk ------------------------------------------------------------------------- */

/* The option that arg names, alone or before a '='. */
static const args_option *find_option(const args_spec *spec, const char *arg)
{
    size_t length = strcspn(arg, "=");
    for (size_t i = 0; i < spec->n_options; i++)
        if (strlen(spec->options[i].name) == length && !memcmp(spec->options[i].name, arg, length))
            return &spec->options[i];
    return NULL;
}

/* Consumes one option and, where it has one, its value. */
static int take_option(const args_spec *spec, int argc, char **argv, int *at, uint64_t *seen)
{
    const char *arg = argv[(*at)++];
    const char *equals = strchr(arg, '=');
    const args_option *o = find_option(spec, arg);
    if (!o) return cli_usage("unknown option '%s' (moewe %s --help lists them)", arg, argv[0]);
    uint64_t bit = (uint64_t)1 << (o - spec->options);
    if (*seen & bit) return cli_usage("%s is given twice", o->name);
    *seen |= bit;
    if (o->kind == ARGS_FLAG) {
        if (equals) return cli_usage("%s takes no value, found '%s'", o->name, arg);
        return set_value(o, NULL);
    }
    if (equals) return set_value(o, equals + 1);
    /* A known option in the value's place is a forgotten value; --prompt=--seed can still be said. */
    if (*at >= argc || !strcmp(argv[*at], "--help") || (argv[*at][0] == '-' && find_option(spec, argv[*at])))
        return cli_usage("%s needs a value: %s %s", o->name, o->name, o->metavar);
    return set_value(o, argv[(*at)++]);
}

int args_parse(const args_spec *spec, int argc, char **argv)
{
    size_t n = 0;
    uint64_t seen = 0;
    int only_positionals = 0;
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return print_help(spec, argv[0]);
    for (int i = 1; i < argc;) {
        if (!only_positionals && !strcmp(argv[i], "--")) {
            only_positionals = 1;
            i++;
        } else if (!only_positionals && argv[i][0] == '-' && argv[i][1]) {
            int status = take_option(spec, argc, argv, &i, &seen);
            if (status != ARGS_GO) return status;
        } else if (n < spec->n_positionals) {
            spec->values[n++] = argv[i++];
        } else {
            return cli_usage("unexpected argument '%s'; usage: moewe %s %s", argv[i], argv[0], spec->synopsis);
        }
    }
    if (n < spec->n_positionals)
        return cli_usage("%s is missing; usage: moewe %s %s", spec->positionals[n], argv[0], spec->synopsis);
    return ARGS_GO;
}
