#pragma once
#include <optional>
#include <set>
#include <string>

#include "formats/json.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/config/model_config.h"

namespace twofour {

/// The changes that an edit may make to settings that announce modules. These are the switches of a family,
/// and DeepSeek-V4's list of compressors. All arguments must outlive this object.
class Switches {
 public:
  /// `donor` is null if the edit adds nothing.
  Switches(const Checkpoint& base, const Checkpoint& artifact, const Checkpoint* donor);
  /// True if `key` may have the value `now` in the result although it is `before` in the base. A null means
  /// that the key is absent. There are two reasons. Either no module of this kind remains, or the first
  /// modules of this kind came from the donor, which has this value.
  bool explains(const std::string& key, const Json& before, const Json& now) const;

 private:
  bool has(const std::set<std::string>& names, const std::string& key) const;
  bool explains_ratios(const Json& before, const Json& now) const;

  const Checkpoint &base_, &artifact_;
  const Checkpoint* donor_;
  std::optional<LanguageModel> model_;
  std::set<std::string> before_, now_;  ///< names of tensors, with # in place of numbers
};

}  // namespace twofour
