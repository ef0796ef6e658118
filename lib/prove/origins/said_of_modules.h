#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/names/config_pattern.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The quantization of modules in the config files of a checkpoint, looked up by name. Must not outlive the
/// checkpoint.
class SaidOfModules {
 public:
  explicit SaidOfModules(const Checkpoint& checkpoint);
  bool is_mixed() const { return !entries_.empty(); }
  /// Loaders of FP8 recognize modules in floats that no list names.
  bool is_fp8() const { return method_ == "fp8"; }
  /// For each of the files that have lists, true if it lists a module as not quantized.
  std::vector<bool> listed(const std::string& module);
  /// True if loaders take a module that no list names for quantized: groups may have targets.
  bool is_target(const std::string& module);
  /// Each file's entry for a module, or for one above it; null: none.
  std::vector<Json> entries(const std::string& module) const;
  const std::vector<std::map<std::string, Json>>& maps() const { return entries_; }
  /// True if that is the whole name of a tensor, or of a module above one.
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
