"""Mixed texts of any size, the same ones each time: code, prose of many scripts, white space, signs, random Unicode."""
import pathlib
import random
import sysconfig

# First and last letter of scripts, and how long their words are.
SCRIPTS = [(0x61, 0x7A, 9), (0xE0, 0xFF, 6), (0x100, 0x17F, 7), (0x391, 0x3C9, 8), (0x410, 0x44F, 8), (0x531, 0x586, 7),
           (0x5D0, 0x5EA, 6), (0x621, 0x64A, 7), (0x904, 0x94D, 6), (0xE01, 0xE3A, 14), (0x10D0, 0x10FA, 7),
           (0x1100, 0x11FF, 3), (0x1E00, 0x1EFF, 6), (0x3041, 0x3096, 5), (0x30A1, 0x30FA, 5), (0x4E00, 0x9FFF, 3),
           (0xAC00, 0xD7A3, 4), (0x1F00, 0x1FFF, 5), (0x10400, 0x1044F, 6), (0x20000, 0x2A6DF, 2)]
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u2003", "\u3000", "\u180e", "\u200b", "\v",
          "\f", "\u0085", "\u2028", "        ", "\n\n\n    ", "\r", "\r\r\n", " \t \t"]
SIGNS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "—", "…", "«", "»", "„", "。", "、", "！", "€", "£", "₿", "½", "²", "٣", "४",
         "Ⅷ", "①", "→", "≠", "∑", "'s", "'LL", "'Re", "'ſ", "’t", "//", "/*", "*/", "=>", "::", "&&", "\ufffd", "\ufeff", "\x00", "\x1b[0m"]
MARKS = [chr(c) for c in (*range(0x300, 0x330), 0x345, 0x591, 0x5B0, 0x64B, 0x653, 0x93C, 0xE38, 0x1DC0, 0x20D0, 0x302A, 0x3099)]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "1️⃣", "🧑🏿‍🚀", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🫨", "☃"]
TOKENS = ["<|endoftext|>", "<s>", "</s>", "<unk>", "<0x41>", "<|im_start|>user\n", "<tool_call>", "<mask>", " <mask> ", "<end>", "  <end>\n x",
          "<|reserved_special_token_7|>", "<|reserved_special_token_", "<｜User｜>", "Word", "aWord", "Word ", "Wordé", "hello", "hello_", "def",
          "def   ", "é", "e\u0301", "<|begin_of_text|>", "<|padding|>", "▁", "▁▁a", "Ġ", "ø", "|||IP_ADDRESS|||", "[MASK]"]


def word(rng):
  first, last, length = rng.choice(SCRIPTS if rng.random() < .5 else SCRIPTS[:2])
  letters = "".join(chr(rng.randint(first, last)) for _ in range(1 + int(rng.expovariate(1 / length))))
  if rng.random() < .1:
    letters += rng.choice(MARKS)
  return rng.choice([str.lower, str.lower, str.title, str.upper])(letters)


def number(rng):
  return rng.choice(["{:d}", "{:,}", "{:.2e}", "0x{:x}", "{:08d}"]).format(rng.randint(0, 10 ** rng.randint(1, 14)))


def anything(rng):
  """Any code points, assigned or not."""
  points = (rng.choice([rng.randrange(0x110000), rng.randrange(0x3000), rng.randrange(0x20000)]) for _ in range(rng.randint(1, 12)))
  return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)


PIECES = [word] * 12 + [number] * 2 + [anything] + [lambda rng: rng.choice(SPACES)] * 12 + [lambda rng: rng.choice(SIGNS)] * 5 + [
  lambda rng: rng.choice(EMOJI), lambda rng: rng.choice(MARKS) * rng.randint(1, 3), lambda rng: rng.choice(TOKENS),
  lambda rng: rng.choice(SPACES) * rng.randint(1, 40), lambda rng: "".join(rng.sample(MARKS, rng.randint(2, 5)))]


def mixed(rng, size):
  parts, count = [], 0
  while count < size:
    parts.append(rng.choice(PIECES)(rng))
    count += len(parts[-1].encode())
  return "".join(parts)


def code(size):
  """Python's own sources."""
  folder = pathlib.Path(sysconfig.get_path("stdlib"))
  parts, count = [], 0
  for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py")):
    if "site-packages" in path.parts or count >= size:
      continue
    parts.append(path.read_bytes().decode("utf-8", "replace"))
    count += len(parts[-1].encode())
  return parts


def all_characters():
  """Every code point, in the company of others and alone among spaces."""
  characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
  return ["".join(characters), " ".join(characters), "".join(f"a{c}e\u0301" for c in characters if ord(c) < 0x20000)]


def texts(mega_bytes, seed=1):
  """Long texts and thousands of short ones."""
  rng = random.Random(seed)
  size = int(mega_bytes * 1e6)
  long = code(size * 4 // 10)
  while sum(len(t) for t in long) < size * 6 // 10:
    long.append(mixed(rng, 200_000))
  short = [mixed(rng, rng.choice([1, 2, 5, 20, 60])) for _ in range(size // 500)]
  edges = ["", " ", "  ", "\n", "a", " a", "a ", "▁", "▁a", *TOKENS, *SPACES, *SIGNS, *(" " + t for t in TOKENS), "a" * 5000, " " * 5000 + "x",
           "\n" * 3000, "ab" * 3000, "\u0301" * 500, "a" + "\u0327\u0301" * 300, "1" * 1000, "!" * 1000, "\u0e01" * 999]
  return long + short + edges
