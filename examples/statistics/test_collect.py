#!/usr/bin/env python3
"""Tests collect.py on small random models: test_collect.py [TWOFOUR]. Sums are derived again from inputs of modules."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import collect

SIZES = dict(vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             intermediate_size=96, max_position_embeddings=64)
TWOFOUR = sys.argv.pop(1) if len(sys.argv) > 1 else None


def llama():
  return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def llama_bf16():
  return llama().bfloat16()


def qwen3_moe():
  return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
      **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, decoder_sparse_step=1, mlp_only_layers=[]))


def mixtral():
  return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))


class Collecting(unittest.TestCase):
  def collect(self, make, *words, tokens=None):
    torch.manual_seed(1)
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    made = make()
    made.save_pretrained(self.folder / "model")
    self.model = made.float().eval()
    self.tokens = torch.randint(0, 64, (6, 16)) if tokens is None else tokens
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


class Collected(Collecting):
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

  def test_mixtrals_experts_have_the_names_of_its_files(self):
    stats = self.collect(mixtral, "--saliency", "--batch", "6")
    block = "model.layers.1.block_sparse_moe.experts"
    self.assertEqual(stats[f"{block}.saliency"].shape, (4,))
    self.assertTrue((stats[f"{block}.saliency"] > 0).all())
    self.assertIn(f"{block}.0.w1.hessian", stats)
    self.assertIn(f"{block}.0.w2.hessian", stats)

  def test_saliency_sums_what_experts_add(self):
    stats = self.collect(qwen3_moe, "--saliency")
    block = self.model.get_submodule("model.layers.1.mlp")
    x = self.inputs("model.layers.1.mlp.experts")
    with torch.no_grad():
      shares = (x @ block.gate.weight.T).softmax(-1)
      top, chosen = shares.topk(2)
      top = top / top.sum(-1, keepdim=True) if block.gate.norm_topk_prob else top
      expected = torch.zeros(4)
      for t, share, e in ((t, share, e) for t in range(len(x)) for share, e in zip(top[t], chosen[t].tolist())):
        gate, up = (block.experts.gate_up_proj[e] @ x[t]).chunk(2)
        expected[e] += (share * (block.experts.down_proj[e] @ (torch.nn.functional.silu(gate) * up))).norm()
    self.same(stats["model.layers.1.mlp.experts.saliency"], expected)

  def test_token_weights_are_those_of_guided_sums(self):
    for make, name in ((llama, "model.layers.0.self_attn.k_proj"), (qwen3_moe, "model.layers.1.mlp.experts.2.down_proj")):
      with self.subTest(name):
        file = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "weights"
        stats = self.collect(make, "--weighting", "guided", "--token-weights", str(file))
        w = load_file(file)[name + ".token_weights"]
        self.assertEqual(w.shape, (6, 16))
        count = stats[name + ".count"].item()
        self.same(w.double().sum(), torch.tensor(float(count)))
        self.same(w.double().square().sum(), stats[name + ".sum_squared_weights"])
        if make is llama:
          x = self.inputs(name)
          self.same(stats[name + ".hessian"], (x * w.flatten()[:, None]).T @ x)

  def test_tokens_of_32_bits_are_those_of_64(self):
    tokens = torch.randint(0, 64, (6, 16))
    first = self.collect(qwen3_moe, tokens=tokens)
    second = self.collect(qwen3_moe, tokens=tokens.to(torch.int32))
    self.assertEqual(first.keys(), second.keys())
    for name in first:
      self.assertTrue(torch.equal(first[name], second[name]), name)

  def test_experts_without_tokens_are_served_by_the_sums_of_others(self):
    stats = self.collect(qwen3_moe, tokens=torch.full((6, 16), 7))  # equal tokens, so the same experts
    with safe_open(self.folder / "stats", "pt") as f:
      groups = json.loads(f.metadata()["groups"])
    for block in ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts"):
      seen = [e for e in range(4) if f"{block}.{e}.down_proj.count" in stats]
      self.assertEqual(len(seen), 2)
      self.assertEqual(groups[f"{block}.down_proj"], [f"{block}.{e}.down_proj" for e in range(4) if e not in seen])
      self.same(stats[f"{block}.down_proj.hessian"], sum(stats[f"{block}.{e}.down_proj.hessian"] for e in seen))
      self.assertEqual(len(groups[f"{block}.0.gate_proj"]), 8)

  def test_windows_that_are_held_out_stand_apart(self):
    stats = self.collect(llama, "--heldout", "2")
    name = "model.layers.0.mlp.down_proj"
    x = self.inputs(name)
    self.same(stats[name + ".hessian"], x[:64].T @ x[:64])
    self.same(stats["heldout." + name + ".hessian"], x[64:].T @ x[64:])


@unittest.skipUnless(TWOFOUR, "needs the twofour binary")
class Sequential(Collecting):
  """Statistics of each group are derived again from the model that twofour writes by the file, without its later groups."""

  def dense_and_compressed(self, *words):
    """The model, and one of the widened weights that the whole file gives."""
    for command in (["quantize", self.folder / "model", self.folder / "nvfp4", "--stats", self.folder / "stats", *words],
                    ["convert", self.folder / "nvfp4", self.folder / "bf16", "--to", "bf16"]):
      subprocess.run([TWOFOUR, *command, "-q"], check=True)
    dense = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "model", dtype=torch.float32).eval()
    ours = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "bf16", dtype=torch.float32).eval()
    return dense, ours

  def seen(self, model, name):
    found = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda module, args: found.append(args[0].flatten(0, -2)))
    with torch.no_grad():
      model(input_ids=self.tokens)
    hook.remove()
    return torch.cat(found)

  def check(self, stats, dense, ours, name, members, stream=None, weights=None):
    d, x = self.seen(dense, name), self.seen(ours, name)
    w = torch.ones(len(x)) if weights is None else weights.flatten()
    self.same(stats[members[0] + ".hessian"], (x * w[:, None]).T @ x)
    r = 0
    if stream:
      r = self.seen(dense, stream) - self.seen(ours, stream)
    for m in members:
      change = (d - x) @ dense.get_submodule(m).weight.T + r
      self.assertGreater(change.abs().max().item(), 0)
      self.same(stats[m + ".target_offset"], change.detach().T @ (x * w[:, None]))

  def test_sums_are_of_the_model_that_is_written(self):
    for words in ([], ["--pattern", "2:4"], ["--weighting", "guided"]):
      with self.subTest(words):
        file = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "weights"
        guided = "guided" in words
        stats = self.collect(llama_bf16, "--sequential", "--twofour", TWOFOUR, *words,
                             *(["--token-weights", str(file)] if guided else []))
        weights = load_file(file) if guided else {}
        first = stats["model.layers.0.self_attn.q_proj.target_offset"]
        self.assertEqual(first.abs().max().item(), 0)
        dense, ours = self.dense_and_compressed(*([] if guided else words))
        layer, mlp = "model.layers.1.", "model.layers.1.mlp."
        for m in ("q_proj", "k_proj", "v_proj") if guided else ("q_proj",):
          m = layer + "self_attn." + m
          self.check(stats, dense, ours, m, [m] if guided else [layer + f"self_attn.{p}_proj" for p in "qkv"],
                     weights=weights.get(m + ".token_weights"))
        m = layer + "self_attn.o_proj"
        self.check(stats, dense, ours, m, [m], layer + "input_layernorm", weights.get(m + ".token_weights"))
        m = mlp + "down_proj"
        self.check(stats, dense, ours, m, [m], layer + "post_attention_layernorm", weights.get(m + ".token_weights"))

  def test_experts_see_the_tokens_that_the_compressed_model_sends(self):
    stats = self.collect(lambda: qwen3_moe().bfloat16(), "--sequential", "--twofour", TWOFOUR, "--pattern", "2:4")
    dense, ours = self.dense_and_compressed("--pattern", "2:4")
    block = "model.layers.1.mlp"
    d, x = self.seen(dense, block + ".experts"), self.seen(ours, block + ".experts")
    router = ours.get_submodule(block).gate.weight
    chosen = (x @ router.T).topk(2).indices
    name = f"{block}.experts.0.gate_proj"
    self.same(stats[name + ".hessian"], 2 * x.T @ x)
    for e in range(4):
      rows = (chosen == e).any(-1)
      if not rows.any():
        continue
      inner = []
      for model, h in ((dense, d), (ours, x)):
        gate, up = (h[rows] @ model.get_submodule(block).experts.gate_up_proj[e].T).chunk(2, -1)
        inner.append((torch.nn.functional.silu(gate) * up).detach())
      down = f"{block}.experts.{e}.down_proj"
      self.same(stats[down + ".hessian"], inner[1].T @ inner[1])
      w = dense.get_submodule(block).experts.down_proj[e].detach()
      self.same(stats[down + ".target_offset"], w @ (inner[0] - inner[1]).T @ inner[1])
      up = dense.get_submodule(block).experts.gate_up_proj[e].detach()[48:]
      self.same(stats[f"{block}.experts.{e}.up_proj.target_offset"], up @ (2 * (d - x).T @ x))


if __name__ == "__main__":
  unittest.main()
