"""What a checkpoint of Hugging Face says of its linears: names, shapes, weights."""
import pathlib
import re

import torch
import xxhash
from safetensors import safe_open

STACK = re.compile(r"^(.*experts)\.(gate_up_proj|down_proj|gate_proj|up_proj)$")
FIRST, LAST = ("gate_proj", "up_proj", "w1", "w3"), ("down_proj", "w2")


class Checkpoint:
  """Modules of a checkpoint by the parameters of the model that holds them."""

  def __init__(self, folder):
    self.folder = pathlib.Path(folder)
    self.shapes, self.files = {}, {}
    for file in sorted(self.folder.glob("*.safetensors")):
      with safe_open(file, "pt") as f:
        for name in f.keys():
          self.shapes[name] = tuple(f.get_slice(name).get_shape())
          self.files[name] = file
    self.experts = {}  # block -> expert -> leaves
    for name in self.shapes:
      found = re.match(r"^(.*experts)\.(\d+)\.(\w+)\.weight$", name)
      if found:
        self.experts.setdefault(found[1], {}).setdefault(int(found[2]), []).append(found[3])

  def tensor(self, name):
    with safe_open(self.files[name], "pt") as f:
      return f.get_tensor(name)

  def block_in_files(self, block):
    """The name that the files give a block of experts: Mixtral's differs from the model's."""
    other = block.replace(".mlp.experts", ".block_sparse_moe.experts")
    return other if block not in self.experts and other in self.experts else block

  def members(self, parameter, expert=None):
    """Modules that the product with a parameter, or with an expert's slice of it, multiplies with."""
    stack = STACK.match(parameter.removesuffix(".weight"))
    if expert is None or stack is None:
      module = parameter.removesuffix(".weight")
      return [module] if f"{module}.weight" in self.shapes else []
    block, leaf = self.block_in_files(stack[1]), stack[2]
    wanted = LAST if leaf == "down_proj" else FIRST
    if self.is_stacked(parameter):
      leaves = {"gate_up_proj": ["gate_proj", "up_proj"]}.get(leaf, [leaf])
    else:
      leaves = self.experts.get(block, {}).get(expert, [])
    return [f"{block}.{expert}.{one}" for one in leaves if one in wanted]

  def is_stacked(self, parameter):
    """Whether the file holds the experts of a stack as one tensor."""
    module = parameter.removesuffix(".weight")
    return module in self.shapes or f"{module}.weight" in self.shapes

  def count_experts(self, parameter):
    module = parameter.removesuffix(".weight")
    shape = self.shapes.get(module) or self.shapes.get(f"{module}.weight")
    return shape[0] if shape else max(self.experts.get(self.block_in_files(STACK.match(module)[1]), {0: 0})) + 1

  def final_norm(self):
    """XXH3-128 of the bytes of the norm before the head."""
    for name in sorted(self.shapes):
      if name in ("model.norm.weight", "norm.weight") or name.endswith("language_model.norm.weight"):
        return xxhash.xxh3_128_hexdigest(bytes_of(self.tensor(name)))
    return ""


def bytes_of(tensor):
  return tensor.contiguous().view(torch.uint8).numpy().tobytes()
