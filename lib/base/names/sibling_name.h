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

/// The first number of a name is the layer's; a number behind "experts" is the expert's.
SiblingName sibling_name(std::string_view name);

/// The part before the number of the expert, "model.layers.3.mlp.experts", or of the layer, "model.layers".
/// The whole name if it has no such number.
std::string experts_of(const std::string& name);
std::string layers_of(const std::string& name);

}  // namespace twofour
