#!/usr/bin/env python3
"""Writes unicode_data.inc: what `tokenizers` (the release below) knows of characters, asked code point by code point.

    unicode_data.py >unicode_data.inc

Its parts follow several versions of Unicode: normal forms 9.0, split patterns 16.0 (PCRE2 10.42: 14.0), lower case and
digits 17.0. Tables of any one version would give other token ids for characters that are younger, so that the source is
the library itself. Python's unicodedata only proposes combining classes and compositions; each is tried.
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

RELEASE = "0.23.3"
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)
# What PCRE2 has in \s and `tokenizers` has not.
NO_SPACE = 0x180E


def members(pattern):
    """The code points that a split pattern matches, each alone."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for at in range(0, len(POINTS), 4096):
        chunk = POINTS[at : at + 4096]
        kept = {ord(c) for piece, _ in split.pre_tokenize_str("".join(map(chr, chunk))) for c in piece}
        found.update(c for c in chunk if c not in kept)
    return found


def runs(points, value=lambda c: 0):
    """[first, last, value] of neighbours with the same value."""
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1 and out[-1][2] == value(c):
            out[-1][1] = c
        else:
            out.append([c, c, value(c)])
    return out


def normal(form):
    return getattr(normalizers, form)().normalize_str


def combining_classes():
    """Python's classes of the characters that `tokenizers` reorders like Python."""
    nfd = normal("NFD")
    classes = {}
    for c in POINTS:
        if unicodedata.combining(chr(c)) == 0:
            continue
        around = [m + chr(c) for m in "\u0301\u0327\u0345\u3099"] + [chr(c) + m for m in "\u0301\u0327\u0345\u3099"]
        if all(nfd("a" + t) == unicodedata.normalize("NFD", "a" + t) for t in around):
            classes[c] = unicodedata.combining(chr(c))
    return classes


def decompositions():
    """{code point: (canonical, compatible)}, either the character itself where it stays; Hangul is left out."""
    nfd, nfkd = normal("NFD"), normal("NFKD")
    found = {}
    for c in POINTS:
        forms = nfd(chr(c)), nfkd(chr(c))
        if c not in HANGUL and forms != (chr(c), chr(c)):
            found[c] = forms
    return found


def compositions():
    nfc = normal("NFC")
    pairs = []
    for c in POINTS:
        said = unicodedata.decomposition(chr(c))
        if not said or said.startswith("<") or " " not in said:
            continue
        pair = "".join(chr(int(x, 16)) for x in said.split())
        if nfc(pair) == chr(c):
            pairs.append((ord(pair[0]), ord(pair[1]), c))
    return sorted(pairs)


def lower_cases():
    lower = normalizers.Lowercase().normalize_str
    return {c: lower(chr(c)) for c in POINTS if lower(chr(c)) != chr(c)}


def substitutes():
    """Characters that PCRE2 10.42 (as Python 3.11, Unicode 14.0) does not know, each with the nearest of the same category,
    script Han or not, and bytes in UTF-8, that it knows."""
    known = {}
    for c in POINTS:
        known.setdefault(unicodedata.category(chr(c)), []).append(c)
    han = members(r"\p{Han}")
    new = {}
    for category in [c for c in known if c not in ("Cn", "Cs", "Co", "Cc")]:
        for c in members(r"\p{%s}" % category) - set(known[category]):
            same = [k for k in known[category] if len(chr(k).encode()) == len(chr(c).encode()) and (k in han) == (c in han)]
            new[c] = min(same, key=lambda k: (abs(k - c), k))
    new[NO_SPACE] = 0x200B
    return new


def print_array(declaration, items):
    print(f"constexpr {declaration}[] = {{")
    line = ""
    for item in items:
        if len(line) + len(item) > 116:
            print(line)
            line = ""
        line += item + ","
    print(line + "};")


def entry(*numbers):
    return "{" + ",".join(str(n) if n < 10 else f"0x{n:X}" for n in numbers) + "}"


def main():
    if tokenizers.__version__ != RELEASE or unicodedata.unidata_version != "14.0.0":
        sys.exit(f"expected tokenizers {RELEASE} and Unicode 14.0.0, found {tokenizers.__version__} and "
                 f"{unicodedata.unidata_version}")
    print(f"// Written by unicode_data.py from tokenizers {RELEASE}. Not to be edited.\n")
    print("// Characters with a combining class that is not 0: first, last, class.")
    classes = combining_classes()
    print_array("Run kCombining", [entry(*r) for r in runs(classes, classes.get)])

    pool, at = [], {}
    def place(text):
        if text not in at:
            at[text] = len(pool)
            pool.extend(map(ord, text))
        return at[text], len(text)
    rows = []
    for c, (canonical, compatible) in sorted(decompositions().items()):
        rows.append(entry(c, *(place(canonical) if canonical != chr(c) else (0, 0)), *place(compatible)))
    print("\n// Decompositions down to the end: character, where its canonical one is in the pool, of how many characters")
    print("// (0: it has none), and the same of the compatible one.")
    print_array("Decomposition kDecompositions", rows)
    print_array("char32_t kPool", [f"0x{c:X}" for c in pool])
    print("\n// First, second, composed.")
    print_array("Composition kCompositions", [entry(*c) for c in compositions()])
    print("\n// Characters that StripAccents takes away.")
    strip = normalizers.StripAccents().normalize_str
    print_array("Run kAccents", [entry(*r) for r in runs(c for c in POINTS if strip(chr(c)) == "")])

    lower = lower_cases()
    long = {c: t for c, t in lower.items() if len(t) > 1}
    if long != {0x130: "i\u0307"}:
        sys.exit(f"expected one lower case of several characters, found {long}")
    print("\n// First, last, what is added for the lower case, modulo 2^32; U+0130 becomes two characters.")
    print_array("Run kLower", [entry(*r) for r in runs((c for c in lower if c != 0x130),
                                                       lambda c: (ord(lower[c]) - c) % 2**32)])
    print("\n// Characters that split patterns see as another one: first, last, the other.")
    new = substitutes()
    print_array("Run kSubstitutes", [entry(*r) for r in runs(new, new.get)])


main()
