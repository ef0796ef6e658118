#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/collect/device_sums.h"
#include "lib/decoder/decoder.h"

namespace twofour {

/// Sums over the tokens of an entry, on the CPU or by `device`.
struct InputSums {
  std::vector<float> products;  ///< sum of w x x' [K, K], the upper triangle; empty: no token
  int64_t count = 0;            ///< tokens
  float amax = 0;
  double weights = 0, squares = 0;  ///< sums of w and w^2
  DeviceSums* device = nullptr;     ///< what adds up products; nullptr: the CPU
  cuda::DeviceMemory on_device{};   ///< those until finish()

  /// Rows `x` [rows, k] with weight 1, or with `roots`, the square roots of their weights, above 0.
  void add(std::span<const float> x, int64_t k, std::span<const float> roots = {});
  void add(const InputSums& other);
  /// Brings products from the device, behind the last rows.
  void finish();
  /// What w is divided by, so that its mean is 1. Throws Error naming `entry` where that is no number.
  double mean_weight(const std::string& entry) const;
};

/// One entry of a statistics file that is being made.
struct PlannedEntry {
  std::string name;
  std::vector<std::string> linears;
  int64_t k = 0;
  int64_t times = 1;  ///< each token counts so often
  /// Linears with a target offset [N, K], and their N.
  struct Target {
    std::string linear;
    int64_t n;
  };
  std::vector<Target> targets = {};
};

/// The entries of a layer: those of its groups in their order and, where it has experts, the one that stands
/// in for the downs of experts without tokens.
std::vector<PlannedEntry> entries_of(const std::vector<InputGroup>& groups);
/// The number of experts among groups.
int64_t experts_of(const std::vector<InputGroup>& groups);
/// The name of their block; empty without experts.
std::string block_of(const std::vector<InputGroup>& groups);

}  // namespace twofour
