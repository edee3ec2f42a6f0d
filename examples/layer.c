/* layer.c - one MoE layer, from nothing to a result: plan, workspace, run.  The weights are small
 * and made up; a real program points the views at its own memory. */
#include <moewe.h>

#include <stdio.h>
#include <stdlib.h>

enum { HIDDEN = 64, INTER = 48, EXPERTS = 8, TOP_K = 2, TOKENS = 4 };

static float gate[EXPERTS][INTER][HIDDEN], up[EXPERTS][INTER][HIDDEN], down[EXPERTS][HIDDEN][INTER];
static float router[EXPERTS][HIDDEN], x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];

static void fill(float *v, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) v[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / (1 << 24) - 0.5f;
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, moewe_last_error());
    return 1;
}

int main(void)
{
    fill(&gate[0][0][0], EXPERTS * INTER * HIDDEN, 1);
    fill(&up[0][0][0], EXPERTS * INTER * HIDDEN, 2);
    fill(&down[0][0][0], EXPERTS * INTER * HIDDEN, 3);
    fill(&router[0][0], EXPERTS * HIDDEN, 4);
    fill(&x[0][0], TOKENS * HIDDEN, 5);

    moewe_device *dev;
    moewe_plan *plan;
    moewe_need need;
    moewe_config cfg;
    MOEWE_INIT(cfg);
    cfg.hidden = HIDDEN;
    cfg.inter = INTER;
    cfg.n_experts = EXPERTS;
    cfg.top_k = TOP_K;
    cfg.max_tokens = TOKENS;
    cfg.flags = MOEWE_FLAG_RENORMALIZE;
    cfg.name = "example";
    if (moewe_device_open(NULL, &dev)) return failed("device");
    if (moewe_plan_create(dev, &cfg, &plan) || moewe_plan_need(plan, &need)) return failed("plan");

    moewe_weights w;
    MOEWE_INIT(w);
    w.gate = (moewe_matrix){.data = gate, .dtype = MOEWE_DTYPE_F32};
    w.up = (moewe_matrix){.data = up, .dtype = MOEWE_DTYPE_F32};
    w.down = (moewe_matrix){.data = down, .dtype = MOEWE_DTYPE_F32};
    w.router = (moewe_matrix){.data = router, .dtype = MOEWE_DTYPE_F32};

    moewe_io io;
    MOEWE_INIT(io);
    io.n_tokens = TOKENS;
    io.x = x;
    io.y = y;
    moewe_span workspace = {aligned_alloc(need.align, need.bytes), need.bytes};
    if (!workspace.ptr || moewe_run(plan, &w, &io, workspace, NULL)) return failed("run");

    printf("%s, workspace %llu bytes\n", moewe_device_backend(dev), (unsigned long long)need.bytes);
    for (int t = 0; t < TOKENS; t++) printf("y[%d] = %9.6f %9.6f ...\n", t, (double)y[t][0], (double)y[t][1]);

    free(workspace.ptr);
    moewe_plan_destroy(plan);
    moewe_device_close(dev);
    return 0;
}
