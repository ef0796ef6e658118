#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "lib/diff/diff.h"

namespace twofour {

/// What of a comparison makes it fail.
struct DiffGate {
  std::array<bool, kDiffClasses> classes{};
  std::optional<double> cosine_below, snr_below, max_abs_above;  ///< of any entry with figures

  bool asks_for_figures() const { return cosine_below || snr_below || max_abs_above; }
  bool fails(const DiffEntry& entry) const;
  /// Entries that fail.
  uint64_t count(const DiffResult& result) const;
};

/// Everything but what is equal, up to a reciprocal's last bit or within the tolerance, or was not read.
DiffGate default_diff_gate();

/// From words as users type them, each a class, "any" (the default), "none", "cosine<X", "snr<DB" or
/// "max-abs>X", in place of the default; what fails any of them fails. Throws Error on
/// others, and on limits that are no number or that no figure can pass or fail.
DiffGate parse_diff_gate(const std::vector<std::string>& words);

}  // namespace twofour
