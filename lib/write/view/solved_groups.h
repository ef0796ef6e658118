#pragma once
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "formats/json.h"
#include "lib/base/primitives/idle.h"
#include "lib/base/primitives/recently_used.h"
#include "lib/write/view/quantized_view.h"

namespace twofour {

/// True if statistics or masks choose weights of a group. Such a group is quantized as a whole, so that data
/// that its matrices share is prepared once.
inline bool is_solved(const QuantizedGroup& group) {
  return group.encode_rule().statistics != nullptr || group.encode_rule().masks != nullptr;
}

/// Groups whose weights statistics or masks choose. A few are quantized at a time, and cached until they are
/// packed. Safe to use from several threads.
class SolvedGroups {
 public:
  SolvedGroups(const Checkpoint& source, const MakeRowQuantizer& make) : source_(source), make_(make) {}
  /// Sets the number of groups that are quantized at a time, and the number of threads for each. The default
  /// is one group on one thread.
  void set_solvers(int count, int threads_each);
  /// The group with this number. Throws Error if it cannot be quantized.
  std::shared_ptr<const QuantizedRows> of(size_t number, const QuantizedGroup& group);
  /// The results of quantizing a group, one for each matrix. Null before it is quantized.
  Json results(size_t number) const;
  Findings findings() const;

 private:
  /// The limit in bytes for cached groups. It does not apply while at most two groups, or one per solver, are
  /// cached. Each worker packs one more group.
  static constexpr uint64_t kMostBytes = 512 << 20;
  // Callers of these two functions hold the lock.
  void hold(size_t number, std::shared_ptr<const QuantizedRows> rows);
  void take_results(size_t number, const QuantizedGroup& group, QuantizedRows& rows);

  const Checkpoint& source_;
  const MakeRowQuantizer& make_;
  size_t solvers_ = 1;
  int threads_ = 1;  ///< threads of each solver
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<size_t> running_;  ///< numbers of the groups that are being quantized
  Idle<std::unique_ptr<RowQuantizer>> idle_;
  RecentlyUsed<size_t, std::shared_ptr<const QuantizedRows>> held_;  ///< quantized groups by number
  uint64_t held_bytes_ = 0;
  std::map<size_t, Json> results_;
  Findings findings_;
};

}  // namespace twofour
