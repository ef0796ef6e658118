#include "lib/transform/matrix_solver.h"

#include <algorithm>

namespace twofour {
namespace {

constexpr size_t kKept = 2;

}  // namespace

void MatrixSolver::begin(const EncodeRule& rule, const EncodedMatrix& matrix) {
  rule_ = &rule;
  matrix_ = &matrix;
  const auto fits = [&](const std::shared_ptr<Prepared>& p) {
    return p->statistics == rule.statistics.get() && p->entry == matrix.solving.entry &&
           p->pattern == rule.pattern && p->method == matrix.solving.method &&
           p->damping == matrix.solving.damping && p->sweeps == (matrix.solving.sweeps > 0) &&
           (p->inverse != nullptr) == matrix.solving.target_offset.has_value();
  };
  const auto at = std::find_if(kept_.begin(), kept_.end(), fits);
  if (at != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, at);
  } else {
    if (kept_.size() == kKept) kept_.pop_back();
    kept_.push_front(prepare());
  }
  prepared_ = kept_.front();
}

std::shared_ptr<MatrixSolver::Prepared> MatrixSolver::prepare() const {
  const Statistics& s = *rule_->statistics;
  const Solving& solving = matrix_->solving;
  auto p = std::make_shared<Prepared>();
  p->statistics = &s;
  p->entry = solving.entry;
  p->pattern = rule_->pattern;
  p->method = solving.method;
  p->damping = solving.damping;
  p->sweeps = solving.sweeps > 0;
  if (solving.entry->fisher) p->fisher = s.read_fisher(*solving.entry);
  if (solving.heldout != nullptr) {
    p->heldout = solving.heldout->kind == StatisticsKind::kDiagonal ? s.read_diagonal(*solving.heldout)
                                                                    : s.read_hessian(*solving.heldout);
  }
  if (solving.method == Solving::Method::kDiagonal && solving.sweeps == 0) {
    p->mean = s.read_diagonal(*p->entry);
    p->diagonal = damped_diagonal(p->mean, solving.damping);
    return p;
  }
  p->mean = s.read_hessian(*p->entry);
  p->hessian = damped_hessian(p->mean, p->entry->k, solving.damping, solving.method == Solving::Method::kFull,
                              1, isa_);
  if (solving.sweeps > 0) p->maps = std::make_unique<GroupMaps>(p->hessian, p->pattern);
  if (solving.target_offset) {
    p->inverse = std::make_unique<DampedInverse>(p->mean, p->entry->k, solving.damping, 1, isa_);
  }
  return p;
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
  rule.method = prepared_->method == Solving::Method::kFull ? SolveMethod::joint : SolveMethod::diagonal;
  rule.pattern = prepared_->pattern;
  rule.arithmetic = arithmetic;
  rule.zero_scale = zero_scale;
  rule.sweeps = matrix_->solving.sweeps;
  if (prepared_->diagonal.empty()) {
    solve_rows(rule, prepared_->hessian, prepared_->maps.get(), stored, {target, mask}, {codes, scales}, 1,
               isa_);
  } else {
    solve_rows_by_diagonal(rule, prepared_->diagonal, stored, {target, mask}, {codes, scales}, 1, isa_);
  }
}

void MatrixSolver::add_forms(std::span<const float> mean, std::span<const float> rows, double& to) const {
  const auto k = static_cast<size_t>(prepared_->entry->k);
  if (mean.size() > k) {
    for (const double form : quadratic_forms(mean, prepared_->entry->k, rows, 1, isa_)) to += form;
    return;
  }
  for (size_t r = 0; r < rows.size(); r += k) {
    double form = 0;
    for (size_t i = 0; i < k; ++i) form += double{mean[i]} * double{rows[r + i]} * double{rows[r + i]};
    to += form;
  }
}

void MatrixSolver::add_loss(std::span<const float> weights, std::span<const float> values,
                            OutputLoss& to) const {
  to.method = solving_name(matrix_->solving, prepared_->pattern.has_value());
  std::vector<float> changes(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) changes[i] = weights[i] - values[i];
  add_forms(prepared_->mean, changes, to.loss);
  add_forms(prepared_->mean, weights, to.energy);
  if (!prepared_->fisher.empty()) add_forms(prepared_->fisher, changes, to.expected_loss);
  if (prepared_->heldout.empty()) return;
  add_forms(prepared_->heldout, changes, to.heldout_loss);
  add_forms(prepared_->heldout, weights, to.heldout_energy);
}

}  // namespace twofour
