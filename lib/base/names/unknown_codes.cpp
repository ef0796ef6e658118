#include "lib/base/names/unknown_codes.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "formats/dialect.h"
#include "formats/module_parts.h"
#include "formats/naming.h"
#include "formats/weight_dialect.h"

namespace twofour {
namespace {

/// Names that only codes have. Sources: AutoGPTQ; compressed-tensors; ExLlamaV2 and V3; QuIP#; HQQ.
constexpr std::string_view kCodes[] = {"qweight", "weight_packed", "q_weight", "trellis", "Qidxs", "W_q"};

bool is_value(DType type) {
  return is_float(type) || type == DType::kF64 || type == DType::kC64 || type == DType::kBool;
}

class UnknownCodes {
 public:
  UnknownCodes(std::span<const TensorInfo> tensors, bool is_unlisted)
      : tensors_(tensors), is_unlisted_(is_unlisted) {}

  bool has(const TensorInfo& t) const {
    const size_t rank = t.shape.size(), dot = t.name.rfind('.');
    const bool is_seen = dtype_bits(t.dtype) <= 8 && rank >= 2;
    if (is_value(t.dtype) || is_seen || rank == 0 || dot == t.name.npos) return false;
    const std::string module = t.name.substr(0, dot);
    const std::string_view part = std::string_view(t.name).substr(dot + 1);
    if (is_looked_at(t, module, part)) return false;
    if (std::find(std::begin(kCodes), std::end(kCodes), part) != std::end(kCodes)) return true;
    if (part == "B" && rank == 2 && has_beside(module, "s")) return true;  // Marlin
    const bool is_matrix = rank >= 2 && dtype_bits(t.dtype) < 64;
    if (part == "weight") return has_scale(module) || (is_matrix && is_linear_name(module));
    return is_unlisted_ && is_matrix && !parse_part_name(t.name);
  }

 private:
  bool has_beside(const std::string& module, std::string_view part) const {
    return find_tensor(tensors_, module + "." + std::string(part)).has_value();
  }
  bool has_scale(const std::string& module) const {
    const auto parts = module_parts();
    return has_beside(module, "biases") || std::any_of(parts.begin(), parts.end(), [&](const ModulePart& p) {
             return p.kind == PartKind::kScale && has_beside(module, p.name);
           });
  }
  /// True if find_weight_modules() reads the tensor or reports why not.
  static bool is_looked_at(const TensorInfo& t, const std::string& module, std::string_view part) {
    const auto rows = weight_dialects();
    const bool is_known = std::any_of(rows.begin(), rows.end(), [&](const WeightDialect& d) {
      return std::string_view(d.weight).substr(*d.weight != 0) == part && d.weight_types.has(t.dtype);
    });
    if (!is_known || t.shape.size() < 2) return false;
    if (t.shape.size() == 2) return is_linear_name(module) || is_table_name(module);
    const auto name = parse_module_name(module);
    return name && name->kind == BlockKind::kRoutedExperts && name->expert < 0;
  }

  const std::span<const TensorInfo> tensors_;
  const bool is_unlisted_;
};

}  // namespace

std::vector<size_t> find_unknown_codes(std::span<const TensorInfo> tensors, bool is_unlisted) {
  const UnknownCodes codes(tensors, is_unlisted);
  std::vector<size_t> found;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (codes.has(tensors[i])) found.push_back(i);
  }
  return found;
}

}  // namespace twofour
