#!/usr/bin/env python3
"""Measures two twofour binaries against each other, and conversion against cp, on a memory-backed file system.

  speed.py OLD NEW [--pairs 9] [--size 1] [--only COMMAND ...]   wall time, CPU time and peak memory
  speed.py --cp BINARY [--runs 10] [--size 1] [--from FORMAT ...] conversions against cp -r --reflink=never

OLD and NEW run in turn, each first in every other pair; the figures are medians. Bars: NEW at least 0.9 of OLD's speed with at
most 1.05 of its CPU time; convert --to v7 at least 1.25 of the speed of cp of the source unverified and 1.0 verified; MXFP4 to
NVFP4 and to FP8, verified, at least 0.7 of that of cp of the larger of source and output. Exit code 1: a bar was missed.
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
LAYER_GB = 0.35  # of synth --shape qwen3-moe with 128 experts
EXPERT_GB = 0.07  # of synth --shape deepseek-v4 --dialect released, in its layer and in its draft layer
LEAST_EXPERTS = 6

# What is measured against cp, by the source's format: words behind the source and the output, and the bar.
AGAINST_CP = {
    "nvfp4": {"to v7, unverified": (["--to", "v7", "--no-verify"], 1.25), "to v7": (["--to", "v7"], 1.0)},
    "mxfp4": {"to NVFP4": (["--recipe", "deepseek-v4-nvfp4"], 0.7), "to FP8": (["--recipe", "mxfp4-to-fp8"], 0.7)}}

COMMANDS = {
    "convert --to v7": ("nvfp4", ["convert", "{src}", "{out}", "--to", "v7"]),
    "convert --to v7 --no-verify": ("nvfp4", ["convert", "{src}", "{out}", "--to", "v7", "--no-verify"]),
    "convert --to g8": ("nvfp4", ["convert", "{src}", "{out}", "--to", "g8"]),
    "prune": ("nvfp4", ["prune", "{src}", "{out}"]),
    "convert --to bf16": ("nvfp4", ["convert", "{src}", "{out}", "--to", "bf16"]),
    "convert --to nvfp4": ("nvfp4", ["convert", "{src}", "{out}", "--to", "nvfp4"]),
    "convert --to fp8": ("nvfp4", ["convert", "{src}", "{out}", "--to", "fp8"]),
    "quantize": ("bf16", ["quantize", "{src}", "{out}"]),
    "quantize mse": ("bf16", ["quantize", "{src}", "{out}", "--block-scale", "mse"]),
    "quantize FP8": ("fp8", ["quantize", "{src}", "{out}"]),
    "quantize MXFP4": ("gpt-oss", ["quantize", "{src}", "{out}"]),
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


def synth(binary, directory, shape, *more):
  run([binary, "synth", directory, "--shape", shape, "--seed", "1", "-q", *map(str, more)])


def synth_nvfp4(binary, directory, gigabytes):
  synth(binary, directory, "qwen3-moe", "--layers", max(1, round(gigabytes / LAYER_GB)))


def synth_mxfp4(binary, directory, gigabytes):
  experts = max(LEAST_EXPERTS, round(gigabytes / EXPERT_GB))
  synth(binary, directory, "deepseek-v4", "--dialect", "released", "--layers", 1, "--experts", experts)


def make_source(kind, old, new, directory, gigabytes):
  """A checkpoint that both binaries read."""
  if kind == "nvfp4":
    synth_nvfp4(old, directory, gigabytes)
  elif kind == "fp8":
    synth(new, directory, "deepseek-v3", "--layers", 4, "--experts", max(8, round(gigabytes / 0.1)))
  elif kind == "gpt-oss":
    synth(new, directory, "gpt-oss", "--layers", max(1, round(gigabytes / 0.45)))
  else:
    few = directory.with_name("few")
    synth_nvfp4(old, few, gigabytes / 4)  # as large in BF16
    run([old, "convert", few, directory, "--to", "bf16", "-q"])
    shutil.rmtree(few)


def measure(binary, args, source, out):
  shutil.rmtree(out, ignore_errors=True)
  figures = run([binary, *(a.format(src=source, out=out) for a in args), "-q"])
  shutil.rmtree(out, ignore_errors=True)
  return figures


def compare(old, new, pairs, gigabytes, only, work):
  missed, made = 0, None
  print(f"{'command':28} {'OLD s':>7} {'NEW s':>7} {'speed':>6} {'OLD CPU':>8} {'NEW CPU':>8} {'CPU':>6} {'OLD MiB':>8} {'NEW MiB':>8}")
  for command in only:
    kind, args = COMMANDS[command]
    source = work / kind
    if made != source:
      if made:
        shutil.rmtree(made)
      make_source(kind, old, new, source, gigabytes)
      made = source
    found = {old: [], new: []}
    for binary in (old, new):
      measure(binary, args, source, work / "out")  # not counted: what the first run finds cold
    for pair in range(pairs):
      for binary in (old, new) if pair % 2 == 0 else (new, old):
        found[binary].append(measure(binary, args, source, work / "out"))
    (wall, cpu, memory), (wall2, cpu2, memory2) = (
        [statistics.median(f[i] for f in found[b]) for i in range(2)] + [max(f[2] for f in found[b])] for b in (old, new))
    bad = wall / wall2 < SPEED_BAR or cpu2 / cpu > CPU_BAR
    missed += bad
    print(f"{command:28} {wall:7.3f} {wall2:7.3f} {wall / wall2:6.2f} {cpu:8.3f} {cpu2:8.3f} {cpu2 / cpu:6.2f} "
          f"{memory / 2**20:8.0f} {memory2 / 2**20:8.0f}{'  MISSED' if bad else ''}", flush=True)
  return missed


def against_cp(binary, runs, gigabytes, work, kind):
  source, out, larger = work / kind, work / "out", work / "larger"
  {"nvfp4": synth_nvfp4, "mxfp4": synth_mxfp4}[kind](binary, source, gigabytes)
  missed = 0
  for name, (words, bar) in AGAINST_CP[kind].items():
    command = [binary, "convert", source, out, *words, "-q"]
    run(command)
    copied = source
    if size_of(out) > size_of(source):
      copied = out.rename(larger)
    else:
      shutil.rmtree(out)
    found = {"cp": [], name: []}
    for turn in range(runs + 1):  # the first is not counted
      for what, words in (("cp", ["cp", "-r", "--reflink=never", copied, out]), (name, command)):
        figures = run(words)
        shutil.rmtree(out)
        if turn:
          found[what].append(figures)
    wall, cpu = ([statistics.median(f[i] for f in found[what]) for what in ("cp", name)] for i in range(2))
    ratio, peak = wall[0] / wall[1], max(f[2] for f in found[name])
    missed += ratio < bar
    print(f"{kind} {name}: {wall[1]:.3f} s, CPU {cpu[1]:.3f} s, {peak / 2**20:.0f} MiB; cp of {size_of(copied) / 1e9:.2f} GB "
          f"{wall[0]:.3f} s, CPU {cpu[0]:.3f} s: {ratio:.2f} of its speed, bar {bar}{': MISSED' if ratio < bar else ''}", flush=True)
    shutil.rmtree(larger, ignore_errors=True)
  shutil.rmtree(source)
  return missed


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("binaries", nargs="+", metavar="BINARY", type=pathlib.Path, help="OLD and NEW; with --cp one")
  parser.add_argument("--cp", action="store_true", help="measure conversions against cp")
  parser.add_argument("--pairs", type=int, default=9)
  parser.add_argument("--runs", type=int, default=10, help="with --cp")
  parser.add_argument("--from", nargs="+", dest="kinds", choices=AGAINST_CP, default=list(AGAINST_CP), help="with --cp: sources")
  parser.add_argument("--size", type=float, default=1, metavar="GB", help="of the checkpoint")
  parser.add_argument("--only", nargs="+", choices=COMMANDS, default=[c for c in COMMANDS if "--no-verify" not in c],
                      help="default: all verified")
  parser.add_argument("--work", type=pathlib.Path, default="/dev/shm", help="memory-backed folder")
  o = parser.parse_args()
  if len(o.binaries) != (1 if o.cp else 2):
    parser.error("expected OLD and NEW, or --cp and one binary")
  binaries = [b.resolve() for b in o.binaries]
  with tempfile.TemporaryDirectory(prefix="twofour-speed-", dir=o.work) as work:
    work = pathlib.Path(work)
    load("before")
    missed = sum(against_cp(*binaries, o.runs, o.size, work, k) for k in o.kinds) if o.cp else compare(*binaries, o.pairs, o.size, o.only, work)
    load("after")
  return 1 if missed else 0


if __name__ == "__main__":
  sys.exit(main())
