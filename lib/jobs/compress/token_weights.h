#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The weight of each token for each linear: a safetensors file with `M.token_weights` F32 [windows, length]
/// of each linear M, as examples/statistics/collect.py --token-weights writes it.
class TokenWeights {
 public:
  /// Throws Error on a damaged file, on a tensor of another name, type or shape, and if a linear has no
  /// weights. `tokens`: number in all windows.
  static TokenWeights open(const std::filesystem::path& path, int64_t tokens,
                           const std::set<std::string>& linears);
  /// The weights of all tokens for a linear. Throws Error on a weight that is not finite or below 0.
  std::vector<float> read(const std::string& linear) const;

 private:
  explicit TokenWeights(Checkpoint file) : file_(std::move(file)) {}
  Checkpoint file_;
  std::map<std::string, size_t> tensors_;  ///< by linear
};

}  // namespace twofour
