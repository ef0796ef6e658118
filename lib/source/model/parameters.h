#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/sizes.h"

namespace twofour {

/// A parameter of a layer, from the row of its family.
struct Parameter {
  int64_t n, k;   ///< k is 1 of vectors
  bool has_bias;  ///< there is also NAME.bias
};

/// The parameter of that name in the family's row, with # for numbers, in a layer (-1: outside of them).
/// Nullopt if the row has no such name, or the layer does not have the parameter.
std::optional<Parameter> find_parameter(const FamilySizes& sizes, std::string_view name, int64_t layer);

/// The names of all routers of experts in a layer that the row defines, with # for its number.
std::vector<std::string> router_names(const FamilySizes& sizes, int64_t layer);

}  // namespace twofour
