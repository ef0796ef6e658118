"""Writes small checkpoints in the formats that twofour reads, and damaged copies of them; standard library only.

A tensor is (dtype, shape, bytes). All bytes come from a generator with a fixed seed.
"""
import json
import math
import pathlib
import random
import shutil
import struct

# --- Files --------------------------------------------------------------------------------------------------


def write_safetensors(path, tensors, metadata={"format": "pt"}):
  header, data = {"__metadata__": metadata}, b""
  for name, (dtype, shape, content) in tensors.items():
    header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
    data += content
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)
  pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_header(path):
  """The header and where the data begin."""
  with open(path, "rb") as file:
    length = struct.unpack("<Q", file.read(8))[0]
    return json.loads(file.read(length)), 8 + length


def read_safetensors(path):
  header, begin = read_header(path)
  header.pop("__metadata__", None)
  data = pathlib.Path(path).read_bytes()[begin:]
  return {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in header.items()}


def write_json(path, value):
  pathlib.Path(path).write_text(json.dumps(value, indent=2))


def write_checkpoint(directory, tensors, config, shards=1, index=True, files=()):
  """The tensors dealt to `shards` files in order, config.json, an index and `files` (name to text or object)."""
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True)
  names, size = list(tensors), -(-len(tensors) // shards)
  weight_map = {}
  for i in range(shards):
    file = f"model-{i + 1:05}-of-{shards:05}.safetensors" if index else "model.safetensors"
    part = {n: tensors[n] for n in names[i * size:(i + 1) * size]}
    write_safetensors(directory / file, part)
    weight_map.update({n: file for n in part})
  if index:
    total = sum(len(t[2]) for t in tensors.values())
    write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
  if config is not None:
    write_json(directory / "config.json", config)
  for name, content in dict(files).items():
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
      (directory / name).write_bytes(content)
    elif isinstance(content, str):
      (directory / name).write_text(content)
    else:
      write_json(directory / name, content)


# --- Numbers ------------------------------------------------------------------------------------------------
def table(choose):
  return bytes(choose(b) for b in range(256))


# High bytes of a random number: any sign, exponents that ordinary weights have.
BF16_HIGH = table(lambda b: b & 0x80 | 0x3A + b % 4)
FP16_HIGH = table(lambda b: b & 0x80 | 0x14 + b % 20)
E4M3_NO_NAN = table(lambda b: b ^ 1 if b & 0x7F == 0x7F else b)
BLOCK_SCALE = table(lambda b: b % 0x7F)


def interleave_bytes(*planes):
  out = bytearray(len(planes) * len(planes[0]))
  for i, plane in enumerate(planes):
    out[i::len(planes)] = plane
  return out


def f32(*values):
  return struct.pack(f"<{len(values)}f", *values)


class Maker:
  """Tensors of random numbers; a maker with the same seed makes the same ones."""

  def __init__(self, seed):
    self.random = random.Random(seed)

  def bytes(self, count, translation=None):
    raw = self.random.randbytes(count)
    return raw.translate(translation) if translation else raw

  def floats(self, dtype, *shape):
    """Weights with what quantizers find hard: a block of zeros, one of -0, tiny ones, an outlier."""
    count = 1
    for n in shape:
      count *= n
    if dtype == "F16":
      planes = [self.bytes(count), self.bytes(count, FP16_HIGH)]
    else:
      low = [self.bytes(count), self.bytes(count)] if dtype == "F32" else []
      planes = low + [self.bytes(count), self.bytes(count, BF16_HIGH)]
    out, width = interleave_bytes(*planes), len(planes)
    blocks = count // 16
    if blocks >= 8:
      at = lambda block: slice(block * 16 * width, (block + 1) * 16 * width)
      chosen = self.random.sample(range(blocks), 4)
      out[at(chosen[0])] = bytes(16 * width)
      out[at(chosen[1])] = (bytes(width - 1) + b"\x80") * 16
      tiny = b"\x01\x00" if dtype == "F16" else bytes(width - 2) + b"\x01\x2c"
      out[at(chosen[2])] = tiny * 16
      large = b"\x00\x4c" if dtype == "F16" else bytes(width - 2) + b"\x80\x3f"
      out[chosen[3] * 16 * width:chosen[3] * 16 * width + width] = large
    return dtype, shape, bytes(out)

  def nvfp4(self, n, k, global_scale=0.25, scalar=()):
    """Suffix to tensor, in ModelOpt's names; `scalar` is the shape of the global scale."""
    return {".weight": ("U8", (n, k // 2), self.bytes(n * k // 2)),
            ".weight_scale": ("F8_E4M3", (n, k // 16), self.bytes(n * k // 16, BLOCK_SCALE)),
            ".weight_scale_2": ("F32", scalar, f32(global_scale))}

  def compressed(self, n, k, divisor=4.0):
    return {".weight_packed": ("U8", (n, k // 2), self.bytes(n * k // 2)),
            ".weight_scale": ("F8_E4M3", (n, k // 16), self.bytes(n * k // 16, BLOCK_SCALE)),
            ".weight_global_scale": ("F32", (1,), f32(divisor))}

  def nvfp4_stack(self, e, n, k, k_outer, scalar):
    shape = lambda width: (e, width, n) if k_outer else (e, n, width)
    count = 1
    for size in scalar:
      count *= size
    return {"": ("U8", shape(k // 2), self.bytes(e * n * k // 2)),
            "_weight_scale": ("F8_E4M3", shape(k // 16), self.bytes(e * n * k // 16, BLOCK_SCALE)),
            "_weight_scale_2": ("F32", scalar, f32(*[0.5 + i for i in range(count)]))}

  def fp8(self, n, k, scale=".weight_scale", dtype="F32", granularity="row"):
    rows, cols = {"tensor": (1, 1), "row": (n, 1), "block": (-(-n // 128), -(-k // 128))}[granularity]
    shape = () if granularity == "tensor" else (rows, cols)
    return {".weight": ("F8_E4M3", (n, k), self.bytes(n * k, E4M3_NO_NAN)),
            scale: (dtype, shape, self.scales(dtype, rows * cols))}

  def scales(self, dtype, count):
    """Positive multipliers of about 2^-9 to 2^-3."""
    if dtype in ("F8_E8M0", "U8"):
      return bytes(self.random.randrange(118, 124) for _ in range(count))
    values = f32(*[self.random.uniform(1, 2) * 2.0**-self.random.randrange(4, 10) for _ in range(count)])
    return values if dtype == "F32" else bytes(interleave_bytes(values[2::4], values[3::4]))

  def mxfp4(self, shape, codes, scale, dtypes, spread=6):
    """Codes [..., K/2] and E8M0 scales [..., K/32]; blocks `spread` exponents apart at most."""
    *outer, k = shape
    count = 1
    for n in shape:
      count *= n
    exponents = bytes(self.random.randrange(116, 116 + spread) for _ in range(count // 32))
    return {codes: (dtypes[0], (*outer, k // 2), self.bytes(count // 2)),
            scale: (dtypes[1], (*outer, k // 32), exponents)}


def under(prefix, parts):
  return {prefix + suffix: tensor for suffix, tensor in parts.items()}


# --- Models -------------------------------------------------------------------------------------------------
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.gate"],
            "producer": {"name": "modelopt", "version": "0.45.0"},
            "config_groups": {"group_0": {"targets": ["Linear"],
                                          "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}}}}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head", "re:.*mlp\\.gate$"],
              "config_groups": {"group_0": {"targets": ["Linear"], "format": "nvfp4-pack-quantized", "weights": {
                  "num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16,
                  "dynamic": False}}}}
SIDE_FILES = {"generation_config.json": "{}", "tokenizer.json": "{}", "tokenizer_config.json": {"model_max_length": 512},
              "chat_template.jinja": "{{ messages }}", "modeling_mine.py": "pass\n", "assets/deep/note.txt": "kept\n",
              "pytorch_model.bin": "left", "model.gguf": "left", ".cache/x": "left", ".gitattributes": "*.bin lfs\n"}


def model_config(model_type, hidden, intermediate, layers=1, experts=0, **more):
  config = {"model_type": model_type, "architectures": ["SomeForCausalLM"], "hidden_size": hidden,
            "intermediate_size": intermediate, "num_hidden_layers": layers, "hidden_act": "silu", "vocab_size": 64,
            "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "bfloat16", "tie_word_embeddings": False}
  if experts:
    config.update(moe_intermediate_size=intermediate, num_experts=experts, num_local_experts=experts,
                  n_routed_experts=experts, num_experts_per_tok=2, norm_topk_prob=True)
  config.update(more)
  return config


def frame(m, hidden, layers=1, router=0, prefix="model."):
  """What every model has beside its linears."""
  t = {prefix + "embed_tokens.weight": m.floats("BF16", 64, hidden), "lm_head.weight": m.floats("BF16", 64, hidden),
       prefix + "norm.weight": m.floats("BF16", hidden)}
  for layer in range(layers):
    t[f"{prefix}layers.{layer}.input_layernorm.weight"] = m.floats("BF16", hidden)
    if router:
      t[f"{prefix}layers.{layer}.mlp.gate.weight"] = m.floats("BF16", router, hidden)
  return t


def dense_shapes(hidden, intermediate):
  return {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden // 2, hidden),
          "self_attn.v_proj": (hidden // 2, hidden), "self_attn.o_proj": (hidden, hidden),
          "mlp.gate_proj": (intermediate, hidden), "mlp.up_proj": (intermediate, hidden),
          "mlp.down_proj": (hidden, intermediate)}


def dense(make, seed, hidden=96, intermediate=160, layers=2, prefix="model."):
  """A dense model; make(maker, name, n, k) gives a linear's tensors by suffix."""
  m = Maker(seed)
  t = frame(m, hidden, layers, prefix=prefix)
  for layer in range(layers):
    for name, (n, k) in dense_shapes(hidden, intermediate).items():
      t.update(under(f"{prefix}layers.{layer}.{name}", make(m, name, n, k)))
  return t


def experts(make, seed, hidden=64, intermediate=48, count=4, layers=1, block="mlp.experts", names=("gate_proj", "up_proj", "down_proj"),
            shared=None, prefix="model."):
  m = Maker(seed)
  t = frame(m, hidden, layers, count if block == "mlp.experts" else 0, prefix)
  for layer in range(layers):
    places = [f"{prefix}layers.{layer}.{block}.{e}." for e in range(count)]
    if shared:
      places.append(f"{prefix}layers.{layer}.{shared}.")
    for place in places:
      for name in names:
        n, k = (hidden, intermediate) if name in ("down_proj", "w2") else (intermediate, hidden)
        t.update(under(place + name, make(m, name, n, k)))
    for name in ("self_attn.q_proj", "self_attn.o_proj"):
      t.update(under(f"{prefix}layers.{layer}.{name}", make(m, name, hidden, hidden)))
  return t


def float_linear(dtype):
  return lambda m, name, n, k: {".weight": m.floats(dtype, n, k)}


def stacks(parts, seed, e, hidden, count=1, bias=False, intermediate=32, block="mlp.experts"):
  """parts(maker, name, n, k) gives the tensors of one stack by suffix."""
  m = Maker(seed)
  t = frame(m, hidden, 1, e)
  place = f"model.layers.0.{block}."
  t.update(under(place + "gate_up_proj", parts(m, "gate_up_proj", 2 * intermediate, hidden)))
  t.update(under(place + "down_proj", parts(m, "down_proj", hidden, intermediate)))
  if bias:
    t[place + "gate_up_proj_bias"] = m.floats("BF16", e, 2 * intermediate)
    t[place + "down_proj_bias"] = m.floats("BF16", e, hidden)
  t["model.layers.0.self_attn.o_proj.weight"] = m.floats("BF16", hidden, hidden)
  return t


def float_stack(dtype, e, k_outer):
  return lambda m, name, n, k: {"": m.floats(dtype, e, *((k, n) if k_outer else (n, k)))}


# --- Damage -------------------------------------------------------------------------------------------------
class Copy:
  """A copy of a directory to damage."""

  def __init__(self, source, to):
    shutil.copytree(source, to)
    self.path = pathlib.Path(to)
    self.shards = sorted(p.name for p in self.path.glob("*.safetensors"))

  def find(self, ending):
    """The file of the first tensor whose name ends so, and that name."""
    for shard in self.shards:
      for name in read_header(self.path / shard)[0]:
        if name.endswith(ending):
          return self.path / shard, name
    raise LookupError(ending)

  def tensor(self, ending, change):
    """change(name, tensor) gives the tensors to stand in its place, by name."""
    file, name = self.find(ending)
    out = {}
    for n, t in read_safetensors(file).items():
      out.update(change(n, t) if n == name else {n: t})
    write_safetensors(file, out, read_header(file)[0]["__metadata__"])

  def put_bytes(self, ending, at, content):
    """Changes bytes of a tensor in place."""
    file, name = self.find(ending)
    header, begin = read_header(file)
    with open(file, "r+b") as f:
      f.seek(begin + header[name]["data_offsets"][0] + at)
      f.write(content)

  def json(self, file, change):
    value = json.loads((self.path / file).read_text())
    changed = change(value)
    write_json(self.path / file, value if changed is None else changed)

  def file_bytes(self, file, change):
    path = self.path / file
    path.write_bytes(change(path.read_bytes()))


# --- Whole models --------------------------------------------------------------------------------------------
def golden_weights(name, shape):
  """The BF16 weights that tests/loaders/logits.py gives a tensor by a hash of its name and of each place."""
  seed, mask = 0xCBF29CE484222325, (1 << 64) - 1
  for byte in name.encode():
    seed = (seed ^ byte) * 0x100000001B3 & mask
  scale, offset = 1.0, 0.0
  if name.endswith("norm.weight"):
    scale, offset = 0.5, 1.0
  elif len(shape) < 2 or name.endswith("_bias"):
    scale = 0.25 if "correction" in name else 1.0
  elif "embed" not in name:
    fan = shape[1] if name.endswith(("experts.gate_up_proj", "experts.down_proj")) else shape[-1]
    scale = 2.0**(1 - math.ceil(math.log2(fan) / 2))
  words = [struct.pack("<f", (step - 64) / 64 * scale + offset)[2:] for step in range(128)]
  out = bytearray()
  for i in range(math.prod(shape)):
    x = i * 0x9E3779B97F4A7C15 + seed & mask
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    out += words[(x ^ x >> 31) >> 57]
  return "BF16", tuple(shape), bytes(out)


def letter_tokenizer():
  """A tokenizer.json of 48 tokens, the letters from A on: byte pair encoding on bytes without a merge."""
  level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
  return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
          "post_processor": None, "decoder": level,
          "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                    "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                    "vocab": {chr(ord("A") + i): i for i in range(48)}, "merges": []}}


def write_imatrix(path, entries):
  """An importance matrix of llama.cpp in GGUF: name to sums of squares, a list an expert, and counts."""
  text = lambda t: struct.pack("<Q", len(t)) + t.encode()
  u32 = lambda *numbers: struct.pack(f"<{len(numbers)}I", *numbers)
  tensors = []
  for name, (sums, counts) in entries.items():
    k = len(sums[0])
    tensors.append((f"{name}.in_sum2", (k,) if len(sums) == 1 else (k, len(sums)), [x for row in sums for x in row]))
    tensors.append((f"{name}.counts", (1, len(sums)), counts))
  head = b"GGUF" + u32(3) + struct.pack("<QQ", len(tensors), 4) + text("general.type") + u32(8) + text("imatrix")
  head += text("imatrix.datasets") + u32(9, 8) + struct.pack("<Q", 1) + text("letters")
  head += text("imatrix.chunk_count") + u32(4, 512) + text("imatrix.chunk_size") + u32(4, 512)
  data = b""
  for name, extents, numbers in tensors:
    head += text(name) + u32(len(extents)) + struct.pack(f"<{len(extents)}Q", *extents) + u32(0) + struct.pack("<Q", len(data))
    data += f32(*numbers)
    data += bytes(-len(data) % 32)
  pathlib.Path(path).write_bytes(head + bytes(-len(head) % 32) + data)
