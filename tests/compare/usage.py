"""What the program says of itself, wrong command lines, and what it prints for people."""
import checkpoints as c
from cases import COMMANDS, Case, Group, checkpoint
from sources import float_linear_of, plain

RECIPES = ("nvfp4-experts", "nvfp4-experts-and-mtp", "nvfp4-all", "w4a4-experts", "w4a16", "fp8-attention-nvfp4-experts", "deepseek-v4-nvfp4",
           "mxfp4-to-fp8", "mxfp4-to-mxfp8", "bf16", "modelopt", "compressed-tensors", "pruned-experts", "nvfp4-pruned-experts", "v7-experts",
           "v7-packed-experts", "g8-experts")


def help_group():
  """All help, as text and as documents; the pages of man; completions; lists."""
  cases = [Case("program --help", ["--help"], text=True), Case("program -h", ["-h"], text=True), Case("help", ["help"], text=True),
           Case("help markdown", ["help", "--markdown"], text=True), Case("help document", ["help"]),
           Case("man", ["man", "{out}"], lambda at: at("{out}").mkdir()), Case("lint rules", ["lint", "--rules"], text=True),
           Case("lint rules document", ["lint", "--rules"]), Case("lint explain", ["lint", "--explain", "all"], text=True),
           Case("lint explain document", ["lint", "--explain", "all"]), Case("recipes", ["recipes"], text=True),
           Case("recipes document", ["recipes"])]
  for command in COMMANDS:
    cases += [Case(f"{command} --help", [command, "--help"], text=True), Case(f"help {command}", ["help", command], text=True),
              Case(f"help {command} document", ["help", command])]
  for shell in ("bash", "zsh", "fish"):
    cases.append(Case(f"completion {shell}", ["completion", shell], text=True))
  for name in RECIPES:
    cases += [Case(f"recipes {name}", ["recipes", name], text=True), Case(f"recipes {name} document", ["recipes", name])]
  return Group("help", lambda d: d.mkdir(), cases)


def usage_group():
  commands = {
      "nothing": [], "unknown command": ["convrt"], "unknown option": ["convert", "--tu", "v7"], "version": ["--version"],
      "no source": ["convert"], "no target": ["convert", "{src}", "{out}"], "unknown layout": ["convert", "{src}", "{out}", "--to", "v8"],
      "missing source": ["convert", "{work}/none", "{out}", "--to", "v7"], "onto itself": ["convert", "{src}", "{src}", "--to", "v7"],
      "into itself": ["convert", "{src}", "{src}/inside", "--to", "v7"], "force and resume": ["convert", "{src}", "{out}", "--to", "v7", "--force", "--resume"],
      "no jobs": ["convert", "{src}", "{out}", "--to", "v7", "-j", "0"],
      "shard size no number": ["convert", "{src}", "{out}", "--to", "v7", "--max-shard-size", "big"],
      "shard size zero": ["convert", "{src}", "{out}", "--to", "v7", "--max-shard-size", "0"],
      "bad regex": ["convert", "{src}", "{out}", "--to", "v7", "--include", "re:("],
      "exclude all": ["convert", "{src}", "{out}", "--to", "v7", "--exclude", "*"],
      "also nothing": ["convert", "{src}", "{out}", "--to", "v7", "--also", "no.such"],
      "task without plan": ["convert", "{src}", "{out}", "--to", "v7", "--task", "0/2"],
      "no such plan": ["convert", "--plan", "{work}/none", "--task", "0/2"], "prune pattern": ["prune", "{src}", "{out}", "--pattern", "1:4"],
      "quantize pattern": ["quantize", "{src}", "{out}", "--pattern", "4:8-paired"], "prune nothing": ["prune", "{src}"],
      "validate a checkpoint": ["validate", "{src}"], "validate nothing": ["validate", "{work}/none"], "lint nothing": ["lint", "{work}/none"],
      "lint no argument": ["lint"], "diff one": ["diff", "{src}"], "diff missing": ["diff", "{src}", "{work}/none"],
      "run a checkpoint": ["run", "{src}", "--layer", "0", "--random", "2", "-o", "{out}"], "card of a checkpoint": ["card", "{src}"],
      "merge a checkpoint": ["merge", "{src}"], "unknown device": ["inspect", "{src}", "--device", "tpu"], "eval no text": ["eval", "{src}"],
      "generate no prompt": ["generate", "{src}"], "stats unknown action": ["stats", "look", "{src}"], "stats a checkpoint": ["stats", "inspect", "{src}"],
      "compress no text": ["compress", "{src}", "{out}", "--to", "v7"], "graft nothing": ["graft", "{src}", "{src}", "{out}"],
      "drop nothing": ["drop", "{src}", "{out}"], "plan no output": ["plan", "{src}", "{out}", "--to", "v7"],
      "inspect no argument": ["inspect"], "inspect missing": ["inspect", "{work}/none"], "quiet": ["inspect", "{src}", "-q"],
      "inspect html": ["inspect", "{src}", "--html", "{work}/page.html"], "json and sarif": ["lint", "--json", "{src}", "--sarif"],
      "completion of nothing": ["completion", "tcsh"], "man nowhere": ["man", "{work}/none"], "recipe of nothing": ["recipes", "nvfp5"],
      "help of nothing": ["help", "convrt"], "device cuda": ["convert", "{src}", "{out}", "--to", "v7", "--device", "cuda"],
      "recipe and to": ["convert", "{src}", "{out}", "--to", "v7", "--recipe", "bf16"], "short version": ["-V"]}
  config = {**c.model_config("qwen3_moe", 64, 48, experts=4), "quantization_config": c.MODELOPT}
  cases = [Case(name, words) for name, words in commands.items()]
  # Errors in words alone, without a document.
  cases += [Case(f"{name}, text", commands[name], text=True) for name in ("unknown option", "unknown layout", "missing source", "no target")]
  return Group("usage", checkpoint(lambda: c.experts(plain, 61), config), cases)


def text_group():
  """What commands print for people."""
  art, v7 = ["{src}", "{out}"], "{of:convert}"
  commands = {
      "inspect": ["inspect", "{src}"], "inspect stats": ["inspect", "{src}", "--stats", "-v"], "lint": ["lint", "{src}", "-v"],
      "lint headers": ["lint", "{src}", "--headers-only"], "convert": ["convert", *art, "--to", "v7"], "g8": ["convert", *art, "--to", "g8", "-v"],
      "dry run": ["convert", *art, "--to", "fp8", "--dry-run"], "prune": ["prune", *art], "quantize": ["quantize", *art, "--exact", "off"],
      "inspect v7": ["inspect", v7], "lint v7": ["lint", v7], "validate": ["validate", v7], "validate source": ["validate", v7, "--source", "{src}"],
      "diff": ["diff", "{src}", v7], "diff itself": ["diff", v7, v7], "run": ["run", v7, "--layer", "0", "--random", "3", "-o", "{out}"],
      "card": ["card", v7, "--base-model", "org/model", "--quantized-by", "somebody"], "card of g8": ["card", "{of:g8}"],
      "byte": ["inspect", v7, "--at", "model.layers.0.mlp.experts.w13_comp:100"],
      "values": ["inspect", v7, "--values", "model.layers.0.mlp.experts.w2[0, 1, 0:16]"],
      "synth": ["synth", "{out}", "--shape", "tiny"], "plan": ["plan", *art, "--to", "v7", "-o", "{work}/plan.json", "--tasks", "3"]}
  config = {**c.model_config("qwen3_moe", 64, 48, experts=4), "quantization_config": c.MODELOPT}
  yield Group("text NVFP4", checkpoint(lambda: c.experts(plain, 62), config), [Case(n, words, text=True) for n, words in commands.items()])
  floats = {n: words for n, words in commands.items() if n not in ("prune",)}
  yield Group("text BF16", checkpoint(lambda: c.experts(float_linear_of("BF16"), 63), c.model_config("qwen3_moe", 64, 48, experts=4)),
              [Case(n, words, text=True) for n, words in floats.items()])


def all_groups():
  yield help_group()
  yield usage_group()
  yield from text_group()
