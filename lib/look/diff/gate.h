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
  std::optional<double> cosine_below, snr_below, max_abs_above;  ///< of any entry with figures

  bool asks_for_figures() const { return cosine_below || snr_below || max_abs_above; }
  bool fails(const DiffEntry& entry) const;
  /// Entries that fail.
  uint64_t count(const DiffResult& result) const;
};

/// Fails on every entry except those that are equal, up to a reciprocal's last bit or within the tolerance,
/// and those that were not read.
DiffGate default_diff_gate();

/// Parses words that users type, each a class, "any" (the default), "none", "cosine<X", "snr<DB" or
/// "max-abs>X", in place of the default; an entry fails if it fails any of them. Throws Error on other words,
/// and on limits that are no number or that no figure can pass or fail.
DiffGate parse_diff_gate(const std::vector<std::string>& words);

}  // namespace twofour
