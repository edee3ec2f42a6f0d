/* fuzz_planner.c - any bytes as config.json, and behind a NUL the numbers of a question, down to the planner's answer.
 * Its sums are done again in 128 bits, and its verdict must follow from its own numbers. */
#include <string.h>

#include "../planner/planner.h"
#include "fuzz.h"

static planner_ask make_ask(fuzz_reader *r)
{
    planner_ask a;
    memset(&a, 0, sizeof a);
    a.kv_fp8 = fuzz_range(r, -1, 1);
    a.dtype = fuzz_range(r, 0, 1) ? MOEWE_DTYPE_F32 : MOEWE_DTYPE_BF16;
    a.tokens = fuzz_range(r, 0, 3) ? fuzz_range(r, 1, 65536) : fuzz_range(r, 1, INT32_MAX);
    a.context = fuzz_range(r, 0, 3) ? fuzz_range(r, 0, 65535) : fuzz_range(r, 0, INT32_MAX);
    a.sequences = fuzz_range(r, 0, 3) ? fuzz_range(r, 0, 255) : fuzz_range(r, 0, INT32_MAX);
    a.tp = fuzz_range(r, 0, 1) ? fuzz_range(r, 0, 16) : fuzz_range(r, 0, 4096);
    a.ep = fuzz_range(r, 0, 1) ? fuzz_range(r, 0, 64) : fuzz_range(r, 0, 4096);
    a.dp = fuzz_range(r, 0, 3) ? 0 : fuzz_range(r, 0, 4096);
    a.lanes = fuzz_range(r, 0, 4096);
    a.workspace_limit = fuzz_range(r, 0, 1) ? 0 : fuzz_take(r, 8) >> fuzz_range(r, 0, 48);
    a.memory = fuzz_range(r, 0, 1) ? 0 : fuzz_take(r, 8) >> fuzz_range(r, 0, 48);
    a.utilization = (double)fuzz_range(r, 0, 100) / 100.0;
    return a;
}

static void check_answer(const planner_plan *p)
{
    unsigned __int128 parts = 0;
    for (int i = 0; i < PLANNER_PART_COUNT; i++) fuzz_check_sentence(planner_part_name((planner_part)i), 64);
    FUZZ_MUST(p->scales <= p->weights);
    FUZZ_MUST(!p->workspace_floor == !p->workspace && p->workspace_floor <= p->workspace_fast); /* none without experts */
    FUZZ_MUST(p->workspace >= p->workspace_floor);
    if (p->ask.workspace_limit) FUZZ_MUST(p->workspace <= p->ask.workspace_limit);
    FUZZ_MUST(p->ask.lanes > 0 && (unsigned __int128)p->workspace * (unsigned)p->ask.lanes == p->workspaces);
    parts = (unsigned __int128)p->weights + p->kv + p->state + p->workspaces;
    FUZZ_MUST(parts == p->total);
    if (!p->budget) return;
    FUZZ_MUST(p->fits == (p->total <= p->budget) && (!p->left || !p->short_by));
    FUZZ_MUST(p->fits ? p->left == p->budget - p->total : p->short_by == p->total - p->budget);
    FUZZ_MUST(strnlen(p->change, sizeof p->change) < sizeof p->change);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    planner_model *m = NULL;
    static planner_plan plan;
    fmt_error e;
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t first = cut ? (size_t)(cut - data) : size;
    fuzz_reader r = {cut ? cut + 1 : data, cut ? size - first - 1 : 0};
    memset(&e, 0, sizeof e);
    fuzz_write("config.json", data, first);
    if (planner_open(fuzz_path("config.json"), &m, &e)) {
        fuzz_check_sentence(e.text, sizeof e.text);
        return 0;
    }
    const planner_facts *facts = planner_model_facts(m);
    FUZZ_MUST(facts && facts->routed_params <= facts->params && facts->n_moe_layers <= facts->n_layers);
    planner_ask ask = make_ask(&r);
    if (planner_make(m, &ask, fuzz_device(1), &plan, &e))
        fuzz_check_sentence(e.text, sizeof e.text);
    else
        check_answer(&plan);
    planner_close(m);
    return 0;
}
