#pragma once
#include <cstddef>
#include <filesystem>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The counts of an import of llama.cpp's importance matrix.
struct ImportedMatrix {
  size_t entries = 0;  ///< linears that the matrix serves
  size_t empty = 0;    ///< experts among them that saw no token
  size_t unknown = 0;  ///< tensors that belong to no linear of the checkpoint
};

/// Converts an importance matrix to a statistics file of `checkpoint`, with `sum_squares` of each linear and
/// without a hash of weights. The matrix is a GGUF file of llama.cpp's tools/imatrix, with `NAME.in_sum2` F32
/// [E, K] and `NAME.counts` F32 [E]. Throws Error on any other file, on a K that differs from the
/// checkpoint's, on sums that are negative or not finite, and if the matrix serves no linear. The output
/// appears completely or not at all. Source: ggml-org/llama.cpp, tools/imatrix/imatrix.cpp; ggml,
/// docs/gguf.md.
ImportedMatrix import_imatrix(const std::filesystem::path& file, const Checkpoint& checkpoint,
                              const std::filesystem::path& out);

}  // namespace twofour
