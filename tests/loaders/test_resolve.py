"""resolve.py finds what is planted in a configuration. Runs in vLLM's environment."""
import copy
import json
import pathlib
import tempfile
import unittest

import torch
from safetensors.torch import save_file

import resolve

ATTENTION = [f"model.layers.0.self_attn.{p}_proj" for p in "qkvo"]
EXPERTS = [f"model.layers.0.mlp.experts.{e}.{p}_proj" for e in (0, 1) for p in ("gate", "up", "down")]
FLOATS = ["model.embed_tokens", "lm_head", "model.layers.0.mlp.gate"]
E4M3 = torch.float8_e4m3fn


def nvfp4(module, dialect, input_scale=False):
  codes, scale = torch.zeros(128, 64, dtype=torch.uint8), torch.ones(128, 8).to(E4M3)
  if dialect == "modelopt":
    tensors = {"weight": codes, "weight_scale": scale, "weight_scale_2": torch.tensor(1.0)}
    tensors |= {"input_scale": torch.tensor(1.0)} if input_scale else {}
  else:
    tensors = {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": torch.ones(1)}
  return {f"{module}.{part}": tensor for part, tensor in tensors.items()}


def fp8(module, rows=False):
  """With a scale a row and dynamic inputs, as llm-compressor has it, or one of all and one of the inputs, as ModelOpt."""
  tensors = {"weight": torch.zeros(128, 128).to(E4M3), "weight_scale": torch.ones(128, 1) if rows else torch.tensor(1.0)}
  tensors |= {} if rows else {"input_scale": torch.tensor(1.0)}
  return {f"{module}.{part}": tensor for part, tensor in tensors.items()}


def mixed_modelopt():
  """Configuration and tensors of attention in FP8, experts in NVFP4, as ModelOpt writes them."""
  layers = {m: {"quant_algo": "FP8"} for m in ATTENTION} | {
      m: {"quant_algo": "NVFP4", "group_size": 16} for m in EXPERTS}
  tensors = {}
  for module in ATTENTION:
    tensors |= fp8(module)
  for module in EXPERTS:
    tensors |= nvfp4(module, "modelopt", input_scale=True)
  config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "ignore": []}
  return config, tensors


def mixed_compressed_tensors():
  """The same as llm-compressor writes it, with FP8 per row and weight-only NVFP4."""
  fp8_row = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
  fp8_input = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
  nvfp4_weight = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
                  "dynamic": False}
  groups = {
      "group_0": {"targets": ["re:.*self_attn\\..*_proj$"], "weights": fp8_row, "input_activations": fp8_input,
                  "format": "float-quantized"},
      "group_1": {"targets": ["Linear"], "weights": nvfp4_weight, "input_activations": None,
                  "format": "nvfp4-pack-quantized"}}
  tensors = {}
  for module in ATTENTION:
    tensors |= fp8(module, rows=True)
  for module in EXPERTS:
    tensors |= nvfp4(module, "compressed-tensors")
  return {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups,
          "ignore": ["lm_head", "model.layers.0.mlp.gate"]}, tensors


class Resolve(unittest.TestCase):
  def problems(self, config, tensors, file=None):
    floats = {f"{m}.weight": torch.zeros(128, 128).bfloat16() for m in FLOATS}
    with tempfile.TemporaryDirectory() as folder:
      save_file(floats | tensors, pathlib.Path(folder) / "model.safetensors")
      (pathlib.Path(folder) / "config.json").write_text(json.dumps({"quantization_config": config}))
      if file:
        (pathlib.Path(folder) / "hf_quant_config.json").write_text(json.dumps(file))
      return resolve.problems(folder, "Qwen3MoeForCausalLM")

  def demand(self, words, config, tensors, file=None):
    found = self.problems(config, tensors, file)
    self.assertTrue(any(words in line for line in found), f"expected '{words}', found {found}")

  def test_healthy_configurations_have_no_problem(self):
    self.assertEqual(self.problems(*mixed_modelopt()), [])
    self.assertEqual(self.problems(*mixed_compressed_tensors()), [])

  def test_an_unlisted_module_is_unquantized(self):
    config, tensors = mixed_modelopt()
    del config["quantized_layers"][ATTENTION[3]]
    self.demand("o_proj is fp8-tensor, resolved as float", config, tensors)

  def test_an_unknown_algorithm_is_unquantized(self):
    config, tensors = mixed_modelopt()
    config["quantized_layers"][ATTENTION[3]]["quant_algo"] = "FP8_TENSOR"
    self.demand("o_proj is fp8-tensor, resolved as float", config, tensors)

  def test_shards_of_a_fused_layer_must_agree(self):
    config, tensors = mixed_modelopt()
    config["quantized_layers"][ATTENTION[0]] = {"quant_algo": "NVFP4", "group_size": 16}
    self.demand("Mixed quant_algo within fused layer", config, tensors)

  def test_a_fused_layer_of_two_formats(self):
    config, tensors = mixed_modelopt()
    tensors = {n: t for n, t in tensors.items() if not n.startswith(ATTENTION[0] + ".")}
    self.demand("qkv_proj holds", config, tensors | nvfp4(ATTENTION[0], "modelopt", True))

  def test_experts_take_the_first_key(self):
    config, tensors = mixed_modelopt()
    for module in EXPERTS:
      config["quantized_layers"][module] = {"quant_algo": "FP8"}
    self.demand("experts is nvfp4, resolved as fp8-tensor", config, tensors)

  def test_nvfp4_without_input_scales_is_not_weight_only(self):
    config, tensors = mixed_modelopt()
    self.demand("has no input scale", config, {n: t for n, t in tensors.items() if not n.endswith("input_scale")})

  def test_both_files_say_the_same(self):
    config, tensors = mixed_modelopt()
    other = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": copy.deepcopy(config["quantized_layers"]),
                              "exclude_modules": []}}
    self.assertEqual(self.problems(config, tensors, other), [])
    del other["quantization"]["quantized_layers"][ATTENTION[3]]
    with self.assertRaisesRegex(ValueError, "differ in quantized_layers"):
      self.problems(config, tensors, other)

  def test_the_first_group_that_matches_wins(self):
    config, tensors = mixed_compressed_tensors()
    config["config_groups"]["group_0"]["targets"] = ["re:.*_proj$"]
    self.demand("experts is nvfp4, resolved as fp8-row", config, tensors)

  def test_an_unquantized_module_must_be_ignored(self):
    config, tensors = mixed_compressed_tensors()
    config["ignore"] = ["lm_head"]
    self.demand("mlp.gate is float, resolved as nvfp4", config, tensors)

  def test_an_expert_in_another_format(self):
    config, tensors = mixed_compressed_tensors()
    tensors = {n: t for n, t in tensors.items() if not n.startswith(EXPERTS[2] + ".")}
    self.demand("experts holds", config, tensors | fp8(EXPERTS[2], rows=True))


if __name__ == "__main__":
  unittest.main()
