#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lib/recipe/selection/input_scales.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Input scales of NVFP4 by the settings of rules and the source, derived without the code that chose them.
class ExpectedInputScales {
 public:
  explicit ExpectedInputScales(const Checkpoint& source) : source_(source) {}

  struct Scale {
    float multiplier = 0;  ///< amax / 2688; 0: none
    bool is_own = false;   ///< the source's, unchanged
  };
  /// The scale of a module that a rule writes. Safe from several threads.
  Scale of(const InputScaleRule& rule, const std::string& module);

 private:
  using Scales = std::map<std::string, Scale>;
  Scales derive(const InputScaleRule& rule) const;

  const Checkpoint& source_;
  std::mutex mutex_;
  std::map<const InputScaleRule*, Scales> known_;
};

}  // namespace twofour
