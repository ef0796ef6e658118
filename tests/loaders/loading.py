"""Checkpoints in transformers: what from_pretrained finds missing or unexpected, and the logits."""
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file

import models

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Loaded:
  """A model in transformers, with the names that loading left over."""

  def __init__(self, folder):
    # In float32, since a BF16 model rounds the scales that it loads to BF16 before it widens codes.
    self.model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True)
    self.missing, self.unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    self.mismatched = sorted(map(str, info["mismatched_keys"]))
    self.model.eval()

  def demand_complete(self):
    """Throws unless every tensor of the file has its place, and every place its tensor."""
    self.demand_only_unexpected([])

  def demand_only_unexpected(self, names):
    """Throws unless every place has its tensor, and these alone of the file have no place."""
    if self.missing or self.mismatched or len(self.unexpected) != len(names):
      raise AssertionError(f"missing {len(self.missing)} {self.missing[:2]}, mismatched {len(self.mismatched)}, "
                           f"unexpected {len(self.unexpected)} {self.unexpected[:2]}, expected {len(names)}")
    if not all(a.endswith("_global_scale") for a in self.unexpected):
      raise AssertionError(f"unexpected {self.unexpected[:3]}")

  def demand_without_experts(self, names):
    """Throws unless the stacks of experts are all that got no tensor, and these tensors all that have no place."""
    stacks = sorted(name for name, _ in self.model.named_parameters() if is_expert(name))
    if not stacks or self.missing != stacks or self.mismatched or self.unexpected != sorted(names):
      raise AssertionError(f"missing {len(self.missing)} {self.missing[:2]}, expected {len(stacks)} {stacks[:2]}; "
                           f"unexpected {len(self.unexpected)} {self.unexpected[:2]}, expected {len(names)}")

  def take_experts(self, other):
    """Replaces the stacks of experts by those of another model."""
    theirs = dict(other.model.named_parameters())
    with torch.no_grad():
      for name, parameter in self.model.named_parameters():
        if is_expert(name):
          parameter.copy_(theirs[name])

  def decompress(self):
    """Widens what compressed-tensors would widen at the first call; activations are left unquantized."""
    from compressed_tensors.quantization import disable_quantization
    self.model.hf_quantizer.compressor.decompress_model(self.model)
    self.model.apply(disable_quantization)

  def logits(self):
    """Logits of models.tokens(), F32 [2, 12, vocabulary]."""
    with torch.no_grad():
      return torch.nn.Module.float(self.model)(models.tokens()).logits


def write_reference(folder, source, tensors):
  """Writes tensors with the configuration of source, as a checkpoint that is not quantized."""
  folder = pathlib.Path(folder)
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  for path in pathlib.Path(source).glob("*.json"):
    if not path.name.endswith("index.json"):
      shutil.copy(path, folder)
  save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def is_expert(name):
  return ".experts." in name


def stacks_experts(model):
  """Whether the model keeps the experts of a layer as one parameter of three dimensions."""
  return any(is_expert(name) and parameter.ndim == 3 for name, parameter in model.named_parameters())


def demand_failure(folder, words):
  """Throws unless loading fails with these words."""
  try:
    Loaded(folder)
  except Exception as error:
    if words in str(error):
      return
    raise
  raise AssertionError(f"expected transformers to fail with '{words}', and it loads: compare its logits now")


def demand_equal(expected, found):
  """Throws unless the logits are equal to the last bit."""
  if not torch.equal(expected, found):
    raise AssertionError(f"logits differ: {describe(expected, found)}")


def demand_close(values, reference, loaded, bound, exact=lambda name: False):
  """Throws unless every parameter of loaded is within bound of its value, those of `exact` equal in F32, and the logits
  are the reference's with the same rounding of weights."""
  wrong, theirs = [], {}
  for name, parameter in loaded.model.named_parameters():
    if name.rpartition(".")[2].startswith(("weight_", "input_")):
      continue  # left by compressed-tensors beside the weight
    theirs[name] = parameter
    a, b = values[name].float().double(), parameter.double()
    if a.shape != b.shape or not ((a - b).abs() <= (0 if exact(name) else bound) * a.abs()).all():
      wrong.append(name)
  if wrong:
    raise AssertionError(f"{len(wrong)} parameters differ: {wrong[:3]}")
  ours = dict(reference.model.named_parameters())
  if ours.keys() != theirs.keys():  # experts one by one in one, stacked in the other
    a, b = reference.logits(), loaded.logits()
    # A router that sees rounded activations may give a token to another expert, hence not closer to 1.
    if not cosine(a, b) >= 0.99:
      raise AssertionError(f"logits differ: {describe(a, b)}")
    return
  with torch.no_grad():
    for name, parameter in ours.items():
      parameter.copy_(theirs[name])
  demand_equal(reference.logits(), loaded.logits())


def describe(expected, found):
  return f"cosine {cosine(expected, found):.7f}, max abs {(expected - found).abs().max().item():.4g}"


def cosine(a, b):
  return torch.nn.functional.cosine_similarity(a.flatten().double(), b.flatten().double(), 0).item()
