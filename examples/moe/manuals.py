#!/usr/bin/env python3
"""Tokens of books and manuals of Debian 12 to train on, uint16 [tokens] in a .npy file; a document ends with <|endoftext|>.

  manuals.py CHECKPOINT BOOKS OUT

BOOKS holds a folder for each package of PACKAGES, unpacked by dpkg -x. The evaluation books of ../smollm2/texts.py are not among them.
"""
import argparse
import gzip
import hashlib
import json
import pathlib
import random
import re
import sys

import numpy as np
from tokenizers import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "smollm2"))
from texts import EVALUATION, Page  # noqa: E402

DOC = "usr/share/doc/"
PACKAGES = {
    "debian-handbook": [DOC + "debian-handbook/html/en-US/*.html"],
    "jargon-text": [DOC + "jargon-text/jargon.txt.gz"],
    "debian-policy": [DOC + "debian-policy/*.txt*", DOC + "debian-policy/fhs/*.txt*"],
    "debian-history": [DOC + "debian-history/docs/*.html"],
    "debian-faq": [DOC + "debian/FAQ/*.html"],
    "doc-debian": [DOC + "debian/**/*.txt*"],
    "debian-edu-doc-en": [DOC + "debian-edu-doc-en/*.html"],
    "debian-kernel-handbook": [DOC + "**/*.html"],
    "developers-reference": ["usr/share/developers-reference/*.html"],
    "maint-guide": [DOC + "maint-guide/html/*.en.html", DOC + "maint-guide/**/*.en.txt*"],
    "installation-guide-amd64": [DOC + "installation-guide-amd64/en/*.html"],
    "aptitude-doc-en": [DOC + "aptitude/html/en/*.html"],
    "linux-doc-6.1": [DOC + "linux-doc-6.1/html/_sources/**/*.txt"],
    "python3.11-doc": [DOC + "python3.11/html/_sources/**/*.txt"],
    "python-sqlalchemy-doc": [DOC + "python-sqlalchemy-doc/rst/**/*.rst"],
    "python-django-doc": [DOC + "python-django-doc/html/[a-z]*/**/*.html"],
    "cmake-doc": [DOC + "cmake-data/html/_sources/**/*.txt"],
    "llvm-15-doc": [DOC + "llvm-15-doc/html/_sources/*.txt", DOC + "llvm-15-doc/html/_sources/[a-zB-Z]*/**/*.txt"],
    "clang-15-doc": [DOC + "clang-15/html/_sources/**/*.txt"],
    "postgresql-doc-15": [DOC + "postgresql-doc-15/html/*.html"],
    "sqlite3-doc": [DOC + "sqlite3/*.html"],
    "git-doc": [DOC + "git-doc/**/*.txt"],
    "apache2-doc": [DOC + "apache2-doc/manual/en/**/*.html*"],
    "perl-doc": ["usr/share/perl/*/pod/*.pod"],
    "vim-doc": [DOC + "vim/html/*.html"],
    "zsh-doc": [DOC + "zsh-common/html/*.html"],
    "exim4-doc-html": [DOC + "exim4-doc-html/spec_html/*.html"],
    "octave-doc": [DOC + "octave/octave.html/*.html"],
    "maxima-doc": [DOC + "maxima-doc/html/maxima_*.html"],
    "gap-doc": ["usr/share/gap/doc/ref/*.html"],
    "libreoffice-help-en-us": ["usr/share/libreoffice/help/en-US/text/**/*.html"],
}
SHORTEST = 400  # characters of a document: less is a redirection or an index
EACH = 2_600_000  # bytes of a package: no manual outweighs the books
SEED = 20261128


def reflowed(text):
  """Plain text, each paragraph that is not indented in one line."""
  paragraphs = re.split(r"\n\s*\n", text.replace("\t", "  "))
  return "\n\n".join(p.strip("\n") if re.search(r"^\s", p, re.M) else " ".join(p.split()) for p in paragraphs)


def read_document(path):
  data = path.read_bytes()
  if path.suffix == ".gz":
    data = gzip.decompress(data)
  text = data.decode("utf-8", "replace")
  return Page(text).text() if ".html" in path.name else reflowed(text)


def documents(books):
  """(package, text) of all packages, each text once, shuffled."""
  seen, found, order = set(), [], random.Random(SEED)
  for package, patterns in PACKAGES.items():
    folder = pathlib.Path(books, package)
    files = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
    if not files:
      raise SystemExit(f"{folder}: expected {' or '.join(patterns)}, found nothing; unpack the package there with dpkg -x")
    order.shuffle(files)
    left = EACH
    for file in files:
      if left <= 0:
        break
      text = read_document(file)
      data = text.encode()
      digest = hashlib.sha256(data).digest()
      if len(text) >= SHORTEST and len(data) <= left and digest not in seen:
        seen.add(digest)
        found.append((package, text))
        left -= len(data)
  order.shuffle(found)
  return found


def encode(tokenizer, texts):
  end = tokenizer.token_to_id("<|endoftext|>")
  if end is None or tokenizer.get_vocab_size() > 2**16:
    raise SystemExit(f"expected <|endoftext|> in a vocabulary of at most 65536, found {tokenizer.get_vocab_size()} tokens")
  some = 256  # documents at once: an encoding is some 50 times as large as its tokens
  return np.concatenate([np.array(encoding.ids + [end], np.uint16) for first in range(0, len(texts), some)
                         for encoding in tokenizer.encode_batch(texts[first:first + some])])


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("checkpoint", help="folder with tokenizer.json")
  parser.add_argument("books", help="folder with a folder for each package")
  parser.add_argument("out", type=pathlib.Path, help=".npy file to write")
  parser.add_argument("--most", type=int, default=15_000_000, help="tokens at most (default: %(default)s)")
  o = parser.parse_args()
  assert not PACKAGES.keys() & EVALUATION.keys()
  found = documents(o.books)
  tokens = encode(Tokenizer.from_file(str(pathlib.Path(o.checkpoint, "tokenizer.json"))), [text for _, text in found])
  np.save(o.out, tokens[:o.most])
  sizes = {package: sum(len(t.encode()) for p, t in found if p == package) for package in PACKAGES}
  print(json.dumps({"bytes": sum(sizes.values()), "tokens": len(tokens), "kept": min(len(tokens), o.most),
                    "sha256": hashlib.sha256(tokens[:o.most].tobytes()).hexdigest(), "bytes_of": sizes}, indent=2))


if __name__ == "__main__":
  main()
