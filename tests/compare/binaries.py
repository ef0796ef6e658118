#!/usr/bin/env python3
"""Compares two twofour binaries: every file that they write but twofour.json, and every exit code.

  binaries.py OLD NEW [--quick] [-v] [--only GLOB] [--work DIR]
  binaries.py --self-test BINARY

What a case reads of an artifact it reads twice in NEW: what NEW wrote, and what OLD wrote. Differences that are wanted are
listed in cases.py with their reasons (KNOWN); one that does not occur any more is reported. Exit code 1: a difference.
Nothing is downloaded, no clock is read, and the same binaries give the same summary.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

import cases

NOT_COMPARED = "twofour.json"


class Side:
  """One binary's work on one group."""

  def __init__(self, binary, root):
    self.binary, self.root, self.exits = binary, root, {}

  def folder(self, case):
    return self.root / re.sub(r"[^\w.-]", "_", case)

  def out(self, case):
    return self.folder(case) / "out"


def flatten(args):
  return args if args and isinstance(args[0], list) else [args]


def artifacts_of(case):
  """Names of the cases whose output this one reads."""
  text = " ".join(a for command in flatten(case.args) for a in command)
  return set(re.findall(r"\{of:([^}]*)\}", text)) | ({"v7"} if case.prepare and "{work}/art" in text else set())


class Comparison:
  def __init__(self, old, new, work, plant=None):
    self.old, self.new, self.work = old, new, work
    self.plant = plant  # plant(name, side, folder, exit) -> exit: what the self-test damages
    self.lock = threading.Lock()
    self.count = collections.Counter()
    self.differences, self.lines = [], []
    self.met = collections.Counter()  # known differences by fault

  def run_group(self, group):
    root = pathlib.Path(tempfile.mkdtemp(dir=self.work))
    try:
      source = root / "source"
      if group.source:
        group.source(source)
      old, new = Side(self.old, root / "old"), Side(self.new, root / "new")
      for case in group.cases:
        self.run_case(group, case, source, old, new, root)
    finally:
      shutil.rmtree(root, ignore_errors=True)

  def run_case(self, group, case, source, old, new, root):
    name = f"{group.name}/{case.name}"
    if not group.source and not source.exists() and case is not group.cases[0] and old.exits.get("synth") == 0:
      source = old.out("synth")
    needs = artifacts_of(case)
    if any(old.exits.get(n) != 0 for n in needs):
      return  # OLD cannot do what this case reads
    self.run_side(case, name, "old", old, old, source)
    sides = [("new", new, new)] if all(new.exits.get(n) == 0 for n in needs) else []
    if needs:
      sides.append(("new on old's", Side(self.new, root / "cross"), old))
    for label, side, reads in sides:
      exit_code = self.run_side(case, name, label, side, reads, source)
      self.compare(name if label == "new" else f"{name} ({label})", name, case, old, side, old.exits[case.name], exit_code)
    with self.lock:
      self.count["cases"] += 1

  def run_side(self, case, name, label, side, reads, source):
    folder = side.folder(case.name)
    folder.mkdir(parents=True)

    def place(text):
      text = text.replace("{src}", str(source)).replace("{out}", str(folder / "out")).replace("{work}", str(folder))
      return re.sub(r"\{of:([^}]*)\}", lambda m: str(reads.out(m[1])), text)
    if case.prepare:
      case.prepare(lambda text: pathlib.Path(place(text)))
    exits = []
    for command in flatten(case.args):
      binary, more = (self.old, []) if label == "old" else (self.new, cases.words_for_new(command))
      done = subprocess.run([binary, *map(place, command), *more], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
                            env={"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": str(folder)})
      exits.append(done.returncode)
    exit_code = exits[0] if len(exits) == 1 else tuple(exits)
    if self.plant:
      exit_code = self.plant(name, label, folder / "out", exit_code)
    side.exits[case.name] = 0 if exit_code == 0 or isinstance(exit_code, tuple) else exit_code
    side.exits[case.name, "all"] = exit_code
    return exit_code

  def compare(self, shown, name, case, old, side, _, new_exit):
    old_exit = old.exits[case.name, "all"]
    found = []
    if any(e < 0 or e > 128 and e != 130 for e in (new_exit if isinstance(new_exit, tuple) else (new_exit,))):
      found.append((None, f"crashed: exit code {new_exit}"))
    elif old_exit != new_exit and not self.is_known(name, (old_exit, new_exit), None):
      found.append((None, f"exit code {old_exit} became {new_exit}"))
    files = 0
    if case.out and old_exit == new_exit:
      a, b = old.out(case.name), side.out(case.name)
      names = sorted(files_of(a) | files_of(b))
      for file in names:
        if file.split("/")[-1] == NOT_COMPARED and (a / file).exists() and (b / file).exists():
          continue
        files += 1
        what = difference(a / file, b / file)
        if what and not self.is_known(name, None, file):
          found.append((file, what))
    with self.lock:
      self.count["exit codes"] += 1
      self.count["files"] += files
      self.count["outputs"] += files > 0
      self.differences += [f"{shown}: {f'{file}: ' if file else ''}{what}" for file, what in found]
      self.lines.append(f"{'DIFFERS' if found else 'equal'} {shown}: exit {new_exit}, {files} files")

  def is_known(self, name, exits, file):
    for known in cases.KNOWN:
      if not any(fnmatch.fnmatchcase(name, glob) for glob in known.cases):
        continue
      if exits in known.exits if exits else any(fnmatch.fnmatchcase(file, glob) for glob in known.files):
        with self.lock:
          self.met[known.fault] += 1
        return True
    return False


def files_of(path):
  if not path.exists() and not path.is_symlink():
    return set()
  if not path.is_dir():
    return {"."}
  found = set()
  for folder, directories, files in os.walk(path):
    base = os.path.relpath(folder, path)
    found |= {os.path.normpath(os.path.join(base, f)) for f in files}
    found |= {os.path.normpath(os.path.join(base, d)) + "/" for d in directories if not os.listdir(os.path.join(folder, d))}
  return found or {"./"}


def difference(a, b):
  """How two files differ, or None."""
  for path, who in ((a, "OLD"), (b, "NEW")):
    if not path.exists() and not path.is_symlink():
      return f"not written by {who}"
  if a.is_dir() and b.is_dir():
    return None
  with open(a, "rb") as x, open(b, "rb") as y:
    at = 0
    while True:
      p, q = x.read(1 << 20), y.read(1 << 20)
      if p != q:
        first = next((i for i, (m, n) in enumerate(zip(p, q)) if m != n), min(len(p), len(q)))
        return f"{a.stat().st_size} and {b.stat().st_size} bytes, first difference at {at + first}"
      if not p:
        return None
      at += len(p)


def compare(old, new, groups, work, plant=None):
  comparison = Comparison(str(old), str(new), work, plant)
  # Threads that wait for processes; the largest groups first.
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    ordered = sorted(groups, key=lambda g: not g.large)
    for _ in pool.map(comparison.run_group, ordered):
      pass
  comparison.differences.sort()
  comparison.lines.sort()
  return comparison


def self_test(binary, work):
  """Plants differences and demands that each is found, alone."""
  chosen = {"golden modelopt-mixtral-uneven": ("v7", "g8", "lint", "v7 lint"), "fault 10": ("lint",)}
  groups = []
  for group in cases.all_groups():
    if group.name in chosen:
      group.cases = [case for case in group.cases if case.name in chosen[group.name]]
      groups.append(group)
  shard = "model-00001-of-00001.safetensors"

  def on(case, change):
    def plant(name, label, out, exit_code):
      if name != case or label == "old":
        return exit_code
      changed = change(out)
      return exit_code if changed is None else changed
    return plant

  def flip(file):
    def change(out):
      content = bytearray((out / file).read_bytes())
      content[len(content) // 2] ^= 1
      (out / file).write_bytes(content)
    return change
  written = "golden modelopt-mixtral-uneven/g8"  # no other case reads it
  plants = {
      "nothing": (0, None), "a flipped byte": (1, on(written, flip(shard))), "a byte of config.json": (1, on(written, flip("config.json"))),
      "a missing file": (1, on(written, lambda out: (out / "tokenizer.json").unlink())),
      "a missing twofour.json": (1, on(written, lambda out: (out / NOT_COMPARED).unlink())),
      "a longer file": (1, on(written, lambda out: (out / "config.json").open("ab").write(b"\n") and None)),
      "an extra file": (1, on(written, lambda out: (out / "extra").write_text("x") and None)),
      "an empty folder": (1, on(written, lambda out: (out / "folder").mkdir())),
      "a byte of twofour.json": (0, on(written, flip(NOT_COMPARED))),
      "another exit code": (1, on("golden modelopt-mixtral-uneven/lint", lambda out: 3)),
      "another exit code of what reads an artifact": (2, on("golden modelopt-mixtral-uneven/v7 lint", lambda out: 2)),
      "a crash": (1, on("golden modelopt-mixtral-uneven/lint", lambda out: -11)),
      "a known difference": (0, on("fault 10/lint", lambda out: 0))}
  failed = 0
  for name, (expected, plant) in plants.items():
    comparison = compare(binary, binary, groups, work, plant)
    found, met = len(comparison.differences), comparison.met["10"]
    if found != expected or met != (name == "a known difference") or comparison.count["outputs"] < 1:
      failed += 1
      print(f"self-test: {name}: expected {expected} differences, found {found}: {comparison.differences}")
  print(f"self-test: {len(plants)} differences planted, {failed} not found as expected")
  return 1 if failed else 0


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("binaries", nargs="+", metavar="BINARY", type=pathlib.Path, help="OLD and NEW")
  parser.add_argument("--quick", action="store_true", help="leave out large checkpoints")
  parser.add_argument("--only", metavar="GLOB", default="*", help="groups to run")
  parser.add_argument("--work", type=pathlib.Path, help="folder for what is written (default: a memory-backed one, else the temporary one)")
  parser.add_argument("-v", "--verbose", action="store_true", help="a line a case")
  parser.add_argument("--self-test", action="store_true", help="plant differences, see that they are found")
  o = parser.parse_args()
  if len(o.binaries) != (1 if o.self_test else 2):
    parser.error("expected OLD and NEW, or --self-test and one binary")
  binaries = [b.resolve() for b in o.binaries]
  for binary in binaries:
    if not os.access(binary, os.X_OK):
      parser.error(f"{binary}: expected a program")
  memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
  with tempfile.TemporaryDirectory(prefix="twofour-compare-", dir=o.work or memory) as work:
    if o.self_test:
      return self_test(binaries[0], work)
    groups = [g for g in cases.all_groups() if fnmatch.fnmatchcase(g.name, o.only) and not (o.quick and g.large)]
    comparison = compare(*binaries, groups, work)
  for line in comparison.lines if o.verbose else ():
    print(line)
  for difference_found in comparison.differences:
    print(f"DIFFERS {difference_found}")
  for known in cases.KNOWN:
    met = comparison.met[known.fault]
    if met:
      print(f"known: {known.fault}: {known.reason}: {met} times")
    elif any(fnmatch.fnmatchcase(f"{g.name}/{case.name}", glob) for g in groups for case in g.cases for glob in known.cases):
      print(f"known, but does not occur: {known.fault}: {known.reason}")
  count = comparison.count
  print(f"{len(groups)} groups, {count['cases']} cases: {count['outputs']} outputs with {count['files']} files and "
        f"{count['exit codes']} exit codes compared; {len(comparison.differences)} differences, {sum(comparison.met.values())} known ones")
  return 1 if comparison.differences else 0


if __name__ == "__main__":
  sys.exit(main())
