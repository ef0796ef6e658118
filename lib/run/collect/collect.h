#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/run/collect/gradient_sums.h"
#include "lib/run/decoder/decoder.h"

namespace twofour {

/// Windows of tokens. Each window is an independent text. The last windows may be held out.
struct CollectInput {
  std::vector<std::vector<int32_t>> windows;
  int64_t held_out = 0;            ///< number of windows at the end whose sums are stored under `heldout.`
  std::string text;                ///< description of the windows, which is stored in the file
  GradientRequest gradients = {};  ///< sums that need a backward pass
};

/// The needs and the results of collecting. It is known before collecting begins.
struct CollectPlan {
  uint64_t peak_memory = 0;  ///< bytes, without the program itself and mapped files
  uint64_t file_bytes = 0;
  uint64_t work_bytes = 0;  ///< bytes of a file beside the output while gradients are collected
  uint64_t weights_read = 0;
  int64_t tokens = 0, held_out_tokens = 0;
  size_t entries = 0;
};
/// Throws Error if windows do not fit the model, or if gradients are requested of blocks without a backward
/// pass.
CollectPlan plan_collection(const Decoder& model, const CollectInput& input);

/// Writes the statistics of a model's inputs (lib/recipe/statistics/README.md), either as a complete file or
/// not at all. Each layer runs on all windows before the next layer, so that the sums of only one layer are
/// in memory. Linears with the same input share an entry, and so do the gates and ups of all experts. The
/// down of each expert has an entry. One more entry covers all downs; it serves experts that see no token.
/// The tensors of the file depend only on the model, so files from other texts can be merged. The number of
/// threads does not change the sums. With gradients each linear has an entry of its own, except gate and up
/// of all experts, and a backward pass on the CPU follows the layers.
void collect_statistics(const Decoder& model, const CollectInput& input, const std::filesystem::path& out,
                        Progress& progress);

}  // namespace twofour
