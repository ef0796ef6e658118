#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "lib/look/diff/diff.h"

namespace twofour {

/// The conditions under which a comparison fails.
struct DiffGate {
  std::array<bool, kDiffClasses> classes{};
  bool config = false;  ///< true if keys of config.json that change what a model computes fail
  std::optional<double> cosine_below, snr_below, max_abs_above;  ///< for any entry with figures

  bool asks_for_figures() const { return cosine_below || snr_below || max_abs_above; }
  bool fails(const DiffEntry& entry) const;
  /// The number of entries, and of keys of configs, that fail.
  uint64_t count(const DiffResult& result) const;
};

/// The default gate. An entry passes if it is equal, equal up to a reciprocal's last bit, within the
/// tolerance, or was not read. Every other entry fails, and so does every key of a config that counts.
DiffGate default_diff_gate();

/// Parses the words that users type in place of the default gate. A word is a class, "config", "any" (the
/// default), "none", "cosine<X", "snr<DB" or "max-abs>X". An entry fails if it fails by any of the words.
/// Throws Error on other words, on limits that are not numbers, and on limits that every figure passes or
/// every figure fails.
DiffGate parse_diff_gate(const std::vector<std::string>& words);

}  // namespace twofour
