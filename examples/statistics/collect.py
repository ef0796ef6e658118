#!/usr/bin/env python3
"""Collects the statistics of a model that transformers runs, for `twofour quantize --stats` and `prune --stats`.

  collect.py MODEL OUT --tokens FILE [--weighting plain|guided] [--fisher] [--heldout N] [--per-expert]
             [--token-weights FILE] [--device DEVICE] [--batch N]

FILE holds `tokens`, I64 [windows, length], in safetensors. Linears with one input share an entry; the gate and up of
all experts of a layer share one, each expert's down has its own. `guided` weights tokens by the root of the squared
gradient of the loss in a linear's outputs, so each matrix has its own entry. README.md describes the file.
"""
import argparse
import json
import pathlib
import re

import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from products import Products, experts_one_by_one
from sums import Entry

STACK = re.compile(r"^(.*experts)\.(gate_up_proj|down_proj|gate_proj|up_proj)$")
FIRST, LAST = ("gate_proj", "up_proj", "w1", "w3"), ("down_proj", "w2")


class Names:
  """Modules of a checkpoint by the parameters of the model that holds them."""

  def __init__(self, folder):
    folder = pathlib.Path(folder)
    self.shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
      with safe_open(file, "pt") as f:
        for name in f.keys():
          self.shapes[name] = tuple(f.get_slice(name).get_shape())
    self.experts = {}  # (block, e) -> leaves
    for name in self.shapes:
      found = re.match(r"^(.*experts)\.(\d+)\.(\w+)\.weight$", name)
      if found:
        self.experts.setdefault((found[1], int(found[2])), []).append(found[3])

  def members(self, parameter, expert):
    """Modules that the product with a parameter, or with an expert's slice of it, multiplies with."""
    stack = STACK.match(parameter.removesuffix(".weight"))
    if expert is None or stack is None:
      module = parameter.removesuffix(".weight")
      return [module] if f"{module}.weight" in self.shapes else []
    block, leaf = stack[1], stack[2]
    if f"{block}.{leaf}" in self.shapes:  # the file has stacks, too
      return [f"{block}.{leaf}"]
    leaves = self.experts.get((block, expert), [])
    wanted = LAST if leaf == "down_proj" else FIRST
    return [f"{block}.{expert}.{leaf}" for leaf in leaves if leaf in wanted]


class Collector:
  """The entries of a pass over the tokens."""

  def __init__(self, names, guided=False, fisher=False, per_expert=False):
    self.names, self.guided, self.fisher, self.per_expert = names, guided, fisher, per_expert
    self.entries, self.at, self.last = {}, {}, None

  def key(self, product):
    """What products share an entry, and the modules of this one."""
    members = self.names.members(product.weight, product.expert)
    stack = STACK.match(product.weight)
    if stack and stack[2] != "down_proj" and not self.per_expert:
      return stack[1] + "." + stack[2], members  # of all experts of the layer
    return (product.weight, product.expert), members

  def entry(self, key, k, device, members):
    entry = self.entries.get(key)
    if entry is None:
      entry = self.entries[key] = Entry(k, device, self.fisher)
    for m in members:
      if m not in entry.members:
        entry.members.append(m)
    return entry

  def see(self, product):
    key, members = self.key(product)
    if not members:
      return
    weighted = self.guided or self.fisher
    if product.same_input and not weighted and self.last is not None:
      self.entry(self.last, 0, None, members)  # the input was counted with the product before
      return
    self.last = key
    x = product.x.detach().float()
    entry = self.entry(key, x.shape[1], x.device, members)
    entry.see_input(x)
    if not self.guided:
      entry.add(x)
    if weighted:
      product.y.register_hook(lambda gradient: self.see_gradient(entry, x, gradient))

  def see_gradient(self, entry, x, gradient):
    e = gradient.detach().float().square().mean(-1).flatten()
    if self.guided:
      entry.add(x, e.sqrt())
    if self.fisher:
      entry.add_fisher(x, e)


def run(model, tokens, collector, device, batch):
  """Runs windows of tokens [W, T] through the model."""
  products = Products(model, collector.see)
  backward = collector.guided or collector.fisher
  for window in tokens.split(batch):
    window = window.to(device)
    with products, torch.set_grad_enabled(backward):
      logits = model(input_ids=window, use_cache=False).logits
    if backward:
      loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), window[:, 1:].flatten(),
                                               reduction="sum")
      loss.backward()


def final_norm(folder):
  """XXH3-128 of the bytes of the norm before the head."""
  for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
    with safe_open(file, "pt") as f:
      for name in f.keys():
        if name in ("model.norm.weight", "norm.weight") or name.endswith("language_model.norm.weight"):
          return xxhash.xxh3_128_hexdigest(f.get_tensor(name).contiguous().view(torch.uint8).numpy().tobytes())
  return ""


def structure_of(entries):
  """XXH3-128 of a line NAME K for each linear that the entries serve."""
  lines = {f"{m} {e.k}\n" for e in entries.values() for m in e.members}
  # In byte order of the names, which a space after them would change.
  ordered = sorted(lines, key=lambda line: line.rsplit(" ", 1)[0].encode())
  return xxhash.xxh3_128_hexdigest("".join(ordered).encode())


def tensors_of(entries, prefix=""):
  """Tensors by name, and the groups: an entry is called as its first module."""
  tensors, groups = {}, {}
  for entry in entries.values():
    name = entry.members[0]
    tensors.update(entry.tensors(prefix + name))
    if len(entry.members) > 1:
      groups[name] = entry.members
  return tensors, groups


def load(folder, device, dtype):
  import transformers
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
  for p in model.parameters():
    p.requires_grad_(False)
  return model


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("model")
  parser.add_argument("out")
  parser.add_argument("--tokens", required=True)
  parser.add_argument("--text", default="", help="name of the text, for the file")
  parser.add_argument("--weighting", choices=("plain", "guided"), default="plain")
  parser.add_argument("--fisher", action="store_true", help="fisher_hessian as well, for budgets")
  parser.add_argument("--heldout", type=int, default=0, help="windows at the end that are kept apart")
  parser.add_argument("--per-expert", action="store_true", help="an entry for gate and up of each expert")
  parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
  parser.add_argument("--batch", type=int, default=4, help="windows at once")
  o = parser.parse_args()
  tokens = load_file(o.tokens)["tokens"]
  model = load(o.model, o.device, getattr(torch, o.dtype))
  names = Names(o.model)
  guided = o.weighting == "guided"
  if guided or o.fisher:  # gradients of activations need a start
    model.get_input_embeddings().register_forward_hook(lambda module, args, y: y.requires_grad_())
  kept = tokens[len(tokens) - o.heldout:]
  collector = Collector(names, guided, o.fisher, o.per_expert)
  heldout = Collector(names, per_expert=o.per_expert)
  with experts_one_by_one(model):
    run(model, tokens[:len(tokens) - o.heldout], collector, o.device, o.batch)
    if o.heldout:
      run(model, kept, heldout, o.device, o.batch)
  seen = {key: e for key, e in collector.entries.items() if e.count}
  tensors, groups = tensors_of(seen)
  more, _ = tensors_of(heldout.entries, "heldout.")
  tensors = {name: t.cpu().contiguous() for name, t in (tensors | more).items()}
  save_file(tensors, o.out, {
      "format": "twofour statistics 1", "structure": structure_of(seen), "weights": final_norm(o.model),
      "tokens": str(tokens.numel()), "text": o.text, "weighting": o.weighting, "groups": json.dumps(groups)})
  served = {m for e in seen.values() for m in e.members}
  print(f"{len(seen)} entries of {len(served)} linears, {tokens.numel()} tokens")


if __name__ == "__main__":
  main()
