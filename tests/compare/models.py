"""Whole models: eval, generate, statistics, what is chosen by them, compress. The models are those of tests/golden/decoder."""
import json
import pathlib

import checkpoints as c
from cases import Case, Group, convert, readers

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
TEXT = "HELLOABCWORLD" * 40


def model(name, edit=None):
  """A golden model with a tokenizer, beside it tokens and a text that {src}/../ names."""
  def make(d):
    golden = json.loads((GOLDEN / "decoder" / f"{name}.json").read_text())
    tensors = {n: c.golden_weights(n, shape) for n, shape in golden["tensors"].items()}
    if edit:
      edit(tensors)
    c.write_checkpoint(d, tensors, golden["config"], files={"tokenizer.json": c.letter_tokenizer()})
    numbers = [(i * i + i // 5) % 48 for i in range(4 * 256)]
    for file, rows in (("tokens", numbers), ("others", numbers[512:][::-1])):
      c.write_safetensors(d.with_name(f"{file}.safetensors"), {
          "tokens": ("I32", (len(rows) // 256, 256), b"".join(n.to_bytes(4, "little") for n in rows))})
    d.with_name("text.txt").write_text(TEXT)
  return make


TOKENS, OTHERS, TEXTS = (["--tokens", "{src}/../tokens.safetensors"], ["--tokens", "{src}/../others.safetensors"], ["--text", "{src}/../text.txt"])
STATS = ["--stats", "{of:stats}/s"]


def collect(name, *words):
  return Case(name, ["stats", "collect", "{src}", *words, "-o", "{out}/s"], lambda at: at("{out}").mkdir())


def family_cases(experts):
  """What is done with a model of every family."""
  out = ["{src}", "{out}"]
  cases = [Case("inspect", ["inspect", "{src}", "--stats"]), Case("lint", ["lint", "{src}"]), Case("lint headers", ["lint", "{src}", "--headers-only"]),
           Case("lint publish", ["lint", "{src}", "--profile", "publish"]), Case("eval", ["eval", "{src}", *TOKENS, "--limit", "2"]),
           Case("eval a text", ["eval", "{src}", *TEXTS, "--context", "32", "--limit", "2"]), Case("eval dry", ["eval", "{src}", *TOKENS, "--dry-run"]),
           Case("generate", ["generate", "{src}", "--prompt", "HELLO", "--max-tokens", "8"]), collect("stats", *OTHERS, "--context", "128"),
           Case("stats inspect", ["stats", "inspect", "{of:stats}/s"]), Case("stats check", ["stats", "check", "{of:stats}/s", "{src}"]),
           Case("quantize", ["quantize", *out]), Case("quantize stats", ["quantize", *out, *STATS, "--pattern", "2:4"]),
           *[convert(to, [to]) for to in ("v7", "g8", "nvfp4", "fp8", "mxfp8", "mxfp4", "bf16")], Case("prune", ["prune", "{of:quantize}", "{out}"])]
  for name in ("v7", "quantize", "fp8"):
    cases += readers(name, run=experts and name == "v7")
    cases.append(Case(f"{name} eval", ["eval", "{of:%s}" % name, *TOKENS, "--against", "{src}", "--limit", "1"]))
  return cases + [Case("g8 generate", ["generate", "{of:g8}", "--prompt", "HELLO", "--max-tokens", "4", "--against", "{src}"]),
                  Case("quantize stats validate", ["validate", "{of:quantize stats}", "--source", "{src}", *STATS])]


def with_fisher(at):
  """The statistics that the case "stats" wrote, with Fisher sums of a closed form beside each entry."""
  path = at("{of:stats}") / "s"
  tensors, metadata = c.read_safetensors(path), c.read_header(path)[0]["__metadata__"]
  for i, (name, (_, _, content)) in enumerate(sorted(tensors.items())):
    if name.endswith(".count"):
      entry = name[:-len(".count")]
      k = len(tensors[f"{entry}.sum_squares"][2]) // 4 if f"{entry}.sum_squares" in tensors else tensors[f"{entry}.hessian"][1][-1]
      if len(tensors.get(f"{entry}.hessian", ("", (1, 1)))[1]) == 1:
        k = int(((8 * k + 1)**0.5 - 1) / 2)
      count = int.from_bytes(content, "little")
      scale = [(1 + (i + j) % 7) * 1e-3 for j in range(k)]
      tensors[f"{entry}.fisher_hessian"] = ("F32", (k, k), c.f32(*[
          count * scale[a] * scale[b] * (1.0 if a == b else 0.25) for a in range(k) for b in range(k)]))
  at("{work}").mkdir(exist_ok=True)
  c.write_safetensors(at("{work}/fisher.safetensors"), dict(sorted(tensors.items())), metadata)


def solver_cases(experts):
  """Weights that statistics choose, in every way; budgets; statistics merged, imported and damaged."""
  out = ["{src}", "{out}"]
  cases = [collect("stats", *TOKENS), collect("others", *OTHERS), collect("a text", *TEXTS, "--context", "40", "--limit", "3"),
           collect("held out", *TOKENS, "--held-out", "1"), Case("collect dry", ["stats", "collect", "{src}", *TOKENS, "-o", "{out}", "--dry-run"]),
           Case("merge", ["stats", "merge", "{out}/s", "{of:stats}/s", "{of:others}/s"], lambda at: at("{out}").mkdir()),
           Case("merge twice", ["stats", "merge", "{out}/s", "{of:stats}/s", "{of:stats}/s"], lambda at: at("{out}").mkdir()),
           Case("merge inspect", ["stats", "inspect", "{of:merge}/s"]), Case("check", ["stats", "check", "{of:merge}/s", "{src}"]),
           Case("nvfp4", ["quantize", *out]), Case("check of others", ["stats", "check", "{of:stats}/s", "{of:nvfp4}"]),
           Case("check strictly", ["stats", "check", "{of:stats}/s", "{src}", "--strict-stats"])]
  for method in ("joint", "gptq", "wanda", "rtn", "magnitude"):
    for pattern in ("none", "2:4", "4:8-paired"):
      words = ["--pattern", pattern] if pattern != "none" else []
      cases.append(Case(f"quantize {method} {pattern}", ["quantize", *out, *STATS, "--method", method, *words]))
    for to in ("v7", "g8"):
      cases.append(Case(f"{to} {method}", ["convert", *out, "--to", to, *STATS, "--method", method]))
    cases.append(Case(f"prune {method}", ["prune", "{of:nvfp4}", "{out}", *STATS, "--method", method]))
  cases += [Case("quantize sweeps", ["quantize", *out, *STATS, "--sweeps", "0"]), Case("quantize strict", ["quantize", *out, *STATS, "--strict-stats"]),
            Case("quantize compressed", ["quantize", *out, *STATS, "--dialect", "compressed-tensors"]),
                Case("v7-packed", ["convert", *out, "--to", "v7-packed", *STATS]),
            Case("quantize held out", ["quantize", *out, "--stats", "{of:held out}/s", "--pattern", "2:4"]),
            Case("quantize head", ["quantize", *out, *STATS, "--also", "lm_head"]), Case("quantize one thread", ["quantize", *out, *STATS, "-j", "1"]),
            Case("diff html", ["diff", "{src}", "{of:nvfp4}", "--html", "{work}/page.html"]),
            Case("eval html", ["eval", "{of:nvfp4}", *OTHERS, "--against", "{src}", "--html", "{work}/page.html"])]
  for name in ("quantize joint 2:4", "quantize gptq none", "v7 joint", "g8 rtn", "prune joint", "quantize wanda 4:8-paired"):
    art, source = "{of:%s}" % name, "{of:nvfp4}" if name.startswith("prune") else "{src}"
    cases += [Case(f"{name} validate", ["validate", art, "--source", source, *STATS]),
        Case(f"{name} all rows", ["validate", art, "--source", source, *STATS, "--all-rows"]),
              Case(f"{name} without statistics", ["validate", art, "--source", source]), Case(f"{name} lint", ["lint", art]),
              Case(f"{name} card", ["card", art]), Case(f"{name} eval", ["eval", art, *OTHERS, "--against", "{src}"])]
  fisher = ["--stats", "{work}/fisher.safetensors"]
  budget = lambda name, *words: Case(f"budget: {name}", [*words, *fisher], with_fisher, ("stats",))
  cases += [budget("quantize", "quantize", *out, "--pattern", "2:4", "--budget", "0.5"),
            budget("loss", "quantize", *out, "--pattern", "2:4", "--max-loss", "1e-5"), budget("prune", "prune", "{of:nvfp4}", "{out}", "--budget", "1"),
            budget("curve", "quantize", *out, "--pattern", "2:4", "--budget", "0.5", "--dry-run"),
                budget("layout", "convert", *out, "--to", "v7", "--budget", "0.6"),
            budget("plan", "plan", *out, "--to", "quantize", "--pattern", "2:4", "--budget", "0.5", "-o", "{work}/plan.json"),
            budget("page", "quantize", *out, "--pattern", "2:4", "--budget", "0.5", "--html", "{work}/page.html"),
                budget("no pattern", "quantize", *out, "--budget", "0.5"), budget("too much", "quantize", *out, "--pattern", "2:4", "--budget", "1.5"),
            Case("budget: no Fisher sums", ["quantize", *out, *STATS, "--pattern", "2:4", "--budget", "0.5"])]

  def imatrix(at):
    sums = lambda k, rows: [[1.0 + (i * 7 + e) % 11 for i in range(k)] for e in range(rows)]
    routed = {"blk.1.ffn_gate_exps.weight": (sums(32, 8), [5.0] * 8), "blk.1.ffn_down_exps.weight": (sums(16, 8), [4.0] * 8)}
    c.write_imatrix(at("{work}/im.gguf"), {"blk.0.attn_q.weight": (sums(32, 1), [9.0]), **(routed if experts else {})})
  cases += [Case("import", ["stats", "import", "{out}/s", "{work}/im.gguf", "{src}"], lambda at: (imatrix(at), at("{out}").mkdir())),
            Case("import check", ["stats", "check", "{of:import}/s", "{src}"]),
                Case("import wanda", ["quantize", *out, "--stats", "{of:import}/s", "--pattern", "2:4"]),
            Case("import of nothing", ["stats", "import", "{out}", "{src}/config.json", "{src}"])]

  def damaged(change):
    def prepare(at):
      path = at("{of:stats}") / "s"
      tensors, metadata = c.read_safetensors(path), c.read_header(path)[0]["__metadata__"]
      change(tensors, metadata)
      c.write_safetensors(at("{work}/bad"), tensors, metadata)
    return prepare
  first = lambda t, ending: next(n for n in sorted(t) if n.endswith(ending))
  for name, change in {
      "format": lambda t, m: m.update(format="twofour statistics 9"), "structure": lambda t, m: m.update(structure="0" * 32),
      "weights": lambda t, m: m.update(weights="0" * 32), "no count": lambda t, m: t.pop(first(t, ".count")),
      "NaN": lambda t, m: t.update({first(t, ".hessian"): (*t[first(t, ".hessian")][:2], c.f32(float("nan")) + t[first(t, ".hessian")][2][4:])}),
      "renamed": lambda t, m: t.update({"model.nothing.hessian": t.pop(first(t, ".hessian"))})}.items():
    cases += [Case(f"bad {name} {what}", words, damaged(change), ("stats",)) for what, words in {
        "check": ["stats", "check", "{work}/bad", "{src}"], "inspect": ["stats", "inspect", "{work}/bad"],
        "quantize": ["quantize", *out, "--stats", "{work}/bad"]}.items()]
  return cases


def compress_cases():
  command = lambda *words: ["compress", "{src}", "{out}", *TOKENS, "--context", "128", *words]
  kept = ["--keep-stats", "{work}/kept"]
  ways = {"nvfp4": ["--to", "nvfp4"], "2:4": ["--to", "nvfp4", "--pattern", "2:4"], "paired": ["--to", "nvfp4", "--pattern", "4:8-paired"],
      "v7": ["--to", "v7"],
          "g8": ["--to", "g8"], "v7-packed": ["--to", "v7-packed"], "layer": ["--to", "v7", "--sequential", "layer"],
          "none": ["--to", "v7", "--sequential", "none"],
          "wanda": ["--to", "nvfp4", "--pattern", "2:4", "--method", "wanda"], "rtn": ["--to", "nvfp4", "--method", "rtn"],
          "compressed-tensors": ["--to", "nvfp4", "--dialect", "compressed-tensors"], "recipe": ["--recipe", "nvfp4-all"],
          "experts": ["--recipe", "v7-experts"], "head": ["--to", "nvfp4", "--also", "lm_head"],
          "limit": ["--to", "nvfp4", "--limit", "2"], "dry": ["--to", "v7", "--dry-run"], "no target": [], "one thread": ["--to", "v7", "-j", "1"]}
  cases = [Case(name, command(*words, *kept)) for name, words in ways.items()]
  cases.append(Case("text", ["compress", "{src}", "{out}", *TEXTS, "--to", "nvfp4", "--context", "64"]))
  for name in ("2:4", "v7", "recipe"):
    cases += [Case(f"{name} validate", ["validate", "{of:%s}" % name, "--source", "{src}", "--stats", "{of:%s}/../kept" % name]),
              Case(f"{name} lint", ["lint", "{of:%s}" % name]), Case(f"{name} eval", ["eval", "{of:%s}" % name, *OTHERS, "--against", "{src}"])]
  return cases


def all_groups():
  for path in sorted((GOLDEN / "decoder").glob("*.json")):
    experts = any(".experts." in name for name in json.loads(path.read_text())["tensors"])
    yield Group(f"model {path.stem}", model(path.stem), family_cases(experts), thorough="-" in path.stem)
  for name in ("qwen3_moe", "llama"):
    yield Group(f"statistics {name}", model(name), solver_cases(name == "qwen3_moe"), thorough=name != "qwen3_moe")
  for name in ("qwen3_moe", "llama", "gpt_oss", "deepseek_v3"):
    yield Group(f"compress {name}", model(name), compress_cases(), thorough=name not in ("qwen3_moe", "llama"))
