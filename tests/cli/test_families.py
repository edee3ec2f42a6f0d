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


if __name__ == "__main__":
    support.main()
