"""Files that lie: one line that names file, field, found and expected, status 1, and nothing half-written."""
import json
import os
import resource
import shutil
import signal
import struct
import unittest

import support
from support import Case, edit_header, write_safetensors

UP = "model.layers.1.mlp.experts.3.up_proj.weight"


class BadInput(Case):
    def copy(self, name="qwen3_moe"):
        folder = os.path.join(self.folder(), "model")
        shutil.copytree(support.VECTORS[name], folder)
        return folder, os.path.join(folder, "model.safetensors")

    def verify(self, model, *parts, **how):
        return self.bad(1, parts, "verify", model, **how)

    # ---- safetensors --------------------------------------------------------------------------------

    def test_truncated(self):
        model, path = self.copy()
        whole = os.path.getsize(path)
        with open(path, "rb") as f:
            (header,) = struct.unpack("<Q", f.read(8))
        # What is left of the part that was cut: the data, the header, the header's length.
        for size, left in ((whole - 1, whole - 1 - header - 8), (whole // 2, whole // 2 - header - 8), (100, 92), (8, 0),
                           (7, 7), (0, 0)):
            with open(path, "r+b") as f:
                f.truncate(size)
            self.verify(model, path, " %d bytes" % left)

    def test_header_that_lies(self):
        for change, parts in (
            (lambda h: h[UP].update(shape=[48, 65]), [UP]),
            (lambda h: h[UP].update(dtype="F32"), [UP, "F32"]),
            (lambda h: h[UP].update(dtype="Q7"), [UP, "Q7"]),
            (lambda h: h[UP].update(shape=[2**62, 4]), [UP]),
            (lambda h: h[UP].update(shape=[-48, -64]), [UP]),
            (lambda h: h[UP].update(shape="wide"), [UP]),
            (lambda h: h[UP].update(data_offsets=[0, 2**50]), [UP]),
            (lambda h: h[UP].update(data_offsets=[0, 48 * 64 * 2]), []),
            (lambda h: h[UP].pop("data_offsets"), [UP, "data_offsets"]),
        ):
            model, path = self.copy()
            edit_header(path, change)
            self.verify(model, path, *parts)

    def test_header_that_is_none(self):
        for head in (struct.pack("<Q", 2**60), struct.pack("<Q", 2**64 - 1), struct.pack("<Q", 10) + b"[1, 2, 3] ",
                     struct.pack("<Q", 4) + b"\xff\xfe{}"):
            model, path = self.copy()
            with open(path, "wb") as f:
                f.write(head)
            self.verify(model, path)

    def test_missing_tensor(self):
        model, path = self.copy()
        edit_header(path, lambda h: h.update({"other": h.pop(UP)}))
        self.verify(model, path, UP)

    def test_wrong_shape(self):
        model, path = self.copy()
        edit_header(path, lambda h: h[UP].update(shape=[64, 48]))
        self.verify(model, path, UP, "[64, 48]", "[48, 64]")

    def test_missing_shard(self):
        model, path = self.copy()
        os.rename(path, os.path.join(model, "a.safetensors"))
        index = os.path.join(model, "model.safetensors.index.json")
        with open(index, "w") as f:
            json.dump({"metadata": {}, "weight_map": {UP: "b.safetensors"}}, f)
        self.verify(model, model, "b.safetensors")

    # ---- config.json --------------------------------------------------------------------------------

    def test_config(self):
        for change, parts in (
            ({"model_type": "gpt_oss"}, ["model.safetensors", "mlp.router.weight", "[8, 64]"]),
            ({"model_type": "qwen9_moe", "norm_topk_prob": None, "hidden_act": None},
             ["model_type 'qwen9_moe'", "not known", "scoring_func", "norm_topk_prob", "hidden_act"]),
            ({"model_type": "qwen9_moe", "hidden_size": None}, ["model_type 'qwen9_moe'", "missing hidden_size"]),
            ({"model_type": 7}, ["model_type"]),
            ({"hidden_size": None}, ["hidden_size"]),
            ({"hidden_size": "64"}, ["hidden_size"]),
            ({"hidden_size": -64}, ["hidden_size", "-64"]),
            ({"num_experts_per_tok": 9}, ["num_experts_per_tok", "9"]),
            ({"hidden_act": "tanh"}, ["hidden_act", "tanh"]),
            ({"hidden_size": 72}, ["[17, 64]", "72"]),
        ):
            model, _ = self.copy()
            path = os.path.join(model, "config.json")
            with open(path) as f:
                config = json.load(f)
            config.update(change)
            with open(path, "w") as f:
                json.dump({k: v for k, v in config.items() if v is not None or k not in change}, f)
            self.verify(model, model, *parts)

    def test_no_model(self):
        empty = self.folder()
        self.verify(empty, empty, "config.json")
        self.verify("/nowhere", "/nowhere")
        self.bad(1, ["/nowhere"], "plan", "/nowhere")
        self.bad(1, ["/nowhere"], "generate", "/nowhere", "--prompt", "x")
        with open(os.path.join(empty, "config.json"), "w") as f:
            f.write("{")
        self.verify(empty, os.path.join(empty, "config.json"))

    # ---- tokenizer.json -----------------------------------------------------------------------------

    def test_tokenizer(self):
        for change, parts in (
            (lambda t: t["model"].update(type="Unigram"), ["Unigram", "BPE"]),
            (lambda t: t.update(pre_tokenizer={"type": "Metaspace", "replacement": "_"}), ["Metaspace"]),
            (lambda t: t.update(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "b"}), ["Replace"]),
            (lambda t: t.update(decoder={"type": "WordPiece"}), ["WordPiece"]),
            (lambda t: t["model"].update(dropout=0.5), ["dropout"]),
            (lambda t: t.pop("model"), ["model"]),
        ):
            model = self.folder()
            for name in ("config.json", "generation_config.json", "model.safetensors"):
                os.symlink(os.path.join(support.WORDMATH, name), os.path.join(model, name))
            with open(os.path.join(support.WORDMATH, "tokenizer.json")) as f:
                tokenizer = json.load(f)
            change(tokenizer)
            path = os.path.join(model, "tokenizer.json")
            with open(path, "w") as f:
                json.dump(tokenizer, f)
            self.bad(1, [path, *parts], "generate", model, "--prompt", "x")

    # ---- reference files ----------------------------------------------------------------------------

    def test_reference(self):
        model, folder = support.VECTORS["qwen3_moe"], self.folder()
        path = os.path.join(folder, "r.safetensors")
        block = "model.layers.0.mlp"
        rows = ("F32", [2, 64], [0.5] * 128)
        for tensors, parts in (
            ({"x": rows}, [path, "NAME.input"]),
            ({block + ".output": rows}, [path, "NAME.input"]),
            ({block + ".input": rows}, [path, block + ".input", block + ".output"]),
            ({block + ".input": rows, block + ".output": ("F32", [1, 64], [0.5] * 64)}, [path, "1 rows", "2"]),
            ({block + ".input": ("F32", [2, 32], [0.5] * 64), block + ".output": rows},
             [path, block + ".input", "F32 [2, 32]", "F32 [rows, 64]"]),
            ({block + ".input": ("BF16", [2, 64], [0] * 128), block + ".output": rows}, [path, "BF16 [2, 64]", "F32"]),
            ({block + ".input": ("F32", [0, 64], []), block + ".output": ("F32", [0, 64], [])}, [path, "[0, 64]"]),
            ({"model.layers.9.mlp.input": rows, "model.layers.9.mlp.output": rows}, [path, "model.layers.9.mlp"]),
        ):
            write_safetensors(path, tensors)
            self.bad(1, parts, "verify", model, "--reference", path)
        self.bad(1, ["/nowhere"], "verify", model, "--reference", "/nowhere")

    # ---- moewe run ----------------------------------------------------------------------------------

    def run_block(self, parts, *args, output=None, **how):
        """A run that fails and leaves nothing behind."""
        folder = self.folder()
        self.bad(1, parts, "run", support.VECTORS["qwen3_moe"], "--output",
                 output or os.path.join(folder, "out.safetensors"), *args, **how)
        self.assertEqual(os.listdir(folder), [])

    def test_run_input(self):
        reference = os.path.join(support.VECTORS["qwen3_moe"], "reference.safetensors")
        good = ("--layer", "0", "--input", reference + ":model.layers.0.mlp.input")
        path = os.path.join(self.folder(), "in.safetensors")
        write_safetensors(path, {"narrow": ("F32", [2, 63], [0.0] * 126), "flat": ("F32", [64], [0.0] * 64),
                                 "whole": ("I32", [2, 64], [0] * 128), "ids": ("I64", [17, 2], [0] * 34),
                                 "right ids": ("I64", [17, 3], [0] * 51), "w": ("F32", [17, 2], [0.0] * 34)})
        for tensor, found in (("narrow", "F32 [2, 63]"), ("flat", "F32 [64]"), ("whole", "I32 [2, 64]")):
            self.run_block([path, tensor, found, "[rows, 64]"], "--layer", "0", "--input", path + ":" + tensor)
        self.run_block([path, "6 tensors", "expected one"], "--layer", "0", "--input", path)
        self.run_block([path, "none of them named 'y'"], "--layer", "0", "--input", path + ":y")
        self.run_block(["/nowhere"], "--layer", "0", "--input", "/nowhere:x")
        self.run_block(["--layer", "7"], "--layer", "7", *good[2:])
        self.run_block(["--layer", "model.layers.0.attention"], "--layer", "model.layers.0.attention", *good[2:])
        self.run_block(["--ids", "I64 [17, 2]", "[17, 3]"], *good, "--ids", path + ":ids", "--weights", path + ":w")
        self.run_block(["--weights", "F32 [17, 2]", "[17, 3]"], *good, "--ids", path + ":right ids", "--weights",
                       path + ":w")
        self.run_block(["--ids", "no tensor 'ids'"], *good, "--ids", "ids", "--weights", "w")
        self.run_block(["cpu-abacus"], *good, "--backend", "cpu-abacus")
        self.run_block(["--workspace-limit is 64 bytes"], *good, "--workspace-limit", "64")

    def test_run_output(self):
        reference = os.path.join(support.VECTORS["qwen3_moe"], "reference.safetensors")
        good = ("--layer", "0", "--input", reference + ":model.layers.0.mlp.input")
        self.run_block(["/nowhere/out.safetensors"], *good, output="/nowhere/out.safetensors")
        folder = self.folder()
        self.run_block([folder], *good, output=folder)  # a directory is in the way
        self.assertEqual(os.listdir(folder), [])
        if os.geteuid():
            os.chmod(folder, 0o555)
            self.run_block([folder], *good, output=os.path.join(folder, "out.safetensors"))
        else:  # root may write anywhere but here
            self.run_block(["/proc/moewe.safetensors"], *good, output="/proc/moewe.safetensors")

    def test_run_output_cut_short(self):
        """A disk that is full half-way: what was there before is still there, and nothing else."""
        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        reference = os.path.join(support.VECTORS["qwen3_moe"], "reference.safetensors")
        folder = self.folder()
        path = os.path.join(folder, "out.safetensors")
        with open(path, "w") as f:
            f.write("precious")
        self.run_block([path], "--layer", "0", "--input", reference + ":model.layers.0.mlp.input", output=path,
                       preexec_fn=small_files, restore_signals=False)
        with open(path) as f:
            self.assertEqual(f.read(), "precious")
        self.assertEqual(os.listdir(folder), ["out.safetensors"])


if __name__ == "__main__":
    support.main()
