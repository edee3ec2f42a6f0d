/* fuzz_gguf.c - any bytes as a GGUF file: its tensors, the config.json and the tokenizer.json that are made of it, and
 * what reads those.  What is accepted must hold together: names, sizes and places agree with the file. */
#include <stdlib.h>
#include <string.h>

#include "../formats/gguf.h"
#include "../formats/model.h"
#include "../formats/tokenizer.h"
#include "fuzz.h"

static void check_store(const st_store *s)
{
    uint64_t bytes = 0, sum = 0;
    for (size_t i = 0; i < st_count(s); i++) {
        const st_tensor *t = st_at(s, i);
        uint64_t rows = 1;
        FUZZ_MUST(t->name && *t->name && t->file && t->rank >= 0 && t->rank <= GGUF_MAX_RANK);
        const gguf_kind *kind = gguf_kind_of(t->dtype);
        FUZZ_MUST(kind);
        for (int32_t k = 0; k + 1 < t->rank; k++)
            FUZZ_MUST(!__builtin_mul_overflow(rows, (uint64_t)t->shape[k], &rows));
        uint64_t cols = t->rank ? (uint64_t)t->shape[t->rank - 1] : 1;
        FUZZ_MUST(cols % kind->block == 0 && t->bytes == rows * (cols / kind->block) * kind->bytes);
        for (uint64_t k = 0; k < t->bytes; k++) sum += ((const uint8_t *)t->data)[k]; /* a sanitizer looks on */
        if (i) FUZZ_MUST(strcmp(st_at(s, i - 1)->name, t->name) < 0);
        FUZZ_MUST(st_find(s, t->name) == t);
        bytes += t->bytes;
    }
    volatile uint64_t used = sum;
    (void)used;
    FUZZ_MUST(bytes <= st_mapped_bytes(s));
}

static void check_blocks(const model_config *c, const st_store *s)
{
    fmt_error e;
    for (int32_t i = 0; i < c->n_layers && i < 4; i++) {
        model_block b;
        memset(&e, 0, sizeof e);
        if (!c->layer_is_moe[i]) continue;
        if (model_block_open(c, s, i, &b, &e))
            fuzz_check_sentence(e.text, sizeof e.text);
        else
            model_block_close(&b);
    }
}

static void check_tokenizer(const tok *t)
{
    fmt_error e;
    int32_t *ids = NULL;
    size_t n = 0;
    memset(&e, 0, sizeof e);
    if (tok_encode(t, "ab <e>\xff 1", 9, &ids, &n, &e)) {
        fuzz_check_sentence(e.text, sizeof e.text);
        return;
    }
    for (size_t i = 0; i < n; i++) FUZZ_MUST(ids[i] >= 0 && ids[i] < tok_vocab(t));
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_store *s = NULL;
    tok *t = NULL;
    model_config c;
    fmt_error e[3];
    memset(e, 0, sizeof e);
    fuzz_write("m.gguf", data, size);
    const char *path = fuzz_path("m.gguf");
    int no_store = st_open(path, &s, &e[0]), no_config = model_config_load(path, &c, &e[1]),
        no_tok = tok_open(path, &t, &e[2]);
    if (no_store)
        fuzz_check_sentence(e[0].text, sizeof e[0].text);
    else
        check_store(s);
    if (no_config) fuzz_check_sentence(e[1].text, sizeof e[1].text);
    if (!no_store && !no_config) check_blocks(&c, s);
    if (no_tok)
        fuzz_check_sentence(e[2].text, sizeof e[2].text);
    else
        check_tokenizer(t);
    if (!no_config) model_config_free(&c);
    tok_close(t);
    st_close(s);
    return 0;
}
