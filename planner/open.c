/* open.c - opens a model for planning: a file, a folder or a built-in name; owns the JSON and what is said of it. */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <strings.h>
#include <sys/stat.h>

#include "../formats/file.h"
#include "../formats/gguf.h"
#include "known.h"

enum { CONFIG_MOST = 16 << 20 };

/* ---- built-in models ---------------------------------------------------------------------------------------- */

const char *planner_known_name(size_t index)
{
    return index < planner_known_count ? planner_known_models[index].name : NULL;
}

/* hf_id may be followed by a remark in brackets. */
static int same_id(const char *id, const char *name)
{
    size_t length = strcspn(id, " ");
    const char *slash = memchr(id, '/', length);
    if (strncasecmp(id, name, length) == 0 && !name[length]) return 1;
    if (!slash) return 0;
    length -= (size_t)(slash + 1 - id);
    return strncasecmp(slash + 1, name, length) == 0 && !name[length];
}

/* The id stands in the file's first 256 bytes; parsing 46 files to find one would cost more than the plan. */
static int is_known(const planner_known_model *k, const char *name)
{
    static const char key[] = "\"hf_id\": \"";
    char head[256];
    size_t n = k->bytes < sizeof head - 1 ? k->bytes : sizeof head - 1;
    if (strcasecmp(k->name, name) == 0) return 1;
    memcpy(head, k->json, n);
    head[n] = '\0';
    char *id = strstr(head, key);
    if (!id) return 0;
    id += sizeof key - 1;
    id[strcspn(id, "\"")] = '\0';
    return same_id(id, name);
}

static int open_known(planner_model *m, const char *name, fmt_error *e)
{
    for (size_t i = 0; i < planner_known_count; i++) {
        const planner_known_model *k = &planner_known_models[i];
        json_error_t bad;
        if (!is_known(k, name)) continue;
        m->root = json_loadb((const char *)k->json, k->bytes, JSON_REJECT_DUPLICATES, &bad);
        if (!m->root) return fmt_fail(e, "%s (built in): line %d: %s", k->name, bad.line, bad.text);
        size_t length = strlen(k->name) + sizeof " (built in)";
        m->file = malloc(length);
        if (!m->file) return fmt_fail(e, "%s: no memory for its name", k->name);
        snprintf(m->file, length, "%s (built in)", k->name);
        return 0;
    }
    return fmt_fail(
        e, "%.300s: there is no such file, and no model of that name is built in (%zu are, such as %s and %s)", name,
        planner_known_count, planner_known_models[0].name, planner_known_models[planner_known_count / 2].name);
}

/* ---- files ---------------------------------------------------------------------------------------------------- */

static int open_file(planner_model *m, const char *path, int is_dir, fmt_error *e)
{
    int absent = 0;
    m->file = is_dir ? fmt_path_join(path, "config.json", e) : strdup(path);
    if (!m->file) return is_dir ? -1 : fmt_fail(e, "%.300s: no memory for its name", path);
    m->root = fmt_json_load(m->file, CONFIG_MOST, NULL, e);
    if (!m->root || !is_dir) return m->root ? 0 : -1;
    char *quant = fmt_path_join(path, "hf_quant_config.json", e);
    if (!quant) return -1;
    m->hf = fmt_json_load(quant, CONFIG_MOST, &absent, e);
    free(quant);
    return m->hf || absent ? 0 : -1;
}

static int open_path(planner_model *m, const char *path, fmt_error *e)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        if (gguf_locate(path, &m->file, e)) return -1;
        if (!m->file) return open_file(m, path, S_ISDIR(st.st_mode), e);
        m->root = gguf_config(m->file, e);
        return m->root ? 0 : -1;
    }
    if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG) return open_known(m, path, e);
    return fmt_fail(e, "%.300s: cannot be examined: %s", path, strerror(errno));
}

/* ---- facts ------------------------------------------------------------------------------------------------------ */

static int64_t max_position(const family *f)
{
    static const char *const names[] = {"max_position_embeddings", "max_seq_len", "n_positions", "seq_length",
                                        "max_sequence_length"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = family_field(f, names[i]);
        if (json_is_integer(v) && json_integer_value(v) > 0) return (int64_t)json_integer_value(v);
    }
    return 0;
}

static int count(void *ctx, const planner_tensor *t)
{
    planner_facts *f = ctx;
    uint64_t elements;
    if (__builtin_mul_overflow(t->rows, t->cols, &elements) || __builtin_mul_overflow(elements, t->count, &elements) ||
        planner_add(&f->params, elements))
        return -1;
    if (t->of_expert && t->matrix) f->routed_params += elements;
    return 0;
}

static int facts_fill(planner_model *m, fmt_error *e)
{
    static const planner_shard whole = {.tp = 1, .ep = 1, .dp = 1, .expert_tp = 1, .gathered = 1, .kv_copies = 1};
    planner_facts *f = &m->facts;
    f->file = m->file;
    f->model_type = family_model_type(m->family);
    f->family = family_name(m->family);
    f->exact = family_exact(m->family);
    f->quant = m->quant.method;
    f->n_layers = family_layers(m->family);
    f->max_position = max_position(m->family);
    f->gated = planner_is_gated(m);
    for (int32_t i = 0; i < f->n_layers; i++) {
        moewe_config c;
        if (!family_is_moe(m->family, i)) continue;
        f->n_moe_layers++;
        if (planner_moe_of(m, &whole, i, &c, e)) return -1;
        if (c.n_experts > f->n_experts) f->n_experts = c.n_experts;
        if (c.inter > f->inter) f->inter = c.inter;
        if (c.shared_inter > f->shared_inter) f->shared_inter = c.shared_inter;
        f->latent = c.latent;
        f->n_null = c.n_null;
        f->top_k = c.top_k;
    }
    int64_t hidden;
    if (family_int(m->family, 0, "H", 1, 1 << 24, &hidden, e)) return -1;
    f->hidden = hidden;
    fmt_error why = {""};
    if (planner_walk(m, &whole, count, f, &why))
        return why.text[0] ? fmt_fail(e, "%s", why.text) : fmt_fail(e, "%s: more than 2^64 parameters", m->file);
    return 0;
}

/* ---- open --------------------------------------------------------------------------------------------------------- */

static int model_open(planner_model *m, const char *path, fmt_error *e)
{
    if (open_path(m, path, e)) return -1;
    const json_t *config = json_object_get(m->root, "config");
    if (!json_is_object(config) || json_object_get(m->root, "model_type")) config = m->root;
    if (family_open(config, m->file, &m->family, e)) return -1;
    if (weight_quant_read(config, family_text_config(m->family), m->hf, m->file, &m->quant, e)) return -1;
    return facts_fill(m, e);
}

int planner_open(const char *path, planner_model **out, fmt_error *e)
{
    planner_model *m = calloc(1, sizeof *m);
    if (!m) return fmt_fail(e, "%.300s: no memory to plan it", path);
    if (model_open(m, path, e)) {
        planner_close(m);
        return -1;
    }
    *out = m;
    return 0;
}

void planner_close(planner_model *m)
{
    if (!m) return;
    weight_quant_free(&m->quant);
    family_close(m->family);
    json_decref(m->hf);
    json_decref(m->root);
    free(m->file);
    free(m);
}

const planner_facts *planner_model_facts(const planner_model *m)
{
    return &m->facts;
}
