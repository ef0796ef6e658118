#include "lib/prove/validate/solved_hessians.h"

namespace twofour {
namespace {

constexpr size_t kMost = 2;

std::shared_ptr<const SolvedHessian> read_entry(const Statistics& statistics, const Solving& solving) {
  auto found = std::make_shared<SolvedHessian>();
  const StatisticsEntry& entry = *solving.entry;
  if (entry.fisher) found->fisher = expect_mean(statistics.read_fisher(entry), entry.k);
  if (const StatisticsEntry* other = solving.heldout) {
    found->heldout = expect_mean(other->kind == StatisticsKind::kDiagonal ? statistics.read_diagonal(*other)
                                                                          : statistics.read_hessian(*other),
                                 entry.k);
  }
  if (solving.method == Solving::Method::kDiagonal && solving.sweeps == 0) {
    found->mean = expect_mean(statistics.read_diagonal(entry), entry.k);
    found->diagonal = solving.damping == 0 ? expect_importance(found->mean.numbers)
                                           : expect_diagonal(found->mean.numbers, solving.damping);
    return found;
  }
  found->mean = expect_mean(statistics.read_hessian(entry), entry.k);
  found->hessian =
      expect_hessian(found->mean.numbers, entry.k, solving.damping, solving.shrink, solving.needs_factor());
  if (solving.target_offset) found->inverse.emplace(found->mean.numbers, entry.k, solving.damping);
  return found;
}

}  // namespace

std::shared_ptr<const SolvedHessian> SolvedHessians::of(const Statistics& statistics,
                                                        const Solving& solving) {
  const std::lock_guard lock(mutex_);
  const Key key{solving.entry,  solving.method,     solving.damping,
                solving.shrink, solving.sweeps > 0, solving.target_offset.has_value()};
  if (const auto* found = read_.find(key)) return *found;
  if (read_.size() == kMost) read_.take_oldest();
  return read_.add(key, read_entry(statistics, solving));
}

}  // namespace twofour
