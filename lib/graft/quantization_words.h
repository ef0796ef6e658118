#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/json.h"
#include "lib/checkpoint/quantization_said.h"
#include "lib/names/config_pattern.h"

namespace twofour {

/// A module that comes, and how its donor quantizes it: an entry of `quantized_layers`, a group of
/// `config_groups` or a whole quantization_config without its lists; null: not at all.
struct ComingModule {
  std::string name;
  Json scheme;
  std::string entry = {};  ///< of `quantized_layers`: its key, the module or one above it
  /// Of a module in floats: what the donor says of it. Loaders of FP8 know modules that no list names.
  Json said = nullptr;
};

/// What a checkpoint's config.json and hf_quant_config.json say of quantization, as far as it names modules:
/// lists of what is not quantized, `quantized_layers`, targets of `config_groups`.
class QuantizationWords {
 public:
  /// Takes them from a config.json and a hf_quant_config.json, either of which may be null. `where` names the
  /// checkpoint in messages.
  QuantizationWords(Json config, Json hf_quant_config, std::string where);

  /// How they say that a module is quantized.
  ComingModule scheme_of(const std::string& module) const;
  /// Removes what matched a tensor of `before` and matches none now: words on quantized modules none of
  /// `staying`, lists of others none of `after`. All are sorted names.
  void forget(const std::vector<std::string>& before, const std::vector<std::string>& staying,
              const std::vector<std::string>& after);
  /// Renames modules; an empty name: it went. Patterns that tell renamed modules apart become their names.
  using Rename = std::function<std::optional<std::string>(const std::string&)>;
  void rename(const std::vector<std::string>& modules, const Rename& new_name);
  /// Says how modules that come are quantized. `linears` are those of the result that are not, which take the
  /// place of a pattern that one of the quantized matches; `staying` as above. The donor's own entries of
  /// lists are used where they match nothing else. Returns why these words, with some changed, cannot say it;
  /// then they are of no use any more.
  std::optional<std::string> add(const std::vector<ComingModule>& coming, const QuantizationWords& donor,
                                 const std::vector<std::string>& linears,
                                 const std::vector<std::string>& staying);

  const Json& config() const { return config_; }
  const Json& hf_quant_config() const { return hf_quant_; }

 private:
  enum class Dialect { kNone, kModelOpt, kModelOptMixed, kCompressedTensors, kFp8Like, kOther };
  Dialect dialect() const;
  /// The objects that say something: the entry in config.json, `quantization` of hf_quant_config.json.
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
  mutable std::shared_ptr<SourceGroups> groups_;                     ///< read, until they change
};

}  // namespace twofour
