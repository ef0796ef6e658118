
#include "lib/source/dialects/dialect_rows.h"

// Source: Hugging Face transformers, integrations/finegrained_fp8.py.

namespace twofour {
namespace deepseek {
namespace {

using enum Granularity;

ConfigEntries config_of(const QuantizedConfig& c, const Scheme& s) {
  Json unquantized = Json::array();
  for (std::string name : c.unquantized) {
    if (name.ends_with('*')) name.pop_back();  // loaders look for the entry within a name
    unquantized.push_back(name);
  }
  const Json entry = {{"activation_scheme", "dynamic"},
                      {"fmt", "e4m3"},
                      {"quant_method", "fp8"},
                      {"weight_block_size", {s.rows, s.cols}},
                      {"modules_to_not_convert", unquantized}};
  return {entry};
}

bool is_known_block(const Scheme& s) {
  return s.is_block(128, 128) || s.is_block(32, 32) || s.is_block(1, 128);
}

Json entry_of(const Scheme& s) { return is_known_block(s) ? Json{{"quant_method", "fp8"}} : Json(nullptr); }

std::optional<Spelling> spelling_of(const Scheme& s, int64_t n, int64_t k) {
  if (!is_known_block(s)) return std::nullopt;
  Spelling spelling{".weight", DType::kF8E4M3, kScaleInverse, std::nullopt};
  if (s.scale_type == DType::kF8E8M0 || s.scale_type == DType::kU8) spelling.scale_type = DType::kF32;
  spelling.scale_shape = two_axis_scale_shape(n, k, s);
  return spelling;
}

constexpr Granularity kBlockAlone[] = {kBlock};

}  // namespace
}  // namespace deepseek

const OutputDialect& deepseek_dialect() {
  static const OutputDialect row = {
      .name = "deepseek",
      .nvfp4 = nullptr,
      .scalar_rank = 1,
      .kv_scale_type = std::nullopt,
      .excludes_by_glob = true,
      .fp8_granularities = deepseek::kBlockAlone,
      .config = deepseek::config_of,
      .spelling = deepseek::spelling_of,
      .entry = deepseek::entry_of,
      .mixed_config = nullptr,
  };
  return row;
}

}  // namespace twofour
