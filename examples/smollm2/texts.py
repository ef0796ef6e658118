"""Windows of tokens from four books of Debian, for calibration and for evaluation.

  debian-handbook 11.20220922 (GPL-2+ or CC-BY-SA-3.0), jargon-text 4.4.7-4.1 (public domain): calibration
  anarchism 15.3-3 (GPL-2), debian-reference-en 2.100 (GPL-2+): evaluation
"""
import argparse
import gzip
import hashlib
import html.parser
import pathlib
import re

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

CALIBRATION = {"debian-handbook": "usr/share/doc/debian-handbook/html/en-US/*.html",
               "jargon-text": "usr/share/doc/jargon-text/jargon.txt.gz"}
EVALUATION = {"anarchism": "usr/share/doc/anarchism/html/sec[A-J][0-9]*.html",
              "debian-reference-en": "usr/share/debian-reference/ch*.en.html"}
LENGTH = 1024

# First digits of the SHA-256 of the tokens of so many windows, int64.
DIGESTS = {("calibration", 32): "64274f19edf42718", ("calibration", 128): "72851a95248f1f51",
           ("evaluation", 16): "d45704ca0c0fff01"}


class Page(html.parser.HTMLParser):
  """The text of a page, a line for each block."""
  UNSEEN = {"script", "style", "head"}
  BLOCKS = {"p", "div", "li", "br", "tr", "h1", "h2", "h3", "h4", "pre", "dt", "dd", "table"}

  def __init__(self, text):
    super().__init__(convert_charrefs=True)
    self.parts, self.hidden = [], 0
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    if tag in self.UNSEEN:
      self.hidden += 1
    if tag in self.BLOCKS:
      self.parts.append("\n")

  def handle_endtag(self, tag):
    if tag in self.UNSEEN:
      self.hidden -= 1

  def handle_data(self, data):
    if not self.hidden:
      self.parts.append(data)

  def text(self):
    one_space = re.sub("[ \t\xa0]+", " ", "".join(self.parts))
    return re.sub(" ?\n[ \n]*\n ?", "\n\n", one_space).strip()


def read_book(folder, pattern):
  """The text of a package unpacked by dpkg -x in folder."""
  files = sorted(pathlib.Path(folder).glob(pattern))
  if not files:
    raise SystemExit(f"{folder}: expected {pattern}, found nothing; unpack the package there with dpkg -x")
  texts = []
  for file in files:
    data = file.read_bytes()
    if file.suffix == ".gz":
      paragraphs = re.split(r"\n\s*\n", gzip.decompress(data).decode("utf-8", "replace"))
      texts.append("\n\n".join(" ".join(p.split()) for p in paragraphs))
    else:
      texts.append(Page(data.decode("utf-8", "replace")).text())
  return "\n\n".join(texts)


def windows(tokenizer, folder, kind, count):
  """Tokens [count, LENGTH]: as many windows of each book, evenly spaced through it, the first book's first."""
  out = []
  books = {"calibration": CALIBRATION, "evaluation": EVALUATION}[kind]
  for name, pattern in books.items():
    tokens = torch.tensor(tokenizer.encode(read_book(pathlib.Path(folder, name), pattern)).ids)
    share = count // len(books)
    for i in range(share):
      first = int((len(tokens) - LENGTH) * (i + 0.5) / share)
      out.append(tokens[first:first + LENGTH])
  out = torch.stack(out)
  digest = hashlib.sha256(out.numpy().tobytes()).hexdigest()[:16]
  if digest != DIGESTS.get((kind, count), digest):
    raise SystemExit(f"expected tokens of {kind} with SHA-256 {DIGESTS[kind, count]}, found {digest}: other books?")
  return out


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("checkpoint", help="folder with tokenizer.json")
  parser.add_argument("books", help="folder with a folder for each package, unpacked by dpkg -x")
  parser.add_argument("kind", choices=("calibration", "evaluation"))
  parser.add_argument("count", type=int, help="windows of 1024 tokens")
  parser.add_argument("out", help="tokens I64 [windows, 1024] in safetensors")
  parser.add_argument("--of", type=int, help="take them alternately from the books, evenly from so many windows")
  o = parser.parse_args()
  tokenizer = Tokenizer.from_file(str(pathlib.Path(o.checkpoint, "tokenizer.json")))
  tokens = windows(tokenizer, o.books, o.kind, o.of or o.count)
  if o.of:
    half = o.of // 2
    tokens = tokens[[i // 2 + half * (i % 2) for i in range(o.count)]]
  save_file({"tokens": tokens.contiguous()}, o.out)


if __name__ == "__main__":
  main()
