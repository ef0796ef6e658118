"""How two outputs are held against each other: byte for byte, but for the places that NOT_COMPARED names."""
import dataclasses
import fnmatch
import json
import re


@dataclasses.dataclass
class NotCompared:
  """Places that differ between two runs of one program, or between two builds of one source."""
  outputs: tuple  # globs of what is compared: "stdout", "out/twofour.json"
  place: str  # regular expression; what its group matches is not compared
  reason: str

  def __post_init__(self):
    self.pattern = re.compile(self.place, re.MULTILINE)

  def names(self, output):
    return any(fnmatch.fnmatchcase(output, glob) for glob in self.outputs)


#: All of them. Paths of the work need no line: the words of the case, such as {src}, replace them.
NOT_COMPARED = (
    NotCompared(("stdout*",), r'"seconds": ([-+.e\d]+)', "a time"),
    NotCompared(("stdout*",), r"(?:, |: )([.\d]+ (?:s|ms|us))(?=$|[:,])", "a time, for people"),
    NotCompared(("stdout*",), r"([.\d]+ [GM]B/s)", "a speed, for people"),
    NotCompared(("stdout*",), r"^twofour (\S+ \(\S+\))$", "version and commit"),
    NotCompared(("stdout*",), r"twofour (\d+\.\d+\.\d+(?: \(\w+\))?)", "version and commit, of a card"),
    NotCompared(("stdout*",), r"`twofour\.json` \| `([0-9a-f]{32})`", "the hash of twofour.json, of a card"),
    NotCompared(("stdout*",), r'"driver": \{\s*"name": "twofour",[^{}]*?"version": "([^"]*)"', "version, of SARIF"),
    NotCompared(("stdout*",), r"expected it to end with the hash of the text before it, ([0-9a-f]{32})", "the hash of a plan"),
    NotCompared(("stdout*",), r"expected it to end with ([0-9a-f]{32}), the hash of the text before it", "the hash of twofour.json"),
    NotCompared(("stdout*",), r'the hash of the text before it, found [\\"]+([0-9a-f]{32})', "the hash in twofour.json"),
    NotCompared(("*twofour.json",), r'^"tool": (.*),$', "version and commit"),
    NotCompared(("*twofour.json",), r'^"manifest_xxh3_128": "(\w+)"$', "a hash of what names version and commit"),
    NotCompared(("*plan.json",), r'"(?:version|commit)": "([^"]*)"', "version and commit"),
    NotCompared(("*plan.json",), r'"(?:modified|ctime)": (\d+)', "times of files"),
    NotCompared(("*plan.json",), r'"plan_xxh3_128": "(\w+)"', "a hash of what names version, times and paths"),
    NotCompared(("*.html",), r'"version":"([^"]*)"', "version and commit"),
    NotCompared(("*.1",), r'^\.TH \S+ 1 "" "twofour ([^"]*)"', "version"),
)


def has_places(output):
  return any(row.names(output) for row in NOT_COMPARED)


def masked(output, text):
  """The text of an output with 0 in each place that is not compared."""
  for row in NOT_COMPARED:
    if row.names(output):
      text = row.pattern.sub(lambda m: m[0][:m.start(1) - m.start()] + "0" + m[0][m.end(1) - m.start():], text)
  return text


def fields_of(text):
  """The leaves of a document by path, numbers as they are written; None where the text is no document."""
  leaves = {}

  def add(path, value):
    if isinstance(value, dict) and value:
      for key, part in value.items():
        add((*path, key), part)
    elif isinstance(value, list) and value:
      for i, part in enumerate(value):
        add((*path, str(i)), part)
    else:
      leaves["/".join(path)] = repr(value)
  try:
    document = json.loads(text, parse_float=Written)
  except ValueError:
    return None
  if not isinstance(document, dict):
    return None
  add((), document)
  return leaves


class Written(str):
  """A number with its digits as they are written."""

  def __repr__(self):
    return str(self)


def shortened(text, limit=160):
  return text if len(text) <= limit else text[:limit] + "..."


def difference(old, new):
  """How two texts differ: a message, and the fields that do, or None where these do not say it. None: not at all."""
  if old == new:
    return None
  a, b = fields_of(old), fields_of(new)
  if a is not None and b is not None:
    fields = [f for f in {**a, **b} if a.get(f) != b.get(f)]
    if fields:
      first = fields[0]
      more = f" and {len(fields) - 1} fields more" if len(fields) > 1 else ""
      found = [shortened(side[first]) if first in side else "nothing" for side in (a, b)]
      return f"{first}: {found[0]} became {found[1]}{more}", fields
    return "the same fields in another form", None
  lines = zip(old.splitlines() + [""], new.splitlines() + [""])
  at, (x, y) = next(((i, pair) for i, pair in enumerate(lines, 1) if pair[0] != pair[1]), (0, ("", "")))
  return (f"line {at}: {shortened(x)!r} became {shortened(y)!r}" if at else "another end"), None
