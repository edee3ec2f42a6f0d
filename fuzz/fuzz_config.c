/* fuzz_config.c - any bytes as config.json (behind a NUL: as generation_config.json), down to the plan of its MoE
 * layers and to the search for their tensors in a checkpoint that has none.  What is accepted can be planned or is
 * refused in words. */
#include <string.h>

#include "../formats/model.h"
#include "fuzz.h"

static void check_blocks(const model_config *c, const st_store *s)
{
    int32_t seen = 0;
    for (int32_t i = 0; i < c->n_layers && seen < 2; i++) {
        char name[256];
        fmt_error e;
        model_block block;
        int32_t layer = -1;
        if (!c->layer_is_moe[i]) continue;
        seen++;
        model_block_name(c, i, name, sizeof name);
        fuzz_check_sentence(name, sizeof name);
        FUZZ_MUST(model_block_find(c, name, &layer, &e) == 0 && layer == i);
        memset(&e, 0, sizeof e);
        FUZZ_MUST(model_block_open(c, s, i, &block, &e) != 0);
        fuzz_check_sentence(e.text, sizeof e.text);
    }
}

static void check_model(const model_config *c, const st_store *s)
{
    static const int32_t tokens[] = {1, 4096, INT32_MAX};
    FUZZ_MUST(c->family && c->n_layers > 0 && c->hidden > 0 && c->vocab > 0 && c->layer_is_moe);
    FUZZ_MUST(c->n_eos >= 0 && c->n_eos <= MODEL_MAX_EOS && c->bos_id < c->vocab);
    check_blocks(c, s);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        moewe_config moe = c->moe;
        moe.max_tokens = tokens[i];
        fuzz_check_plan(fuzz_device(1), &moe, 1 << 20);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static st_store *empty;
    model_config c;
    fmt_error e;
    if (!empty) {
        fuzz_write("a.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
        FUZZ_MUST(st_open(fuzz_path("a.safetensors"), &empty, &e) == 0);
    }
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t first = cut ? (size_t)(cut - data) : size;
    fuzz_write("config.json", data, first);
    fuzz_remove("generation_config.json");
    if (cut) fuzz_write("generation_config.json", cut + 1, size - first - 1);
    memset(&e, 0, sizeof e);
    if (model_config_load(fuzz_path(""), &c, &e)) {
        fuzz_check_sentence(e.text, sizeof e.text);
        return 0;
    }
    check_model(&c, empty);
    model_config_free(&c);
    return 0;
}
