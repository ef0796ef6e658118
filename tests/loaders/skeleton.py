"""compressed-tensors' own classes over the names of a file, whatever model they belong to.

transformers keeps experts as stacks, which hide their names from compressed-tensors. Here each module of the file is a
torch.nn.Linear of its shape under its name in the file.
"""
import torch

import dequantize


def scheme_format(scheme):
  """Format of dequantize.format_of that a scheme of compressed-tensors describes."""
  weights = scheme.weights
  kind, strategy = str(getattr(weights.type, "value", weights.type)), str(getattr(weights.strategy, "value", weights.strategy))
  if kind == "int":
    return f"int{weights.num_bits}"
  if weights.num_bits == 4:
    return "nvfp4" if weights.group_size == 16 else "mxfp4"
  if strategy == "group":
    return "mxfp8"
  return {"tensor": "fp8-tensor", "channel": "fp8-row", "block": "fp8-block"}[strategy]


def build(shapes):
  """A tree of linears on no device: {name: (N, K)}. Embeddings are embeddings."""
  root = torch.nn.Module()
  for name, (rows, columns) in shapes.items():
    *path, last = name.split(".")
    parent = root
    for part in path:
      if part not in parent._modules:
        parent.add_module(part, torch.nn.Module())
      parent = parent._modules[part]
    is_table = "embed" in last
    parent.add_module(last, torch.nn.Embedding(rows, columns, device="meta") if is_table else
                      torch.nn.Linear(columns, rows, bias=False, device="meta"))
  return root


def resolve(folder):
  """{module: scheme, or None} as compressed-tensors finds it for every module of the checkpoint's files."""
  from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
  config = dequantize.read_config(folder)["quantization_config"] | {"kv_cache_scheme": None}
  found = dequantize.modules(dequantize.read(folder))
  root = build({name: tuple(dequantize.dequantize(parts).shape) for name, parts in found.items()})
  apply_quantization_config(root, QuantizationConfig.model_validate(config), show_progress=False)
  return {name: getattr(root.get_submodule(name), "quantization_scheme", None) for name in found}


def demand_formats(folder):
  """Throws unless compressed-tensors finds for every module the format and the input scales that it has."""
  schemes, wrong = resolve(folder), []
  for name, parts in dequantize.modules(dequantize.read(folder)).items():
    scheme, actual = schemes[name], dequantize.format_of(parts)
    expected = scheme_format(scheme) if scheme and scheme.weights else "float"
    static = bool(scheme and scheme.input_activations and scheme.input_activations.dynamic in (False, "local"))
    if expected != actual:
      wrong.append(f"{name} is {actual}, resolved as {expected}")
    elif actual != "float" and static != dequantize.has_input_scale(parts):
      wrong.append(f"{name}: input scale declared {static}, stored {not static}")
  if wrong:
    raise AssertionError(f"{len(wrong)} modules: " + "; ".join(wrong[:3]))


def demand_values(folder):
  """Throws unless compressed-tensors' decompressor gives our weights for every module, but for its rounding: it rounds
  scale / global scale to BF16, then the product (0.19.0, unpack_fp4_from_uint8 gives BF16)."""
  from compressed_tensors.compressors import BaseCompressor
  schemes, wrong = resolve(folder), []
  top = dequantize.read_config(folder)["quantization_config"]["format"]
  for name, parts in dequantize.modules(dequantize.read(folder)).items():
    if dequantize.format_of(parts) == "float" or schemes[name] is None:
      continue
    form = schemes[name].format or top
    compressor = BaseCompressor.get_value_from_registry(str(getattr(form, "value", form)))
    theirs = compressor.decompress(dict(parts), schemes[name])["weight"].double()
    ours = dequantize.dequantize(parts)
    if not ((theirs - ours).abs() <= ours.abs() * 2.0**-7).all():
      wrong.append(name)
  if wrong:
    raise AssertionError(f"decompressed weights of {len(wrong)} modules differ: {wrong[:3]}")
