#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/naming.h"
#include "lib/source/linears/linears.h"
#include "lib/write/plan/method.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// A tensor that the files of a family hold for all experts of a block, and the linears from which it is
/// made.
struct ExpertStack {
  Projection projection;           ///< gate and up together, or down
  TensorInfo weights;              ///< BF16, [E, N, K], or [E, K, N] if `by_columns`
  std::optional<TensorInfo> bias;  ///< [E, N]
  bool by_columns = false;         ///< columns come before rows, as in [E, K, N]
  bool interleaved = false;        ///< rows of gate and up alternate; otherwise all rows of gate come before
                                   ///< rows of up
  int64_t e = 0, rows = 0, k = 0;  ///< number of experts; rows and inputs of one matrix; N = rows *
                                   ///< per_expert
  size_t per_expert = 1;           ///< 2 if the stack holds gate and up
  /// The linears, [E][per_expert]. A linear that is itself a stack appears for every expert.
  std::vector<std::shared_ptr<const Linear>> matrices;

  int64_t n() const { return rows * static_cast<int64_t>(per_expert); }
  const Linear& matrix(int64_t expert, size_t which) const {
    return *matrices[static_cast<size_t>(expert) * per_expert + which];
  }
};

/// Linears of single experts that become one BF16 tensor. A unit of work writes rows, or columns, of one
/// expert.
class StackedExperts : public Transformation {
 public:
  StackedExperts(ExpertStack stack, const MemoryLimits& limits);

  const ExpertStack& stack() const { return stack_; }
  /// The number of rows of an expert [N, K] that one unit writes. By columns, it is the number of columns.
  int64_t unit_lines() const;
  /// The number of rows of a matrix that are read in one go.
  int64_t strip_rows() const;

  std::string name(const Checkpoint&) const override { return stack_.weights.name; }
  std::vector<TensorInfo> outputs(const Checkpoint& source) const override;
  std::vector<size_t> sources() const override;
  bool drop(size_t tensor) override {
    dropped_.push_back(tensor);
    return true;
  }
  std::vector<Unit> units(const Checkpoint& source) const override;
  uint64_t worker_bytes() const override;
  std::string decision(int part) const override { return part == 0 ? "bf16" : "copy"; }
  std::string origin(const Checkpoint& source, int part) const override;
  std::unique_ptr<Work> begin() const override;
  Json prove(Proof& proof) const override;
  Json empty_result() const override;
  void check_result(const Json& result) const override;
  Json entries(const Checkpoint& source, const Json& result, const std::vector<Json>& tensors) const override;
  std::string content(const Json& result, std::span<const Hash128> outputs) const override;
  std::vector<ModuleReport> report(const Checkpoint& source, const Json& result) const override;
  std::optional<ValueComparison> value_comparison() const override { return {{0x1p-8}}; }  // half a last bit

 private:
  ExpertStack stack_;
  std::vector<size_t> dropped_;
  MemoryLimits limits_;
};

/// The approximate number of weights in a unit of rows. Each unit has a hash of the source.
inline constexpr int64_t kStackUnitWeights = 4 << 20;

/// Plans stacks for the experts that a rule widens to BF16, if files of the model's family have stacks.
/// `chosen` holds the indices in `modules` of all modules that the rule widens. Returns the sorted indices of
/// the modules that became part of a stack. A block is left, with a warning, if only some of its experts are
/// chosen or if it lacks experts, since loaders of the family do not know single experts. It is a problem if
/// experts have biases and the family has none, or the reverse.
std::vector<size_t> plan_stacks(Planner& planner, const std::vector<Linear>& modules,
                                std::span<const size_t> chosen);

}  // namespace twofour
