#!/usr/bin/env python3
"""Measures two twofour binaries against each other, and conversion against cp, on a memory-backed file system.

  speed.py OLD NEW [--pairs 9] [--size 1] [--only COMMAND ...]   wall time, CPU time and peak memory
  speed.py --cp BINARY [--runs 10] [--size 1]                    convert --to v7 against cp -r --reflink=never

OLD and NEW run in turn, each first in every other pair; the figures are medians. Bars: NEW at least 0.9 of OLD's speed with at
most 1.05 of its CPU time; conversion at least 1.25 of cp's speed unverified and 1.0 verified. Exit code 1: a bar was missed.
Figures of a machine that does other work are worth nothing: the load is printed, and above 0.5 a warning.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SPEED_BAR, CPU_BAR = 0.9, 1.05
CP_BARS = {"unverified": 1.25, "verified": 1.0}
LAYER_GB = 0.35  # of synth --shape qwen3-moe with 128 experts

COMMANDS = {
    "convert --to v7": ("nvfp4", ["convert", "{src}", "{out}", "--to", "v7"]),
    "convert --to v7 --no-verify": ("nvfp4", ["convert", "{src}", "{out}", "--to", "v7", "--no-verify"]),
    "convert --to g8": ("nvfp4", ["convert", "{src}", "{out}", "--to", "g8"]),
    "prune": ("nvfp4", ["prune", "{src}", "{out}"]),
    "quantize": ("bf16", ["quantize", "{src}", "{out}"]),
    "lint": ("nvfp4", ["lint", "{src}"])}


def run(command):
  """Wall seconds, user plus system seconds, peak bytes."""
  start = time.monotonic()
  process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
  message = process.stderr.read()
  _, status, usage = os.wait4(process.pid, 0)
  wall = time.monotonic() - start
  process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode not in (0, 1):
    raise SystemExit(f"{' '.join(map(str, command))}: exit code {process.returncode}\n{message.decode(errors='replace')}")
  return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def load(what):
  now = os.getloadavg()[0]
  print(f"load {what}: {now:.2f}" + (" (not quiet: the figures below are worth little)" if now > 0.5 and what == "before" else ""), flush=True)


def size_of(directory):
  return sum(p.stat().st_size for p in pathlib.Path(directory).rglob("*") if p.is_file())


def synth(binary, directory, gigabytes):
  layers = max(1, round(gigabytes / LAYER_GB))
  run([binary, "synth", directory, "--shape", "qwen3-moe", "--layers", str(layers), "--seed", "1", "-q"])


def measure(binary, args, source, out):
  shutil.rmtree(out, ignore_errors=True)
  figures = run([binary, *(a.format(src=source, out=out) for a in args), "-q"])
  shutil.rmtree(out, ignore_errors=True)
  return figures


def compare(old, new, pairs, gigabytes, only, work):
  sources = {"nvfp4": work / "nvfp4", "bf16": work / "bf16"}
  synth(old, sources["nvfp4"], gigabytes)
  if any(COMMANDS[c][0] == "bf16" for c in only):
    synth(old, work / "few", gigabytes / 4)  # as large in BF16
    run([old, "convert", work / "few", sources["bf16"], "--to", "bf16", "-q"])
    shutil.rmtree(work / "few")
  missed = 0
  print(f"{'command':28} {'OLD s':>7} {'NEW s':>7} {'speed':>6} {'OLD CPU':>8} {'NEW CPU':>8} {'CPU':>6} {'OLD MiB':>8} {'NEW MiB':>8}")
  for command in only:
    kind, args = COMMANDS[command]
    found = {old: [], new: []}
    for binary in (old, new):
      measure(binary, args, sources[kind], work / "out")  # not counted: what the first run finds cold
    for pair in range(pairs):
      for binary in (old, new) if pair % 2 == 0 else (new, old):
        found[binary].append(measure(binary, args, sources[kind], work / "out"))
    (wall, cpu, memory), (wall2, cpu2, memory2) = (
        [statistics.median(f[i] for f in found[b]) for i in range(2)] + [max(f[2] for f in found[b])] for b in (old, new))
    bad = wall / wall2 < SPEED_BAR or cpu2 / cpu > CPU_BAR
    missed += bad
    print(f"{command:28} {wall:7.3f} {wall2:7.3f} {wall / wall2:6.2f} {cpu:8.3f} {cpu2:8.3f} {cpu2 / cpu:6.2f} "
          f"{memory / 2**20:8.0f} {memory2 / 2**20:8.0f}{'  MISSED' if bad else ''}", flush=True)
  return missed


def against_cp(binary, runs, gigabytes, work):
  source = work / "nvfp4"
  synth(binary, source, gigabytes)
  print(f"{size_of(source) / 1e9:.2f} GB")
  commands = {"cp": ["cp", "-r", "--reflink=never", source, work / "out"],
              "unverified": [binary, "convert", source, work / "out", "--to", "v7", "--no-verify", "-q"],
              "verified": [binary, "convert", source, work / "out", "--to", "v7", "-q"]}
  found = {name: [] for name in commands}
  for turn in range(runs + 1):  # the first is not counted
    for name, command in commands.items():
      figures = run(command)
      shutil.rmtree(work / "out")
      if turn:
        found[name].append(figures)
  medians = {name: [statistics.median(f[i] for f in figures) for i in range(2)] for name, figures in found.items()}
  missed = 0
  for name, (wall, cpu) in medians.items():
    ratio, bar = medians["cp"][0] / wall, CP_BARS.get(name)
    bad = bar is not None and ratio < bar
    missed += bad
    print(f"{name:10} {wall:7.3f} s, CPU {cpu:7.3f} s, {ratio:5.2f} of cp's speed" + (f", bar {bar}{': MISSED' if bad else ''}" if bar else ""))
  return missed


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("binaries", nargs="+", metavar="BINARY", type=pathlib.Path, help="OLD and NEW; with --cp one")
  parser.add_argument("--cp", action="store_true", help="measure convert --to v7 against cp")
  parser.add_argument("--pairs", type=int, default=9)
  parser.add_argument("--runs", type=int, default=10, help="with --cp")
  parser.add_argument("--size", type=float, default=1, metavar="GB", help="of the checkpoint")
  parser.add_argument("--only", nargs="+", choices=COMMANDS, default=[c for c in COMMANDS if "--no-verify" not in c])
  parser.add_argument("--work", type=pathlib.Path, default="/dev/shm", help="memory-backed folder")
  o = parser.parse_args()
  if len(o.binaries) != (1 if o.cp else 2):
    parser.error("expected OLD and NEW, or --cp and one binary")
  binaries = [b.resolve() for b in o.binaries]
  with tempfile.TemporaryDirectory(prefix="twofour-speed-", dir=o.work) as work:
    work = pathlib.Path(work)
    load("before")
    missed = against_cp(*binaries, o.runs, o.size, work) if o.cp else compare(*binaries, o.pairs, o.size, o.only, work)
    load("after")
  return 1 if missed else 0


if __name__ == "__main__":
  sys.exit(main())
