#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace twofour {

/// A tensor beside the modules of a block that may give their inputs, or the experts, another order.
struct BlockOrder {
  size_t tensor;
  std::string block;    ///< the path of the block; "": the whole model
  std::string problem;  ///< "expected X, found Y", without the place
};

/// Returns the tensors that names_order() accepts, and permutations of any other unknown name in a
/// layer of a language model. Integers in order change nothing. `tensors` are sorted by name. `read` reads
/// bytes of a tensor from an offset on; without it, and where `whole` is false, only names of floats count.
std::vector<BlockOrder> find_block_orders(
    std::span<const TensorInfo> tensors,
    const std::function<void(size_t, uint64_t, std::span<uint8_t>)>& read, const std::vector<bool>* whole);

/// True if the last part of a tensor's name states that the tensor reorders or rotates what modules read: if
/// one of the words between "_" is "perm", "permutation", "permute", "reorder", "reordering", "rotation" or
/// "hadamard", or a plural of them.
bool names_order(std::string_view leaf);

}  // namespace twofour
