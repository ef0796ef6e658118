#include "lib/write/transform/matrix_solver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "formats/error.h"

namespace twofour {
namespace {

constexpr size_t kMost = 2;
constexpr int kSmallest = -40, kLargest = 24;  // range of exponents of global scales that are solved without
                                               // scaling
constexpr int kCommon = -16;                   // the exponent that other global scales get

/// A power of two that scales rows so that float32 can represent their squares. It is 1 for most rows.
double unit_of_rows(std::span<const float> rows) {
  float largest = 0;
  for (const float w : rows) largest = std::max(largest, std::abs(w));
  return largest == 0 || (largest >= 0x1p-30f && largest <= 0x1p30f) ? 1
                                                                     : std::ldexp(1.0, -std::ilogb(largest));
}

void multiply(std::span<float> numbers, double unit) {
  if (unit == 1) return;
  for (float& x : numbers) x = static_cast<float>(double{x} * unit);
}

}  // namespace

void MatrixSolver::Prepared::Mean::read(std::vector<float> from, int64_t k) {
  numbers = std::move(from);
  unit = take_unit(numbers, k);
}

void MatrixSolver::begin(const EncodeRule& rule, const EncodedMatrix& matrix) {
  rule_ = &rule;
  matrix_ = &matrix;
  const Solving& solving = matrix.solving;
  const Key key{rule.statistics.get(), solving.entry,  rule.pattern,       solving.method,
                solving.damping,       solving.shrink, solving.sweeps > 0, solving.target_offset.has_value()};
  const auto* found = held_.find(key);
  if (found == nullptr) {
    cuda::DeviceHessian memory;
    if (held_.size() == kMost) memory = std::move(held_.take_oldest()->on_device);
    found = &held_.add(key, prepare(std::move(memory)));
  }
  prepared_ = found->get();
}

std::unique_ptr<MatrixSolver::Prepared> MatrixSolver::prepare(cuda::DeviceHessian memory) const {
  const Statistics& s = *rule_->statistics;
  const Solving& solving = matrix_->solving;
  const StatisticsEntry& entry = *solving.entry;
  auto prepared = std::make_unique<Prepared>();
  Prepared& p = *prepared;
  p.on_device = std::move(memory);
  if (entry.fisher) p.fisher.read(s.read_fisher(entry), entry.k);
  if (const StatisticsEntry* other = solving.heldout) {
    p.heldout.read(
        other->kind == StatisticsKind::kDiagonal ? s.read_diagonal(*other) : s.read_hessian(*other), entry.k);
  }
  if (solving.method == Solving::Method::kDiagonal && solving.sweeps == 0) {
    p.mean.read(s.read_diagonal(entry), entry.k);
    p.diagonal = solving.damping > 0 ? damped_diagonal(p.mean.numbers, solving.damping)
                                     : importance_weights(p.mean.numbers);
  } else {
    p.mean.read(s.read_hessian(entry), entry.k);
    factorize(p);
  }
  return prepared;
}

void MatrixSolver::factorize(Prepared& p) const {
  const Solving& solving = matrix_->solving;
  const StatisticsEntry& entry = *solving.entry;
  const int threads = compute_.threads;
  const bool has_target = solving.target_offset.has_value();
  const bool on_device = compute_.device == Device::cuda;
  try {
    // The target's H is not shrunk, so its factor may be another.
    const bool shares = has_target && solving.shrink == 0;
    p.hessian = damped_hessian(p.mean.numbers, entry.k, {solving.damping, solving.shrink},
                               solving.needs_factor() && !shares && !on_device, threads, compute_.isa);
    if (has_target && !on_device) {
      p.inverse =
          std::make_unique<DampedInverse>(p.mean.numbers, entry.k, solving.damping, threads, compute_.isa);
      if (solving.needs_factor() && shares) p.hessian.factor = p.inverse->factor();
    }
    if (solving.sweeps > 0) p.maps = std::make_unique<GroupMaps>(p.hessian, rule_->pattern);
    if (!on_device) return;
    p.on_device.load(p.hessian, p.maps.get(), p.mean.numbers);
    if (solving.needs_factor() || has_target)
      p.on_device.factorize(p.hessian.lambda, p.hessian.shrink, solving.needs_factor(), has_target);
    p.is_on_device = true;
  } catch (const Error& e) {
    const Statistics& s = *rule_->statistics;
    throw Error(fmt::format("{}: {}: {}", s.path().string(), s.tensors()[entry.sums].name, e.what()));
  }
}

void MatrixSolver::aim(int64_t row, std::span<float> weights) {
  if (!has_target()) return;
  offset_.resize(weights.size());
  rule_->statistics->read_target_offset(*matrix_->solving.target_offset, *matrix_->solving.entry, row,
                                        offset_);
  // If nothing was compressed before, the target equals the weights exactly.
  if (std::all_of(offset_.begin(), offset_.end(), [](float c) { return c == 0; })) return;
  multiply(offset_, prepared_->mean.unit);
  if (prepared_->is_on_device) {
    prepared_->on_device.multiply_inverse(offset_);
  } else {
    prepared_->inverse->multiply(offset_);
  }
  for (size_t i = 0; i < weights.size(); ++i) weights[i] += kTargetShare * offset_[i];
}

std::span<const float> MatrixSolver::in_units(Arithmetic arithmetic, float& stored,
                                              std::span<const float> target) {
  const bool divides = arithmetic == Arithmetic::compressed_tensors;
  const int exponent = divides ? -std::ilogb(stored) : std::ilogb(stored);
  if (exponent >= kSmallest && exponent <= kLargest) return target;
  const double unit = std::ldexp(1.0, kCommon - exponent);
  stored = static_cast<float>(divides ? double{stored} / unit : double{stored} * unit);
  scaled_.assign(target.begin(), target.end());
  multiply(scaled_, unit);
  return scaled_;
}

void MatrixSolver::solve(Arithmetic arithmetic, float stored, uint8_t zero_scale,
                         std::span<const float> target, std::span<const uint8_t> mask, uint8_t* codes,
                         uint8_t* scales, std::span<const float> steps) {
  SolveRule rule;
  rule.method =
      matrix_->solving.method == Solving::Method::kFull ? SolveMethod::joint : SolveMethod::diagonal;
  rule.pattern = rule_->pattern;
  rule.arithmetic = arithmetic;
  rule.zero_scale = zero_scale;
  rule.scale_search = matrix_->solving.scale_search;
  rule.sweeps = matrix_->solving.sweeps;
  rule.format = rule_->format();
  const SolveInput in{rule.format->global_scale ? in_units(arithmetic, stored, target) : target, mask, steps};
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

void MatrixSolver::add_forms(const Prepared::Mean& mean, std::span<const float> rows, double rows_unit,
                             double& to) const {
  const auto k = static_cast<size_t>(matrix_->solving.entry->k);
  const double unit = mean.unit * rows_unit * rows_unit;
  const std::vector<float>& h = mean.numbers;
  if (h.size() > k) {
    const bool own = &mean == &prepared_->mean && device_ && prepared_->is_on_device;
    for (const double form :
         own ? device_->quadratic_forms(prepared_->on_device, rows)
             : quadratic_forms(h, matrix_->solving.entry->k, rows, compute_.threads, compute_.isa))
      to += form / unit;
    return;
  }
  for (size_t r = 0; r < rows.size(); r += k) {
    double form = 0;
    for (size_t i = 0; i < k; ++i) form += double{h[i]} * double{rows[r + i]} * double{rows[r + i]};
    to += form / unit;
  }
}

void MatrixSolver::add_loss(std::span<const float> weights, std::span<const float> values, OutputLoss& to) {
  to.method = solving_name(matrix_->solving, rule_->pattern.has_value());
  const double unit = unit_of_rows(weights);
  std::vector<float> changes(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) changes[i] = weights[i] - values[i];
  multiply(changes, unit);
  if (unit != 1) {
    scaled_.assign(weights.begin(), weights.end());
    multiply(scaled_, unit);
    weights = scaled_;
  }
  add_forms(prepared_->mean, changes, unit, to.loss);
  add_forms(prepared_->mean, weights, unit, to.energy);
  if (!prepared_->fisher.numbers.empty()) add_forms(prepared_->fisher, changes, unit, to.expected_loss);
  if (prepared_->heldout.numbers.empty()) return;
  add_forms(prepared_->heldout, changes, unit, to.heldout_loss);
  add_forms(prepared_->heldout, weights, unit, to.heldout_energy);
}

}  // namespace twofour
