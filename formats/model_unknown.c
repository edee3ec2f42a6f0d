/* model_unknown.c - a model_type that no descriptor has: fields and tensor names decide how its blocks are computed, or
 * the block is refused with the list of what is missing.  Never guesses: a wrong guess gives wrong text without an
 * error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_internal.h"

static const json_t *get(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static const char *word(const json_t *o, const char *key)
{
    return json_string_value(get(o, key));
}

static const char *text_at(const json_t *list, size_t i)
{
    return json_string_value(json_array_get(list, i));
}

/* What is missing, one after the other. */
typedef struct open_points {
    char text[384];
    size_t n;
} open_points;

static void add(open_points *p, const char *name, const char *what)
{
    size_t room = p->n < sizeof p->text ? sizeof p->text - p->n : 0;
    int n = snprintf(p->text + (room ? p->n : 0), room, "%s%s (%s)", p->n ? ", " : "", name, what);
    p->n += n > 0 ? (size_t)n : 0;
}

/* A list of names, of which the first that config.json has counts; its first name stands for it in messages. */
static const json_t *first_field(const block_reader *r, const json_t *names)
{
    for (size_t i = 0; i < json_array_size(names); i++) {
        const json_t *v = family_field(r->c->family, text_at(names, i));
        if (v) return v;
    }
    return NULL;
}

/* Fields of parts that a descriptor would have to describe. */
static int check_fields(const block_reader *r, const json_t *stops)
{
    for (size_t i = 0; i < json_array_size(stops); i++) {
        const json_t *v = family_field(r->c->family, text_at(stops, i));
        int off = !v || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
                  (json_is_array(v) && !json_array_size(v));
        if (!off)
            return fmt_fail(r->e, "%.300s: model_type '%.60s' is not known, and what %s means differs between families",
                            r->c->file, r->c->model_type, text_at(stops, i));
    }
    return 0;
}

/* Where no field names the score: the name of the selection bias does, each spelling of which goes with one score in
 * all families that are known; without one, those that have the field for renormalising take a softmax. */
static void decide_score(const block_reader *r, const json_t *u, int renormalize_known, open_points *missing)
{
    const json_t *by_tensor = get(u, "score_by_tensor");
    const char *field = word(get(r->block, "score_switch"), "field");
    if (family_field(r->c->family, field)) return;
    for (size_t i = 0; i < json_array_size(by_tensor); i++) {
        const json_t *pair = json_array_get(by_tensor, i);
        if (!block_find(r, text_at(pair, 0), 0)) continue;
        r->out->moe.score = strcmp(text_at(pair, 1), "sigmoid") == 0 ? MOEWE_SCORE_SIGMOID : MOEWE_SCORE_SOFTMAX;
        return;
    }
    if (renormalize_known)
        r->out->moe.score = MOEWE_SCORE_SOFTMAX;
    else
        add(missing, field, "softmax, sigmoid or sqrtsoftplus");
}

/* How groups rank: the field that says so, else the score, as all families that are known do. */
static void decide_groups(const block_reader *r, const json_t *u, open_points *missing)
{
    moewe_config *m = &r->out->moe;
    const char *field = word(u, "group_method"), *method;
    if (m->n_group <= 1) return;
    method = json_string_value(family_field(r->c->family, field));
    int32_t of_group = m->n_experts / m->n_group;
    if (method && strcmp(method, "greedy") == 0)
        m->n_group = m->top_group = m->group_best = 0;
    else if (method && strcmp(method, "group_limited_greedy") == 0)
        m->group_best = 1;
    else if ((method && strcmp(method, "noaux_tc") == 0) || (!method && m->score == MOEWE_SCORE_SIGMOID))
        m->group_best = of_group > 1 ? 2 : 1;
    else
        add(missing, field, "greedy, group_limited_greedy or noaux_tc");
}

int unknown_decide(const block_reader *r)
{
    const json_t *u = get(r->block, "unknown"), *renorm = get(get(r->block, "renorm"), "field");
    open_points missing = {{0}, 0};
    int renormalize_known = first_field(r, renorm) != NULL;
    if (check_fields(r, get(u, "stops"))) return -1;
    decide_score(r, u, renormalize_known, &missing);
    if (!renormalize_known) add(&missing, text_at(renorm, 0), "true or false");
    if (!first_field(r, get(u, "act"))) add(&missing, text_at(get(u, "act"), 0), "the name of an activation");
    decide_groups(r, u, &missing);
    if (!missing.n) return 0;
    return fmt_fail(r->e, "%.200s: model_type '%.60s' is not known, and fields and tensors do not decide: missing %s",
                    r->c->file, r->c->model_type, missing.text);
}

static int by_address(const void *a, const void *b)
{
    const st_tensor *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

/* Length of what the names of the block's tensors begin with: the router's name without its last part. */
static size_t block_prefix(const block_reader *r, const st_tensor **router)
{
    const json_t *names = get(r->block, "router");
    for (size_t i = 0; i < json_array_size(names); i++) {
        *router = block_find(r, text_at(names, i), 0);
        if (*router) return strlen((*router)->name) - strlen(text_at(names, i));
    }
    return 0;
}

/* A tensor beside the block that by its name belongs to it: "post_mlp_layernorm", "shared_mlp.". */
static int is_sibling(const block_reader *r, const char *rest)
{
    const json_t *disks = get(r->block, "disk");
    char part[32];
    for (size_t i = 0; i < json_array_size(disks); i++) {
        snprintf(part, sizeof part, "%s", text_at(disks, i));
        part[strcspn(part, ".")] = '\0';
        if (strstr(rest, part)) return 1;
    }
    return strstr(rest, "expert") != NULL;
}

int unknown_check(const block_reader *r)
{
    const st_tensor *router = NULL;
    size_t n = block_prefix(r, &router), layer = n ? n - 1 : 0;
    if (!router) return 0;
    while (layer && router->name[layer - 1] != '.') layer--;
    qsort(r->used->list, r->used->n, sizeof *r->used->list, by_address);
    for (size_t i = 0; i < st_count(r->s); i++) {
        const st_tensor *t = st_at(r->s, i);
        if (strncmp(t->name, router->name, layer) != 0) continue;
        if (strncmp(t->name, router->name, n) != 0 && !is_sibling(r, t->name + layer)) continue;
        if (bsearch(&t, r->used->list, r->used->n, sizeof *r->used->list, by_address)) continue;
        return fmt_fail(r->e, "%.200s: model_type '%.60s' is not known, and nothing says what tensor '%.120s' is for",
                        t->file, r->c->model_type, t->name);
    }
    return 0;
}
