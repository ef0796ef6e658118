#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/isa.h"
#include "lib/findings/finding.h"
#include "lib/io/hash.h"

namespace twofour {

/// What encoding cost some weights. Sums go row by row, so that they are the same for any number of jobs, any
/// strips and any instruction set.
struct EncodeError {
  double energy = 0;  ///< sum of squared weights
  double error = 0;   ///< sum of squared changes

  /// Rows of weights [., k] and what is read back for them.
  void add(std::span<const float> weights, std::span<const float> back, int64_t k, Isa isa);
  EncodeError& operator+=(const EncodeError& other);
  /// In Frobenius norm.
  double relative_error() const;
  /// In dB; infinite where nothing was lost.
  double snr_db() const;
  bool operator==(const EncodeError&) const = default;
};

/// Bytes of a matrix that are not those of the checkpoint whose global scales were kept.
struct KeptDifference {
  bool compared = false;
  uint64_t codes = 0, scales = 0;  ///< bytes that differ
  uint64_t bytes = 0;              ///< compared
  std::string first;               ///< where, expected and found; empty where all are equal
  bool operator==(const KeptDifference&) const = default;
};

/// What encoding one matrix showed.
struct EncodedResult {
  Hash128 source;             ///< of the weights as float32, row after row
  uint32_t global_scale = 0;  ///< float32 bits as written; 0 of FP8
  bool cast = false;          ///< from MXFP4 without loss
  EncodeError error;          ///< of what was written
  EncodeError pruned_after;   ///< with a pattern: had it been applied to the codes instead
  KeptDifference kept;
  std::vector<std::string> problems;  ///< weights that cannot be encoded: nothing was written
  Findings findings;
  bool operator==(const EncodedResult&) const = default;
};

}  // namespace twofour
