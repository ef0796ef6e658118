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

/// True if statistics or masks choose weights of a group: it is quantized as a whole, so that data its
/// matrices share is prepared once.
inline bool is_solved(const QuantizedGroup& group) {
  return group.encode_rule().statistics != nullptr || group.encode_rule().masks != nullptr;
}

/// Solved groups; a few are quantized at a time and cached until they are packed. Safe from several threads.
class SolvedGroups {
 public:
  SolvedGroups(const Checkpoint& source, const MakeRowQuantizer& make) : source_(source), make_(make) {}
  /// Sets how many groups are quantized at a time, and on how many threads each. The default is one on one
  /// thread.
  void set_solvers(int count, int threads_each);
  /// The group of that number. Throws Error if it cannot be quantized.
  std::shared_ptr<const QuantizedRows> of(size_t number, const QuantizedGroup& group);
  /// The results of quantizing, an entry for each matrix; null before.
  Json results(size_t number) const;
  Findings findings() const;

 private:
  /// Most bytes of cached groups beyond two groups and one per solver. Each worker packs another one.
  static constexpr uint64_t kMostBytes = 512 << 20;
  // These are called with the lock.
  void hold(size_t number, std::shared_ptr<const QuantizedRows> rows);
  void take_results(size_t number, const QuantizedGroup& group, QuantizedRows& rows);

  const Checkpoint& source_;
  const MakeRowQuantizer& make_;
  size_t solvers_ = 1;
  int threads_ = 1;  ///< of a solver
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<size_t> running_;  ///< numbers of groups
  Idle<std::unique_ptr<RowQuantizer>> idle_;
  RecentlyUsed<size_t, std::shared_ptr<const QuantizedRows>> held_;  ///< by number
  uint64_t held_bytes_ = 0;
  std::map<size_t, Json> results_;
  Findings findings_;
};

}  // namespace twofour
