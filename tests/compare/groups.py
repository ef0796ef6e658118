"""All groups, in the order in which they run."""
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
OF_COMPRESSED = ("v7-compressed-tensors", "nvfp4-modelopt")  # golden artifacts of a source in compressed-tensors' dialect


def golden_groups():
  for name in ("modelopt-qwen3", "modelopt-mixtral-uneven", "compressed-tensors-qwen3"):
    yield Group(f"golden {name}", folder(GOLDEN / name / "src"), nvfp4_cases("*o_proj", name != "modelopt-mixtral-uneven"))
  for path in sorted((GOLDEN / "artifacts").iterdir()):
    if path.is_dir() and path.name != "source":
      source = "bf16" if path.name.startswith("quantize") else "compressed-tensors" if path.name in OF_COMPRESSED else "modelopt"
      yield Group(f"artifact of 0.1.0: {path.name}", folder(path), old_artifact_cases(GOLDEN / "artifacts" / "source" / source))


def all_groups():
  yield from golden_groups()
  for part in (published, sources, damage, edges, usage, words, names, configs, edits, models, module):
    yield from part.all_groups()
