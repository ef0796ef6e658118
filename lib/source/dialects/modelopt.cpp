#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/atom.h"
#include "formats/module_names.h"
#include "lib/source/dialects/dialect_rows.h"

// Source: NVIDIA/Model-Optimizer, modelopt/torch/export; vLLM, quantization/modelopt.py.

namespace twofour {
namespace modelopt {
namespace {

using enum Granularity;

/// The version of ModelOpt whose arithmetic quantize_nvfp4_row has. Loaders also require the producer's name.
constexpr const char* kModelOptVersion = "0.45.0";

/// Makes the entries. For NVFP4, `groups` and `group_size` are written; null: there are none.
ConfigEntries modelopt_entries(const QuantizedConfig& c, const char* algorithm, const Json& groups,
                               const Json& group_size) {
  const Json producer = {{"name", "modelopt"}, {"version", kModelOptVersion}};
  Json entry = Json::object(), file = Json::object();
  if (!groups.is_null()) entry["config_groups"] = groups;
  entry["ignore"] = c.unquantized;
  entry["quant_algo"] = algorithm;
  entry["producer"] = producer;
  entry["quant_method"] = "modelopt";
  if (c.fp8_kv_cache) entry["kv_cache_scheme"] = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  file["quant_algo"] = algorithm;
  file["kv_cache_quant_algo"] = c.fp8_kv_cache ? Json("FP8") : Json(nullptr);
  if (!group_size.is_null()) file["group_size"] = group_size;
  file["exclude_modules"] = c.unquantized;
  return {std::move(entry), {{"producer", producer}, {"quantization", std::move(file)}}};
}

/// True if globs work in every engine. If all modules are MXFP8, SGLang looks for names alone.
bool takes_globs_everywhere(const std::vector<Json>& entries) {
  return entries.size() != 1 || entries[0].value("quant_algo", "") != "MXFP8";
}

Json float_weights(int bits, const Json& group_size) {
  Json weights = {{"dynamic", false}, {"num_bits", bits}, {"type", "float"}};
  if (!group_size.is_null()) weights["group_size"] = group_size;
  return weights;
}

/// Returns a description of a group of modules. Loaders read "quantized_layers" instead.
Json group_of(const Json& entry) {
  const auto algorithm = entry.at("quant_algo").get<std::string>();
  const Json group_size = entry.value("group_size", Json());
  const bool four_bits = algorithm.find("FP4") != std::string::npos;
  const Json weights = float_weights(four_bits ? 4 : 8, group_size);
  Json activations = weights;
  if (algorithm == "W4A8_MXFP4_FP8") activations = float_weights(8, nullptr);
  if (algorithm == "W4A16_NVFP4") activations = nullptr;
  return {{"input_activations", activations}, {"weights", weights}};
}

/// Gives FP8 blocks of routed experts DeepSeek's names, which engines look for.
Scheme of_experts(Scheme s) {
  if (s.is_block(kFp8Block, kFp8Block)) s.scale = kScaleInverse;
  return s;
}

/// Returns the entry of a scheme in the map of quantized modules.
Json entry_of(const Scheme& s) {
  if (s.format->global_scale)
    return {{"quant_algo", s.has_input_scale ? "NVFP4" : "W4A16_NVFP4"}, {"group_size", s.format->group}};
  if (s.format->pairs) return {{"quant_algo", "W4A8_MXFP4_FP8"}, {"group_size", kMxGroup}};
  if (s.is_mxfp8()) return {{"quant_algo", "MXFP8"}, {"group_size", kMxGroup}};
  if (!s.format->tiles) return nullptr;
  if (s.granularity == kTensor) return {{"quant_algo", "FP8"}};
  if (s.granularity == kRow) return {{"quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"}};
  if (s.rows != kFp8Block || s.cols != kFp8Block) return nullptr;
  // Loaders choose between the two spellings of block scales by the algorithm.
  const char* algorithm = s.scale == kScaleInverse ? "FP8_BLOCK_SCALES" : "FP8_PB_WO";
  return {{"quant_algo", algorithm}, {"group_size", kFp8Block}};
}

ConfigEntries config_of(const QuantizedConfig& c, const Scheme& s) {
  const Json entry = entry_of(s);
  const auto algorithm = entry.at("quant_algo").get<std::string>();
  if (s.format->tiles && !s.is_mxfp8()) return modelopt_entries(c, algorithm.c_str(), nullptr, nullptr);
  Json group = group_of(entry);
  group["targets"] = {"Linear"};
  // vLLM requires group_size, kv_cache_quant_algo and exclude_modules.
  return modelopt_entries(c, algorithm.c_str(), {{"group_0", group}}, entry.at("group_size"));
}

/// Returns the shape of scales. ModelOpt exports the reduced axes with size 1, and vLLM requires them.
std::vector<int64_t> scale_shape(int64_t n, int64_t k, Granularity granularity) {
  if (granularity == kRow) return {n};
  return {count_blocks(n, kFp8Block), 1, count_blocks(k, kFp8Block), 1};
}

std::optional<Spelling> spelling_of(const Scheme& s, int64_t n, int64_t k) {
  if (s.format == WeightFormat::kMxfp4)
    return Spelling{".weight", DType::kU8, ".weight_scale", DType::kU8, {n, k / kMxGroup}};
  if (entry_of(s).is_null() || !s.format->tiles) return std::nullopt;
  Spelling spelling{".weight", DType::kF8E4M3, ".weight_scale", DType::kF32};
  // Block scales with DeepSeek's name keep their name and shape.
  if (s.scale == kScaleInverse && s.granularity == kBlock) spelling.scale = kScaleInverse;
  if (s.is_mxfp8()) {
    spelling.scale_type = DType::kU8;
    spelling.scale_shape = {n, k / kMxGroup};
  } else if (s.granularity == kTensor) {
    spelling.input_scale = ".input_scale";
    spelling.needs_input_scale = true;
  } else if (spelling.scale == kScaleInverse) {
    spelling.scale_type = std::nullopt;
    spelling.scale_shape = two_axis_scale_shape(n, k, s);
  } else {
    spelling.scale_shape = scale_shape(n, k, s.granularity);
  }
  return spelling;
}

/// Returns blocks of unquantized routed experts that are beside quantized linears. They must be named:
/// otherwise vLLM gives them the format of the modules below their parent.
std::vector<std::string> experts_beside_quantized(const WrittenModel& model) {
  std::set<std::string, std::less<>> blocks, parents;
  for (const WrittenModule& m : model.modules) {
    const auto parsed = parse_module_name(m.name);
    const bool routed = parsed && parsed->kind == BlockKind::kRoutedExperts;
    if (routed && !m.entry) blocks.emplace(parsed->block);
    if (!routed && m.entry) {
      for (std::string_view name = parent_of(m.name); !name.empty(); name = parent_of(name))
        parents.emplace(name);
    }
  }
  std::vector<std::string> names;
  for (const std::string& block : blocks) {
    if (parents.contains(module_of(block))) names.push_back(block);
  }
  return names;
}

/// Makes a configuration with an entry for each quantized module by name, and with groups of equal entries.
/// Modules without an entry are not quantized. The list of exclusions is short, since loaders match its names
/// as substrings and a longer list would exclude too much.
ConfigEntries mixed_config(const WrittenModel& model) {
  Json layers = Json::object(), groups = Json::object();
  std::vector<Json> targets(model.entries.size(), Json::array());
  for (const WrittenModule& m : model.modules) {
    if (!m.entry) continue;
    layers[m.name] = model.entries[*m.entry];
    targets[*m.entry].push_back(m.name);
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    Json& group = groups[fmt::format("group_{}", i)] = group_of(model.entries[i]);
    group["targets"] = std::move(targets[i]);
  }
  ConfigEntries entries = modelopt_entries({experts_beside_quantized(model), model.fp8_kv_cache},
                                           "MIXED_PRECISION", groups, nullptr);
  entries.quantization_config["quantized_layers"] = layers;
  entries.hf_quant_config["quantization"]["quantized_layers"] = std::move(layers);
  return entries;
}

constexpr Granularity kGranularities[] = {kRow, kTensor, kBlock};

}  // namespace
}  // namespace modelopt

const OutputDialect& modelopt_dialect() {
  static const OutputDialect row = {
      .name = "modelopt",
      .nvfp4 = single_nvfp4_dialect("modelopt"),
      .scalar_rank = 0,
      .kv_scale_type = DType::kF32,
      .excludes_by_glob = true,
      .attention_as_glob = modelopt::takes_globs_everywhere,
      .fp8_granularities = modelopt::kGranularities,
      .config = modelopt::config_of,
      .spelling = modelopt::spelling_of,
      .of_experts = modelopt::of_experts,
      .entry = modelopt::entry_of,
      .mixed_config = modelopt::mixed_config,
  };
  return row;
}

}  // namespace twofour
