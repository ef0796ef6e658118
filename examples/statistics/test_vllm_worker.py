#!/usr/bin/env python3
"""Tests the hook of vllm_worker.py on linear layers of vLLM, on a CPU: test_vllm_worker.py [TWOFOUR]"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # before vllm is imported
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear

import vllm_worker
from checkpoint import Checkpoint
from sums import save_entries

TWOFOUR = sys.argv.pop(1) if len(sys.argv) > 1 else None
K, INNER, LAYER = 64, 96, "model.layers.0."


class FusedMoE(torch.nn.Module):
  """Stands for vLLM's experts, whose kernels need a GPU."""
  top_k = 2

  def forward(self, hidden_states, router_logits):
    return hidden_states


class Layer(torch.nn.Module):
  def __init__(self):
    super().__init__()
    self.qkv_proj = QKVParallelLinear(K, 16, 4, 2, bias=False, params_dtype=torch.float32)
    self.o_proj = RowParallelLinear(K, K, bias=False, params_dtype=torch.float32)
    self.gate_up_proj = MergedColumnParallelLinear(K, [INNER, INNER], bias=False, params_dtype=torch.float32)
    self.down_proj = RowParallelLinear(INNER, K, bias=False, params_dtype=torch.float32)
    self.experts = FusedMoE()
    for m in (self.qkv_proj, self.o_proj, self.gate_up_proj, self.down_proj):
      m.weight.data.normal_()
      m.quant_method.process_weights_after_loading(m)

  def forward(self, x):
    y, _ = self.qkv_proj(x)
    h, _ = self.o_proj(y[:, :K])
    gate_up, _ = self.gate_up_proj(h)
    out, _ = self.down_proj(gate_up[:, :INNER])
    return self.experts(hidden_states=out, router_logits=out)


class Hook(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    cls.config = set_current_vllm_config(VllmConfig())
    cls.enterClassContext(cls.config)
    file = tempfile.NamedTemporaryFile()
    init_distributed_environment(1, 0, f"file://{file.name}.sync", 0, "gloo")
    initialize_model_parallel(1)

  def test_sums_are_of_what_layers_see_and_are_named_as_the_checkpoint_names_them(self):
    torch.manual_seed(1)
    model = torch.nn.ModuleDict({"model": torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Layer()])})})
    seen = {}
    for name, module in model.named_modules():
      if name and not isinstance(module, (torch.nn.ModuleDict, torch.nn.ModuleList, Layer)):
        module.register_forward_pre_hook(
            lambda m, args, kwargs, name=name: seen.setdefault(name, []).append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True)
    sums = vllm_worker.Sums(model)
    with torch.no_grad():
      for tokens in (5, 12):
        model["model"]["layers"][0](torch.randn(tokens, K))
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    shapes = {"q_proj": (K, K), "k_proj": (32, K), "v_proj": (32, K), "o_proj": (K, K), "gate_proj": (INNER, K),
              "up_proj": (INNER, K), "down_proj": (K, INNER)}
    names = {LAYER + n: s for n, s in shapes.items()}
    names |= {f"{LAYER}experts.{e}.{leaf}": (32, K) for e in range(4) for leaf in ("gate_proj", "up_proj")}
    save_file({n + ".weight": torch.zeros(s, dtype=torch.bfloat16) for n, s in names.items()}, folder / "model.safetensors")
    save_entries(folder / "stats", vllm_worker.entries_of([sums.stop()], Checkpoint(folder)), tokens="17", weighting="plain")
    stats = load_file(folder / "stats")
    for layer, name in (("qkv_proj", "q_proj"), ("o_proj", "o_proj"), ("gate_up_proj", "gate_proj"), ("down_proj", "down_proj"),
                        ("experts", "experts.0.gate_proj")):
      x = torch.cat(seen[LAYER + layer])
      each = 2 if layer == "experts" else 1
      expected = each * x.T @ x
      self.assertLess((stats[f"{LAYER}{name}.hessian"] - expected).abs().max(), 1e-5 * expected.abs().max())
      self.assertEqual(stats[f"{LAYER}{name}.count"].item(), 17 * each)
    with safe_open(folder / "stats", "pt") as f:
      groups = json.loads(f.metadata()["groups"])
    self.assertEqual(groups[LAYER + "q_proj"], [LAYER + p for p in ("q_proj", "k_proj", "v_proj")])
    self.assertEqual(len(groups[LAYER + "experts.0.gate_proj"]), 8)
    if TWOFOUR:
      subprocess.run([TWOFOUR, "stats", "inspect", folder / "stats"], check=True, stdout=subprocess.DEVNULL)

  def test_ranks_that_share_out_inputs_give_a_block_each(self):
    x = torch.randn(9, INNER)
    ranks = [{LAYER + "down_proj": ("rows", 9, part.T @ part, part.abs().max().item(), 1)} for part in x.split(INNER // 2, 1)]
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    save_file({LAYER + "down_proj.weight": torch.zeros(K, INNER)}, folder / "model.safetensors")
    save_entries(folder / "stats", vllm_worker.entries_of(ranks, Checkpoint(folder)), tokens="9", weighting="plain")
    blocks = load_file(folder / "stats")[LAYER + "down_proj.hessian_blocks"]
    whole = x.T @ x
    torch.testing.assert_close(blocks, torch.stack([whole[:48, :48], whole[48:, 48:]]))
    if TWOFOUR:
      subprocess.run([TWOFOUR, "stats", "inspect", folder / "stats"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
  unittest.main()
