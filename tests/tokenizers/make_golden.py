#!/usr/bin/env python3
"""Writes tests/golden/tokenizer: a small tokenizer of each family, and what `tokenizers` makes of some texts by it.

    make_golden.py tests/golden/tokenizer
"""
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer

import families
import texts

SIZE = 420
TEXTS = [
  "", " ", "Hello, world! It's 2026 and I'LL say: don't.", "  def f(x):\n    return x ** 2  # 1234567\n\n\n\treturn\r\n",
  "Grüße, Жизнь, γειά σου, 你好世界。こんにちは 안녕하세요 שלום مرحبا नमस्ते สวัสดี", "e\u0301 \u00e9 \u212b \ufb01 \u1100\u1161\u11a8 q\u0307\u0323 q\u0323\u0307",
  "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪 1️⃣", "a\u00a0b\u2003c\u3000d\u180ee\u0085f\u2028g\x00h\x1bi\ufeffj", "½ ² ٣٤ Ⅷ ① 12,345.67e-8 0xFF 1234567890123",
  "<|endoftext|>x<s> y</s><mask>  z  <end> hello hello_ Word aWord Word, <0x41> <unk>", "▁▁a ▁b  c   d        e", "\n\n \n \t\n  x\n ",
  "\U0001F600\U00010FFF\U0010FFFF\u0378\ue000\u0897\U0001E5D0\U00031350\U00016FF4", "CamelCaseHTTPServer'S 'ſ ǅ ΣΑΣ İI", "a" * 70 + "-_" * 9 + ",;,;" + "!" * 40,
  "".join(random.Random(3).choice("ab \n1.é") for _ in range(300)), texts.mixed(random.Random(5), 900), "\u0301\u0327abc", "x" + "\u0327\u0301\u0323" * 3 + "\u0e33"]


def main():
  folder = pathlib.Path(sys.argv[1])
  folder.mkdir(parents=True, exist_ok=True)
  training = [t for t in texts.texts(.2, seed=2) if "_special_token_" not in t] + TEXTS
  cases = {"texts": TEXTS, "families": {}}
  for family in families.FAMILIES:
    document = json.loads(family(training, SIZE).to_str())
    # A few of the reserved tokens do; merges as pairs and, in older files, as text.
    document["added_tokens"] = [t for t in document["added_tokens"] if not t["content"].startswith("<|reserved") or t["id"] < SIZE + 12]
    if family.__name__ in ("gpt2", "smollm2", "llama2"):
      document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    (folder / f"{family.__name__}.json").write_text(text + "\n", encoding="utf-8")
    tokenizer = Tokenizer.from_str(text)
    ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in TEXTS]
    framed = tokenizer.encode(TEXTS[2], add_special_tokens=True).ids
    # null: as the text, as decoded.
    decoded = [tokenizer.decode(i, skip_special_tokens=False) for i in ids]
    skipped = [tokenizer.decode(i, skip_special_tokens=True) for i in ids]
    cases["families"][family.__name__] = {
      "size": max(tokenizer.get_vocab().values()) + 1, "framed": framed, "ids": ids,
      "decoded": [None if d == t else d for d, t in zip(decoded, TEXTS)],
      "skipped": [None if s == d else s for s, d in zip(skipped, decoded)]}
  lines = [json.dumps({"texts": cases["texts"]}, ensure_ascii=True)[:-1] + ', "families": {']
  for name, case in cases["families"].items():
    lines.append(f'{json.dumps(name)}: {json.dumps(case, ensure_ascii=False, separators=(",", ":"))},')
  (folder / "cases.json").write_text("\n".join(lines)[:-1] + "}}\n", encoding="utf-8")


main()
