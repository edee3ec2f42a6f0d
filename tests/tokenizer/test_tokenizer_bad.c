/* test_tokenizer_bad.c - files that must be refused, each with a sentence that names the file and the part.
 * A case is a small sound tokenizer.json in which one value is replaced; that the sound one opens is a test too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/tokenizer.h"

static const char sound[] =
    "{'version':'1.0','truncation':null,'padding':null,'added_tokens':[{'id':5,'content':'<s>','single_word':false,"
    "'lstrip':false,'rstrip':false,'normalized':false,'special':true}],'normalizer':null,'pre_tokenizer':{'type':'"
    "Sequence',"
    "'pretokenizers':[{'type':'Split','pattern':{'Regex':'b+'},'behavior':'Isolated','invert':false},{'type':'Digits',"
    "'individual_digits':true},{'type':'ByteLevel','add_prefix_space':false,'trim_offsets':true,'use_regex':true}]},"
    "'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>','type_id':0}},{'Sequence':{'"
    "id':'A',"
    "'type_id':0}}],'pair':[],'special_tokens':{'<s>':{'id':'<s>','ids':[5],'tokens':['<s>']}}},'decoder':{'type':'"
    "ByteLevel',"
    "'add_prefix_space':true,'trim_offsets':true,'use_regex':true},'model':{'type':'BPE','dropout':null,'unk_token':"
    "null,"
    "'continuing_subword_prefix':null,'end_of_word_suffix':null,'fuse_unk':false,'byte_fallback':false,'ignore_merges':"
    "false,"
    "'vocab':{'a':0,'b':1,'c':2,'ab':3,'abc':4},'merges':[['a','b'],['ab','c']]}}";

#define ADDED(id, content, more)                                                                                       \
    "[{'id':" id ",'content':" content ",'single_word':false,'lstrip':false,'rstrip':false,"                           \
    "'normalized':false,'special':true" more "}]"
#define SPLIT(pattern) "{'type':'Split','pattern':" pattern ",'behavior':'Isolated','invert':false}"
#define TEMPLATE(single, tokens)                                                                                       \
    "{'type':'TemplateProcessing','single':" single ",'pair':[],'special_tokens':" tokens "}"
#define BYTE_LEVEL "{'type':'ByteLevel','add_prefix_space':false,'trim_offsets':true}"

static const struct {
    const char *field;    /* dotted; the last component is replaced, or removed when value is NULL */
    const char *value;    /* JSON with ' for " */
    const char *named[2]; /* both must be in the sentence */
} cases[] = {
    {"version", "'2.0'", {"version", "2.0"}},
    {"version", "1", {"version", "1.0"}},
    {"truncation", "{'max_length':5}", {"truncation", "max_length"}},
    {"padding", "{'strategy':'BatchLongest'}", {"padding", "BatchLongest"}},
    {"surprise", "1", {"surprise", "not known"}},
    {"model", NULL, {"model", "missing"}},
    {"model", "[]", {"model", "object"}},
    {"model.type", "'Unigram'", {"model.type", "Unigram"}},
    {"model.type", "3", {"model.type", "BPE"}},
    {"model.surprise", "1", {"model.surprise", "not known"}},
    {"model.dropout", "0.1", {"model.dropout", "null"}},
    {"model.byte_fallback", "true", {"model.byte_fallback", "false"}},
    {"model.ignore_merges", "1", {"model.ignore_merges", "true"}},
    {"model.fuse_unk", "'no'", {"model.fuse_unk", "true"}},
    {"model.continuing_subword_prefix", "'##'", {"model.continuing_subword_prefix", "##"}},
    {"model.end_of_word_suffix", "'</w>'", {"model.end_of_word_suffix", "</w>"}},
    {"model.unk_token", "'a'", {"model.unk_token", "every byte"}},
    {"model.unk_token", "7", {"model.unk_token", "7"}},
    {"model.vocab", NULL, {"model.vocab", "missing"}},
    {"model.vocab", "{}", {"model.vocab", "not empty"}},
    {"model.vocab", "['a']", {"model.vocab", "object"}},
    {"model.vocab.a", "'0'", {"model.vocab.", "is \"0\""}},
    {"model.vocab.a", "0.0", {"model.vocab.", "integer"}},
    {"model.vocab.a", "-1", {"model.vocab.", "-1"}},
    {"model.vocab.a", "4194304", {"model.vocab.", "4194304"}},
    {"model.vocab.a", "9223372036854775807", {"model.vocab.", "9223372036854775807"}},
    {"model.vocab.a", "1", {"model.vocab", "id 1"}},
    {"model.merges", NULL, {"model.merges", "missing"}},
    {"model.merges", "{}", {"model.merges", "array"}},
    {"model.merges", "['a b','ab']", {"model.merges[1]", "one space"}},
    {"model.merges", "['a b','a b c']", {"model.merges[1]", "one space"}},
    {"model.merges", "[['a','b'],['a']]", {"model.merges[1]", "two strings"}},
    {"model.merges", "[['a','b'],['a',1]]", {"model.merges[1]", "two strings"}},
    {"model.merges", "[['a','b'],'ab c']", {"model.merges[1]", "two strings"}},
    {"model.merges", "[1]", {"model.merges[0]", "1"}},
    {"model.merges", "[['z','b']]", {"model.merges[0]", "the first"}},
    {"model.merges", "[['a','z']]", {"model.merges[0]", "the second"}},
    {"model.merges", "[['b','a']]", {"model.merges[0]", "what they make"}},
    {"model.merges", "[['abc','abc']]", {"model.merges[0]", "what they make"}},
    {"added_tokens", "{}", {"added_tokens", "array"}},
    {"added_tokens", "[1]", {"added_tokens[0]", "missing"}},
    {"added_tokens", ADDED("6", "'<s>'", ""), {"added_tokens[0].id", "gets id 5"}},
    {"added_tokens", ADDED("5", "'ab'", ""), {"added_tokens[0].id", "gets id 3"}},
    {"added_tokens", ADDED("-5", "'<s>'", ""), {"added_tokens[0].id", "-5"}},
    {"added_tokens", ADDED("99999999999", "'<s>'", ""), {"added_tokens[0].id", "99999999999"}},
    {"added_tokens", ADDED("5", "''", ""), {"added_tokens[0].content", "1 to 1024"}},
    {"added_tokens", ADDED("5", "5", ""), {"added_tokens[0].content", "1 to 1024"}},
    {"added_tokens", ADDED("5", "'<s>'", ",'extra':1"), {"added_tokens[0].extra", "not known"}},
    {"added_tokens", "[{'id':5,'content':'<s>'}]", {"added_tokens[0].single_word", "missing"}},
    {"normalizer", "{'type':'Lowercase'}", {"normalizer.type", "Lowercase"}},
    {"normalizer", "{'type':'Sequence','normalizers':[{'type':'NFKC'}]}", {"normalizers[].type", "NFKC"}},
    {"normalizer", "'NFC'", {"normalizer.type", "missing"}},
    {"pre_tokenizer", "{'type':'Metaspace'}", {"pre_tokenizer.type", "Metaspace"}},
    {"pre_tokenizer", "{}", {"pre_tokenizer.type", "missing"}},
    {"pre_tokenizer", "{'type':'Sequence'}", {"pre_tokenizer.pretokenizers", "missing"}},
    {"pre_tokenizer", "{'type':'ByteLevel'}", {"pre_tokenizer.add_prefix_space", "missing"}},
    {"pre_tokenizer",
     "{'type':'Sequence','pretokenizers':[" BYTE_LEVEL "," BYTE_LEVEL "]}",
     {"pretokenizers[1].type", "last"}},
    {"pre_tokenizer", "{'type':'Digits'}", {"individual_digits", "missing"}},
    {"pre_tokenizer", "{'type':'Digits','individual_digits':1}", {"individual_digits", "true and false"}},
    {"pre_tokenizer",
     "{'type':'Split','pattern':{'Regex':'a'},'behavior':'Sometimes','invert':false}",
     {"behavior", "Sometimes"}},
    {"pre_tokenizer", "{'type':'Split','pattern':{'Regex':'a'},'behavior':'Isolated'}", {"invert", "missing"}},
    {"pre_tokenizer", SPLIT("'a'"), {"pre_tokenizer.pattern", "Regex or String"}},
    {"pre_tokenizer", SPLIT("{'Regex':''}"), {"pre_tokenizer.pattern", "0 bytes"}},
    {"pre_tokenizer", SPLIT("{'Regex':'a','String':'a'}"), {"pre_tokenizer.pattern", "one string"}},
    {"pre_tokenizer", SPLIT("{'Regex':'('}"), {"pre_tokenizer.pattern", "PCRE2"}},
    {"pre_tokenizer", SPLIT("{'Regex':'[a&&b]'}"), {"pre_tokenizer.pattern", "intersection"}},
    {"pre_tokenizer", SPLIT("{'Regex':'[a[b]]'}"), {"pre_tokenizer.pattern", "class within a class"}},
    {"pre_tokenizer", SPLIT("{'Regex':'[]a]'}"), {"pre_tokenizer.pattern", "empty class"}},
    {"pre_tokenizer", SPLIT("{'Regex':'[a'}"), {"pre_tokenizer.pattern", "without its end"}},
    {"pre_tokenizer", SPLIT("{'Regex':'\\\\h'}"), {"pre_tokenizer.pattern", "h at byte 0"}},
    {"pre_tokenizer", SPLIT("{'Regex':'a\\\\b'}"), {"pre_tokenizer.pattern", "b at byte 1"}},
    {"pre_tokenizer", SPLIT("{'Regex':'[\\\\W]'}"), {"pre_tokenizer.pattern", "W at byte 1"}},
    {"pre_tokenizer", SPLIT("{'Regex':'(a)\\\\1'}"), {"pre_tokenizer.pattern", "1 at byte 3"}},
    {"pre_tokenizer", SPLIT("{'Regex':'a\\\\'}"), {"pre_tokenizer.pattern", "at the end"}},
    {"pre_tokenizer", SPLIT("{'Regex':'a(?i)b'}"), {"pre_tokenizer.pattern", "group"}},
    {"pre_tokenizer", SPLIT("{'Regex':'(?<n>a)'}"), {"pre_tokenizer.pattern", "group"}},
    {"pre_tokenizer", SPLIT("{'Regex':'(*COMMIT)'}"), {"pre_tokenizer.pattern", "(*"}},
    {"pre_tokenizer", SPLIT("{'Regex':'a{1,2}+'}"), {"pre_tokenizer.pattern", "{n,m}+"}},
    {"pre_tokenizer", SPLIT("{'Regex':'a{,2}'}"), {"pre_tokenizer.pattern", "{n,m}"}},
    {"pre_tokenizer", SPLIT("{'Regex':'\\\\pL'}"), {"pre_tokenizer.pattern", "braces"}},
    {"pre_tokenizer", SPLIT("{'Regex':'\\\\p{Klingon}'}"), {"pre_tokenizer.pattern", "property"}},
    {"pre_tokenizer", SPLIT("{'Regex':'\\\\p{L'}"), {"pre_tokenizer.pattern", "braces"}},
    {"pre_tokenizer", SPLIT("{'Regex':'\\\\x{}'}"), {"pre_tokenizer.pattern", "code"}},
    {"pre_tokenizer", SPLIT("{'Regex':'\\\\u00'}"), {"pre_tokenizer.pattern", "code"}},
    {"pre_tokenizer", SPLIT("{'Regex':'\\\\x{110000}'}"), {"pre_tokenizer.pattern", "PCRE2"}},
    {"post_processor", "{'type':'BertProcessing'}", {"post_processor.type", "BertProcessing"}},
    {"post_processor",
     "{'type':'Sequence','processors':[{'type':'RobertaProcessing'}]}",
     {"processors[0].type", "RobertaProcessing"}},
    {"post_processor", TEMPLATE("[{'Sequence':{'id':'B'}}]", "{}"), {"post_processor.single", "Sequence A"}},
    {"post_processor", TEMPLATE("[]", "{}"), {"post_processor.single", "one Sequence A"}},
    {"post_processor", TEMPLATE("'$A'", "{}"), {"post_processor.single", "array"}},
    {"post_processor", TEMPLATE("[{'SpecialToken':{'id':'<s>'}}]", "{}"), {"special_tokens.<s>", "missing"}},
    {"post_processor", TEMPLATE("[{'SpecialToken':{'id':'<s>'}}]", "{'<s>':{'ids':[6]}}"), {"special_tokens.<s>", "6"}},
    {"post_processor",
     TEMPLATE("[{'SpecialToken':{'id':'<s>'}}]", "{'<s>':{'ids':[-1]}}"),
     {"special_tokens.<s>", "-1"}},
    {"post_processor",
     TEMPLATE("[{'SpecialToken':{'id':'<s>'}}]", "{'<s>':{'ids':5}}"),
     {"special_tokens.<s>", "array"}},
    {"decoder", NULL, {"decoder", "missing"}},
    {"decoder", "null", {"decoder", "null"}},
    {"decoder", "{'type':'WordPiece'}", {"decoder.type", "WordPiece"}},
    {"decoder", "{'type':'Sequence','decoders':[]}", {"decoder.decoders", "ByteLevel alone"}},
};

static char folder[] = "/tmp/moewe-tok-XXXXXX";
static char file[64];

static void quote(char *text)
{
    for (char *p = text; *p; p++) {
        if (*p == '\'') *p = '"';
    }
}

static json_t *parse(const char *text)
{
    char *copy = strdup(text);
    json_error_t why;
    assert_non_null(copy);
    quote(copy);
    json_t *v = json_loads(copy, JSON_DECODE_ANY, &why);
    if (!v) fail_msg("%s: %s", copy, why.text);
    free(copy);
    return v;
}

static void write_file(const char *text, size_t bytes)
{
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void write_json(const json_t *v)
{
    char *text = json_dumps(v, JSON_COMPACT);
    assert_non_null(text);
    write_file(text, strlen(text));
    free(text);
}

static void must_refuse(const char *what, const char *first, const char *second)
{
    tok *t = (tok *)&file;
    fmt_error e = {""};
    if (tok_open(file, &t, &e) != -1) fail_msg("%s is accepted", what);
    assert_null(t);
    if (!strstr(e.text, file) || !strstr(e.text, first) || !strstr(e.text, second)) {
        fail_msg("%s: the sentence \"%s\" lacks the file, %s or %s", what, e.text, first, second);
    }
    assert_null(strchr(e.text, '\n'));
    assert_int_equal(tok_open(file, &t, NULL), -1);
}

static void the_sound_file_opens(void **state)
{
    (void)state;
    json_t *v = parse(sound);
    tok *t = NULL;
    fmt_error e = {""};
    write_json(v);
    json_decref(v);
    if (tok_open(folder, &t, &e) != 0) fail_msg("%s", e.text);
    static const int32_t expected[] = {5, 0, 1, 2, 0}; /* "b" is split off before any merge */
    int32_t *ids = NULL;
    size_t count = 0;
    assert_int_equal(tok_encode(t, "abca", 4, &ids, &count, &e), 0);
    assert_int_equal(count, 5);
    assert_memory_equal(ids, expected, sizeof expected);
    free(ids);
    assert_int_equal(tok_encode(t, NULL, 0, &ids, &count, &e), 0);
    assert_int_equal(count, 1);
    free(ids);
    /* No token for "d": tokenizers would drop it. */
    assert_int_equal(tok_encode(t, "ad", 2, &ids, &count, &e), -1);
    assert_null(ids);
    assert_non_null(strstr(e.text, "0x64"));
    tok_close(t);
}

static void each_case_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64], *rest = path, *key = NULL;
        json_t *root = parse(sound), *at = root;
        snprintf(path, sizeof path, "%s", cases[i].field);
        for (key = strsep(&rest, "."); rest; key = strsep(&rest, ".")) at = json_object_get(at, key);
        assert_non_null(at);
        if (cases[i].value)
            json_object_set_new(at, key, parse(cases[i].value));
        else
            json_object_del(at, key);
        write_json(root);
        json_decref(root);
        must_refuse(cases[i].value ? cases[i].value : cases[i].field, cases[i].named[0], cases[i].named[1]);
    }
}

static void broken_json_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "null",
                                        "{\"version\":\"1.0\",\"version\":\"1.0\"}",
                                        "{} x",
                                        "{\"model\":{\"vocab\":{\"\\ud800\":1}}}",
                                        "{\"version\":\"\xff\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(texts[i], strlen(texts[i]));
        must_refuse(texts[i], "", "");
    }
}

/* Every prefix of a sound file is refused: a download that stopped half way. */
static void truncated_files_are_refused(void **state)
{
    (void)state;
    char text[sizeof sound];
    memcpy(text, sound, sizeof sound);
    quote(text);
    for (size_t n = 0; n + 1 < sizeof sound; n += 7) {
        write_file(text, n);
        must_refuse("a prefix", "JSON", "");
    }
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    json_t *root = parse(sound), *inner = parse(BYTE_LEVEL);
    for (int i = 0; i < 9; i++) inner = json_pack("{s:s, s:[o]}", "type", "Sequence", "pretokenizers", inner);
    json_object_set_new(root, "pre_tokenizer", inner);
    write_json(root);
    json_decref(root);
    must_refuse("nine sequences", "pre_tokenizer", "nested");
}

static void missing_files_are_named(void **state)
{
    (void)state;
    assert_int_equal(unlink(file), 0);
    must_refuse("no file", "", "");
    tok *t = NULL;
    fmt_error e = {""};
    assert_int_equal(tok_open(folder, &t, &e), -1);
    assert_non_null(strstr(e.text, file));
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(file, sizeof file, "%s/tokenizer.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sound_file_opens),    cmocka_unit_test(each_case_is_refused),
        cmocka_unit_test(broken_json_is_refused),  cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(deep_nesting_is_refused), cmocka_unit_test(missing_files_are_named),
    };
    return cmocka_run_group_tests_name("tokenizer_bad", tests, make_folder, remove_folder);
}
