#include "lib/source/config/contradictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/json/access.h"
#include "formats/module_kinds.h"
#include "lib/base/names/quantization_methods.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

/// True if `named`, the format in a setting, may be the format of the stored codes.
bool is_named_like(WeightFormat stored, WeightFormat named) {
  if (stored == named || stored->number != nullptr) return true;
  return stored->tiles ? named->tiles : stored->integers && named->integers;
}

/// The format of a value of compressed-tensors' `format`. nullopt: it names none.
/// Source: compressed-tensors, config/base.py, CompressionFormat.
std::optional<WeightFormat> format_of_packing(std::string_view text) {
  constexpr std::pair<std::string_view, WeightFormat> kPackings[] = {
      {"nvfp4-pack-quantized", WeightFormat::kNvfp4},
      {"mxfp4-pack-quantized", WeightFormat::kMxfp4},
      {"mxfp6-pack-quantized", WeightFormat::kMxfp6},
      {"mxfp8-quantized", WeightFormat::kMxfp8},
      {"float-quantized", WeightFormat::kFp8},
      {"pack-quantized", WeightFormat::kInt4},
      {"marlin-24", WeightFormat::kInt4},
      {"int-quantized", WeightFormat::kInt4},
  };
  for (const auto& [name, format] : kPackings) {
    if (text == name) return format;
  }
  return std::nullopt;
}

/// True if a value of `format` is one that compressed-tensors writes, or wrote.
bool is_known_packing(std::string_view text) {
  constexpr std::string_view kOthers[] = {
      "", "dense", "sparse-bitmask", "sparse-24-bitmask", "naive-quantized", "mixed-precision"};
  return format_of_packing(text) ||
         std::find(std::begin(kOthers), std::end(kOthers), text) != std::end(kOthers);
}

std::string expected_text(std::string_view key, std::string_view expected, const Json& found) {
  return fmt::format("{}: expected {}, found {}", key, expected,
                     found.is_null() ? "none" : quoted_setting(found));
}

std::string codes_text(WeightFormat format) {
  return fmt::format("{} (as the codes are stored)", format->name);
}

std::string contradiction_of_group(const ConfiguredQuantization& configured, const std::string& module,
                                   WeightFormat format) {
  const ConfiguredFormat group = configured.find_group(module);
  if (group.entry == nullptr) return {};
  const Json& weights = member(*group.entry, "weights");
  const Json &type = member(weights, "type"), &bits = member(weights, "num_bits");
  const auto count = integer_of(weights, "num_bits");
  // The type of FP8 codes is in the file. A group for codes of another width cannot change them.
  if (format->tiles && count && *count != 8) return {};
  const Json& packing = member(*group.entry, "format");
  const bool is_alone = configured.groups().size() == 1;
  const Json& stated = packing.is_null() && is_alone ? member(*configured.settings, "format") : packing;
  const auto packed = format_of_packing(text_of(stated));
  if (packed ? !is_named_like(format, *packed) : !is_known_packing(text_of(stated)))
    return expected_text(packing.is_null() ? "format" : group.place + ".format", codes_text(format), stated);
  if (!weights.is_object() || format->integers) return {};  // the reader of integers checks their own keys
  const auto place_of = [&](const char* key) { return fmt::format("{}.weights.{}", group.place, key); };
  const bool says_integers = format->tiles && type.is_null() && (bits.is_null() || bits == 8);
  if ((!type.is_null() && text_of(type) != "float") || says_integers)
    return expected_text(place_of("type"), fmt::format("float for {}", codes_text(format)), type);
  const int64_t stored = format->sixes ? 6 : format->pairs ? 4 : 8;
  if (count && *count != stored)
    return expected_text(place_of("num_bits"), fmt::format("{} for {}", stored, codes_text(format)), bits);
  if (member(weights, "symmetric") == false)
    return expected_text(place_of("symmetric"), fmt::format("true for {}", codes_text(format)), false);
  const Json& order = member(weights, "actorder");
  if (order == "group" || order == "dynamic" || order == true)
    return expected_text(place_of("actorder"), "none, because no weight_g_idx has an order", order);
  return {};
}

// Source: AMD Quark 0.13, core/quantization/config/type.py, Dtype.
std::string contradiction_of_quark(ConfiguredQuantization& configured, const std::string& module,
                                   WeightFormat format) {
  const ConfiguredFormat layer = configured.find_quark(module);
  const Json& weights = member(*layer.entry, "weight");
  const Json& codes = weights.is_array() && !weights.empty() ? *weights.begin() : weights;
  const Json& dtype = member(codes, "dtype");
  std::string text = text_of(dtype);
  if (text == "mx") text = text_of(codes, "mx_element_dtype");
  if (text.empty() || format->number != nullptr) return {};
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), text) != names.end();
  };
  const bool fits = format->pairs      ? is_one_of({"fp4", "fp4_e2m1", "mxfp4", "nvfp4"})
                    : format->integers ? is_one_of({"int4", "uint4"})
                                       : is_one_of({"fp8", "fp8_e4m3", "mxfp8", "mxfp8_e4m3"});
  return fits ? std::string() : expected_text(layer.place + ".weight.dtype", codes_text(format), dtype);
}

}  // namespace

std::string contradiction_of(ConfiguredQuantization& configured, const std::string& module,
                             WeightFormat format) {
  if (!format->coded || configured.method_text == "twofour") return {};
  if (configured.groups().is_object()) {
    std::string found = contradiction_of_group(configured, module, format);
    if (!found.empty()) return found;
  }
  if (configured.method_text == "quark") return contradiction_of_quark(configured, module, format);
  const std::string own_method = quantization_method(*configured.settings);
  // These methods quantize linears. An embedding's format is that of its tensors.
  const bool is_odd = has_own_codes(own_method) || !(own_method.empty() || is_known_method(own_method));
  if (is_odd && !format->integers && !is_table_name(module))
    return expected_text("quant_method", codes_text(format), member(*configured.settings, "quant_method"));
  if (own_method == "auto-round") {
    const Json& own = configured.exception_of(module, "data_type");
    const Json& type = own.is_null() ? member(*configured.settings, "data_type") : own;
    const bool says_integers = text_of(type).find("int") != std::string::npos;
    if (!text_of(type).empty() && says_integers != format->integers)
      return expected_text("data_type", codes_text(format), type);
  }
  if (configured.method != QuantMethod::kModelOpt || format->integers) return {};
  const ConfiguredFormat entry = configured.find(module);
  const auto named = format_of_algorithm(entry.algorithm);
  if (!named || (*named)->is_known()) return {};  // types and shapes distinguish FP8 from FP4
  return expected_text(entry.place, fmt::format("an algorithm of {}", codes_text(format)), entry.algorithm);
}

}  // namespace twofour
