#include "lib/synth/auxiliary_files.h"

#include <algorithm>

#include "formats/json.h"
#include "lib/base/names/natural.h"

namespace twofour {

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
  Json tokenizer = parse_json("tokenizer.json", R"({"version": "1.0", "truncation": null, "padding": null,
      "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}],
      "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
      "model": {"type": "WordLevel", "vocab": {"<|endoftext|>": 0}, "unk_token": "<|endoftext|>"}})");
  // A tokenizer of one token stands in for that of a toy model only.
  constexpr int64_t kToy = 1024;
  for (int64_t i = 1; model.vocab > kToy && i < model.vocab; ++i)
    tokenizer["model"]["vocab"][fmt::format("t{}", i)] = i;
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
