/* fuzz_tokenizer.c - any bytes as tokenizer.json; behind a NUL, as a text for it.  Ids of a text must be ids of the
 * vocabulary that stand for bytes. */
#include <stdlib.h>
#include <string.h>

#include "../formats/tokenizer.h"
#include "fuzz.h"

static void check_text(const tok *t, const char *text, size_t size)
{
    int32_t *ids = NULL;
    size_t count = 0;
    fmt_error e;
    memset(&e, 0, sizeof e);
    FUZZ_MUST(tok_utf8_complete(text, size) <= size);
    if (tok_encode(t, text, size, &ids, &count, &e)) {
        fuzz_check_sentence(e.text, sizeof e.text);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        FUZZ_MUST(ids[i] >= 0 && ids[i] < tok_vocab(t) && tok_bytes(t, ids[i], &bytes));
        (void)tok_is_special(t, ids[i]);
    }
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const texts[] = {"", " ", "abca <s> bb12 \xff the  word\n\n x",
                                        "a\xc3\xa9 1 \xe4\xbd\xa0 <left>  <both> it's"};
    tok *t = NULL;
    fmt_error e;
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t first = cut ? (size_t)(cut - data) : size;
    memset(&e, 0, sizeof e);
    fuzz_write("tokenizer.json", data, first);
    if (tok_open(fuzz_path(""), &t, &e)) {
        FUZZ_MUST(!t);
        fuzz_check_sentence(e.text, sizeof e.text);
        return 0;
    }
    size_t bytes = 1;
    FUZZ_MUST(tok_vocab(t) >= 0 && !tok_bytes(t, -1, &bytes) && !bytes);
    FUZZ_MUST(!tok_bytes(t, tok_vocab(t), &bytes) && !bytes);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_text(t, texts[i], strlen(texts[i]));
    if (cut)
        check_text(t, (const char *)cut + 1, size - first - 1);
    else
        check_text(t, (const char *)data, first < 300 ? first : 300);
    tok_close(t);
    return 0;
}
