"""graft and drop, and work that several tasks share."""
import json

import checkpoints as c
from cases import Case, Group, checkpoint, convert, readers
from published import synth
from sources import float_linear_of, plain, uneven

PLANNED = (["--to", "v7"], ["--to", "g8"], ["--to", "fp8", "--granularity", "row"], ["--to", "mxfp8"], ["--recipe", "v7-experts"],
           ["--recipe", "fp8-attention-nvfp4-experts"])
PLANNED_OF = {"NVFP4": (["--to", "nvfp4"], ["--to", "bf16"], ["--to", "prune"]),
              "BF16": (["--to", "quantize", "--pattern", "2:4"], ["--to", "mxfp4"], ["--recipe", "nvfp4-pruned-experts"])}


def task_case(name, words, tasks=2, validate=()):
  """A plan, its tasks in another order, merged and proven."""
  commands = [["plan", "{src}", "{out}", *words, "-o", "{work}/plan.json", "--max-shard-size", "20kB", "--tasks", str(tasks)]]
  commands += [["convert", "--plan", "{work}/plan.json", "--task", f"{i}/{tasks}"] for i in reversed(range(tasks))]
  return Case(name, [*commands, ["merge", "{out}"], ["merge", "{out}"], ["validate", "{out}", "--source", "{src}", *validate]])


def saliency(layers, experts):
  def prepare(at):
    c.write_safetensors(at("{work}/saliency.safetensors"), {
        f"model.layers.{layer}.mlp.experts.saliency": ("F32", (experts,), c.f32(*[i * 7 % experts for i in range(experts)])) for layer in range(layers)})
    at("{work}/kept.json").write_text(json.dumps({f"model.layers.{layer}.mlp.experts": [3, 0, 2] for layer in range(layers)}))
  return prepare


def edit_cases():
  by = ["--by", "{work}/saliency.safetensors"]
  out, prepare = ["{src}", "{out}"], saliency(2, 4)
  graft = lambda name, *take: Case(f"graft {name}", ["graft", "{src}", "{of:donor}", "{out}", *[w for t in take for w in ("--take", t)]])
  drop = lambda name, *more: Case(f"drop {name}", ["drop", *out, *more], prepare)
  cases = [graft("a layer", "model.layers.1.*"), graft("the head", "head"), graft("experts", "experts"), graft("attention and router", "attention", "router"),
           graft("embeddings", "embeddings"), graft("nothing", "mtp"), graft("a name", "model.layers.0.self_attn.o_proj"),
           drop("experts", "--experts", "3", *by), drop("to two", "--experts", "2", *by), drop("too many", "--experts", "1", *by),
           drop("no number", "--experts", "0", *by), drop("named", "--experts", "{work}/kept.json"), drop("no file", "--experts", "3"),
           drop("a layer", "--modules", "model.layers.1.*"), drop("the first layer", "--modules", "model.layers.0.*"), drop("the head", "--modules", "head"),
           drop("both", "--modules", "head", "--experts", "3", *by), drop("dry", "--experts", "3", *by, "--dry-run"),
           Case("graft dry", ["graft", "{src}", "{of:donor}", "{out}", "--take", "head", "--dry-run"]),
           Case("graft itself", ["graft", "{src}", "{src}", "{out}", "--take", "head"])]
  for name in ("graft a layer", "graft the head", "graft experts"):
    art = "{of:%s}" % name
    cases += [Case(f"{name} lint", ["lint", art]), Case(f"{name} inspect", ["inspect", art]), convert(f"{name} v7", ["v7"], source=art),
              Case(f"{name} validate", ["validate", art, "--source", "{src}", "--donor", "{of:donor}"]), Case(f"{name} card", ["card", art]),
              Case(f"{name} diff", ["diff", "{src}", art]), Case(f"{name} against", ["lint", art, "--against", "{src}"])]
  for name in ("drop experts", "drop a layer", "drop the head"):
    cases += readers(name) + [convert(f"{name} v7", ["v7"], source="{of:%s}" % name)]
  cases += [task_case("graft by tasks", ["--donor", "{of:donor}", "--take", "model.layers.1.*"], validate=["--donor", "{of:donor}"]),
            Case("diff of the donor", ["diff", "{src}", "{of:donor}"]), Case("against the donor", ["lint", "{src}", "--against", "{of:donor}"])]
  by_tasks = task_case("drop by tasks", ["--experts", "3", *by])
  by_tasks.prepare = prepare
  return cases + [by_tasks, task_case("drop modules by tasks", ["--modules", "head"])]


def all_groups():
  moe = c.model_config("qwen3_moe", 64, 48, layers=2, experts=4)
  for name, make, config in (("NVFP4", uneven, {**moe, "quantization_config": c.MODELOPT}), ("BF16", float_linear_of("BF16"), moe)):
    def donor(at, make=make, config=config):
      checkpoint(lambda: c.experts(make, 101, layers=2), config)(at("{out}"))
    # What a case prepares as {out} is its output: here the program only looks at it.
    cases = [Case("donor", ["inspect", "{out}"], donor), *edit_cases()]
    yield Group(f"edits {name}", checkpoint(lambda make=make: c.experts(make, 100, layers=2), config, shards=2, files=c.SIDE_FILES), cases)
    yield Group(f"tasks {name}", checkpoint(lambda make=make: c.experts(make, 102, intermediate=64, layers=2), config, shards=2),
                [task_case(" ".join([*words, "in", str(tasks)]), words, tasks) for words in (*PLANNED, *PLANNED_OF[name]) for tasks in (1, 3)])
  yield Group("edits stacks", checkpoint(lambda: c.stacks(c.float_stack("BF16", 4, False), 103, 4, 64), c.model_config("qwen3_5_moe", 64, 32, experts=4)), [
      Case("drop experts", ["drop", "{src}", "{out}", "--experts", "3", "--by", "{work}/saliency.safetensors"], saliency(1, 4)), *readers("drop experts")])
  yield Group("edits dense", checkpoint(lambda: c.dense(plain, 104), {**c.model_config("llama", 96, 160, layers=2), "quantization_config": c.MODELOPT}), [
      Case("drop a layer", ["drop", "{src}", "{out}", "--modules", "model.layers.1.*"]), *readers("drop a layer")])
  for shape, dialect in (("deepseek-v3", "released"), ("qwen3.6-35b-a3b", "nvidia"), ("deepseek-v4", "released")):
    small = ("--small", "--layers", "2", "--vocab", "64")
    cases = [synth(shape, dialect, *small), Case("donor", ["synth", "{out}", "--shape", shape, "--dialect", dialect, "--seed", "2", *small]),
             Case("without", ["drop", "{src}", "{out}", "--modules", "mtp"]),
             Case("graft a draft", ["graft", "{of:without}", "{of:donor}", "{out}", "--take", "mtp"]),
             Case("replace a draft", ["graft", "{src}", "{of:donor}", "{out}", "--take", "mtp"])]
    for name in ("without", "replace a draft"):
      cases += [Case(f"{name} lint", ["lint", "{of:%s}" % name]), Case(f"{name} diff", ["diff", "{src}", "{of:%s}" % name]),
                Case(f"{name} nvfp4", ["quantize", "{of:%s}" % name, "{out}"])]
    cases.append(Case("validate a draft", ["validate", "{of:replace a draft}", "--source", "{src}", "--donor", "{of:donor}"]))
    yield Group(f"drafts {shape}", None, cases)
