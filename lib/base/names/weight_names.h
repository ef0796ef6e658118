#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace twofour {

/// The name of a tensor of weights (values or codes), of a linear or of a stack of linears.
struct WeightName {
  std::string linear;
  std::string_view suffix;  ///< ".weight", ".qweight", "_blocks" of a stack, "" of a stack
  bool is_stack;            ///< its parts are behind "_", too
};
/// Suffixes of weights behind a linear's name; a stack has none or "_blocks", too.
inline constexpr std::string_view kWeightSuffixes[] = {".weight", ".weight_packed", ".qweight"};

/// Decided by name and rank; empty if the name is not one of weights, or is a norm's.
std::optional<WeightName> weight_name(const TensorInfo& tensor);
/// The weights of a linear, in any format. `tensors` are sorted by name.
std::optional<size_t> find_weight(std::span<const TensorInfo> tensors, const std::string& linear);

/// Weights that two tensors hold: in two formats, under the names of two families, in and without a wrapper
/// ("language_model.model." for "model."), fused and in parts, or in a stack and in separate experts. Readers
/// take one or the other.
struct SecondHome {
  size_t tensor, other;
  std::string above;  ///< the module or block that holds both
};
/// All second homes, one for each tensor; `tensors` are sorted by name.
std::vector<SecondHome> find_second_homes(std::span<const TensorInfo> tensors);

}  // namespace twofour
