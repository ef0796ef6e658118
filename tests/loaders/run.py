#!/usr/bin/env python3
"""Models of every family and exports of their producers, held against the real loaders.

  TWOFOUR=build/release/tools/twofour VLLM=build/loaders/vllm/bin/python run.py [--only PART ...] [--work DIR] [-v]

PART: a part of a name in the table, as llama, BIG/qwen3_moe, MIXED. Exit code 1: a check failed.
"""
import argparse
import json
import logging
import os
import pathlib
import subprocess
import sys
import warnings

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("LLM_COMPRESSOR_LOG_LEVEL", "ERROR")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are smaller than what a second thread costs
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

HERE = pathlib.Path(__file__).resolve().parent


def resolve(report, subjects, python):
  """Asks vLLM's classes, in their own environment, about every checkpoint at once."""
  import dequantize
  jobs = [{"folder": str(folder), "architecture": dequantize.read_config(folder)["architectures"][0]}
          for subject in subjects for _, folder, _ in subject.to_resolve]
  done = subprocess.run([python, HERE / "resolve.py"], input=json.dumps(jobs), capture_output=True, text=True)
  if done.returncode:
    raise SystemExit(f"resolve.py failed: {done.stderr[-2000:]}")
  found = json.loads(done.stdout[done.stdout.index("{"):])
  for subject in subjects:
    for command, folder, refusal in subject.to_resolve:
      wrong = found[str(folder)]
      message = f"{len(wrong)} layers: {'; '.join(wrong[:3])}" if wrong else None
      if refusal:
        message = None if any(refusal in line for line in wrong) else f"expected '{refusal}', found {message}"
      report.add(subject.name, f"{command}: vLLM's classes", message)


def subjects_of(options, program, report):
  """What to run, in order: families, then repairs, then exports."""
  import exports
  import families
  import models
  import producers
  import repairs
  wanted = lambda name: not options.only or any(part in name for part in options.only)
  for name in models.MODELS:
    if wanted(name):
      yield families.Family(name, options.work, program, report)
  for name in models.BIG_NAMES:
    if wanted(f"repair {name}"):
      yield repairs.Repairs(name, options.work, program, report)
  for producer, kind in exports.EXPORTS:
    for model in models.BIG_NAMES:
      subject = producers.Export(model, producer, kind, options.work, program, report)
      if wanted(subject.name) and exports.exists(model, kind):
        yield subject


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--only", nargs="+", default=[])
  parser.add_argument("--work", type=pathlib.Path, default=HERE.parent.parent / "build" / "loaders" / "work")
  parser.add_argument("-v", "--verbose", action="store_true")
  options = parser.parse_args()

  import models
  import producers
  from commands import Program
  from report import Report
  program, report = Program(os.environ["TWOFOUR"]), Report(options.verbose)
  done = []
  for subject in subjects_of(options, program, report):
    if isinstance(subject, producers.Export):
      source = options.work / subject.model / "source"
      if not source.exists():
        models.make(subject.model, source)
      report.check(subject.name, "export and run", lambda: subject.run(source))
    else:
      report.check(subject.name, "make and run", subject.run)
    done.append(subject)
  resolve(report, done, os.environ["VLLM"])
  report.print_table()
  return 1 if report.failures() else 0


if __name__ == "__main__":
  sys.exit(main())
