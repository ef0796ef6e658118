#!/usr/bin/env python3
"""Runs the commands of README.md and of the tutorial, and compares what they print with what the text shows.

  commands.py PROGRAM [--with python] [--with smollm2] [--files DIR] [DOCUMENT...]

A block of code that has lines "$ COMMAND" is run, line by line, in one folder for each document. What follows a
command is its output: numbers with a unit of time or speed may differ, and a line "..." stands for any lines.
">>>" lines are Python's. A comment "<!-- first: COMMAND -->" before a block is run unseen. A comment before a block, "<!-- needs: WORD -->", names what a plain machine lacks:
such blocks run if --with WORD is given, and are listed as not run otherwise. What is in DIR is there for the
commands. Exit code 1 if anything differs.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCUMENTS = ["README.md", "examples/tutorial.md"]
VARYING = re.compile(r"\b\d+(?:\.\d+)?(?= (?:GB/s|MB/s|s|ms|min)\b)")


def blocks(text):
  """Blocks of code with commands: line number, what they need, their lines."""
  needs, before, inside, start = "", [], None, 0
  for number, line in enumerate(text.splitlines(), 1):
    if line.startswith("```"):
      if inside is None:
        inside, start, before = before, number, []
      else:
        if any(l.startswith("$ ") for l in inside):
          yield start, needs, inside
        inside, needs = None, ""
    elif inside is not None:
      inside.append(line)
    elif found := re.fullmatch(r"<!-- needs: (\S+) -->", line):
      needs = found[1]
    elif found := re.fullmatch(r"<!-- first: (.+) -->", line):
      before += [f"$ {found[1]}"]
    elif line.strip():
      needs = ""


def steps(lines):
  """Commands of a block, each with what it reads and the lines that the text shows."""
  found = []
  for line in lines:
    if line.startswith("$ "):
      found.append([line[2:], "", []])
    elif line.startswith((">>> ", "... ")) and found[-1][0] == "python":
      found[-1][1] += line[4:] + "\n"
      found[-1][2].append(None)
    else:
      found[-1][2].append(line)
  return found


def run(command, given, folder, path):
  if command == "python":
    # Python prints values of expressions only to somebody who types them.
    given = "import sys, code\nconsole = code.InteractiveConsole()\nsys.ps1 = sys.ps2 = ''\nfor line in " + repr(
        given.splitlines()) + ":\n  console.push(line)\n"
    done = subprocess.run(["python3", "-c", given], cwd=folder, env=path, capture_output=True, text=True)
  else:
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=path, capture_output=True, text=True)
  return done.stdout + done.stderr if done.returncode in (0, 1) else f"exit code {done.returncode}\n{done.stderr}"


def agree(shown, printed):
  """Whether the printed lines are the shown ones, of which "..." is any lines."""
  pattern = "".join("(?:.*\n)*?" if l == "..." else re.escape(VARYING.sub("#", l)) + "\n" for l in shown)
  return re.fullmatch(pattern, VARYING.sub("#", "".join(l + "\n" for l in printed)))


def main():
  p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  p.add_argument("program")
  p.add_argument("documents", nargs="*", default=DOCUMENTS)
  p.add_argument("--with", dest="there", action="append", default=[], metavar="WORD")
  p.add_argument("--files", type=pathlib.Path)
  options = p.parse_args()
  failed = ran = 0
  for name in options.documents:
    document = ROOT / name
    with tempfile.TemporaryDirectory() as folder:
      os.mkdir(f"{folder}/bin")
      shutil.copy(options.program, f"{folder}/bin/twofour")
      os.mkdir(f"{folder}/work")
      for file in options.files.resolve().iterdir() if options.files else []:
        os.symlink(file, f"{folder}/work/{file.name}")
      path = dict(os.environ, PATH=f"{folder}/bin:{os.environ['PATH']}", COLUMNS="120")
      for number, needs, lines in blocks(document.read_text()):
        for command, given, shown in steps(lines):
          wanted = "python" if command == "python" else "pip" if command.startswith("pip ") else needs
          if wanted and wanted not in options.there:
            print(f"{name}:{number}: not run, needs {wanted}: {command}")
            continue
          ran += 1
          printed = run(command, given, f"{folder}/work", path).splitlines()
          shown = [l for l in shown if l is not None]
          if not agree(shown, printed):
            failed += 1
            print(f"{name}:{number}: {command}\n  expected:\n    " + "\n    ".join(shown) + "\n  found:\n    " +
                  "\n    ".join(printed))
  print(f"{ran} commands run, {failed} differ")
  return 1 if failed or not ran else 0


if __name__ == "__main__":
  sys.exit(main())
