"""What the tensors of a checkpoint say: the format of each module, and its weights as numbers.

Shares nothing with twofour: only torch's own dtypes and the E2M1 table. The product of a code, a block scale and an F32
scale is exact in double.
"""
import json
import pathlib
import re

import torch
from safetensors import safe_open

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
E2M1 = torch.cat([E2M1, -E2M1])
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
SCALES = ("weight_scale_inv", "weight_scale", "scale")
PARTS = ("weight_packed", "weight_global_scale", "weight_scale_2", "weight_shape", "weight", "input_scale",
         "input_global_scale") + SCALES


def read(folder):
  """All tensors of a checkpoint, by name."""
  tensors = {}
  for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
    with safe_open(path, "pt") as file:
      tensors |= {name: file.get_tensor(name) for name in file.keys()}
  return tensors


def read_config(folder, name="config.json"):
  """A JSON file of the checkpoint; {} if there is none."""
  path = pathlib.Path(folder) / name
  return json.loads(path.read_text()) if path.exists() else {}


def modules(tensors):
  """Tensors by module and by what they are of it: {module: {part: tensor}}, for modules with a matrix."""
  found = {}
  for name, tensor in tensors.items():
    module, _, part = name.rpartition(".")
    if part in PARTS:
      found.setdefault(module, {})[part] = tensor
  matrices = ("weight_packed", "weight")
  return {m: parts for m, parts in found.items() if any(p in parts and parts[p].ndim == 2 for p in matrices)}


def scale_of(parts):
  return next((parts[name] for name in SCALES if name in parts), None)


def format_of(parts):
  """Format of a module: float, nvfp4, mxfp4, mxfp8, fp8-tensor, fp8-row, fp8-block or int4."""
  packed, weight, scale = parts.get("weight_packed"), parts.get("weight"), scale_of(parts)
  codes = packed if packed is not None else weight
  if codes.dtype in FLOATS:
    return "float"
  if codes.dtype == torch.int32:
    return "int4"
  if codes.dtype == torch.uint8:
    return "nvfp4" if scale.dtype == torch.float8_e4m3fn else "mxfp4"
  if codes.dtype != torch.float8_e4m3fn:
    raise ValueError(f"expected the codes of a known format, found {codes.dtype}")
  if scale.dtype in (torch.uint8, torch.float8_e8m0fnu) and scale.shape == (codes.shape[0], codes.shape[1] // 32):
    return "mxfp8"
  if scale.numel() == 1:
    return "fp8-tensor"
  return "fp8-row" if scale.numel() == codes.shape[0] and scale.shape[-1] in (1, codes.shape[0]) else "fp8-block"


def formats(tensors):
  """{module: format} of every module with a matrix."""
  return {module: format_of(parts) for module, parts in modules(tensors).items()}


def has_input_scale(parts):
  return "input_scale" in parts or "input_global_scale" in parts


def unpack(codes):
  """E2M1 codes, two a byte, the lower K in the low nibble: U8 [N, K/2] to F64 [N, K]."""
  return E2M1[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]


def power_of_two(scale):
  """E8M0 scales, as U8 or F8_E8M0, to F64."""
  return torch.pow(2.0, scale.view(torch.uint8).double() - 127)


def widen_blocks(scale, rows, columns):
  """Scales of blocks to one a weight, F64 [rows, columns]. Blocks are 128 wide, and partial at an edge, unless the
  grid says otherwise."""
  scale = scale if scale.ndim == 2 else scale.squeeze((1, 3))
  block = [128 if count == -(-size // 128) else size // count for size, count in zip((rows, columns), scale.shape)]
  return scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:rows, :columns]


def unpack_int4(parts):
  """INT4 pack-quantized: I32 [N, K/8] with offset 8, element i at bits 4 i; scales [N, K/g]."""
  shifts = torch.arange(0, 32, 4)
  codes = ((parts["weight_packed"].long()[..., None] >> shifts) & 15).flatten(-2).double() - 8
  rows, columns = parts["weight_shape"].tolist()
  scale = parts["weight_scale"].double()
  return codes[:rows, :columns] * scale.repeat_interleave(columns // scale.shape[1], 1)


def dequantize(parts):
  """Weights of a module in any format, F64 [N, K]."""
  kind, scale = format_of(parts), scale_of(parts)
  if kind == "float":
    return parts["weight"].double()
  if kind == "int4":
    return unpack_int4(parts)
  if kind == "nvfp4":
    if "weight_packed" in parts:
      block = scale.double() / parts["weight_global_scale"].double()
      return unpack(parts["weight_packed"]) * block.repeat_interleave(16, -1)
    block = scale.double() * parts["weight_scale_2"].double()
    return unpack(parts["weight"]) * block.repeat_interleave(16, -1)
  if kind == "mxfp4":
    codes = parts["weight_packed"] if "weight_packed" in parts else parts["weight"]
    return unpack(codes) * power_of_two(scale).repeat_interleave(32, -1)
  codes = parts["weight"].double()
  if kind == "mxfp8":
    return codes * power_of_two(scale).repeat_interleave(32, -1)
  scale = power_of_two(scale) if scale.dtype in (torch.uint8, torch.float8_e8m0fnu) else scale.double()
  if kind == "fp8-tensor":
    return codes * scale.reshape(())
  if kind == "fp8-row":
    return codes * scale.reshape(-1, 1)
  return codes * widen_blocks(scale, *codes.shape)


def to_bfloat16(values):
  """F64 to BF16 by way of F32, as formats/README.md has it: the product in float32, rounded to BF16."""
  return values.float().bfloat16()


STACK = re.compile(r"(?P<parent>.*?)\.?(?P<what>gate_up_proj|down_proj|input_linear\.weight|output_linear\.weight)(?P<bias>_bias)?$")
GATE, UP, DOWN = ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")


def expert_values(values, stack, expert, projection, suffix):
  """Tensor of one expert's projection next to the stack, under the names that families use."""
  parent = STACK.match(stack)["parent"]
  for folder in (parent, f"{parent}.experts"):
    for name in projection:
      found = values.get(f"{folder}.{expert}.{name}.{suffix}")
      if found is not None:
        return found
  raise KeyError(f"{stack}: no {projection[0]} of expert {expert}")


def put_together(values, stack, shape, family):
  """A stack of experts as the family stores it, from experts one by one."""
  match = STACK.match(stack)
  suffix = "bias" if match["bias"] else "weight"
  transposed = suffix == "weight" and family in ("gpt_oss", "llama4_text")
  turn = (lambda t: t.mT) if transposed else (lambda t: t)
  of = lambda expert, projection: turn(expert_values(values, stack, expert, projection, suffix))
  if match["what"] in ("down_proj", "output_linear.weight"):
    return torch.stack([of(e, DOWN) for e in range(shape[0])])
  experts = []
  for e in range(shape[0]):
    gate, up = of(e, GATE), of(e, UP)
    if family == "gpt_oss":
      experts.append(torch.stack([gate, up], -1).flatten(-2))
    else:
      experts.append(torch.cat([gate, up], -1 if transposed else 0))
  return torch.stack(experts)


def in_names_of(source, quantized, family, cast=to_bfloat16):
  """What --to bf16 of quantized must hold: source's names and shapes, quantized's values. Tensors by name."""
  found = modules(quantized)
  values = dict(quantized)
  for module, parts in found.items():
    if format_of(parts) != "float":
      values[f"{module}.weight"] = cast(dequantize(parts))
  result = {}
  for name, tensor in source.items():
    same = values.get(name)
    result[name] = same if same is not None else put_together(values, name, tensor.shape, family)
  return result


def bytes_of(tensor):
  return tensor.contiguous().reshape(-1).view(torch.uint8)


def differences(expected, found):
  """Sentences on tensors that are missing, too many, or not the same bytes."""
  lines = [f"missing {n}" for n in sorted(expected.keys() - found.keys())]
  lines += [f"unexpected {n}" for n in sorted(found.keys() - expected.keys())]
  for name in sorted(expected.keys() & found.keys()):
    a, b = expected[name], found[name]
    if a.dtype != b.dtype or a.shape != b.shape:
      lines.append(f"{name}: expected {a.dtype} {list(a.shape)}, found {b.dtype} {list(b.shape)}")
    elif not torch.equal(bytes_of(a), bytes_of(b)):
      lines.append(f"{name}: {int((a != b).sum())} of {a.numel()} values differ")
  return lines
