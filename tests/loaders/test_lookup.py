"""Our rules of how vLLM finds a format (lib/source/dialects/lookup_vllm.cpp) against vLLM's classes, on configurations with planted
faults: both must find a fault, or neither. Runs in vLLM's environment; TWOFOUR is the program.

What is planted says whether it is a fault, so that neither side passes by finding nothing.
"""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import save_file

import resolve
from test_resolve import ATTENTION, E4M3, EXPERTS, FLOATS, fp8, mixed_compressed_tensors, mixed_modelopt, nvfp4

EXPERT_BLOCK = "model.layers.0.mlp.experts"
SHARED = [f"model.layers.0.mlp.shared_expert.{p}_proj" for p in ("gate", "up", "down")]
# What lint finds by rules that are no engine's, where these are enough.
OTHER_RULES = {"config-dtype", "unquantized-not-ignored", "missing-input-scale"}


def floats(modules):
  return {f"{m}.weight": torch.zeros(128, 128).bfloat16() for m in modules}


def blocks(module):
  return {f"{module}.weight": torch.zeros(256, 128).to(E4M3), f"{module}.weight_scale_inv": torch.ones(2, 1)}


def merged(parts):
  return {name: tensor for part in parts for name, tensor in part.items()}


def single_modelopt(ignore, attention=floats):
  """Experts in NVFP4, attention in floats, and what is excluded."""
  tensors = merged([nvfp4(m, "modelopt", input_scale=True) for m in EXPERTS]) | attention(ATTENTION)
  groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16},
                        "input_activations": {"num_bits": 4, "type": "float", "group_size": 16}}}
  return {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": groups,
          "ignore": ["lm_head", "model.layers.0.mlp.gate"] + ignore}, tensors


def fp8_list(listed):
  tensors = merged([blocks(m) for m in EXPERTS]) | floats(ATTENTION)
  return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
          "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"] + listed}, tensors


def layers(config, change):
  change(config["quantized_layers"])


def planted():
  """Yields (what, whether it is a fault, configuration, tensors)."""
  def mixed(what, is_fault, change=lambda all: None, more=None):
    config, tensors = mixed_modelopt()
    layers(config, change)
    return what, is_fault, config, tensors | (more or {})

  def groups(what, is_fault, change=lambda config: None):
    config, tensors = mixed_compressed_tensors()
    change(config)
    return what, is_fault, config, tensors

  yield mixed("nothing", False)
  yield mixed("an unlisted module", True, lambda all: all.pop(ATTENTION[3]))
  yield mixed("a misspelt key", True, lambda all: all.update({ATTENTION[3] + "s": all.pop(ATTENTION[3])}))
  yield mixed("an unlisted shard", False, lambda all: all.pop(ATTENTION[0]))
  yield mixed("no listed shard", True, lambda all: [all.pop(m) for m in ATTENTION[:3]])
  yield mixed("two algorithms within a fused layer", True, lambda all: all.update({ATTENTION[1]: {"quant_algo": "NVFP4"}}))
  yield mixed("an unknown algorithm", True, lambda all: all.update({ATTENTION[3]: {"quant_algo": "FP8_TENSOR"}}))
  yield mixed("a container key", False,
              lambda all: [all.pop(m) for m in EXPERTS] and all.update({EXPERT_BLOCK: {"quant_algo": "NVFP4"}}))
  yield mixed("experts by their first key", True, lambda all: all.update({EXPERTS[0]: {"quant_algo": "FP8"}}))
  yield mixed("a prefix of another model", True,
              lambda all: all.update({"language_model." + ATTENTION[3]: all.pop(ATTENTION[3])}))
  yield mixed("a renumbered layer", True,
              lambda all: all.update({ATTENTION[3].replace("layers.0", "layers.1"): all.pop(ATTENTION[3])}))
  beside = merged([fp8(m) for m in SHARED])
  yield mixed("experts in floats beside a quantized one", True,
              lambda all: [all.pop(m) for m in EXPERTS] and all.update({m: {"quant_algo": "FP8"} for m in SHARED}),
              beside | {f"{m}.{part}": None for m in EXPERTS for part in ("weight_scale", "weight_scale_2", "input_scale")}
              | floats(EXPERTS))

  for what, is_fault, ignore in (
      ("names", False, ATTENTION), ("a glob of all", False, ["model.layers.0.self_attn*"]),
      ("globs of shards", True, ["*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj"]),
      ("some of the shards", True, ATTENTION[1:]), ("too much", True, ["model.layers.0"]),
      ("an expert", True, ATTENTION + [EXPERTS[0]])):
    yield f"ModelOpt excludes {what}", is_fault, *single_modelopt(ignore)

  yield groups("groups", False)
  def first(targets):
    return lambda config: config["config_groups"]["group_0"].update(targets=targets)
  yield groups("a group that reaches too far", True, first(["re:.*_proj$"]))
  yield groups("names of shards before a class", False, first(ATTENTION))
  yield groups("a part of the shards", True, first(ATTENTION[1:]))
  yield groups("some of the shards ignored", True, lambda config: config["ignore"].append(ATTENTION[0]))
  yield groups("an expression that is not anchored at the end", False, first(["re:.*self_attn"]))
  yield groups("an expression that is anchored at the start", True, first(["re:self_attn"]))
  def swap(config):
    both = config["config_groups"]
    both["group_1"]["targets"] = ["re:.*_proj$"]
    config["config_groups"] = {"group_1": both["group_1"], "group_0": both["group_0"]}
  yield groups("groups in the wrong order", True, swap)

  for what, is_fault, listed in (
      ("names", False, ATTENTION), ("a glob", True, ["model.layers.0.self_attn*"]), ("a part of names", True, ["self_attn"]),
      ("the fused name", True, ["model.layers.0.self_attn.qkv_proj"])):
    yield f"fp8 lists {what}", is_fault, *fp8_list(listed)


class SameAnswer(unittest.TestCase):
  def test_both_find_a_fault_or_neither(self):
    for what, is_fault, config, tensors in planted():
      with self.subTest(what), tempfile.TemporaryDirectory() as folder:
        tensors = {name: tensor for name, tensor in (floats(FLOATS) | tensors).items() if tensor is not None}
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, pathlib.Path(folder) / "model.safetensors")
        (pathlib.Path(folder) / "config.json").write_text(json.dumps({"quantization_config": config}))
        theirs, ours = self.theirs(folder), self.ours(folder)
        self.assertEqual(bool(theirs), is_fault, f"vLLM: {theirs}")
        self.assertEqual(bool(ours), is_fault, f"lint: {ours}")

  def theirs(self, folder):
    try:
      return resolve.problems(folder, "Qwen3MoeForCausalLM")
    except Exception as error:
      return [str(error)]

  def ours(self, folder):
    done = subprocess.run([os.environ["TWOFOUR"], "lint", "--json", "--headers-only", folder], capture_output=True, text=True)
    findings = json.loads(done.stdout)["findings"]
    by_engine = [f for f in findings if f["rule"].startswith("engine-") and "vLLM" in f["message"]]
    return [f"{f['rule']}: {f['where']}: {f['message']}" for f in by_engine + [f for f in findings if f["rule"] in OTHER_RULES]]


if __name__ == "__main__":
  unittest.main()
