#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/sizes.h"

namespace twofour {

/// A parameter of a layer, as the row of its family has it.
struct Parameter {
  int64_t n, k;   ///< k is 1 of vectors
  bool has_bias;  ///< NAME.bias goes with it
};

/// The parameter of that name in the family's row, with # for numbers, in a layer (-1: outside of them).
/// Nothing where the row has none of that name, or the layer does not have it.
std::optional<Parameter> find_parameter(const FamilySizes& sizes, std::string_view name, int64_t layer);

/// The names of all routers of experts that the row knows in a layer, with # for its number.
std::vector<std::string> router_names(const FamilySizes& sizes, int64_t layer);

}  // namespace twofour
