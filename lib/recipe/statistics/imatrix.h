#pragma once
#include <cstddef>
#include <filesystem>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The contents of llama.cpp's importance matrix that went into a statistics file.
struct ImportedMatrix {
  size_t entries = 0;  ///< linears that it serves
  size_t empty = 0;    ///< of them experts that saw no token
  size_t unknown = 0;  ///< tensors that belong to no linear of the checkpoint
};

/// Writes the sums of squares of an importance matrix in GGUF (llama.cpp, tools/imatrix: `NAME.in_sum2` F32
/// [E, K] and `NAME.counts` F32 [E]) as a statistics file of `checkpoint`: `sum_squares` of each linear. It
/// has no hash of weights. Throws Error on a file that is no such matrix, on a K that disagrees with the
/// checkpoint's, on sums that are negative or not finite, and if no linear is served. The output appears
/// completely or not at all. Source: ggml-org/llama.cpp, tools/imatrix/imatrix.cpp; ggml, docs/gguf.md.
ImportedMatrix import_imatrix(const std::filesystem::path& file, const Checkpoint& checkpoint,
                              const std::filesystem::path& out);

}  // namespace twofour
