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
    Known("rules of lint", "lint knows more of names, counts, parts, tokens and causes, and its texts are plainer", ("*lint*",),
          outputs=("stdout", "*.html")),
    Known("solved bytes", "statistics are shrunk and scales searched further, by settings of rules that twofour.json has",
          ("compress */*", "model */quantize stats*", *(f"statistics */*{how}*" for how in (
              "joint", "gptq", "wanda", "rtn", "sweeps", "strict", "compressed", "held out", "head", "one thread", "v7-packed", "budget: "))),
          outputs=("stdout", "out/*", "work/*")),
    Known("options and keys", "--shrink and --scale-search are options and keys of recipes",
          ("help/completion *", "help/man", "help/help markdown", "help/recipes --help", "help/help recipes*",
           *(f"help/{n} --help" for n in SOLVING), *(f"help/help {n}*" for n in SOLVING)),
          outputs=("stdout", "out/twofour-*.1")),
    Known("keys of recipes", "shrink and scale_search are keys", ("recipes */recipe: unknown key",), outputs=("stdout",), fields=("error",)),
    Known("linear attention", "the commit before does not run models that have it",
          tuple(f"model {name}*/*{what}*" for name in ("qwen3_next", "qwen3_5") for what in ("eval", "generate", "stats")), exits=((2, 0),)),
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
]
