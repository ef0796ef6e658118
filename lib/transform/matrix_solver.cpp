#include "lib/transform/matrix_solver.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"

namespace twofour {
namespace {

constexpr size_t kKept = 2;

}  // namespace

void MatrixSolver::begin(const EncodeRule& rule, const EncodedMatrix& matrix) {
  rule_ = &rule;
  matrix_ = &matrix;
  const auto fits = [&](const Prepared& p) {
    return p.statistics == rule.statistics.get() && p.entry == matrix.solving.entry &&
           p.pattern == rule.pattern && p.method == matrix.solving.method &&
           p.damping == matrix.solving.damping && p.sweeps == (matrix.solving.sweeps > 0) &&
           (p.inverse != nullptr) == matrix.solving.target_offset.has_value();
  };
  const auto at = std::find_if(kept_.begin(), kept_.end(), fits);
  if (at != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, at);
  } else {
    // The memory of the one used longest ago serves again.
    if (kept_.size() < kKept) kept_.emplace_back();
    kept_.splice(kept_.begin(), kept_, std::prev(kept_.end()));
    kept_.front().entry = nullptr;  // nothing, should reading fail
    prepare(kept_.front());
  }
  prepared_ = &kept_.front();
}

void MatrixSolver::prepare(Prepared& p) const {
  const Statistics& s = *rule_->statistics;
  const Solving& solving = matrix_->solving;
  const StatisticsEntry& entry = *solving.entry;
  cuda::DeviceHessian memory = std::move(p.on_device);
  p = {};
  p.on_device = std::move(memory);
  if (entry.fisher) p.fisher = s.read_fisher(entry);
  if (solving.heldout != nullptr) {
    p.heldout = solving.heldout->kind == StatisticsKind::kDiagonal ? s.read_diagonal(*solving.heldout)
                                                                   : s.read_hessian(*solving.heldout);
  }
  if (solving.method == Solving::Method::kDiagonal && solving.sweeps == 0) {
    p.mean = s.read_diagonal(entry);
    p.diagonal = damped_diagonal(p.mean, solving.damping);
  } else {
    p.mean = s.read_hessian(entry);
    factorize(p);
    if (solving.sweeps > 0) p.maps = std::make_unique<GroupMaps>(p.hessian, rule_->pattern);
    if (compute_.device == Device::cuda && solving.method != Solving::Method::kSparseGpt) {
      p.on_device.load(p.hessian, p.maps.get(), p.mean);
      p.is_on_device = true;
    }
  }
  p.statistics = &s;
  p.entry = &entry;
  p.pattern = rule_->pattern;
  p.method = solving.method;
  p.damping = solving.damping;
  p.sweeps = solving.sweeps > 0;
}

void MatrixSolver::factorize(Prepared& p) const {
  const Solving& solving = matrix_->solving;
  const StatisticsEntry& entry = *solving.entry;
  const int threads = compute_.threads;
  try {
    p.hessian =
        damped_hessian(p.mean, entry.k, solving.damping, solving.needs_factor(), threads, compute_.isa);
    if (solving.target_offset)
      p.inverse = std::make_unique<DampedInverse>(p.mean, entry.k, solving.damping, threads, compute_.isa);
  } catch (const Error& e) {
    const Statistics& s = *rule_->statistics;
    throw Error(fmt::format("{}: {}: {}", s.path().string(), s.tensors()[entry.sums].name, e.what()));
  }
}

void MatrixSolver::aim(int64_t row, std::span<float> weights) {
  if (!has_target()) return;
  offset_.resize(weights.size());
  rule_->statistics->read_target_offset(*matrix_->solving.target_offset, *prepared_->entry, row, offset_);
  // Where nothing was compressed before, the target is the weights to the last bit.
  if (std::all_of(offset_.begin(), offset_.end(), [](float c) { return c == 0; })) return;
  prepared_->inverse->multiply(offset_);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] += kTargetShare * offset_[i];
}

void MatrixSolver::solve(Arithmetic arithmetic, float stored, uint8_t zero_scale,
                         std::span<const float> target, std::span<const uint8_t> mask, uint8_t* codes,
                         uint8_t* scales) {
  SolveRule rule;
  rule.method = prepared_->method == Solving::Method::kFull        ? SolveMethod::joint
                : prepared_->method == Solving::Method::kSparseGpt ? SolveMethod::sparsegpt
                                                                   : SolveMethod::diagonal;
  rule.pattern = prepared_->pattern;
  rule.arithmetic = arithmetic;
  rule.zero_scale = zero_scale;
  rule.sweeps = matrix_->solving.sweeps;
  const SolveInput in{target, mask};
  const SolveOutput out{codes, scales};
  if (!prepared_->diagonal.empty()) {
    solve_rows_by_diagonal(rule, prepared_->diagonal, stored, in, out, compute_.threads, compute_.isa);
  } else if (prepared_->is_on_device) {
    if (!device_) device_ = std::make_unique<cuda::DeviceSolver>();
    device_->solve(rule, prepared_->on_device, stored, in, out);
  } else {
    solve_rows(rule, prepared_->hessian, prepared_->maps.get(), stored, in, out, compute_.threads,
               compute_.isa);
  }
}

void MatrixSolver::add_forms(std::span<const float> mean, std::span<const float> rows, double& to) const {
  const auto k = static_cast<size_t>(prepared_->entry->k);
  if (mean.size() > k) {
    for (const double form : quadratic_forms(mean, prepared_->entry->k, rows, compute_.threads, compute_.isa))
      to += form;
    return;
  }
  for (size_t r = 0; r < rows.size(); r += k) {
    double form = 0;
    for (size_t i = 0; i < k; ++i) form += double{mean[i]} * double{rows[r + i]} * double{rows[r + i]};
    to += form;
  }
}

void MatrixSolver::add_own_forms(std::span<const float> rows, double& to) const {
  if (!device_ || !prepared_->is_on_device) return add_forms(prepared_->mean, rows, to);
  for (const double form : device_->quadratic_forms(prepared_->on_device, rows)) to += form;
}

void MatrixSolver::add_loss(std::span<const float> weights, std::span<const float> values,
                            OutputLoss& to) const {
  to.method = solving_name(matrix_->solving, prepared_->pattern.has_value());
  std::vector<float> changes(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) changes[i] = weights[i] - values[i];
  add_own_forms(changes, to.loss);
  add_own_forms(weights, to.energy);
  if (!prepared_->fisher.empty()) add_forms(prepared_->fisher, changes, to.expected_loss);
  if (prepared_->heldout.empty()) return;
  add_forms(prepared_->heldout, changes, to.heldout_loss);
  add_forms(prepared_->heldout, weights, to.heldout_energy);
}

}  // namespace twofour
