/* test_safetensors.c - the reader of safetensors files: real checkpoints against values that Python's struct
 * module read from them, and files that are broken in one way each. */
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "formats/safetensors.h"

#define WORDMATH MOEWE_SOURCE_DIR "/models/wordmath"
#define TWO_TENSORS                                                                                                    \
    "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"         \
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}"

static void refused(const char *path, const char *const *words)
{
    st_store *s = NULL;
    fmt_error e = {""};
    if (st_open(path, &s, &e) == 0) {
        st_close(s);
        fail_msg("%s was opened", path);
    }
    assert_null(s);
    assert_mentions(e.text, words);
    assert_null(strchr(e.text, '\n'));
}

static unsigned element16(const st_tensor *t, size_t i)
{
    const unsigned char *p = (const unsigned char *)t->data + 2 * i;
    return p[0] | (unsigned)p[1] << 8;
}

static void test_wordmath(void **state)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
        unsigned at_0, at_1, at_130, last;
    } want[] = {
        {"model.embed_tokens.weight", 960, 256, 0xbd0d, 0xbe01, 0x3d79, 0xbe5e},
        {"model.layers.0.mlp.experts.10.up_proj.weight", 128, 256, 0x3d73, 0x3d09, 0xbcf8, 0x3b42},
        {"model.layers.2.mlp.gate.weight", 32, 256, 0xbcbd, 0x3d3a, 0xbb45, 0x3d9f},
        {"model.layers.3.mlp.experts.31.down_proj.weight", 256, 128, 0xbc90, 0x3d3f, 0xbdc4, 0x3d96},
        {"model.norm.weight", 256, 0, 0x3f85, 0x3f96, 0x3f87, 0x3f93},
    };
    st_store *s = NULL;
    fmt_error e = {""};
    (void)state;
    assert_int_equal(st_open(WORDMATH, &s, &e), 0);
    assert_int_equal(st_count(s), 422);
    assert_int_equal(st_mapped_bytes(s), 27350520);
    assert_string_equal(st_at(s, 0)->name, "model.embed_tokens.weight");
    assert_string_equal(st_at(s, 421)->name, "model.norm.weight");
    assert_null(st_at(s, 422));
    assert_null(st_find(s, "model.norm"));
    for (size_t i = 1; i < 422; i++) assert_true(strcmp(st_at(s, i - 1)->name, st_at(s, i)->name) < 0);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const st_tensor *t = st_find(s, want[i].name);
        assert_non_null(t);
        size_t n = (size_t)(want[i].rows * (want[i].cols ? want[i].cols : 1));
        assert_int_equal(t->dtype, ST_BF16);
        assert_int_equal(t->rank, want[i].cols ? 2 : 1);
        assert_int_equal(t->shape[0], want[i].rows);
        if (want[i].cols) assert_int_equal(t->shape[1], want[i].cols);
        assert_int_equal(t->bytes, 2 * n);
        assert_string_equal(t->file, WORDMATH "/model.safetensors");
        assert_int_equal(element16(t, 0), want[i].at_0);
        assert_int_equal(element16(t, 1), want[i].at_1);
        assert_int_equal(element16(t, 130), want[i].at_130);
        assert_int_equal(element16(t, n - 1), want[i].last);
    }
    st_close(s);
    st_close(NULL);
}

static void assert_opens_not(const char *name, const char *word)
{
    st_store *s = NULL;
    fmt_error e = {""};
    assert_int_equal(st_open(in_folder(name), &s, &e), -1);
    assert_mentions(e.text, (const char *const[]){word, NULL});
}

static void test_dtypes(void **state)
{
    static const struct {
        st_dtype d;
        const char *name;
        unsigned bytes;
        int moewe; /* numbers as pinned in moewe.h */
    } want[] = {{ST_BOOL, "BOOL", 1, 0}, {ST_U8, "U8", 1, 0},   {ST_I8, "I8", 1, 0},   {ST_F8_E5M2, "F8_E5M2", 1, 0},
                {ST_I16, "I16", 2, 0},   {ST_U16, "U16", 2, 0}, {ST_F16, "F16", 2, 2}, {ST_F8_E4M3, "F8_E4M3", 1, 0},
                {ST_I32, "I32", 4, 0},   {ST_U32, "U32", 4, 0}, {ST_F32, "F32", 4, 1}, {ST_F8_E8M0, "F8_E8M0", 1, 0},
                {ST_I64, "I64", 8, 0},   {ST_U64, "U64", 8, 0}, {ST_F64, "F64", 8, 0}, {ST_BF16, "BF16", 2, 3}};
    (void)state;
    assert_int_equal(sizeof want / sizeof want[0], ST_DTYPE_COUNT);
    for (size_t i = 0; i < ST_DTYPE_COUNT; i++) {
        char header[128];
        st_store *s = NULL;
        fmt_error e = {""};
        assert_string_equal(st_dtype_name(want[i].d), want[i].name);
        assert_int_equal(st_dtype_bytes(want[i].d), want[i].bytes);
        assert_int_equal(st_dtype_moewe(want[i].d), want[i].moewe);
        int n = snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[],\"data_offsets\":[0,%u]}}",
                         want[i].name, want[i].bytes);
        put_safetensors("scalar.safetensors", header, (size_t)n, (uint64_t)n, want[i].bytes);
        assert_int_equal(st_open(in_folder("scalar.safetensors"), &s, &e), 0);
        assert_int_equal(st_at(s, 0)->rank, 0);
        assert_int_equal(st_at(s, 0)->bytes, want[i].bytes);
        st_close(s);
    }
    /* of GGUF files; no safetensors header may name one */
    for (int i = 0; i < 4; i++) {
        static const char *const blocks[] = {"Q8_0", "Q4_0", "Q4_K", "Q6_K"};
        st_dtype d = (st_dtype)(ST_DTYPE_COUNT + i);
        char header[96];
        assert_string_equal(st_dtype_name(d), blocks[i]);
        assert_int_equal(st_dtype_bytes(d), 0);
        assert_int_equal(st_dtype_moewe(d), 8 + i);
        int n = snprintf(header, sizeof header, "{\"t\":{\"dtype\":\"%s\",\"shape\":[0],\"data_offsets\":[0,0]}}", blocks[i]);
        put_safetensors("scalar.safetensors", header, (size_t)n, (uint64_t)n, 0);
        assert_opens_not("scalar.safetensors", blocks[i]);
    }
    assert_string_equal(st_dtype_name(ST_DTYPE_NONE), "?");
}

static void test_small_files(void **state)
{
    char text[64];
    st_store *s = NULL;
    fmt_error e = {""};
    (void)state;
    put_safetensors("two.safetensors", TWO_TENSORS "   ", strlen(TWO_TENSORS) + 3, strlen(TWO_TENSORS) + 3, 32);
    assert_int_equal(st_open(in_folder("two.safetensors"), &s, &e), 0);
    assert_int_equal(st_count(s), 2);
    const st_tensor *a = st_find(s, "a"), *b = st_find(s, "b");
    assert_ptr_equal(a, st_at(s, 0));
    assert_ptr_equal(b, st_at(s, 1));
    assert_int_equal(((const unsigned char *)a->data)[0], 0);
    assert_int_equal(((const unsigned char *)b->data)[0], 24);
    st_shape_text(a, text, sizeof text);
    assert_string_equal(text, "[2, 3]");

    const int64_t any[2] = {-1, 3}, other[2] = {-1, 4};
    assert_ptr_equal(st_need(s, "a", 2, any, &e), a);
    assert_null(st_need(s, "a", 2, other, &e));
    assert_mentions(e.text, (const char *[]){"two.safetensors", "'a'", "[2, 3]", "[*, 4]", NULL});
    assert_null(st_need(s, "b", 2, any, &e));
    assert_mentions(e.text, (const char *[]){"two.safetensors", "'b'", "[4]", "[*, 3]", NULL});
    assert_null(st_need(s, "c", 2, any, &e));
    assert_mentions(e.text, (const char *[]){"two.safetensors", "'c'", "[*, 3]", NULL});
    st_close(s);

    /* no tensors, and tensors without elements, one of them between two others */
    put_safetensors("none.safetensors", "{}", 2, 2, 0);
    assert_int_equal(st_open(in_folder("none.safetensors"), &s, &e), 0);
    assert_int_equal(st_count(s), 0);
    st_close(s);
    const char *empties = "{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                          "\"z\":{\"dtype\":\"F64\",\"shape\":[0,9223372036854775807],\"data_offsets\":[2,2]},"
                          "\"y\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,3],\"data_offsets\":[2,5]},"
                          "\"w\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[5,5]}}";
    put_safetensors("empties.safetensors", empties, strlen(empties), strlen(empties), 5);
    assert_int_equal(st_open(in_folder("empties.safetensors"), &s, &e), 0);
    assert_int_equal(st_count(s), 4);
    assert_int_equal(st_find(s, "z")->bytes, 0);
    assert_int_equal(st_find(s, "y")->rank, 8);
    st_close(s);
}

/* Cut anywhere, a file is refused with what it claims and what it has. */
static void test_truncated(void **state)
{
    size_t header = strlen(TWO_TENSORS), total = 8 + header + 32;
    char *bytes, claims[32], has[32];
    (void)state;
    put_safetensors("whole.safetensors", TWO_TENSORS, header, header, 32);
    bytes = read_bytes(in_folder("whole.safetensors"), &total);
    for (size_t cut = 0; cut < total; cut++) {
        put_bytes("cut.safetensors", bytes, cut);
        snprintf(claims, sizeof claims, "%zu",
                 cut < 8             ? (size_t)8
                 : cut < 8 + header  ? header
                 : cut < 32 + header ? (size_t)24
                                     : (size_t)32);
        snprintf(has, sizeof has, " %zu bytes", cut < 8 ? cut : cut < 8 + header ? cut - 8 : cut - 8 - header);
        refused(in_folder("cut.safetensors"), (const char *[]){"cut.safetensors", claims, has, NULL});
    }
    free(bytes);
}

#define T(dtype, shape, begin, end) "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void test_lying_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *words[5];
    } rows[] = {
        {"[]", 0, {"array", "object"}},
        {"7", 0, {"not valid JSON"}},
        {"", 0, {"0 bytes", "not valid JSON"}},
        {"{\"a\":", 0, {"5 bytes", "not valid JSON"}},
        {"{} x", 0, {"not valid JSON"}},
        {"{}", 3, {"byte 0", "3 bytes"}},
        {"{\"__metadata__\":[]}", 0, {"__metadata__", "object of strings"}},
        {"{\"__metadata__\":{\"k\":1}}", 0, {"__metadata__", "'k'", "not a string"}},
        {"{\"a\":[]}", 0, {"'a'", "object"}},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, {"'a'", "dtype is missing"}},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, {"'a'", "shape is missing"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, {"'a'", "data_offsets is missing"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, {"'a'", "4 fields"}},
        {"{\"a\":" T("\"F31\"", "[1]", "0", "4") "}", 4, {"'a'", "dtype", "\"F31\"", "BF16"}},
        {"{\"a\":" T("\"f32\"", "[1]", "0", "4") "}", 4, {"'a'", "dtype", "\"f32\""}},
        {"{\"a\":" T("4", "[1]", "0", "4") "}", 4, {"'a'", "dtype is 4"}},
        {"{\"a\":" T("\"F32\"", "4", "0", "4") "}", 4, {"'a'", "shape is 4", "array"}},
        {"{\"a\":" T("\"F32\"", "[1.0]", "0", "4") "}", 4, {"'a'", "extent 0", "[1.0]", "integer"}},
        {"{\"a\":" T("\"F32\"", "[1,-1]", "0", "4") "}", 4, {"'a'", "extent 1", "[1,-1]"}},
        {"{\"a\":" T("\"F32\"", "[1,null]", "0", "4") "}", 4, {"'a'", "extent 1", "[1,null]"}},
        {"{\"a\":" T("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, {"'a'", "9 extents", "8"}},
        {"{\"a\":" T("\"F32\"", "[4294967296,4294967296]", "0", "0") "}", 0, {"'a'", "4294967296", "64 bits"}},
        {"{\"a\":" T("\"F32\"", "[4611686018427387904]", "0", "0") "}", 0, {"'a'", "4611686018427387904", "64 bits"}},
        {"{\"a\":" T("\"F32\"", "[9223372036854775808]", "0", "0") "}", 0, {"not valid JSON", "too big integer"}},
        {"{\"a\":" T("\"F32\"", "[4611686018427387903]", "0", "4") "}", 4, {"'a'", "span 4", "18446744073709551612"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, {"'a'", "data_offsets is [0]"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, {"'a'", "[0,4,8]"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{}}}", 4, {"'a'", "data_offsets is {}"}},
        {"{\"a\":" T("\"F32\"", "[1]", "0", "4.0") "}", 4, {"'a'", "data_offsets", "[0,4.0]"}},
        {"{\"a\":" T("\"F32\"", "[1]", "-4", "0") "}", 4, {"'a'", "data_offsets", "[-4,0]"}},
        {"{\"a\":" T("\"F32\"", "[1]", "4", "0") "}", 4, {"'a'", "data_offsets", "[4,0]", "begin <= end"}},
        {"{\"a\":" T("\"F32\"", "[1]", "0", "8") "}", 8, {"'a'", "span 8", "[1]", "F32", "takes 4"}},
        {"{\"a\":" T("\"F32\"", "[1]", "0", "4") "}", 3, {"'a'", "[0, 4]", " 3 bytes"}},
        {"{\"a\":" T("\"F32\"", "[1]", "9223372036854775803", "9223372036854775807") "}",
         4,
         {"'a'", "9223372036854775807", " 4 bytes"}},
        {"{\"a\":" T("\"F32\"", "[1]", "0", "4") ",\"b\":" T("\"F32\"", "[1]", "2", "6") "}",
         6,
         {"'b'", "byte 2", "'a'", "4"}},
        {"{\"a\":" T("\"F32\"", "[1]", "0", "4") ",\"b\":" T("\"F32\"", "[1]", "0", "4") "}",
         4,
         {"byte 0", "'a'", "'b'"}},
        {"{\"a\":" T("\"F32\"", "[1]", "0", "4") ",\"b\":" T("\"F32\"", "[1]", "6", "10") "}",
         10,
         {"bytes 4 to 6", "'b'"}},
        {"{\"a\":" T("\"F32\"", "[1]", "1", "5") "}", 5, {"bytes 0 to 1", "'a'"}},
        {"{\"a\":" T("\"F32\"", "[1]", "0", "4") "}", 9, {"end at byte 4", "9 bytes"}},
        {"{\"a\":" T("\"F32\"", "[1]", "0", "4") ",\"a\":" T("\"F32\"", "[1]", "4", "8") "}", 8, {"duplicate", "a"}},
        {"{\"a\":" T("\"F32\"", "[1]", "0", "4") ",\"\\u0061\":" T("\"F32\"", "[1]", "4", "8") "}", 8, {"duplicate"}},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         4,
         {"duplicate", "dtype"}},
        {"{\"a\\u0000b\":" T("\"F32\"", "[1]", "0", "4") "}", 4, {"not valid JSON", "NUL"}},
        {"{\"a\xff\":" T("\"F32\"", "[1]", "0", "4") "}", 4, {"not valid JSON", "0xff"}},
        {"{\"a\\u001b[2J\":" T("\"F31\"", "[1]", "0", "4") "}", 4, {"'a?[2J'", "F31"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *words[7] = {"lying.safetensors"};
        size_t n = strlen(rows[i].header);
        for (int k = 0; k < 5; k++) words[k + 1] = rows[i].words[k];
        put_safetensors("lying.safetensors", rows[i].header, n, n, rows[i].data);
        refused(in_folder("lying.safetensors"), words);
    }
}

static void test_strange_lengths(void **state)
{
    (void)state;
    put_safetensors("long.safetensors", "{}", 2, UINT64_C(1) << 63, 0);
    refused(in_folder("long.safetensors"),
            (const char *[]){"long.safetensors", "9223372036854775808", " 2 bytes", NULL});
    put_safetensors("long.safetensors", "{}", 2, UINT64_MAX, 0);
    refused(in_folder("long.safetensors"),
            (const char *[]){"long.safetensors", "18446744073709551615", " 2 bytes", NULL});
    put_safetensors("long.safetensors", "{}", 2, 3, 0);
    refused(in_folder("long.safetensors"), (const char *[]){"long.safetensors", " 3 bytes", " 2 bytes", NULL});

    /* a sparse file long enough for a header above the limit */
    put_safetensors("huge.safetensors", "{}", 2, 100000001, 0);
    assert_int_equal(truncate(in_folder("huge.safetensors"), 100000100), 0);
    refused(in_folder("huge.safetensors"),
            (const char *[]){"huge.safetensors", "100000001", "at most 100000000", NULL});

    put_safetensors("nul.safetensors", "{\"a\0b\":{}}", 10, 10, 0);
    refused(in_folder("nul.safetensors"), (const char *[]){"nul.safetensors", "not valid JSON", NULL});

    enum { DEPTH = 200000 };
    char *deep = malloc(DEPTH + 8);
    assert_non_null(deep);
    memcpy(deep, "{\"a\":", 5);
    memset(deep + 5, '[', DEPTH);
    put_safetensors("deep.safetensors", deep, DEPTH + 5, DEPTH + 5, 0);
    refused(in_folder("deep.safetensors"), (const char *[]){"deep.safetensors", "not valid JSON", "depth", NULL});
    free(deep);
}

static void test_no_files(void **state)
{
    (void)state;
    empty_folder();
    refused(in_folder("absent.safetensors"), (const char *[]){"absent.safetensors", "No such file", NULL});
    put_text("empty.safetensors", "");
    refused(in_folder("empty.safetensors"), (const char *[]){"empty.safetensors", " 0 bytes", " 8 ", NULL});
    assert_int_equal(mkfifo(in_folder("fifo.safetensors"), 0600), 0);
    refused(in_folder("fifo.safetensors"), (const char *[]){"fifo.safetensors", "FIFO", "regular file", NULL});
    refused("/dev/zero", (const char *[]){"/dev/zero", "device", "regular file", NULL});
    refused(in_folder("empty.safetensors/x"), (const char *[]){"empty.safetensors/x", "Not a directory", NULL});
    assert_int_equal(mkdir(in_folder("dir"), 0700), 0);
    refused(in_folder("dir"), (const char *[]){"/dir", "neither", "model.safetensors.index.json", NULL});
    assert_int_equal(mkdir(in_folder("dir/model.safetensors"), 0700), 0);
    refused(in_folder("dir"), (const char *[]){"dir/model.safetensors", "is a directory", "regular file", NULL});
    empty_folder();
}

static void put_shards(void)
{
    const char *a = "{\"a\":" T("\"U8\"", "[3]", "0", "3") "}", *b = "{\"b\":" T("\"U8\"", "[2]", "0", "2") "}";
    put_safetensors("s1.safetensors", a, strlen(a), strlen(a), 3);
    put_safetensors("s2.safetensors", b, strlen(b), strlen(b), 2);
}

static void test_shards(void **state)
{
    st_store *s = NULL;
    fmt_error e = {""};
    (void)state;
    empty_folder();
    put_shards();
    put_text("model.safetensors", "not looked at");
    put_text("model.safetensors.index.json", "{\"metadata\":{\"total_size\":5},\"weight_map\":"
                                             "{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"}}");
    assert_int_equal(st_open(in_folder(""), &s, &e), 0);
    assert_int_equal(st_count(s), 2);
    assert_string_equal(st_at(s, 0)->name, "a");
    assert_int_equal(st_find(s, "a")->bytes, 3);
    assert_non_null(strstr(st_find(s, "b")->file, "s2.safetensors"));
    size_t n1, n2;
    free(read_bytes(in_folder("s1.safetensors"), &n1));
    free(read_bytes(in_folder("s2.safetensors"), &n2));
    assert_int_equal(st_mapped_bytes(s), n1 + n2);
    assert_null(st_need(s, "c", 1, (const int64_t[]){7}, &e));
    assert_mentions(e.text, (const char *[]){"2 files", "'c'", "[7]", NULL});
    st_close(s);
}

static void test_bad_index(void **state)
{
    static const struct {
        const char *index;
        const char *words[4];
    } rows[] = {
        {"", {"not valid JSON"}},
        {"[]", {"array", "object"}},
        {"{}", {"weight_map"}},
        {"{\"weight_map\":{}}", {"weight_map"}},
        {"{\"weight_map\":[1]}", {"weight_map"}},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}", {"duplicate"}},
        {"{\"weight_map\":{\"a\":1}}", {"weight_map", "'a'", "is in 1"}},
        {"{\"weight_map\":{\"a\":\"\"}}", {"weight_map", "'a'", "\"\""}},
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", {"weight_map", "'a'", "../s1.safetensors", "plain"}},
        {"{\"weight_map\":{\"a\":\"..\"}}", {"weight_map", "'a'", "\"..\"", "plain"}},
        {"{\"weight_map\":{\"a\":\".\"}}", {"weight_map", "'a'", "\".\"", "plain"}},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", {"weight_map", "'a'", "/etc/passwd", "plain"}},
        {"{\"weight_map\":{\"a\":\"s3.safetensors\"}}", {"'s3.safetensors'", "no such file"}},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\"}}",
         {"does not list", "'b'", "'s2.safetensors'"}},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\"}}",
         {"'c'", "'s1.safetensors'", "not hold"}},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\",\"c\":\"s2.safetensors\"}}",
         {"'b'", "'s1.safetensors'", "'s2.safetensors' holds it"}},
    };
    (void)state;
    empty_folder();
    put_shards();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *words[6] = {"model.safetensors.index.json"};
        for (int k = 0; k < 4; k++) words[k + 1] = rows[i].words[k];
        put_text("model.safetensors.index.json", rows[i].index);
        refused(in_folder(""), words);
    }
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
    put_text("s2.safetensors", "short");
    refused(in_folder(""), (const char *[]){"s2.safetensors", " 5 bytes", NULL});
    empty_folder();
}

/* Three random bytes of a good file changed: whatever is accepted can be read to its last byte. */
static void test_mutations(void **state)
{
    size_t n;
    uint64_t random = 88172645463325252u;
    unsigned opened = 0, sum = 0;
    (void)state;
    put_safetensors("good.safetensors", TWO_TENSORS, strlen(TWO_TENSORS), strlen(TWO_TENSORS), 32);
    char *good = read_bytes(in_folder("good.safetensors"), &n);
    char *bad = malloc(n);
    assert_non_null(bad);
    for (int round = 0; round < 2000; round++) {
        st_store *s = NULL;
        fmt_error e = {""};
        memcpy(bad, good, n);
        for (int k = 0; k < 3; k++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bad[random % n] = (char)(random >> 40);
        }
        put_bytes("bad.safetensors", bad, n);
        if (st_open(in_folder("bad.safetensors"), &s, &e) != 0) {
            assert_mentions(e.text, (const char *[]){"bad.safetensors", NULL});
            continue;
        }
        opened++;
        for (size_t i = 0; i < st_count(s); i++)
            for (uint64_t b = 0; b < st_at(s, i)->bytes; b++) sum += ((const unsigned char *)st_at(s, i)->data)[b];
        st_close(s);
    }
    assert_true(opened > 0 && opened < 2000 && sum > 0);
    free(good);
    free(bad);
}

static void test_sentence(void **state)
{
    fmt_error e;
    char longer[2000];
    (void)state;
    assert_int_equal(fmt_fail(NULL, "%d", 1), -1);
    assert_int_equal(fmt_fail(&e, "a\nb\033c\177d\302\205e\303\244 %d", 7), -1);
    assert_string_equal(e.text, "a?b?c?d??e\303\244 7");
    for (size_t i = 0; i + 1 < sizeof longer; i++) longer[i] = i % 2 ? '\244' : '\303';
    longer[sizeof longer - 1] = '\0';
    fmt_fail(&e, "%s", longer);
    assert_int_equal(strlen(e.text), 766);
    fmt_fail(&e, "x%s", longer);
    assert_int_equal(strlen(e.text), 767);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentence),  cmocka_unit_test(test_wordmath),
        cmocka_unit_test(test_dtypes),    cmocka_unit_test(test_small_files),
        cmocka_unit_test(test_truncated), cmocka_unit_test(test_lying_headers),
        cmocka_unit_test(test_mutations), cmocka_unit_test(test_strange_lengths),
        cmocka_unit_test(test_no_files),  cmocka_unit_test(test_shards),
        cmocka_unit_test(test_bad_index),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
