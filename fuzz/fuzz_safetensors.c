/* fuzz_safetensors.c - any bytes as a safetensors file, as a header whose length fits, or as an index over two
 * shards.  What is accepted must hold together: names, sizes and places agree with the file. */
#include <stdlib.h>
#include <string.h>

#include "../formats/safetensors.h"
#include "fuzz.h"

/* Length and header, then n_data bytes of data. */
static void write_file(const char *name, const char *header, size_t header_bytes, size_t n_data)
{
    size_t size = 8 + header_bytes + n_data;
    uint8_t *file = calloc(1, size);
    FUZZ_MUST(file);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + 8, header, header_bytes);
    fuzz_write(name, file, size);
    free(file);
}

static void write_shards(void)
{
    static const char a[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                            "\"y\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}";
    static const char b[] = "{\"z\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}";
    write_file("a.safetensors", a, sizeof a - 1, 32);
    write_file("b.safetensors", b, sizeof b - 1, 1);
}

static uint64_t check_tensor(const st_store *s, size_t i)
{
    const st_tensor *t = st_at(s, i);
    char text[256];
    fmt_error e;
    uint64_t elements = 1, sum = 0;
    FUZZ_MUST(t && t->name && t->file && t->rank >= 0 && t->rank <= ST_MAX_RANK && st_dtype_bytes(t->dtype));
    for (int32_t k = 0; k < t->rank; k++) {
        FUZZ_MUST(t->shape[k] >= 0);
        FUZZ_MUST(!__builtin_mul_overflow(elements, (uint64_t)t->shape[k], &elements));
    }
    FUZZ_MUST(t->bytes == elements * st_dtype_bytes(t->dtype));
    for (uint64_t k = 0; k < t->bytes; k++) sum += ((const uint8_t *)t->data)[k]; /* a sanitizer looks on */
    volatile uint64_t used = sum;
    (void)used;
    if (i) FUZZ_MUST(strcmp(st_at(s, i - 1)->name, t->name) < 0);
    FUZZ_MUST(st_find(s, t->name) == t && st_need(s, t->name, t->rank, t->shape, &e) == t);
    st_shape_text(t, text, sizeof text);
    fuzz_check_sentence(text, sizeof text);
    st_shape_text(t, text, 4);
    FUZZ_MUST(strlen(text) < 4);
    return t->bytes;
}

static void check_store(const st_store *s)
{
    static const int64_t any[ST_MAX_RANK] = {-1, -1, -1, -1, -1, -1, -1, -1};
    fmt_error e;
    uint64_t bytes = 0;
    for (size_t i = 0; i < st_count(s); i++) bytes += check_tensor(s, i);
    FUZZ_MUST(bytes <= st_mapped_bytes(s) && !st_at(s, st_count(s)));
    memset(&e, 0, sizeof e);
    if (!st_find(s, "no such tensor")) {
        FUZZ_MUST(!st_need(s, "no such tensor", ST_MAX_RANK, any, &e));
        fuzz_check_sentence(e.text, sizeof e.text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_store *s = NULL;
    fmt_error e;
    const char *path;
    memset(&e, 0, sizeof e);
    fuzz_remove("model.safetensors.index.json");
    if (size && data[0] == '{') { /* the index of a folder with two shards */
        write_shards();
        fuzz_write("model.safetensors.index.json", data, size);
        path = fuzz_path("");
    } else if (size > 3 && data[0] == 'H') { /* the bytes of data that follow, and a header */
        write_file("model.safetensors", (const char *)data + 3, size - 3, (size_t)(data[1] | data[2] << 8));
        path = fuzz_path("");
    } else {
        fuzz_write("model.safetensors", data, size);
        path = fuzz_path("model.safetensors");
    }
    if (st_open(path, &s, &e)) {
        FUZZ_MUST(!s);
        fuzz_check_sentence(e.text, sizeof e.text);
        return 0;
    }
    check_store(s);
    st_close(s);
    return 0;
}
