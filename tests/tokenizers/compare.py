#!/usr/bin/env python3
"""Holds the program's tokenizer against `tokenizers`: the same ids, and the same text back. One thread each.

    compare.py DRIVER [--mega-bytes 12] [--only FAMILY...] [--smollm2 tokenizer.json]
"""
import argparse
import array
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer

import families
import texts

SEPARATOR = b"\xff"
TRAINED = 8000


def run(driver, path, all_texts, add_special, skip_special, work):
  """ids of each text, what they decode to, and the seconds of loading, encoding and decoding."""
  source, ids, decoded = work / "texts", work / "ids", work / "decoded"
  source.write_bytes(SEPARATOR.join(t.encode() for t in all_texts))
  out = subprocess.run([driver, path, source, str(int(add_special)), str(int(skip_special)), ids, decoded],
                       check=True, stdout=subprocess.PIPE, text=True).stdout.split()
  found, rows = array.array("i", ids.read_bytes()), [[]]
  for id in found:
    rows.append([]) if id == -1 else rows[-1].append(id)
  return rows, [t.decode() for t in decoded.read_bytes().split(SEPARATOR)], [float(x) for x in out[:3]]


def first_difference(text, ours, theirs, tokenizer):
  at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
  show = lambda ids: [tokenizer.id_to_token(i) for i in ids[max(0, at - 3):at + 5]]
  return f"text {text[:80]!r}, token {at}: ours {show(ours)}, theirs {show(theirs)}"


def compare(driver, name, path, all_texts, work):
  """-> how many texts differ."""
  start = time.perf_counter()
  tokenizer = Tokenizer.from_file(str(path))
  loaded = time.perf_counter() - start
  wrong, size = 0, sum(len(t.encode()) for t in all_texts)
  for add_special, skip_special in ((True, False), (False, True)):
    start = time.perf_counter()
    theirs = [tokenizer.encode(t, add_special_tokens=add_special).ids for t in all_texts]
    encoded = time.perf_counter()
    back = [tokenizer.decode(ids, skip_special_tokens=skip_special) for ids in theirs]
    decoded = time.perf_counter()
    ours, our_back, seconds = run(driver, path, all_texts, add_special, skip_special, work)
    if len(ours) != len(theirs):
      sys.exit(f"{name}: expected {len(theirs)} texts, found {len(ours)}")
    for text, a, b in zip(all_texts, ours, theirs):
      if a != b:
        wrong += 1
        if wrong <= 5:
          print(f"{name}: {first_difference(text, a, b, tokenizer)}")
    for text, ids, a, b in zip(all_texts, theirs, our_back, back):
      if a != b:
        wrong += 1
        if wrong <= 5:
          at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
          print(f"{name}: decoded {text[:60]!r}: ours {a[max(0, at - 10):at + 20]!r}, theirs {b[max(0, at - 10):at + 20]!r}")
  tokens = sum(map(len, theirs))
  print(f"{name:12} {len(all_texts)} texts, {size / 1e6:.1f} MB, {tokens} tokens, {wrong} differ; MB/s encode "
        f"{size / 1e6 / seconds[1]:.1f} ({size / 1e6 / (encoded - start):.1f}), decode {size / 1e6 / seconds[2]:.1f} "
        f"({size / 1e6 / (decoded - encoded):.1f}), load {seconds[0]:.2f} s ({loaded:.2f})", flush=True)
  return wrong


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("driver")
  parser.add_argument("--mega-bytes", type=float, default=12)
  parser.add_argument("--only", nargs="*")
  parser.add_argument("--smollm2", type=pathlib.Path)
  arguments = parser.parse_args()
  all_texts = texts.texts(arguments.mega_bytes)
  # Training takes the time; a part of the texts is enough for tokens of every kind.
  training = texts.texts(1.5, seed=2)
  wrong = 0
  print("in parentheses: tokenizers")
  with tempfile.TemporaryDirectory() as folder:
    work = pathlib.Path(folder)
    paths = {"SmolLM2": arguments.smollm2} if arguments.smollm2 else {}
    for family in families.FAMILIES:
      if not arguments.only or family.__name__ in arguments.only:
        paths[family.__name__] = work / f"{family.__name__}.json"
        family(training, TRAINED).save(str(paths[family.__name__]))
    for name, path in paths.items():
      wrong += compare(arguments.driver, name, path, all_texts + texts.all_characters(), work)
  sys.exit(wrong != 0)


if __name__ == "__main__":
  main()
