#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lib/metrics/quality.h"

namespace twofour {

class QuantizedGroup;

/// Groups whose weights were chosen before, by the same rule and statistics. Safe from several threads.
class EncodedBefore {
 public:
  /// Receives the bytes of a part of the group in order, front to back.
  using Write = std::function<void(int part, std::span<const uint8_t> bytes)>;
  virtual ~EncodedBefore() = default;
  /// Writes all parts of a group and returns a result for each of its matrices. Nothing, and no byte, where
  /// the group is not among them.
  virtual std::optional<std::vector<EncodedResult>> read(const QuantizedGroup& group,
                                                         const Write& write) const = 0;
};

}  // namespace twofour
