#!/usr/bin/env python3
"""What 2:4 costs: compresses SmolLM2 in many ways and measures each by `twofour eval`.

  cost.py DIR [--twofour BINARY] [--only NAME ...] [--evaluation WINDOW ...] [--limit WINDOWS] [--device DEVICE]

DIR holds bf16, calibration.safetensors and evaluation.safetensors, as calibrated.sh makes them, and for some rows
token_weights.safetensors (collect.py --token-weights) and fisher.safetensors (collect.py --fisher). Rows whose files are
missing are left out, and a model DIR/NAME that is there is taken as it is, whatever made it. Writes DIR/cost.json, from which
figures of the same model and windows are taken, DIR/cost.md and DIR/cost.html.
"""
import argparse
import collections
import hashlib
import html
import json
import math
import pathlib
import shlex
import shutil
import struct
import subprocess
import textwrap

MLP = "format: 1\nrules:\n  - {match: '*.mlp.*', to: nvfp4, pattern: '2:4'}\n  - {match: '*', to: nvfp4}\n"
ALL = ["--also", "*.self_attn.*"]
ONE_PASS, PAIRS, TWO_OF_FOUR = ["--sequential", "none"], ["--pattern", "4:8-paired"], ["--pattern", "2:4"]
GUIDED = ["--token-weights", "token_weights.safetensors"]

# Bits of a weight: a code and a sixteenth of a block scale; of 2:4 half of the codes and two bits for the place of each; of
# pairs, which no layout of twofour leaves out, two bits for both.
DENSE, PRUNED, PAIRED = 4.5, 3.5, 3.0

# A model: its name, what it is, bits of a weight where what is pruned is not stored, and the words that make it of bf16.
# Files among them are in DIR.
Row = collections.namedtuple("Row", "name what bits words")


def compress(*words, to="nvfp4"):
  return ["compress", "--to", to, *words, "--tokens", "calibration.safetensors"]


def share(percent, *words):
  """2:4 of so many bytes, the cheapest first."""
  return compress(*TWO_OF_FOUR, "--budget", str(percent / 100), "--budget-stats", "fisher.safetensors", *words)


def mlp(*words):
  return ["compress", "--recipe", "mlp.yaml", *words, "--tokens", "calibration.safetensors"]


ROWS = [
    Row("bf16", "BF16", 16, None),
    Row("nvfp4-max", "NVFP4, each weight for itself", DENSE, ["quantize"]),
    Row("nvfp4-mse", "NVFP4, block scales by squared error", DENSE, ["quantize", "--block-scale", "mse"]),
    Row("nvfp4-one-pass", "NVFP4 by statistics (GPTQ)", DENSE, compress(*ONE_PASS)),
    Row("nvfp4-sequential", "NVFP4, group by group", DENSE, compress()),
    Row("nvfp4-guided", "NVFP4, group by group, guided", DENSE, compress(*GUIDED)),
    Row("g8", "g8, group by group", DENSE, compress(*ALL, to="g8")),
    Row("v7-magnitude", "v7 by magnitude", PRUNED, ["convert", "--to", "v7", *ALL]),
    Row("wanda", "2:4, Wanda", PRUNED, compress(*TWO_OF_FOUR, *ONE_PASS, "--method", "wanda")),
    Row("joint", "2:4, joint", PRUNED, compress(*TWO_OF_FOUR, *ONE_PASS)),
    Row("guided", "2:4, joint, guided", PRUNED, compress(*TWO_OF_FOUR, *ONE_PASS, *GUIDED)),
    Row("sequential", "2:4, group by group", PRUNED, compress(*TWO_OF_FOUR)),
    Row("layer", "2:4, layer by layer", PRUNED, compress(*TWO_OF_FOUR, "--sequential", "layer")),
    Row("sequential-guided", "2:4, group by group, guided", PRUNED, compress(*TWO_OF_FOUR, *GUIDED)),
    Row("mlp", "2:4 of the MLPs, group by group", DENSE - 0.75, mlp()),
    Row("mlp-guided", "2:4 of the MLPs, group by group, guided", DENSE - 0.75, mlp(*GUIDED)),
    *[Row(f"share-{p}", f"2:4 of {p} % of the bytes, group by group", DENSE - p / 100, share(p)) for p in (25, 50, 75)],
    Row("share-50-guided", "2:4 of 50 % of the bytes, group by group, guided", DENSE - 0.5, share(50, *GUIDED)),
    Row("paired", "4:8-paired, joint", PAIRED, compress(*PAIRS, *ONE_PASS)),
]


class Twofour:
  """Runs the program in DIR."""

  def __init__(self, work, binary, device):
    found = shutil.which(binary)
    if found is None:
      raise SystemExit(f"--twofour: expected the program, found no {binary}")
    self.work, self.binary = work, pathlib.Path(found).resolve()
    self.device = ["--device", device] if device else []

  def run(self, words):
    """-> what it prints."""
    print(shlex.join(["twofour", *words]), flush=True)
    done = subprocess.run([self.binary, *words], cwd=self.work, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
      raise SystemExit(f"twofour {words[0]} failed with exit code {done.returncode}")
    return done.stdout

  def make(self, row):
    """Makes a model unless it is there; -> whether it is there then."""
    if row.words is None or (self.work / row.name / "twofour.json").exists():
      return True
    missing = [word for word in row.words if word.endswith(".safetensors") and not (self.work / word).exists()]
    if missing:
      print(f"{row.name}: left out, {self.work / missing[0]} is missing", flush=True)
      return False
    # Without statistics the others run on the CPU alone.
    print(self.run([*command(row), "--resume", *(self.device if row.words[0] == "compress" else [])]), end="")
    return True

  def measure(self, row, tokens):
    figures = json.loads(self.run(["eval", row.name, "--tokens", tokens, "--json", "-q", *self.device]))
    return {key: figures[key] for key in ("perplexity", "perplexity_error", "predictions", "device")}


def command(row):
  """The words that make a row, in DIR."""
  return [row.words[0], "bf16", row.name, *row.words[1:]]


def evaluation_file(work, windows, limit):
  """Chooses windows of evaluation.safetensors; -> a file of them in DIR, how many there are, and their digest."""
  data = (work / "evaluation.safetensors").read_bytes()
  size, = struct.unpack("<Q", data[:8])
  tensor = json.loads(data[8:8 + size])["tokens"]
  begin, end = (8 + size + offset for offset in tensor["data_offsets"])
  count = tensor["shape"][0]
  row = (end - begin) // count
  wanted = (list(range(count)) if windows is None else windows)[:limit]
  if not wanted or not all(0 <= w < count for w in wanted):
    raise SystemExit(f"--evaluation: expected windows 0 to {count - 1} of evaluation.safetensors, found {wanted}")
  tokens = b"".join(data[begin + w * row:begin + (w + 1) * row] for w in wanted)
  tensor |= {"shape": [len(wanted), *tensor["shape"][1:]], "data_offsets": [0, len(tokens)]}
  header = json.dumps({"tokens": tensor}).encode()
  header += b" " * (-len(header) % 8)
  digest = hashlib.sha256(tokens).hexdigest()[:16]
  name = f"evaluation-{digest}.safetensors"
  (work / name).write_bytes(struct.pack("<Q", len(header)) + header + tokens)
  return name, wanted, digest


def digest_of(model):
  """Tells a model from others of its name: twofour.json has the hash of each tensor."""
  manifest = model / "twofour.json"
  digest = hashlib.sha256()
  for file in [manifest] if manifest.exists() else sorted(model.glob("*.safetensors")):
    digest.update(file.read_bytes())
  return digest.hexdigest()[:16]


class Table:
  """The rows that have figures, with what they say."""
  HEAD = ["weights", "bits a weight", "perplexity", "over BF16", "against the best dense NVFP4"]

  def __init__(self, figures, windows, version):
    self.rows = [row for row in ROWS if row.name in figures]
    self.figures, self.windows, self.version = figures, windows, version
    self.dense = min((self.perplexity(row) for row in self.rows if row.bits == DENSE), default=None)

  def perplexity(self, row):
    return self.figures[row.name]["perplexity"]

  def ratio(self, row):
    return self.perplexity(row) / self.figures["bf16"]["perplexity"]

  def remark(self, row):
    """What a row with fewer bits is worth against the best one without pruning."""
    if row.bits >= DENSE or self.dense is None:
      return ""
    ratio, saved = self.perplexity(row) / self.dense, 1 - row.bits / DENSE
    verdict = "worse than dense" if ratio > 1 else "no worse than dense"
    return f"{verdict}: {ratio:.2f} times its perplexity, {100 * saved:.0f} % fewer bits"

  def cells(self, row):
    figure = self.figures[row.name]
    return [row.what, f"{row.bits:.4g}", f"{figure['perplexity']:.2f} ± {figure['perplexity_error']:.2f}",
            f"{self.ratio(row):.2f}", self.remark(row)]

  def conditions(self):
    some = self.figures["bf16"]
    devices = sorted({self.figures[row.name]["device"] for row in self.rows})
    windows = ", ".join(map(str, self.windows))
    return (f"Evaluation windows {windows} ({some['predictions']} predictions), on {' and '.join(devices)}, by {self.version}. "
            "± is the standard error; ratios are surer than it, since all rows predict the same tokens.")

  def commands(self):
    return "\n".join(shlex.join(["twofour", *command(row)]) for row in self.rows if row.words)

  def markdown(self):
    lines = [self.HEAD, ["---"] * len(self.HEAD), *map(self.cells, self.rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{self.conditions()}\n\n{table}\n\n" + textwrap.indent(self.commands(), "    ") + "\n"

  def page(self):
    """The table with bars of perplexity over BF16 on a logarithmic scale."""
    widest = max(math.log(max(self.ratio(row), 1)) for row in self.rows) or 1
    lines = []
    for row in self.rows:
      what, bits, perplexity, ratio, remark = map(html.escape, self.cells(row))
      width = 2 + 300 * max(math.log(self.ratio(row)), 0) / widest
      colour = "#c0504d" if row.bits < DENSE else "#4f81bd"
      bar = f'<svg width="304" height="14"><rect width="{width:.0f}" height="14" fill="{colour}"/></svg>'
      lines.append(f"<tr><td>{what}<td>{bits}<td>{perplexity}<td>{ratio}<td>{bar}<td>{remark}")
    heads = [*self.HEAD[:4], "logarithmic; red: pruned", *self.HEAD[4:]]
    return ('<!doctype html><html lang="en"><meta charset="utf-8"><title>What 2:4 costs</title>'
            "<style>body{font:14px sans-serif;margin:2em}td,th{padding:2px 10px;text-align:left}</style>"
            f"<h1>What 2:4 costs: SmolLM2-135M</h1><p>{html.escape(self.conditions())}</p>"
            "<table><tr>" + "".join(f"<th>{name}" for name in heads) + "\n" + "\n".join(lines)
            + f"\n</table><h2>Commands</h2><pre>{html.escape(self.commands())}</pre>\n")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("work", metavar="DIR", type=pathlib.Path)
  parser.add_argument("--twofour", default="twofour", help="the program")
  parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], help="rows beside bf16; default: all")
  parser.add_argument("--evaluation", nargs="+", type=int, metavar="WINDOW", help="windows to measure by, from 0; default: all")
  parser.add_argument("--limit", type=int, help="at most so many of them; default: all")
  parser.add_argument("--device", help="where compress and eval run; default: a CUDA device if there is one")
  o = parser.parse_args()
  for name in ("bf16", "evaluation.safetensors"):
    if not (o.work / name).exists():
      raise SystemExit(f"{o.work / name}: expected what calibrated.sh makes, found nothing")
  twofour = Twofour(o.work, o.twofour, o.device)
  version = twofour.run(["--version"]).splitlines()[0]
  tokens, windows, of = evaluation_file(o.work, o.evaluation, o.limit)
  (o.work / "mlp.yaml").write_text(MLP)
  record = o.work / "cost.json"
  known = json.loads(record.read_text()) if record.exists() else {}
  figures = {}
  for row in ROWS:
    is_wanted = not o.only or row.name in ("bf16", *o.only)
    if is_wanted and not twofour.make(row) or not (o.work / row.name).exists():
      continue
    key = f"{row.name} {digest_of(o.work / row.name)} by {of}"
    if key not in known and is_wanted:
      known[key] = twofour.measure(row, tokens)
      record.write_text(json.dumps(known, indent=2) + "\n")
    if key in known:
      figures[row.name] = known[key]
  table = Table(figures, windows, version)
  (o.work / "cost.md").write_text(table.markdown(), encoding="utf-8")
  (o.work / "cost.html").write_text(table.page(), encoding="utf-8")
  print(table.markdown(), end="")


if __name__ == "__main__":
  main()
