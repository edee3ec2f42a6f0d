/* plan_svg.c - the memory map of one rank as a picture: a bar to scale with every part labelled, the workspace's
 * regions beside it, the totals below.  Plain SVG 1.1: shapes and text, no style sheets, no scripts, no fonts of its own. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "plan_out.h"

enum { WIDTH = 900, MARGIN = 24, BAR_TOP = 118, BAR_HEIGHT = 420, BAR_WIDTH = 110, LABEL_STEP = 24, LABELS_MAX = 24 };

typedef struct label {
    double at; /* middle of what it names */
    double y;
    const char *colour;
    char text[160];
} label;

typedef struct canvas {
    FILE *f;
    label labels[LABELS_MAX];
    size_t n;
} canvas;

/* ---- pieces --------------------------------------------------------------------------------------------------- */

static void put_text(FILE *f, const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '&')
            fputs("&amp;", f);
        else if (*c == '<')
            fputs("&lt;", f);
        else if (*c == '>')
            fputs("&gt;", f);
        else
            fputc(*c < 0x20 || *c >= 0x7f ? '?' : *c, f);
    }
}

static void text_at(FILE *f, double x, double y, int size, const char *more, const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" %s>", x, y, size, more);
    put_text(f, text);
    fputs("</text>\n", f);
}

static void box(FILE *f, double x, double y, double w, double h, const char *fill, const char *stroke)
{
    fprintf(
        f,
        "<rect x=\"%.1f\" y=\"%.2f\" width=\"%.1f\" height=\"%.2f\" fill=\"%s\" stroke=\"%s\" stroke-width=\"0.5\"/>\n",
        x, y, w, h, fill, stroke);
}

static void line(FILE *f, double x1, double y1, double x2, double y2, const char *colour)
{
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.2f\" x2=\"%.1f\" y2=\"%.2f\" stroke=\"%s\" stroke-width=\"1\"/>\n", x1, y1, x2,
            y2, colour);
}

static void size_text(uint64_t bytes, char *buf, size_t cap)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(buf, cap, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
}

/* ---- labels: beside their part where there is room, apart from one another always -------------------------------- */

static void label_add(canvas *c, double at, const char *colour, const char *name, uint64_t bytes, uint64_t whole)
{
    char size[32];
    if (c->n == LABELS_MAX) return;
    label *l = &c->labels[c->n++];
    size_text(bytes, size, sizeof size);
    l->at = at;
    l->colour = colour;
    if (whole)
        snprintf(l->text, sizeof l->text, "%s: %s (%.1f %%)", name, size, 100 * (double)bytes / (double)whole);
    else
        snprintf(l->text, sizeof l->text, "%s: %s", name, size);
}

static void labels_put(canvas *c, double x, double bar_right, double top, double bottom)
{
    double y = top;
    for (size_t i = 0; i < c->n; i++) {
        c->labels[i].y = c->labels[i].at > y ? c->labels[i].at : y;
        y = c->labels[i].y + LABEL_STEP;
    }
    double last = bottom;
    for (size_t i = c->n; i-- > 0;) {
        if (c->labels[i].y > last) c->labels[i].y = last;
        last = c->labels[i].y - LABEL_STEP;
    }
    for (size_t i = 0; i < c->n; i++) {
        const label *l = &c->labels[i];
        line(c->f, bar_right, l->at, x - 22, l->y, "#888888");
        box(c->f, x - 20, l->y - 6, 12, 12, l->colour, "#444444");
        text_at(c->f, x, l->y + 5, 14, "", l->text);
    }
    c->n = 0;
}

/* ---- the two bars ------------------------------------------------------------------------------------------------ */

static void draw_map(canvas *c, const planner_plan *p)
{
    plan_row rows[PLAN_ROWS_MAX];
    size_t n = plan_rows(p, rows);
    uint64_t whole = p->total > p->ask.memory ? p->total : p->ask.memory;
    double y = BAR_TOP, x = MARGIN, scale = whole ? BAR_HEIGHT / (double)whole : 0;
    for (size_t i = 0; i < n; i++) {
        double h = (double)rows[i].bytes * scale;
        box(c->f, x, y, BAR_WIDTH, h, rows[i].colour, "#333333");
        label_add(c, y + h / 2, rows[i].colour, rows[i].name, rows[i].bytes, whole);
        y += h;
    }
    if (p->budget > p->total) {
        double h = (double)p->left * scale;
        box(c->f, x, y, BAR_WIDTH, h, "#ffffff", "#333333");
        label_add(c, y + h / 2, "#ffffff", "left in the budget", p->left, whole);
        y += h;
    }
    if (p->ask.memory > p->total && p->ask.memory > p->budget) {
        uint64_t rest = p->ask.memory - (p->budget > p->total ? p->budget : p->total);
        double h = (double)rest * scale;
        box(c->f, x, y, BAR_WIDTH, h, "#dddddd", "#333333");
        label_add(c, y + h / 2, "#dddddd", "not to be used", rest, whole);
    }
    labels_put(c, MARGIN + BAR_WIDTH + 60, MARGIN + BAR_WIDTH, BAR_TOP + 6, BAR_TOP + BAR_HEIGHT - 6);
    if (p->budget) {
        double at = BAR_TOP + (double)p->budget * scale;
        fprintf(c->f,
                "<line x1=\"%d\" y1=\"%.2f\" x2=\"%d\" y2=\"%.2f\" stroke=\"#cc0000\" stroke-width=\"2\" "
                "stroke-dasharray=\"6 3\"/>\n",
                MARGIN - 10, at, MARGIN + BAR_WIDTH + 10, at);
    }
}

static void draw_workspace(canvas *c, const plan_answer *a)
{
    static const char *const colours[] = {"#b07aa1", "#d4a6c8", "#8c6bb1", "#cab2d6", "#6a3d9a", "#e0bfe6"};
    double x = 540, scale = a->need.bytes ? BAR_HEIGHT / (double)a->need.bytes : 0;
    moewe_region r;
    if (!a->layer) return;
    text_at(c->f, x, BAR_TOP - 12, 14, "font-weight=\"bold\"", "one workspace, magnified");
    for (int32_t i = 0; i < moewe_plan_region_count(a->layer); i++) {
        if (moewe_plan_region(a->layer, i, &r) || !r.bytes) continue;
        const char *colour = colours[(size_t)i % (sizeof colours / sizeof *colours)];
        double y = BAR_TOP + (double)r.offset * scale, h = (double)r.bytes * scale;
        box(c->f, x, y, BAR_WIDTH / 2.0, h, colour, "#333333");
        label_add(c, y + h / 2, colour, r.name, r.bytes, 0);
    }
    labels_put(c, x + BAR_WIDTH / 2.0 + 60, x + BAR_WIDTH / 2.0, BAR_TOP + 6, BAR_TOP + BAR_HEIGHT - 6);
}

static void draw_words(canvas *c, const plan_answer *a)
{
    const planner_plan *p = &a->plan;
    char text[512], size[32], other[32];
    snprintf(text, sizeof text, "%.160s: memory of one rank", a->facts->file);
    text_at(c->f, MARGIN, 34, 20, "font-weight=\"bold\"", text);
    snprintf(text, sizeof text,
             "tp %d, ep %d, dp %d; %d tokens a rank; %" PRId64 " x %" PRId64 " tokens of context; "
             "experts %s, KV cache %s",
             (int)p->shard.tp, (int)p->shard.ep, (int)p->shard.dp, (int)p->ask.tokens, p->ask.sequences, p->ask.context,
             p->expert_format.name, p->kv_fp8 ? "fp8" : "bf16");
    text_at(c->f, MARGIN, 58, 14, "", text);
    size_text(p->total, size, sizeof size);
    snprintf(text, sizeof text, "total %s (%" PRIu64 " bytes)", size, p->total);
    text_at(c->f, MARGIN, 80, 14, "font-weight=\"bold\"", text);

    double y = BAR_TOP + BAR_HEIGHT + 32;
    if (p->budget) {
        size_text(p->budget, size, sizeof size);
        size_text(p->fits ? p->left : p->short_by, other, sizeof other);
        if (p->fits)
            snprintf(text, sizeof text, "fits a budget of %s (dashed line), %s are left", size, other);
        else
            snprintf(text, sizeof text, "does not fit a budget of %s (dashed line) by %s (%" PRIu64 " bytes)", size,
                     other, p->short_by);
        text_at(c->f, MARGIN, y, 15,
                p->fits ? "fill=\"#006600\" font-weight=\"bold\"" : "fill=\"#cc0000\" font-weight=\"bold\"", text);
        if (!p->fits) {
            snprintf(text, sizeof text, "one change that would make it fit: %s", p->change);
            text_at(c->f, MARGIN, y + 22, 14, "", text);
        }
    }
    snprintf(text, sizeof text, "moewe %d.%d.%d plan, from config.json alone", MOEWE_VERSION_MAJOR, MOEWE_VERSION_MINOR,
             MOEWE_VERSION_PATCH);
    text_at(c->f, MARGIN, y + 50, 12, "fill=\"#666666\"", text);
}

int plan_write_svg(const plan_answer *a, const char *path)
{
    enum { HEIGHT = BAR_TOP + BAR_HEIGHT + 100 };
    canvas c = {.f = fopen(path, "w")};
    if (!c.f) return cli_fail("--svg %s: cannot be written: %s", path, strerror(errno));
    fprintf(
        c.f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"Helvetica, Arial, sans-serif\">\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    box(c.f, 0, 0, WIDTH, HEIGHT, "#ffffff", "none");
    draw_words(&c, a);
    draw_map(&c, &a->plan);
    draw_workspace(&c, a);
    fputs("</svg>\n", c.f);
    int failed = ferror(c.f);
    if (fclose(c.f) || failed) return cli_fail("--svg %s: cannot be written: %s", path, strerror(errno));
    return CLI_OK;
}
