/* tok_regex.c - the regular expressions of a tokenizer.json, which are written for Oniguruma (Ruby's syntax), in PCRE2.
 * Owns the translation, the compiling and the splitting.  A construct that the two engines read differently, or that
 * no tokenizer needs, is refused by name: a pattern that compiles but means something else would be worse. */
#include "tok_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps of one search.  A pattern that backtracks more than this on a text is refused there and then. */
enum { MATCH_LIMIT = 50 * 1000 * 1000, JIT_STACK_START = 32 << 10, JIT_STACK_LIMIT = 8 << 20 };

/* Longest expansion of one source byte: "\w" becomes WORD between brackets. */
enum { GROWTH = 40 };

/* Oniguruma's words; PCRE2's own \w leaves out marks and connectors, its \s takes in U+180E.  Between brackets the
 * superscripts and fractions of Latin-1 are no words in Oniguruma, elsewhere they are. */
static const char WORD[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
static const char WORD_NUMBERS[] = "\\xb2\\xb3\\xb9\\xbc-\\xbe";

/* The words of Rust's regex crate, with which tokenizers tells single words. */
static const char SINGLE_WORD[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]";

/* The characters that may change under NFC or compose with what stands before them: every mark and every unassigned
 * code point, the Hangul vowels and final consonants, and the letters that decompose for good.  The variation
 * selectors and the blocks of pictures never do.  Text without any of these is in NFC. */
static const char SUSPECT[] =
    "(?![\\x{FE00}-\\x{FE0F}\\x{1F000}-\\x{1FAFF}])[\\p{M}\\p{Cn}\\x{1161}-\\x{1175}\\x{11A8}-\\x{11C2}"
    "\\x{374}\\x{37E}\\x{387}\\x{958}-\\x{95F}\\x{9DC}\\x{9DD}\\x{9DF}\\x{A33}\\x{A36}\\x{A59}-\\x{A5B}\\x{A5E}"
    "\\x{B5C}\\x{B5D}\\x{F43}\\x{F4D}\\x{F52}\\x{F57}\\x{F5C}\\x{F69}\\x{1F71}-\\x{1FFD}\\x{2000}\\x{2001}\\x{2126}"
    "\\x{212A}\\x{212B}\\x{2329}\\x{232A}\\x{2ADC}\\x{F900}-\\x{FAD9}\\x{FB1D}-\\x{FB4E}\\x{1D15E}-\\x{1D1C0}"
    "\\x{2F800}-\\x{2FA1D}]";

typedef struct translation {
    const char *file, *what;
    const char *p, *start, *end;
    char *out;
    size_t n;
    bool atomic; /* the pattern has (?> */
    fmt_error *e;
} translation;

static void put(translation *x, const char *s, size_t n)
{
    memcpy(x->out + x->n, s, n);
    x->n += n;
}

static int refuse(translation *x, const char *construct)
{
    return fmt_fail(x->e, "%s: %s has %s at byte %zu, which is not supported in a pattern", x->file, x->what, construct,
                    (size_t)(x->p - x->start));
}

static bool starts(const translation *x, const char *s)
{
    size_t n = strlen(s);
    return (size_t)(x->end - x->p) >= n && memcmp(x->p, s, n) == 0;
}

/* \p{NAME}: a general category means the same in both; a longer name is a script, and PCRE2's default would be the
 * script extensions, which Oniguruma does not look at. */
static int property(translation *x)
{
    const char *name = x->p + 3, *close = x->p + 2;
    if (close < x->end && *close == '{')
        close = memchr(name, '}', (size_t)(x->end - name));
    else
        close = NULL;
    if (!close) return refuse(x, "\\p without a name in braces");
    size_t caret = name < close && *name == '^';
    size_t n = (size_t)(close - name) - caret;
    bool same = n <= 2 || (n == 10 && memcmp(name + caret, "Alphabetic", 10) == 0);
    if (n == 0 || n > 32) return refuse(x, "\\p with a name that is empty or too long");
    put(x, x->p, 3 + caret);
    if (!same) put(x, "sc:", 3);
    put(x, name + caret, n + 1);
    x->p = close + 1;
    return 0;
}

/* \xHH, \uHHHH, \x{H...} */
static int hexadecimal(translation *x)
{
    const char *digits = x->p + 2;
    size_t n = 0;
    bool braced = x->p[1] == 'x' && digits < x->end && *digits == '{';
    if (braced) digits++;
    while (digits + n < x->end && n < 8 && isxdigit((unsigned char)digits[n]) &&
           (braced || n < (x->p[1] == 'x' ? 2u : 4u))) {
        n++;
    }
    bool whole = braced ? n > 0 && digits + n < x->end && digits[n] == '}' : n == (x->p[1] == 'x' ? 2u : 4u);
    if (!whole || (x->p[1] == 'x' && !braced && digits[0] >= '8'))
        return refuse(x, "a character code that is no code point");
    put(x, "\\x{", 3);
    put(x, digits, n);
    put(x, "}", 1);
    x->p = digits + n + braced;
    return 0;
}

static int escape(translation *x, bool in_class)
{
    if (x->p + 1 >= x->end) return refuse(x, "a backslash at the end");
    char c = x->p[1];
    if (c == 'p' || c == 'P') return property(x);
    if (c == 'x' || c == 'u') return hexadecimal(x);
    if (c == 's')
        put(x, "\\p{White_Space}", 15);
    else if (c == 'S')
        put(x, "\\P{White_Space}", 15);
    else if (c == 'w' && in_class)
        put(x, WORD, sizeof WORD - 1);
    else if ((c == 'w' || c == 'W') && !in_class) {
        put(x, c == 'w' ? "[" : "[^", c == 'w' ? 1 : 2);
        put(x, WORD, sizeof WORD - 1);
        put(x, WORD_NUMBERS, sizeof WORD_NUMBERS - 1);
        put(x, "]", 1);
    } else if (c == 'v')
        put(x, "\\x{0b}", 6);
    else if (strchr("rntfae", c) || strchr("dD", c))
        put(x, x->p, 2);
    else if ((c == 'A' || c == 'z') && !in_class)
        put(x, x->p, 2);
    else if (ispunct((unsigned char)c) || c == ' ')
        put(x, x->p, 2);
    else {
        char construct[16];
        snprintf(construct, sizeof construct, "\\%c", c);
        return refuse(x, construct);
    }
    x->p += 2;
    return 0;
}

static int character_class(translation *x)
{
    put(x, x->p++, 1);
    if (starts(x, "^")) put(x, x->p++, 1);
    if (starts(x, "]")) return refuse(x, "an empty class");
    while (x->p < x->end && *x->p != ']') {
        if (*x->p == '[') return refuse(x, "a class within a class");
        if (starts(x, "&&")) return refuse(x, "an intersection of classes");
        if (*x->p == '\\') {
            if (escape(x, true) != 0) return -1;
        } else {
            put(x, x->p++, 1);
        }
    }
    if (x->p == x->end) return refuse(x, "a class without its end");
    put(x, x->p++, 1);
    return 0;
}

static int group(translation *x)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (starts(x, "(*")) return refuse(x, "(*");
    if (!starts(x, "(?")) {
        put(x, x->p++, 1);
        return 0;
    }
    /* In the middle of a pattern Ruby's (?i) takes the alternatives after it into a group of their own. */
    if (x->p == x->start && starts(x, "(?i)")) {
        put(x, x->p, 4);
        x->p += 4;
        return 0;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!starts(x, known[i])) continue;
        x->atomic |= strcmp(known[i], "(?>") == 0;
        put(x, x->p, strlen(known[i]));
        x->p += strlen(known[i]);
        return 0;
    }
    return refuse(x, "a group of another kind than (?: (?i: (?= (?! (?<= (?<! (?>");
}

/* {n}, {n,} and {n,m}.  Ruby repeats {n,m}+ and makes {n}? optional, where PCRE2 makes them possessive and lazy. */
static int interval(translation *x)
{
    const char *p = x->p + 1, *digits = p;
    while (p < x->end && isdigit((unsigned char)*p)) p++;
    bool counted = p > digits, fixed = p < x->end && *p == '}';
    if (!fixed && p < x->end && *p == ',') {
        p++;
        while (p < x->end && isdigit((unsigned char)*p)) p++;
    }
    if (!counted || p >= x->end || *p != '}') return refuse(x, "{ that starts no {n}, {n,} or {n,m}");
    p++;
    if (p < x->end && (*p == '+' || (*p == '?' && fixed))) return refuse(x, "{n,m}+ or {n}?");
    put(x, x->p, (size_t)(p - x->p));
    x->p = p;
    return 0;
}

static int translate(translation *x)
{
    while (x->p < x->end) {
        int rc = 0;
        switch (*x->p) {
        case '\\':
            rc = escape(x, false);
            break;
        case '[':
            rc = character_class(x);
            break;
        case '(':
            rc = group(x);
            break;
        case '{':
            rc = interval(x);
            break;
        default:
            put(x, x->p++, 1);
        }
        if (rc != 0) return -1;
    }
    return 0;
}

static int compile(const char *file, const char *what, const char *pattern, size_t bytes, uint32_t options, bool jit,
                   pcre2_code **out, fmt_error *e)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return fmt_fail(e, "%s: no memory to compile %s", file, what);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    /* PCRE2 10.42 makes some repeats possessive that are not, such as the first in \P{L}?\P{N}. */
    options |= PCRE2_UTF | PCRE2_NO_AUTO_POSSESS;
    if (options & PCRE2_LITERAL) options &= ~PCRE2_NO_AUTO_POSSESS;
    *out = pcre2_compile((PCRE2_SPTR)pattern, bytes, options, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!*out) {
        PCRE2_UCHAR reason[128];
        if (pcre2_get_error_message(code, reason, sizeof reason) < 0) reason[0] = 0;
        return fmt_fail(e, "%s: %s is no regular expression that PCRE2 takes: %s", file, what, (const char *)reason);
    }
    /* Where there is no JIT the interpreter gives the same matches.  The JIT of PCRE2 10.42 loses some through atomic
     * groups before a look-behind, so such patterns are left to the interpreter. */
    if (jit) pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return 0;
}

int tok_regex_compile(const char *file, const char *what, const char *pattern, size_t bytes, bool literal,
                      pcre2_code **out, fmt_error *e)
{
    if (bytes == 0 || bytes > TOK_MAX_PATTERN) {
        return fmt_fail(e, "%s: %s has %zu bytes, a pattern has 1 to %d", file, what, bytes, (int)TOK_MAX_PATTERN);
    }
    if (literal) return compile(file, what, pattern, bytes, PCRE2_LITERAL, true, out, e);
    translation x = {.file = file, .what = what, .p = pattern, .start = pattern, .end = pattern + bytes, .e = e};
    x.out = malloc(bytes * GROWTH);
    if (!x.out) return fmt_fail(e, "%s: no memory to compile %s", file, what);
    /* Ruby's ^ and $ are those of lines, always. */
    int rc = translate(&x);
    if (rc == 0) rc = compile(file, what, x.out, x.n, PCRE2_UCP | PCRE2_MULTILINE, !x.atomic, out, e);
    free(x.out);
    return rc;
}

int tok_regex_classes(const char *file, tok *t, fmt_error *e)
{
    if (compile(file, "the class of word characters", SINGLE_WORD, sizeof SINGLE_WORD - 1, PCRE2_UCP, true, &t->word,
                e) != 0) {
        return -1;
    }
    if (!t->nfc) return 0;
    return compile(file, "the class of marks", SUSPECT, sizeof SUSPECT - 1, PCRE2_UCP, true, &t->suspect, e);
}

/* Made on first use: a text without a pattern to search needs none of this. */
static int ready(tok_job *j)
{
    if (j->match) return 0;
    j->match = pcre2_match_data_create(1, NULL);
    j->context = pcre2_match_context_create(NULL);
    j->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    if (!j->match || !j->context) return fmt_fail(j->e, "no memory to search a text");
    pcre2_set_match_limit(j->context, MATCH_LIMIT);
    if (j->stack) pcre2_jit_stack_assign(j->context, NULL, j->stack);
    return 0;
}

int tok_regex_find(tok_job *j, const pcre2_code *code, const char *s, size_t bytes, size_t start, size_t *at,
                   size_t *end)
{
    if (ready(j) != 0) return -1;
    /* The caller has checked the text: checking again at each match would make a long text quadratic. */
    int rc = pcre2_match(code, (PCRE2_SPTR)s, bytes, start, PCRE2_NO_UTF_CHECK, j->match, j->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(code, (PCRE2_SPTR)s, bytes, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, j->match, j->context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        PCRE2_UCHAR reason[128];
        if (pcre2_get_error_message(rc, reason, sizeof reason) < 0) reason[0] = 0;
        return fmt_fail(j->e, "a pattern of the tokenizer gave up on a piece of %zu bytes: %s", bytes,
                        (const char *)reason);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(j->match);
    *at = span[0];
    *end = span[1];
    return 1;
}

typedef struct fold {
    tok_spans *out;
    size_t first; /* spans of earlier pieces are not joined with */
    tok_behavior behavior;
    bool before; /* whether the part before was a match */
} fold;

/* Parts come in order and cover the piece; `match` tells the delimiters. */
static int add_part(fold *f, uint32_t from, uint32_t to, bool match)
{
    bool join = false, keep = true;
    switch (f->behavior) {
    case TOK_ISOLATED:
        break;
    case TOK_REMOVED:
        keep = !match;
        break;
    case TOK_CONTIGUOUS:
        join = match == f->before;
        break;
    case TOK_MERGED_WITH_PREVIOUS:
        join = match && !f->before;
        break;
    case TOK_MERGED_WITH_NEXT:
        join = !match && f->before;
        break;
    }
    f->before = match;
    tok_spans *out = f->out;
    if (join && out->count > f->first) {
        out->at[out->count - 1].to = to;
        return 0;
    }
    if (!keep) return 0;
    if (out->count == out->room) {
        size_t room = out->room ? out->room * 2 : 64;
        tok_span *at = realloc(out->at, room * sizeof *at);
        if (!at) return -1;
        out->at = at;
        out->room = room;
    }
    out->at[out->count++] = (tok_span){.from = from, .to = to};
    return 0;
}

int tok_regex_split(tok_job *j, const tok_split *s, const char *base, tok_span in, tok_spans *out)
{
    const char *text = base + in.from;
    size_t bytes = in.to - in.from, start = 0, covered = 0, last = SIZE_MAX, at = 0, end = 0;
    fold f = {.out = out, .first = out->count, .behavior = s->behavior};
    int found = 0;
    while (start <= bytes && (found = tok_regex_find(j, s->code, text, bytes, start, &at, &end)) == 1) {
        if (at == end && end == last) { /* nothing twice in one place: step over a character */
            uint32_t c = 0;
            size_t length = tok_utf8_char(text + start, bytes - start, &c);
            start += length ? length : 1;
            continue;
        }
        start = last = end;
        if ((covered != at && add_part(&f, in.from + (uint32_t)covered, in.from + (uint32_t)at, s->invert) != 0) ||
            add_part(&f, in.from + (uint32_t)at, in.from + (uint32_t)end, !s->invert) != 0) {
            return fmt_fail(j->e, "no memory to split a text of %zu bytes", bytes);
        }
        covered = end;
    }
    if (found < 0) return -1;
    if (covered != bytes && add_part(&f, in.from + (uint32_t)covered, in.to, s->invert) != 0) {
        return fmt_fail(j->e, "no memory to split a text of %zu bytes", bytes);
    }
    size_t kept = f.first;
    for (size_t i = f.first; i < out->count; i++) {
        if (out->at[i].from < out->at[i].to) out->at[kept++] = out->at[i];
    }
    out->count = kept;
    return 0;
}
