/* support.c - see support.h. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

st_store *reference_open(const char *dir)
{
    char path[1024];
    st_store *s = NULL;
    fmt_error e = {""};
    snprintf(path, sizeof path, "%s/reference.safetensors", dir);
    if (st_open(path, &s, &e)) fail_msg("%s", e.text);
    return s;
}

static const st_tensor *tensor(const st_store *s, const char *name)
{
    const st_tensor *t = st_find(s, name);
    if (!t) fail_msg("the reference has no tensor %s", name);
    return t;
}

static int64_t elements(const st_tensor *t)
{
    int64_t n = 1;
    for (int32_t i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

int32_t *reference_ids(const st_store *s, const char *name, int32_t *count)
{
    const st_tensor *t = tensor(s, name);
    int64_t n = elements(t);
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    assert_non_null(ids);
    assert_true(t->dtype == ST_I32 || t->dtype == ST_I64);
    for (int64_t i = 0; i < n; i++) {
        int64_t wide = 0;
        if (t->dtype == ST_I64)
            memcpy(&wide, (const char *)t->data + 8 * i, 8);
        else
            memcpy(&ids[i], (const char *)t->data + 4 * i, 4);
        if (t->dtype == ST_I64) ids[i] = (int32_t)wide;
    }
    *count = (int32_t)n;
    return ids;
}

float *reference_floats(const st_store *s, const char *name, int64_t *count)
{
    const st_tensor *t = tensor(s, name);
    float *v = malloc((size_t)t->bytes);
    assert_non_null(v);
    assert_int_equal(t->dtype, ST_F32);
    memcpy(v, t->data, (size_t)t->bytes);
    *count = elements(t);
    return v;
}

engine *engine_with(const char *dir, engine_options o)
{
    engine *g = NULL;
    fmt_error e = {""};
    if (engine_open(dir, &o, &g, &e)) fail_msg("engine_open: %s", e.text);
    return g;
}

void prompt_run(engine *g, int32_t seq, const int32_t *ids, int32_t n, int32_t chunk, int32_t n_rows, float *out)
{
    int32_t vocab = engine_config(g)->vocab;
    int32_t *seqs = malloc((size_t)chunk * sizeof *seqs), *pos = malloc((size_t)chunk * sizeof *pos);
    uint8_t *want = malloc((size_t)chunk);
    fmt_error e = {""};
    assert_true(seqs && pos && want);
    for (int32_t at = 0; at < n; at += chunk) {
        engine_batch b = {n - at < chunk ? n - at : chunk, ids + at, seqs, pos, want};
        int32_t wanted = 0;
        for (int32_t i = 0; i < b.n_tokens; i++) {
            seqs[i] = seq;
            pos[i] = at + i;
            want[i] = at + i >= n - n_rows;
        }
        if (engine_forward(g, &b, &e)) fail_msg("engine_forward: %s", e.text);
        for (int32_t i = 0; i < b.n_tokens; i++)
            if (want[i])
                memcpy(out + (int64_t)(at + i - (n - n_rows)) * vocab, engine_logits(g, wanted++),
                       (size_t)vocab * sizeof *out);
    }
    free(seqs);
    free(pos);
    free(want);
}

double relative_error(const float *a, const float *b, int64_t n)
{
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}
