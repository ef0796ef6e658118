#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/run/collect/device_sums.h"
#include "lib/run/decoder/decoder.h"

namespace twofour {

/// Sums over the tokens of an entry, on the CPU or by `device`.
struct InputSums {
  std::vector<float> products;  ///< sum of w x x' [K, K], the upper triangle; empty: no token
  int64_t count = 0;            ///< tokens
  float amax = 0;
  double weights = 0, squares = 0;  ///< sums of w and w^2
  DeviceSums* device = nullptr;     ///< adds up products; nullptr: the CPU does
  cuda::DeviceMemory on_device{};   ///< products until finish()

  /// Adds rows `x` [rows, k] with weight 1, or with `roots`, the square roots of their weights, above 0.
  void add(std::span<const float> x, int64_t k, std::span<const float> roots = {});
  void add(const InputSums& other);
  /// Copies products from the device, after the last rows.
  void finish();
  /// The divisor of w that makes its mean 1. Throws Error naming `entry` if it is no number.
  double mean_weight(const std::string& entry) const;
};

/// One entry of a statistics file to be made.
struct PlannedEntry {
  std::string name;
  std::vector<std::string> linears;
  int64_t k = 0;
  int64_t times = 1;  ///< how often each token counts
  /// Linears with a target offset [N, K], and their N.
  struct Target {
    std::string linear;
    int64_t n;
  };
  std::vector<Target> targets = {};
};

/// The entries of a layer: one for each of its groups, in order, and, if it has experts, one that serves the
/// downs of experts without tokens.
std::vector<PlannedEntry> entries_of(const std::vector<InputGroup>& groups);
/// The number of experts among groups.
int64_t experts_of(const std::vector<InputGroup>& groups);
/// The name of the experts' block; empty without experts.
std::string block_of(const std::vector<InputGroup>& groups);

}  // namespace twofour
