/* accident.c - owns reading a case, keeping count of its expectations, and the documented generator.  It must never
 * take an expected value from the library. */
#include "accident.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* ---- parameters ---- */

int64_t number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    CHECK(json_is_number(v), "test: the case has no number '%s'", key);
    return (int64_t)json_number_value(v);
}

int64_t number_or(const json_t *object, const char *key, int64_t otherwise)
{
    return json_is_number(json_object_get(object, key)) ? number(object, key) : otherwise;
}

double real_or(const json_t *object, const char *key, double otherwise)
{
    const json_t *v = json_object_get(object, key);

    return json_is_number(v) ? json_number_value(v) : otherwise;
}

const char *text_or(const json_t *object, const char *key, const char *otherwise)
{
    const json_t *v = json_object_get(object, key);

    return json_is_string(v) ? json_string_value(v) : otherwise;
}

double real_at(const json_t *array, size_t i)
{
    const json_t *v = json_array_get(array, i);

    CHECK(json_is_number(v), "test: element %zu is no number", i);
    return json_number_value(v);
}

double logit_at(const json_t *array, size_t i)
{
    const json_t *v = json_array_get(array, i);

    return json_is_string(v) && !strcmp(json_string_value(v), "nan") ? NAN : real_at(array, i);
}

/* ---- expectations ---- */

void checked(accident *a, const char *format, ...)
{
    char what[CHECKED_CHARS];
    va_list args;

    va_start(args, format);
    CHECK(vsnprintf(what, sizeof what, format, args) < (int)sizeof what, "test: raise CHECKED_CHARS");
    va_end(args);
    for (int i = 0; i < a->n_checked; i++)
        if (!strcmp(a->checked[i], what)) return;
    CHECK(a->n_checked < CHECKED_MAX, "test: raise CHECKED_MAX");
    memcpy(a->checked[a->n_checked++], what, sizeof what);
}

int has_expectation(const accident *a, const char *section, const char *key)
{
    return json_object_get(json_object_get(a->expect, section), key) != NULL;
}

void expects(accident *a, const char *section, const char *key, uint64_t got)
{
    uint64_t want = (uint64_t)number(json_object_get(a->expect, section), key);
    int fine = !strcmp(section, "max") ? got <= want : !strcmp(section, "min") ? got >= want : got == want;

    CHECK(fine, "%s on %s: %s is %llu, needs %s %llu", a->id, a->backend, key, (unsigned long long)got, section,
          (unsigned long long)want);
    checked(a, "%s.%s", section, key);
}

void refused_as(accident *a, moewe_status status)
{
    static const struct {
        const char *class;
        moewe_status status[3]; /* MOEWE_OK: no more */
    } table[] = {
        {"bad_argument", {MOEWE_E_ARG}},
        {"bad_shape", {MOEWE_E_ARG}},
        {"unsupported", {MOEWE_E_UNSUPPORTED}},
        {"capacity", {MOEWE_E_RANGE}},
        {"workspace_too_small", {MOEWE_E_WS_SMALL}},
        {"locked", {MOEWE_E_WS_STATE, MOEWE_E_WS_SMALL, MOEWE_E_ARG}},
        {"out_of_range_id", {MOEWE_E_ARG}},
    };
    const char *class = text_or(a->expect, "error_class", "");

    one_sentence();
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (int s = 0; s < 3 && !strcmp(class, table[i].class); s++)
            if (table[i].status[s] && table[i].status[s] == status) {
                checked(a, "error_class");
                return;
            }
    fail_msg("%s on %s: %s is no '%s': %s", a->id, a->backend, moewe_status_name(status), class, moewe_last_error());
}

void expects_rows(accident *a, const char *key, const float *y, int64_t stride)
{
    const json_t *rows = json_object_get(a->expect, key);
    double tol = real_or(a->expect, "tol", 0.0);

    CHECK(json_array_size(rows) > 0, "test: %s has no rows '%s'", a->id, key);
    for (size_t t = 0; t < json_array_size(rows); t++)
        for (size_t i = 0; i < json_array_size(json_array_get(rows, t)); i++) {
            double want = real_at(json_array_get(rows, t), i);
            double got = ref_load((const char *)y + (int64_t)t * stride + (int64_t)i * 4, MOEWE_DTYPE_F32);

            CHECK(fabs(got - want) <= tol, "%s on %s: %s[%zu][%zu] is %.9g, needs %.9g within %g", a->id, a->backend,
                  key, t, i, got, want, tol);
        }
    checked(a, "%s", key);
}

/* ---- the generator ---- */

float value(uint64_t seed, uint64_t i, double scale)
{
    uint64_t z = seed * 0xD1342543DE82EF95u + (i + 1) * 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)((2.0 * ((double)(z >> 40) / 16777216.0) - 1.0) * scale);
}

void fill_values(float *p, uint64_t n, uint64_t seed, double scale)
{
    for (uint64_t i = 0; i < n; i++) p[i] = value(seed, i, scale);
}

/* ---- layers ---- */

int32_t activation_of(const char *name)
{
    static const struct {
        const char *name;
        int32_t act;
    } table[] = {{"swiglu", MOEWE_ACT_SWIGLU},
                 {"swiglu_oai", MOEWE_ACT_SWIGLU_OAI},
                 {"swiglu_clip_after", MOEWE_ACT_SWIGLU_STEP},
                 {"relu2", MOEWE_ACT_RELU2}};

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(name, table[i].name)) return table[i].act;
    fail_msg("test: unknown activation '%s'", name);
    return -1;
}

moewe_config config_of(const json_t *object)
{
    moewe_config cfg;

    MOEWE_INIT(cfg);
    cfg.hidden = (int32_t)number_or(object, "hidden", 8);
    cfg.inter = (int32_t)number_or(object, "intermediate", 4);
    cfg.n_experts = (int32_t)number_or(object, "experts", 4);
    cfg.top_k = (int32_t)number_or(object, "top_k", 2);
    cfg.act = activation_of(text_or(object, "activation", "swiglu"));
    cfg.score = MOEWE_SCORE_GIVEN;
    cfg.max_tokens = 1;
    cfg.name = "accident";
    return cfg;
}

moewe_status try_layer(const moewe_device *dev, const moewe_config *cfg, const moewe_weights *w, const moewe_io *io,
                       int pattern)
{
    moewe_plan *plan;
    moewe_need need;
    moewe_span ws;
    moewe_status s = moewe_plan_create(dev, cfg, &plan);

    if (s) return s;
    CHECK_OK(moewe_plan_need(plan, &need));
    ws = (moewe_span){must_alloc(need.bytes, need.align), need.bytes};
    fill_pattern(ws.ptr, ws.bytes, pattern);
    s = moewe_run(plan, w, io, ws, NULL);
    free(ws.ptr);
    moewe_plan_destroy(plan);
    return s;
}

uint64_t need_of(const moewe_device *dev, const moewe_config *cfg)
{
    moewe_plan *plan;
    moewe_need need;

    CHECK_OK(moewe_plan_create(dev, cfg, &plan));
    CHECK_OK(moewe_plan_need(plan, &need));
    moewe_plan_destroy(plan);
    return need.bytes;
}

uint64_t region_of(const moewe_device *dev, const moewe_config *cfg, const char *name)
{
    moewe_plan *plan;
    moewe_region r;
    uint64_t bytes = 0;

    CHECK_OK(moewe_plan_create(dev, cfg, &plan));
    for (int32_t i = 0; i < moewe_plan_region_count(plan); i++) {
        CHECK_OK(moewe_plan_region(plan, i, &r));
        if (!strcmp(r.name, name)) bytes = r.bytes;
    }
    moewe_plan_destroy(plan);
    return bytes;
}

void *sparse(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    CHECK(p != MAP_FAILED, "test: no address space of %llu bytes", (unsigned long long)bytes);
    return p;
}

void sparse_free(void *p, uint64_t bytes)
{
    munmap(p, bytes);
}

moewe_weights thin_weights(const moewe_config *cfg, thin *t)
{
    enum { DISTINCT = 3, PERIOD = 8191 }; /* no multiple of any width */
    uint64_t n = (uint64_t)cfg->hidden * (uint64_t)cfg->inter, all = n + DISTINCT * 16;
    int32_t size = dtype_size(cfg->w_dtype), held = cfg->n_local ? cfg->n_local : cfg->n_experts;
    double scale = sqrt(3.0 / cfg->hidden);
    moewe_weights w;
    char *p;

    MOEWE_INIT(w);
    t->block = p = must_alloc(all * (uint64_t)size, 64);
    for (uint64_t i = 0; i < all && i < PERIOD; i++) store(p + i * (uint64_t)size, cfg->w_dtype, value(2, i, scale));
    for (uint64_t done = PERIOD; done < all; done *= 2)
        memcpy(p + done * (uint64_t)size, p, (done < all - done ? done : all - done) * (uint64_t)size);
    t->experts = must_alloc((uint64_t)held * sizeof *t->experts, 8);
    for (int32_t e = 0; e < held; e++) t->experts[e] = p + e % DISTINCT * 16 * size;
    w.up.experts = w.down.experts = t->experts;
    w.up.dtype = w.down.dtype = cfg->w_dtype ? cfg->w_dtype : MOEWE_DTYPE_F32;
    if (ref_gated(cfg->act)) w.gate = w.up;
    return w;
}

void thin_free(thin *t)
{
    free(t->block);
    free(t->experts);
}
