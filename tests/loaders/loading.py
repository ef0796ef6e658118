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
    left = {"missing": self.missing, "unexpected": self.unexpected, "mismatched": self.mismatched}
    if any(left.values()):
      raise AssertionError("; ".join(f"{len(v)} {k}: {v[:3]}" for k, v in left.items() if v))

  def decompress(self):
    """Widens what compressed-tensors would widen at the first call; activations are left unquantized."""
    from compressed_tensors.quantization import disable_quantization
    self.model.hf_quantizer.compressor.decompress_model(self.model)
    self.model.apply(disable_quantization)

  def logits(self):
    """Logits of models.tokens(), F32 [2, 12, vocabulary]."""
    with torch.no_grad():
      return self.model(models.tokens()).logits.float()


def write_reference(folder, source, tensors):
  """Writes tensors with the configuration of source, as a checkpoint that is not quantized."""
  folder = pathlib.Path(folder)
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  for path in pathlib.Path(source).glob("*.json"):
    if not path.name.endswith("index.json"):
      shutil.copy(path, folder)
  save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def demand_equal(expected, found):
  """Throws unless the logits are equal to the last bit."""
  if not torch.equal(expected, found):
    raise AssertionError(f"logits differ: {describe(expected, found)}")


def describe(expected, found):
  return f"cosine {cosine(expected, found):.7f}, max abs {(expected - found).abs().max().item():.4g}"


def cosine(a, b):
  return torch.nn.functional.cosine_similarity(a.flatten().double(), b.flatten().double(), 0).item()
