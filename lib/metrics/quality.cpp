#include "lib/quality.h"

#include <cmath>
#include <limits>

namespace twofour {

void Quality::add(const PruneStats& stats, double global_scale) {
  const double unit = 0x1p-20 * global_scale * global_scale;
  energy += static_cast<double>(stats.energy) * unit;
  kept_energy += static_cast<double>(stats.kept_energy) * unit;
  quads += stats.quads;
  tied += stats.tied;
}

Quality& Quality::operator+=(const Quality& other) {
  energy += other.energy;
  kept_energy += other.kept_energy;
  quads += other.quads;
  tied += other.tied;
  fold_energy += other.fold_energy;
  fold_error += other.fold_error;
  return *this;
}

double Quality::relative_error() const { return energy > 0 ? std::sqrt((energy - kept_energy) / energy) : 0; }

double Quality::snr_db() const {
  if (energy <= kept_energy) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(energy / (energy - kept_energy));
}

double Quality::cosine() const { return std::sqrt(retained_energy()); }

}  // namespace twofour
