#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/run/decoder/decoder.h"

namespace twofour {

/// Windows of tokens. Each is an independent text; the last ones are held out.
struct CollectInput {
  std::vector<std::vector<int32_t>> windows;
  int64_t held_out = 0;  ///< windows at the end whose sums go under `heldout.`
  std::string text;      ///< description of the windows, for the file
};

/// The needs and output of collecting, known before it begins.
struct CollectPlan {
  uint64_t peak_memory = 0;  ///< bytes, beside the program itself and mapped files
  uint64_t file_bytes = 0;
  uint64_t weights_read = 0;
  int64_t tokens = 0, held_out_tokens = 0;
  size_t entries = 0;
};
/// Throws Error if windows do not suit the model.
CollectPlan plan_collection(const Decoder& model, const CollectInput& input);

/// Writes the statistics of a model's inputs (lib/recipe/statistics/README.md), as a complete file or not at
/// all. Each layer runs on all windows before the next, so that only one layer's sums are in memory. Linears
/// with the same input share an entry, and so do the gates and ups of all experts. Each expert's down has an
/// entry, and one of all downs serves experts that see no token. The tensors of the file depend on the model
/// alone, so files of other texts can be merged. The same sums for any number of threads.
void collect_statistics(const Decoder& model, const CollectInput& input, const std::filesystem::path& out,
                        Progress& progress);

}  // namespace twofour
