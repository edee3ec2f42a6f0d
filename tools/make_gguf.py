#!/usr/bin/env python3
"""make_gguf.py DIR OUT.gguf [--type f32|f16|bf16|q8_0|q4_0] [--parts N] [--fused] - a GGUF file of a small checkpoint.

DIR is a checkpoint as transformers saves it, of model_type qwen3_moe, qwen2_moe, olmoe, deepseek_v2 or deepseek_v3,
with weights in BF16, F16 or F32.  --type is that of the matrices; vectors and the router are F32.  --parts splits the
file, --fused puts gate and up rows into one tensor.  For tests: it shares no code with moewe and needs nothing but the
Python standard library.
"""
import array
import json
import math
import os
import re
import struct
import sys

F32, F16, Q4_0, Q8_0, BF16 = 0, 1, 2, 8, 30
TYPES = {"f32": F32, "f16": F16, "bf16": BF16, "q8_0": Q8_0, "q4_0": Q4_0}
ARCHS = {"qwen3_moe": "qwen3moe", "qwen2_moe": "qwen2moe", "olmoe": "olmoe",
         "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2"}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
       "lm_head.weight": "output.weight"}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight", "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight", "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.kv_b_proj.weight": "attn_kv_b.weight", "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
for x in "qkv":
    LAYER["self_attn.%s_proj.weight" % x] = "attn_%s.weight" % x
    LAYER["self_attn.%s_proj.bias" % x] = "attn_%s.bias" % x
for x in ("gate", "up", "down"):
    LAYER["mlp.%s_proj.weight" % x] = "ffn_%s.weight" % x
    for word in ("shared_expert", "shared_experts"):
        LAYER["mlp.%s.%s_proj.weight" % (word, x)] = "ffn_%s_shexp.weight" % x


# ---- a checkpoint -----------------------------------------------------------------------------------------------

def read_safetensors(path):
    """name -> (shape, floats as array('f'))"""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(length)), f.read()
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        raw = data[a:b]
        if t["dtype"] == "F32":
            values = array.array("f", raw)
        elif t["dtype"] == "BF16":
            wide = bytearray(2 * len(raw))
            wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
            values = array.array("f", bytes(wide))
        else:
            values = array.array("f", struct.unpack("<%de" % (len(raw) // 2), raw))
        out[name] = list(t["shape"]), values
    return out


# ---- types: as the GGUF specification and ggml's reference quantisation have them ------------------------------------

def to_bf16(values):
    bits = array.array("I", values.tobytes())
    return array.array("H", [(b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits]).tobytes()


def away(x):
    """To the nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def to_q8_0(values):
    out = bytearray()
    for i in range(0, len(values), 32):
        block = values[i:i + 32]
        d = f32(max(map(abs, block)) / 127)
        by = f32(1 / d) if d else 0.0
        out += struct.pack("<e32b", d, *(away(f32(v * by)) for v in block))
    return bytes(out)


def to_q4_0(values):
    out = bytearray()
    for i in range(0, len(values), 32):
        block = values[i:i + 32]
        d = f32(max(block, key=abs) / -8)
        by = f32(1 / d) if d else 0.0
        q = [min(15, int(f32(f32(v * by) + 8.5))) for v in block]
        out += struct.pack("<e16B", d, *(q[k] | q[k + 16] << 4 for k in range(16)))
    return bytes(out)


ENCODE = {F32: lambda v: v.tobytes(), F16: lambda v: struct.pack("<%de" % len(v), *v), BF16: to_bf16,
          Q8_0: to_q8_0, Q4_0: to_q4_0}
BLOCK = {Q8_0: 32, Q4_0: 32}


# ---- metadata -------------------------------------------------------------------------------------------------------

def text(s):
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def value(v):
    """u32, f32, bool, string, or a list of one of u32 and string."""
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    if v and isinstance(v[0], str):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))
    return struct.pack("<IIQ", 9, 5, len(v)) + b"".join(struct.pack("<i", x) for x in v)


def metadata(folder, c):
    arch = ARCHS[c["model_type"]]
    rope = c.get("rope_parameters") or {}
    heads = c["num_attention_heads"]
    kv = {"general.architecture": arch, "general.quantization_version": 2}
    of_arch = {
        "block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c["intermediate_size"], "attention.head_count": heads,
        "attention.head_count_kv": c.get("num_key_value_heads", heads),
        "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]),
        "rope.freq_base": float(rope.get("rope_theta") or c.get("rope_theta") or 10000.0),
        "expert_count": c.get("num_experts") or c.get("n_routed_experts") or c.get("num_local_experts"),
        "expert_used_count": c["num_experts_per_tok"],
    }
    if "moe_intermediate_size" in c:
        of_arch["expert_feed_forward_length"] = c["moe_intermediate_size"]
    if "shared_expert_intermediate_size" in c:
        of_arch["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
    if "norm_topk_prob" in c:
        of_arch["expert_weights_norm"] = bool(c["norm_topk_prob"])
    if arch == "qwen3moe":
        head = c.get("head_dim") or c["hidden_size"] // heads
        of_arch.update({"attention.key_length": head, "attention.value_length": head})
    if arch == "deepseek2":
        v3 = c["model_type"] == "deepseek_v3"
        of_arch.update({
            "attention.kv_lora_rank": c["kv_lora_rank"], "rope.dimension_count": c["qk_rope_head_dim"],
            "attention.key_length": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
            "attention.value_length": c["v_head_dim"],
            "leading_dense_block_count": c["first_k_dense_replace"], "expert_shared_count": c["n_shared_experts"],
            "expert_weights_scale": float(c["routed_scaling_factor"]), "expert_gating_func": 2 if v3 else 1,
            "expert_weights_norm": bool(v3 and c["norm_topk_prob"]),
        })
        if c.get("q_lora_rank"):
            of_arch["attention.q_lora_rank"] = c["q_lora_rank"]
        if v3 or c.get("topk_method") == "group_limited_greedy":
            of_arch.update({"expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]})
    kv.update({arch + "." + k: v for k, v in of_arch.items()})
    kv.update(tokenizer(os.path.join(folder, "tokenizer.json"), c))
    return kv


def tokenizer(path, c):
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        t = json.load(f)
    tokens = ["[PAD%d]" % i for i in range(c["vocab_size"])]
    types = [5] * len(tokens)
    for token, i in t["model"]["vocab"].items():
        tokens[i], types[i] = token, 1
    for a in t["added_tokens"]:
        tokens[a["id"]], types[a["id"]] = a["content"], 3 if a["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    kv = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
          "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges, "tokenizer.ggml.add_bos_token": False}
    if isinstance(c.get("eos_token_id"), int):
        kv["tokenizer.ggml.eos_token_id"] = c["eos_token_id"]
    return kv


# ---- tensors --------------------------------------------------------------------------------------------------------

def stack(parts):
    whole = array.array("f")
    for _, values in parts:
        whole.extend(values)
    return [len(parts)] + parts[0][0], whole


def rename(tensors, fused):
    """GGUF names; the experts of a layer become one tensor."""
    out, experts = {}, {}
    for name, (shape, values) in tensors.items():
        m = re.match(r"model\.layers\.(\d+)\.(.*)", name)
        if not m:
            out[TOP[name]] = shape, values
            continue
        block, rest = "blk.%s." % m[1], m[2]
        one = re.match(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight", rest)
        if one:
            experts.setdefault((block, one[2]), {})[int(one[1])] = shape, values
        elif rest == "mlp.experts.gate_up_proj":
            half = shape[1] // 2 * shape[2]
            for i in range(shape[0]):
                for k, kind in enumerate(("gate", "up")):
                    at = (2 * i + k) * half
                    experts.setdefault((block, kind), {})[i] = [shape[1] // 2, shape[2]], values[at:at + half]
        elif rest == "mlp.experts.down_proj":
            size = shape[1] * shape[2]
            experts[block, "down"] = {i: (shape[1:], values[i * size:(i + 1) * size]) for i in range(shape[0])}
        else:
            if rest == "mlp.shared_expert_gate.weight":
                shape = [shape[-1]]
            out[block + LAYER[rest]] = shape, values
    for (block, kind), parts in experts.items():
        parts = [parts[i] for i in range(len(parts))]
        if not fused or kind == "down":
            out["%sffn_%s_exps.weight" % (block, kind)] = stack(parts)
        elif kind == "gate":
            ups = experts[block, "up"]
            both = [([2 * s[0], s[1]], v + ups[i][1]) for i, (s, v) in enumerate(parts)]
            out[block + "ffn_gate_up_exps.weight"] = stack(both)
    return out


def typed(tensors, kind):
    """name -> (shape, type, bytes)"""
    out = {}
    for name, (shape, values) in tensors.items():
        small = len(shape) < 2 or "ffn_gate_inp" in name or shape[-1] % BLOCK.get(kind, 1)
        use = F32 if small else kind
        out[name] = shape, use, ENCODE[use](values)
    return out


def write(path, kv, tensors, version=3, align=32):
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(kv))
    head += b"".join(text(k) + value(v) for k, v in kv.items())
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        head += text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *reversed(shape), kind, len(data))
        data += raw + b"\0" * (-len(raw) % align)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % align) + data)


def tensors_of(folder, kind, fused=False):
    """name -> (shape, type, bytes) of a checkpoint's tensors as they are written."""
    return typed(rename(read_safetensors(os.path.join(folder, "model.safetensors")), fused), TYPES[kind])


def make(folder, out, kind="f32", parts=1, fused=False, change=None):
    """change(metadata) may edit what is written."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    kv = metadata(folder, config)
    if change:
        change(kv)
    tensors = tensors_of(folder, kind, fused)
    if parts == 1:
        write(out, kv, tensors)
        return [out]
    names, paths = list(tensors), []
    for i in range(parts):
        of_part = {n: tensors[n] for n in names[i::parts]}
        split = {"split.no": i, "split.count": parts, "split.tensors.count": len(names)}
        paths.append("%s-%05d-of-%05d.gguf" % (re.sub(r"\.gguf$", "", out), i + 1, parts))
        write(paths[-1], {**(kv if i == 0 else {}), **split}, of_part)
    return paths


def main(args):
    options = {"--type": "f32", "--parts": "1"}
    plain, fused = [], False
    while args:
        a = args.pop(0)
        if a in options:
            options[a] = args.pop(0)
        elif a == "--fused":
            fused = True
        else:
            plain.append(a)
    if len(plain) != 2 or options["--type"] not in TYPES:
        sys.exit(__doc__)
    print("\n".join(make(*plain, options["--type"], int(options["--parts"]), fused)))


if __name__ == "__main__":
    main(sys.argv[1:])
