#!/usr/bin/env python3
"""Makes the sources and artifacts of this folder: make.py TWOFOUR, a binary of commit 568ef9b.

Run it again only with that binary: the artifacts are there because they are in the format that it wrote.
"""
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent.parent / "compare"))
import checkpoints as c  # noqa: E402

HIDDEN, INTERMEDIATE, EXPERTS = 32, 16, 2
# Artifact: its source and the command that made it.
ARTIFACTS = {
    "v7": ("modelopt", "convert --to v7"), "v7-linear": ("modelopt", "convert --to v7 --also *o_proj"),
    "v7-packed": ("modelopt", "convert --to v7-packed"), "v7-compressed-tensors": ("compressed-tensors", "convert --to v7"),
    "g8": ("modelopt", "convert --to g8"),
    "nvfp4-compressed-tensors": ("modelopt", "convert --to nvfp4 --dialect compressed-tensors"),
    "nvfp4-modelopt": ("compressed-tensors", "convert --to nvfp4 --dialect modelopt"),
    "fp8-compressed-tensors-tensor": ("modelopt", "convert --to fp8 --dialect compressed-tensors --granularity tensor"),
    "fp8-compressed-tensors-row": ("modelopt", "convert --to fp8 --dialect compressed-tensors --granularity row"),
    "fp8-compressed-tensors-block": ("modelopt", "convert --to fp8 --dialect compressed-tensors --granularity block"),
    "fp8-modelopt-tensor": ("modelopt", "convert --to fp8 --dialect modelopt --granularity tensor"),
    "fp8-deepseek": ("modelopt", "convert --to fp8 --dialect deepseek"),
    "bf16": ("modelopt", "convert --to bf16"),
    "prune": ("modelopt", "prune"), "prune-paired": ("modelopt", "prune --pattern 4:8-paired"),
    "quantize-modelopt": ("bf16", "quantize --dialect modelopt --pattern 2:4"),
    "quantize-compressed-tensors": ("bf16", "quantize --dialect compressed-tensors --block-scale mse")}


def model(linear):
  """An MoE layer of two experts; linear(maker, name, n, k) gives the tensors of a linear by suffix."""
  m = c.Maker(568)
  layer = "model.layers.0."
  t = {"model.embed_tokens.weight": m.floats("BF16", 8, HIDDEN), layer + "mlp.gate.weight": m.floats("BF16", EXPERTS, HIDDEN),
       "model.norm.weight": m.floats("BF16", HIDDEN)}
  for e in range(EXPERTS):
    for name, n, k in (("gate_proj", INTERMEDIATE, HIDDEN), ("up_proj", INTERMEDIATE, HIDDEN), ("down_proj", HIDDEN, INTERMEDIATE)):
      t.update(c.under(f"{layer}mlp.experts.{e}.{name}", linear(m, f"{e}.{name}", n, k)))
  t.update(c.under(layer + "self_attn.o_proj", linear(m, "o_proj", HIDDEN, HIDDEN)))
  return t


def modelopt(m, name, n, k):
  # Gate and up of expert 1 have other global scales, so that layouts fold.
  return {**m.nvfp4(n, k, 0.19 if name == "1.up_proj" else 0.25), ".input_scale": ("F32", (), c.f32(0.03))}


def main():
  twofour = pathlib.Path(sys.argv[1]).resolve()
  config = c.model_config("qwen3_moe", HIDDEN, INTERMEDIATE, experts=EXPERTS, tie_word_embeddings=True, vocab_size=8)
  for name, linear, entry in (("modelopt", modelopt, c.MODELOPT),
                              ("compressed-tensors", lambda m, name, n, k: m.compressed(n, k, 6.0), c.COMPRESSED),
                              ("bf16", lambda m, name, n, k: {".weight": m.floats("BF16", n, k)}, None)):
    shutil.rmtree(HERE / "source" / name, ignore_errors=True)
    entry = {"quantization_config": entry} if entry else {}
    c.write_checkpoint(HERE / "source" / name, model(linear), {**config, **entry}, files={"generation_config.json": "{}"})
  for name, (source, command) in ARTIFACTS.items():
    shutil.rmtree(HERE / name, ignore_errors=True)
    first, *more = command.split()
    subprocess.run([twofour, first, f"source/{source}", name, *more, "--quiet"], cwd=HERE, check=True)


if __name__ == "__main__":
  main()
