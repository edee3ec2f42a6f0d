"""generate and eval on the shipped model: right answers, the same text on every way, no allocation after start."""
import json
import os
import re
import unittest

import support
from support import Case

QUESTION = "Question: Maya has 92 balloons. Max has 5 times as many. How many more does Max have?\nAnswer:"


class Generate(Case):
    def generate(self, *args, prompt=QUESTION, **how):
        return self.good("generate", support.WORDMATH, "--prompt", prompt, *args, **how)

    def test_answer_and_stats(self):
        """The answer is that of models/wordmath/eval.jsonl, first line, word for word."""
        plain = self.generate("--stop", "Question:")
        with open(os.path.join(support.WORDMATH, "eval.jsonl")) as f:
            self.assertEqual(plain, " " + json.loads(f.readline())["answer"] + "\n")
        text = self.generate("--stop", "Question:", "--stats")
        self.assertTrue(text.startswith(plain + "\n"))
        stats = text[len(plain) + 1:]
        self.assertRegex(stats, r"\nallocations after start: (0|not counted in this build)\n\Z")
        self.assertRegex(stats, r"(?m)^prompt: \d+ tokens in [\d.]+ s, [\d.]+ tokens/s$")
        self.assertRegex(stats, r"(?m)^generation: \d+ tokens, \d+ after the first in [\d.]+ s, [\d.]+ tokens/s$")
        part = {name: int(re.search(r"(?m)^  %s +(\d+) " % name, stats)[1])
                for name in ("weights", "KV cache", "workspace", "activations", "total", "checkpoint")}
        self.assertEqual(part["weights"] + part["KV cache"] + part["workspace"] + part["activations"], part["total"])
        self.assertEqual(part["checkpoint"], os.path.getsize(os.path.join(support.WORDMATH, "model.safetensors")))
        self.assertIn("shared by 4 MoE layers; one per layer would take %d" % (4 * part["workspace"]), stats)

    def test_same_text(self):
        plain = self.generate()
        floor = json.loads(self.good("plan", support.WORDMATH, "--json", "--dtype", "f32"))["workspace_floor_bytes"]
        for args in (("--threads", "1"), ("--threads", "2"), ("--workspace-limit", floor), ("--context", "2048"),
                     ("--top-k", "1", "--temperature", "3")):
            self.assertEqual(self.generate(*args), plain, args)
        self.assertEqual(self.generate(prompt="-", stdin=QUESTION.encode() + b"\n"), plain)
        self.assertIn("#### 368\n", self.generate("--dtype", "bf16"))

    def test_stop(self):
        """The text up to the stop text, less white space before it; a stop text that never comes hides nothing."""
        plain = self.generate()
        self.assertIn("#### 368\n\nQuestion:", plain)
        for stop in ("368 more", "Question:", "\n\nQ", "460", "=<<"):
            self.assertEqual(self.generate("--stop", stop), plain[:plain.index(stop)].rstrip() + "\n", stop)
        self.assertEqual(self.generate("--stop", "Questions:"), plain)
        self.assertEqual(self.generate("--stop", "#####"), plain)

    def test_always_utf8(self):
        """At a high temperature byte tokens come in any order; good() decodes strictly."""
        hot = "".join(self.generate("--temperature", "9", "--max-tokens", "100", "--seed", s) for s in (1, 2))
        self.assertIn("\ufffd", hot)

    def test_seed(self):
        args = ("--temperature", "0.8", "--seed", "7")
        first = self.generate(*args)
        self.assertEqual(self.generate(*args, "--threads", "1"), first)
        hot = [self.generate("--temperature", "4", "--max-tokens", "20", "--seed", seed) for seed in (1, 2)]
        self.assertNotEqual(*hot)

    def test_max_tokens(self):
        short = self.generate("--max-tokens", "5")
        self.assertTrue(self.generate().startswith(short[:-1]))
        self.assertLess(len(short), 40)

    def test_prompt_longer_than_the_context(self):
        """Both numbers; at the edge it runs."""
        text = self.bad(1, ["2048 tokens", "config.json"], "generate", support.WORDMATH, "--prompt", QUESTION,
                        "--max-tokens", "2048")
        tokens = int(re.search(r"prompt has (\d+) tokens", text)[1])
        self.assertIn(" %d together" % (tokens + 2048), text)
        self.bad(1, ["the prompt has %d tokens" % tokens, "2 more", "the context is %d tokens (--context)" % (tokens + 1)],
                 "generate", support.WORDMATH, "--prompt", QUESTION, "--context", tokens + 1, "--max-tokens", 2)
        self.generate("--context", tokens + 2, "--max-tokens", 2)
        self.bad(1, ["4000 tokens", "2048"], "generate", support.WORDMATH, "--prompt", "x", "--context", "4000")
        self.bad(1, ["--prompt", "no token"], "generate", support.WORDMATH, "--prompt", "")


class Eval(Case):
    def eval(self, *args, data=None):
        lines = self.good("eval", support.WORDMATH, "--data",
                          data or os.path.join(support.WORDMATH, "eval.jsonl"), *args).splitlines()
        self.assertRegex(lines[-3], r"\Aprompt tokens: \d+, new tokens: \d+, in [\d.]+ s: [\d.]+ tokens/s\Z")
        self.assertRegex(lines[-2], r"\Aallocations after start: (0|not counted in this build)\Z")
        return lines[-1], re.search(r"new tokens: \d+", lines[-3])[0]

    def test_forty(self):
        self.assertEqual(self.eval("--limit", "40")[0], "exact match 40/40")

    def test_batches_agree(self):
        few = [self.eval("--limit", "6", "--batch", n) for n in (1, 4)]
        self.assertEqual(few[0], few[1])
        self.assertEqual(few[0][0], "exact match 6/6")

    def test_scoring(self):
        """A wrong answer does not count; commas and spaces do not matter, nor what follows the number."""
        path = os.path.join(self.folder(), "data.jsonl")
        with open(os.path.join(support.WORDMATH, "eval.jsonl")) as f:
            one = json.loads(f.readline())
        with open(path, "w") as f:
            for answer in ("#### 368", "#### 3,68", "#### 1\n####  3 68 .", "#### 369", "#### 36", "#### 3680",
                           "#### 368\n#### 7"):
                f.write(json.dumps({"question": one["question"], "answer": answer}) + "\n")
            f.write("\n")
        self.assertEqual(self.eval(data=path)[0], "exact match 3/7")
        self.assertEqual(self.eval("--limit", "2", data=path)[0], "exact match 2/2")

    def test_shots(self):
        """Examples make the prompts longer; they come from the other problems."""
        lines = self.good("eval", support.WORDMATH, "--data", os.path.join(support.WORDMATH, "eval.jsonl"), "--limit", "2",
                          "--shots", "2", "--max-tokens", "8").splitlines()
        self.assertRegex(lines[-1], r"\Aexact match [012]/2\Z")
        self.assertGreater(int(re.search(r"prompt tokens: (\d+)", lines[0])[1]), 2 * 150)

    def test_no_progress_bar_but_on_a_terminal(self):
        self.assertNotIn("\r", self.eval("--limit", "1")[0])  # good() has checked that stderr is empty
        import pty
        import subprocess
        mine, theirs = pty.openpty()
        r = subprocess.run([support.PROGRAM, "eval", support.WORDMATH, "--limit", "2", "--max-tokens", "8", "--data",
                            os.path.join(support.WORDMATH, "eval.jsonl")], stdout=subprocess.PIPE, stderr=theirs,
                           env=support.environment())
        os.close(theirs)
        shown = os.read(mine, 65536).decode()
        os.close(mine)
        self.assertEqual(r.returncode, 0)
        self.assertRegex(shown, r"\r\[#+\] 2/2, \d+ tokens/s, ETA 0 s")

    def test_bad_lines(self):
        path = os.path.join(self.folder(), "bad.jsonl")
        good = '{"question": "q", "answer": "#### 1"}\n'
        for second, parts in (("{nonsense\n", ["not JSON"]), ("[1]\n", ["question"]), ('"text"\n', ["not JSON"]),
                              ('{"question": 5, "answer": "#### 1"}\n', ["question"]),
                              ('{"question": "q"}\n', ['"answer"']),
                              ('{"question": "q", "answer": "five"}\n', ["####"])):
            with open(path, "w") as f:
                f.write(good + second)
            self.bad(1, [path + ":2: ", *parts], "eval", support.WORDMATH, "--data", path)
        with open(path, "w") as f:
            f.write(good)
        self.bad(1, [path, "--shots is 1", "at most 0"], "eval", support.WORDMATH, "--data", path, "--shots", "1")
        open(path, "w").close()
        self.bad(1, [path, "no problem"], "eval", support.WORDMATH, "--data", path)
        self.bad(1, ["/nowhere.jsonl", "No such file"], "eval", support.WORDMATH, "--data", "/nowhere.jsonl")
        self.bad(1, ["problem 1", "2048"], "eval", support.WORDMATH, "--data",
                 os.path.join(support.WORDMATH, "eval.jsonl"), "--max-tokens", "2048")


if __name__ == "__main__":
    support.main()
