#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "formats/json.h"
#include "formats/weight_format.h"
#include "lib/base/names/config_pattern.h"
#include "lib/base/names/lookup_parts.h"

// A quantization config's settings for modules, by names and patterns alone. Every command reads them with
// this code. Two readers are separate: the engines' rules (lookup_machine.h), and the proof of grafted
// tensors (lib/prove/origins).

namespace twofour {

/// Families of quantization methods. The methods of one family have the same reader: they use the same names
/// of tensors and the same keys.
enum class QuantMethod { kNone, kModelOpt, kGroups, kFp8, kMxfp4, kMxfp8, kGptq, kAwq, kOther };
/// The family of a result of quantization_method().
QuantMethod method_of(std::string_view method);

/// True if `text`, an entry of "dynamic" or "extra_config", is for a module. It may be the module's name, or
/// an expression that matches anywhere in the name.
bool is_exception_for(const std::string& text, const std::string& module);

/// The formats that an algorithm of ModelOpt stands for. kOther: integers, or a format that is not read;
/// nullopt: it names none.
std::optional<WeightFormat> format_of_algorithm(std::string_view algorithm);

/// A config's entry for one module, and its place.
struct ConfiguredFormat {
  /// A group, an entry of quantized_layers, or the whole config; nullptr: the module is not quantized.
  const Json* entry = nullptr;
  std::string place = {};      ///< path of the entry: "quantization_config.config_groups.group_0"
  std::string algorithm = {};  ///< ModelOpt's algorithm, in capitals
};

/// One quantization config. The JSON value must outlive the object.
class ConfiguredQuantization {
 public:
  /// `place` is the path of `config` in its file.
  explicit ConfiguredQuantization(const Json& config, std::string place = {});

  QuantMethod method = QuantMethod::kNone;
  std::string method_text;  ///< the method as the config states it
  const Json* settings;  ///< the object with the keys; in hf_quant_config.json, the one below "quantization"
  std::string place;     ///< the path of the keys, followed by a dot if not empty
  bool is_nested = false;  ///< true if the keys are below "quantization"
  std::string algorithm;   ///< ModelOpt's algorithm for all modules, in capitals

  const Json& layers() const { return member(*settings, "quantized_layers"); }
  const Json& groups() const { return member(*settings, "config_groups"); }
  /// True if all groups target the class of linears.
  bool targets_all_linears() const;
  /// Names and patterns of modules that are not quantized. The values are the paths of the keys that list
  /// them.
  const std::map<std::string, std::string>& ignored() const { return ignored_; }
  /// The entry of quantized_layers for a module, as its name and value. An entry for a module above it takes
  /// precedence.
  std::optional<std::pair<std::string_view, const Json*>> find_layer(std::string_view module) const;
  /// Returns the entry for a module. `other` is a second name of the module; "": it has none.
  ConfiguredFormat find(const std::string& module, const std::string& other = {});
  /// Returns the module's group of compressed-tensors. Its place begins with "config_groups".
  ConfiguredFormat find_group(const std::string& module) const;
  /// Returns AMD Quark's settings for a module: those of its pattern or, if no pattern matches, of all
  /// modules.
  ConfiguredFormat find_quark(const std::string& module);
  /// Returns the module's group, without its targets and with its format; null: no group has the module.
  Json group_of(const std::string& module) const;
  /// Returns `weights` of the module's group; null: the group has none.
  const Json& group_weights(const std::string& module) const;
  /// Returns the number of weights that share a block scale of NVFP4 in a module, as the module's entry
  /// states it or its algorithm implies it. nullopt: neither does.
  std::optional<int64_t> group_size_of(const std::string& module);
  /// Returns the setting that makes all zero points of a module 8, as written: "sym: true" (GPTQ, AutoRound),
  /// "zero_point: false" (AWQ), or "symmetric: true" (the module's group in compressed-tensors, where it is
  /// the default). Empty: there is no such setting. Exceptions for single modules are considered: GPTQModel's
  /// "dynamic" and AutoRound's "extra_config".
  std::string_view symmetry_of(const std::string& module) const;
  /// Returns the value of `key` in an exception for a module: an entry of GPTQModel's "dynamic" or
  /// AutoRound's "extra_config". null: no exception for the module has the key.
  const Json& exception_of(const std::string& module, std::string_view key) const;
  /// Returns the size of FP8 blocks that a module's own entry states; nullopt: it states none.
  std::optional<std::pair<int64_t, int64_t>> block_of(const std::string& module);
  /// True if the config states that inputs of a module may be out of the order of their groups. GPTQ allows
  /// it unless `desc_act` is false.
  bool allows_order(const std::string& module) const;

 private:
  std::map<std::string, std::string> ignored_;
  std::optional<PatternList> patterns_;  ///< patterns of ignored_, compiled on first use
  std::map<std::string, ConfigPattern>
      quark_patterns_;  ///< patterns of layer_quant_config, compiled on first use
  lookups::TargetGroups targets_;
};

/// A ConfiguredQuantization with its own copy of the config, which may be the source's config that a
/// conversion stores below "base".
class SourceGroups {
 public:
  explicit SourceGroups(Json config);
  const ConfiguredQuantization* operator->() const { return &configured_; }
  ConfiguredQuantization& configured() { return configured_; }
  ConfiguredQuantization* operator->() { return &configured_; }
  /// Calls ConfiguredQuantization::group_of().
  Json find(const std::string& module) const { return configured_.group_of(module); }

 private:
  std::unique_ptr<const Json> config_;
  ConfiguredQuantization configured_;
};

}  // namespace twofour
