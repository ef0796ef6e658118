#include <algorithm>
#include <initializer_list>
#include <set>

#include "lib/lint/bytes/checks.h"

namespace twofour {
namespace {

using enum DType;

bool is_of_types(DType dtype, std::initializer_list<DType> list) {
  return std::find(list.begin(), list.end(), dtype) != list.end();
}

bool has_ending(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view e) { return name.ends_with(e); });
}

/// Returns the types that a tensor of this kind may have. Empty if its type is allowed or its kind is
/// unknown.
std::string_view expected_types(const LintInput& s, const TensorInfo& t) {
  const std::string_view name = t.name;
  const bool is_float = is_of_types(t.dtype, {kBF16, kF16, kF32, kF64});
  const bool is_fp8 = is_of_types(t.dtype, {kF8E4M3, kF8E4M3FNUZ});
  if (name.ends_with(".A_log")) return is_float ? "" : "BF16, F16 or F32";
  if (has_ending(name, {"norm.weight", ".bias", "_bias"}) && t.shape.size() == 1)
    return is_float ? "" : "BF16, F16 or F32";
  if (has_ending(name, {".A_log", ".dt_bias", ".D", ".sinks", ".attn_sink"}))
    return is_float ? "" : "BF16, F16 or F32";
  if (has_ending(name, {".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale",
                        ".input_scale", ".input_global_scale", ".k_scale", ".v_scale"})) {
    const bool is_exponent = is_of_types(t.dtype, {kU8, kF8E8M0});
    return is_float || is_fp8 || is_exponent ? "" : "a float, F8_E4M3, F8_E8M0 or U8";
  }
  if (!name.ends_with(".weight") || t.shape.size() < 2) return "";
  if (is_float || is_fp8 || is_of_types(t.dtype, {kU8, kI8, kF4, kF6E2M3, kF6E3M2})) return "";
  // If `scales` is beside the tensor, another program packed codes into integers.
  if (s.find(std::string(name.substr(0, name.size() - std::string_view("weight").size())) + "scales"))
    return "";
  return "BF16, F16, F32, F8_E4M3, or codes in U8 or I8";
}

}  // namespace

void lint_types(const LintInput& s, LintReporter& reporter) {
  const std::set<std::string> reported = reporter.reported_names();
  for (size_t i = 0; i < s.tensors.size(); ++i) {
    const TensorInfo& t = s.tensors[i];
    const std::string_view expected = expected_types(s, t);
    if (expected.empty() || reported.contains(t.name)) continue;
    reporter.add("tensor-type", s.at(i), "expected {}, found {}", expected, describe(t));
  }
}

}  // namespace twofour
