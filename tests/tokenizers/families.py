"""The pipeline of each family's tokenizer.json, with a vocabulary trained on given texts."""
import json

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)

# Sources: the tokenizer.json files of the models' repositories.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = "|".join([
  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK_V3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
               r"\s*[\r\n]+|\s+(?!\S)|\s+").replace('\\"', '"')
# Code points of letters with a case, as DeepSeek-V2 lists them.
CASED = ("41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
         "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
         "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
         "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
         "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
         "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F "
         "104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943")
CASED = "".join("-".join(chr(int(end, 16)) for end in run.split("-")) for run in CASED.split())
DEEPSEEK_V2 = ["[\r\n]", rf"\s?[{CASED}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
               "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
SPACE = "▁"


def split(pattern):
  return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(use_regex=False, add_prefix_space=False):
  return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def in_order(*steps):
  return pre_tokenizers.Sequence(list(steps))


def begins_with(token, id):
  return processors.Sequence([processors.ByteLevel(trim_offsets=False),
                              processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B",
                                                            special_tokens=[(token, id)])])


def on_bytes(texts, size, pre_tokenizer, special, normalizer=None, ignore_merges=False):
  tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
  if normalizer:
    tokenizer.normalizer = normalizer
  tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
  tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
  trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
  tokenizer.train_from_iterator(texts, trainer)
  tokenizer.add_special_tokens(special)
  return tokenizer


def with_byte_tokens(texts, size, metaspace):
  """Llama-2's: characters, and a token for each byte of those that are not in the vocabulary."""
  tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
  spaces = normalizers.Replace(" ", SPACE)
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=True)
  special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
  trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, limit_alphabet=size // 4, show_progress=False)
  tokenizer.train_from_iterator(texts, trainer)
  if metaspace:
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
  else:
    document = json.loads(tokenizer.to_str())
    document["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
  # The bytes are tokens of the model alone.
  document = json.loads(tokenizer.to_str())
  document["added_tokens"] = document["added_tokens"][:3]
  tokenizer = Tokenizer.from_str(json.dumps(document))
  tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
  tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                           special_tokens=[("<s>", 1)])
  return tokenizer


def gpt2(texts, size):
  return on_bytes(texts, size, byte_level(use_regex=True), [AddedToken("<|endoftext|>", normalized=True)])


def llama3(texts, size):
  special = ["<|begin_of_text|>", "<|end_of_text|>"] + [f"<|reserved_special_token_{i}|>" for i in range(254)]
  tokenizer = on_bytes(texts, size, in_order(split(LLAMA3), byte_level()), special, ignore_merges=True)
  tokenizer.post_processor = begins_with("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
  return tokenizer


def qwen2(texts, size):
  tokenizer = on_bytes(texts, size, in_order(split(QWEN2), byte_level()), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                       normalizers.NFC())
  tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
  return tokenizer


def smollm2(texts, size):
  digits = pre_tokenizers.Digits(individual_digits=True)
  return on_bytes(texts, size, in_order(digits, byte_level(use_regex=True)), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def olmoe(texts, size):
  """GPT-NeoX's: runs of spaces are tokens that are added, and found in the normalized text."""
  tokenizer = on_bytes(texts, size, byte_level(use_regex=True), ["|||IP_ADDRESS|||", "<|padding|>"], normalizers.NFC())
  tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
  tokenizer.add_special_tokens(["<|endoftext|>"])
  return tokenizer


def deepseek_v2(texts, size):
  tokenizer = on_bytes(texts, size, in_order(*map(split, DEEPSEEK_V2), pre_tokenizers.Digits(individual_digits=True),
                                             byte_level()), ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
  tokenizer.add_tokens([AddedToken("<｜User｜>", normalized=False), AddedToken("ø", normalized=True)])
  tokenizer.post_processor = begins_with("<｜begin▁of▁sentence｜>", tokenizer.token_to_id("<｜begin▁of▁sentence｜>"))
  return tokenizer


def deepseek_v3(texts, size):
  steps = [split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK_V3), byte_level()]
  return on_bytes(texts, size, in_order(*steps), ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
                  normalizers.Sequence([]))


def gpt_oss(texts, size):
  return on_bytes(texts, size, in_order(split(O200K), byte_level()), ["<|startoftext|>", "<|endoftext|>", "<|return|>"])


def glm4(texts, size):
  special = ["<|endoftext|>", "[MASK]", "<sop>", "<|system|>", "<|user|>"]
  return on_bytes(texts, size, in_order(split(LLAMA3), byte_level()), special, ignore_merges=True)


def llama2(texts, size):
  return with_byte_tokens(texts, size, metaspace=False)


def mixtral(texts, size):
  return with_byte_tokens(texts, size, metaspace=True)


def all_parts(texts, size):
  """What no family has all of: every other part that the program takes."""
  tokenizer = on_bytes(texts, size, in_order(pre_tokenizers.Split(Regex(r"[,;]+"), "removed"),
                                             pre_tokenizers.Split("-", "merged_with_previous"),
                                             pre_tokenizers.Split("_", "merged_with_next"),
                                             pre_tokenizers.Split(Regex(r"\p{P}"), "contiguous"),
                                             pre_tokenizers.Split(Regex(r"[\p{L}\p{N}]+"), "merged_with_next", invert=True),
                                             pre_tokenizers.Digits(individual_digits=False),
                                             byte_level(use_regex=True, add_prefix_space=True)),
                       ["<s>", AddedToken("<mask>", lstrip=True), AddedToken("<end>", rstrip=True, lstrip=True)],
                       normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
                                             normalizers.Strip(), normalizers.Replace(Regex(r"\s{2,}"), "  "),
                                             normalizers.NFC()]))
  tokenizer.add_tokens([AddedToken("Word", single_word=True), AddedToken("hello", single_word=True, normalized=False),
                        AddedToken("é", normalized=True), AddedToken("def", rstrip=True, normalized=False)])
  tokenizer.post_processor = processors.TemplateProcessing(
    single="<s> $A <end>", pair="<s> $A $B", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "<end>")])
  return tokenizer


FAMILIES = [gpt2, llama3, qwen2, smollm2, olmoe, deepseek_v2, deepseek_v3, gpt_oss, glm4, llama2, mixtral, all_parts]
