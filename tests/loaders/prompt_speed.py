#!/usr/bin/env python3
"""The speed of a prompt and of single tokens on two cores, over that of transformers in float32 in the same run.

  prompt_speed.py TWOFOUR CHECKPOINT|SHAPE [--rounds N] [--least RATIO]

SHAPE is a model of random weights that is made here: qwen3_next or deepseek_v4, whose tokens are timed, too. Both sides take
turns. Ours is `eval` on two windows more than one, so that the program's start does not count; it computes the loss of each
token, too. Tokens are those of `generate`, the longer text less the shorter one. The figure is the ratio of the medians. Ends with
1 where it is below --least.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

LENGTH, WINDOWS, FEW, MANY = 1024, 3, 8, 72
# Narrower than what is published, with all kinds of layers and the published sizes of heads.
COMMON = dict(hidden_size=1024, vocab_size=8192, num_hidden_layers=4, max_position_embeddings=4096, num_experts_per_tok=4,
              moe_intermediate_size=512, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)
SHAPES = {
    "qwen3_next": dict(num_attention_heads=8, num_key_value_heads=2, head_dim=256, linear_num_key_heads=8,
                       linear_num_value_heads=16, linear_key_head_dim=128, linear_value_head_dim=128, num_experts=32,
                       shared_expert_intermediate_size=512),
    "deepseek_v4": dict(num_attention_heads=8, head_dim=512, qk_rope_head_dim=64, q_lora_rank=512, o_groups=4, o_lora_rank=256,
                        n_routed_experts=32, n_shared_experts=1, index_n_heads=16, index_head_dim=128, index_topk=128,
                        compress_ratios=[0, 4, 128, 4], num_hash_layers=1, sliding_window=128, num_nextn_predict_layers=0),
}


def make_model(shape, folder):
  """A model of a shape with random weights, and a tokenizer of bytes."""
  torch.manual_seed(0)
  config = transformers.AutoConfig.for_model(shape, **COMMON, **SHAPES[shape])
  transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
  alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i + 3 for i, c in enumerate(alphabet)}, []))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  tokenizer.save(str(pathlib.Path(folder, "tokenizer.json")))


@torch.no_grad()
def time_tokens(model, count):
  """Seconds of a prompt of four tokens and so many tokens one by one."""
  start = time.monotonic()
  out = model(input_ids=torch.tensor([[4, 5, 6, 7]]), use_cache=True)
  for _ in range(count - 1):
    out = model(input_ids=out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
  return time.monotonic() - start


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("twofour")
  parser.add_argument("checkpoint")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--least", type=float, default=0.5)
  o = parser.parse_args()
  torch.set_num_threads(2)
  with tempfile.TemporaryDirectory() as folder:
    checkpoint = o.checkpoint
    if checkpoint in SHAPES:
      checkpoint = str(pathlib.Path(folder, "model"))
      make_model(o.checkpoint, checkpoint)
    return measure(o, checkpoint, pathlib.Path(folder, "tokens.safetensors"))


def measure(o, checkpoint, file):
  model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
  torch.manual_seed(0)
  tokens = torch.randint(0, model.config.vocab_size, (WINDOWS, LENGTH))
  save_file({"tokens": tokens}, file)

  def run(*words):
    return subprocess.run([o.twofour, *words, "-j", "2", "-q", "--json"], check=True, capture_output=True, text=True).stdout

  def ours(windows):
    return json.loads(run("eval", checkpoint, "--tokens", str(file), "--limit", str(windows)))["seconds"]

  def our_tokens(count):
    start = time.monotonic()
    run("generate", checkpoint, "--prompt", "four", "--max-tokens", str(count))
    return time.monotonic() - start

  def theirs():
    start = time.monotonic()
    with torch.no_grad():
      model(input_ids=tokens[:1], use_cache=True)
    return time.monotonic() - start

  def rounds(*timed):
    """The medians of what is timed by turns."""
    return [statistics.median(times) for times in zip(*([time_one() for time_one in timed] for _ in range(o.rounds)))]

  def report(what, own, other):
    print(f"{what}: {1000 * own:.1f} ms, transformers {1000 * other:.1f} ms, speed {other / own:.2f} of theirs", flush=True)
    return other / own

  theirs()
  one, all_of_them, other = rounds(lambda: ours(1), lambda: ours(WINDOWS), theirs)
  ratios = [report(f"prompt of {LENGTH} tokens", (all_of_them - one) / (WINDOWS - 1), other)]
  if o.checkpoint in SHAPES:
    few, many, their_few, their_many = rounds(lambda: our_tokens(FEW), lambda: our_tokens(MANY),
                                              lambda: time_tokens(model, FEW), lambda: time_tokens(model, MANY))
    ratios.append(report("a token", (many - few) / (MANY - FEW), (their_many - their_few) / (MANY - FEW)))
  return 0 if min(ratios) >= o.least else 1


if __name__ == "__main__":
  raise SystemExit(main())
