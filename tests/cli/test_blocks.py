"""plan, verify and run: numbers that add up, reference outputs, the same bits on every way."""
import array
import json
import math
import os
import re
import unittest

import support
from support import Case, fnv1a, read_safetensors, relative_error, write_safetensors

LINE = re.compile(r"(\S+): (\d+) tokens, relative error (\S+), largest error (\S+), allowed (\S+), (\S+)% of it, "
                  r"(?:experts given the ids \S+, )?(?:ids equal, weights \S+ of \S+, |ids differ in \d+ rows, )?"
                  r"workspace (\d+) bytes, bits ([0-9a-f]{16}), (ok|FAIL)\n")


def f32(bits16):
    """bf16 bits as f32 values."""
    return array.array("f", array.array("I", [b << 16 for b in bits16]).tobytes())


class Plan(Case):
    def plan(self, *args):
        return json.loads(self.good("plan", "--json", *args))

    def test_regions_fill_the_workspace(self):
        for model in (support.WORDMATH, os.path.join(support.VECTORS["mixtral"], "config.json")):
            for args in ((), ("--dtype", "f32"), ("--tokens", "1"), ("--tokens", "100000", "--threads", "3")):
                p = self.plan(model, *args)
                end = 0
                for r in p["regions"]:
                    self.assertGreaterEqual(r["offset"], 0)
                    self.assertEqual(r["offset"] % p["workspace_align"], 0)
                    end = max(end, r["offset"] + r["bytes"])
                self.assertEqual(end, p["workspace_bytes"])
                self.assertEqual([r["offset"] for r in p["regions"]], sorted(r["offset"] for r in p["regions"]))

    def test_figures(self):
        p = self.plan(support.WORDMATH, "--dtype", "f32", "--threads", "2", "--backend", "cpu-scalar", "--weights", "f16")
        self.assertEqual([p[k] for k in ("hidden", "inter", "experts", "top_k", "tokens", "moe_layers", "threads",
                                         "backend", "dtype", "weights_dtype")],
                         [256, 128, 32, 4, 4096, 4, 2, "cpu-scalar", "f32", "f16"])
        self.assertEqual(p["one_pass_bytes"], 4096 * 4 * (128 * 4 + 16))
        self.assertEqual(p["one_per_layer_bytes"], 4 * p["workspace_bytes"])
        words = self.good("plan", support.WORDMATH, "--dtype", "f32", "--threads", "2", "--backend", "cpu-scalar")
        for r in p["regions"]:
            self.assertRegex(words, r"\b%s\b.*\b%d\b" % (r["name"], r["bytes"]))
        for number in ("workspace_bytes", "workspace_floor_bytes", "one_pass_bytes", "one_per_layer_bytes"):
            self.assertIn("%d bytes" % p[number], words)

    def test_limits(self):
        free = self.plan(support.WORDMATH)
        floor = free["workspace_floor_bytes"]
        self.assertLess(floor, free["workspace_bytes"])
        last = 0
        for tokens in (1, 100, 4096, 10**6):
            p = self.plan(support.WORDMATH, "--tokens", tokens)
            self.assertEqual(p["workspace_floor_bytes"], floor)
            self.assertGreaterEqual(p["workspace_bytes"], last)
            last = p["workspace_bytes"]
            for limit in (floor, 2 * floor, 10 * floor):
                p = self.plan(support.WORDMATH, "--tokens", tokens, "--workspace-limit", limit)
                self.assertLessEqual(p["workspace_bytes"], limit)
        for command in ("plan", "verify"):
            need = floor if command == "plan" else self.floor_f32()
            self.bad(1, [support.WORDMATH, "--workspace-limit", need - 1, need], command, support.WORDMATH,
                     "--workspace-limit", need - 1)

    def floor_f32(self):
        return self.plan(support.WORDMATH, "--dtype", "f32")["workspace_floor_bytes"]


class Verify(Case):
    def verify(self, model, *args):
        """name -> (relative error, workspace, bits), all of them ok."""
        text = self.good("verify", model, *args)
        lines = LINE.findall(text)
        self.assertEqual(text, "".join(m.group(0) for m in LINE.finditer(text)) +
                         "%d of %d blocks pass\n" % (len(lines), len(lines)))
        self.assertEqual([line[0] for line in lines], sorted(line[0] for line in lines))
        self.assertTrue(all(line[8] == "ok" for line in lines))
        return {line[0]: (float(line[2]), int(line[6]), line[7]) for line in lines}

    def test_reference(self):
        for model, blocks, tokens in ((support.WORDMATH, (0, 3), 768), (support.VECTORS["qwen3_moe"], (0, 1), 17),
                                      (support.VECTORS["mixtral"], (0, 1), 17)):
            got = self.verify(model)
            self.assertEqual(list(got), ["model.layers.%d.mlp" % i for i in blocks])
            for error, workspace, _ in got.values():
                self.assertLessEqual(error, 2e-6)
                self.assertGreater(workspace, 0)
            self.verify(model, "--dtype", "bf16")

    def test_same_bits(self):
        for model in (*support.VECTORS.values(), support.WORDMATH):
            for dtype in ("f32", "bf16"):
                if model == support.WORDMATH and dtype == "bf16":
                    continue
                floor = json.loads(self.good("plan", model, "--json", "--dtype", dtype))["workspace_floor_bytes"]
                first = None
                for limit in (floor, 2 * floor, None):
                    for threads in (1, 2):
                        for rows in ("one", "all"):
                            args = ["--dtype", dtype, "--threads", threads, "--rows", rows]
                            got = self.verify(model, *args, *(["--workspace-limit", limit] if limit else []))
                            bits = {name: line[2] for name, line in got.items()}
                            first = first or bits
                            self.assertEqual(bits, first, (model, args, limit))
                            if limit:
                                self.assertLessEqual(max(line[1] for line in got.values()), limit)

    def test_a_wrong_reference_fails(self):
        """One element off by far more than rounding: its block fails, the other one passes."""
        model, path = support.VECTORS["mixtral"], os.path.join(self.folder(), "reference.safetensors")
        tensors = read_safetensors(os.path.join(model, "reference.safetensors"))
        tensors["model.layers.1.mlp.output"][2][100] += 0.01
        write_safetensors(path, tensors)
        r = support.moewe("verify", model, "--reference", path)
        self.assertEqual((r.returncode, r.stderr), (1, b""))
        lines = LINE.findall(r.stdout.decode())
        self.assertEqual([line[8] for line in lines], ["ok", "FAIL"])
        wanted = tensors["model.layers.1.mlp.output"][2]
        self.assertAlmostEqual(float(lines[1][2]) * math.sqrt(sum(v * v for v in wanted)), 0.01, 5)
        self.assertAlmostEqual(float(lines[1][3]), 0.01, 5)
        self.assertTrue(r.stdout.decode().endswith("\n1 of 2 blocks pass\n"))


class Run(Case):
    def run_block(self, model, layer, *args):
        """The output tensor as f32 values, and the bits that the program printed."""
        path = os.path.join(self.folder(), "out.safetensors")
        text = self.good("run", model, "--layer", layer, "--output", path, *args)
        tensors = read_safetensors(path)
        self.assertEqual(list(tensors), ["output"])
        self.assertEqual(tensors["output"][0], "F32")
        self.assertEqual(os.listdir(os.path.dirname(path)), ["out.safetensors"])
        return tensors["output"], re.search(r"bits ([0-9a-f]{16})", text)[1]

    def test_what_verify_hashed(self):
        for model in support.VECTORS.values():
            reference = os.path.join(model, "reference.safetensors")
            for dtype in ("f32", "bf16"):
                # In bf16 verify takes the recorded input's choice of experts, so a block's weights may differ in
                # the last place from those of run; f32 has no such exception.
                hashed = LINE.findall(self.good("verify", model, "--dtype", dtype))
                for n, name in ((0, "model.layers.0.mlp"), (1, "model.layers.1.mlp")):
                    for layer in (n, name):
                        (_, shape, values), bits = self.run_block(model, layer, "--dtype", dtype, "--input",
                                                                  "%s:%s.input" % (reference, name))
                        self.assertEqual(shape, [17, 64])
                        raw = values.tobytes()
                        if dtype == "bf16":
                            raw = b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))
                        self.assertEqual(fnv1a(raw), bits)
                        if dtype == "f32":
                            self.assertEqual(bits, hashed[n][7])

    def test_given_routing(self):
        """ids and weights as transformers computed them; the experts' sum is then the reference's."""
        for model in support.VECTORS.values():
            reference = os.path.join(model, "reference.safetensors")
            tensors = read_safetensors(reference)
            with open(os.path.join(model, "config.json")) as f:
                config = json.load(f)
            inter = config.get("moe_intermediate_size") or config["intermediate_size"]
            bound = 2.0**-24 * math.sqrt(2 * (config["hidden_size"] + inter))
            for n in (0, 1):
                block = "model.layers.%d.mlp" % n
                experts = block + ".experts."
                (_, _, values), bits = self.run_block(model, n, "--input", "%s:%sarg0" % (reference, experts), "--ids",
                                                      experts + "arg1", "--weights", experts + "arg2")
                self.assertLessEqual(relative_error(values, tensors[experts + "out"][2]), bound)

                # The same ids as int32, from a file of their own; the input alone in its file.
                folder = self.folder()
                ids, x = os.path.join(folder, "ids.safetensors"), os.path.join(folder, "x.safetensors")
                write_safetensors(ids, {"chosen": ("I32", *tensors[experts + "arg1"][1:]),
                                        "weights": tensors[experts + "arg2"]})
                write_safetensors(x, {"x": tensors[experts + "arg0"]})
                _, again = self.run_block(model, n, "--input", x, "--ids", ids + ":chosen", "--weights",
                                          ids + ":weights", "--threads", "1")
                self.assertEqual(again, bits)

    def test_ids_of_no_expert_add_nothing(self):
        model = support.VECTORS["qwen3_moe"]
        path = os.path.join(self.folder(), "in.safetensors")
        ids = [-1, 8, 2**40]  # 8 experts; 2^40 would be expert 0 in 32 bits
        write_safetensors(path, {"x": ("F32", [1, 64], [1.0] * 64), "ids": ("I64", [1, 3], ids),
                                 "w": ("F32", [1, 3], [1.0] * 3)})
        (_, _, values), _ = self.run_block(model, 0, "--input", path + ":x", "--ids", "ids", "--weights", "w")
        self.assertEqual(list(values), [0.0] * 64)

    def test_input_dtypes(self):
        """The same numbers as f32, bf16 and f16 give the same output; 0x38.. and such are exact in all three."""
        model, folder = support.VECTORS["mixtral"], self.folder()
        exact = [((i * 37) % 41 - 20) / 16 for i in range(3 * 64)]
        exact[0], exact[1] = 2.0**-20, -0.0  # subnormal as f16
        as_f32 = array.array("f", exact)
        as_bf16 = [b >> 16 for b in array.array("I", as_f32.tobytes())]
        import struct
        as_f16 = array.array("H", b"".join(struct.pack("<e", v) for v in exact))
        self.assertEqual(list(f32(as_bf16)), exact)
        bits = set()
        for dtype, values in (("F32", as_f32), ("BF16", as_bf16), ("F16", as_f16)):
            path = os.path.join(folder, dtype + ".safetensors")
            write_safetensors(path, {"x": (dtype, [3, 64], values)})
            bits.add(self.run_block(model, 1, "--input", path)[1])
        self.assertEqual(len(bits), 1)


if __name__ == "__main__":
    support.main()
