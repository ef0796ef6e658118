#!/usr/bin/env python3
"""The commands of README.md and of the tutorial that nothing runs, in one table.

  not_run.py PROGRAM [--vllm PYTHON]

commands.py runs what has "$ " before it. Every other command of the documents, in a block "sh" or as code in a sentence,
must be in NOT_RUN with its reason, and every row of NOT_RUN in its document. The options of twofour's commands must be in
their help. With --vllm, vLLM's own parser must accept its commands and refuse the same with a wrong option; PYTHON is one
with vLLM. Prints each command as not run. Exit code 1 if anything differs.
"""
import argparse
import dataclasses
import json
import re
import shlex
import subprocess
import sys

import commands


@dataclasses.dataclass
class NotRun:
  document: str
  command: str
  reason: str


SETUP = "builds the project: .ci/setup, .ci/nightly wheel and the test quickstart run its parts"
WORDS = "its names are a reader's own; the tests of the command run it with other names"
SERVES = "needs a GPU and a whole model"

NOT_RUN = (
    NotRun("README.md", ".ci/setup && pip wheel . --no-deps && pip install ./twofour-*.whl", SETUP),
    NotRun("README.md", "examples/quickstart.sh", SETUP),
    NotRun("README.md", "twofour lint CHECKPOINT --profile serve", WORDS),
    NotRun("README.md", "twofour repair CHECKPOINT FIXED", WORDS),
    NotRun("README.md", "twofour convert CHECKPOINT OUT --to nvfp4 --dialect compressed-tensors", WORDS),
    NotRun("README.md", "twofour diff CHECKPOINT OUT", WORDS),
    NotRun("README.md", "twofour compress MODEL OUT --text FILE --to nvfp4", WORDS),
    NotRun("README.md", "twofour compress MODEL OUT --text FILE --size 90GB --for vllm", WORDS),
    NotRun("README.md", "twofour eval OUT --text OTHER --against MODEL", WORDS),
    NotRun("README.md", "twofour quantize MODEL OUT", WORDS),
    NotRun("README.md", "twofour lint PATH --profile serve --baseline known.json --sarif > FILE", WORDS),
    NotRun("README.md", "vllm serve OUT", SERVES),
    NotRun("examples/tutorial.md", "twofour lint --explain config-disagrees", "a test of lint runs --explain with every rule"),
    NotRun("examples/tutorial.md", "twofour lint hf://org/name --headers-only", "needs the Hub; a test runs it against a server"),
    NotRun("examples/tutorial.md", "twofour eval compressed --text OTHER --against SmolLM2-135M-Instruct", WORDS),
    NotRun("examples/tutorial.md", "vllm serve served", SERVES),
)

#: Prints 1 or 0 for each list of words: whether the parser of "vllm serve" takes them.
VLLM = """
import json, sys
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms.current_platform = CpuPlatform()  # where there is no GPU, vLLM finds no platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.common.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
for words in json.loads(sys.argv[1]):
  try:
    parser.parse_args(words)
    print("taken 1")
  except SystemExit:
    print("taken 0")
"""


def found_in(text):
  """Commands of a document that commands.py does not run: lines of blocks "sh", and code that is a whole command."""
  inside = None
  for line in text.splitlines():
    if line.startswith("```"):
      inside = line[3:].strip() if inside is None else None
    elif inside == "sh" and line.strip():
      yield re.sub(r"\s+#.*", "", line).strip()
    elif inside is None:
      for code in re.findall(r"`((?:twofour|vllm) [a-z][^`]* [^`]+)`", line):
        yield code


def wrong_options(program, command):
  """Options of a twofour command that its help does not have."""
  words = shlex.split(command)
  options = [w for w in words if w.startswith("--")]
  help_text = subprocess.run([program, words[1], "--help-all"], capture_output=True, text=True, check=True).stdout
  return [o for o in options if not re.search(rf"(?<![\w-]){re.escape(o)}(?![\w-])", help_text)]


def refused_by_vllm(python, rows):
  """Problems of commands of vLLM: each must be taken, and refused with an option that does not exist."""
  asked = [(row, words) for row in rows for words in (shlex.split(row.command)[2:], [*shlex.split(row.command)[2:], "--no-such-option"])]
  done = subprocess.run([python, "-c", VLLM, json.dumps([words for _, words in asked])], capture_output=True, text=True)
  answers = re.findall(r"^taken ([01])$", done.stdout, re.MULTILINE)
  if done.returncode or len(answers) != len(asked):
    return [f"{python}: expected an answer for each command, found: {done.stderr[-500:]}"]
  return [f"{row.document}: vLLM's parser {'takes' if taken == '1' else 'refuses'}: vllm serve {shlex.join(words)}"
          for (row, words), taken in zip(asked, answers) if (taken == "1") == ("--no-such-option" in words)]


def main():
  p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  p.add_argument("program")
  p.add_argument("--vllm", metavar="PYTHON")
  options = p.parse_args()
  problems = []
  for name in commands.DOCUMENTS:
    there = set(found_in((commands.ROOT / name).read_text()))
    listed = {row.command for row in NOT_RUN if row.document == name}
    problems += [f"{name}: neither run nor in NOT_RUN: {c}" for c in sorted(there - listed)]
    problems += [f"{name}: in NOT_RUN, but not in the text: {c}" for c in sorted(listed - there)]
  for row in NOT_RUN:
    print(f"{row.document}: not run, {row.reason}: {row.command}")
    words = shlex.split(row.command)
    if words[0] == "twofour":
      problems += [f"{row.document}: {row.command}: no option {o}" for o in wrong_options(options.program, row.command)]
  if options.vllm:
    problems += refused_by_vllm(options.vllm, [row for row in NOT_RUN if row.command.startswith("vllm ")])
  for problem in problems:
    print(problem)
  print(f"{len(NOT_RUN)} commands not run, {len(problems)} problems")
  return 1 if problems else 0


if __name__ == "__main__":
  sys.exit(main())
