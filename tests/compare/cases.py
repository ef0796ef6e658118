"""What a case is, and what is done with a source: the commands of a checkpoint by what it holds.

In the arguments of a case {src} is the group's source, {out} what it writes, {of:NAME} what the case NAME of the same
group wrote, {work} a folder of its own, all of which is compared. The cases of a group run in order.
"""
import dataclasses
import re
import shutil
from typing import Callable, Optional

import checkpoints as c

COMMANDS = ("inspect", "lint", "prune", "quantize", "convert", "compress", "graft", "drop", "plan", "recipes", "stats", "merge", "diff",
            "validate", "run", "eval", "generate", "card", "synth", "completion", "man", "help")


@dataclasses.dataclass
class Case:
  name: str
  args: list  # words of one command, or of several
  prepare: Optional[Callable] = None  # prepare(places) makes inputs in {work}; places maps placeholders to paths
  reads: tuple = ()  # names of cases that wrote what `prepare` reads
  text: bool = False  # print for people, without --json

  @property
  def commands(self):
    several = self.args if self.args and isinstance(self.args[0], list) else [self.args]
    return several if self.text else [with_json(words) for words in several]

  @property
  def needs_module(self):
    return self.args[:1] == ["module"]

  @property
  def needs(self):
    """Names of the cases that wrote what this one reads."""
    return set(re.findall(r"\{of:([^}]*)\}", " ".join(word for words in self.commands for word in words))) | set(self.reads)


def with_json(words):
  if not words or words[0] not in COMMANDS or {"--json", "--sarif", "--help"} & set(words):
    return words
  return [words[0], "--json", *words[1:]]


@dataclasses.dataclass
class Group:
  name: str
  source: Optional[Callable]  # source(directory) makes it; None: the first case writes what the others read
  cases: list
  thorough: bool = False  # left out by --quick


# --- What is done with every source -------------------------------------------------------------------------
LAYOUTS = ("v7", "v7-packed", "g8")
TO = {"v7": ["v7"], "v7-packed": ["v7-packed"], "g8": ["g8"], "nvfp4": ["nvfp4"],
      "nvfp4-modelopt": ["nvfp4", "--dialect", "modelopt"],
      "nvfp4-compressed": ["nvfp4", "--dialect", "compressed-tensors"], "bf16": ["bf16"], "fp8": ["fp8"],
      "fp8-deepseek": ["fp8", "--dialect", "deepseek"], "mxfp8": ["mxfp8"], "mxfp4": ["mxfp4"],
      "fp8-odd": ["fp8", "--granularity", "block", "--odd-blocks", "write"], "fp8-off": ["fp8", "--exact", "off"],
      "fp8-32": ["fp8", "--block", "32x32", "--odd-blocks", "write", "--scale-dtype", "bf16"],
      "mxfp4-compressed": ["mxfp4", "--dialect", "compressed-tensors", "--arithmetic", "modelopt"]}
for _dialect in ("modelopt", "compressed-tensors"):
  for _granularity in ("tensor", "row", "block"):
    TO[f"fp8-{_dialect}-{_granularity}"] = ["fp8", "--dialect", _dialect, "--granularity", _granularity]
PUBLISHED = ("nvfp4-experts", "nvfp4-all", "w4a4-experts", "w4a16", "fp8-attention-nvfp4-experts", "mxfp4-to-fp8", "mxfp4-to-mxfp8", "bf16",
             "modelopt", "compressed-tensors", "nvfp4-pruned-experts", "v7-experts", "g8-experts")


def convert(name, to, *options, source="{src}"):
  return Case(name, ["convert", source, "{out}", "--to", *to, *options])


#: One thread where casts must be exact: with several it depends on their times how many modules a refusal names.
ALONE = ["-j", "1"]


def recipe(name, source="{src}"):
  return Case(f"recipe {name}", ["convert", source, "{out}", "--recipe", name, *(ALONE if name == "deepseek-v4-nvfp4" else [])])


def readers(name, source="{src}", run=False, full=True):
  """Commands that read the output of case `name`."""
  art = "{of:%s}" % name
  if not full:
    return [Case(f"{name} lint", ["lint", art]),
            Case(f"{name} validate source", ["validate", art, "--source", source, "--tokens", "0"])]
  cases = [Case(f"{name} inspect", ["inspect", art]), Case(f"{name} inspect stats", ["inspect", art, "--stats"]),
           Case(f"{name} lint", ["lint", art]), Case(f"{name} validate", ["validate", art]), Case(f"{name} card", ["card", art]),
           Case(f"{name} validate source", ["validate", art, "--source", source, "--tokens", "2"]),
           Case(f"{name} diff", ["diff", source, art]), Case(f"{name} diff back", ["diff", art, source])]
  if run:
    cases += [Case(f"{name} run", ["run", art, "--layer", "0", "--random", "5", "--seed", "3", "-o", "{out}"]),
              Case(f"{name} run limit", ["run", art, "--layer", "0", "--random", "2", "--limit", "1.5", "-o", "{out}"]),
              Case(f"{name} run no such layer", ["run", art, "--layer", "77", "--random", "2", "-o", "{out}"])]
  return cases


def back(name):
  art = "{of:%s}" % name
  return [convert(f"{name} to nvfp4", ["nvfp4"], source=art), convert(f"{name} to bf16", ["bf16"], source=art),
          convert(f"{name} to modelopt", TO["nvfp4-modelopt"], source=art),
          convert(f"{name} to compressed", TO["nvfp4-compressed"], source=art),
          convert(f"{name} to v7", ["v7"], source=art), convert(f"{name} to fp8", ["fp8"], source=art),
          Case(f"{name} prune", ["prune", art, "{out}"]), Case(f"{name} quantize", ["quantize", art, "{out}"])]


def looks(full):
  cases = [Case("inspect stats", ["inspect", "{src}", "--stats"]), Case("lint", ["lint", "{src}"])]
  if not full:
    return cases
  return cases + [Case("inspect", ["inspect", "{src}"]), Case("lint headers", ["lint", "{src}", "--headers-only"]),
          Case("lint sarif", ["lint", "{src}", "--sarif"]), Case("lint html", ["lint", "{src}", "--html", "{work}/lint.html"]),
          Case("lint publish", ["lint", "{src}", "--profile", "publish"]), Case("lint serve", ["lint", "{src}", "--profile", "serve"]),
          Case("diff itself", ["diff", "{src}", "{src}"]), Case("validate", ["validate", "{src}"]),
          Case("run", ["run", "{src}", "--layer", "0", "--random", "2", "-o", "{out}"])]


def nvfp4_cases(also=None, full=False):
  cases = looks(full) + [convert(name, to) for name, to in TO.items()]
  cases += [Case("prune", ["prune", "{src}", "{out}"]), Case("prune paired", ["prune", "{src}", "{out}", "--pattern", "4:8-paired"]),
            Case("quantize", ["quantize", "{src}", "{out}"]), convert("v7 strict", ["v7"], "--fold", "strict")]
  if not full:
    if also:
      cases.append(convert("v7 also", ["v7"], "--also", also))
    for name in ("v7", "g8", "nvfp4", "prune"):
      cases += readers(name, full=False)
    cases += [convert("v7 to nvfp4", ["nvfp4"], source="{of:v7}"), convert("g8 to bf16", ["bf16"], source="{of:g8}"),
              convert("nvfp4 and back", ["nvfp4"], source="{of:nvfp4}"),
              Case("v7 run", ["run", "{of:v7}", "--layer", "0", "--random", "5", "--seed", "3", "-o", "{out}"]),
              Case("g8 run", ["run", "{of:g8}", "--layer", "0", "--random", "5", "--seed", "3", "-o", "{out}"])]
    return cases
  cases += options(["convert", "{src}", "{out}", "--to", "v7"], "v7", also)
  cases += options(["prune", "{src}", "{out}"], "prune", also)
  cases += [convert("bf16 some", ["bf16"], "--include", "*down_proj", "*w2"), convert("fp8 some", ["fp8"], "--exclude", "*down_proj", "*w2"),
            convert("g8 shards", ["g8"], "--max-shard-size", "30kB"), *[recipe(name) for name in PUBLISHED]]
  for name in LAYOUTS:
    cases += readers(name, run=True) + back(name)
  for name in ("nvfp4", "bf16", "fp8", "prune", "prune paired"):
    cases += readers(name)
  for name in ("nvfp4", "prune"):
    cases += back(name)
  return cases


def options(command, name, also):
  """The options that every command that writes has."""
  cases = [Case(f"{name} {what}", command + list(more)) for what, *more in (
      ("layer 0", "--include", "re:.*layers\\.0\\..*"), ("but layer 0", "--exclude", "*layers.0.*"),
      ("include nothing", "--include", "no.such.module"), ("shards", "--max-shard-size", "20kB"),
      ("one shard", "--max-shard-size", "5GB"), ("no verify", "--no-verify"), ("direct", "--io", "direct"),
      ("one thread", "-j", "1"), ("many threads", "-j", "7"), ("dry run", "--dry-run"), ("html", "--html", "{work}/page.html"))]
  if also:
    cases.append(Case(f"{name} also", command + ["--also", also]))
  return cases


def float_cases(full=True):
  cases = looks(full)
  for dialect in ("modelopt", "compressed-tensors"):
    for scale in ("max", "mse", "four-over-six"):
      args = ["quantize", "{src}", "{out}", "--dialect", dialect, "--block-scale", scale]
      name = f"{dialect} {scale}"
      cases += [Case(name, args), Case(f"{name} pruned", args + ["--pattern", "2:4"])]
      if not full:
        continue
      other = "modelopt" if dialect == "compressed-tensors" else "compressed-tensors"
      cases += [Case(f"{name} zero block", args + ["--zero-block", "zero"]), Case(f"{name} other arithmetic", args + ["--arithmetic", other]),
                Case(f"{name} other arithmetic zero block pruned",
                     args + ["--arithmetic", other, "--zero-block", "zero", "--pattern", "2:4"])]
  cases += [convert(n, TO[n]) for n in ("v7", "g8", "nvfp4", "bf16", "fp8", "fp8-deepseek", "fp8-modelopt-tensor", "fp8-odd", "mxfp8", "mxfp4")]
  cases += [Case("prune", ["prune", "{src}", "{out}"]), Case("quantize off", ["quantize", "{src}", "{out}", "--exact", "off"]),
            Case("quantize constant", ["quantize", "{src}", "{out}", "--input-scale", "constant=0.5"])]
  for name in ("modelopt max", "compressed-tensors mse pruned"):
    cases += readers(name, full=full) + [convert(f"{name} to {to}", TO[to], source="{of:%s}" % name)
                                         for to in ("v7", "g8", "nvfp4", "bf16", "fp8")]
    cases.append(Case(f"{name} kept", ["quantize", "{src}", "{out}", "--dialect", name.split()[0], "--keep-global-scale", "{of:%s}" % name]))
  if full:
    cases += options(["quantize", "{src}", "{out}"], "quantize", "lm_head") + [tasks("quantize")] + [recipe(name) for name in PUBLISHED]
  for name in ("bf16", "fp8"):
    cases += readers(name, full=full)
  return cases


def tasks(to):
  """A plan made, its tasks done, merged: all by the same program, in one case's directory."""
  return Case(f"tasks {to}", [
      ["plan", "{src}", "{out}", "--to", to, "-o", "{work}/plan.json", "--max-shard-size", "20kB", "--tasks", "2"],
      ["convert", "--plan", "{work}/plan.json", "--task", "1/2"], ["merge", "{out}"],
      ["convert", "--plan", "{work}/plan.json", "--task", "0/2"], ["merge", "{out}"], ["validate", "{out}"]])


# --- How sources are made -----------------------------------------------------------------------------------
def folder(path):
  return lambda d: shutil.copytree(path, d)


def checkpoint(tensors, config, **more):
  return lambda d: c.write_checkpoint(d, tensors(), config, **more)


def damaged_case(name, args, damage, of="v7"):
  """A command on {work}/art, a damaged copy of what the case `of` wrote."""
  return Case(name, args, lambda at: damage(c.Copy(at("{of:%s}" % of), at("{work}/art"))), (of,))


def old_artifact_cases(source):
  """What every command makes of an artifact that an earlier version wrote."""
  cases = looks(True) + [Case("card", ["card", "{src}"]), Case("validate source", ["validate", "{src}", "--source", str(source), "--tokens", "2"]),
                         Case("diff", ["diff", str(source), "{src}"]), Case("check", ["convert", "{src}", "{out}", "--to", "nvfp4", "--check"])]
  cases += [convert(f"to {name}", to) for name, to in TO.items()]
  return cases + [Case("prune", ["prune", "{src}", "{out}"]), Case("quantize", ["quantize", "{src}", "{out}"])]
