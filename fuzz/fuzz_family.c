/* fuzz_family.c - any bytes as config.json, read with the descriptor of its family; behind a NUL, a text as an
 * expression over its variables.  Which layers have experts, kinds of mixers, and every tensor's name and shape must
 * come out in range or be refused in words. */
#include <string.h>

#include <jansson.h>

#include "../formats/family.h"
#include "fuzz.h"

static int check_tensor(void *ctx, const family_tensor *t)
{
    size_t *seen = ctx;
    fuzz_check_sentence(t->name, 512);
    FUZZ_MUST(t->role && t->part >= FAMILY_TOP && t->part <= FAMILY_MOE);
    FUZZ_MUST(t->count >= 1 && t->rank >= 0 && t->rank <= FAMILY_MAX_RANK);
    for (int32_t i = 0; i < t->rank; i++) FUZZ_MUST(t->dims[i] >= 0);
    return ++*seen > 10000;
}

static void check_layer(const family *f, int32_t layer)
{
    fmt_error e;
    size_t seen = 0;
    memset(&e, 0, sizeof e);
    if (layer >= 0) {
        int moe = family_is_moe(f, layer);
        FUZZ_MUST(moe == 0 || moe == 1);
        (void)family_hash_layer(f, layer);
        FUZZ_MUST(family_mixer(f, layer));
        (void)family_kind(f, layer);
    }
    if (family_tensors(f, layer, NULL, check_tensor, &seen, &e) < 0) fuzz_check_sentence(e.text, sizeof e.text);
    FUZZ_MUST(seen <= 10001);
}

static void check_expression(const family *f, const char *text, size_t size)
{
    char expression[200];
    fmt_error e;
    double value = 0;
    int64_t whole = 0;
    if (size >= sizeof expression) size = sizeof expression - 1;
    memcpy(expression, text, size);
    expression[size] = 0;
    memset(&e, 0, sizeof e);
    if (family_eval(f, 0, NULL, expression, &value, &e)) fuzz_check_sentence(e.text, sizeof e.text);
    memset(&e, 0, sizeof e);
    if (family_int(f, 0, expression, -5, 1 << 20, &whole, &e))
        fuzz_check_sentence(e.text, sizeof e.text);
    else
        FUZZ_MUST(whole >= -5 && whole <= 1 << 20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t first = cut ? (size_t)(cut - data) : size;
    json_error_t why;
    fmt_error e;
    family *f = NULL;
    json_t *root = json_loadb((const char *)data, first, JSON_REJECT_DUPLICATES, &why);
    if (!root) return 0;
    memset(&e, 0, sizeof e);
    if (!json_is_object(root)) {
        json_decref(root);
        return 0;
    }
    if (family_open(root, "config.json", &f, &e)) {
        fuzz_check_sentence(e.text, sizeof e.text);
    } else {
        int32_t layers = family_layers(f);
        FUZZ_MUST(layers > 0 && family_model_type(f) && family_name(f) && family_text_config(f) && family_block(f));
        for (int32_t i = -1; i < layers && i < 8; i++) check_layer(f, i);
        check_layer(f, layers - 1);
        if (cut) check_expression(f, (const char *)cut + 1, size - first - 1);
        family_close(f);
    }
    json_decref(root);
    return 0;
}
