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

/// Solves rows of matrices by the statistics of their inputs. The preparation of an entry is cached for the
/// two entries used last: an expert's gate and up share one, its down has another. Use one per thread.
class MatrixSolver {
 public:
  explicit MatrixSolver(const Compute& compute) : compute_(compute) {}

  /// Prepares for rows of a matrix. Throws Error if its entry holds numbers that cannot be statistics.
  void begin(const EncodeRule& rule, const EncodedMatrix& matrix);
  /// True if the matrix has another target than its weights.
  bool has_target() const { return matrix_->solving.target_offset.has_value(); }
  /// Turns rows from `row` on into their target: W + 0.5 C (H + lambda I)^-1.
  void aim(int64_t row, std::span<float> weights);
  /// Finds codes [rows, k/2] and block scales [rows, k/16] of rows for a global scale. `mask` [rows, k] may
  /// be empty.
  void solve(Arithmetic arithmetic, float stored, uint8_t zero_scale, std::span<const float> target,
             std::span<const uint8_t> mask, uint8_t* codes, uint8_t* scales);
  /// Adds the loss of rows that are read back as `values`, row by row.
  void add_loss(std::span<const float> weights, std::span<const float> values, OutputLoss& to);

 private:
  struct Key {
    const Statistics* statistics;
    const StatisticsEntry* entry;
    std::optional<PrunePattern> pattern;
    Solving::Method method;
    double damping;
    bool sweeps;  ///< any
    bool has_inverse;
    bool operator==(const Key&) const = default;
  };
  struct Prepared {
    /// A mean over tokens, with its own unit.
    struct Mean {
      std::vector<float> numbers;
      double unit = 1;
      void read(std::vector<float> from, int64_t k);
    };
    Mean mean;                    ///< of x x' [k, k]; for kDiagonal of x^2 [k]
    Mean heldout;                 ///< over held-out tokens [k, k] or [k], or empty
    Mean fisher;                  ///< of e x x' [k, k], or empty
    std::vector<float> diagonal;  ///< damped, for kDiagonal without sweeps
    DampedHessian hessian;
    std::unique_ptr<GroupMaps> maps;
    std::unique_ptr<DampedInverse> inverse;  ///< on the CPU
    cuda::DeviceHessian on_device;           ///< for Device::cuda
    bool is_on_device = false;
  };
  /// Prepares the matrix's entry; `memory` is device memory that another entry left.
  std::unique_ptr<Prepared> prepare(cuda::DeviceHessian memory) const;
  /// Computes the factors of its mean, on the device if the mean is there; an error names the entry.
  void factorize(Prepared& of) const;
  /// Adds e H e' of each row e; H is a mean [k, k] or its diagonal [k], and rows have the unit `rows_unit`.
  void add_forms(const Prepared::Mean& mean, std::span<const float> rows, double rows_unit, double& to) const;
  /// Scales the rows to solve, and their global scale, to near 1.
  std::span<const float> in_units(Arithmetic arithmetic, float& stored, std::span<const float> target);

  Compute compute_;
  const EncodeRule* rule_ = nullptr;
  const EncodedMatrix* matrix_ = nullptr;
  std::unique_ptr<cuda::DeviceSolver> device_;  ///< set once it solved
  Prepared* prepared_ = nullptr;
  RecentlyUsed<Key, std::unique_ptr<Prepared>> held_;
  std::vector<float> offset_, scaled_;
};

}  // namespace twofour
