#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/json.h"
#include "lib/base/names/config_pattern.h"
#include "lib/source/config/configured_quantization.h"

namespace twofour {

/// A module that a graft adds, and its quantization in the donor's config.
struct ComingModule {
  std::string name;
  /// An entry of `quantized_layers`, a group of `config_groups`, or a whole quantization_config without its
  /// lists. Null if the module is not quantized.
  Json scheme;
  /// The key of `scheme` in `quantized_layers`, which names the module or a module above it; or empty.
  std::string entry = {};
  /// The donor's entry for a module in floats. Loaders of FP8 recognize a module like this even if no list
  /// names it.
  Json configured = nullptr;
};

/// The quantization settings of a checkpoint that name modules: lists of unquantized modules,
/// `quantized_layers` and the targets of `config_groups`. They are in config.json and hf_quant_config.json.
class QuantizationEntries {
 public:
  /// Takes the settings from a config.json and a hf_quant_config.json. Either may be null. `where` names the
  /// checkpoint in messages.
  QuantizationEntries(Json config, Json hf_quant_config, std::string where);

  /// Returns a module with its quantization by these settings.
  ComingModule scheme_of(const std::string& module) const;
  /// Removes entries that matched a tensor of `before` and match no remaining tensor. An entry for quantized
  /// modules is removed if it matches no name in `staying`. An entry of a list of unquantized modules is
  /// removed if it matches no name in `after`. All three are sorted lists of names.
  void forget(const std::vector<std::string>& before, const std::vector<std::string>& staying,
              const std::vector<std::string>& after);
  /// Renames modules. `new_name` returns nullopt for a dropped module. A pattern is replaced by the modules'
  /// names unless it matches all of their new names.
  using Rename = std::function<std::optional<std::string>(const std::string&)>;
  void rename(const std::vector<std::string>& modules, const Rename& new_name);
  /// Adds the quantization of the modules in `coming`. `linears` are the unquantized linears of the result.
  /// If a pattern for them also matches a quantized module, their names replace it. `staying` is as for
  /// forget(). An entry of the donor's lists is used if it matches nothing else. Returns the reason if
  /// modified settings cannot describe the result. Then this object must not be used any more.
  std::optional<std::string> add(const std::vector<ComingModule>& coming, const QuantizationEntries& donor,
                                 const std::vector<std::string>& linears,
                                 const std::vector<std::string>& staying);

  const Json& config() const { return config_; }
  const Json& hf_quant_config() const { return hf_quant_; }

 private:
  enum class Dialect { kNone, kModelOpt, kModelOptMixed, kCompressedTensors, kFp8Like, kOther };
  Dialect dialect() const;
  /// The objects with settings: the entry of config.json, and `quantization` of hf_quant_config.json.
  std::vector<Json*> holders();
  std::vector<const Json*> holders() const;
  Json* list_for(Json& holder);
  bool takes(const std::string& entry, const std::string& module) const;
  bool is_unquantized(const std::string& module) const;
  void add_unquantized(const std::vector<std::string>& modules, std::vector<std::string> entries);
  std::vector<std::string> take_entries(const QuantizationEntries& donor,
                                        const std::vector<ComingModule>& coming,
                                        const std::vector<std::string>& staying,
                                        std::vector<std::string>& floats);
  void unlist(const std::vector<ComingModule>& quantized, const std::vector<std::string>& linears);
  void set_scheme(const ComingModule& module, const QuantizationEntries& donor);
  std::string cannot_say(const ComingModule& module, const Json& configured) const;

  Json config_, hf_quant_;
  std::string where_;
  mutable std::unordered_map<std::string, ConfigPattern> patterns_;  ///< compiled patterns, by their text
  mutable std::shared_ptr<SourceGroups> groups_;  ///< parsed groups; reset when the settings change
};

}  // namespace twofour
