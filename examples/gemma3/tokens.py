#!/usr/bin/env python3
"""Windows of tokens from four books of Debian, as ../smollm2/texts.py makes them, each behind <bos>, without which Gemma reads badly.

  tokens.py CHECKPOINT BOOKS calibration|evaluation COUNT OUT
"""
import pathlib
import sys

from safetensors.torch import save_file
from tokenizers import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "smollm2"))
import texts  # noqa: E402


def main():
  if len(sys.argv) != 6:
    raise SystemExit(__doc__)
  checkpoint, books, kind, count, out = sys.argv[1:]
  tokenizer = Tokenizer.from_file(str(pathlib.Path(checkpoint, "tokenizer.json")))
  tokens = texts.windows(tokenizer, books, kind, int(count))
  tokens[:, 0] = tokenizer.token_to_id("<bos>")
  save_file({"tokens": tokens.contiguous()}, out)


if __name__ == "__main__":
  main()
