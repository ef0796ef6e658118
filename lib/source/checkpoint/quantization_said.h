#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "formats/json.h"
#include "lib/base/names/config_pattern.h"
#include "lib/base/names/lookup_parts.h"

// A quantization config's settings for modules, by names and patterns alone. Every command shares this
// reading. Engines have theirs (lookup_machine.h), and the proof of grafted tensors has its own
// (lib/prove/origins).

namespace twofour {

/// Families of methods, by the names of tensors and keys that their readers use.
enum class QuantMethod { kNone, kModelOpt, kGroups, kFp8, kMxfp4, kMxfp8, kGptq, kAwq, kOther };
/// The family of a result of quantization_method().
QuantMethod method_of(std::string_view method);

/// A config's entry for one module, and its place.
struct SaidOfModule {
  /// A group, an entry of quantized_layers, or the whole config; nullptr: the module is in floats.
  const Json* entry = nullptr;
  std::string place = {};      ///< its path: "quantization_config.config_groups.group_0"
  std::string algorithm = {};  ///< ModelOpt's algorithm, in capitals
};

/// One quantization config. The JSON value must outlive the object.
class QuantizationSaid {
 public:
  /// `place`: its path in the file.
  explicit QuantizationSaid(const Json& config, std::string place = {});

  QuantMethod method = QuantMethod::kNone;
  std::string method_text;  ///< as stated
  const Json* words;        ///< the keys; in hf_quant_config.json, those below "quantization"
  std::string place;        ///< the path of the keys, followed by a dot if not empty
  bool is_nested = false;   ///< the keys are below "quantization"
  std::string algorithm;    ///< ModelOpt's algorithm for all modules, in capitals

  const Json& layers() const { return member(*words, "quantized_layers"); }
  const Json& groups() const { return member(*words, "config_groups"); }
  /// True if all groups target the class of linears.
  bool targets_all_linears() const;
  /// Names and patterns of modules that are not quantized, each with the path of its key.
  const std::map<std::string, std::string>& ignored() const { return ignored_; }
  /// The name and value of the entry of quantized_layers for a module or for one above it, which goes first.
  std::optional<std::pair<std::string_view, const Json*>> find_layer(std::string_view module) const;
  /// The entry for a module. `other`: a second name of the module, unless empty.
  SaidOfModule find(const std::string& module, const std::string& other = {});
  /// A module's group, without its targets and with its format; null: none.
  Json group_of(const std::string& module) const;
  /// The `weights` of that group; null: it has none.
  const Json& group_weights(const std::string& module) const;
  /// The setting that makes all zero points of a module 8, as written: "sym: true" (GPTQ, AutoRound),
  /// "zero_point: false" (AWQ), "symmetric: true" (the module's group in compressed-tensors, also by
  /// default). Empty: there is none. Exceptions for single modules count: GPTQModel's "dynamic", AutoRound's
  /// "extra_config".
  std::string_view symmetry_of(const std::string& module) const;

 private:
  std::map<std::string, std::string> ignored_;
  std::optional<PatternList> patterns_;  ///< patterns of ignored_, compiled on first use
  lookups::TargetGroups targets_;
};

/// QuantizationSaid with its own copy of the config: a source's, which a conversion stores below "base".
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
