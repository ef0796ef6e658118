"""Runs the cases of groups with two programs and holds what they wrote and printed against each other."""
import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

import documents
import known as known_differences

SECONDS = 300  # that a command may take
HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass
class Build:
  """A program, and the library and the module that belong to it; None: there are none."""
  program: str
  library: str = None
  module: str = None

  def command(self, words):
    return [sys.executable, "-B", str(HERE / "module_calls.py"), *words[1:]] if words[:1] == ["module"] else [self.program, *words]

  def environment(self, folder):
    # Commands run side by side: threads that spin while they wait would take the processors from each other.
    env = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": str(folder), "OMP_WAIT_POLICY": "passive"}
    if self.module:
      env.update(TWOFOUR_LIBRARY=self.library, PYTHONPATH=self.module)
    return env


class Ran:
  """What one case did by one build."""

  def __init__(self, folder):
    self.folder, self.exits, self.printed, self.prepared = folder, [], [], set()

  @property
  def exit(self):
    return self.exits[0] if len(self.exits) == 1 else tuple(self.exits)

  @property
  def is_done(self):
    return self.exits[-1] == 0


class Side:
  """One build's work on one group."""

  def __init__(self, build, root):
    self.build, self.root, self.ran = build, root, {}

  def folder(self, case):
    return self.root / re.sub(r"[^\w.-]", "_", case)

  def out(self, case):
    return self.folder(case) / "out"


class Comparison:
  def __init__(self, old, new, work, known=None, plant=None):
    self.old, self.new, self.work = old, new, work
    self.known = known_differences.KNOWN if known is None else known
    self.plant = plant  # plant(name, label, ran): what the self-test damages
    self.lock = threading.Lock()
    self.count = collections.Counter()
    self.endings = collections.Counter()  # of OLD
    self.differences, self.lines = [], []
    self.met = collections.Counter()  # known differences by name

  def run(self, groups):
    # Threads that wait for processes; the longest groups first, so that both end together.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
      for _ in pool.map(self.run_group, sorted(groups, key=lambda g: -len(g.cases))):
        pass
    self.differences.sort()
    self.lines.sort()
    return self

  def run_group(self, group):
    root = pathlib.Path(tempfile.mkdtemp(dir=self.work))
    try:
      source = root / "source"
      if group.source:
        group.source(source)
      # Names of one length: messages are shortened, and help is folded, by lengths.
      sides = Side(self.old, root / "old"), Side(self.new, root / "new"), Side(self.new, root / "mix")
      for case in group.cases:
        self.run_case(group, case, root, *sides)
    finally:
      shutil.rmtree(root, ignore_errors=True)

  def run_case(self, group, case, root, old, new, mixed):
    name = f"{group.name}/{case.name}"
    first = group.cases[0]
    source = root / "source" if group.source or case is first else old.out(first.name)
    if not (group.source or case is first or old.ran[first.name].is_done) or any(
        n not in old.ran or not old.ran[n].is_done for n in case.needs):
      with self.lock:
        self.count["not run"] += 1  # OLD cannot do what this case reads
      return
    if case.needs_module and not (self.old.module and self.new.module):
      with self.lock:
        self.count["without a library"] += 1
      return
    expected = self.run_side(case, name, "old", old, old, source)
    sides = [("new", new, new)] if all(n in new.ran and new.ran[n].is_done for n in case.needs) else []
    if case.needs:
      sides.append(("new on old's", mixed, old))
    for label, side, reads in sides:
      found = self.run_side(case, name, label, side, reads, source)
      self.compare(name if label == "new" else f"{name} ({label})", name, expected, found)
    with self.lock:
      self.count["cases"] += 1
      self.endings[expected.exits[-1]] += 1

  def run_side(self, case, name, label, side, reads, source):
    ran = side.ran[case.name] = Ran(side.folder(case.name))
    ran.folder.mkdir(parents=True)
    places = {"{src}": source, "{out}": ran.folder / "out", "{work}": ran.folder}

    def place(text):
      for word, path in places.items():
        text = text.replace(word, str(path))
      return re.sub(r"\{of:([^}]*)\}", lambda m: str(reads.out(m[1])), text)
    if case.prepare:
      case.prepare(lambda text: pathlib.Path(place(text)))
    ran.prepared = {p.name for p in ran.folder.iterdir()} - {"out"}
    shown = [(str(ran.folder), "{work}"), (str(source), "{src}"), (str(reads.root), "{of}"), (str(side.root.parent), "{root}")]
    for words in case.commands:
      try:
        done = subprocess.run(side.build.command([*map(place, words)]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, cwd=ran.folder, env=side.build.environment(ran.folder), timeout=SECONDS)
      except subprocess.TimeoutExpired:
        ran.exits.append(f"none in {SECONDS} s")
        ran.printed.append("")
        continue
      ran.exits.append(done.returncode)
      ran.printed.append(without_paths(done.stdout, shown))
    ran.shown = shown
    if self.plant:
      self.plant(name, label, ran)
    return ran

  def compare(self, shown, name, old, new):
    found, outputs = [], 0
    crashed = [e for e in new.exits if not isinstance(e, int) or e < 0 or e > 128 and e != 130]
    if crashed:
      found.append(f"crashed: exit code {crashed[0]}")
    elif old.exit != new.exit:
      if not self.is_known(name, lambda known: known.covers_exits(name, (old.exit, new.exit))):
        found.append(f"exit code {old.exit} became {new.exit}")
    else:
      for output, what, fields in self.unlike_outputs(old, new):
        outputs += 1
        if what and not self.is_known(name, lambda known: known.covers_output(name, output, fields)):
          found.append(f"{output}: {what}")
    with self.lock:
      self.count["exit codes"] += len(new.exits)
      self.differences += [f"{shown}: {what}" for what in found]
      self.lines.append(f"{'DIFFERS' if found else 'equal'} {shown}: exit {new.exit}, {outputs} outputs")

  def unlike_outputs(self, old, new):
    """(output, how it differs or None, fields) of all that two runs printed and wrote."""
    for i, (a, b) in enumerate(zip(old.printed, new.printed)):
      output = "stdout" if i == 0 else f"stdout {i + 1}"
      self.tally("documents" if documents.fields_of(a) is not None else "texts")
      yield (output, *(documents.difference(documents.masked(output, a), documents.masked(output, b)) or (None, None)))
    left_out = old.prepared | new.prepared
    for file in sorted(files_of(old.folder) | files_of(new.folder)):
      if file.split("/")[0] not in left_out:
        self.tally("files")
        yield (file, *(unlike_files(file, old, new) or (None, None)))

  def tally(self, what):
    with self.lock:
      self.count[what] += 1

  def is_known(self, name, covers):
    for known in self.known:
      if covers(known):
        with self.lock:
          self.met[known.name] += 1
        return True
    return False


def without_paths(content, shown):
  """The words of a case in place of its paths, so that what different places print is alike."""
  text = content.decode(errors="surrogateescape")
  for path, word in shown:
    text = text.replace(path, word)
  return text


def files_of(folder):
  """Files, links and empty folders below a folder."""
  found = set()
  for at, directories, files in os.walk(folder):
    base = os.path.relpath(at, folder)
    links = {d for d in directories if os.path.islink(os.path.join(at, d))}
    found |= {os.path.normpath(os.path.join(base, f)) for f in {*files, *links}}
    found |= {os.path.normpath(os.path.join(base, d)) + "/" for d in directories if d not in links and not os.listdir(os.path.join(at, d))}
  return found


def unlike_files(file, old, new):
  a, b = old.folder / file, new.folder / file
  for path, who in ((a, "OLD"), (b, "NEW")):
    if not path.exists() and not path.is_symlink():
      return f"not written by {who}", None
  if a.is_dir() or b.is_dir() or a.is_symlink() or b.is_symlink():
    kinds = [(p.is_dir(), os.readlink(p) if p.is_symlink() else None) for p in (a, b)]
    return None if kinds[0] == kinds[1] else ("a folder, a file or a link became another", None)
  at = first_difference(a, b)
  if at is None:
    return None
  if documents.has_places(file) or file.endswith(".json"):
    texts = [documents.masked(file, without_paths((ran.folder / file).read_bytes(), ran.shown)) for ran in (old, new)]
    return documents.difference(*texts)
  return f"{a.stat().st_size} and {b.stat().st_size} bytes, first difference at {at}", None


def first_difference(a, b):
  """The first byte in which two files differ, or None."""
  with open(a, "rb") as x, open(b, "rb") as y:
    at = 0
    while True:
      p, q = x.read(1 << 20), y.read(1 << 20)
      if p != q:
        return at + next((i for i, (m, n) in enumerate(zip(p, q)) if m != n), min(len(p), len(q)))
      if not p:
        return None
      at += len(p)
