#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/piece.h"
#include "lib/plan/plan.h"

namespace twofour {

/// The parts of one piece of an expert as an artifact holds them.
class PieceReader {
 public:
  /// Tensors of the artifact by position in the plan; `artifact` must hold them all.
  PieceReader(const Checkpoint& artifact, const Plan& plan, size_t target);
  /// Reads a piece of expert `e`; valid until the next call.
  std::span<const std::span<const uint8_t>> read(int64_t e, const Piece& piece);

 private:
  const Checkpoint& artifact_;
  const Plan& plan_;
  size_t target_;
  std::vector<std::vector<uint8_t>> storage_;
  std::vector<std::span<const uint8_t>> parts_;
};

}  // namespace twofour
