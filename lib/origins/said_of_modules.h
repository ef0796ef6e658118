#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/names/config_pattern.h"

namespace twofour {

/// What the config files of a checkpoint say of modules, looked up by name. Lives no longer than it.
class SaidOfModules {
 public:
  explicit SaidOfModules(const Checkpoint& checkpoint);
  bool is_mixed() const { return !entries_.empty(); }
  /// Loaders of FP8 know modules in floats that no list names.
  bool is_fp8() const { return method_ == "fp8"; }
  /// Whether each of the files that have lists lists a module as not quantized.
  std::vector<bool> listed(const std::string& module);
  /// Whether a module that no list names is quantized to loaders: groups may have targets.
  bool is_target(const std::string& module);
  /// Each file's entry of a module, or of one above it; null: none.
  std::vector<Json> entries(const std::string& module) const;
  const std::vector<std::map<std::string, Json>>& maps() const { return entries_; }
  /// Whether a tensor, or something above one, has that whole name.
  bool is_known(const std::string& name) const;

 private:
  struct Lists {
    PatternList patterns;
    std::vector<std::string> parts;  ///< of names: "mlp.gate"
  };
  void take(const Json& holder);
  void take_targets(const Json& holder);

  const Checkpoint& c_;
  std::string method_;
  std::vector<Lists> lists_;
  std::optional<PatternList> targets_;  ///< of compressed-tensors
  bool is_any_linear_ = false;
  std::vector<std::map<std::string, Json>> entries_;
};

}  // namespace twofour
