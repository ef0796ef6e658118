"""The differences from c48cb20 that are wanted, each with its reason."""
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


SOLVING = ("compress", "convert", "plan", "prune", "quantize")

KNOWN = [
    Known("rules of lint", "lint knows more of names, counts, parts, tokens and causes, and its texts are plainer", ("*lint*", "edits */*against*"),
          outputs=("stdout", "*.html")),
    Known("solved bytes", "statistics are shrunk and scales searched further, by settings of rules that twofour.json has",
          ("compress */*", "model */quantize stats*", *(f"statistics */*{how}*" for how in (
              "joint", "gptq", "wanda", "rtn", "sweeps", "strict", "compressed", "held out", "head", "one thread", "v7-packed", "budget: ", "bad "))),
          outputs=("stdout", "kept", "plan.json", "out/*", "work/*")),
    Known("options and keys", "--shrink and --scale-search are options and keys of recipes",
          ("help/completion *", "help/man", "help/help markdown", "help/recipes --help", "help/help recipes*",
           *(f"help/{n} --help" for n in SOLVING), *(f"help/help {n}*" for n in SOLVING)),
          outputs=("stdout", "out/twofour-*.1")),
    Known("keys of recipes", "shrink and scale_search are keys", ("recipes */recipe: unknown key",), outputs=("stdout",), fields=("error",)),
    Known("families that run", "the commit before does not run linear attention, state spaces, Gemma-3, MiniMax-M2 and tied heads of DeepSeek-V4",
          tuple(f"model {name}*/*{what}*" for name in ("deepseek_v4-tied", "gemma3", "minimax_m2", "nemotron_h", "qwen3_5", "qwen3_next")
                for what in ("eval", "generate", "stats")), exits=((2, 0),)),
    Known("codes that the config calls another number",
          "settings of method, bits, type, symmetry, order or format that contradict the codes are refused",
          tuple(f"configs */{case} *" for case in ("8 bits", "asymmetric", "format of the group", "integers", "order", "second group", "unknown method")),
          exits=((0, 2),), outputs=("*",)),
    Known("errors of the Python module", "errors are FileNotFoundError, ValueError or TypeError, too, and name arguments as Python does",
          ("module */errors", "module */options"), outputs=("stdout",)),
    Known("help in two lengths", "--help is short with examples first, --help-all and the manual pages have all; commands stand in groups",
          ("help/*", "usage/nothing", "usage/*help*"), outputs=("stdout", "stderr", "out/*"), fields=()),
    Known("pages of reports", "reports fit narrow windows, scales begin at the figures, digits follow the errors", ("*html*", "*page*"),
          outputs=("*.html",)),
    Known("words of few statistics", "tokens and inputs are named, in place of '1288 of 576'", ("model *", "*stats*", "*statistics*"),
          outputs=("stdout",), fields=("findings/*/message",)),
    Known("sources without config.json", "convert, quantize, prune, plan, graft and drop refuse them unless --without-config",
          ("*no config*", "*without config*", "*single file*", "*one file*"), exits=((0, 2),), outputs=("*",)),
    Known("readmes", "outputs have README.md, or TWOFOUR.md beside an author's README.md", ("*",), outputs=("*README.md", "*TWOFOUR.md")),
    Known("readmes and imports in documents", "twofour.json, plans and dry runs name the readme, and the config of layouts names an import",
          ("*",), outputs=("stdout*", "*twofour.json", "*config.json", "*plan.json"),
          fields=("readme", "recipe/readme", "fingerprint/recipe/readme", "files/README.md", "files/TWOFOUR.md", "files/config.json",
                  "quantization_config/import", "other_files/*")),
    Known("words of messages", "errors, findings and notes have plainer words, remedies and singulars", ("*",), outputs=("stdout*",),
          fields=("error", "differences/*/message", "findings/*/message", "notes/*/message")),
    Known("texts for people", "tables, counts and places are in other words", ("text */*",), outputs=("stdout",)),
    Known("configs in diff", "diff compares what configs say of modules, and other keys of config.json", ("*diff*",), outputs=("stdout",),
          fields=("config", "config/*", "failed", "files/*", "findings/*/message")),
    Known("cards", "a card has the formats, what loads them, and the commands of the proof", ("*card*",), outputs=("stdout",), fields=("text",)),
    Known("readmes among files", "inspect counts the readme", ("*inspect*",), outputs=("stdout",),
          fields=("findings/*/message", "other_files/*", "total_bytes")),
    Known("order of dry runs", "tensors are listed in natural order, as copied unchanged, and files with the readme",
          ("*dry*", "options */*", "keys */*", "recipes */*", "names*/*", "edits */*", "drafts */*"), outputs=("stdout",),
          fields=("findings/*/message", "other_files/*", "tensors/*")),
    Known("settings of statistics", "FP8 and MX formats are chosen by statistics, too, whose settings need some",
          ("options */* method*", "options */* sweeps*", "keys */* method *"), exits=((0, 2), (2, 0))),
    Known("settings that no model has", "lint reports rms_norm_eps of 0.01", ("model qwen3_5*-vision/*lint*",), exits=((0, 1),)),
    Known("verdicts of lint on artifacts", "lint holds artifacts against their configs, and those of DeepSeek-V4 against SGLang's rules",
          ("artifact of */lint*",), exits=((0, 1), (1, 0))),
    Known("MXFP8 where the source's dialect has none", "the dialect is then modelopt by default, where it was an error",
          ("published */recipe mxfp4-to-mxfp8",), exits=((2, 0),)),
    Known("words for formats", "'in a separate order' was 'in an order of their own'", ("*inspect*",), outputs=("stdout",),
          fields=("other_modules/*/dialect",)),
    Known("verdicts of lint on outputs",
          "FP8 caches without scales in compressed-tensors' words, and FP8 of INT4 without numbers that have the last bit, are reported",
          ("published qwen3.6-35b-a3b nvidia/*lint", "published nemotron-3* nvidia/*lint", "published glm-5.2 nvidia*/*lint",
           "published glm-5.3 w4a8/fp8 lint"), exits=((0, 1),)),
    Known("weights beyond reason", "lint reports weights that no trained model has, in what twofour quantized, too",
          ("FP8 row*/* lint",), exits=((0, 1),)),
    Known("stored scales beyond reason", "scales that make weights larger than 1e5 are refused as reciprocals, by validate, too",
          ("MXFP4 wide/*",), exits=((0, 1), (0, 2))),
    Known("experts that are missing", "a number of experts that config.json contradicts is refused, and diff names its matrices",
          ("damaged: expert missing/*",), exits=((0, 2),), outputs=("stdout",)),
    Known("order of stacks in BF16", "they are in the order of the family's files, [E, N, K]", ("stack halves k outer */*bf16",),
          outputs=("stdout", "out/*.safetensors", "out/twofour.json")),
]
