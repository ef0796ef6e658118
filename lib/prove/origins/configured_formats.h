#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/names/config_pattern.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The statements of a checkpoint's config files about the quantization of modules, by name. It must not
/// outlive the checkpoint.
class ConfiguredFormats {
 public:
  explicit ConfiguredFormats(const Checkpoint& checkpoint);
  bool is_mixed() const { return !entries_.empty(); }
  /// True if the method is FP8. Its loaders recognize modules in floats that no list names.
  bool is_fp8() const { return method_ == "fp8"; }
  /// Returns for each config file with lists true if it lists the module as not quantized.
  std::vector<bool> listed(const std::string& module);
  /// True if loaders assume that a module is quantized if no list names it. Groups may have targets.
  bool is_target(const std::string& module);
  /// The entry of each config file for a module or for a module that contains it. Null if there is none.
  std::vector<Json> entries(const std::string& module) const;
  const std::vector<std::map<std::string, Json>>& maps() const { return entries_; }
  /// True if `name` is the whole name of a tensor, or of a module that contains one.
  bool is_known(const std::string& name) const;

 private:
  struct Lists {
    PatternList patterns;
    std::vector<std::string> parts;  ///< parts of names, as "mlp.gate"
  };
  void take(const Json& holder);
  void take_targets(const Json& holder);

  const Checkpoint& c_;
  std::string method_;
  std::vector<Lists> lists_;
  std::optional<PatternList> targets_;  ///< the targets of compressed-tensors
  bool is_any_linear_ = false;
  std::vector<std::map<std::string, Json>> entries_;
};

}  // namespace twofour
