/* The planner's numbers against bytes really taken on this CPU: engine_memory_get for models that the engine runs,
 * the library's plans and packed weights over the checkpoint's own tensors for every vector. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <dirent.h>
#include <cmocka.h>

#include "../../engine/engine.h"
#include "../../planner/planner.h"

static moewe_device *device;

static int open_device(void **state)
{
    moewe_device_desc d;
    (void)state;
    MOEWE_INIT(d);
    d.kind = MOEWE_DEVICE_CPU;
    d.n_threads = 2;
    return moewe_device_open(&d, &device) ? -1 : 0;
}

static int close_device(void **state)
{
    (void)state;
    moewe_device_close(device);
    return 0;
}

static planner_cpu plan(const char *path, planner_cpu_ask ask)
{
    planner_model *m = NULL;
    planner_cpu c = {0};
    fmt_error e;
    if (planner_open(path, &m, &e) || planner_on_cpu(m, &ask, device, &c, &e)) fail_msg("%s", e.text);
    planner_close(m);
    return c;
}

static void the_engine(void **state)
{
    static const char *const models[] = {"tests/data/vectors/qwen3_moe", "tests/data/vectors/mixtral",
                                         "models/wordmath"};
    static const planner_cpu_ask asks[] = {
        {.dtype = MOEWE_DTYPE_F32, .tokens = 64, .context = 100, .sequences = 1},
        {.dtype = MOEWE_DTYPE_BF16, .tokens = 64, .context = 128, .sequences = 3},
        {.dtype = MOEWE_DTYPE_F32, .tokens = 200, .context = 33, .sequences = 7},
    };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t k = 0; k < sizeof asks / sizeof *asks; k++) {
            char path[512];
            engine *g = NULL;
            engine_memory memory;
            fmt_error e;
            snprintf(path, sizeof path, "%s/%s", MOEWE_SOURCE_DIR, models[i]);
            engine_options o = {.threads = 2,
                                .dtype = asks[k].dtype,
                                .max_sequences = asks[k].sequences,
                                .context = asks[k].context,
                                .max_batch = asks[k].tokens};
            if (engine_open(path, &o, &g, &e)) fail_msg("%s", e.text);
            engine_memory_get(g, &memory);
            planner_cpu c = plan(path, asks[k]);
            assert_true(c.engine);
            assert_int_equal(c.weights, memory.weights);
            assert_int_equal(c.kv, memory.kv_cache);
            assert_int_equal(c.workspace, memory.workspace);
            engine_close(g);
        }
}

/* As moewe run opens a block, from the tensors in the file. */
static void one_block(const model_config *config, const st_store *store, int32_t layer, const planner_cpu_ask *ask,
                      uint64_t *packed_most, uint64_t *packed_all, uint64_t *workspace)
{
    model_block block;
    moewe_plan *p = NULL;
    moewe_need need, packed;
    fmt_error e;
    if (model_block_open(config, store, layer, &block, &e)) fail_msg("%s", e.text);
    moewe_config c = block.moe;
    c.max_tokens = ask->tokens;
    c.x_dtype = c.y_dtype = ask->dtype;
    c.w_dtype = block.w_dtype;
    c.down_dtype = block.down_dtype;
    c.workspace_limit = ask->workspace_limit;
    if (moewe_plan_create(device, &c, &p) || moewe_plan_need(p, &need) || moewe_weights_need(p, &block.w, &packed))
        fail_msg("%s", moewe_last_error());
    if (packed.bytes > *packed_most) *packed_most = packed.bytes;
    if (need.bytes > *workspace) *workspace = need.bytes;
    *packed_all += packed.bytes;
    moewe_plan_destroy(p);
    model_block_close(&block);
}

static void one_vector(const char *path, const planner_cpu_ask *ask)
{
    model_config config;
    st_store *store;
    fmt_error e;
    uint64_t most = 0, all = 0, workspace = 0;
    if (model_config_load(path, &config, &e) || st_open(path, &store, &e)) fail_msg("%s", e.text);
    for (int32_t i = 0; i < config.n_layers; i++)
        if (config.layer_is_moe[i]) one_block(&config, store, i, ask, &most, &all, &workspace);
    planner_cpu c = plan(path, *ask);
    assert_true(most > 0 && workspace > 0);
    if (c.packed_layer != most || c.packed_layers != all || c.workspace != workspace) print_error("%s\n", path);
    assert_int_equal(c.packed_layer, most);
    assert_int_equal(c.packed_layers, all);
    assert_int_equal(c.workspace, workspace);
    st_close(store);
    model_config_free(&config);
}

/* The deployment's weights are the checkpoint's own bytes. */
static void stored_bytes(void **state)
{
    DIR *d = opendir(MOEWE_SOURCE_DIR "/tests/data/vectors");
    struct dirent *entry;
    int n = 0;
    (void)state;
    assert_non_null(d);
    while ((entry = readdir(d))) {
        char path[1024];
        planner_model *m = NULL;
        planner_plan p;
        st_store *store = NULL;
        fmt_error e;
        uint64_t bytes = 0;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/tests/data/vectors/%s", MOEWE_SOURCE_DIR, entry->d_name);
        if (planner_open(path, &m, &e) || planner_make(m, &(planner_ask){.tokens = 1, .kv_fp8 = -1}, device, &p, &e) ||
            st_open(path, &store, &e))
            fail_msg("%s", e.text);
        for (size_t i = 0; i < st_count(store); i++) bytes += st_at(store, i)->bytes;
        if (p.weights != bytes) print_error("%s\n", path);
        assert_int_equal(p.weights, bytes);
        assert_true(planner_model_facts(m)->exact);
        st_close(store);
        planner_close(m);
        n++;
    }
    closedir(d);
    assert_true(n >= 2);
}

static void every_vector(void **state)
{
    static const planner_cpu_ask asks[] = {
        {.dtype = MOEWE_DTYPE_F32, .tokens = 17, .context = 1, .sequences = 1},
        {.dtype = MOEWE_DTYPE_BF16, .tokens = 1000, .context = 1, .sequences = 1},
        {.dtype = MOEWE_DTYPE_F32, .tokens = 1000, .context = 1, .sequences = 1, .workspace_limit = 65536},
    };
    DIR *d = opendir(MOEWE_SOURCE_DIR "/tests/data/vectors");
    struct dirent *entry;
    int n = 0;
    (void)state;
    assert_non_null(d);
    while ((entry = readdir(d))) {
        char path[1024];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/tests/data/vectors/%s", MOEWE_SOURCE_DIR, entry->d_name);
        for (size_t k = 0; k < sizeof asks / sizeof *asks; k++) one_vector(path, &asks[k]);
        n++;
    }
    closedir(d);
    assert_true(n >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_engine), cmocka_unit_test(every_vector),
                                       cmocka_unit_test(stored_bytes)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
