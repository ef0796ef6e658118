#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/solve/device_solve.h"
#include "kernels/solve/solve.h"
#include "lib/base/primitives/recently_used.h"
#include "lib/look/metrics/quality.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// Solves rows of matrices by the statistics of their inputs. Preparing an entry is slow, so the two entries
/// that were used last stay cached. Two suffice, because gate and up of an expert share one entry, and down
/// has another. Each thread needs its own solver.
class MatrixSolver {
 public:
  explicit MatrixSolver(const Compute& compute) : compute_(compute) {}

  /// Prepares for the rows of a matrix. Throws Error if the numbers of its entry cannot be statistics.
  void begin(const EncodeRule& rule, const EncodedMatrix& matrix);
  /// True if the target of the matrix differs from its weights.
  bool has_target() const { return matrix_->solving.target_offset.has_value(); }
  /// Turns the rows that begin with row `row` into their target W + 0.5 C (H + lambda I)^-1.
  void aim(int64_t row, std::span<float> weights);
  /// Finds codes [rows, k] and block scales of rows in the rule's format. `stored` is the global scale, or 1.
  /// `mask` is [rows, k] or empty. `steps` [rows, k/16] are the scales of a format with fixed scales.
  void solve(Arithmetic arithmetic, float stored, uint8_t zero_scale, std::span<const float> target,
             std::span<const uint8_t> mask, uint8_t* codes, uint8_t* scales,
             std::span<const float> steps = {});
  /// Adds the loss of rows whose weights are read back as `values`.
  void add_loss(std::span<const float> weights, std::span<const float> values, OutputLoss& to);

 private:
  struct Key {
    const Statistics* statistics;
    const StatisticsEntry* entry;
    std::optional<PrunePattern> pattern;
    Solving::Method method;
    double damping, shrink;
    bool sweeps;  ///< true if there are any sweeps
    bool has_inverse;
    bool operator==(const Key&) const = default;
  };
  struct Prepared {
    /// A mean over tokens. Its numbers are in units of `unit`.
    struct Mean {
      std::vector<float> numbers;
      double unit = 1;
      void read(std::vector<float> from, int64_t k);
    };
    Mean mean;                    ///< mean of x x' [k, k]; for kDiagonal, mean of x^2 [k]
    Mean heldout;                 ///< over held-out tokens, [k, k] or [k]; may be empty
    Mean fisher;                  ///< mean of e x x' [k, k]; may be empty
    std::vector<float> diagonal;  ///< weights of squares, for kDiagonal without sweeps
    DampedHessian hessian;
    std::unique_ptr<GroupMaps> maps;
    std::unique_ptr<DampedInverse> inverse;  ///< on the CPU
    cuda::DeviceHessian on_device;           ///< for Device::cuda
    bool is_on_device = false;
  };
  /// Prepares the entry of the matrix. `memory` is device memory that another entry no longer uses.
  std::unique_ptr<Prepared> prepare(cuda::DeviceHessian memory) const;
  /// Computes the factors of the entry's mean, on the device if the mean is there. An Error names the entry.
  void factorize(Prepared& of) const;
  /// Adds e H e' for each row e of `rows` to `to`. H is the mean, [k, k], or its diagonal, [k]. `rows_unit`
  /// is the unit of the rows.
  void add_forms(const Prepared::Mean& mean, std::span<const float> rows, double rows_unit, double& to) const;
  /// If the global scale is very small or very large, multiplies the rows to solve and the global scale by
  /// the same power of two, to bring them into a moderate range.
  std::span<const float> in_units(Arithmetic arithmetic, float& stored, std::span<const float> target);

  Compute compute_;
  const EncodeRule* rule_ = nullptr;
  const EncodedMatrix* matrix_ = nullptr;
  std::unique_ptr<cuda::DeviceSolver> device_;  ///< made by the first solve on the device
  Prepared* prepared_ = nullptr;
  RecentlyUsed<Key, std::unique_ptr<Prepared>> held_;
  std::vector<float> offset_, scaled_;
};

}  // namespace twofour
