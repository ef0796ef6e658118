#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/json.h"
#include "lib/base/names/config_pattern.h"
#include "lib/source/checkpoint/quantization_said.h"

namespace twofour {

/// An added module, and its quantization in the donor: an entry of `quantized_layers`, a group of
/// `config_groups` or a whole quantization_config without its lists; null: not quantized.
struct ComingModule {
  std::string name;
  Json scheme;
  std::string entry = {};  ///< of `quantized_layers`: its key, the module or one above it
  /// For a module in floats: its entry in the donor's config. Loaders of FP8 recognize such modules even if
  /// no list names them.
  Json said = nullptr;
};

/// The quantization settings in a checkpoint's config.json and hf_quant_config.json that name modules: lists
/// of unquantized modules, `quantized_layers`, targets of `config_groups`.
class QuantizationWords {
 public:
  /// Takes the settings from a config.json and a hf_quant_config.json, either of which may be null. `where`
  /// names the checkpoint in messages.
  QuantizationWords(Json config, Json hf_quant_config, std::string where);

  /// The quantization of a module by these settings.
  ComingModule scheme_of(const std::string& module) const;
  /// Removes entries that matched a tensor of `before` and match none now: entries for quantized modules if
  /// they match none of `staying`, list entries of others if they match none of `after`. All are sorted
  /// names.
  void forget(const std::vector<std::string>& before, const std::vector<std::string>& staying,
              const std::vector<std::string>& after);
  /// Renames modules; nullopt as the new name: it was dropped. Patterns that distinguish renamed modules
  /// become the modules' names.
  using Rename = std::function<std::optional<std::string>(const std::string&)>;
  void rename(const std::vector<std::string>& modules, const Rename& new_name);
  /// Adds the quantization of added modules. `linears` are the unquantized linears of the result; their names
  /// replace a pattern that also matches one of the quantized modules. `staying` as above. The donor's own
  /// list entries are used if they match nothing else. Returns the reason if modified settings cannot
  /// describe the result; then this object must not be used any more.
  std::optional<std::string> add(const std::vector<ComingModule>& coming, const QuantizationWords& donor,
                                 const std::vector<std::string>& linears,
                                 const std::vector<std::string>& staying);

  const Json& config() const { return config_; }
  const Json& hf_quant_config() const { return hf_quant_; }

 private:
  enum class Dialect { kNone, kModelOpt, kModelOptMixed, kCompressedTensors, kFp8Like, kOther };
  Dialect dialect() const;
  /// The objects with settings: the entry in config.json, `quantization` of hf_quant_config.json.
  std::vector<Json*> holders();
  std::vector<const Json*> holders() const;
  Json* list_for(Json& holder);
  bool takes(const std::string& entry, const std::string& module) const;
  bool is_unquantized(const std::string& module) const;
  void add_unquantized(const std::vector<std::string>& modules, std::vector<std::string> entries);
  std::vector<std::string> take_entries(const QuantizationWords& donor,
                                        const std::vector<ComingModule>& coming,
                                        const std::vector<std::string>& staying,
                                        std::vector<std::string>& floats);
  void unlist(const std::vector<ComingModule>& quantized, const std::vector<std::string>& linears);
  void set_scheme(const ComingModule& module, const QuantizationWords& donor);
  std::string cannot_say(const ComingModule& module, const Json& said) const;

  Json config_, hf_quant_;
  std::string where_;
  mutable std::unordered_map<std::string, ConfigPattern> patterns_;  ///< compiled
  mutable std::shared_ptr<SourceGroups> groups_;                     ///< parsed; reset when they change
};

}  // namespace twofour
