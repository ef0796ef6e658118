#include "lib/methods/quantize_config.h"
#include "lib/names/config_pattern.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "lib/checkpoint/quantization_config.h"

namespace twofour {
namespace {

/// ModelOpt's name of a granularity. Source: vLLM, quantization/modelopt.py.
const char* fp8_algo(Granularity granularity) {
  return granularity == Granularity::kTensor ? "FP8"
         : granularity == Granularity::kRow  ? "FP8_PER_CHANNEL_PER_TOKEN"
                                             : "FP8_PB_WO";
}

/// As llm-compressor's FP8_DYNAMIC and FP8_BLOCK put it, and their like with a scale a tensor.
Json fp8_compressed_tensors(const EncodeRule& rule, const Nvfp4Config& c) {
  const bool block = rule.granularity == Granularity::kBlock;
  const auto args = [](const char* strategy, bool dynamic) {
    return Json{{"num_bits", 8},        {"type", "float"},
                {"strategy", strategy}, {"symmetric", true},
                {"dynamic", dynamic},   {"observer", dynamic ? Json(nullptr) : Json("minmax")},
                {"group_size", nullptr}};
  };
  const bool tensor = rule.granularity == Granularity::kTensor;
  Json weights = args(block ? "block" : tensor ? "tensor" : "channel", false);
  // Loaders of experts take a scale a tensor on both sides, or a channel and a token.
  Json activations = args(block ? "group" : tensor ? "tensor" : "token", true);
  if (block) {
    weights["block_structure"] = {kFp8Block, kFp8Block};
    activations["group_size"] = kFp8Block;
  }
  Json entry = compressed_tensors_config(c);
  entry["format"] = "float-quantized";
  entry["config_groups"]["group_0"] = {{"format", "float-quantized"},
                                       {"input_activations", activations},
                                       {"output_activations", nullptr},
                                       {"targets", {"Linear"}},
                                       {"weights", weights}};
  return entry;
}

Json fp8_deepseek(const std::vector<std::string>& unquantized) {
  Json left = Json::array();
  for (std::string name : unquantized) {
    if (name.ends_with('*')) name.pop_back();  // loaders look for names within names
    left.push_back(name);
  }
  return {{"activation_scheme", "dynamic"},
          {"fmt", "e4m3"},
          {"quant_method", "fp8"},
          {"weight_block_size", {kFp8Block, kFp8Block}},
          {"modules_to_not_convert", left}};
}

}  // namespace

std::map<std::string, std::string> quantized_texts(const Checkpoint& source, const EncodeRule& rule,
                                                   const std::vector<std::string>& unquantized) {
  const auto config = [&](Json entry) {
    return std::pair<const std::string, std::string>(
        "config.json", format_json(config_with_quantization(source, std::move(entry))));
  };
  if (rule.dialect == "deepseek") return {config(fp8_deepseek(unquantized))};
  const bool modelopt = rule.dialect == "modelopt";
  const Nvfp4Config c{modelopt ? unquantized : globs_to_regexes(unquantized), true, has_fp8_kv_cache(source)};
  if (!modelopt) return {config(rule.fp8 ? fp8_compressed_tensors(rule, c) : compressed_tensors_config(c))};
  Json entry = modelopt_config(c), hf_quant = hf_quant_config(c);
  if (rule.fp8) {
    entry.erase("config_groups");
    entry["quant_algo"] = fp8_algo(rule.granularity);
    hf_quant["quantization"]["quant_algo"] = fp8_algo(rule.granularity);
    hf_quant["quantization"].erase("group_size");
  }
  return {config(std::move(entry)), {"hf_quant_config.json", format_json(hf_quant)}};
}

}  // namespace twofour
