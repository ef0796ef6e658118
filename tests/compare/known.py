"""The differences from e2686c9 that are wanted, each with its reason."""
import dataclasses
import fnmatch


@dataclasses.dataclass
class Known:
  """A wanted difference: of exit codes, of whole outputs, or of fields of documents."""
  name: str
  reason: str
  cases: tuple  # globs of GROUP/CASE
  exits: tuple = ()  # pairs (old, new)
  outputs: tuple = ()  # globs of what is compared: "stdout", "stdout 2", "out/twofour.json"
  fields: tuple = ()  # globs of fields, "modules/*/layout"; without them an output may differ as a whole

  def covers(self, case):
    return any(fnmatch.fnmatchcase(case, glob) for glob in self.cases)

  def covers_exits(self, case, exits):
    return exits in self.exits and self.covers(case)

  def covers_output(self, case, output, fields):
    """`fields` are those that differ; None where the output is no document, or differs in its form."""
    if not self.covers(case) or not any(fnmatch.fnmatchcase(output, glob) for glob in self.outputs):
      return False
    if not self.fields:
      return True
    return fields is not None and all(any(fnmatch.fnmatchcase(f, glob) for glob in self.fields) for f in fields)


CONFIG = ("out/config.json", "out/hf_quant_config.json", "out/twofour.json")
NEW_OPTIONS = ("compress", "convert", "diff", "drop", "eval", "generate", "graft", "inspect", "plan", "prune", "quantize", "stats")

KNOWN = [
    Known("format 4", "twofour.json got words that older readers would ignore, once for 0.3.0", ("*",),
          outputs=("*twofour.json",), fields=("format",)),
    Known("a manifest of a later format", "the message says which formats are read, and who reads a later one",
          ("artifacts/manifest of a later format *",), outputs=("stdout",), fields=("error", "findings/*/message")),
    Known("solved bytes", "statistics are shrunk and scales searched further, by words of rules that twofour.json has",
          ("compress */*", "model */quantize stats*", *(f"statistics */*{how}*" for how in (
              "joint", "gptq", "wanda", "rtn", "sweeps", "strict", "compressed", "held out", "head", "one thread", "v7-packed", "budget: "))),
          outputs=("stdout", "out/*", "work/*")),
    Known("options and keys", "--zero-points, --follow-links, --shrink and --scale-search are options, most of them keys of recipes",
          ("help/completion *", "help/man", "help/help markdown", "help/recipes --help", "help/help recipes*",
           *(f"help/{n} --help" for n in NEW_OPTIONS), *(f"help/help {n}*" for n in NEW_OPTIONS)),
          outputs=("stdout", "out/twofour-*.1")),
    Known("keys of recipes", "zero_points, shrink and scale_search are keys", ("recipes */recipe: unknown key",), outputs=("stdout",), fields=("error",)),
    Known("rules of lint", "link-outside is a rule, and changed-weights says what it looks up", ("*/lint sarif",), outputs=("stdout",),
          fields=("runs/0/tool/driver/rules/*", "runs/0/results/*/ruleIndex")),
    Known("lists of rules", "link-outside is a rule, and changed-weights says what it looks up",
          ("artifacts/lint rules", "help/lint explain*", "help/lint rules*"), outputs=("stdout",)),
    Known("what changed-weights says", "it looks up parts, terms and state in one closed list", ("terms: */lint",), outputs=("stdout",),
          fields=("rules/*/what", "rules/*/help", "rules/*/consequence")),
    Known("zero points that contradict the config", "they are an error of their own", ("terms: zero points/lint",), outputs=("stdout",)),
    Known("scales without codes", "an incomplete module is one finding, in every format",
          ("damaged: no codes/lint", "damaged: no codes/lint headers"), outputs=("stdout",)),
    Known("links to nowhere", "one wording for them", ("damaged: dangling link/*",), outputs=("stdout",), fields=("findings/*/message",)),
    Known("cards", "a card says which engines load an artifact", ("*card", "text */card*", "module */commands"), outputs=("stdout",)),
    Known("sizes of sources", "a line says the size of the source's weight files", ("text *",), outputs=("stdout",)),
    Known("modules without inputs", "stats check counts them", ("statistics *check*", "model *stats check"), outputs=("stdout",), fields=("without_inputs",)),
    Known("NaN among global scales", "e2686c9 lets the order of threads decide", ("damaged: NaN global scale/inspect",),
          outputs=("stdout",), fields=("nvfp4_modules/*/stats/global_scale_m*",)),
    Known("version", "xtensor is a library", ("usage/version", "usage/short version"), outputs=("stdout",)),
    Known("patterns of configs", "SGLang and TensorRT-LLM read patterns and classes in other ways: the names of modules are written",
          ("configs *nvfp4", "damaged: head quantized/nvfp4", "damaged: quantized and ignored/nvfp4"), outputs=CONFIG),
    Known("warnings on configs", "what is left without codes by such a pattern is named",
          ("configs *nvfp4", "damaged: head quantized/nvfp4", "damaged: quantized and ignored/nvfp4", "published *quantize to nvfp4"),
          outputs=("stdout",), fields=("findings", "findings/*")),
    Known("groups of configs", "modules without input scales are a group of weights alone, since engines expect input scales else",
          ("published *quantize to nvfp4",), outputs=CONFIG),
    Known("drop leaves a config that lints", "targets that have nothing left go",
          ("published *without the draft", "names deepseek_v3*/drop attention"), outputs=("stdout", *CONFIG)),
    Known("parts beside stacks", "what lies beside a stack is looked up first", ("stacks: */nvfp4",),
          outputs=("stdout",), fields=("error",)),
    Known("words in recipes", "a message to the author of a recipe names the key, not the option of the same name",
          ("*/recipe*", "*/role *", "drafts */*", "trap*"), outputs=("stdout", "stderr"), fields=("error",)),
    Known("a wrong input scale", "its value is refused before the source is looked at", ("options */plan nvfp4 input_scale constant=-1",),
          outputs=("stdout",), fields=("error",)),
    Known("routers by every name", "lint holds gemma-4's router.proj, too, against the count of its experts", ("names*/lint",), outputs=("stdout",)),
    Known("words that contradict the codes", "FP8 that fmt calls E5M2 and NVFP4_AWQ without its scales are refused by all who read numbers",
          ("configs fp8/format *", "configs modelopt/AWQ *"), exits=((0, 2),), outputs=("stdout",)),
    Known("types of words", "a word of a quantization config that has another JSON type than expected is refused by all who read numbers",
          tuple(f"configs {config} *" for config in ("compressed-tensors/group size as text", "compressed-tensors/groups a list",
                "compressed-tensors/list as text", "compressed-tensors/list of numbers", "compressed-tensors/method as a number",
                "compressed-tensors/targets as text", "fp8/one number", "modelopt/group size as text", "modelopt/groups a list",
                "modelopt/list as text", "modelopt/list of numbers", "modelopt/method as a number", "modelopt/targets as text")),
          exits=((0, 2),), outputs=("stdout",)),
    Known("help of lint", "it says how one file is read", ("help/help lint*", "help/lint --help"), outputs=("stdout",)),
    Known("words on terms", "a term is named with the key or tensor that says it, and what is expected",
          ("terms: Hadamard/lint", "terms: zero points/*"), outputs=("stdout",)),
    Known("sparsegpt", "lists of methods lack it, and a message names another path of a README",
          ("options */plan * method *", "statistics */*"), outputs=("stdout",), fields=("error",)),
]
