"""moewe quantize, and checkpoints that are quantised as others publish them: every file is decoded here by the published
encodings, and a block run from it must equal the same block run from the decoded numbers."""
import json
import math
import os
import random
import re
import struct
import unittest

import support
from support import Case, relative_error

HIDDEN, INTER, EXPERTS, VOCAB = 256, 64, 2, 48
# What codes of 8 bits for activations may cost: 4 / 127 / sqrt(12) of a block whose largest value is 4 times its mean
# square, through gate (silu passes on 1.28 of it), up and down.
CODES_OF_8_BITS = 4 / 127 / 12 ** 0.5 * (1.28 ** 2 + 2) ** 0.5

# ---- safetensors, as bytes -------------------------------------------------------------------------


def read(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(n)), f.read()
    return {k: (v["dtype"], v["shape"], data[v["data_offsets"][0]:v["data_offsets"][1]])
            for k, v in header.items() if k != "__metadata__"}


def write(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def f32(values):
    return struct.pack("<%df" % len(values), *values)


# ---- encodings ---------------------------------------------------------------------------------------


def e4m3(code):
    sign, e, m = -1 if code & 128 else 1, code >> 3 & 15, code & 7
    return math.nan if code & 127 == 127 else sign * ((8 + m) * 2.0 ** (e - 10) if e else m * 2.0 ** -9)


E4M3 = [e4m3(c) for c in range(256)]
E2M1 = [s * v for s in (1, -1) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]


def numbers(tensor):
    dtype, _, raw = tensor
    if dtype == "F32":
        return list(struct.unpack("<%df" % (len(raw) // 4), raw))
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]
    if dtype == "F8_E4M3":
        return [E4M3[c] for c in raw]
    if dtype == "I8":
        return [c - 256 if c > 127 else c for c in raw]
    raise ValueError(dtype)


def nibbles(raw, table):
    return [table[n] for c in raw for n in (c & 15, c >> 4)]


def scaled(codes, rows, cols, scales, height, width):
    """Element (r, c) times the scale of its block."""
    across = -(-cols // width)
    return [codes[r * cols + c] * scales[r // height * across + c // width] for r in range(rows) for c in range(cols)]


def decode(t, name, rows, cols):
    """A matrix of a file that moewe quantize wrote, by the tensors that stand there."""
    if name + "_scale_inv" in t:
        return scaled(numbers(t[name]), rows, cols, numbers(t[name + "_scale_inv"]), 128, 128)
    if name not in t and t[name + "_packed"][0] == "I32":
        codes = nibbles(t[name + "_packed"][2], range(-8, 8))
        assert struct.unpack("<2q", t[name + "_shape"][2]) == (rows, cols)
        return scaled(codes, rows, cols, numbers(t[name + "_scale"]), 1, cols // t[name + "_scale"][1][1])
    if name not in t:
        codes, scale = nibbles(t[name + "_packed"][2], E2M1), t[name + "_scale"]
        if scale[0] == "U8":
            return scaled(codes, rows, cols, [2.0 ** (c - 127) for c in scale[2]], 1, 32)
        (divisor,) = numbers(t[name + "_global_scale"])
        return scaled(codes, rows, cols, [s / divisor for s in numbers(scale)], 1, 16)
    if name + "_scale" not in t:
        return numbers(t[name])
    scales = numbers(t[name + "_scale"])
    shape = t[name + "_scale"][1]
    if len(scales) == 1:
        return [v * scales[0] for v in numbers(t[name])]
    return scaled(numbers(t[name]), rows, cols, scales, 1, cols // shape[1])


# ---- a small model -------------------------------------------------------------------------------------

CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": HIDDEN, "intermediate_size": 64, "moe_intermediate_size": INTER,
    "num_experts": EXPERTS, "num_experts_per_tok": 2, "norm_topk_prob": True, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 1, "vocab_size": VOCAB, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu", "dtype": "float32"}
BLOCK = "model.layers.0.mlp."


def matrices():
    """name -> (rows, cols) of what is quantised."""
    out = {}
    for e in range(EXPERTS):
        for kind in ("gate", "up"):
            out[BLOCK + "experts.%d.%s_proj.weight" % (e, kind)] = (INTER, HIDDEN)
        out[BLOCK + "experts.%d.down_proj.weight" % e] = (HIDDEN, INTER)
    for kind, rows in (("q", 256), ("k", 128), ("v", 128), ("o", HIDDEN)):
        out["model.layers.0.self_attn.%s_proj.weight" % kind] = (rows, 256)
    out["lm_head.weight"] = (VOCAB, HIDDEN)
    return out


def model():
    rng = random.Random(7)
    shapes = {name: list(shape) for name, shape in matrices().items()}
    shapes.update({"model.embed_tokens.weight": [VOCAB, HIDDEN], BLOCK + "gate.weight": [EXPERTS, HIDDEN]})
    out = {name: ("F32", s, f32([rng.gauss(0, 0.05) for _ in range(s[0] * s[1])])) for name, s in shapes.items()}
    for name, n in (("model.norm", HIDDEN), ("model.layers.0.input_layernorm", HIDDEN),
                    ("model.layers.0.post_attention_layernorm", HIDDEN), ("model.layers.0.self_attn.q_norm", 64),
                    ("model.layers.0.self_attn.k_norm", 64)):
        out[name + ".weight"] = ("F32", [n], f32([1.0] * n))
    return out


class Quantize(Case):
    @classmethod
    def setUpClass(cls):
        cls.plain = model()

    def put(self, tensors, config, name):
        path = os.path.join(self.root, name)
        os.mkdir(path)
        write(os.path.join(path, "model.safetensors"), tensors)
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(config, f)
        return path

    def setUp(self):
        self.root = self.folder()
        self.dir = self.put(self.plain, CONFIG, "plain")
        rng = random.Random(11)
        write(os.path.join(self.root, "x"), {"x": ("F32", [5, HIDDEN], f32([rng.gauss(0, 1) for _ in range(5 * HIDDEN)]))})

    def run_block(self, path):
        out = os.path.join(self.root, "y")
        self.good("run", path, "--layer", 0, "--input", os.path.join(self.root, "x") + ":x", "--output", out)
        (tensor,) = read(out).values()
        return numbers(tensor)

    def twin(self, decoded, name="twin", config=CONFIG):
        """The plain model with these numbers in the place of its own."""
        tensors = dict(self.plain)
        for n, values in decoded.items():
            tensors[n] = ("F32", self.plain[n][1], f32(values))
        return self.put(tensors, {k: v for k, v in config.items() if k != "quantization_config"}, name)

    def quantized(self, kind, *args):
        out = os.path.join(self.root, kind + "".join(args))
        self.good("quantize", self.dir, out, "--type", kind, *args)
        return out

    def config(self, path):
        with open(os.path.join(path, "config.json")) as f:
            return json.load(f)

    # ---- what quantize writes ------------------------------------------------------------------------

    def test_types(self):
        # Bounds: of E4M3 and E2M1 half a step of the mantissa in the mean square, of integers half a step where the
        # largest weight of a block is 4 times the mean square.
        types = {"fp8": 0.036, "fp8-row": 0.036, "fp8-tensor": 0.036, "nvfp4": 0.144, "mxfp4": 0.144, "int8-g32": 0.0091,
                 "int8-g64": 0.0091, "int4-g32": 0.154, "int4-g64": 0.154}
        for kind, bound in types.items():
            with self.subTest(kind):
                path = self.quantized(kind)
                t = read(os.path.join(path, "model.safetensors"))
                decoded = {n: decode(t, n, *shape) for n, shape in matrices().items()}
                for n, values in decoded.items():
                    self.assertLess(relative_error(values, numbers(self.plain[n])), bound, n)
                for n in self.plain:
                    if n not in decoded:
                        self.assertEqual(t[n], self.plain[n])
                self.assertLess(relative_error(self.run_block(path), self.run_block(self.twin(decoded, kind + "-twin"))),
                                CODES_OF_8_BITS)
                plan = self.good("plan", path, "--tokens", 64, "--context", 64)
                size = int(re.search(r"moewe generate would take: weights (\d+) bytes", plan)[1])
                self.assertEqual(self.memory(path), size)

    def memory(self, path):
        """Bytes of packed weights as the engine counts them: it needs no tokenizer for a loss."""
        tokens = os.path.join(self.root, "tokens")
        write(tokens, {"ids": ("I32", [16], struct.pack("<16i", *range(16)))})
        text = self.good("eval", path, "--loss", tokens + ":ids", "--stats")
        return int(re.search(r"weights +(\d+)", text)[1])

    def test_bad_losses(self):
        path = os.path.join(self.root, "ids")
        write(path, {"one": ("I64", [1], struct.pack("<q", 1)), "real": ("F32", [2], f32([1, 2])),
                     "far": ("I64", [2], struct.pack("<2q", 0, 2 ** 40)), "vocab": ("I32", [1, 2], struct.pack("<2i", 47, VOCAB))})
        for name, words in (("one", ["I64 [1]"]), ("real", ["F32 [2]", "I32 or I64"]), ("far", ["element 1", "0 to 47"]),
                            ("vocab", ["element 1 is 48", "0 to 47"]), ("none", ["no such tensor"])):
            self.bad(1, [path + ":" + name, *words], "eval", self.dir, "--loss", path + ":" + name)
        self.bad(1, ["'ids'", "colon"], "eval", self.dir, "--loss", "ids")

    def test_config(self):
        self.assertEqual(self.config(self.quantized("fp8"))["quantization_config"],
                         {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                          "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0.mlp.gate"]})
        formats = {"fp8-row": ("float-quantized", 8, "float", "channel", None),
                   "fp8-tensor": ("float-quantized", 8, "float", "tensor", None),
                   "nvfp4": ("nvfp4-pack-quantized", 4, "float", "tensor_group", 16),
                   "mxfp4": ("mxfp4-pack-quantized", 4, "float", "group", 32),
                   "int8-g64": ("int-quantized", 8, "int", "group", 64),
                   "int4-g32": ("pack-quantized", 4, "int", "group", 32)}
        for kind, (name, bits, of, strategy, group) in formats.items():
            q = self.config(self.quantized(kind))["quantization_config"]
            (g,) = q["config_groups"].values()
            w = g["weights"]
            self.assertEqual((q["quant_method"], q["format"], q["ignore"], g["targets"]),
                             ("compressed-tensors", name, ["model.layers.0.mlp.gate"], ["Linear"]))
            self.assertEqual((w["num_bits"], w["type"], w["strategy"], w["group_size"], w["symmetric"]),
                             (bits, of, strategy, group, True))

    def test_experts_only(self):
        path = self.quantized("int4-g32", "--experts-only")
        t = read(os.path.join(path, "model.safetensors"))
        for n in self.plain:
            if ".experts." not in n:
                self.assertEqual(t[n], self.plain[n])
            else:
                self.assertNotIn(n, t)
        self.assertIn("lm_head", self.config(path)["quantization_config"]["ignore"])
        self.assertIn("model.layers.0.self_attn.q_proj", self.config(path)["quantization_config"]["ignore"])
        self.memory(path)

    def test_threads_do_not_show(self):
        one = self.quantized("nvfp4", "--threads", "1")
        two = self.quantized("nvfp4", "--threads", "2")
        self.assertEqual(read(os.path.join(one, "model.safetensors")), read(os.path.join(two, "model.safetensors")))

    def test_stacked_experts_get_tensors_of_their_own(self):
        t = {n: v for n, v in self.plain.items() if ".experts." not in n}
        up = b"".join(self.plain[BLOCK + "experts.%d.%s_proj.weight" % (e, k)][2] for e in range(EXPERTS) for k in ("gate", "up"))
        down = b"".join(self.plain[BLOCK + "experts.%d.down_proj.weight" % e][2] for e in range(EXPERTS))
        t[BLOCK + "experts.gate_up_proj"] = ("F32", [EXPERTS, 2 * INTER, HIDDEN], up)
        t[BLOCK + "experts.down_proj"] = ("F32", [EXPERTS, HIDDEN, INTER], down)
        out = os.path.join(self.root, "out")
        self.good("quantize", self.put(t, CONFIG, "stacked"), out, "--type", "int8-g32")
        self.assertEqual(read(os.path.join(out, "model.safetensors")),
                         read(os.path.join(self.quantized("int8-g32"), "model.safetensors")))

    def test_refused(self):
        out = os.path.join(self.root, "out")
        self.bad(2, ["--type", "int3", "nvfp4"], "quantize", self.dir, out, "--type", "int3")
        self.bad(2, ["--type is missing"], "quantize", self.dir, out)
        self.bad(1, ["64 elements", "int8-g128", "multiple of 128"], "quantize", self.dir, out, "--type", "int8-g128")
        self.assertFalse(os.path.exists(out))
        done = self.quantized("fp8")
        self.bad(1, ["quantised already", "fp8"], "quantize", done, out, "--type", "nvfp4")
        self.bad(1, ["is there already"], "quantize", self.dir, done, "--type", "nvfp4")
        t = dict(self.plain)
        name = BLOCK + "experts.1.up_proj.weight"
        for value, kind, words in ((math.inf, "fp8", ["holds inf"]), (math.nan, "mxfp4", ["nan"]),
                                   (1e20, "int4-g32", ["holds 1e+20", "at most 7.20576e+16"]),
                                   (-5e5, "q4_0", ["holds -500000", "at most 458528"])):
            t[name] = ("F32", t[name][1], t[name][2][:-4] + f32([value]))
            self.bad(1, [name, kind, *words], "quantize", self.put(t, CONFIG, "large-" + kind), out, "--type", kind)
        self.assertEqual([n for n in os.listdir(self.root) if "partial" in n or n == "out"], [])

    def test_nothing_is_replaced(self):
        source = os.path.join(self.dir, "model.safetensors")
        with open(source, "rb") as f:
            before = f.read()
        for name in (source, os.path.join(self.dir, "config.json"), self.dir):
            self.bad(1, [name, "is there already"], "quantize", self.dir, name, "--type", "q8_0")
        with open(source, "rb") as f:
            self.assertEqual(f.read(), before)
        for kind in ("fp8", "q8_0"):
            self.bad(1, ["name", "is empty"], "quantize", self.dir, "", "--type", kind)

    # ---- what others publish ----------------------------------------------------------------------------

    def same(self, tensors, quantization, decoded, name, config=None):
        config = dict(CONFIG if config is None else config)
        path = self.put(tensors, {**config, "quantization_config": quantization} if quantization else config, name)
        self.assertLess(relative_error(self.run_block(path), self.run_block(self.twin(decoded, name + "-twin"))),
                        CODES_OF_8_BITS)
        return path

    def test_modelopt(self):
        source = read(os.path.join(self.quantized("nvfp4", "--experts-only"), "model.safetensors"))
        names = [n for n in matrices() if ".experts." in n]
        decoded = {n: decode(source, n, *matrices()[n]) for n in names}
        t = {}
        for n, (dtype, shape, raw) in source.items():
            if n.endswith("_global_scale"):
                (divisor,) = struct.unpack("<f", raw)
                n, shape, raw = n.replace("_global_scale", "_scale_2"), [], struct.pack("<f", 1 / divisor)
                t[n.replace("weight_scale_2", "input_scale")] = ("F32", [], struct.pack("<f", 0.25))
            t[n.replace("weight_packed", "weight")] = (dtype, shape, raw)
        plain = ["lm_head", "model.layers.0.self_attn*", "model.layers.0.mlp.gate"]
        self.same(t, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": plain}, decoded, "nvfp4-modelopt")
        path = self.put(t, CONFIG, "hf-quant-config")
        with open(os.path.join(path, "hf_quant_config.json"), "w") as f:
            json.dump({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": plain}}, f)
        self.assertEqual(self.run_block(path), self.run_block(os.path.join(self.root, "nvfp4-modelopt")))

        where = ["--layer", 0, "--input", os.path.join(self.root, "x") + ":x", "--output", os.path.join(self.root, "none")]
        for value, words in ((math.nan, ["nan", "multiplied"]), (math.inf, ["inf"])):
            broken = {**t, names[0] + "_scale_2": ("F32", [], f32([value]))}
            path = self.put(broken, {**CONFIG, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4",
                                                                       "ignore": plain}}, "factor-%g" % value)
            self.bad(1, [names[0] + "_scale_2", *words], "run", path, *where)
        broken = {**t, names[0] + "_scale": ("F32", t[names[0] + "_scale"][1], t[names[0] + "_scale"][2] * 4)}
        path = self.put(broken, {**CONFIG, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4",
                                                                   "ignore": plain}}, "unlike")
        self.bad(1, ["experts.1.gate_proj", "e2m1, scales in e4m3 for 1 x 16, a factor", "e2m1, scales in f32 for 1 x 16"],
                 "run", path, *where)
        path = self.quantized("nvfp4")
        broken = read(os.path.join(path, "model.safetensors"))
        broken[names[0] + "_global_scale"] = ("F32", [1], f32([0]))
        write(os.path.join(path, "model.safetensors"), broken)
        self.bad(1, [names[0] + "_global_scale", "holds 0", "divided"], "run", path, *where)

        source = read(os.path.join(self.quantized("fp8-tensor", "--experts-only"), "model.safetensors"))
        decoded = {n: decode(source, n, *matrices()[n]) for n in names}
        t = {n: (d, [] if n.endswith("_scale") else s, raw) for n, (d, s, raw) in source.items()}
        self.same(t, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": plain}, decoded, "fp8-modelopt")

    def test_compressed_tensors(self):
        def quantization(fmt, **weights):
            return {"quant_method": "compressed-tensors", "format": fmt, "ignore": ["lm_head", "re:.*self_attn.*", "re:.*gate$"],
                    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}}}

        # int8, one scale a row, in bf16
        rng = random.Random(3)
        names = [n for n in matrices() if ".experts." in n]
        t, decoded = {n: v for n, v in self.plain.items() if n not in names}, {}
        for n in names:
            rows, cols = matrices()[n]
            codes = [rng.randrange(-128, 128) for _ in range(rows * cols)]
            scales = [2.0 ** -11 * (1 + rng.randrange(128) / 128) for _ in range(rows)]
            t[n] = ("I8", [rows, cols], struct.pack("<%db" % len(codes), *codes))
            t[n + "_scale"] = ("BF16", [rows, 1], b"".join(struct.pack("<f", s)[2:] for s in scales))
            decoded[n] = scaled(codes, rows, cols, scales, 1, cols)
        self.same(t, quantization("int-quantized", num_bits=8, type="int", strategy="channel"), decoded, "channel")

        # int8 in words: a byte holds the code plus 128
        source = read(os.path.join(self.quantized("int8-g32", "--experts-only"), "model.safetensors"))
        decoded = {n: decode(source, n, *matrices()[n]) for n in names}
        t = dict(source)
        for n in names:
            rows, cols = matrices()[n]
            t[n + "_packed"] = ("I32", [rows, cols // 4], bytes(c ^ 128 for c in t.pop(n)[2]))
            t[n + "_shape"] = ("I64", [2], struct.pack("<2q", rows, cols))
        q = quantization("pack-quantized", num_bits=8, type="int", strategy="group", group_size=32)
        self.same(t, q, decoded, "words")

        for tail, dtype, words in (("_zero_point", "I32", ["zero points"]), ("_g_idx", "I32", ["order"])):
            broken = dict(t)
            broken[names[0] + tail] = (dtype, [1], b"\0" * 4)
            path = self.put(broken, {**CONFIG, "quantization_config": q}, "broken" + tail)
            self.bad(1, [names[0] + tail, "compressed-tensors", *words], "run", path, "--layer", 0, "--input",
                     os.path.join(self.root, "x") + ":x", "--output", os.path.join(self.root, "none"))

    def test_fp8_blocks_of_stacked_experts(self):
        source = read(os.path.join(self.quantized("fp8", "--experts-only"), "model.safetensors"))
        # gate and up meet at row 64, so blocks of 64 rows stand for those of 128: each has its scale
        names = [n for n in matrices() if ".experts." in n]
        decoded = {n: decode(source, n, *matrices()[n]) for n in names}
        t = {n: v for n, v in source.items() if ".experts." not in n}

        def join(kinds, tail):
            return b"".join(source[BLOCK + "experts.%d.%s_proj.weight%s" % (e, k, tail)][2] for e in range(EXPERTS) for k in kinds)

        t[BLOCK + "experts.gate_up_proj"] = ("F8_E4M3", [EXPERTS, 2 * INTER, HIDDEN], join(("gate", "up"), ""))
        t[BLOCK + "experts.gate_up_proj_scale_inv"] = ("F32", [EXPERTS, 2, 2], join(("gate", "up"), "_scale_inv"))
        t[BLOCK + "experts.down_proj"] = ("F8_E4M3", [EXPERTS, HIDDEN, INTER], join(("down",), ""))
        down = [s for e in range(EXPERTS)
                for s in numbers(source[BLOCK + "experts.%d.down_proj.weight_scale_inv" % e]) for _ in range(2)]
        t[BLOCK + "experts.down_proj_scale_inv"] = ("F32", [EXPERTS, 4, 1], f32(down))
        q = {"quant_method": "fp8", "weight_block_size": [64, 128], "modules_to_not_convert": ["gate", "self_attn", "lm_head"]}
        self.same(t, q, decoded, "stacked-fp8")
        q = {**q, "weight_block_size": [128, 128]}
        path = self.put(t, {**CONFIG, "quantization_config": q}, "cut")
        self.bad(1, ["gate_up_proj_scale_inv", "[1, 2]", "128 x 128"], "run", path, "--layer", 0, "--input",
                 os.path.join(self.root, "x") + ":x", "--output", os.path.join(self.root, "none"))
        missing = {n: v for n, v in t.items() if n != BLOCK + "experts.down_proj_scale_inv"}
        path = self.put(missing, {**CONFIG, "quantization_config": q}, "missing")
        self.bad(1, ["experts.", "_scale"], "run", path, "--layer", 0, "--input", os.path.join(self.root, "x") + ":x",
                 "--output", os.path.join(self.root, "none"))
        path = self.put(t, CONFIG, "unsaid")
        self.bad(1, ["F8_E4M3", "no quantization_config"], "run", path, "--layer", 0, "--input",
                 os.path.join(self.root, "x") + ":x", "--output", os.path.join(self.root, "none"))

    def test_gpt_oss(self):
        config = {"model_type": "gpt_oss", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_local_experts": EXPERTS,
                  "num_experts_per_tok": 2, "num_hidden_layers": 1, "vocab_size": VOCAB, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "head_dim": 64, "layer_types": ["full_attention"]}
        rng = random.Random(5)
        router = {BLOCK + "router.weight": ("F32", [EXPERTS, HIDDEN], f32([rng.gauss(0, 0.1) for _ in range(EXPERTS * HIDDEN)])),
                  BLOCK + "router.bias": ("F32", [EXPERTS], f32([0.5, -0.5])),
                  BLOCK + "experts.gate_up_proj_bias": ("F32", [EXPERTS, 2 * INTER],
                                                        f32([rng.gauss(0, 0.1) for _ in range(EXPERTS * 2 * INTER)])),
                  BLOCK + "experts.down_proj_bias": ("F32", [EXPERTS, HIDDEN], f32([rng.gauss(0, 0.1) for _ in range(EXPERTS * HIDDEN)]))}
        packed, plain = dict(router), dict(router)
        for name, rows, cols in (("gate_up_proj", 2 * INTER, HIDDEN), ("down_proj", HIDDEN, INTER)):
            n = EXPERTS * rows * cols
            codes = rng.randbytes(n // 2)
            exponents = bytes(rng.randrange(119, 123) for _ in range(n // 32))
            values = scaled(nibbles(codes, E2M1), EXPERTS * rows, cols, [2.0 ** (c - 127) for c in exponents], 1, 32)
            packed[BLOCK + "experts.%s_blocks" % name] = ("U8", [EXPERTS, rows, cols // 32, 16], codes)
            packed[BLOCK + "experts.%s_scales" % name] = ("U8", [EXPERTS, rows, cols // 32], exponents)
            # plain weights stand the other way round
            turned = [values[(e * rows + r) * cols + c] for e in range(EXPERTS) for c in range(cols) for r in range(rows)]
            plain[BLOCK + "experts." + name] = ("F32", [EXPERTS, cols, rows], f32(turned))
        quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                           "model.embed_tokens", "lm_head"]}
        a = self.run_block(self.put(packed, {**config, "quantization_config": quantization}, "mxfp4"))
        b = self.run_block(self.put(plain, config, "plain-oss"))
        self.assertLess(relative_error(a, b), CODES_OF_8_BITS)

    def test_dense_parts(self):
        """All that the engine runs, quantised, against the same numbers plain: the mean loss of given tokens."""
        tokens = os.path.join(self.root, "tokens")
        write(tokens, {"ids": ("I64", [40], struct.pack("<40q", *(i * 7 % VOCAB for i in range(40))))})
        for kind in ("fp8", "fp8-tensor", "nvfp4", "int4-g32"):
            path = self.quantized(kind)
            t = read(os.path.join(path, "model.safetensors"))
            twin = self.twin({n: decode(t, n, *shape) for n, shape in matrices().items()}, kind + "-dense")
            losses = [float(re.search(r"mean loss (\S+) over 39 tokens", self.good("eval", p, "--loss", tokens + ":ids"))[1])
                      for p in (path, twin)]
            self.assertLess(abs(losses[0] - losses[1]), 2e-3 * losses[1], kind)

    def test_gguf(self):
        """wordmath, whose rows of 128 are no blocks of K types: those become q8_0."""
        reference = os.path.join(support.WORDMATH, "reference.safetensors")
        losses = numbers(read(reference)["long.nll"])
        mean = sum(losses) / len(losses)
        for kind, args, line in (("q8_0", [], "400 matrices in q8_0, 22"),
                                 ("q4_0", ["--experts-only"], "384 matrices in q4_0, 38"),
                                 ("q4_k", [], "400 matrices in q4_k (128 of them in q8_0"),
                                 ("q6_k", ["--experts-only"], "384 matrices in q6_k (128 of them in q8_0")):
            with self.subTest(kind):
                out = os.path.join(self.root, kind + ".gguf")
                self.assertIn(line, self.good("quantize", support.WORDMATH, out, "--type", kind, *args))
                text = self.good("eval", out, "--loss", reference + ":long.input_ids", "--stats")
                self.assertAlmostEqual(float(re.search(r"mean loss (\S+) over 767 tokens", text)[1]), mean, delta=3e-3)
                plan = self.good("plan", out, "--tokens", 256, "--context", 768)
                self.assertEqual(re.search(r"weights +(\d+)", text)[1], re.search(r"would take: weights (\d+) bytes", plan)[1])
                self.assertIn("2 of 2 blocks pass", self.good("verify", out, "--reference", reference))
        self.bad(1, ["is quantised already"], "quantize", os.path.join(self.root, "q8_0.gguf"), os.path.join(self.root, "again"),
                 "--type", "fp8")


if __name__ == "__main__":
    support.main()
