#pragma once
#include <cstdint>

#include "kernels/pack/prune_pack.h"

namespace twofour {

/// What pruning cost some weights. Sums of exact integers in a fixed order: the same figures for any number
/// of jobs and any instruction set.
struct Quality {
  double energy = 0;       ///< sum of squared weights
  double kept_energy = 0;  ///< of the weights that stay
  uint64_t quads = 0, tied = 0;
  double fold_energy = 0;  ///< sum of squared weights whose global scale was folded, before
  double fold_error = 0;   ///< sum of squared changes by rounding their block scales again

  void add(const PruneStats& stats, double global_scale);
  Quality& operator+=(const Quality& other);
  bool operator==(const Quality&) const = default;

  double retained_energy() const { return energy > 0 ? kept_energy / energy : 1; }
  /// Frobenius norm of what was dropped over that of all.
  double relative_error() const;
  /// In dB; infinite where nothing was lost.
  double snr_db() const;
  double cosine() const;
  /// Of the quads, or octets of 4:8-paired.
  double tied_share() const { return quads > 0 ? static_cast<double>(tied) / static_cast<double>(quads) : 0; }
};

}  // namespace twofour
