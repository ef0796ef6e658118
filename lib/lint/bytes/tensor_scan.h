#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "formats/layouts/part_map.h"
#include "kernels/counts/count_ops.h"
#include "lib/lint/bytes/blocks.h"
#include "lib/lint/bytes/input.h"

namespace twofour {

/// The kinds of checks for the bytes of a tensor that is not in an NVFP4 module.
enum class TensorCheck {
  kNone,
  kBf16,  ///< kBf16 to kE4m3: no NaN and no infinity
  kF16,
  kF32,
  kE4m3,
  kE8m0,         ///< no 0xFF, which is NaN
  kBlockScales,  ///< only valid block scales
  kMeta,         ///< only valid 2:4 metadata, for two quads in a byte
  kPart,         ///< a part of a layout that has several kinds of bytes, padding, or copies of bytes
};

/// The faults in a tensor. They are counts, so those of its parts can be added.
struct TensorCounts {
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t wrong = 0, first = kNone;      ///< number of elements that fail the check; the first of them
  uint64_t huge = 0, first_huge = kNone;  ///< for kBf16 and kF32: finite elements of 2^64 or more
  uint64_t negative = 0, first_negative = kNone;  ///< for scales in floats: negative elements
  uint64_t zero = 0, first_zero = kNone;          ///< for scales in floats: zero elements
  uint64_t copies = 0, first_copy = kNone;        ///< for kPart: bytes that differ from their copy
  uint64_t padding = 0, first_padding = kNone;    ///< for kPart: padding bytes that are not zero
  BlockCounts scales{};                           ///< counts of checks of block scales
  uint8_t largest = 0;                            ///< for kE4m3: the largest magnitude
  bool any = false;                               ///< true if any bit other than a sign is set
  TensorCounts& operator+=(const TensorCounts& other);
};

/// The scan of one tensor.
struct TensorScan {
  TensorCheck check = TensorCheck::kNone;
  /// The FP8 or INT4 weights whose scales are in this float tensor. No scale may be zero, and no scale of FP8
  /// may be negative.
  std::optional<size_t> scaled{};
  bool scales_integers = false;
  uint64_t unit = 16;  ///< pieces begin at multiples of this number of bytes
  PartMap map{};       ///< for kPart: the map of the part's bytes
};

/// Returns the scan for a tensor of `input`. A part of an artifact is scanned by the map of input.layout.
TensorScan plan_tensor_scan(const LintInput& input, size_t tensor);

/// Checks `bytes`, which begin at `offset`. The offset is a multiple of scan.unit. `range` is that of BF16
/// numbers if it is known: the bytes are read only if it shows a fault.
void scan_bytes(const TensorScan& scan, uint64_t offset, std::span<const uint8_t> bytes,
                const HalfRange* range, TensorCounts& counts);

/// True if BF16 numbers are likely the bytes of others in another order, or shifted by one byte: the lower
/// byte has the exponents of weights.
bool has_exchanged_bytes(std::span<const uint8_t> bytes);

}  // namespace twofour
