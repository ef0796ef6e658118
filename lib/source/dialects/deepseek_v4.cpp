#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/atom.h"
#include "formats/error.h"
#include "formats/naming.h"
#include "lib/base/findings/options.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/dialect_rows.h"

// DeepSeek-V4's own dialect: block FP8 with E8M0 scales, and experts in MXFP4, NVFP4 or FP8. Sources:
// NVIDIA/Model-Optimizer, examples/deepseek/deepseek_v4/quantize_to_nvfp4.py; vLLM,
// models/deepseek_v4/quant_config.py.

namespace twofour {
namespace deepseek_v4 {
namespace {

using enum Granularity;

bool is_block(const Scheme& s) {
  return s.format->tiles && s.granularity == kBlock && s.rows == s.cols && s.rows > 0;
}

Json entry_of(const Scheme& s) {
  if (s.format == WeightFormat::kNvfp4) return {{"quant_algo", "NVFP4"}, {"group_size", kGroup}};
  if (s.format == WeightFormat::kMxfp4) return {{"quant_algo", "MXFP4"}};
  if (is_block(s)) return {{"quant_algo", "FP8"}, {"block", s.rows}, {"e8m0", s.scale_type != DType::kF32}};
  return nullptr;
}

std::optional<Spelling> spelling_of(const Scheme& s, int64_t n, int64_t k) {
  if (s.format == WeightFormat::kMxfp4)
    return Spelling{".weight", DType::kI8, ".scale", DType::kF8E8M0, {n, k / kMxGroup}};
  if (!is_block(s)) return std::nullopt;
  // In the Base models, the scales of experts are F32.
  const bool power = s.scale_type == DType::kF8E8M0 || s.scale_type == DType::kU8;
  Spelling spelling{".weight", DType::kF8E4M3, ".scale", power ? DType::kF8E8M0 : DType::kF32};
  spelling.scale_shape = {count_blocks(n, s.rows), count_blocks(k, s.cols)};
  return spelling;
}

bool is_routed(const std::string& module) {
  const auto parsed = parse_module_name(module);
  return parsed && parsed->kind == BlockKind::kRoutedExperts;
}

/// The blocks of routed experts that are in NVFP4. mxfp4_drafts is true if experts of drafts are in MXFP4.
struct Experts {
  std::set<std::string> nvfp4;
  bool mxfp4_drafts = false;
};

Experts experts_of(const WrittenModel& model) {
  Experts experts;
  for (const WrittenModule& m : model.modules) {
    if (!m.entry || !is_routed(m.name)) continue;
    const auto algorithm = model.entries[*m.entry].at("quant_algo").get<std::string>();
    if (algorithm == "NVFP4") experts.nvfp4.emplace(parse_module_name(m.name)->block);
    experts.mxfp4_drafts = experts.mxfp4_drafts || (algorithm == "MXFP4" && is_in_mtp(m.name));
  }
  return experts;
}

/// Throws Error if FP8 weights have different block sizes, since loaders use one size for all of them.
void refuse_unlike_blocks(const WrittenModel& model) {
  const Json* first = nullptr;
  for (const Json& e : model.entries) {
    if (e.at("quant_algo") != "FP8") continue;
    if (first == nullptr) first = &e.at("block");
    if (*first == e.at("block")) continue;
    throw Error(
        fmt::format("{0} deepseek-v4: expected FP8 in blocks of one size, because its weight_block_size "
                    "states one, found {1} x {1} and {2} x {2}",
                    options::kDialect, first->get<int64_t>(), e.at("block").get<int64_t>()));
  }
}

/// Returns the source's FP8 entry, or a new one, with the output's block size and scales.
Json fp8_entry(const WrittenModel& model) {
  Json entry = source_quantization(*model.source);
  if (!entry.is_object() || entry.value("quant_method", "") != "fp8") {
    entry = {{"activation_scheme", "dynamic"},
             {"fmt", "e4m3"},
             {"quant_method", "fp8"},
             {"scale_fmt", "ue8m0"},
             {"weight_block_size", {kFp8Block, kFp8Block}}};
  }
  for (const Json& e : model.entries) {
    if (e.at("quant_algo") != "FP8") continue;
    entry["weight_block_size"] = {e.at("block"), e.at("block")};
    entry.erase("scale_fmt");
    if (e.at("e8m0").get<bool>()) entry["scale_fmt"] = "ue8m0";
  }
  return entry;
}

constexpr const char* kExpertDtype = "expert_dtype";

/// Returns "expert_dtype" for the model's experts: "fp4" for MXFP4 and NVFP4, "fp8", or null for floats.
/// `moe_quant_algo` tells MXFP4 from NVFP4.
Json expert_dtype_of(const WrittenModel& model) {
  Json dtype = nullptr;
  for (const WrittenModule& m : model.modules) {
    if (!m.entry || !is_routed(m.name) || is_in_mtp(m.name)) continue;
    if (model.entries[*m.entry].at("quant_algo") != "FP8") return "fp4";
    dtype = "fp8";
  }
  return dtype;
}

/// Returns expert_dtype as a member of config.json beside the entry. Its default is "fp4". DeepSeek-V4.1 has
/// it in the entry, too.
Json settings_of(const WrittenModel& model) {
  const Json dtype = expert_dtype_of(model);
  const Json& config = model.source->config();
  const bool stated = config.is_object() && config.contains(kExpertDtype);
  return stated || dtype == "fp8" ? Json{{kExpertDtype, dtype}} : Json::object();
}

/// Returns the scale type that vLLM reads. With four-bit experts all FP8 scales are E8M0, with FP8 experts
/// all are F32.
std::optional<DType> fp8_scale_type(std::span<const Scheme> experts) {
  std::optional<DType> type;
  for (const Scheme& s : experts) {
    if (s.format == WeightFormat::kMxfp4 || s.format == WeightFormat::kNvfp4) return DType::kF8E8M0;
    if (!s.format->tiles) continue;
    type = s.scale_type == DType::kF32 ? DType::kF32 : DType::kF8E8M0;
  }
  return type;
}

/// Adds the keys that NVIDIA's exports add for experts in NVFP4 to the source's entry. The method stays
/// "fp8".
ConfigEntries mixed_config(const WrittenModel& model) {
  refuse_unlike_blocks(model);
  Json entry = fp8_entry(model);
  for (const char* key : {"moe_quant_algo", "quant_algo", "group_size", "quantized_layers", "ignore",
                          "config_groups", "producer"})
    entry.erase(key);
  if (entry.contains(kExpertDtype)) entry[kExpertDtype] = expert_dtype_of(model);
  const Experts experts = experts_of(model);
  if (experts.nvfp4.empty()) return {std::move(entry)};
  Json layers = Json::object();
  for (const std::string& block : experts.nvfp4)
    layers[block] = {{"quant_algo", "NVFP4"}, {"group_size", kGroup}};
  Json ignore = {"*.attn.*", "*.ffn.shared_experts.*", "head"};
  if (experts.mxfp4_drafts) ignore.push_back("mtp.*");
  const Json producer = {{"name", "modelopt"}, {"version", "dsv4-nvfp4-experts"}};
  entry["moe_quant_algo"] = "NVFP4";
  entry["quant_algo"] = "MIXED_PRECISION";
  entry["group_size"] = kGroup;
  entry["quantized_layers"] = layers;
  entry["ignore"] = ignore;
  entry["producer"] = producer;
  const Json weights = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", kGroup}};
  entry["config_groups"]["group_0"] = {
      {"input_activations", weights}, {"weights", weights}, {"targets", {"Linear"}}};
  Json file = {{"producer", producer},
               {"quantization",
                {{"quant_algo", "MIXED_PRECISION"},
                 {"kv_cache_quant_algo", nullptr},
                 {"group_size", kGroup},
                 {"exclude_modules", ignore},
                 {"quantized_layers", layers}}}};
  return {std::move(entry), std::move(file)};
}

constexpr Granularity kBlockAlone[] = {kBlock};

}  // namespace
}  // namespace deepseek_v4

const OutputDialect& deepseek_v4_dialect() {
  static const OutputDialect row = {
      .name = "deepseek-v4",
      .nvfp4 = single_nvfp4_dialect("modelopt"),
      .scalar_rank = 0,
      .kv_scale_type = std::nullopt,
      .excludes_by_glob = true,
      .fp8_granularities = deepseek_v4::kBlockAlone,
      .config = nullptr,
      .spelling = deepseek_v4::spelling_of,
      .entry = deepseek_v4::entry_of,
      .mixed_config = deepseek_v4::mixed_config,
      .settings = deepseek_v4::settings_of,
      .fp8_scale_type = deepseek_v4::fp8_scale_type,
  };
  return row;
}

}  // namespace twofour
