#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/look/metrics/quality.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The checkpoint that --keep-global-scale names. Its NVFP4 matrices are found by the names that quantize
/// gives them.
class ReferenceCheckpoint {
 public:
  /// Throws Error if the checkpoint has no NVFP4 modules, global scales of both kinds, or invalid global
  /// scales.
  explicit ReferenceCheckpoint(Checkpoint checkpoint);
  const FixedGlobalScales& scales() const { return scales_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

  /// Compares rows of a matrix, from `row` on, with the reference checkpoint and adds the result to
  /// `difference`. `codes` is [rows, k/2], `scales` [rows, k/16]. Safe to call from several threads.
  void compare(const std::string& name, int64_t row, int64_t k, std::span<const uint8_t> codes,
               std::span<const uint8_t> scales, KeptDifference& difference) const;

 private:
  struct Rows {
    size_t module;
    int64_t expert, first, step, rows;
  };
  uint64_t compare_rows(const Rows& at, size_t tensor, int64_t row, int64_t width,
                        std::span<const uint8_t> ours, KeptDifference& difference) const;

  Checkpoint checkpoint_;
  std::map<std::string, Rows> rows_;
  FixedGlobalScales scales_;
};

}  // namespace twofour
