#pragma once
#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/conversion.h"

// Faults of what convert does. wrong_encoder_test.cpp has the functions that the linker puts in the place of
// the library's (--wrap in tests/CMakeLists.txt).

namespace twofour::planted {

enum class Fault {
  kNone,
  kGlobalScale,
  kBlockScale,
  kZeroBlock,
  kFp8Scale,
  kCast,
  kShift,           ///< codes cast to FP8 under twice their scale
  kMxArithmetic,    ///< the other producer's
  kMxNibbles,       ///< two codes of a byte exchanged
  kMxCastCodes,     ///< MXFP4 as E4M3, two codes exchanged
  kTileScale,       ///< twice that of the cast
  kRoundedScale,    ///< of BF16 and E8M0: the power of two below
  kDecode,          ///< weights of the source: two neighbours exchanged
  kDecodeScale,     ///< twice as large
  kInputScale,      ///< of the second module twice as large
  kOwnInputScale,   ///< of the second module the source's
  kNoInputScales,   ///< none at all
  kInputScaleOfAll  ///< the largest of all modules, for each; 1 of none
};

extern Fault fault;

/// The findings of validate if convert had the fault.
inline Findings differences_of(const std::filesystem::path& source, const std::filesystem::path& out,
                               const OneRule& rule, Fault with) {
  std::filesystem::remove_all(out);
  fault = with;
  convert(source, out, rule);
  // The fault stays: validate must not depend on what is wrong.
  Findings found = validate_from(source, out, 0).differences;
  CHECK(validate(out, 0).differences.empty());  // the artifact is consistent in itself
  fault = Fault::kNone;
  return found;
}

}  // namespace twofour::planted
