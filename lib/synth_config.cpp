#include "lib/synth_config.h"

#include <nlohmann/json.hpp>

#include "formats/json.h"

namespace twofour {
namespace {

/// The version whose arithmetic quantize_nvfp4_row has.
constexpr const char* kModelOptVersion = "0.45.0";
constexpr const char* kCompressedTensorsVersion = "0.12.2";

/// "*.mlp.gate" as a regular expression that matches the same names: "re:.*\.mlp\.gate$". Exact names stay.
std::string to_regex(const std::string& glob) {
  if (!glob.starts_with('*')) return glob;
  std::string regex = "re:";
  for (const char c : glob) {
    if (c == '*') {
      regex += ".*";
    } else if (c == '.') {
      regex += "\\.";
    } else {
      regex += c;
    }
  }
  return regex + '$';
}

Json modelopt_config(const std::vector<std::string>& unquantized) {
  const Json weights = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  return {{"config_groups",
           {{"group_0", {{"input_activations", weights}, {"weights", weights}, {"targets", {"Linear"}}}}}},
          {"ignore", unquantized},
          {"quant_algo", "NVFP4"},
          {"producer", {{"name", "modelopt"}, {"version", kModelOptVersion}}},
          {"quant_method", "modelopt"}};
}

/// vLLM wants group_size, kv_cache_quant_algo and exclude_modules, all three.
Json hf_quant_config(const std::vector<std::string>& unquantized) {
  return {{"producer", {{"name", "modelopt"}, {"version", kModelOptVersion}}},
          {"quantization",
           {{"quant_algo", "NVFP4"},
            {"kv_cache_quant_algo", nullptr},
            {"group_size", 16},
            {"exclude_modules", unquantized}}}};
}

Json compressed_tensors_config(const std::vector<std::string>& unquantized) {
  std::vector<std::string> ignore;
  for (const std::string& glob : unquantized) ignore.push_back(to_regex(glob));
  const Json weights = {{"num_bits", 4},       {"type", "float"},   {"strategy", "tensor_group"},
                        {"group_size", 16},    {"symmetric", true}, {"dynamic", false},
                        {"observer", "minmax"}};
  Json activations = weights;
  activations["dynamic"] = "local";
  return {{"config_groups",
           {{"group_0",
             {{"format", "nvfp4-pack-quantized"},
              {"input_activations", activations},
              {"output_activations", nullptr},
              {"targets", {"Linear"}},
              {"weights", weights}}}}},
          {"format", "nvfp4-pack-quantized"},
          {"global_compression_ratio", nullptr},
          {"ignore", ignore},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"},
          {"version", kCompressedTensorsVersion}};
}

}  // namespace

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
  config["quantization_config"] =
      modelopt ? modelopt_config(unquantized) : compressed_tensors_config(unquantized);

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
  if (modelopt) add("hf_quant_config.json", hf_quant_config(unquantized));
  add("tokenizer.json", tokenizer);
  add("tokenizer_config.json", tokenizer_config);
  return files;
}

}  // namespace twofour
