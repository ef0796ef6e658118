"""Plants differences in what a program writes and prints, and demands that each is found, alone."""
import collections
import json
import pathlib
import re
import subprocess

import documents
import groups
from cases import Case, Group, convert, folder
from comparison import Build, Comparison
from known import KNOWN as KNOWN_DIFFERENCES, Known

SHARD = "out/model-00001-of-00001.safetensors"
MANIFEST = "out/twofour.json"

#: Wanted differences of the test alone: of an exit code, of a field, of a whole output.
KNOWN = [Known("exit", "planted", ("planted/lint",), exits=((1, 3),)),
         Known("format", "planted", ("planted/g8",), outputs=(MANIFEST,), fields=("format",)),
         Known("notes", "planted", ("planted/lint",), outputs=("stdout",), fields=("notes", "findings/*")),
         Known("tokenizer", "planted", ("planted/g8",), outputs=("out/tokenizer.json",)),
         Known("never", "planted", ("planted/none",), exits=((0, 1),))]


def test_groups():
  art = ["{src}", "{out}"]
  yield Group("planted", folder(groups.GOLDEN / "modelopt-mixtral-uneven" / "src"), [
      convert("v7", ["v7"]), convert("g8", ["g8"]), convert("bf16", ["bf16"]), Case("lint", ["lint", "{src}"]), Case("v7 lint", ["lint", "{of:v7}"]),
      Case("error", ["convert", *art, "--to", "v8"]), Case("help", ["convert", "--help"], text=True), Case("help document", ["help", "lint"]),
      Case("recipe", ["recipes", "bf16"], text=True), Case("completion", ["completion", "zsh"], text=True), Case("version", ["--version"], text=True),
      Case("card", ["card", "{of:v7}"], text=True), Case("plan", ["plan", *art, "--to", "v7", "-o", "{work}/plan.json"]),
      Case("SARIF", ["lint", "{src}", "--sarif"]), Case("page", ["lint", "{src}", "--html", "{work}/page.html"]),
          Case("man", ["man", "{out}"], lambda at: at("{out}").mkdir())])


def on(case, change):
  """A plant that changes what NEW did in one case."""
  def plant(name, label, ran):
    if name == f"planted/{case}" and label != "old":
      change(ran)
  return plant


def edit(output, change):
  """Changes the text of an output; fails where that leaves it as it was."""
  def on_ran(ran):
    before = ran.printed[0] if output == "stdout" else (ran.folder / output).read_text()
    after = change(before)
    assert after != before, output
    if output == "stdout":
      ran.printed[0] = after
    else:
      (ran.folder / output).write_text(after)
  return on_ran


def replace(output, old, new):
  return edit(output, lambda text: text.replace(old, new, 1))


def count_up(output, field):
  """One more in the first field of a name."""
  return edit(output, lambda text: re.sub(f'("{field}": ?)(\\d+)', lambda m: m[1] + str(int(m[2]) + 1), text, count=1))


def json_edit(output, change, **form):
  def apply(text):
    document = json.loads(text)
    return json.dumps(change(document) or document, **form)
  return edit(output, apply)


def flip(file):
  def change(ran):
    path = ran.folder / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
  return change


def exits(code):
  return lambda ran: ran.exits.__setitem__(0, code)


def place(name, output):
  """Another text in each place of an output that NOT_COMPARED names."""
  def change(text):
    rows = [row for row in documents.NOT_COMPARED if row.names(output)]
    digits = str.maketrans("0123456789", "1234567890")
    for m in sorted((m for row in rows for m in row.pattern.finditer(text)), key=lambda m: -m.start(1)):
      text = text[:m.start(1)] + m[1].translate(digits) + text[m.end(1):]
    return text
  return on(name, edit(output, change))


#: Name, differences and known ones that must be found, plant.
PLANTS = (
    ("nothing", 0, 0, None),
    # Files
    ("a flipped byte", 1, 0, on("g8", flip(SHARD))),
    ("a byte of config.json", 1, 0, on("g8", flip("out/config.json"))),
    ("a missing file", 1, 0, on("g8", lambda ran: (ran.folder / "out/generation_config.json").unlink())),
    ("a missing twofour.json", 1, 0, on("g8", lambda ran: (ran.folder / MANIFEST).unlink())),
    ("a longer file", 1, 0, on("g8", lambda ran: (ran.folder / "out/config.json").open("ab").write(b"\n"))),
    ("an extra file", 1, 0, on("g8", lambda ran: (ran.folder / "out/extra").write_text("x"))),
    ("an extra file beside the output", 1, 0, on("g8", lambda ran: (ran.folder / "extra").write_text("x"))),
    ("an empty folder", 1, 0, on("g8", lambda ran: (ran.folder / "out/folder").mkdir())),
    ("a link for a file", 1, 0, on("g8", lambda ran: ((ran.folder / "out/config.json").rename(ran.folder.parent / "config"),
                                                      (ran.folder / "out/config.json").symlink_to(ran.folder.parent / "config")))),
    # twofour.json
    ("a field of twofour.json", 1, 0, on("g8", replace(MANIFEST, '"layout":"g8"', '"layout":"g9"'))),
    ("a number of twofour.json", 1, 0, on("g8", count_up(MANIFEST, "bytes"))),
    ("a field more in twofour.json", 1, 0, on("g8", replace(MANIFEST, '{"rules"', '{"more":1,"rules"'))),
    ("another form of twofour.json", 1, 0, on("g8", replace(MANIFEST, '{"rules"', '{ "rules"'))),
    ("version and commit in twofour.json", 0, 0, place("g8", MANIFEST)),
    ("a known field of twofour.json", 0, 1, on("g8", count_up(MANIFEST, "format"))),
    ("a known field where it is not known", 1, 0, on("bf16", count_up(MANIFEST, "format"))),
    ("a known field beside another", 1, 0, on("g8", lambda ran: (count_up(MANIFEST, "format")(ran),
                                                                 replace(MANIFEST, '"layout":"g8"', '"layout":"g9"')(ran)))),
    ("another form where a field is known", 1, 0, on("g8", replace(MANIFEST, '"format": ', '"format":  '))),
    # Documents
    ("a field of a document", 1, 0, on("lint", replace("stdout", '"sound": ', '"sound":  '))),
    ("a number of a document", 1, 0, on("g8", json_edit("stdout", lambda d: d.update(bytes_read=d["bytes_read"] + 1), indent=2))),
    ("a number's digits", 1, 0, on("g8", replace("stdout", '"relative_error": 0.', '"relative_error": 0.0'))),
    ("a field less", 1, 0, on("g8", json_edit("stdout", lambda d: d.pop("device") and None, indent=2))),
    ("a longer list", 1, 0, on("g8", json_edit("stdout", lambda d: d["modules"].append({}), indent=2))),
    ("another order of fields", 1, 0, on("g8", json_edit("stdout", lambda d: dict(reversed(d.items())), indent=2))),
    ("no document", 1, 0, on("g8", edit("stdout", lambda text: text[:-3]))),
    ("an error's message", 1, 0, on("error", replace("stdout", "v8", "v10"))),
    ("a time", 0, 0, place("g8", "stdout")),
    ("a known field of a document", 0, 1, on("lint", json_edit("stdout", lambda d: d.update(notes=9), indent=2))),
    ("a known output", 0, 1, on("g8", flip("out/tokenizer.json"))),
    # Help, lists, pages
    ("a byte of help", 1, 0, on("help", replace("stdout", "Layout or format", "Layout or  format"))),
    ("a line of help", 1, 0, on("help", edit("stdout", lambda text: text + "\n"))),
    ("a word of help in a document", 1, 0, on("help document", replace("stdout", "Find known faults", "Find all faults"))),
    ("a byte of a recipe", 1, 0, on("recipe", replace("stdout", "bf16", "bf17"))),
    ("a byte of a completion", 1, 0, on("completion", replace("stdout", "compress", "compres"))),
    ("a word of a card", 2, 0, on("card", replace("stdout", "v7", "v8"))),
    ("what a card says of the build", 0, 0, place("card", "stdout")),
    ("a line of a page of man", 1, 0, on("man", replace("out/twofour-lint.1", "Find known faults", "Find all faults"))),
    ("the version of a page of man", 0, 0, place("man", "out/twofour-lint.1")),
    ("a missing page of man", 1, 0, on("man", lambda ran: (ran.folder / "out/twofour-lint.1").unlink())),
    ("a number in a page for browsers", 1, 0, on("page", replace("page.html", '"command":"lint"', '"command":"lent"'))),
    ("the version in a page for browsers", 0, 0, place("page", "page.html")),
    ("a field of a plan", 1, 0, on("plan", replace("plan.json", '"to": "v7"', '"to": "v6"'))),
    ("times and hashes of a plan", 0, 0, place("plan", "plan.json")),
    ("the version", 0, 0, place("version", "stdout")),
    # Ends
    ("another exit code", 1, 0, on("lint", exits(4))),
    ("another exit code of what reads an artifact", 2, 0, on("v7 lint", exits(2))),
    ("a crash", 1, 0, on("lint", exits(-11))),
    ("no end", 1, 0, on("lint", exits("none in 1 s"))),
    ("a known exit code", 0, 1, on("lint", exits(3))))


def another_build(build, folder):
  """The program with another version and commit in its bytes, of equal length; None where it does not name a commit."""
  said = subprocess.run([build.program, "--version"], stdout=subprocess.PIPE, check=True).stdout
  version, commit = re.match(rb"\S+ (\S+) \((\S+)\)", said).groups()
  content = pathlib.Path(build.program).read_bytes()
  place = content.find(version + b"\0" + commit + b"\0")
  if place < 0 or not re.fullmatch(rb"[0-9a-f]{12}", commit):
    return None
  other = version.translate(bytes.maketrans(b"0123456789", b"1234567890")) + b"\0" + commit[::-1]
  path = folder / "another"
  path.write_bytes(content[:place] + other + content[place + len(other):])
  path.chmod(0o755)
  return Build(str(path))


def run(build, work):
  failed, build = 0, Build(build.program)
  other = another_build(build, pathlib.Path(work))
  plants = [(name, build, expected, known, plant) for name, expected, known, plant in PLANTS]
  if other:
    plants.append(("another version and commit", other, 0, 0, None))
  else:
    print("self-test: another version and commit: not planted: the program does not name its commit")
  for name, new, expected, known, plant in plants:
    comparison = Comparison(build, new, work, KNOWN, plant).run(test_groups())
    found, met = len(comparison.differences), sum(comparison.met.values())
    if (found, met) != (expected, known) or comparison.count["not run"] or comparison.met["never"]:
      failed += 1
      print(f"self-test: {name}: expected {expected} differences and {known} known ones, found {found} and {met}: {comparison.differences}")
  names = collections.Counter(f"{g.name}/{case.name}" for g in groups.all_groups() for case in g.cases)
  wrong = [f"{name}: expected one case of that name, found {count}" for name, count in names.items() if count > 1]
  wrong += [f"known.py: {row.name}: expected a reason, and cases that its globs name" for row in KNOWN_DIFFERENCES
            if not row.reason or not any(row.covers(name) for name in names)]
  for line in wrong:
    print(f"self-test: {line}")
  failed += len(wrong)
  print(f"self-test: {len(plants)} differences planted, {failed} not found as expected")
  return 1 if failed else 0
