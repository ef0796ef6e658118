#!/usr/bin/env python3
"""Compares two builds of twofour: every file that they write, every document, help and list that they print, every exit code.

  binaries.py OLD NEW [--quick] [-v] [--only GLOB] [--work DIR]
  binaries.py --self-test PROGRAM

What a case reads of an artifact it reads twice in NEW: what NEW wrote, and what OLD wrote. What cannot be compared is listed
in documents.py (NOT_COMPARED), differences that are wanted in known.py (KNOWN), each with its reason; one of the latter that
does not occur any more is reported. Where libtwofour.so lies in both builds, the Python module is compared, too.
Exit code 1: a difference. Nothing is downloaded, no clock is read, and the same builds give the same summary.
"""
import argparse
import fnmatch
import os
import pathlib
import re
import sys
import tempfile

import groups
import known
import self_test
from comparison import Build, Comparison


def build_of(program):
  """The program, and of the build folder that it lies in the library and the module."""
  for folder in program.parents:
    cache, library = folder / "CMakeCache.txt", folder / "lib" / "libtwofour.so"
    if cache.exists() and library.exists():
      source = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache.read_text(), re.MULTILINE)[1]
      return Build(str(program), str(library), f"{source}/tools/python")
  return Build(str(program))


def report(comparison, compared, verbose):
  for line in comparison.lines if verbose else ():
    print(line)
  for difference in comparison.differences:
    print(f"DIFFERS {difference}")
  for row in comparison.known:
    met = comparison.met[row.name]
    if met:
      print(f"known: {row.name}: {row.reason}: {met} times")
    elif any(row.covers(f"{g.name}/{case.name}") for g in compared for case in g.cases):
      print(f"known, but does not occur: {row.name}: {row.reason}")
  count, endings = comparison.count, comparison.endings
  if count["without a library"]:
    print(f"not compared: {count['without a library']} cases of the Python module: expected libtwofour.so in both builds")
  ends = ", ".join(f"{endings[code]} with {code}" for code in sorted(endings, key=str))
  print(f"{len(compared)} groups, {count['cases']} cases (OLD ended {ends}; {count['not run']} not run, for OLD refuses what they read): "
        f"{count['files']} files, {count['documents']} documents, {count['texts']} texts and {count['exit codes']} exit codes compared; "
        f"{len(comparison.differences)} differences, {sum(comparison.met.values())} known ones")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("programs", nargs="+", metavar="PROGRAM", type=pathlib.Path, help="OLD and NEW")
  parser.add_argument("--quick", action="store_true", help="leave out large checkpoints and a part of the words and families")
  parser.add_argument("--only", metavar="GLOB", default="*", help="groups to run")
  parser.add_argument("--work", type=pathlib.Path, help="folder for what is written (default: a memory-backed one, else the temporary one)")
  parser.add_argument("-v", "--verbose", action="store_true", help="a line a case")
  parser.add_argument("--self-test", action="store_true", help="plant differences, see that they are found")
  o = parser.parse_args()
  if len(o.programs) != (1 if o.self_test else 2):
    parser.error("expected OLD and NEW, or --self-test and one program")
  programs = [p.resolve() for p in o.programs]
  for program in programs:
    if not os.access(program, os.X_OK):
      parser.error(f"{program}: expected a program")
  memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
  with tempfile.TemporaryDirectory(prefix="twofour-compare-", dir=o.work or memory) as work:
    if o.self_test:
      return self_test.run(build_of(programs[0]), work)
    compared = [g for g in groups.all_groups() if fnmatch.fnmatchcase(g.name, o.only) and not (o.quick and g.thorough)]
    if not compared:
      parser.error(f"--only {o.only}: expected groups of that name, found none")
    comparison = Comparison(*map(build_of, programs), work, known.KNOWN).run(compared)
  report(comparison, compared, o.verbose)
  return 1 if comparison.differences else 0


if __name__ == "__main__":
  sys.exit(main())
