#!/usr/bin/env python3
"""Holds the program's tokenizer against `tokenizers` on random tokenizers: added tokens with all flags, normalizers, splits by
random expressions with every behavior, decoders, each on random short texts. What either refuses is counted.

    random_tokenizers.py DRIVER [--count 500] [--seed 0]
"""
import argparse
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

import compare

LETTERS = ["a", "b", " ", "é", "e\u0301", "_", "1", "▁", "\n", "-", "Z", "\u00a0"]
ATOMS = ["a", "b", r"\s", r"\S", r"\p{L}", r"[^\p{L}]", "[ab1]", r"[^\s\p{N}]", ".", "1", "-", r"\p{Lu}", "é", r"\d", "(?i:z)", "(a|b)", "(?:ab|a)", "[-_]"]
AROUND = ["(?=a)", "(?!\\S)", "(?<=a)", "(?<! )", "^", "$"]
REPEATS = ["", "", "", "*", "+", "?", "*?", "+?", "??", "++", "*+", "?+", "{2}", "{1,2}", "{,2}", "{2,}", "{1,3}?"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
SCHEMES = ["always", "first", "never"]


def expression(rng):
  branch = lambda: "".join(rng.choice(AROUND) if rng.random() < .15 else rng.choice(ATOMS) + rng.choice(REPEATS)
                           for _ in range(rng.randint(1, 3)))
  return "|".join(branch() for _ in range(rng.randint(1, 3)))


def some(rng, choices, most):
  return rng.sample(choices, rng.randint(0, most))


def replace(rng):
  pattern = {"String": rng.choice(LETTERS)} if rng.random() < .5 else {"Regex": expression(rng)}
  return {"type": "Replace", "pattern": pattern, "content": rng.choice(["", "-", "▁", "aa"])}


def split(rng):
  pattern = {"String": rng.choice(LETTERS)} if rng.random() < .2 else {"Regex": expression(rng)}
  return {"type": "Split", "pattern": pattern, "behavior": rng.choice(BEHAVIORS), "invert": rng.random() < .4}


def metaspace(rng):
  return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(SCHEMES), "split": rng.random() < .5}


def document(rng):
  word = lambda least, most: "".join(rng.choice(LETTERS) for _ in range(rng.randint(least, most)))
  tokens = list(dict.fromkeys(LETTERS + ["e", "\u0301"] + [word(2, 4) for _ in range(8)]))
  vocabulary = {token: id for id, token in enumerate(tokens)}
  merges = [[t[:k], t[k:]] for t in tokens for k in range(1, len(t))
            if t[:k] in vocabulary and t[k:] in vocabulary and rng.random() < .8]
  rng.shuffle(merges)
  added, size = {}, len(vocabulary)
  for content in (word(1, 3) for _ in range(rng.randint(0, 5))):
    if content in added:
      continue
    flags = {flag: rng.random() < .3 for flag in ("single_word", "lstrip", "rstrip")}
    added[content] = {"id": vocabulary.get(content, size), "content": content, **flags, "normalized": rng.random() < .5,
                      "special": rng.random() < .5}
    size += content not in vocabulary
  steps = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")] + [
    {"type": "Strip", "strip_left": rng.random() < .5, "strip_right": rng.random() < .5}, {"type": "Prepend", "prepend": "▁"}, replace(rng)]
  splits = [split(rng), split(rng), split(rng), {"type": "Digits", "individual_digits": rng.random() < .5}, metaspace(rng)]
  decoders = [metaspace(rng), replace(rng), {"type": "ByteFallback"}, {"type": "Fuse"},
              {"type": "Strip", "content": rng.choice("ab"), "start": rng.randint(0, 2), "stop": 0}]
  decoder = {"type": "Sequence", "decoders": some(rng, decoders, 3)} if rng.random() < .7 else None
  model = {"type": "BPE", "dropout": None, "unk_token": rng.choice([None, "_"]), "continuing_subword_prefix": None,
           "end_of_word_suffix": None, "fuse_unk": rng.random() < .5, "byte_fallback": False,
           "ignore_merges": rng.random() < .3, "vocab": vocabulary, "merges": merges}
  return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added.values()),
          "normalizer": {"type": "Sequence", "normalizers": some(rng, steps, 3)},
          "pre_tokenizer": {"type": "Sequence", "pretokenizers": some(rng, splits, 3)}, "post_processor": None,
          "decoder": decoder, "model": model}


def reference(path, texts, out):
  """What `tokenizers` makes of the texts, in a process of its own: Strip, for one, takes all memory for some. None: it fails."""
  child = os.fork()
  if child == 0:
    try:
      resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
      resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
      tokenizer = Tokenizer.from_file(str(path))
      ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
      out.write_text(json.dumps([ids, [tokenizer.decode(i, skip_special_tokens=True) for i in ids]]))
    except BaseException:  # a panic of Rust is no Exception
      os._exit(1)
    os._exit(0)
  return None if os.waitpid(child, 0)[1] else json.loads(out.read_text())


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("driver")
  parser.add_argument("--count", type=int, default=500)
  parser.add_argument("--seed", type=int, default=0)
  arguments = parser.parse_args()
  wrong = theirs_refused = ours_refused = 0
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "tokenizer.json"
    for seed in range(arguments.seed, arguments.seed + arguments.count):
      rng = random.Random(seed)
      described = document(rng)
      path.write_text(json.dumps(described))
      contents = [t["content"] for t in described["added_tokens"]]
      texts = ["".join(rng.choice(LETTERS + contents + ["中", "\u0301", "  "]) for _ in range(rng.randint(0, 25))) for _ in range(60)]
      result = reference(path, texts, pathlib.Path(folder) / "reference")
      if result is None:
        theirs_refused += 1
        continue
      ids, back = result
      try:
        ours, our_back, _ = compare.run(arguments.driver, path, texts, False, True, pathlib.Path(folder))
      except subprocess.CalledProcessError:
        ours_refused += 1
        continue
      differ = [t for t, *four in zip(texts, ours, ids, our_back, back) if four[0] != four[1] or four[2] != four[3]]
      if differ:
        wrong += 1
        parts = {key: described[key] for key in ("added_tokens", "normalizer", "pre_tokenizer", "decoder")}
        print(f"seed {seed}: {differ[0]!r} by {json.dumps(parts, ensure_ascii=False)}")
  compared = arguments.count - theirs_refused - ours_refused
  print(f"{compared} random tokenizers, {wrong} differ; beside them refused by tokenizers {theirs_refused}, by us {ours_refused}")
  # A comparison that leaves out most would say little.
  sys.exit(wrong != 0 or compared < arguments.count // 2)


if __name__ == "__main__":
  main()
