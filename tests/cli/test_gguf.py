"""Every command takes a GGUF file for a folder, with the same bits; the files are made by tools/make_gguf.py, which
shares no code with the program."""
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import unittest

import support
from support import Case

QUESTION = "Question: Maya has 92 balloons. Max has 5 times as many. How many more does Max have?\nAnswer:"
FAMILIES = ("qwen3_moe", "qwen2_moe", "olmoe", "deepseek_v2", "deepseek_v3")


def vectors(family):
    return os.path.join(support.SOURCE, "tests", "data", "vectors", family)


def make_gguf():
    if os.path.join(support.SOURCE, "tools") not in sys.path:
        sys.path.insert(0, os.path.join(support.SOURCE, "tools"))
    return importlib.import_module("make_gguf")


def make(*args, **how):
    return make_gguf().make(*args, **how)


class Blocks(Case):
    """The reference of each family, word for word as from its safetensors: error, routing, hash of the bits."""

    def test_families(self):
        folder = self.folder()
        for family in FAMILIES:
            reference = os.path.join(vectors(family), "reference.safetensors")
            wanted = self.good("verify", vectors(family))
            self.assertIn("blocks pass", wanted)
            for kind, fused in (("bf16", False), ("bf16", True), ("f32", False)):
                path = os.path.join(folder, "m.gguf")
                make(vectors(family), path, kind, fused=fused)
                self.assertEqual(self.good("verify", path, "--reference", reference), wanted, (family, kind, fused))

    def test_split(self):
        """The first of three parts, and the folder that holds them with the reference."""
        folder = self.folder()
        first = make(vectors("qwen3_moe"), os.path.join(folder, "m.gguf"), "bf16", parts=3)[0]
        shutil.copy(os.path.join(vectors("qwen3_moe"), "reference.safetensors"), folder)
        wanted = self.good("verify", vectors("qwen3_moe"))
        self.assertEqual(self.good("verify", first), wanted)
        self.assertEqual(self.good("verify", folder), wanted)
        shutil.copy(first, os.path.join(folder, "other.gguf"))
        self.bad(1, ["m-00001-of-00003.gguf", "other.gguf"], "verify", folder)

    def test_blocks_of_codes(self):
        """Of 8 and 4 bits, where rows are whole blocks (here not those of down)."""
        for kind in ("q8_0", "q4_0"):
            folder, reference = self.folder(), os.path.join(vectors("qwen3_moe"), "reference.safetensors")
            path, out = os.path.join(folder, "m.gguf"), os.path.join(folder, "y.safetensors")
            make(vectors("qwen3_moe"), path, kind)
            self.good("run", path, "--layer", "1", "--input", reference + ":model.layers.1.mlp.input", "--output", out)
            wanted = support.read_safetensors(reference)["model.layers.1.mlp.output"]
            (found,) = [v for v in support.read_safetensors(out).values() if v[1][-1] == wanted[1][-1]]
            error = support.relative_error(found[2], wanted[2])
            self.assertLess(error, 0.02 if kind == "q8_0" else 0.3, kind)
            self.assertGreater(error, 1e-5, kind)

    def test_plan(self):
        """The matrices take what they take in the folder's form, and all weights what the file holds."""
        path = os.path.join(self.folder(), "m.gguf")
        for family in FAMILIES:
            make(vectors(family), path, "bf16")
            plans = [json.loads(self.good("plan", where, "--json")) for where in (vectors(family), path)]
            for field in ("experts_bytes", "embeddings_bytes", "expert_format", "scales_bytes"):
                self.assertEqual(plans[0]["weights"][field], plans[1]["weights"][field], (family, field))
            for field in ("model_type", "parameters", "layers", "hidden", "inter", "shared_inter", "experts",
                          "top_k", "kv_cache"):
                self.assertEqual(plans[0][field], plans[1][field], (family, field))
            held = sum(len(raw) for _, _, raw in make_gguf().tensors_of(vectors(family), "bf16").values())
            self.assertEqual(plans[1]["weights"]["bytes"], held, family)


class Wordmath(Case):
    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.TemporaryDirectory(prefix="moewe-gguf-")
        cls.addClassCleanup(cls.made.cleanup)
        cls.f32 = os.path.join(cls.made.name, "f32.gguf")
        make(support.WORDMATH, cls.f32, "f32")

    def generate(self, model, *args):
        return self.good("generate", model, "--prompt", QUESTION, *args)

    def test_same_text(self):
        """Tokens and hyper-parameters come from the metadata, and logits have the same bits: so has what is drawn."""
        with open(os.path.join(support.WORDMATH, "eval.jsonl")) as f:
            answer = " " + json.loads(f.readline())["answer"] + "\n"
        self.assertEqual(self.generate(self.f32, "--stop", "Question:"), answer)
        for args in ((), ("--temperature", "0.8", "--seed", "7"),
                     ("--temperature", "2", "--seed", "1", "--max-tokens", "200"), ("--dtype", "bf16")):
            self.assertEqual(self.generate(self.f32, *args), self.generate(support.WORDMATH, *args), args)
        stats = self.generate(self.f32, "--stats", "--max-tokens", "4")
        self.assertRegex(stats, r"\nallocations after start: (0|not counted in this build)\n\Z")
        self.assertEqual(int(re.search(r"(?m)^  checkpoint +(\d+) ", stats)[1]), os.path.getsize(self.f32))

    def test_verify(self):
        reference = os.path.join(support.WORDMATH, "reference.safetensors")
        self.assertEqual(self.good("verify", self.f32, "--reference", reference), self.good("verify", support.WORDMATH))

    def test_eight_bits(self):
        """All matrices in Q8_0, the embedding too: it is decoded row by row."""
        path = os.path.join(self.folder(), "m.gguf")
        make(support.WORDMATH, path, "q8_0")
        data = os.path.join(support.WORDMATH, "eval.jsonl")
        lines = self.good("eval", path, "--data", data, "--limit", "20").splitlines()
        self.assertEqual(lines[-1], "exact match 20/20")

    def test_quantize(self):
        """A plain GGUF file is a source like the folder that it was made from: the same codes, scales and text."""
        folder, source = self.folder(), os.path.join(self.folder(), "bf16.gguf")
        make(support.WORDMATH, source, "bf16")
        files = []
        for name, plain in (("a", support.WORDMATH), ("b", source)):
            out = os.path.join(folder, name)
            self.good("quantize", plain, out, "--type", "int4-g32")
            with open(os.path.join(out, "model.safetensors"), "rb") as f:
                n = int.from_bytes(f.read(8), "little")
                header, data = json.loads(f.read(n)), f.read()
            files.append({k: data[slice(*v["data_offsets"])] for k, v in header.items() if k.count("weight_")})
        self.assertEqual(len(files[0]), 3 * 400)
        self.assertEqual(files[0], files[1])
        self.assertEqual(self.generate(os.path.join(folder, "a")), self.generate(os.path.join(folder, "b")))

        out = os.path.join(folder, "q8_0.gguf")
        self.good("quantize", source, out, "--type", "q8_0", "--experts-only")
        self.bad(1, ["experts.0.gate_proj.weight is quantised already (q8_0)"], "quantize", out, out + "-fp8", "--type", "fp8")

        family = os.path.join(folder, "qwen2_moe.gguf")
        make(vectors("qwen2_moe"), family, "f32")
        self.good("quantize", family, os.path.join(folder, "c"), "--type", "nvfp4")
        self.assertEqual(sorted(os.listdir(os.path.join(folder, "c"))), ["config.json", "model.safetensors"])

    def test_begin_of_text(self):
        """add_bos_token puts one more token before the prompt."""
        path = os.path.join(self.folder(), "m.gguf")
        make(support.WORDMATH, path, "f16",
             change=lambda kv: kv.update({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 909}))
        count = [int(re.search(r"(?m)^prompt: (\d+) tokens", self.generate(m, "--stats", "--max-tokens", "1"))[1])
                 for m in (self.f32, path)]
        self.assertEqual(count[0] + 1, count[1])

    def test_refused(self):
        path = os.path.join(self.folder(), "m.gguf")
        with open(self.f32, "rb") as f:
            head = f.read(100000)
        with open(path, "wb") as f:
            f.write(head)
        for command in ("generate", "verify"):
            self.bad(1, [path, "truncated"], command, path, *(("--prompt", "x") if command == "generate" else ()))
        with open(path, "wb") as f:
            f.write(head.replace(b"qwen3moe", b"qwen9moe", 1))
        self.bad(1, [path, "truncated"], "plan", path)
        make(vectors("qwen3_moe"), path, "f32")
        self.bad(1, [path, "tokenizer.ggml.model is missing"], "generate", path, "--prompt", "x")
        make(vectors("qwen3_moe"), path, "f32", change=lambda kv: kv.update({"general.architecture": "bert"}))
        self.bad(1, [path, "'bert'", "qwen3moe"], "plan", path)
        make(vectors("qwen3_moe"), path, "f32", change=lambda kv: kv.pop("qwen3moe.block_count"))
        self.bad(1, [path, "qwen3moe.block_count is missing"], "plan", path)
        self.bad(1, ["absent.gguf"], "verify", os.path.join(self.folder(), "absent.gguf"))


if __name__ == "__main__":
    support.main()
