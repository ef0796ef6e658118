#!/usr/bin/env python3
"""What torch's backward pass gives of small models of every family with full attention.

  gradients.py OUT          the cases of tests/golden/gradients, small enough to be kept
  gradients.py OUT --large  the same families, wider and longer

The models are those of logits.py, in float32. The loss is the sum of -log p of each next token. Each case becomes
OUT/CASE.json (`windows`, `length`, `loss`, and `names` of products as LAYER.KIND, with .EXPERT behind that of an expert)
and OUT/CASE.safetensors: `gradient` F32 [tokens, H] in what enters the first layer, and `squares` F64 [names], of each
product the sum over tokens of the mean over outputs of the squared gradient.
"""
import argparse
import json
import pathlib
import re
import sys
import tempfile

import numpy as np
import safetensors.numpy
import torch

import logits

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/statistics"))
from products import Products, experts_one_by_one

LAYER = re.compile(r"^(?:model|transformer)\.layers\.(\d+)\.(.*)$")


def key_of(product):
  """LAYER.KIND of a product with a parameter, and its expert."""
  found = LAYER.match(product.weight)
  if found is None:
    return "head"
  layer, kind = found.groups()
  kind = kind.removesuffix(".weight")
  return f"{layer}.{kind}" if product.expert is None else f"{layer}.{kind}.{product.expert}"


def windows(vocabulary, large):
  """Tokens [windows, length], longer than a window of attention."""
  count, length = (3, 160) if large else (2, 14)
  at = torch.arange(count * length)
  return ((at ** 2 * 7 % 31 + at % 13 + 3) % vocabulary).view(count, length)


def run(model, tokens):
  squares, first = {}, []

  def see(product):
    def see_gradient(gradient):
      key = key_of(product)
      squares[key] = squares.get(key, 0.0) + gradient.detach().square().mean(-1).sum().item()
    product.y.register_hook(see_gradient)

  def start(module, args, kwargs):
    x = args[0] if args else kwargs["hidden_states"]
    x = x.detach().requires_grad_()
    first.append(x)
    return ((x, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": x})

  for p in model.parameters():
    p.requires_grad_(False)
  hook = model.model.layers[0].register_forward_pre_hook(start, with_kwargs=True)
  with experts_one_by_one(model):
    with Products(model, see):
      out = model(input_ids=tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    loss.backward()
  hook.remove()
  return loss.item(), first[0].grad.flatten(0, 1), squares


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("out", type=pathlib.Path)
  parser.add_argument("--large", action="store_true")
  parser.add_argument("--only")
  o = parser.parse_args()
  o.out.mkdir(parents=True, exist_ok=True)
  torch.set_num_threads(2)
  for name, (family, options) in logits.cases(o.large).items():
    if o.only not in (None, name) or logits.is_hybrid(options) or "compress_ratios" in options:
      continue
    with tempfile.TemporaryDirectory() as folder:
      model, _ = logits.make_model(family, options, pathlib.Path(folder))
    tokens = windows(options["vocab_size"], o.large)
    loss, gradient, squares = run(model, tokens)
    if options.get("tie_word_embeddings", family == "gemma3_text"):
      squares.pop("head", None)
    names = sorted(squares)
    (o.out / f"{name}.json").write_text(json.dumps({"windows": len(tokens), "length": tokens.shape[1], "loss": loss,
                                                    "names": names}) + "\n")
    safetensors.numpy.save_file({"gradient": gradient.float().numpy(), "squares": np.array([squares[n] for n in names])},
                                o.out / f"{name}.safetensors")
    print(name, f"loss {loss:.6g}", f"{len(names)} products", f"largest {gradient.abs().max():.3g}")


if __name__ == "__main__":
  main()
