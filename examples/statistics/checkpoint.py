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
    self.renamed = {}  # parameter of the model -> tensors of the files
    self.experts = {}  # block -> expert -> leaves
    for name in self.shapes:
      found = re.match(r"^(.*experts)\.(\d+)\.(\w+)\.weight$", name)
      if found:
        self.experts.setdefault(found[1], {}).setdefault(int(found[2]), []).append(found[3])

  def tensor(self, name):
    with safe_open(self.files[name], "pt") as f:
      return f.get_tensor(name)

  def follow(self, model):
    """Learns the names in the files of the parameters of a model, some of which transformers renames as it loads them."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, rename_source_key
    mapping, state = get_model_conversion_mapping(model), model.state_dict()
    stacking = [m for m in mapping if isinstance(m, WeightConverter)]
    renaming = [m for m in mapping if not isinstance(m, WeightConverter)]
    for name in self.shapes:
      parameter, _ = rename_source_key(name, renaming, stacking, model.base_model_prefix, state)
      self.renamed.setdefault(parameter, []).append(name)

  def block_in_files(self, block):
    """The name that the files give a block of experts: that of Mixtral, and of others, differs from the model's."""
    for leaf in ("down_proj", "up_proj"):
      for name in self.renamed.get(f"{block}.{leaf}", ()):
        found = re.match(r"^(.*experts)\.\d+\.", name)
        if found:
          return found[1]
    other = block.replace(".mlp.experts", ".block_sparse_moe.experts")
    return other if block not in self.experts and other in self.experts else block

  def members(self, parameter, expert=None):
    """Modules that the product with a parameter, or with an expert's slice of it, multiplies with."""
    stack = STACK.match(parameter.removesuffix(".weight"))
    if expert is None or stack is None:
      names = [f"{parameter.removesuffix('.weight')}.weight"]
      if names[0] not in self.shapes:
        names = [name for name in self.renamed.get(parameter, ()) if name.endswith(".weight")]
      return [name.removesuffix(".weight") for name in names]
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
      known = ("model.norm.weight", "norm.weight", "backbone.norm_f.weight", "model.norm_f.weight")
      if name in known or name.endswith("language_model.norm.weight"):
        return xxhash.xxh3_128_hexdigest(bytes_of(self.tensor(name)))
    return ""


def bytes_of(tensor):
  return tensor.contiguous().view(torch.uint8).numpy().tobytes()
