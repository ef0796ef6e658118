#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/decoder/decoder.h"
#include "lib/threads/progress.h"

namespace twofour {

/// Windows of tokens. Each is a text of its own; the last ones are held out.
struct CollectInput {
  std::vector<std::vector<int32_t>> windows;
  int64_t held_out = 0;  ///< windows at the end whose sums go under `heldout.`
  std::string text;      ///< what they are, for the file
};

/// What collecting takes and makes, known before it begins.
struct CollectPlan {
  uint64_t peak_memory = 0;  ///< bytes, beside the program itself and mapped files
  uint64_t file_bytes = 0;
  uint64_t weights_read = 0;
  int64_t tokens = 0, held_out_tokens = 0;
  size_t entries = 0;
};
/// Throws Error where windows do not suit the model.
CollectPlan plan_collection(const Decoder& model, const CollectInput& input);

/// Writes the statistics of a model's inputs (lib/statistics/README.md), whole or not at all: each layer runs
/// on all windows before the next, so that the sums of one layer alone are in memory. Of all linears with one
/// input one entry, of the gate and up of all experts one, of each expert's down one and one of all for those
/// that see no token. The tensors of the file depend on the model alone, so files of other texts merge. The
/// same sums for any number of threads.
void collect_statistics(const Decoder& model, const CollectInput& input, const std::filesystem::path& out,
                        Progress& progress);

}  // namespace twofour
