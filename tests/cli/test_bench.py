"""moewe bench: the sizes, counts and rates that it prints and writes belong together; what it cannot do, it says.  No
time is asserted."""
import csv
import json
import os
import re

import support
from support import Case

SMALL = ("--rotate", "1M", "--read-size", "8M", "--seconds", "0")
HIDDEN, INTER, EXPERTS = 512, 256, 4

# Bits of a packed element with its share of the scales; HIDDEN and INTER are multiples of every block and panel.
BITS = {
    "f32": 32, "bf16": 16, "f16": 16,
    "q8_0": 8 + 16 / 32, "q4_0": 4 + 16 / 32, "mxfp4": 4 + 8 / 32, "nvfp4": 4 + 8 / 16,
    "int8-g32": 8 + 16 / 32, "int4-g64": 4 + 16 / 64,
}


class Bench(Case):
    def rows(self, *args, **how):
        path = os.path.join(self.folder(), "out.csv")
        self.good("bench", "layer", *SMALL, "--csv", path, *args, **how)
        return self.read(path)

    def read(self, path):
        with open(path, newline="") as f:
            return list(csv.DictReader(f))

    def near(self, found, wanted, text=""):
        self.assertLessEqual(abs(float(found) - wanted), 2e-3 * abs(wanted), text)

    def check_row(self, row):
        """Rates follow from times and amounts, the roofline from the ceilings."""
        ms = float(row["median_ms"])
        self.assertLessEqual(float(row["p10_ms"]), ms)
        self.assertLessEqual(ms, float(row["p90_ms"]))
        self.near(row["gb_s"], float(row["weight_bytes"]) / ms * 1e-6, row)
        self.near(row["gflop_s"], float(row["operations"]) / ms * 1e-6, row)
        read = (float(row["read_before_gb_s"]) + float(row["read_after_gb_s"])) / 2
        peak = (float(row["peak_before_gflop_s"]) + float(row["peak_after_gflop_s"])) / 2
        self.assertGreater(read, 0)
        times = [float(row["weight_bytes"]) / read * 1e-6]
        if row["peak_kind"] != "none":
            times.append(float(row["operations"]) / peak * 1e-6)
        self.near(row["roofline_ms"], max(times), row)
        self.near(row["roofline_share"], max(times) / ms, row)

    def test_bytes_of_each_type(self):
        for name, bits in BITS.items():
            shape = "%d,%d,%d,%d" % (HIDDEN, INTER, EXPERTS, EXPERTS)
            row, = self.rows("--shape", shape, "--type", name, "--tokens", "2")
            self.check_row(row)
            self.assertEqual((row["type"], row["tokens"], row["layer"], row["shape"]), (name, "2", "experts", shape + ",swiglu"))
            self.assertEqual(float(row["experts"]), EXPERTS)
            self.assertEqual(float(row["weight_bytes"]), 3 * EXPERTS * HIDDEN * INTER * bits / 8, name)
            self.assertEqual(float(row["operations"]), 2 * EXPERTS * 3 * 2 * HIDDEN * INTER)

    def test_experts_that_are_read(self):
        """One token reads its top_k; many tokens nearly all; of skewed experts few."""
        args = ("--type", "bf16", "--x", "bf16", "--y", "bf16", "--shape", "128,64,64,1,relu2", "--tokens", "1,64")
        one, many = self.rows(*args)
        _, skewed = self.rows(*args, "--skew", "16")
        each = 2 * 128 * 64 * 2
        for row in (one, many, skewed):
            self.check_row(row)
            self.near(row["weight_bytes"], float(row["experts"]) * each, row)
            self.assertEqual(float(row["operations"]), int(row["tokens"]) * 2 * 2 * 128 * 64)
            self.assertEqual((row["x_dtype"], row["y_dtype"]), ("bf16", "bf16"))
        self.assertEqual(float(one["experts"]), 1)
        expected = 64 * (1 - (1 - 1 / 64) ** 64)  # 40.6; the deviation of a mean of three is 1.5
        self.assertLess(abs(float(many["experts"]) - expected), 8)
        self.assertLess(float(skewed["experts"]), 2)

    def config(self):
        """A folder with the config of a small Qwen3-MoE."""
        path = os.path.join(support.SOURCE, "tests", "data", "model-configs", "qwen3-30b-a3b.json")
        with open(path) as f:
            config = json.load(f)["config"]
        config.update(hidden_size=256, moe_intermediate_size=128, num_experts=64, num_experts_per_tok=4,
                      num_hidden_layers=2, vocab_size=512)
        folder = self.folder()
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)
        return folder

    def test_whole_layer_takes_the_planned_workspace(self):
        folder = self.config()
        for tokens, extra in ((1, ()), (96, ()), (96, ("--workspace-limit", "40000"))):
            row, = self.rows("--shape", folder, "--whole", "--type", "bf16", "--tokens", tokens, *extra)
            plan = json.loads(self.good("plan", "--json", folder, "--tokens", tokens, *extra))
            self.check_row(row)
            self.assertEqual(int(row["scratch_bytes"]), plan["workspace_bytes"])
            router = 64 * 256
            self.near(row["weight_bytes"], 2 * (router + float(row["experts"]) * 3 * 256 * 128))
            self.assertEqual(float(row["operations"]), tokens * 2 * (router + 4 * 3 * 256 * 128))
            self.assertEqual(row["layer"], "whole")
        few, = self.rows("--shape", folder, "--tokens", "96", "--workspace-limit", "40000")
        self.assertLessEqual(int(few["scratch_bytes"]), 40000)

    def test_named_shapes(self):
        """A name that begins several models is the smallest of them."""
        text = self.good("bench", "layer", *SMALL, "--shape", "granite-3.1", "--tokens", "1", "--type", "q4_0")
        self.assertIn("granite-3.1-1b-a400m: hidden 1024, inter 512, 32 experts, top 8", text)
        self.bad(1, ["--shape", "no-such-model"], "bench", "layer", "--shape", "no-such-model")

    def test_csv_grows(self):
        path = os.path.join(self.folder(), "a.csv")
        for threads in (1, 2):
            self.good("bench", "layer", *SMALL, "--shape", "64,64,2,1", "--tokens", "1,2", "--csv", path, "--threads", threads)
        rows = self.read(path)
        self.assertEqual([(r["threads"], r["tokens"]) for r in rows], [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")])
        self.assertEqual({r["median_ms"] == "" for r in rows}, {False})

    def test_ceilings(self):
        text = self.good("bench", "ceilings", "--read-size", "8M", "--threads", "1")
        self.assertRegex(text, r"\nread +\d+\.\d+ GB/s of 8388608 bytes")
        with open("/proc/cpuinfo") as f:
            flags = set((re.search(r"^flags\s*:(.*)$", f.read(), re.M) or re.match(r"()", ""))[1].split())
        for name, flag in (("avx2_fma_f32", "avx2"), ("avx512_fma_f32", "avx512f"), ("avx512_vdpbf16ps", "avx512_bf16"),
                           ("avx512_vpdpbusd", "avx512_vnni"), ("amx_bf16", "amx_bf16"), ("amx_int8", "amx_int8")):
            line = re.search(r"^%s +(.*)$" % name, text, re.M)[1]
            if flag in flags:
                self.assertRegex(line, r"^\d+\.\d G(FL)?OP/s$")
            else:
                self.assertEqual(line, "not here")

    def test_model(self):
        text = self.good("bench", "model", support.WORDMATH, "--prompts", "3,40", "--batches", "1,2", "--depth", "5",
                         "--max-batch", "16", "--seconds", "0")
        total, *parts = re.search(r"^memory: (\d+) bytes .*= weights (\d+) \+ KV cache (\d+) \+ workspace (\d+) \+ "
                                  r"activations (\d+)$", text, re.M).groups()
        self.assertEqual(int(total), sum(map(int, parts)))
        rates = re.findall(r"^(prompt|generate) +(\d+) +(\d+) +(\S+) +\S+ +\S+ +(\S+)$", text, re.M)
        self.assertEqual([r[:3] for r in rates], [("prompt", "3", "3"), ("prompt", "40", "3"), ("generate", "1", "3"),
                                                  ("generate", "2", "3")])
        for _, tokens, _, ms, rate in rates:
            self.near(rate, int(tokens) / float(ms) * 1e3)

    def test_refusals(self):
        layer = ("bench", "layer", "--shape", "64,64,4,2")
        for status, parts, args in (
            (2, ["no part"], ("bench",)),
            (2, ["'tree' is no part", "layer, model or ceilings"], ("bench", "tree")),
            (2, ["moewe bench layer:", "--shape is missing"], ("bench", "layer")),
            (2, ["--type", "'q9'", "mxfp4", "int8-gN"], layer + ("--type", "q9")),
            (2, ["--type", "int4-g48", "16, 32 or a multiple of 64"], layer + ("--type", "int4-g48")),
            (2, ["--tokens", "'1,x'"], layer + ("--tokens", "1,x")),
            (2, ["--tokens", "'1,'"], layer + ("--tokens", "1,")),
            (2, ["--tokens", "'0'"], layer + ("--tokens", "0")),
            (2, ["--skew"], layer + ("--skew", "-1")),
            (2, ["--x", "f16"], layer + ("--x", "f16")),
            (1, ["--shape", "number 4", "missing"], ("bench", "layer", "--shape", "64,64,4")),
            (1, ["--shape", "number 2"], ("bench", "layer", "--shape", "64,0,4,2")),
            (1, ["--shape", "'tanh'", "relu2"], ("bench", "layer", "--shape", "64,64,4,2,tanh")),
            (1, ["top_k", "5", "4"], ("bench", "layer", *SMALL, "--shape", "64,64,4,5")),
            (1, ["q4_k", "64 columns"], layer + SMALL + ("--type", "q4_k")),
            (1, ["cpu-none"], layer + ("--backend", "cpu-none")),
            (1, ["4096 bytes was asked for", "8388608 are needed"], layer + ("--read-size", "4096")),
            (1, ["--csv", "/nowhere/a.csv"], layer + SMALL + ("--tokens", "1", "--csv", "/nowhere/a.csv")),
            (1, ["/nowhere"], ("bench", "model", "/nowhere")),
            (2, ["--batches", "'-1'"], ("bench", "model", support.WORDMATH, "--batches=-1")),
        ):
            self.bad(status, parts, *args)


if __name__ == "__main__":
    support.main()
