#!/usr/bin/env python3
"""Trains a toy for seconds; transformers, the script's own decoder and, with TWOFOUR, `twofour eval` must agree about it."""
import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "hidden_act": "silu",
    "hidden_size": 48, "intermediate_size": 64, "head_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 64, "mlp_bias": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
WINDOWS, LENGTH = 3, 33

try:
  import torch
  import torch.nn.functional as F
  import transformers
  from safetensors.torch import load_file, save_file
  import numpy as np
except ImportError as missing:
  print(f"not run: {missing}")
  sys.exit(77)

sys.path.insert(0, str(HERE))
import make_moe  # noqa: E402
import manuals  # noqa: E402
import model  # noqa: E402
import tables  # noqa: E402


def write_dense(folder):
  """A Llama of random weights whose MLPs matter."""
  torch.manual_seed(7)
  folder.mkdir()
  dense = model.Model(CONFIG, is_moe=False)
  tensors = {f"model.{name}.weight": (1 + 0.2 * torch.randn(p.shape) if p.ndim == 1 else torch.randn(p.shape) / p.shape[-1]**0.5)
             for name, p in dense.state_dict().items()}
  tensors = {name: t.to(torch.bfloat16) for name, t in tensors.items()}
  save_file(tensors, folder / "model.safetensors")
  (folder / "config.json").write_text(json.dumps(CONFIG))


def write_windows(path, tokens):
  header = json.dumps({"tokens": {"dtype": "I64", "shape": list(tokens.shape), "data_offsets": [0, tokens.numel() * 8]}}).encode()
  header += b" " * (-len(header) % 8)
  path.write_bytes(struct.pack("<Q", len(header)) + header + tokens.numpy().astype("<i8").tobytes())


class MoeTest(unittest.TestCase):

  @classmethod
  def setUpClass(cls):
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.work = pathlib.Path(folder.name)
    write_dense(cls.work / "dense")
    generator = np.random.default_rng(3)
    # Each token says which two may follow.
    follow, text = generator.integers(0, 64, (64, 2)), [0]
    for choice in generator.integers(0, 2, 20000):
      text.append(follow[text[-1], choice])
    np.save(cls.work / "tokens.npy", np.array(text, np.uint16))
    cls.windows = torch.tensor(text[:WINDOWS * LENGTH]).view(WINDOWS, LENGTH)
    write_windows(cls.work / "evaluation.safetensors", cls.windows)
    cls.printed = subprocess.run(
        [sys.executable, "-B", HERE / "make_moe.py", cls.work / "dense", cls.work / "tokens.npy", cls.work / "moe", "--steps", "150",
         "--length", "32", "--windows", "8", "--rate", "3e-3", "--from-text", "1",
         "--evaluation", cls.work / "evaluation.safetensors"],
        check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}).stdout
    cls.figures = json.loads((cls.work / "moe.json").read_text())

  def test_names_shapes_and_types_are_those_of_qwen3_moe(self):
    config = transformers.Qwen3MoeConfig.from_pretrained(self.work / "moe")
    with torch.device("meta"):
      stacked = transformers.Qwen3MoeForCausalLM(config).state_dict()
    expected = {}
    for name, tensor in stacked.items():
      shape = tuple(tensor.shape)
      if name.endswith("experts.gate_up_proj"):
        for part in ("gate", "up"):
          expected |= {name.replace("gate_up_proj", f"{e}.{part}_proj.weight"): (shape[1] // 2, shape[2]) for e in range(8)}
      elif name.endswith("experts.down_proj"):
        expected |= {name.replace("down_proj", f"{e}.down_proj.weight"): shape[1:] for e in range(8)}
      elif name != "lm_head.weight":
        expected[name] = shape
    stored = load_file(self.work / "moe/model.safetensors")
    self.assertEqual({name: tuple(t.shape) for name, t in stored.items()}, expected)
    self.assertEqual({t.dtype for t in stored.values()}, {torch.bfloat16})
    data = (self.work / "moe/model.safetensors").read_bytes()
    self.assertEqual(self.figures["sha256"], hashlib.sha256(data).hexdigest())

  def test_the_loss_falls_and_every_expert_is_used(self):
    history = self.figures["history"]
    self.assertLess(history[-1]["cross_entropy"], 0.8 * history[0]["cross_entropy"])
    self.assertLess(self.figures["perplexity"], 0.8 * self.figures["untrained_perplexity"])
    self.assertEqual((self.figures["steps"], self.figures["tokens"]), (150, 150 * 8 * 32))
    self.assertEqual(len(self.figures["shares"]), 2)
    for shares in self.figures["shares"]:
      self.assertEqual(len(shares), 8)
      self.assertAlmostEqual(sum(shares), 1, places=3)
      self.assertGreater(min(shares), 0.01)
    self.assertEqual(json.loads(self.printed.splitlines()[-1])["sha256"], self.figures["sha256"])

  def test_transformers_and_twofour_read_the_same_model(self):
    theirs = transformers.Qwen3MoeForCausalLM.from_pretrained(self.work / "moe", dtype=torch.float32)
    with torch.no_grad():
      logits = theirs(self.windows).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).double(), self.windows[:, 1:].flatten())
    # The figures are of the script's own decoder, in F32, with the weights that were written.
    self.assertAlmostEqual(self.figures["perplexity"] / loss.exp().item(), 1, delta=1e-5)
    if "TWOFOUR" not in os.environ:
      self.skipTest("TWOFOUR is not set")
    done = subprocess.run([os.environ["TWOFOUR"], "eval", self.work / "moe", "--tokens", self.work / "evaluation.safetensors", "--json",
                           "-q", "--device", "cpu"], check=True, stdout=subprocess.PIPE, text=True)
    self.assertAlmostEqual(json.loads(done.stdout)["loss"] / loss.item(), 1, delta=1e-5)

  def test_pairs_of_experts_are_the_dense_mlp(self):
    dense = model.load_dense(self.work / "dense")
    moe = model.deal(dense, self.windows, seed=5)
    for source, layer in zip(dense.layers, moe.layers):
      with torch.no_grad():
        layer.mlp.router.copy_(layer.mlp.router[::2].repeat_interleave(2, 0))  # without noise
        x = torch.randn(2, 50, 48)
        expected, found = source.mlp(x), layer.mlp(x)
      self.assertLess((found - expected).norm() / expected.norm(), 1e-5)
      self.assertGreater(layer.mlp.shares.min(), 0.02)

  def test_experts_are_what_a_loop_over_tokens_computes(self):
    torch.manual_seed(2)
    experts = model.Experts(CONFIG)
    for p in experts.parameters():
      p.data.normal_()
    x = torch.randn(37, 48)
    with torch.no_grad():
      found = experts(x)
      for token, row in zip(x, found):
        chances = torch.softmax(experts.router @ token, 0)
        best = chances.argsort(descending=True)[:2]
        expected = sum(chances[e] / chances[best].sum() * (experts.down_proj[e] @ (
            F.silu(experts.gate_proj[e] @ token) * (experts.up_proj[e] @ token))) for e in best)
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-4)

  def test_the_rate_rises_and_falls(self):
    self.assertEqual(make_moe.rate(0), 0)
    self.assertAlmostEqual(make_moe.rate(0.03), 1, places=2)
    self.assertGreater(make_moe.rate(0.3), make_moe.rate(0.6))
    self.assertAlmostEqual(make_moe.rate(1), make_moe.LEAST_RATE)

  def test_bad_input_is_named(self):
    np.save(self.work / "wide.npy", np.arange(100, dtype=np.int64))
    with self.assertRaisesRegex(SystemExit, r"expected uint16 \[tokens\], more than 32, found int64 \(100,\)"):
      make_moe.Windows(self.work / "wide.npy", 32, 1, "cpu")
    with self.assertRaisesRegex(SystemExit, "debian-handbook: expected .* found nothing"):
      manuals.documents(self.work)

  def test_paragraphs_are_lines_unless_indented(self):
    self.assertEqual(manuals.reflowed("One\ntwo.\n\n  code\n  more\n\nThree"), "One two.\n\n  code\n  more\n\nThree")

  def test_tables_are_made_and_gone_on_with(self):
    program = self.work / "program"
    program.write_text(f"""#!{sys.executable}
import json, pathlib, sys
words = sys.argv[1:]
with open("calls", "a") as calls:
  calls.write(json.dumps(words) + "\\n")
if words[0] == "eval":
  other = dict(against=dict(ratio=1.5, divergence=len(words[1]) / 100, divergence_error=0.01, divergence_p99=1, agreement=0.5))
  print(json.dumps(dict(perplexity=2, perplexity_error=1, predictions=3, device="cpu", **(other if "--against" in words else {{}}))))
elif words[0] == "stats":
  pathlib.Path(words[words.index("-o") + 1]).touch()
elif words[2] == "g8":
  sys.exit("cannot")
else:
  pathlib.Path(words[2]).mkdir()
  pathlib.Path(words[2], "twofour.json").touch()
""")
    program.chmod(0o755)
    (self.work / "calls").unlink(missing_ok=True)

    def call(*names):
      done = subprocess.run([sys.executable, "-B", HERE / "tables.py", self.work, "--twofour", program, "--limit", "4", "--only", *names],
                            capture_output=True, text=True)
      calls = [json.loads(line) for line in (self.work / "calls").read_text().splitlines()]
      (self.work / "calls").write_text("")
      return done, calls

    done, calls = call("nvfp4", "bits-5.0", "experts-6", "g8")
    self.assertEqual(done.returncode, 1, done.stderr)
    self.assertIn("g8: twofour compress: exit code 1\ncannot", done.stdout)
    self.assertIn("| 5.0 bits, group by group | 0 | 2.00 ± 1.00 | 1.500 | 0.0800 ± 0.0100 |", done.stdout)
    self.assertIn("5.0 bits have 1.600 of uniform NVFP4's KL divergence.", done.stdout)
    self.assertEqual(sum(c[0] == "stats" for c in calls), 1)
    self.assertIn(["compress", "moe", "nvfp4", "--to", "nvfp4", "--tokens", tables.TOKENS, "--limit", "4", "--resume"], calls)
    self.assertLess([c[0] for c in calls].index("stats"), [c[1:3] for c in calls].index(["moe", "bits-5.0"]))
    done, calls = call("nvfp4", "rounded")
    self.assertEqual((done.returncode, [c[:3] for c in calls if c[0] != "eval"]), (0, [["quantize", "moe", "rounded"]]))
    self.assertIn("NVFP4, group by group", done.stdout)


if __name__ == "__main__":
  unittest.main()
