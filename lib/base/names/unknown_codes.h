#pragma once
#include <span>
#include <vector>

#include "formats/safetensors.h"

namespace twofour {

/// Tensors that hold codes of weights in a form that no format reads and whose type or rank does not show
/// codes, as a matrix of eight bits does. `tensors` are sorted by name; `is_unlisted`: no reader knows the
/// config's method. Found are, in integers of any width or FP8 of one dimension:
///   * names of codes: "X.qweight" in U32, EXL3's "X.trellis";
///   * "X.weight" beside a scale (MLX), or a matrix "X.weight" of a linear;
///   * any matrix that no part of a module is known by, if no reader knows the config's method.
/// Indices of 64 bits, "position_ids" for example, count only by a name of codes.
std::vector<size_t> find_unknown_codes(std::span<const TensorInfo> tensors, bool is_unlisted);

}  // namespace twofour
