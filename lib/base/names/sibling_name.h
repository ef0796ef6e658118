#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace twofour {

/// A name without the numbers of its layer and expert.
struct SiblingName {
  std::string kind;  ///< the rest, with * for each number; siblings have the same kind
  int64_t layer = -1, expert = -1;
};

/// The first number of a name is the layer's; a number after "experts" is the expert's.
SiblingName sibling_name(std::string_view name);

/// experts_of() returns the part before the number of the expert, "model.layers.3.mlp.experts". layers_of()
/// returns the part before the number of the layer, "model.layers". A name without that number is returned
/// whole.
std::string experts_of(const std::string& name);
std::string layers_of(const std::string& name);

}  // namespace twofour
