#include "lib/synth/auxiliary_files.h"

#include <algorithm>

#include "formats/json.h"
#include "lib/base/names/natural.h"

namespace twofour {

namespace {

/// The characters that stand for the bytes in byte-level BPE, as UTF-8, in the order of GPT-2: first the
/// bytes that are printable in Latin-1, which stand for themselves, then the others from U+0100 on.
std::vector<std::string> characters_of_bytes() {
  const auto is_printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  std::vector<std::string> printable, others;
  for (int b = 0; b < 256; ++b) {
    const int code = is_printable(b) ? b : 256 + static_cast<int>(others.size());
    std::string utf8;
    if (code >= 128) utf8.push_back(static_cast<char>(0xC0 | (code >> 6)));
    utf8.push_back(static_cast<char>(code >= 128 ? 0x80 | (code & 63) : code));
    (is_printable(b) ? printable : others).push_back(std::move(utf8));
  }
  printable.insert(printable.end(), others.begin(), others.end());
  return printable;
}

/// tokenizer.json: byte-level BPE without merges, a token for each byte and others that no text gives. Where
/// the vocabulary is too small for the bytes, it has one token.
Json tokenizer_of(int64_t vocab) {
  Json tokenizer = parse_json("tokenizer.json", R"({"version": "1.0", "truncation": null, "padding": null,
      "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}],
      "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
      "model": {"type": "WordLevel", "vocab": {"<|endoftext|>": 0}, "unk_token": "<|endoftext|>"}})");
  const std::vector<std::string> bytes = characters_of_bytes();
  if (vocab <= static_cast<int64_t>(bytes.size())) return tokenizer;
  const Json by_bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  tokenizer["pre_tokenizer"] = tokenizer["decoder"] = by_bytes;
  Json& model = tokenizer["model"];
  model = parse_json("model", R"({"type": "BPE", "dropout": null, "unk_token": null,
      "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
      "ignore_merges": false, "vocab": {"<|endoftext|>": 0}, "merges": []})");
  int64_t next = 1;
  for (const std::string& character : bytes) model["vocab"][character] = next++;
  for (; next < vocab; ++next) model["vocab"][fmt::format("t{}", next)] = next;
  return tokenizer;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> synth_auxiliary_files(const SynthModel& model) {
  const SynthPublication& publication = *model.publication;
  const char* token = "<|endoftext|>";

  Json config = model.config;
  Json& text = model.shape->text != nullptr ? config[model.shape->text] : config;
  text["bos_token_id"] = 0;
  text["eos_token_id"] = 0;
  text["torch_dtype"] = publication.floats == DType::kF16 ? "float16" : "bfloat16";
  text["use_cache"] = true;
  const Json context = text["max_position_embeddings"];  // the reference moves with its neighbours
  SynthListing listing{model, {}};
  for_each_module(model, [&](std::span<const SynthModule> modules) {
    listing.modules.insert(listing.modules.end(), modules.begin(), modules.end());
  });
  std::sort(listing.modules.begin(), listing.modules.end(),
            [](const SynthModule& a, const SynthModule& b) { return natural_less(a.name(), b.name()); });
  Json quantization = parse_json("quantization_config", publication.quantization), hf_quant = nullptr;
  if (publication.hf_quant != nullptr) hf_quant = parse_json("hf_quant_config.json", publication.hf_quant);
  if (publication.fill != nullptr) publication.fill(listing, quantization, hf_quant);
  (publication.place != nullptr ? config[publication.place] : config)["quantization_config"] = quantization;

  const Json generation = {{"bos_token_id", 0}, {"eos_token_id", 0}};
  const Json tokenizer = tokenizer_of(model.vocab);
  const Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"bos_token", token},
                                 {"eos_token", token},
                                 {"unk_token", token},
                                 {"model_max_length", context}};

  std::vector<std::pair<std::string, std::string>> files;
  const auto add = [&](const char* name, const Json& json) { files.emplace_back(name, json.dump(2) + '\n'); };
  add("config.json", config);
  add("generation_config.json", generation);
  if (!hf_quant.is_null()) add("hf_quant_config.json", hf_quant);
  add("tokenizer.json", tokenizer);
  add("tokenizer_config.json", tokenizer_config);
  return files;
}

}  // namespace twofour
