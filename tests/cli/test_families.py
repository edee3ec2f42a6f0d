"""moewe verify over a checkpoint of every family in tests/data/vectors: outputs and choices of transformers, and the
same bits however the work is cut."""
import json
import os
import re
import unittest

import support
from support import Case, read_safetensors

LINE = re.compile(r"(\S+): (\d+) tokens, relative error (\S+), largest error \S+, allowed (\S+), \S+% of it, "
                  r"(?:experts given the ids (\S+), )?(?:(ids equal), weights (\S+) of (\S+), )?workspace (\d+) bytes, bits ([0-9a-f]{16}), ok\n")

# Written down here so that a folder or a block that goes missing is noticed: family -> its MoE layers.
BLOCKS = {
    "aria": [0, 1], "deepseek_v2": [1], "deepseek_v3": [1], "deepseek_v4": [0, 1], "dots1": [1], "ernie4_5_moe": [1],
    "glm4_moe": [1], "glm_moe_dsa": [1], "gpt_oss": [0, 1], "granitemoe": [0, 1], "granitemoeshared": [0, 1],
    "hunyuan_v1_moe": [0, 1], "jamba": [1, 3], "lfm2_moe": [1], "llama4": [0, 1], "longcat_flash": [0, 1],
    "minimax_m2": [0, 1], "minimax_m3_vl": [0, 1], "mixtral": [0, 1], "nemotron_h": [1], "olmoe": [0, 1],
    "phimoe": [0, 1], "qwen2_moe": [0, 1], "qwen3_5_moe": [0, 1], "qwen3_moe": [0, 1], "qwen3_next": [0, 1]}

# Six that have little in common: latent experts in one layer of its own; identity experts; interleaved, transposed
# experts with biases; groups; the sparse mixer; experts by token id.
CUT = ("nemotron_h", "longcat_flash", "gpt_oss", "deepseek_v3", "phimoe", "deepseek_v4")


class Families(Case):
    def folder_of(self, family):
        return os.path.join(support.SOURCE, "tests", "data", "vectors", family)

    def verify(self, family, *args):
        """layer -> (relative error, that of the experts or None, that of the weights or None where the ids are not
        reported as equal, workspace, bits)"""
        text = self.good("verify", self.folder_of(family), *args)
        found = {}
        for name, tokens, error, _, experts, _, weights, allowed, workspace, bits in LINE.findall(text):
            self.assertEqual(tokens, "17", family)
            layer = int(re.search(r"\.layers\.(\d+)\.", name)[1])
            if weights:
                self.assertLessEqual(float(weights), float(allowed), family)
                self.assertLessEqual(float(allowed), 1e-5, family)
            found[layer] = (float(error), float(experts) if experts else None, float(weights) if weights else None,
                            int(workspace), bits)
        n = len(BLOCKS[family])
        self.assertEqual(text, "".join(m[0] for m in LINE.finditer(text)) + "%d of %d blocks pass\n" % (n, n))
        self.assertEqual(list(found), BLOCKS[family], family)
        return found

    def recorded(self, family):
        """layer -> whether the reference has what the router chose, as ids and weights."""
        tensors = read_safetensors(os.path.join(self.folder_of(family), "reference.safetensors"))
        out = {}
        for name, (dtype, _, _) in tensors.items():
            match = re.fullmatch(r".*\.layers\.(\d+)\.\w+\.experts\.arg1", name)
            if match:
                out[int(match[1])] = dtype == "I64" and name[:-1] + "2" in tensors
        return out

    def test_all_are_here(self):
        root = os.path.join(support.SOURCE, "tests", "data", "vectors")
        self.assertEqual(sorted(os.listdir(root)), sorted(BLOCKS))

    def test_f32(self):
        with_ids = 0
        for family in BLOCKS:
            recorded = self.recorded(family)
            for layer, (error, experts, weights, _, _) in self.verify(family).items():
                self.assertLessEqual(error, 1e-5, family)
                self.assertEqual(weights is not None, recorded.get(layer, False), (family, layer))
                self.assertEqual(experts is not None, recorded.get(layer, False), (family, layer))
                if experts is not None:
                    self.assertLessEqual(experts, 2e-6, family)
                    with_ids += 1
        # 44 blocks, without two of llama4 (experts that get scaled tokens) and two of aria (which records logits).
        self.assertEqual(with_ids, sum(map(len, BLOCKS.values())) - 4)

    def test_bf16(self):
        for family in BLOCKS:
            for error, *_ in self.verify(family, "--dtype", "bf16").values():
                self.assertLessEqual(error, 2.0**-8, family)
                self.assertGreater(error, 0, family)  # it was not computed in f32

    def test_same_bits(self):
        for family in CUT:
            for dtype in ("f32", "bf16"):
                floor = json.loads(self.good("plan", self.folder_of(family), "--json", "--dtype",
                                             dtype))["workspace_floor_bytes"]
                first = None
                for limit in (floor, 3 * floor, None):
                    for threads in (1, 2):
                        for rows in ("one", "all"):
                            args = ["--dtype", dtype, "--threads", threads, "--rows", rows]
                            got = self.verify(family, *args, *(["--workspace-limit", limit] if limit else []))
                            bits = [v[4] for v in got.values()]
                            first = first or bits
                            self.assertEqual(bits, first, (family, args, limit))
                            if limit:
                                self.assertLessEqual(max(v[3] for v in got.values()), limit)

    # ---- a model_type that is not known ---------------------------------------------------------------

    def renamed(self, family, **fields):
        """A copy whose model_type nobody has described; a field that is None is taken out."""
        folder = self.folder()
        for name in ("model.safetensors", "reference.safetensors"):
            os.symlink(os.path.join(self.folder_of(family), name), os.path.join(folder, name))
        with open(os.path.join(self.folder_of(family), "config.json")) as f:
            config = json.load(f)
        config.update(model_type="newcomer", **fields)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({k: v for k, v in config.items() if v is not None or k not in fields}, f)
        return folder

    def test_unknown_model_type(self):
        """Enough fields: the same bits as under the family's own name."""
        for family, fields in (("qwen3_moe", {"scoring_func": "softmax"}),
                               ("qwen3_moe", {"scoring_func": "softmax", "num_local_experts": None, "num_experts": 8}),
                               ("mixtral", {"scoring_func": "softmax", "norm_topk_prob": True}),
                               ("glm4_moe", {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}),
                               ("qwen2_moe", {"scoring_func": "softmax"}),
                               ("olmoe", {"scoring_func": "softmax"})):
            folder = self.renamed(family, **fields)
            for dtype in ("f32", "bf16"):
                known, text = self.verify(family, "--dtype", dtype), self.good("verify", folder, "--dtype", dtype)
                bits = re.findall(r"bits ([0-9a-f]{16}), ok\n", text)
                self.assertEqual(bits, [v[4] for v in known.values()], family)

    def test_unknown_model_type_without_enough(self):
        for family, fields, parts in (
            ("mixtral", {}, ["model_type 'newcomer'", "scoring_func", "norm_topk_prob"]),
            ("mixtral", {"norm_topk_prob": True, "scoring_func": "softmax", "hidden_act": None}, ["hidden_act"]),
            ("mixtral", {"num_experts_per_tok": None}, ["missing", "num_experts_per_tok"]),
            ("mixtral", {"num_local_experts": None}, ["missing", "num_experts"]),
            ("mixtral", {"intermediate_size": None}, ["missing", "moe_intermediate_size"]),
            ("mixtral", {"hidden_size": None, "vocab_size": None, "num_attention_heads": None},
             ["missing hidden_size, num_attention_heads, vocab_size"]),
            ("mixtral", {"norm_topk_prob": True, "scoring_func": "entmax"}, ["scoring_func", "entmax"]),
            ("mixtral", {"norm_topk_prob": "yes", "scoring_func": "softmax"}, ["norm_topk_prob", "yes"]),
            ("qwen2_moe", {"norm_topk_prob": None}, ["norm_topk_prob"]),
            # What a descriptor would have to say: a clamp, experts by token id, another place of the weights,
            # null experts, latent experts.
            ("qwen3_moe", {"swiglu_limit": 7.0}, ["swiglu_limit"]),
            ("qwen3_moe", {"num_hash_layers": 1}, ["num_hash_layers"]),
            ("qwen3_moe", {"moe_apply_router_weight_on_input": True}, ["moe_apply_router_weight_on_input"]),
            ("qwen3_moe", {"zero_expert_num": 4}, ["zero_expert_num"]),
            ("qwen3_moe", {"moe_latent_size": 32}, ["moe_latent_size"]),
            # Tensors that nothing takes: biases of experts and router, latent projections.
            ("gpt_oss", {"norm_topk_prob": True, "scoring_func": "softmax", "swiglu_limit": None}, ["model.safetensors"]),
            ("nemotron_h", {"scoring_func": "sigmoid", "hidden_act": "silu"}, [])):
            folder = self.renamed(family, **fields)
            self.bad(1, [folder, *parts], "verify", folder)


if __name__ == "__main__":
    support.main()
