#!/usr/bin/env python3
"""What 2:4 costs: compresses SmolLM2 in many ways and measures each by `twofour eval`.

  cost.py DIR [--twofour BINARY] [--only NAME ...] [--limit WINDOWS]

DIR holds bf16, calibration.safetensors and evaluation.safetensors, as calibrated.sh makes them, and for some rows
token_weights.safetensors (collect.py --token-weights) and fisher.safetensors (collect.py --fisher). Rows whose files are
missing are left out. Models that are there are taken, and so are figures in DIR/cost.json. Writes DIR/cost.json, DIR/cost.md
and DIR/cost.html.
"""
import argparse
import html
import json
import pathlib
import subprocess

DENSE = ("nvfp4-sequential", "nvfp4-one-pass", "nvfp4-max")  # what pruned rows are held against, the first that is there
MLP = "format: 1\nrules:\n  - {match: '*.mlp.*', to: nvfp4, pattern: '2:4'}\n  - {match: '*', to: nvfp4}\n"
ALL = ["--also", "*.self_attn.*"]
ONE_PASS, PAIRS = ["--sequential", "none"], ["--pattern", "4:8-paired"]
TWO_OF_FOUR = ["--pattern", "2:4"]

# Name, what it is, share of the weights that is pruned, and the words that make it.
ROWS = [
    ("bf16", "BF16", 0, None),
    ("nvfp4-max", "NVFP4, each weight for itself", 0, ["quantize"]),
    ("nvfp4-mse", "the same, block scales by squared error", 0, ["quantize", "--block-scale", "mse"]),
    ("nvfp4-one-pass", "NVFP4 by statistics (GPTQ)", 0, ["compress", "--to", "nvfp4", *ONE_PASS]),
    ("nvfp4-sequential", "the same, group by group", 0, ["compress", "--to", "nvfp4"]),
    ("g8", "g8, group by group", 0, ["compress", "--to", "g8", *ALL]),
    ("v7-magnitude", "v7 by magnitude", 1, ["convert", "--to", "v7", *ALL]),
    ("wanda", "2:4, Wanda", 1, ["compress", "--to", "nvfp4", *TWO_OF_FOUR, *ONE_PASS, "--method", "wanda"]),
    ("joint", "2:4, joint", 1, ["compress", "--to", "nvfp4", *TWO_OF_FOUR, *ONE_PASS]),
    ("guided", "the same, guided", 1, ["compress", "--to", "nvfp4", *TWO_OF_FOUR, *ONE_PASS, "--token-weights"]),
    ("sequential", "2:4, group by group", 1, ["compress", "--to", "nvfp4", *TWO_OF_FOUR]),
    ("layer", "2:4, layer by layer", 1, ["compress", "--to", "nvfp4", *TWO_OF_FOUR, "--sequential", "layer"]),
    ("sequential-guided", "2:4, group by group, guided", 1, ["compress", "--to", "nvfp4", *TWO_OF_FOUR, "--token-weights"]),
    ("mlp", "2:4 of the MLPs, group by group", 0.75, ["compress", "--recipe", "MLP"]),
    ("mlp-guided", "the same, guided", 0.75, ["compress", "--recipe", "MLP", "--token-weights"]),
    *[(f"share-{share}", f"2:4 of {share} % of the bytes, group by group", share / 100,
       ["compress", "--to", "nvfp4", *TWO_OF_FOUR, "--budget", str(share / 100), "--budget-stats"]) for share in (25, 50, 75)],
    ("paired", "4:8-paired, joint", 1, ["compress", "--to", "nvfp4", *PAIRS, *ONE_PASS]),
]
FILES = {"--token-weights": "token_weights.safetensors", "--budget-stats": "fisher.safetensors"}


def bits(pruned):
  """Stored bits of a quantized weight, in layouts that leave out what is pruned."""
  return 4.5 - pruned


def make(work, name, words, twofour):
  """Makes a model unless it is there; -> whether it could be."""
  out = work / name
  if (out / "twofour.json").exists():
    return True
  more = []
  for word in words[1:]:
    more.append(str(work / "mlp.yaml") if word == "MLP" else word)
    if word in FILES:
      if not (work / FILES[word]).exists():
        return False
      more.append(str(work / FILES[word]))
  if words[0] == "compress":
    more += ["--tokens", str(work / "calibration.safetensors")]
  resume = ["--resume"] if words[0] == "compress" else []
  command = [twofour, words[0], str(work / "bf16"), str(out), *more, *resume]
  print(" ".join(command), flush=True)
  subprocess.run(command, check=True)
  return True


def measure(work, name, limit, twofour):
  command = [twofour, "eval", str(work / name), "--tokens", str(work / "evaluation.safetensors"), "--json", "-q"]
  command += ["--limit", str(limit)] if limit else []
  print(" ".join(command), flush=True)
  return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["perplexity"]


def remark(row, figures):
  """What a row with fewer bits is worth against the dense one."""
  name, _, pruned, _ = row
  dense = next((figures[d] for d in DENSE if d in figures), None)
  if not pruned or dense is None:
    return ""
  ratio, saved = figures[name] / dense, 1 - bits(pruned) / bits(0)
  verdict = "worse than dense" if ratio > 1 else "no worse than dense"
  return f"{verdict}: {ratio:.2f} times its perplexity, {100 * saved:.0f} % fewer bits"


def table(figures):
  lines = ["| weights | bits a weight | perplexity | over BF16 | against the best dense NVFP4 |", "| --- | --- | --- | --- | --- |"]
  for row in ROWS:
    name, what, pruned, words = row
    if name in figures:
      lines.append(f"| {what} | {bits(pruned) if words else 16:.4g} | {figures[name]:.2f} | "
                   f"{figures[name] / figures['bf16']:.2f} | {remark(row, figures)} |")
  return "\n".join(lines) + "\n"


def picture(figures):
  """Bars of perplexity over BF16, on a logarithmic scale."""
  import math
  rows = [(what, pruned, figures[name] / figures["bf16"]) for name, what, pruned, _ in ROWS if name in figures]
  widest = max(math.log(ratio) for _, _, ratio in rows) or 1
  bars = []
  for i, (what, pruned, ratio) in enumerate(rows):
    width, y = 1 + 420 * math.log(ratio) / widest if ratio > 1 else 1, 24 * i
    colour = "#c0504d" if pruned else "#4f81bd"
    bars.append(f'<text x="330" y="{y + 16}" text-anchor="end">{html.escape(what)}</text>'
                f'<rect x="340" y="{y + 4}" width="{width:.0f}" height="16" fill="{colour}"/>'
                f'<text x="{346 + width:.0f}" y="{y + 16}">{ratio:.2f}</text>')
  return ('<!doctype html><meta charset="utf-8"><title>What 2:4 costs</title><h1>Perplexity over BF16</h1>'
          '<p>SmolLM2-135M, logarithmic; red: pruned.</p>'
          f'<svg width="860" height="{24 * len(rows) + 8}" font-family="sans-serif" font-size="13">{"".join(bars)}</svg>\n')


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("work", type=pathlib.Path)
  parser.add_argument("--twofour", default="twofour")
  parser.add_argument("--only", nargs="+", choices=[row[0] for row in ROWS], help="rows; default: all")
  parser.add_argument("--limit", type=int, help="evaluation windows; default: all")
  o = parser.parse_args()
  (o.work / "mlp.yaml").write_text(MLP)
  record = o.work / "cost.json"
  figures = json.loads(record.read_text()) if record.exists() else {}
  for name, _, _, words in ROWS:
    if name in figures or (o.only and name not in o.only and name != "bf16"):
      continue
    if words and not make(o.work, name, words, o.twofour):
      print(f"{name}: left out, its files are missing", flush=True)
      continue
    figures[name] = measure(o.work, name, o.limit, o.twofour)
    record.write_text(json.dumps(figures, indent=2) + "\n")
  (o.work / "cost.md").write_text(table(figures))
  (o.work / "cost.html").write_text(picture(figures))
  print(table(figures), end="")


if __name__ == "__main__":
  main()
