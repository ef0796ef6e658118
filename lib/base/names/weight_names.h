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
  bool is_stack;            ///< the suffixes of its parts may also begin with "_"
};
/// The suffixes of weights after a linear's name. A stack may also have no suffix or "_blocks".
inline constexpr std::string_view kWeightSuffixes[] = {".weight", ".weight_packed", ".qweight"};

/// Recognizes a tensor of weights by its name and rank. Returns nullopt if the name is not that of weights,
/// or is that of a norm.
std::optional<WeightName> weight_name(const TensorInfo& tensor);
/// The tensors around position `i` whose names begin with `prefix`, as that of tensor `i` does. They are
/// found faster than by a search among all, since they are few. `tensors` must be sorted by name.
struct Neighbours {
  size_t first = 0;  ///< position of the first of them
  std::span<const TensorInfo> tensors;
};
Neighbours find_neighbours(std::span<const TensorInfo> tensors, size_t i, std::string_view prefix);
/// The tensors whose names begin with `prefix`, and the position of the first of them, to which `first` is
/// added. `tensors` must be sorted by name.
Neighbours tensors_below(std::span<const TensorInfo> tensors, std::string_view prefix, size_t first = 0);
/// The position of the weights of a linear, in any format. `tensors` must be sorted by name.
std::optional<size_t> find_weight(std::span<const TensorInfo> tensors, const std::string& linear);

/// Weights that two tensors hold: in two formats, under the names of two families, in and without a wrapper
/// ("language_model.model." or "" for "model."), fused and in parts, or in a stack and in separate experts.
/// A stack may have an engine's own name.
/// Readers take one or the other.
struct SecondHome {
  size_t tensor, other;
  std::string above;  ///< the module or block that holds both
};
/// All second homes, at most one for each tensor. `tensors` must be sorted by name.
std::vector<SecondHome> find_second_homes(std::span<const TensorInfo> tensors);

}  // namespace twofour
