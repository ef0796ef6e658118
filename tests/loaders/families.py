"""A model of every family through every command, and its outputs into transformers and compressed-tensors."""
import json
import pathlib

import safetensors.torch
import torch

import dequantize
import loading
import models
import skeleton

DIALECTS = ("modelopt", "compressed-tensors")
LAYOUTS = ("v7", "v7-packed", "g8")
# nemotron_h's experts have no gate, which g8 interleaves with up.
NO_GATE = ("nemotron_h",)
# Families of which a mix is chosen by a size.
BY_SIZE = ("llama", "qwen3", "qwen3_moe")
# In random matrices this small a wide search leaves more blocks at the largest scale than lint takes for sound.
SMALL_SCALES = ("--scale-search", "0")
# Their files have stacks of experts, and transformers 5.17.0 knows no other name for them: it leaves experts one by one,
# which compressed-tensors needs, and starts from random ones. llm-compressor 0.14.0.1 exports them one by one, too, with
# the same tensors missing and left over.
ONLY_STACKS = ("gpt_oss", "gemma4_text", "granitemoe")
# Under compressed-tensors transformers 5.17.0 has the experts of this one by one, as the files.
ONE_BY_ONE = ("llama4_text",)
# BF16 in the checkpoint, rounded twice by compressed-tensors 0.19.0: scale / global scale to BF16, then the product.
WITHIN_BFLOAT16 = 2.0**-7


def demand_input_scales(folder, value):
  """Throws unless all NVFP4 modules have this input scale; None: have none."""
  for module, parts in dequantize.modules(dequantize.read(folder)).items():
    if dequantize.format_of(parts) != "nvfp4":
      continue
    found = [float(parts[name]) for name in ("input_scale", "input_global_scale") if name in parts]
    if found != ([] if value is None else [value]):
      raise AssertionError(f"{module}: expected input scale {value}, found {found}")


class Family:
  """One model of models.MODELS on its way through the program."""

  def __init__(self, name, work, program, report):
    self.name, self.program, self.report = name, program, report
    self.family = models.MODELS[name][0]
    self.folder = pathlib.Path(work) / name
    self.source = self.folder / "source"
    # (command, folder, words of a refusal or None): checkpoints whose configuration vLLM's classes are asked about
    self.to_resolve = []

  def check(self, command, function):
    return self.report.check(self.name, command, function)

  def out(self, name):
    return self.folder / name

  def run(self):
    models.make(self.name, self.source)
    self.tensors = dequantize.read(self.source)
    self.check("inspect", lambda: self.program.inspect(self.source))
    self.check("lint", lambda: self.program.lint(self.source))
    for dialect in DIALECTS:
      if self.quantize(dialect):
        self.use(dialect)
      self.mixed(dialect)
      self.quantized_head(dialect)
      self.input_scales(dialect)
      for kind in ("mxfp8", "mxfp4"):
        self.microscaling(dialect, kind)
    self.layout_beside_fp8()
    self.fp8()
    if self.family in BY_SIZE:
      self.by_size()

  def quantize(self, dialect):
    quantized, command = self.out(f"nvfp4-{dialect}"), f"quantize {dialect}"
    made = self.check(command, lambda: self.program.make("quantize", self.source, quantized, "--dialect", dialect))
    if made:
      self.check_output(command, quantized, self.source)
      self.check(f"{command}: every linear", lambda: self.demand_quantized(quantized))
    return made

  def check_output(self, command, folder, source, refusal=None):
    """What holds for each output: inspected, linted, proven, resolved by the engines that its dialect is for. `refusal`:
    words with which vLLM refuses it."""
    self.check(f"{command}: inspect", lambda: self.program.inspect(folder))
    self.check(f"{command}: lint", lambda: self.program.lint(folder))
    self.check(f"{command}: validate", lambda: self.program.validate(folder, source))
    config = dequantize.read_config(folder).get("quantization_config", {})
    if config.get("quant_method") in ("modelopt", "compressed-tensors", "fp8"):
      self.to_resolve.append((command, folder, refusal))
    if config.get("quant_method") == "compressed-tensors":
      self.check(f"{command}: compressed-tensors' schemes", lambda: skeleton.demand_formats(folder))
      self.check(f"{command}: compressed-tensors' values", lambda: skeleton.demand_values(folder))

  def demand_quantized(self, folder):
    """Throws if an expert was left in BF16, alone or in a stack."""
    tensors = dequantize.read(folder)
    left = [m for m, kind in dequantize.formats(tensors).items() if kind == "float" and ".experts." in m]
    left += [n for n, t in tensors.items() if t.ndim == 3 and min(t.shape) > 1 and t.dtype in dequantize.FLOATS and t.shape[-1] > 16]
    if left:
      raise AssertionError(f"experts left in floats: {left[:3]}")

  def use(self, dialect):
    """Everything that starts from the quantized checkpoint."""
    quantized = self.out(f"nvfp4-{dialect}")
    other = DIALECTS[1 - DIALECTS.index(dialect)]
    self.bf16(quantized, dialect)
    if dialect == "modelopt":
      self.layouts(quantized)
    else:
      self.check("transformers nvfp4", lambda: self.load_compressed(quantized))
      self.prune(quantized)
    command, folder = f"{dialect} to {other}", self.out(f"{dialect}-to-{other}")
    if self.check(command, lambda: self.program.make("convert", quantized, folder, "--to", "nvfp4", "--dialect", other)):
      self.check_output(command, folder, quantized)
      self.check(f"{command}: diff", lambda: self.program.diff(quantized, folder))

  def layouts(self, quantized):
    for layout in LAYOUTS:
      folder = self.out(layout)
      if layout == "g8" and self.family in NO_GATE:
        self.check("g8", lambda: self.program.refuse("convert", quantized, folder, "--to", layout, reason="gate"))
        continue
      if not self.check(layout, lambda: self.program.make("convert", quantized, folder, "--to", layout)):
        continue
      self.check(f"{layout}: inspect", lambda: self.program.inspect(folder))
      self.check(f"{layout}: lint", lambda: self.program.lint(folder))
      self.check(f"{layout}: validate", lambda: self.program.validate(folder, quantized))
      if layout == "g8":
        self.check("g8 and back", lambda: self.back(folder, quantized))

  def back(self, folder, quantized):
    back = self.program.make("convert", folder, self.out("back"), "--to", "nvfp4", "--dialect", "modelopt")
    self.demand_same(dequantize.read(quantized), dequantize.read(back))

  def prune(self, quantized):
    pruned = self.out("pruned")
    if self.check("prune", lambda: self.program.make("prune", quantized, pruned, "--pattern", "2:4")):
      self.check_output("prune", pruned, quantized)
      self.check("transformers pruned", lambda: self.load_compressed(pruned))

  def bf16(self, quantized, dialect, values=None):
    """In BF16; `values`: a checkpoint of the same values, where this one is in a layout."""
    values = values or quantized
    command, folder = f"bf16 of {dialect}", self.out(f"bf16-{dialect}")
    if not self.check(command, lambda: self.program.make("convert", quantized, folder, "--to", "bf16")):
      return
    self.check_output(command, folder, quantized)
    self.check(f"{command}: weights", lambda: self.demand_same(self.expected(values), dequantize.read(folder)))
    self.check(f"{command}: transformers", lambda: self.load_bf16(values, folder))

  def demand_same(self, expected, found):
    lines = dequantize.differences(expected, found)
    if lines:
      raise AssertionError(f"{len(lines)} tensors: {'; '.join(lines[:3])}")

  def expected(self, quantized, cast=dequantize.to_bfloat16):
    return dequantize.in_names_of(self.tensors, dequantize.read(quantized), self.family, cast)

  def reference(self, quantized, cast=dequantize.to_bfloat16):
    """A plain model with our dequantization of quantized."""
    folder = self.out("reference")
    loading.write_reference(folder, self.source, self.expected(quantized, cast))
    reference = loading.Loaded(folder)
    reference.demand_complete()
    return reference

  def values(self, reference, folder):
    """What each parameter must be: the reference's, or our dequantization where transformers keeps the file's modules,
    as it does with the experts of llama4_text under compressed-tensors."""
    found = dequantize.modules(dequantize.read(folder))
    ours = {f"{m}.weight": dequantize.dequantize(p) for m, p in found.items()}
    return ours | {name: parameter.double() for name, parameter in reference.model.named_parameters()}

  def load_bf16(self, quantized, folder):
    loaded = loading.Loaded(folder)
    loaded.demand_complete()
    loading.demand_equal(self.reference(quantized).logits(), loaded.logits())

  def load_compressed(self, folder):
    """A compressed-tensors NVFP4 checkpoint in transformers, as far as transformers can hold it."""
    loaded = self.load_without_router_scale(folder)
    if loaded is None:
      return
    reference = self.reference(folder, torch.Tensor.float)
    experts = [n for n in dequantize.read(folder) if n.endswith("_global_scale") and loading.is_expert(n)]
    if self.family in ONLY_STACKS:
      self.replace_experts(loaded, folder, reference)
    elif experts and loading.stacks_experts(loaded.model):
      # transformers 5.17.0 stacks experts while it loads and has no place for their global scales in the conversion
      # (update_weight_conversions takes weight_packed, _scale and _shape alone), so they are left over and the weights
      # are wrong by that factor. llm-compressor's exports fare the same. The rest must be right: experts are replaced.
      loaded.demand_only_unexpected(experts)
      loaded.take_experts(reference)
    else:
      loaded.demand_complete()
    loaded.decompress()
    loading.demand_close(self.values(reference, folder), reference, loaded, WITHIN_BFLOAT16)

  def replace_experts(self, loaded, folder, reference):
    """Experts of the reference in place of random ones."""
    loaded.demand_without_experts([n for n in dequantize.read(folder) if loading.is_expert(n)])
    loaded.take_experts(reference)

  def mixed(self, dialect):
    """A recipe: attention in FP8, experts and MLPs in NVFP4, the rest as it was."""
    command, folder = f"mixed {dialect}", self.out(f"mixed-{dialect}")
    granularity = "tensor" if dialect == "modelopt" else "row"
    recipe = {"format": 1, "dialect": dialect, "rules": [
        {"match": "attention", "to": "fp8", "granularity": granularity},
        {"match": ["experts", "shared-experts", "mlp"], "to": "nvfp4"}]}
    path = self.out(f"mixed-{dialect}.json")
    path.write_text(json.dumps(recipe))
    if not self.check(command, lambda: self.program.make("convert", self.source, folder, "--recipe", path)):
      return
    self.check_output(command, folder, self.source)
    self.check(f"{command}: formats", lambda: self.demand_mixed(folder, f"fp8-{granularity}"))
    if dialect == "compressed-tensors":
      self.check(f"{command}: transformers", lambda: self.load_compressed(folder))
    self.bf16(folder, command)

  def by_size(self):
    """What compress chooses for vLLM at a size between those of its formats, beside linears in BF16."""
    command, folder, tokens = "compress by size", self.out("by-size"), self.out("tokens.safetensors")
    vocabulary = dequantize.read_config(self.source)["vocab_size"]
    safetensors.torch.save_file({"tokens": torch.arange(1024).reshape(4, 256) ** 2 % vocabulary}, tokens)
    if not self.check(command, lambda: self.program.make(
        "compress", self.source, folder, "--tokens", tokens, "--bits", "7", "--for", "vllm", "--menu", "nvfp4,mxfp4,fp8,bf16",
        *SMALL_SCALES)):
      return
    self.check_output(command, folder, self.source)
    self.check(f"{command}: formats", lambda: self.demand_several(folder))
    if self.family != "qwen3_moe":  # of which transformers stacks experts
      self.check(f"{command}: transformers", lambda: self.load_compressed(folder))

  def demand_several(self, folder):
    kinds = set(dequantize.formats(dequantize.read(folder)).values()) - {"float"}
    if len(kinds) < 2:
      raise AssertionError(f"expected a mix, found {sorted(kinds)}")

  def layout_beside_fp8(self):
    """A recipe: attention in FP8, experts or MLPs in v7. It is a source like others."""
    command, folder = "v7 beside fp8", self.out("v7-fp8")
    path = self.out("v7-fp8.json")
    path.write_text(json.dumps({"format": 1, "rules": [
        {"match": "attention", "to": "fp8", "granularity": "tensor"}, {"match": ["experts", "mlp"], "to": "v7"}]}))
    if not self.check(command, lambda: self.program.make("convert", self.source, folder, "--recipe", path)):
      return
    self.check_output(command, folder, self.source)
    back = self.out("v7-fp8-modelopt")
    if self.check(f"{command}: back", lambda: self.program.make(
        "convert", folder, back, "--to", "nvfp4", "--dialect", "modelopt")):
      self.check_output(f"{command}: back", back, folder)
      self.check(f"{command}: back: formats", lambda: self.demand_mixed(back, "fp8-tensor"))
    self.bf16(folder, command, back)

  def quantized_head(self, dialect):
    """A head in NVFP4, which no engine counts among the linears."""
    head = next(m for m in dequantize.modules(self.tensors) if m.rpartition(".")[2] in ("lm_head", "head"))
    command, folder = f"quantize {dialect} and the head", self.out(f"head-{dialect}")
    if not self.check(command, lambda: self.program.make(
        "quantize", self.source, folder, "--dialect", dialect, "--also", head)):
      return
    self.check_output(command, folder, self.source)
    self.check(f"{command}: formats", lambda: self.demand_format_of(folder, [head], "nvfp4"))
    # Of DeepSeek-V4's head transformers 5.17.0 renames the tensor `weight` alone, so it has no place for codes.
    if dialect == "compressed-tensors" and head == "lm_head":
      self.check(f"{command}: transformers", lambda: self.load_compressed(folder))

  def demand_format_of(self, folder, modules, kind):
    kinds = dequantize.formats(dequantize.read(folder))
    wrong = [f"{m} is {kinds.get(m)}" for m in modules if kinds.get(m) != kind]
    if wrong:
      raise AssertionError(f"expected {kind}: {wrong[:3]}")

  def input_scales(self, dialect):
    """NVFP4 with input scales of 1, and without them again."""
    command, folder = f"quantize {dialect} with input scales", self.out(f"inputs-{dialect}")
    if not self.check(command, lambda: self.program.make(
        "quantize", self.source, folder, "--dialect", dialect, "--input-scale", "constant")):
      return
    self.check_output(command, folder, self.source)
    self.check(f"{command}: scales", lambda: demand_input_scales(folder, 1.0))
    if dialect == "compressed-tensors":
      self.check(f"{command}: transformers", lambda: self.load_compressed(folder))
    without, command = self.out(f"no-inputs-{dialect}"), f"{command}, removed"
    if self.check(command, lambda: self.program.make(
        "convert", folder, without, "--to", "nvfp4", "--dialect", dialect, "--input-scale", "none")):
      self.check_output(command, without, folder)
      self.check(f"{command}: bytes", lambda: self.demand_same(
          dequantize.read(self.out(f"nvfp4-{dialect}")), dequantize.read(without)))

  def microscaling(self, dialect, kind):
    """MXFP8 or MXFP4 in the dialect, and back in BF16."""
    command, folder = f"{kind} {dialect}", self.out(f"{kind}-{dialect}")
    if not self.check(command, lambda: self.program.make(
        "convert", self.source, folder, "--to", kind, "--dialect", dialect)):
      return
    # vLLM 0.33.0 has no MXFP4 of ModelOpt's.
    refusal = "ModelOpt currently only supports" if (dialect, kind) == ("modelopt", "mxfp4") else None
    self.check_output(command, folder, self.source, refusal)
    self.check(f"{command}: formats", lambda: self.demand_one_format(folder, kind))
    self.bf16(folder, command)
    if dialect == "compressed-tensors":
      self.check(f"{command}: transformers", lambda: self.load_scaled(folder, dialect, kind))

  def demand_one_format(self, folder, kind):
    kinds = dequantize.formats(dequantize.read(folder))
    wrong = [f"{m} is {k}" for m, k in kinds.items() if k not in ("float", kind) or (loading.is_expert(m) and k != kind)]
    if wrong or kind not in kinds.values():
      raise AssertionError(f"{wrong[:3]}, found {sorted(set(kinds.values()))}")

  def demand_mixed(self, folder, attention):
    kinds = dequantize.formats(dequantize.read(folder))
    wrong = [f"{m} is {k}" for m, k in kinds.items() if k not in ("float", "nvfp4", attention)]
    wrong += [f"{m} is {k}" for m, k in kinds.items() if (".self_attn." in m and m.endswith("o_proj") and k != attention)
              or (loading.is_expert(m) and k != "nvfp4")]
    if wrong or {"nvfp4", attention} - set(kinds.values()):
      raise AssertionError(f"{wrong[:3]}, found {sorted(set(kinds.values()))}")

  def load_without_router_scale(self, folder):
    """The checkpoint in transformers; None where its phimoe takes the router for a quantized linear.

    transformers 5.17.0 renames the router (`block_sparse_moe.gate` in files, `mlp.router` in the model) but not in
    `ignore`. llm-compressor 0.14.0.1 lists `block_sparse_moe.router`, and its own export of phimoe fails in the same way.
    """
    try:
      loaded = loading.Loaded(folder)
    except AttributeError as error:
      if self.family == "phimoe" and "'PhimoeTopKRouter' object has no attribute 'weight'" in str(error):
        return None
      raise
    routers = [name for name in loaded.missing if name.endswith(".mlp.router.weight_scale")]
    return None if self.family == "phimoe" and routers and routers == loaded.missing else loaded

  def fp8(self):
    """FP8 in the dialects and granularities that transformers reads; compressed-tensors' and DeepSeek's."""
    quantized = self.out("nvfp4-modelopt")
    for dialect, granularity in (("compressed-tensors", "tensor"), ("compressed-tensors", "row"),
                                 ("compressed-tensors", "block"), ("deepseek", "block"), ("modelopt", "tensor"),
                                 ("modelopt", "row"), ("modelopt", "block")):
      self.fp8_output(quantized, dialect, granularity)

  def fp8_output(self, quantized, dialect, granularity):
    command, folder = f"fp8 {dialect} {granularity}", self.out(f"fp8-{dialect}-{granularity}")
    options = ("--to", "fp8", "--dialect", dialect, "--granularity", granularity)
    reason = self.reason_to_refuse(quantized, dialect, granularity)
    if reason:
      self.check(command, lambda: self.program.refuse("convert", quantized, folder, *options, reason=reason))
      return
    if not self.check(command, lambda: self.program.make("convert", quantized, folder, *options)):
      return
    self.check_output(command, folder, quantized)
    if dialect != "modelopt":
      self.check(f"{command}: transformers", lambda: self.load_scaled(folder, dialect, granularity))

  def reason_to_refuse(self, quantized, dialect, granularity):
    """Words of the refusal where no engine loads the output, or None."""
    found = dequantize.modules(dequantize.read(quantized))
    matrices = {m: dequantize.dequantize(p).shape for m, p in found.items() if dequantize.format_of(p) != "float"}
    if granularity == "block" and any(size % 128 for shape in matrices.values() for size in shape):
      return "128"
    if dialect == "modelopt" and granularity != "tensor" and any(loading.is_expert(m) for m in matrices):
      return "expert"  # vLLM 0.33.0: ModelOptFp8MoEMethod takes a scalar per expert
    return None

  def load_scaled(self, folder, dialect, granularity):
    """FP8, MXFP8 or MXFP4 in transformers: weights equal to the last bit but for experts, which it folds in BF16."""
    reference = self.reference(folder, torch.Tensor.float)
    stacks = dialect == "compressed-tensors" and loading.stacks_experts(reference.model)
    if stacks and granularity in ("block", "mxfp8") and self.family not in ONLY_STACKS + ONE_BY_ONE:
      # transformers 5.17.0 stops in its conversion of such scales; llm-compressor's FP8_BLOCK and MXFP8 stop alike.
      loading.demand_failure(folder, "automatic conversion of the weights")
      return
    loaded = self.load_without_router_scale(folder)
    if loaded is None:
      return
    if dialect == "compressed-tensors" and self.family in ONLY_STACKS:
      self.replace_experts(loaded, folder, reference)
    else:
      loaded.demand_complete()
    if dialect == "compressed-tensors":
      loaded.decompress()
    loading.demand_close(self.values(reference, folder), reference, loaded, WITHIN_BFLOAT16,
                         exact=lambda name: not loading.is_expert(name))
