"""moewe plan: answers from config.json alone, for models that are built in and for folders."""
import json
import os
import re
import xml.etree.ElementTree as xml

import support
from support import Case


class Plan(Case):
    def configs(self):
        folder = os.path.join(support.SOURCE, "tests", "data", "model-configs")
        return sorted(os.path.join(folder, n) for n in os.listdir(folder))

    def plan(self, *args):
        return json.loads(self.good("plan", "--json", *args))

    def test_every_known_model(self):
        configs = self.configs()
        self.assertEqual(len(configs), 46)
        for path in configs:
            with open(path) as f:
                known = json.load(f)
            name = os.path.basename(path)[:-5]
            p = self.plan(path)
            by_name, by_id = self.plan(name), self.plan(known["hf_id"].split(" ")[0])
            derived = known["derived"]
            for other in (by_name, by_id):
                self.assertEqual({k: v for k, v in other.items() if k != "config"},
                                 {k: v for k, v in p.items() if k != "config"})
            self.assertEqual(p["moe_layers"], derived["num_moe_layers"], name)
            self.assertEqual(p["routed_parameters"], derived["routed_params_total"], name)
            self.assertEqual((p["experts"], p["top_k"]), (derived["num_experts"], derived["top_k"]), name)
            w = p["weights"]
            self.assertEqual(w["bytes"], sum(v for k, v in w.items() if k.endswith("_bytes")), name)
            self.assertEqual(p["total_bytes"], w["bytes"] + p["kv_cache"]["bytes"] + p["kv_cache"]["state_bytes"] +
                             p["workspaces_bytes"], name)

    def test_bare_config_is_the_same(self):
        with open(os.path.join(support.SOURCE, "tests", "data", "model-configs", "qwen3-30b-a3b.json")) as f:
            config = json.load(f)["config"]
        folder = self.folder()
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)
        bare, known = self.plan(folder), self.plan("qwen3-30b-a3b")
        bare.pop("config"), known.pop("config")
        self.assertEqual(bare, known)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({"model_type": "wrapper", "text_config": config}, f)
        nested = self.plan(folder)
        self.assertEqual(nested["weights"], known["weights"])

    def test_compare(self):
        p = self.plan("nemotron-3-super", "--ep", "8", "--tokens", "16384", "--weights", "nvfp4", "--compare")
        self.assertEqual(p["call_tokens"], 131072)
        self.assertEqual(p["compare"]["flashinfer_cutlass_bytes"], 21973335168)
        self.assertEqual(p["compare"]["one_pass_bytes"], 4359979008 + 23068672)
        words = self.good("plan", "nemotron-3-super", "--ep", "8", "--tokens", "16384", "--weights", "nvfp4", "--compare")
        self.assertIn("21973335168 bytes (20.46 GiB)", words)

    def test_fit(self):
        args = ["gpt-oss-20b", "--context", "8192", "--sequences", "4"]
        total = self.plan(*args)["total_bytes"]
        exact = self.plan(*args, "--memory", total, "--utilization", "1")
        self.assertEqual((exact["fits"], exact["left_bytes"], exact["short_by_bytes"]), (True, 0, 0))
        self.assertEqual(exact["kv_tokens"], 4 * 8192)
        short = self.plan(*args, "--memory", total - 1, "--utilization", "1")
        self.assertEqual((short["fits"], short["left_bytes"], short["short_by_bytes"]), (False, 0, 1))
        words = self.good("plan", *args, "--memory", total - 1, "--utilization", "1")
        self.assertIn("does not fit by 1 bytes", words)
        self.assertIn(str(total), words)
        for memory in (total - 1, total * 9 // 10, total * 2 // 3, total // 3):
            p = self.plan(*args, "--memory", memory, "--utilization", "1")
            change = p["change"].split()
            changed = list(args)
            for option, value in zip(change[::2], change[1::2]):
                if option in changed:
                    at = changed.index(option)
                    changed[at + 1] = value
                else:
                    changed += [option, value]
            self.assertTrue(self.plan(*changed, "--memory", memory, "--utilization", "1")["fits"], (memory, p["change"]))

    def test_ranks(self):
        whole = self.plan("qwen3-30b-a3b")
        tp = self.plan("qwen3-30b-a3b", "--tp", "4")
        ep = self.plan("qwen3-30b-a3b", "--ep", "4")
        self.assertEqual(tp["weights"]["experts_bytes"] * 4, whole["weights"]["experts_bytes"])
        self.assertEqual(tp["inter"] * 4, whole["inter"])
        self.assertEqual(tp["kv_cache"]["bytes_per_token"] * 4, whole["kv_cache"]["bytes_per_token"])
        self.assertEqual(ep["weights"]["experts_bytes"] * 4, whole["weights"]["experts_bytes"])
        self.assertEqual(ep["weights"]["attention_bytes"], whole["weights"]["attention_bytes"])
        self.assertEqual((ep["local_experts"], ep["ranks"]["dp"], ep["call_tokens"]), (32, 4, 4 * 4096))
        eight = self.plan("qwen3-30b-a3b", "--tp", "8")
        self.assertEqual(eight["kv_cache"]["bytes_per_token"], tp["kv_cache"]["bytes_per_token"])
        self.assertEqual(eight["ranks"]["kv_copies"], 2)
        uneven = self.plan("qwen3-30b-a3b", "--ep", "6")
        self.assertEqual(uneven["ranks"]["experts_per_rank"], [22, 22, 21, 21, 21, 21])

    def test_refusals(self):
        for parts, args in (
            (["no-such-model", "built in"], ("no-such-model",)),
            (["768", "tp 16", "48", "128", "1, 2, 3, 6"], ("qwen3-30b-a3b", "--tp", "16", "--weights", "fp8_block128")),
            (["4", "tp 5", "work"], ("qwen3-30b-a3b", "--tp", "5")),
            (["129", "128"], ("qwen3-30b-a3b", "--ep", "129")),
            (["ep", "8", "4"], ("qwen3-30b-a3b", "--ep", "8", "--dp", "4")),
            (["40961", "40960"], ("qwen3-30b-a3b", "--context", "40961")),
            (["--workspace-limit", "at least"], ("qwen3-30b-a3b", "--workspace-limit", "1")),
        ):
            self.bad(1, parts, "plan", *args)
        self.bad(2, ["--weights", "q9"], "plan", "qwen3-30b-a3b", "--weights", "q9")
        self.bad(1, ["/nowhere/map.svg"], "plan", "qwen3-30b-a3b", "--svg", "/nowhere/map.svg")

    def test_predicts_a_run(self):
        """What moewe run says it took, with the same --dtype and as many tokens."""
        for model in support.VECTORS.values():
            reference = os.path.join(model, "reference.safetensors")
            tensors = support.read_safetensors(reference)
            name = sorted(n for n in tensors if n.endswith(".input"))[0]
            tokens = 1
            for n in tensors[name][1][:-1]:
                tokens *= n
            rows = os.path.join(self.folder(), "rows.safetensors")
            dtype, shape, values = tensors[name]
            support.write_safetensors(rows, {"x": (dtype, [tokens, shape[-1]], values)})
            for of in ("f32", "bf16"):
                for limit in ((), ("--workspace-limit", "65536")):
                    said = self.good("run", model, "--layer", name[:-len(".input")], "--input", rows, "--output",
                                     os.path.join(self.folder(), "y.safetensors"), "--dtype", of, *limit)
                    p = self.plan(model, "--tokens", tokens, "--dtype", of, *limit)
                    self.assertIn("workspace %d bytes" % p["workspace_bytes"], said)
                    self.assertEqual(p["cpu"]["workspace_bytes"], p["workspace_bytes"])

    def test_picture(self):
        path = os.path.join(self.folder(), "map.svg")
        for args in (("nemotron-3-super", "--ep", "8", "--memory", "80GiB"), ("qwen3-30b-a3b", "--memory", "32GiB"),
                     ("mixtral-8x7b",)):
            p = self.plan(*args, "--svg", path)
            root = xml.parse(path).getroot()
            self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
            texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
            self.assertTrue(any(str(p["total_bytes"]) in t for t in texts), texts)
            rects = [r for r in root.iter("{http://www.w3.org/2000/svg}rect")]
            whole = max(p["total_bytes"], p.get("memory", 0))
            bar = [r for r in rects if r.get("x") == "24.0"]
            experts = p["weights"]["experts_bytes"] / whole * 420
            self.assertAlmostEqual(float(bar[0].get("height")), experts, delta=0.01)
            self.assertAlmostEqual(sum(float(r.get("height")) for r in bar), 420, delta=0.2)
            self.assertTrue(any(re.match("experts: ", t) for t in texts), texts)
            for r in root.iter("{http://www.w3.org/2000/svg}text"):
                self.assertTrue(0 <= float(r.get("x")) < 900 and 0 <= float(r.get("y")) < 640)


if __name__ == "__main__":
    support.main()
