#include "lib/recipe/statistics/solving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace twofour {
namespace {

constexpr int kPatternSweeps = 4, kDenseSweeps = 2;
constexpr int64_t kEnough = 4;  // tokens per input from which descent improves the output on other tokens
constexpr double kDamping = 0.01, kDampingOfFew = 0.1;
constexpr double kPatternShrink = 0.1, kDenseShrink = 0.5;
constexpr double kGuidedPatternShrink = 0.05, kGuidedDenseShrink = 0.2;

/// The number of inputs for which an entry has all products. It is K, or the order of a block.
int64_t order_of(const StatisticsEntry& e) { return e.kind == StatisticsKind::kBlocks ? e.block : e.k; }

}  // namespace

double damping_of(const StatisticsEntry& e) {
  return e.count < kEnough * order_of(e) ? kDampingOfFew : kDamping;
}

double default_shrink(const Statistics& statistics, bool has_pattern) {
  if (statistics.metadata("weighting") == "guided")
    return has_pattern ? kGuidedPatternShrink : kGuidedDenseShrink;
  return has_pattern ? kPatternShrink : kDenseShrink;
}

double take_unit(std::span<float> mean, int64_t k) {
  const auto n = static_cast<size_t>(k), step = mean.size() > n ? n + 1 : 1;
  double sum = 0, count = 0;
  for (size_t i = 0; i < n; ++i) {
    sum += double{mean[i * step]};
    count += mean[i * step] > 0;
  }
  const double average = sum / std::max(count, 1.0);
  if (sum == 0 || (average >= 0x1p-32 && average <= 0x1p32)) return 1;
  const int exponent = std::ilogb(average);
  const double unit = std::ldexp(1.0, -(exponent - (exponent & 1)));
  for (float& x : mean) x = static_cast<float>(double{x} * unit);
  return unit;
}

void TargetExtent::add(std::span<const float> weights, std::span<const float> target) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const float size = std::fabs(target[i]);
    weight_ = std::max(weight_, std::fabs(weights[i]));
    target_ = std::max(target_, std::isfinite(size) ? size : std::numeric_limits<float>::infinity());
    const double change = double{target[i]} - double{weights[i]};
    energy_ += double{weights[i]} * double{weights[i]};
    change_ += change * change;
  }
}

std::string TargetExtent::find_excess() const {
  if (!std::isfinite(target_)) return "expected targets within float32, found a larger one";
  if (weight_ == 0 || double{target_} <= double{kMostTarget} * double{weight_}) return "";
  return fmt::format("expected targets up to {} times the largest weight, {}, found one of {}", kMostTarget,
                     weight_, target_);
}

double TargetExtent::relative_change() const { return energy_ > 0 ? std::sqrt(change_ / energy_) : 0; }

std::string_view solving_name(const Solving& s, bool has_pattern) {
  switch (s.method) {
    case Solving::Method::kPlain:
      break;
    case Solving::Method::kDiagonal:
      return has_pattern ? "wanda" : "rtn";
    case Solving::Method::kFull:
      return has_pattern ? "joint" : "gptq";
  }
  return "plain";
}

Solving choose_solving(const Statistics& statistics, std::string_view linear, const SolvingSettings& words,
                       bool has_pattern) {
  Solving s;
  s.shrink = words.shrink.value_or(s.shrink);
  s.scale_search = words.scale_search.value_or(s.scale_search);
  const StatisticsEntry* entry = statistics.find(linear);
  if (entry == nullptr) {
    s.why = "no statistics";
    return s;
  }
  if (entry->count == 0) {
    s.why = "no tokens";
    return s;
  }
  s.entry = entry;
  if (statistics.is_zero(*entry)) s.why = fmt::format("inputs that are all 0, in {} tokens", entry->count);
  s.heldout = statistics.find_heldout(linear);
  if (s.heldout != nullptr && (s.heldout->count == 0 || s.heldout->k != entry->k)) s.heldout = nullptr;
  s.method = Solving::Method::kDiagonal;
  const bool by_diagonal = words.by == SolveBy::kWanda || words.by == SolveBy::kRtn;
  if (by_diagonal && entry->kind != StatisticsKind::kDiagonal && words.sweeps > 0) {
    s.sweeps = words.sweeps;
    s.target_offset = statistics.target_offset(linear);
    return s;
  }
  const double damping = s.damping;
  if (words.scale_search && !has_pattern) s.damping = 0;
  if (by_diagonal) return s;
  if (entry->kind == StatisticsKind::kDiagonal) {
    if (s.why.empty()) s.why = "only a diagonal";
    return s;
  }
  const int64_t k = order_of(*entry);
  if (entry->count < k) {
    if (s.why.empty())
      s.why = fmt::format("fewer tokens than inputs, {} tokens for {} inputs", entry->count, k);
    return s;
  }
  s.method = Solving::Method::kFull;
  s.damping = damping;
  s.target_offset = statistics.target_offset(linear);
  if (entry->count < kEnough * k) {
    s.damping = damping_of(*entry);
    if (s.why.empty())
      s.why = fmt::format("fewer than {} tokens an input, {} tokens for {} inputs", kEnough, entry->count, k);
    return s;
  }
  s.sweeps = words.sweeps >= 0 ? words.sweeps : has_pattern ? kPatternSweeps : kDenseSweeps;
  return s;
}

uint64_t solving_bytes(const Solving& s) {
  const bool reads_all = s.needs_factor() || s.sweeps > 0;
  if (s.entry == nullptr) return 0;
  const auto n = static_cast<uint64_t>(s.entry->k);
  const bool heldout_pairs = s.heldout != nullptr && s.heldout->kind != StatisticsKind::kDiagonal;
  const uint64_t tiles = kSolverThreads * 6 * 32 * n * sizeof(float) +
                         (heldout_pairs + s.entry->fisher.has_value()) * 2 * n * n * sizeof(float);
  if (!reads_all) return tiles;
  // For each of two entries, a worker keeps the mean, the damped mean, its factor and, in double, the factor
  // of a target. Preparation needs one more matrix in double.
  const uint64_t kept = 3 * sizeof(float) + (s.target_offset ? sizeof(double) : 0);
  return n * n * (2 * kept + sizeof(double)) + tiles;
}

}  // namespace twofour
