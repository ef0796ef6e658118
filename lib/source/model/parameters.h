#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/sizes.h"

namespace twofour {

/// A parameter of a layer, as the family's row describes it.
struct Parameter {
  int64_t n, k;   ///< shape [n, k]; k is 1 for a vector
  bool has_bias;  ///< true if NAME.bias exists, too
};

/// Finds a parameter in the family's row. `name` has # in place of numbers. `layer` is the layer's number, or
/// -1 outside of layers. Empty if the row has no such name, or if the layer does not have the
/// parameter.
std::optional<Parameter> find_parameter(const FamilySizes& sizes, std::string_view name, int64_t layer);

/// Returns the names of all routers of experts that the row defines for a layer, with # in place of numbers.
std::vector<std::string> router_names(const FamilySizes& sizes, int64_t layer);

}  // namespace twofour
