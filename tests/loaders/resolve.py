"""vLLM's quantization classes, asked for the format of every module of a checkpoint. Runs in vLLM's environment.

  resolve.py < [{"folder": ..., "architecture": ...}, ...] > {folder: [what is wrong, ...]}

Names are vLLM's: mapped by the model's class, shards as the fused linear that holds them, experts as the block that holds
them. vLLM 0.33.0 imports without its extensions; a CPU has no kernel for these formats, so constructors that choose a
kernel are replaced, and what get_quant_method returns is read instead of run.
"""
import json
import logging
import re
import sys

import torch
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()
logging.disable(logging.WARNING)

from compressed_tensors.quantization import QuantizationArgs
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import fp8, get_quantization_config, modelopt
from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors as ct
from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors_moe as ct_moe
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.utils import WeightsMapper

import dequantize

METHODS = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "fp8", "compressed-tensors")
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
# What vLLM's DeepSeek models add to their mapping when they are constructed (deepseek_v2.py), and what they call it.
FUSED_MLA = {"gate_up_proj": ["gate_proj", "up_proj"], "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"]}
EXPERT = re.compile(r"(?P<block>.*\.experts)\.(?P<number>\d+)\.(?P<projection>\w+)$")

MOE_FORMATS = {
    modelopt.ModelOptFp8MoEMethod: "fp8-tensor", modelopt.ModelOptNvFp4FusedMoE: "nvfp4",
    modelopt.ModelOptMxFp8FusedMoE: "mxfp8", fp8.Fp8MoEMethod: "fp8-block"}


def remember(cls):
  """Replaces the constructor, which chooses a kernel, by one that keeps its arguments."""
  def keep(self, *args, **kwargs):
    torch.nn.Module.__init__(self) if isinstance(self, torch.nn.Module) else None
    self.given = args, kwargs
  cls.__init__ = keep


for method in (*MOE_FORMATS, fp8.Fp8LinearMethod):
  remember(method)


def stub(cls, **attributes):
  """An object of a layer's class, with nothing in it but these attributes."""
  layer = cls.__new__(cls)
  torch.nn.Module.__init__(layer)
  for name, value in attributes.items():
    object.__setattr__(layer, name, value)
  return layer


def format_of_arguments(weights: QuantizationArgs):
  """Format of dequantize.format_of that compressed-tensors' arguments describe."""
  kind, strategy = str(getattr(weights.type, "value", weights.type)), str(getattr(weights.strategy, "value", weights.strategy))
  if kind == "int":
    return f"int{weights.num_bits}"
  if weights.num_bits == 4:
    return "nvfp4" if weights.group_size == 16 else "mxfp4"
  return {"group": "mxfp8", "tensor": "fp8-tensor", "channel": "fp8-row", "block": "fp8-block"}[strategy]


def format_of_spec(spec):
  """Format that ModelOpt's linear method was made for, and whether it reads an input scale."""
  formats = {modelopt.kNvfp4Static: "nvfp4", modelopt.kFp8StaticTensorSym: "fp8-tensor",
             modelopt.kFp8StaticTokenSym: "fp8-row", modelopt.kFp8Static128BlockSym: "fp8-block",
             modelopt.kMxfp8Static: "mxfp8"}
  return formats[spec.weight], spec.activation == modelopt.kNvfp4Dynamic


class Resolver:
  """vLLM's configuration of one checkpoint, with the model's names, as configure_quant_config prepares it."""

  def __init__(self, folder, config, architecture):
    self.config = read_quantization(folder, config)
    self.model = model_class(architecture)
    self.mapper = (getattr(self.model, "hf_to_vllm_mapper", None) or WeightsMapper()).get_rename_mapper()
    self.fused = FUSED | dict(getattr(self.model, "packed_modules_mapping", {}) or {})
    if "kv_lora_rank" in config:
      self.fused |= FUSED_MLA
    self.config.packed_modules_mapping = self.fused
    self.config.apply_vllm_mapper(self.mapper)

  def name(self, module):
    """Module's name in vLLM, before shards and experts are put together."""
    expert = EXPERT.match(module)
    if expert:  # the block alone has a name in vLLM
      return f"{self.mapper.map_name(expert['block']) or expert['block']}.{expert['number']}.{expert['projection']}"
    mapped = self.mapper.map_name(f"{module}.weight")
    return mapped.removesuffix(".weight") if mapped else module

  def layer(self, name, names):
    """(prefix, kind) of the vLLM layer that holds the module, one of `names`. A layer is fused where the checkpoint has
    all that it fuses: experts without a gate have up_proj alone."""
    expert = EXPERT.match(name)
    if expert:
      return expert["block"], "experts"
    parent, _, last = name.rpartition(".")
    for fused, shards in self.fused.items():
      if last in shards and all(f"{parent}.{shard}".lstrip(".") in names for shard in shards):
        return f"{parent}.{fused}".lstrip("."), "linear"
    return name, "head" if last == "lm_head" else "table" if "embed" in last else "linear"

  def resolve(self, prefix, kind, projections):
    """(format, whether an input scale is read: True, False, or None for unknown) that vLLM gives the layer."""
    if isinstance(self.config, ct.CompressedTensorsConfig):
      return self.resolve_compressed_tensors(prefix, kind, projections)
    layer = stub({"experts": RoutedExperts, "head": ParallelLMHead, "table": VocabParallelEmbedding,
                  "linear": LinearBase}[kind], moe_config=None)
    method = self.config.get_quant_method(layer, prefix)
    if method is None or isinstance(method, UnquantizedLinearMethod) or type(method).__name__.startswith("Unquantized"):
      return "float", False
    if isinstance(method, modelopt.ModelOptLinearMethod):
      return format_of_spec(method.spec)
    if isinstance(method, fp8.Fp8LinearMethod):
      return ("fp8-block" if self.config.weight_block_size else "fp8-tensor"), None
    needs_input = None
    if isinstance(method, modelopt.ModelOptNvFp4FusedMoE):
      needs_input = method.given[1]["quant_config"].quant_method != "W4A16_NVFP4"
    if isinstance(method, modelopt.ModelOptMxFp8FusedMoE) or type(method) in MOE_FORMATS:
      return MOE_FORMATS[type(method)], needs_input
    raise ValueError(f"method {type(method).__name__} is not known")

  def resolve_compressed_tensors(self, prefix, kind, projections):
    layer = stub({"experts": RoutedExperts, "head": ParallelLMHead, "table": VocabParallelEmbedding}.get(kind, LinearBase))
    if kind != "experts":
      schemes = [self.config.get_scheme_dict(layer, prefix)]
    else:  # as CompressedTensorsMoEMethod.get_moe_method: the first expert's projections, all alike
      self.config._add_fused_moe_to_target_scheme_map()
      # By the names that the model's class gives; classes that give none, and vLLM before 0.33, ask for these.
      names = dict.fromkeys([*projections, "gate_proj", "up_proj", "down_proj"])
      schemes = [self.config.get_scheme_dict(layer, f"{prefix}.0.{name}") for name in names]
      if any(scheme != schemes[0] for scheme in schemes):
        raise ValueError("All MoE projections need to have same quantization scheme")
    if schemes[0] is None:
      return "float", False
    inputs = schemes[0].get("input_activations")
    static = bool(inputs) and inputs.num_bits == 4
    return format_of_arguments(schemes[0]["weights"]), static


def read_quantization(folder, config):
  """vLLM's configuration object, of the class that vLLM chooses for config.json."""
  quantization = config["quantization_config"]
  name = quantization.get("quant_method")
  for method in METHODS:
    override = get_quantization_config(method).override_quantization_method(quantization, None)
    name = override or name
    if override:
      break
  cls = get_quantization_config(name)
  result = cls.from_config(json.loads(json.dumps(quantization)))
  file = dequantize.read_config(folder, "hf_quant_config.json")
  if file:
    check_same(result, cls.from_config(file))
  return result


def check_same(inline, file):
  """Throws unless config.json and hf_quant_config.json say the same; engines read one or the other."""
  for key in ("quant_method", "exclude_modules", "quantized_layers", "kv_cache_quant_method", "kv_cache_quant_algo"):
    a, b = getattr(inline, key, None), getattr(file, key, None)
    if (sorted(a) != sorted(b)) if isinstance(a, list) else a != b:
      raise ValueError(f"config.json and hf_quant_config.json differ in {key}: {str(a)[:80]} and {str(b)[:80]}")


def model_class(architecture):
  """vLLM's class of the architecture; None where vLLM 0.33.0 has none."""
  try:
    return ModelRegistry._try_load_model_cls(architecture)
  except Exception:
    return None


def problems(folder, architecture):
  """Sentences on every vLLM layer that is not resolved to the format that its tensors have."""
  config = dequantize.read_config(folder)
  resolver = Resolver(folder, config, architecture)
  layers, modules = {}, dequantize.modules(dequantize.read(folder))
  names = {resolver.name(module) for module in modules}
  for module, parts in modules.items():
    name = resolver.name(module)
    expert = EXPERT.match(name)
    prefix, kind = resolver.layer(name, names)
    entry = layers.setdefault((prefix, kind), {"formats": set(), "inputs": set(), "projections": {}})
    entry["formats"].add(dequantize.format_of(parts))
    entry["inputs"].add(dequantize.has_input_scale(parts))
    if expert:
      entry["projections"][expert["projection"]] = None
  return [line for (prefix, kind), entry in layers.items() for line in compare(resolver, prefix, kind, entry)]


def compare(resolver, prefix, kind, entry):
  if len(entry["formats"]) > 1:
    return [f"{prefix} holds {sorted(entry['formats'])}, of which an engine takes one"]
  actual = next(iter(entry["formats"]))
  try:
    found, needs_input = resolver.resolve(prefix, kind, list(entry["projections"]))
  except Exception as error:
    return [f"{prefix} is {actual}: {type(error).__name__}: {error}"]
  if found != actual:
    return [f"{prefix} is {actual}, resolved as {found}"]
  if actual == "nvfp4" and needs_input and entry["inputs"] != {True}:
    return [f"{prefix} has no input scale, resolved as a method that reads one"]
  if actual == "nvfp4" and needs_input is False and True in entry["inputs"]:
    return [f"{prefix} has an input scale, resolved as a method that reads none"]
  return []


def main():
  result = {}
  for job in json.load(sys.stdin):
    try:
      result[job["folder"]] = problems(job["folder"], job["architecture"])
    except Exception as error:
      result[job["folder"]] = [f"{type(error).__name__}: {error}"]
  json.dump(result, sys.stdout)


if __name__ == "__main__":
  main()
