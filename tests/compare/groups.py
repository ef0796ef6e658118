"""All groups, in the order in which they run."""
import json
import pathlib

import configs
import damage
import edges
import edits
import models
import module
import names
import published
import sources
import usage
import words
from cases import Group, folder, nvfp4_cases, old_artifact_cases

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"


def artifact_groups():
  """The artifacts that earlier versions wrote, each with the source that its diff in outcomes.json names."""
  artifacts = GOLDEN / "artifacts"
  for entry in json.loads((artifacts / "outcomes.json").read_text()):
    if entry["run"][0] == "diff":
      version, name = entry["artifact"].split("/")
      yield Group(f"artifact of {version}: {name}", folder(artifacts / version / name), old_artifact_cases(artifacts / entry["run"][1]))


def golden_groups():
  for name in ("modelopt-qwen3", "modelopt-mixtral-uneven", "compressed-tensors-qwen3"):
    yield Group(f"golden {name}", folder(GOLDEN / name / "src"), nvfp4_cases("*o_proj", name != "modelopt-mixtral-uneven"))
  yield from artifact_groups()


def all_groups():
  yield from golden_groups()
  for part in (published, sources, damage, edges, usage, words, names, configs, edits, models, module):
    yield from part.all_groups()
