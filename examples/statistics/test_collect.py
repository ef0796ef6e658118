#!/usr/bin/env python3
"""Tests collect.py on small random models: test_collect.py [TWOFOUR]. Sums are derived again from inputs of modules."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
import transformers
from safetensors.torch import load_file, save_file

import collect

SIZES = dict(vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             intermediate_size=96, max_position_embeddings=64)
TWOFOUR = sys.argv.pop(1) if len(sys.argv) > 1 else None


def llama():
  return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def qwen3_moe():
  return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
      **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, decoder_sparse_step=1, mlp_only_layers=[]))


class Collected(unittest.TestCase):
  def collect(self, make, *words):
    torch.manual_seed(1)
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.model = make().float().eval()
    self.model.save_pretrained(self.folder / "model")
    self.tokens = torch.randint(0, 64, (6, 16))
    save_file({"tokens": self.tokens}, self.folder / "tokens")
    sys.argv = ["collect.py", str(self.folder / "model"), str(self.folder / "stats"), "--tokens",
                str(self.folder / "tokens"), "--device", "cpu", "--batch", "2", *words]
    collect.main()
    if TWOFOUR:
      code = subprocess.run([TWOFOUR, "stats", "check", self.folder / "stats", self.folder / "model"],
                            stdout=subprocess.DEVNULL).returncode
      self.assertIn(code, (0, 1))
    return load_file(self.folder / "stats")

  def inputs(self, name):
    """What the module of that name sees, [tokens, K]."""
    seen = []
    hook = self.model.get_submodule(name).register_forward_pre_hook(lambda module, args: seen.append(args[0].flatten(0, -2)))
    with torch.no_grad():
      self.model(input_ids=self.tokens)
    hook.remove()
    return torch.cat(seen)

  def same(self, a, b):
    self.assertLess((a - b).abs().max().item(), 1e-3 * b.abs().max().item() + 1e-6)

  def test_linears_with_one_input_share_an_entry(self):
    stats = self.collect(llama)
    layer = "model.layers.1."
    for first, others in ((layer + "self_attn.q_proj", ("k_proj", "v_proj")), (layer + "mlp.gate_proj", ("up_proj",)),
                          (layer + "self_attn.o_proj", ()), (layer + "mlp.down_proj", ())):
      x = self.inputs(first)
      self.same(stats[first + ".hessian"], x.T @ x)
      self.assertEqual(stats[first + ".count"].item(), 96)
      self.same(stats[first + ".amax"], x.abs().max())
      for other in others:
        self.assertNotIn(first.rpartition(".")[0] + f".{other}.hessian", stats)

  def test_experts_share_gate_and_up_and_have_a_down_each(self):
    stats = self.collect(qwen3_moe)
    block = "model.layers.0.mlp"
    x = self.inputs(block + ".experts")
    module = self.model.get_submodule(block)
    with torch.no_grad():
      logits = x @ module.gate.weight.T
    chosen = logits.topk(2).indices
    name = next(n for n in stats if n.startswith(block + ".experts.") and n.endswith("gate_proj.hessian"))
    self.assertEqual(stats[name.replace("hessian", "count")].item(), 2 * 96)
    self.same(stats[name], 2 * x.T @ x)
    for e in range(4):
      own = x[(chosen == e).any(-1)]
      down = f"{block}.experts.{e}.down_proj"
      if not len(own):
        self.assertNotIn(down + ".count", stats)
        continue
      gate, up = (own @ module.experts.gate_up_proj[e].T).chunk(2, -1)
      y = (torch.nn.functional.silu(gate) * up).detach()
      self.assertEqual(stats[down + ".count"].item(), len(own))
      self.same(stats[down + ".hessian"], y.T @ y)

  def test_guided_weights_have_mean_one_and_are_the_root_of_squared_gradients(self):
    stats = self.collect(llama, "--weighting", "guided", "--fisher")
    name = "model.layers.1.mlp.up_proj"
    x = self.inputs(name)
    gradients = []
    def watch(module, args, y):
      y.requires_grad_(True)
      y.register_hook(gradients.append)
    self.model.requires_grad_(False)
    hook = self.model.get_submodule(name).register_forward_hook(watch)
    logits = self.model(input_ids=self.tokens).logits
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), self.tokens[:, 1:].flatten(), reduction="sum").backward()
    hook.remove()
    e = gradients[0].flatten(0, 1).square().mean(-1)
    w = e.sqrt() / e.sqrt().mean()
    self.same(stats[name + ".hessian"], (x * w[:, None]).T @ x)
    self.same(stats[name + ".fisher_hessian"], (x * e[:, None]).T @ x)
    self.same(stats[name + ".sum_squared_weights"], w.double().square().sum())

  def test_windows_that_are_held_out_stand_apart(self):
    stats = self.collect(llama, "--heldout", "2")
    name = "model.layers.0.mlp.down_proj"
    x = self.inputs(name)
    self.same(stats[name + ".hessian"], x[:64].T @ x[:64])
    self.same(stats["heldout." + name + ".hessian"], x[64:].T @ x[64:])


if __name__ == "__main__":
  unittest.main()
