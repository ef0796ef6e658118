#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "formats/json.h"
#include "lib/names/config_pattern.h"
#include "lib/names/lookup_parts.h"

// What a quantization config says of modules, by names and patterns alone: our reading, which every command
// shares. Engines have theirs (lookup_machine.h), the proof of what was grafted its own (lib/origins).

namespace twofour {

/// Families of methods: who reads which names of tensors and keys.
enum class QuantMethod { kNone, kModelOpt, kGroups, kFp8, kMxfp4, kMxfp8, kGptq, kAwq, kOther };

/// What a config says of one module, and where.
struct SaidOfModule {
  /// A group, an entry of quantized_layers, or the whole config; nullptr: floats.
  const Json* entry = nullptr;
  std::string place = {};      ///< its path: "quantization_config.config_groups.group_0"
  std::string algorithm = {};  ///< ModelOpt's, in capitals
};

/// One config. It outlives what is made from it.
class QuantizationSaid {
 public:
  /// `place`: its path in the file.
  explicit QuantizationSaid(const Json& config, std::string place = {});

  QuantMethod method = QuantMethod::kNone;
  std::string method_text;  ///< as it is stated
  const Json* words;        ///< the keys: of hf_quant_config.json those below "quantization"
  std::string place;        ///< of the keys, with a dot behind it where it is not empty
  bool is_nested = false;   ///< they are below "quantization"
  std::string algorithm;    ///< ModelOpt's for all modules, in capitals

  const Json& layers() const { return member(*words, "quantized_layers"); }
  const Json& groups() const { return member(*words, "config_groups"); }
  /// Whether the class of linears is the target of all groups.
  bool targets_all_linears() const;
  /// Names and patterns of what is not quantized, each with the path of the key that has it.
  const std::map<std::string, std::string>& ignored() const { return ignored_; }
  /// The entry of quantized_layers for a module or, first of all, for one above it; its name.
  std::optional<std::pair<std::string_view, const Json*>> find_layer(std::string_view module) const;
  /// What it says of a module, which has `other` as a name, too, where that is not empty.
  SaidOfModule find(const std::string& module, const std::string& other = {});
  /// The group of a module without its targets and with its format; null: none.
  Json group_of(const std::string& module) const;
  /// What that group says of weights; null: it has none.
  const Json& group_weights(const std::string& module) const;
  /// What makes all zero points of a module 8, as it is written: "sym: true" (GPTQ, AutoRound), "zero_point:
  /// false" (AWQ), "symmetric: true" (the module's group of compressed-tensors, also where it does not say
  /// it). Empty: nothing does. Exceptions for single modules count: GPTQModel's "dynamic", AutoRound's
  /// "extra_config".
  std::string_view symmetry_of(const std::string& module) const;

 private:
  std::map<std::string, std::string> ignored_;
  std::optional<PatternList> patterns_;  ///< of these, once they are asked for
  lookups::TargetGroups targets_;
};

/// The same of words that it owns: a source's, which a conversion of ours keeps below "base".
class SourceGroups {
 public:
  explicit SourceGroups(Json config);
  const QuantizationSaid* operator->() const { return &said_; }
  /// QuantizationSaid::group_of().
  Json find(const std::string& module) const { return said_.group_of(module); }

 private:
  std::unique_ptr<const Json> config_;
  QuantizationSaid said_;
};

}  // namespace twofour
