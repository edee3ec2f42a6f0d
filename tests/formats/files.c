/* files.c - the folder that files.h describes. */
#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

static char folder[512];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *place)
{
    (void)st;
    (void)kind;
    return place->level == 0 ? 0 : remove(path);
}

int folder_make(void **state)
{
    const char *base = getenv("TMPDIR");
    (void)state;
    snprintf(folder, sizeof folder, "%s/moewe-formats-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

void empty_folder(void)
{
    assert_int_equal(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

int folder_remove(void **state)
{
    (void)state;
    empty_folder();
    return rmdir(folder);
}

const char *in_folder(const char *name)
{
    static char paths[8][1024];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void put_bytes(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_folder(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void put_text(const char *name, const char *text)
{
    put_bytes(name, text, strlen(text));
}

char *read_bytes(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long size = ftell(f);
    assert_true(size >= 0);
    rewind(f);
    char *bytes = malloc((size_t)size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, f), (size_t)size);
    fclose(f);
    bytes[size] = '\0';
    *n = (size_t)size;
    return bytes;
}

size_t count_files(void)
{
    size_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2; /* . and .. */
}

void put_safetensors(const char *name, const char *header, size_t header_bytes, uint64_t claimed, size_t n_data)
{
    size_t n = 8 + header_bytes + n_data;
    unsigned char *bytes = malloc(n);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(claimed >> (8 * i));
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < n_data; i++) bytes[8 + header_bytes + i] = (unsigned char)i;
    put_bytes(name, bytes, n);
    free(bytes);
}

void assert_mentions(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strstr(text, *words)) fail_msg("'%s' is not in: %s", *words, text);
}
