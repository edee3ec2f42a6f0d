/* cases.c - owns the run over tests/data/cases.json: one test a case, and the account of what is run and what is
 * not_here.json's.  It must never let a case or one of its expectations be in neither, or in both. */
#include "case_planner.h"

#include <stdio.h>
#include <string.h>

static json_t *cases, *not_here;

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);

    if (!root) fail_msg("test: %s:%d: %s", path, error.line, error.text);
    return root;
}

static const entry *const tables[] = {layer_entries,   route_entries, edge_entries,     sizing_entries,
                                      manager_entries, limit_entries, parallel_entries, planner_entries};

static const entry *entry_of(const char *id)
{
    const entry *found = NULL;

    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (const entry *e = tables[t]; e->id; e++)
            if (!strcmp(e->id, id)) {
                CHECK(!found, "%s has two runners", id);
                found = e;
            }
    return found;
}

static int is_checked(const accident *a, const char *what)
{
    for (int i = 0; i < a->n_checked; i++)
        if (!strcmp(a->checked[i], what)) return 1;
    return 0;
}

/* What the case expects was asked for by its runner, or not_here.json says why not; not both. */
static void accounted(const accident *a, const char *what)
{
    char name[128];
    int listed;

    snprintf(name, sizeof name, "%s.%s", a->id, what);
    listed = json_object_get(not_here, name) != NULL;
    CHECK(listed || is_checked(a, what), "%s: nobody checked its %s", a->id, what);
    CHECK(!(listed && is_checked(a, what)), "%s: %s is checked, and not_here.json says that it cannot be", a->id, what);
}

static void all_accounted(const accident *a)
{
    static const char *const sections[] = {"exact", "min", "max"};
    static const char *const whole[] = {"out",           "ids",         "weights",         "act_out",
                                        "accept_reject", "error_class", "error_must_name", "sum_over_ranks"};
    char what[CHECKED_CHARS];
    const json_t *value_;
    const char *key;

    for (size_t s = 0; s < 3; s++) json_object_foreach(json_object_get(a->expect, sections[s]), key, value_)
        {
            snprintf(what, sizeof what, "%s.%s", sections[s], key);
            accounted(a, what);
        }
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (json_object_get(a->expect, whole[i])) accounted(a, whole[i]);
    for (size_t i = 0; i < json_array_size(json_object_get(a->expect, "props")); i++) {
        snprintf(what, sizeof what, "props.%zu", i);
        accounted(a, what);
    }
}

static void run_case(void **state)
{
    const json_t *c = *state;
    backend_list list = cpu_backends();
    const entry *e = entry_of(json_string_value(json_object_get(c, "id")));
    accident a = {.id = e->id, .params = json_object_get(c, "params"), .expect = json_object_get(c, "expect")};

    for (int32_t b = 0; b < (e->once ? 1 : list.n); b++) {
        moewe_device *dev = open_backend(list.name[b], 2);

        a.backend = list.name[b];
        a.dev = dev;
        e->run(&a);
        moewe_device_close(dev);
    }
    all_accounted(&a);
}

/* The generator of the conventions, on the numbers that they give. */
static void the_generator(void **state)
{
    const json_t *check = json_object_get(json_object_get(*state, "conventions"), "generator_check");
    const json_t *first = json_object_get(check, "first4");

    assert_int_equal(json_array_size(first), 4);
    for (size_t i = 0; i < 4; i++)
        assert_true((double)value((uint64_t)number(check, "seed"), i, real_or(check, "scale", 0.0)) ==
                    real_at(first, i));
}

/* Every case is run or listed and no case is both; every name in the list and in the tables is one of a case. */
static void every_case(void **state)
{
    const json_t *list = json_object_get(*state, "cases"), *c, *reason;
    size_t i, run = 0, listed = 0;
    json_t *known = json_object();
    const char *name;

    json_array_foreach(list, i, c)
    {
        const char *id = json_string_value(json_object_get(c, "id"));
        int here = entry_of(id) != NULL, away = json_object_get(not_here, id) != NULL;

        CHECK(here || away, "%s is neither run nor listed", id);
        CHECK(!(here && away), "%s is run, and not_here.json says that it cannot be", id);
        json_object_set_new(known, id, json_integer(here));
        run += (size_t)here;
        listed += (size_t)away;
    }
    json_object_foreach(not_here, name, reason)
    {
        char id[16];
        const char *dot = strchr(name, '.');

        CHECK(json_is_string(reason) && json_string_length(reason) > 10, "not_here.json: %s has no reason", name);
        snprintf(id, sizeof id, "%.*s", (int)(dot ? dot - name : (long)strlen(name)), name);
        CHECK(json_object_get(known, id), "not_here.json: %s is of no case", name);
        /* parts of a case that is not run at all need no line of their own */
        CHECK(!dot || json_integer_value(json_object_get(known, id)), "not_here.json: %s: the case is listed too",
              name);
    }
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (const entry *e = tables[t]; e->id; e++)
            CHECK(json_object_get(known, e->id), "%s has a runner and is no case", e->id);
    json_decref(known);
    print_message("%zu cases: %zu run, %zu listed in not_here.json\n", json_array_size(list), run, listed);
    assert_int_equal(run + listed, json_array_size(list));
}

/* A listed part must be a part that the case has. */
static void listed_parts(void **state)
{
    const json_t *list = json_object_get(*state, "cases"), *c, *reason;
    const char *name;
    size_t i;

    json_object_foreach(not_here, name, reason)
    {
        const char *dot = strchr(name, '.'), *second;
        int found = !dot;

        if (!dot) continue;
        second = strchr(dot + 1, '.');
        json_array_foreach(list, i, c)
        {
            const char *id = json_string_value(json_object_get(c, "id"));
            const json_t *expect = json_object_get(c, "expect"), *part;
            char section[CHECKED_CHARS];

            if (strncmp(id, name, (size_t)(dot - name)) || id[dot - name]) continue;
            snprintf(section, sizeof section, "%.*s", (int)(second ? second - dot - 1 : (long)strlen(dot + 1)),
                     dot + 1);
            part = json_object_get(expect, section);
            if (part && second && json_is_array(part)) part = json_array_get(part, (size_t)atoi(second + 1));
            if (part && second && json_is_object(part)) part = json_object_get(part, second + 1);
            found = part != NULL;
        }
        CHECK(found, "not_here.json: %s is no expectation of the case", name);
    }
}

int main(void)
{
    struct CMUnitTest tests[256];
    const json_t *c;
    size_t n = 3, i;
    int failed;

    cases = load(MOEWE_SOURCE_DIR "/tests/data/cases.json");
    not_here = load(MOEWE_SOURCE_DIR "/tests/cases/not_here.json");
    tests[0] = (struct CMUnitTest){"the_generator", the_generator, NULL, NULL, cases};
    tests[1] = (struct CMUnitTest){"every_case", every_case, NULL, NULL, cases};
    tests[2] = (struct CMUnitTest){"listed_parts", listed_parts, NULL, NULL, cases};
    json_array_foreach(json_object_get(cases, "cases"), i, c)
    {
        const char *id = json_string_value(json_object_get(c, "id"));

        if (n == sizeof tests / sizeof tests[0] || !entry_of(id)) continue;
        tests[n++] = (struct CMUnitTest){id, run_case, NULL, NULL, (void *)(uintptr_t)c};
    }
    failed = _cmocka_run_group_tests("cases", tests, n, NULL, NULL);
    json_decref(cases);
    json_decref(not_here);
    return failed;
}
