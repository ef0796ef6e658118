#include "lib/synth_config.h"

#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "lib/quantization_config.h"

namespace twofour {
std::vector<std::pair<std::string, std::string>> synth_sidecars(const SynthModel& model,
                                                                const Nvfp4Dialect& dialect) {
  const std::vector<std::string> unquantized = unquantized_modules(model);
  const bool modelopt = std::string_view(dialect.name) == "modelopt";
  const char* token = "<|endoftext|>";

  Json config = parse_json("config.json", model.shape->config);
  config["num_hidden_layers"] = model.layers;
  if (model.shape->experts_key != nullptr) {
    config[model.shape->experts_key] = model.experts;
    config["num_experts_per_tok"] = model.shape->top_k;
  }
  config["vocab_size"] = model.vocab;
  config["bos_token_id"] = 0;
  config["eos_token_id"] = 0;
  config["torch_dtype"] = "bfloat16";
  config["use_cache"] = true;
  const Nvfp4Config quantized{modelopt ? unquantized : globs_to_regexes(unquantized)};
  config["quantization_config"] =
      modelopt ? modelopt_config(quantized) : compressed_tensors_config(quantized);

  const Json generation = {{"bos_token_id", 0}, {"eos_token_id", 0}};
  const Json added = {{"id", 0},         {"content", token},    {"single_word", false}, {"lstrip", false},
                      {"rstrip", false}, {"normalized", false}, {"special", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", Json::array({added})},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", nullptr},
                          {"post_processor", nullptr},
                          {"decoder", nullptr},
                          {"model", {{"type", "WordLevel"}, {"vocab", {{token, 0}}}, {"unk_token", token}}}};
  const Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"bos_token", token},
                                 {"eos_token", token},
                                 {"unk_token", token},
                                 {"model_max_length", config["max_position_embeddings"]}};

  std::vector<std::pair<std::string, std::string>> files;
  const auto add = [&](const char* name, const Json& json) { files.emplace_back(name, json.dump(2) + '\n'); };
  add("config.json", config);
  add("generation_config.json", generation);
  if (modelopt) add("hf_quant_config.json", hf_quant_config(quantized));
  add("tokenizer.json", tokenizer);
  add("tokenizer_config.json", tokenizer_config);
  return files;
}

}  // namespace twofour
