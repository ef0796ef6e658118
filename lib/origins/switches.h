#pragma once
#include <optional>
#include <set>
#include <string>

#include "formats/json.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/model_config.h"

namespace twofour {

/// What an edit may change of settings that say whether there are modules: the switches of a family, and
/// DeepSeek-V4's list of compressors. All that is given outlives this.
class Switches {
 public:
  /// `donor`: nullptr where nothing comes.
  Switches(const Checkpoint& base, const Checkpoint& artifact, const Checkpoint* donor);
  /// Whether a key may say `now` where the base says `before` (null: nothing): that there is none of what
  /// went, or what the donor says of what came first.
  bool explains(const std::string& key, const Json& before, const Json& now) const;

 private:
  bool has(const std::set<std::string>& names, const std::string& key) const;
  bool explains_ratios(const Json& before, const Json& now) const;

  const Checkpoint &base_, &artifact_;
  const Checkpoint* donor_;
  std::optional<LanguageModel> model_;
  std::set<std::string> before_, now_;  ///< names of tensors with # in place of numbers
};

}  // namespace twofour
