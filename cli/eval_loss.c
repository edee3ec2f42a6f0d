/* eval_loss.c - runs token ids through an engine of their length and adds up what the model did not expect. */
#include "eval_loss.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../engine/engine.h"
#include "block.h"
#include "text_model.h"

enum { AT_ONCE = 256 }; /* rows whose logits are held */

typedef struct loss_job {
    st_store *store;
    engine *engine;
    int32_t *ids, *seq, *pos;
    uint8_t *want;
    int32_t n;
} loss_job;

static double token_loss(const float *logits, int32_t vocab, int32_t target)
{
    double high = logits[0], sum = 0;
    for (int32_t i = 1; i < vocab; i++) high = logits[i] > high ? logits[i] : high;
    for (int32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - high);
    return log(sum) + high - logits[target];
}

static int read_ids(loss_job *j, const char *where)
{
    fmt_error e;
    const char *colon = strrchr(where, ':');
    char shape[96];
    if (!colon) return cli_fail("--loss is '%s', the name of a file, a colon and that of a tensor are expected", where);
    char *path = strndup(where, (size_t)(colon - where));
    if (!path) return cli_fail("no memory for a path");
    int bad = st_open(path, &j->store, &e);
    free(path);
    if (bad) return cli_fail("--loss: %s", e.text);
    const st_tensor *t = st_find(j->store, colon + 1);
    uint64_t n = 1;
    for (int32_t i = 0; t && i < t->rank; i++) n *= (uint64_t)t->shape[i];
    if (!t) return cli_fail("--loss: '%s': the file has no such tensor, token ids are expected", where);
    st_shape_text(t, shape, sizeof shape);
    if ((t->dtype != ST_I32 && t->dtype != ST_I64) || n < 2 || n > INT32_MAX)
        return cli_fail("--loss: '%s' is %s %s, at least two token ids in I32 or I64 are expected", where,
                        st_dtype_name(t->dtype), shape);
    j->n = (int32_t)n;
    j->ids = cli_ids(t, n);
    j->seq = calloc(n, sizeof *j->seq);
    j->pos = malloc(n * sizeof *j->pos);
    j->want = malloc(n);
    if (!j->ids || !j->seq || !j->pos || !j->want) return cli_fail("no memory for %llu token ids", (unsigned long long)n);
    for (int32_t i = 0; i < j->n; i++) j->pos[i] = i;
    memset(j->want, 1, n);
    return CLI_OK;
}

static int check_ids(const loss_job *j, const char *where, int32_t vocab)
{
    for (int32_t i = 0; i < j->n; i++) {
        if (j->ids[i] < 0) /* what cli_ids makes of all that is no int32_t from 0 on */
            return cli_fail("--loss: '%s': element %d is below 0 or has more than 31 bits, 0 to %d is expected", where, (int)i,
                            (int)vocab - 1);
        if (j->ids[i] >= vocab)
            return cli_fail("--loss: '%s': element %d is %d, 0 to %d is expected", where, (int)i, (int)j->ids[i], (int)vocab - 1);
    }
    return CLI_OK;
}

static int run(loss_job *j, const char *dir, const char *where, const cli_common *common, double *mean)
{
    fmt_error e;
    const engine_options o = {.backend = common->backend,
                              .threads = common->threads,
                              .dtype = common->dtype,
                              .context = j->n,
                              .max_batch = AT_ONCE,
                              .max_logits = AT_ONCE,
                              .workspace_limit = common->workspace_limit};
    double sum = 0;
    if (engine_open(dir, &o, &j->engine, &e)) return cli_fail("%s", e.text);
    int32_t vocab = engine_config(j->engine)->vocab;
    int status = check_ids(j, where, vocab);
    if (status) return status;
    for (int32_t at = 0; at < j->n - 1; at += AT_ONCE) { /* of the last token nothing follows */
        int32_t n = j->n - 1 - at < AT_ONCE ? j->n - 1 - at : AT_ONCE;
        const engine_batch b = {n, j->ids + at, j->seq, j->pos + at, j->want};
        if (engine_forward(j->engine, &b, &e)) return cli_fail("%s", e.text);
        for (int32_t i = 0; i < n; i++) sum += token_loss(engine_logits(j->engine, i), vocab, j->ids[at + i + 1]);
    }
    *mean = sum / (j->n - 1);
    return CLI_OK;
}

int eval_loss(const char *dir, const cli_common *common, const char *where, int stats)
{
    loss_job j = {0};
    double mean = 0;
    int status = read_ids(&j, where);
    if (!status) status = run(&j, dir, where, common, &mean);
    if (!status && stats) {
        const text_model m = {.config = *engine_config(j.engine), .engine = j.engine};
        text_model_print_memory(&m);
    }
    if (!status) printf("mean loss %.5f over %d tokens\n", mean, (int)j.n - 1);
    engine_close(j.engine);
    st_close(j.store);
    free(j.ids);
    free(j.seq);
    free(j.pos);
    free(j.want);
    return status;
}
