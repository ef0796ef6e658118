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

/// The weight of each token for each linear. It is a safetensors file with a tensor `M.token_weights` F32
/// [windows, length] for each linear M. examples/statistics/collect.py --token-weights writes such files.
class TokenWeights {
 public:
  /// Throws Error if the file is damaged, if a tensor has a wrong name, type or shape, or if a linear has no
  /// weights. `tokens` is the number of tokens in all windows.
  static TokenWeights open(const std::filesystem::path& path, int64_t tokens,
                           const std::set<std::string>& linears);
  /// The weights of all tokens for a linear. Throws Error if a weight is negative or not finite.
  std::vector<float> read(const std::string& linear) const;

 private:
  explicit TokenWeights(Checkpoint file) : file_(std::move(file)) {}
  Checkpoint file_;
  std::map<std::string, size_t> tensors_;  ///< by name of the linear
};

}  // namespace twofour
