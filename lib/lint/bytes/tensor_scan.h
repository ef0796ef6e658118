#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "formats/layouts/part_map.h"
#include "lib/lint/bytes/blocks.h"
#include "lib/lint/bytes/input.h"

namespace twofour {

/// The check of the bytes of a tensor outside of NVFP4 modules.
enum class TensorCheck {
  kNone,
  kBf16,  ///< this and the following: no NaN, no infinity
  kF16,
  kF32,
  kE4m3,
  kE8m0,         ///< no 0xFF
  kBlockScales,  ///< only block scales
  kMeta,         ///< only 2:4 metadata, two quads a byte
  kPart,         ///< a part of a layout with bytes of several kinds, padding, or copies
};

/// Faults of a tensor, as counts that add up over its parts.
struct TensorCounts {
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t wrong = 0, first = kNone;              ///< elements that fail the check, and the first of them
  uint64_t huge = 0, first_huge = kNone;          ///< of kBf16 and kF32: 2^64 or more, and finite
  uint64_t negative = 0, first_negative = kNone;  ///< negative elements of scales in floats
  uint64_t zero = 0, first_zero = kNone;          ///< likewise
  uint64_t copies = 0, first_copy = kNone;        ///< bytes of kPart that differ from their copy
  uint64_t padding = 0, first_padding = kNone;    ///< padding of kPart that is not zero
  BlockCounts scales{};                           ///< for checks of block scales
  uint8_t largest = 0;                            ///< of kE4m3: the largest magnitude
  bool any = false;                               ///< any bit but signs set
  TensorCounts& operator+=(const TensorCounts& other);
};

/// The scan of one tensor.
struct TensorScan {
  TensorCheck check = TensorCheck::kNone;
  /// The FP8 or INT4 weights that these floats scale. No scale may be zero, and no FP8 scale negative.
  std::optional<size_t> scaled{};
  bool scales_integers = false;
  uint64_t unit = 16;  ///< pieces begin at multiples of so many bytes
  PartMap map{};       ///< of kPart
};

/// The scan of a tensor of `input`. `layout`: the artifact's layout, or "".
TensorScan plan_tensor_scan(const LintInput& input, size_t tensor);

/// Checks bytes that begin at `offset`, a multiple of the unit.
void scan_bytes(const TensorScan& scan, uint64_t offset, std::span<const uint8_t> bytes,
                TensorCounts& counts);

}  // namespace twofour
