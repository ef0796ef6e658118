#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lib/recipe/selection/input_scales.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Input scales of NVFP4, derived from the settings of rules and the source. This shares no code with the
/// code that chose them.
class ExpectedInputScales {
 public:
  explicit ExpectedInputScales(const Checkpoint& source) : source_(source) {}

  struct Scale {
    float multiplier = 0;  ///< amax / 2688, or 0 if there is no input scale
    bool is_own = false;   ///< the source's input scale is kept unchanged
  };
  /// The input scale of a module that a rule writes. Safe to call from several threads.
  Scale of(const InputScaleRule& rule, const std::string& module);

 private:
  using Scales = std::map<std::string, Scale>;
  Scales derive(const InputScaleRule& rule) const;

  const Checkpoint& source_;
  std::mutex mutex_;
  std::map<const InputScaleRule*, Scales> known_;
};

}  // namespace twofour
