#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/naming.h"
#include "lib/source/checkpoint/linears.h"
#include "lib/write/plan/method.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// One tensor that a family's files hold for all experts of a block, and the linears that it is made from.
struct ExpertStack {
  Projection projection;           ///< gate with up, or down
  TensorInfo weights;              ///< BF16, [E, N, K] or, with columns outermost, [E, K, N]
  std::optional<TensorInfo> bias;  ///< [E, N]
  bool by_columns = false;         ///< [E, K, N]
  bool interleaved = false;        ///< rows of gate and up alternate, else gate's come before up's
  int64_t e = 0, rows = 0, k = 0;  ///< of one matrix; N = rows * per_expert
  size_t per_expert = 1;           ///< 2: gate and up
  /// [E][per_expert]; a linear that is itself a stack is the same for all E.
  std::vector<std::shared_ptr<const Linear>> matrices;

  int64_t n() const { return rows * static_cast<int64_t>(per_expert); }
  const Linear& matrix(int64_t expert, size_t which) const {
    return *matrices[static_cast<size_t>(expert) * per_expert + which];
  }
};

/// Linears of single experts as one tensor in BF16, written by rows or columns of one expert at a time.
class StackedExperts : public Transformation {
 public:
  StackedExperts(ExpertStack stack, const MemoryLimits& limits);

  const ExpertStack& stack() const { return stack_; }
  /// Rows of an expert [N, K] or, by columns, columns that one unit writes.
  int64_t unit_lines() const;
  /// Rows of a matrix that are read at once.
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

/// Approximate number of weights in a unit of rows; each unit has a hash of the source.
inline constexpr int64_t kStackUnitWeights = 4 << 20;

/// Plans stacks for the experts among `modules` in blocks that a rule widens to BF16, if the model's family
/// has stacks in its files; `chosen` are positions of the widened modules. Returns the positions that were
/// taken, sorted. Blocks that are chosen in part, or that lack experts, are left, with a warning: loaders of
/// the family do not know single experts. Experts with biases are a problem if the family has none, and the
/// reverse.
std::vector<size_t> plan_stacks(Planner& planner, const std::vector<Linear>& modules,
                                std::span<const size_t> chosen);

}  // namespace twofour
