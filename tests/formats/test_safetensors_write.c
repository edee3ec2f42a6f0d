/* test_safetensors_write.c - the writer: the exact bytes of a file, a round trip, and failures that leave the
 * folder as it was. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "formats/safetensors.h"

static const unsigned char numbers[24] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                          13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};

static void test_exact_bytes(void **state)
{
    /* 54 bytes of JSON, padded to 56 */
    static const char want[] = "\x38\0\0\0\0\0\0\0{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  "
                               "\1\2\3\4\5\6\7\10";
    const st_tensor x = {.name = "x", .dtype = ST_F32, .rank = 1, .shape = {2}, .data = numbers, .bytes = 8};
    fmt_error e = {""};
    struct stat st;
    size_t n;
    (void)state;
    umask(022);
    assert_int_equal(st_write(in_folder("x.safetensors"), &x, 1, &e), 0);
    char *got = read_bytes(in_folder("x.safetensors"), &n);
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(got, want, n);
    free(got);
    assert_int_equal(stat(in_folder("x.safetensors"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
    assert_int_equal(count_files(), 1);
    empty_folder();
}

static void test_round_trip(void **state)
{
    const st_tensor t[] = {
        {.name = "zeta", .dtype = ST_BF16, .rank = 2, .shape = {2, 3}, .data = numbers, .bytes = 12},
        {.name = "none", .dtype = ST_F64, .rank = 2, .shape = {0, 5}, .data = NULL, .bytes = 0},
        {.name = "\"q\"\\ \303\244", .dtype = ST_U8, .rank = 0, .data = numbers + 7, .bytes = 1},
        {.name = "eight", .dtype = ST_I64, .rank = 8, .shape = {1, 1, 1, 1, 3, 1, 1, 1}, .data = numbers, .bytes = 24},
    };
    st_store *s = NULL;
    fmt_error e = {""};
    (void)state;
    for (int again = 0; again < 2; again++) { /* the second one replaces the first */
        assert_int_equal(st_write(in_folder("r.safetensors"), t, 4, &e), 0);
        assert_int_equal(count_files(), 1);
    }
    assert_int_equal(st_open(in_folder("r.safetensors"), &s, &e), 0);
    assert_int_equal(st_count(s), 4);
    for (int i = 0; i < 4; i++) {
        const st_tensor *got = st_need(s, t[i].name, t[i].rank, t[i].shape, &e);
        assert_non_null(got);
        assert_int_equal(got->dtype, t[i].dtype);
        assert_int_equal(got->bytes, t[i].bytes);
        if (got->bytes) assert_memory_equal(got->data, t[i].data, got->bytes);
    }
    assert_true((const char *)st_find(s, "eight")->data > (const char *)st_find(s, "zeta")->data); /* order as given */
    st_close(s);

    assert_int_equal(st_write(in_folder("r.safetensors"), NULL, 0, &e), 0);
    assert_int_equal(st_open(in_folder("r.safetensors"), &s, &e), 0);
    assert_int_equal(st_count(s), 0);
    assert_int_equal(st_mapped_bytes(s), 16);
    st_close(s);
    empty_folder();
}

static void refused(const char *path, const st_tensor *t, size_t n, const char *const *words)
{
    fmt_error e = {""};
    size_t before = count_files();
    assert_int_equal(st_write(path, t, n, &e), -1);
    assert_mentions(e.text, words);
    assert_int_equal(count_files(), before);
}

static void test_bad_tensors(void **state)
{
    const st_tensor good = {.name = "good", .dtype = ST_F32, .rank = 1, .shape = {2}, .data = numbers, .bytes = 8};
    static const struct {
        st_tensor t;
        const char *words[4];
    } rows[] = {
        {{.name = "good", .dtype = ST_U8, .rank = 0, .data = numbers, .bytes = 1}, {"two tensors", "'good'"}},
        {{.name = "", .dtype = ST_U8, .rank = 0, .data = numbers, .bytes = 1}, {"''", "name"}},
        {{.name = NULL, .dtype = ST_U8, .rank = 0, .data = numbers, .bytes = 1}, {"''", "name"}},
        {{.name = "__metadata__", .dtype = ST_U8, .rank = 0, .data = numbers, .bytes = 1}, {"'__metadata__'", "name"}},
        {{.name = "\xff", .dtype = ST_U8, .rank = 0, .data = numbers, .bytes = 1}, {"UTF-8"}},
        {{.name = "t", .dtype = ST_F32, .rank = 1, .shape = {2}, .data = numbers, .bytes = 7},
         {"'t'", "7 bytes", "[2]", "takes 8"}},
        {{.name = "t", .dtype = ST_F32, .rank = 1, .shape = {2}, .data = NULL, .bytes = 8},
         {"'t'", "0 bytes", "takes 8"}},
        {{.name = "t", .dtype = ST_F32, .rank = 1, .shape = {-2}, .data = numbers, .bytes = 8}, {"'t'", "shape"}},
        {{.name = "t", .dtype = ST_F32, .rank = 9, .data = numbers, .bytes = 8}, {"'t'", "rank 9"}},
        {{.name = "t", .dtype = ST_DTYPE_COUNT, .rank = 0, .data = numbers, .bytes = 8}, {"'t'", "dtype 16"}},
        {{.name = "t", .dtype = ST_F32, .rank = 2, .shape = {INT64_MAX, 9}, .data = numbers, .bytes = 8},
         {"'t'", "shape"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const st_tensor both[2] = {good, rows[i].t};
        const char *words[6] = {"bad.safetensors"};
        for (int k = 0; k < 4; k++) words[k + 1] = rows[i].words[k];
        refused(in_folder("bad.safetensors"), both, 2, words);
    }
}

static void test_bad_places(void **state)
{
    const st_tensor x = {.name = "x", .dtype = ST_F32, .rank = 1, .shape = {2}, .data = numbers, .bytes = 8};
    struct stat st;
    (void)state;
    refused(in_folder("no/x.safetensors"), &x, 1,
            (const char *[]){"no/x.safetensors", "No such file or directory", NULL});
    put_text("file", "a file");
    refused(in_folder("file/x.safetensors"), &x, 1, (const char *[]){"file/x.safetensors", "Not a directory", NULL});
    assert_int_equal(mkdir(in_folder("dir"), 0700), 0);
    refused(in_folder("dir"), &x, 1, (const char *[]){"/dir", "not a regular file", NULL});
    assert_int_equal(symlink("file", in_folder("link")), 0);
    refused(in_folder("link"), &x, 1, (const char *[]){"/link", "not a regular file", NULL});
    refused("/dev/full", &x, 1, (const char *[]){"/dev/full", "not a regular file", NULL});
    assert_int_equal(stat("/dev/full", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    char path[600];
    memset(path, 'n', 300);
    strcpy(path + 300, ".safetensors");
    refused(in_folder(path), &x, 1, (const char *[]){"nnnn", "File name too long", NULL});
    empty_folder();
}

/* The disk is full in the middle of the data: a limit on the size of files does what a full disk does. */
static void test_out_of_room(void **state)
{
    enum { BYTES = 1 << 20 };
    struct rlimit before, small;
    fmt_error e = {""};
    size_t n;
    void *data = calloc(1, BYTES);
    (void)state;
    assert_non_null(data);
    const st_tensor x = {.name = "x", .dtype = ST_U8, .rank = 1, .shape = {BYTES}, .data = data, .bytes = BYTES};
    put_text("x.safetensors", "the old file");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int failed = st_write(in_folder("x.safetensors"), &x, 1, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(failed, -1);
    assert_mentions(e.text, (const char *[]){"x.safetensors", "1048576", "File too large", NULL});
    assert_int_equal(count_files(), 1);
    char *old = read_bytes(in_folder("x.safetensors"), &n);
    assert_string_equal(old, "the old file");
    free(old);
    assert_int_equal(st_write(in_folder("x.safetensors"), &x, 1, &e), 0);
    free(data);
    empty_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_bytes), cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_bad_places),  cmocka_unit_test(test_out_of_room),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
