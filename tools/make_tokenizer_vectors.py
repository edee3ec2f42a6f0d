#!/usr/bin/env python3
"""Regenerates tests/tokenizer/data/*.json and tests/tokenizer/vectors.json with Hugging Face `tokenizers`.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tools/make_tokenizer_vectors.py

The test run needs neither this program nor that package.  A group of vectors.json is a tokenizer.json, fields to put
in place of the file's own, and cases: the text, its ids as encode(text) gives them, and decode(ids,
skip_special_tokens=False).
"""
import json
import pathlib

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "tests" / "tokenizer"

CORPUS = [
    "the theory of the thing is that then and there the other 1234 then 123 and 12 of 2024",
    "Hello hello world, it's what we'll say; don't you're I'm they've he'd HELLO WORLD",
    "naïve café Größe привет мир 你好世界 emoji 😀😀 👩‍👩‍👧",
    "    if (x == y) {\n\t\treturn foo_bar[10];\n    }\r\n    \n\n",
] * 4

TRICKY = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\r\n\r\n \n", " \n ", "a", " a", "a ", "  a  ", "hello world",
    "Hello  World   again    ", "it's IT'S it'S don't DON'T we'll WE'LL they've he'd I'm you're 'tis ''s '", "it\u2019s",
    "0", "12", "123", "1234", "12345 678", "3.14159", "1,000,000", "x1y22z333", "\u0661\u0662\u0663", "\u00bd\u00b2\u2167",
    "na\u00efve caf\u00e9 Gr\u00f6\u00dfe", "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440",
    "\u4f60\u597d\u4e16\u754c\uff01\u3000\u3053\u3093\u306b\u3061\u306f", "\U0001f600\U0001f600 \U0001f680",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f", "a\u200bb\u200cc\u200dd\ufeffe", "a\u00a0b\u2003c\u2028d\u0085e\u180ef",
    "\x00", "a\x00b", "\x01\x7f\u0080\u00ad\u00a0\u00ff\u0100\u0143", "\ufffd\uffff\U0010ffff", "!!!??? ...---___",
    "(x==y){\n\t\treturn foo_bar[10];\n    }\r\n", "http://a.b/c?d=e&f=g#h", "\u017f's '\u017f 's 'S", "a" * 300, " " * 200,
    " " * 50 + "x", "\n" * 60, "ab" * 100, "the" * 50, "1" * 70, "\u00e9" * 40, "\U0001f600" * 25, "a b\tc\nd\re\x0bf\x0cg",
    "  leading", "trailing  ", "\n \n\t x", "the the the", "THE The tHe", "-ab-", "--a--", "a-b_c.d", "_\u203f_",
]
MARKS = ["e\u0301", "a\u0300\u0323 x", "\u0915\u094d\u0937", "\u0e01\u0e33", "\u0300", "\u1100\u1161\u11a8", " \u0301a", "'\u0301s"]

SPECIAL = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)


def train(name, n_merges, alphabet=True):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    base = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=256 + n_merges, show_progress=False, initial_alphabet=base))
    return json.loads(t.to_str())


def added(first, *tokens):
    return [dict(SPECIAL, id=first + i, **{"content": c, **flags}) for i, (c, flags) in enumerate(tokens)]


def write(name, spec):
    path = HERE / "data" / name
    path.write_text(json.dumps(spec, ensure_ascii=True, separators=(",", ":")) + "\n")
    return path


def legacy_merges(spec):
    spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]


def byte_level(prefix, regex):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(behavior, invert=False, **pattern):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def make_data():
    gpt2 = train("gpt2", 60)
    gpt2["pre_tokenizer"] = byte_level(True, True)
    gpt2["post_processor"] = byte_level(True, True)
    gpt2["added_tokens"] = added(len(gpt2["model"]["vocab"]), ("<|endoftext|>", {}))
    legacy_merges(gpt2)
    del gpt2["model"]["type"]
    gpt2["model"]["unk_token"] = ""
    write("gpt2.json", gpt2)

    tokens = train("added", 60)
    n = len(tokens["model"]["vocab"])
    plain = dict(special=False, normalized=True)
    tokens["added_tokens"] = [dict(SPECIAL, id=tokens["model"]["vocab"]["the"], content="the", single_word=True, special=False,
                                   normalized=True)] + added(
        n, ("<s>", {}), ("</s>", {}), ("<left>", dict(lstrip=True)), ("<right>", dict(rstrip=True)),
        ("<both>", dict(lstrip=True, rstrip=True)), ("<mask>", dict(lstrip=True, **plain)), ("word", dict(single_word=True, **plain)),
        ("words", plain), ("<a", plain), ("<ab>", {}), ("<ab><c>", {}), ("b><", plain), ("aab", dict(single_word=True)), ("ab", {}),
        ("\n", dict(rstrip=True)), ("  ", dict(plain)), ("\u0441\u043b\u043e\u0432\u043e", dict(single_word=True, lstrip=True)), ("@@", dict(single_word=True)))
    tokens["post_processor"] = {"type": "Sequence", "processors": [byte_level(True, True), {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "end", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [n], "tokens": ["<s>"]},
                           "end": {"id": "end", "ids": [n + 1, n + 1], "tokens": ["</s>", "</s>"]}}}]}
    legacy_merges(tokens)
    write("added.json", tokens)

    # Whole words that no merges lead to: only ignore_merges finds them.
    splits = train("splits", 40)
    for word in ("hello", "\u0120world", "123", "caf\u00c3\u00a9", "return", "\u00f0\u0141\u013a\u0122"):
        splits["model"]["vocab"].setdefault(word, len(splits["model"]["vocab"]))
    splits["model"]["ignore_merges"] = True
    splits["pre_tokenizer"] = sequence(split("Removed", String="-"), {"type": "Digits", "individual_digits": False},
                                       split("MergedWithNext", Regex=r"\s"), byte_level(False, False))
    write("splits.json", splits)


CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def patches():
    # add_prefix_space puts a space before each piece: where the splits are shows in the ids, whatever merges.
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            for pattern in (dict(Regex=r"\s+"), dict(String="ab"), dict(Regex=r"\p{N}{1,2}?|[a-c]"), dict(Regex=r"x*")):
                yield sequence(split(behavior, invert, **pattern), byte_level(True, False)), False
    for pattern in (CL100K, O200K):
        yield sequence(split("Isolated", Regex=pattern), byte_level(True, False)), True
    yield sequence(*(split("Isolated", Regex=p) for p in DEEPSEEK), byte_level(True, False)), True
    yield sequence({"type": "Digits", "individual_digits": True}, byte_level(True, True)), True
    yield sequence(sequence({"type": "Digits", "individual_digits": False}), byte_level(True, False)), True
    for pattern in (r"(?>\s)(?<!ab)\w", r"\P{L}?\P{N}", r"^.", r".$", r"\w+", r"\W+", r"[\w']+", r"\d\D?", r"\p{Han}+", r"\P{Greek}", r"\p{^L}+", r"(?<=a)b|(?<!a)c", r"(?>a|ab)c?",
                    r"(?i)hello|THE", r"[^\S\n]+", r"a++b|\x41|\x{1F600}|\u00e9", r"(a|b)+?", r"\v|\f|\t", r"\A\s|\s\z", r"a{2,}|b{2}"):
        yield sequence(split("Isolated", Regex=pattern), byte_level(True, False)), False


ADDED = ["<s>", "a<s>b", " <left> x", "a   <left>   <right>   b", "x <both> y <both>", "<mask>", "a  \t<mask> b", "word", "words", "word words sword word.",
         "swordword", "_word_ word", "\u00e9word word\u00e9", "word\u0301", "a word", "<ab>", "<ab><c>", "<ab><ab><c><c>", "<a><ab", "aab", "xaab aabx aab", "aabab",
         "\n\n\nx", " \n\t\n <left>", "<right>\n\nx", "<right> \n  <both>\n \n", "  \u0441\u043b\u043e\u0432\u043e \u0441\u043b\u043e\u0432\u043e\u0441", "the then the",
         "b><b><", "@@ a@@ @@@@ @@b", "    ", "<left><left>  <left>", "</s><s></s>", "a\u2003<left>\u3000<right>\u00a0\u0085x", "\u200dword word\u200d", "1word word2"]

SHORT = ["", "ab", "xabab ab", "  a  b\n c", "abc123abc 45", "1 2  33", "xxaxx", "ax", "x", "-ab-12-", "the aab b", "c ac bc", "hello world HeLLo The",
         "\u4f60\u597dabc\u03b1\u03b2", "a\u00a0b\u180ec\u0085d", "line\nline\n", "\n", "caf\u00e9 \U0001f600 A\u00e9", "don't _x\u203fy e\u0301", "\t\x0b\x0c ", "aaab abb bb", "w\u00b2 \u00bda\u2167"]


def group(path, patch, texts):
    spec = json.loads((ROOT / path).read_text())
    spec.update(patch)
    t = Tokenizer.from_str(json.dumps(spec))
    cases = []
    for text in texts:
        ids = t.encode(text).ids
        cases.append({"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)})
    return {"file": path, "patch": patch, "cases": cases}


def main():
    make_data()
    data = "tests/tokenizer/data/"
    added_wordmath = ["<|endoftext|>", "a<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_end|>", "<|im_start", "<<|endoftext|>>", "\n<|endoftext|> \n"]
    groups = [
        group("models/wordmath/tokenizer.json", {}, TRICKY + MARKS + added_wordmath),
        group("models/wordmath/tokenizer.json", {"normalizer": {"type": "NFC"}}, [t for t in TRICKY if "\uffff" not in t] + added_wordmath),
        group(data + "gpt2.json", {}, TRICKY + MARKS + ["<|endoftext|>", "a<|endoftext|>b <|endoftext|> c"]),
        group(data + "gpt2.json", {"pre_tokenizer": byte_level(False, True)}, SHORT),
        group(data + "added.json", {}, TRICKY + ADDED),
        group(data + "added.json", {"pre_tokenizer": byte_level(True, True)}, ADDED),
        group(data + "splits.json", {}, TRICKY + MARKS),
    ]
    for pre, long in patches():
        groups.append(group(data + "splits.json", {"pre_tokenizer": pre}, TRICKY + MARKS if long else SHORT))
    lines = ",\n".join(json.dumps(g, ensure_ascii=True, separators=(",", ":")) for g in groups)
    head = json.dumps("tokenizers " + tokenizers.__version__)
    (HERE / "vectors.json").write_text('{"made_by":%s,"groups":[\n%s\n]}\n' % (head, lines))


if __name__ == "__main__":
    main()
