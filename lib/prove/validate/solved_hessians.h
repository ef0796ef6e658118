#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/base/primitives/recently_used.h"
#include "lib/prove/expected/expected_hessian.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {

/// The part of a statistics entry that the proof of solved matrices reads.
struct SolvedHessian {
  ExpectedMean mean;            ///< mean of x x' [k, k], or of x^2 [k] if the diagonal decides
  ExpectedMean heldout;         ///< the same mean over held-out tokens; empty if there are none
  ExpectedMean fisher;          ///< mean of e x x', [k, k]; empty if there is none
  std::vector<float> diagonal;  ///< weights of squares; empty if the whole Hessian is used
  ExpectedHessian hessian;
  std::optional<ExpectedInverse> inverse;  ///< set for entries whose target is not the weights
};

/// The entries that proofs used last. They are cached since experts share entries. Safe to use from several
/// threads.
class SolvedHessians {
 public:
  std::shared_ptr<const SolvedHessian> of(const Statistics& statistics, const Solving& solving);

 private:
  struct Key {
    const StatisticsEntry* entry;
    Solving::Method method;
    double damping, shrink;
    bool sweeps, has_target;
    bool operator==(const Key&) const = default;
  };
  std::mutex mutex_;
  RecentlyUsed<Key, std::shared_ptr<const SolvedHessian>> read_;
};

}  // namespace twofour
