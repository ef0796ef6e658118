#!/usr/bin/env python3
"""What compressing the MoE costs: makes models of DIR/moe by twofour and measures each against it by `twofour eval --against`.

  tables.py DIR [--twofour BINARY] [--only NAME ...] [--limit WINDOWS] [--seconds SECONDS] [--jobs N] [--device DEVICE]

DIR holds moe, calibration.safetensors and evaluation.safetensors. Rows are made in their order, several at once; figures go to
DIR/tables.json as soon as they are there, and the next call goes on from it. DIR/tables.md is the table.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import shlex
import shutil
import subprocess
import threading
import time

TOKENS, STATISTICS = "calibration.safetensors", "statistics.safetensors"

# A model: its name, what it is, and the words that make it of moe. STATISTICS among them are waited for.
Row = collections.namedtuple("Row", "name what words")


def compress(*words, to="nvfp4"):
  return ["compress", *(["--to", to] if to else []), *words, "--tokens", TOKENS]


def sized(bits):
  return Row(f"bits-{bits}", f"{bits} bits, group by group", compress("--bits", bits, "--budget-stats", STATISTICS, to=None))


def dropped(count):
  return Row(f"experts-{count}", f"BF16, {count} of 8 experts by saliency", ["drop", "--experts", str(count), "--by", STATISTICS])


ROWS = [
    Row("nvfp4", "NVFP4, group by group", compress()),
    Row("rounded", "NVFP4, each weight for itself", ["quantize"]),
    Row("2of4", "2:4, group by group", compress("--pattern", "2:4")),
    sized("5.0"),
    dropped(7),
    dropped(6),
    Row("g8", "g8 of the experts, group by group", compress(to="g8")),
    Row("v7", "v7 of the experts, group by group", compress(to="v7")),
    sized("5.5"),
    sized("4.75"),
    Row("2of4-guided", "2:4, group by group, guided", compress("--pattern", "2:4", "--guided")),
]
ON_CPU = ("drop", "quantize")


def with_windows(row, limit):
  return row.words + (["--limit", str(limit)] if row.words[0] == "compress" else [])


class Work:
  """Runs the program in DIR until a time; keeps figures."""

  def __init__(self, o):
    found = shutil.which(o.twofour)
    if found is None:
      raise SystemExit(f"--twofour: expected the program, found no {o.twofour}")
    self.folder, self.binary, self.limit = o.work, pathlib.Path(found).resolve(), o.limit
    self.end = time.monotonic() + o.seconds
    self.device = ["--device", o.device] if o.device else []
    self.lock, self.record = threading.Lock(), o.work / "tables.json"
    self.figures = json.loads(self.record.read_text()) if self.record.exists() else {}

  def run(self, words):
    """-> what it prints, and seconds."""
    begin = time.monotonic()
    # Stopped as by Ctrl-C at the end of the time; --resume goes on from there.
    done = subprocess.run(["timeout", "-s", "INT", "-k", "10", f"{max(self.end - begin, 0.1):.1f}", self.binary, *words],
                          cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seconds = time.monotonic() - begin
    print(f"{seconds:.1f} s, exit code {done.returncode}: {shlex.join(['twofour', *words])}", flush=True)
    if done.returncode != 0:
      raise RuntimeError(f"twofour {words[0]}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout, seconds

  def keep(self, name, values):
    with self.lock:
      self.figures[name] = values
      self.record.write_text(json.dumps(self.figures, indent=1) + "\n")

  def measure(self, name):
    against = [] if name == "moe" else ["--against", "moe"]
    text, _ = self.run(["eval", name, *against, "--tokens", "evaluation.safetensors", "--json", "-q", *self.device])
    figures = json.loads(text)
    other = figures.get("against", {})
    return ({key: figures[key] for key in ("perplexity", "perplexity_error", "predictions", "device")} |
            {key: other[key] for key in ("ratio", "divergence", "divergence_error", "divergence_p99", "agreement") if key in other})

  def statistics(self):
    if not (self.folder / STATISTICS).exists():
      self.run(["stats", "collect", "moe", "--tokens", TOKENS, "--limit", str(self.limit), "--fisher", "-o", STATISTICS, *self.device])

  def make(self, row, statistics):
    if row.name in self.figures:
      return
    out, seconds = self.folder / row.name, 0
    if STATISTICS in row.words:
      statistics.result()
    if not (out / "twofour.json").exists():
      words = with_windows(row, self.limit)
      device = [] if words[0] in ON_CPU else self.device
      text, seconds = self.run([words[0], "moe", row.name, *words[1:], *device, "--resume"])
      (self.folder / f"{row.name}.txt").write_text(text)
    figures = self.measure(row.name)
    figures |= {"seconds": round(seconds, 1), "bytes": sum(file.stat().st_size for file in out.glob("*.safetensors"))}
    self.keep(row.name, figures)


def table(work):
  source = work.figures["moe"]
  lines = [["weights", "bytes, MB", "perplexity", "over BF16", "KL divergence", "seconds"], ["---"] * 6,
           ["BF16", f"{source['bytes'] / 1e6:.0f}", f"{source['perplexity']:.2f} ± {source['perplexity_error']:.2f}", "1", "", ""]]
  for row in ROWS:
    if row.name in work.figures:
      f = work.figures[row.name]
      lines.append([row.what, f"{f['bytes'] / 1e6:.0f}", f"{f['perplexity']:.2f} ± {f['perplexity_error']:.2f}",
                    f"{f['ratio']:.3f}", f"{f['divergence']:.4f} ± {f['divergence_error']:.4f}", f"{f['seconds']:.0f}"])
  text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
  commands = "\n".join("    " + shlex.join(["twofour", r.words[0], "moe", r.name, *with_windows(r, work.limit)[1:]])
                       for r in ROWS if r.name in work.figures)
  words = f"{source['predictions']} predictions, calibrated by {work.limit} windows, on {source['device']}."
  if {"nvfp4", "bits-5.0"} <= work.figures.keys():
    ratio = work.figures["bits-5.0"]["divergence"] / work.figures["nvfp4"]["divergence"]
    words += f" 5.0 bits have {ratio:.3f} of uniform NVFP4's KL divergence."
  return f"{words}\n\n{text}\n\n{commands}\n"


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("work", metavar="DIR", type=pathlib.Path)
  parser.add_argument("--twofour", default="twofour", help="the program")
  parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], help="rows to make; default: all")
  parser.add_argument("--limit", type=int, default=16, help="windows of calibration (default: %(default)s)")
  parser.add_argument("--seconds", type=float, default=1e6, help="stop after so many; the next call goes on (default: never)")
  parser.add_argument("--jobs", type=int, default=3, help="models to make at once (default: %(default)s)")
  parser.add_argument("--device", help="where compress and eval run; default: a CUDA device if there is one")
  o = parser.parse_args()
  work = Work(o)
  if "moe" not in work.figures:
    size = sum(file.stat().st_size for file in (o.work / "moe").glob("*.safetensors"))
    work.keep("moe", work.measure("moe") | {"bytes": size})
  rows = [row for row in ROWS if not o.only or row.name in o.only]
  failed = 0
  with concurrent.futures.ThreadPoolExecutor(o.jobs + 1) as pool:
    wants = any(STATISTICS in row.words and row.name not in work.figures for row in rows)
    statistics = pool.submit(work.statistics) if wants else None
    for row, future in [(row, pool.submit(work.make, row, statistics)) for row in rows]:
      try:
        future.result()
      except RuntimeError as error:
        failed += 1
        print(f"{row.name}: {error}", flush=True)
  text = table(work)
  (o.work / "tables.md").write_text(text, encoding="utf-8")
  print(text, end="")
  raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
  main()
