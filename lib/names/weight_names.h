#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace twofour {

/// A tensor's name as that of the weights, values or codes, of a linear or a stack of them.
struct WeightName {
  std::string linear;
  std::string_view suffix;  ///< ".weight", ".qweight", "_blocks" of a stack, "" of a stack
  bool is_stack;            ///< its parts are behind "_", too
};
/// Suffixes of weights behind a linear's name; a stack has none or "_blocks", too.
inline constexpr std::string_view kWeightSuffixes[] = {".weight", ".weight_packed", ".qweight"};

/// By name and rank; empty where it is no name of weights, or of a norm's.
std::optional<WeightName> weight_name(const TensorInfo& tensor);
/// The weights of a linear, in whatever format. `tensors` are sorted by name.
std::optional<size_t> find_weight(std::span<const TensorInfo> tensors, const std::string& linear);

/// Weights that two tensors hold: in two formats, by the names of two families, or in a stack and in experts
/// of their own. Readers take one or the other.
struct SecondHome {
  size_t tensor, other;
  std::string above;  ///< the module or block that holds both
};
/// All of them, one for each tensor; `tensors` are sorted by name.
std::vector<SecondHome> find_second_homes(std::span<const TensorInfo> tensors);

}  // namespace twofour
