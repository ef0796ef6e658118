#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/names/lookup_parts.h"
#include "lib/source/dialects/loader_lookup.h"

/// Finds the format of a layer in a configuration. An engine is data for this code: rows that state how it
/// searches lists, maps and groups, and the steps by which it reads each method.
namespace twofour::lookups {

/// True if a name matches an entry of a list. The function is empty if the entry is a pattern that we cannot
/// evaluate.
using NameTest = std::function<bool(const std::string& name)>;

/// The search of an engine in a list of modules that are not quantized. Each engine has its own rules.
struct ListRules {
  const char* engine;
  /// True if the entry `text` matches `name`, the name of a linear or of a part of a fused layer. Either all
  /// parts of a fused layer must match or none. nullptr: all entries are patterns.
  bool (*takes)(std::string_view text, std::string_view name);
  bool takes_fused = false;  ///< the name of a fused layer is tried before the names of its parts
  /// An entry that contains "experts" matches the blocks of experts that it names.
  bool takes_experts = false;
  /// Returns the test that an entry makes as a pattern; nullptr: entries are never patterns.
  NameTest (*pattern)(const std::string& text) = nullptr;
  /// Returns the names of a layer that are compared with patterns.
  std::vector<std::string> (*names)(const EngineLayer& layer) = nullptr;
  bool experts_by_pattern = false;  ///< blocks of experts are compared only with patterns
};

/// A list of modules that is searched by an engine's rules. The rules must outlive it.
class ModuleList {
 public:
  ModuleList(const ListRules& rules, std::vector<std::string> texts);
  bool has(const EngineLayer& layer) const;
  /// True if all patterns can be evaluated.
  bool all_known() const { return all_known_; }

 private:
  bool has_name(const EngineLayer& layer) const;
  const ListRules& rules_;
  std::vector<std::string> texts_;
  std::vector<NameTest> patterns_;
  bool all_known_ = true;
};

/// The formats for which an engine has loaders in one kind of configuration. They are names of algorithms or,
/// for groups, of formats.
struct Loaders {
  std::span<const std::string_view> linears, experts;
};

/// The search of an engine in the groups of a compressed-tensors config. Each engine has its own rules.
struct GroupRules {
  const char* engine;
  std::string (*name_of)(const EngineLayer& layer);  ///< returns the engine's name of a layer
  const char* head_class;     ///< class of heads for targets; nullptr: only a target by name quantizes a head
  const char* experts_class;  ///< class of experts for targets, in addition to "Linear"
  bool class_first;           ///< for a fused layer, its class is tried before targets that match its parts
  bool files_names;           ///< an expert's matrices are looked up by their names in the files
  bool ignores_ends;          ///< entries of `ignore` also match the ends of names
  bool needs_a_group;         ///< the engine fails at a linear that is in no group
  Loaders loaders;
};

/// The search of an engine for a layer's entry in quantized_layers. It looks for the layer's own name, for
/// the names of its fused parts, or for the first name below it.
struct MixedRules {
  const char* engine;
  bool tries_model_prefix;  ///< "model.layers" is also tried as "model.language_model.layers", and vice versa
  bool asks_parent;         ///< experts also take the first entry that is beside them
};
/// Returns a layer's entry in quantized_layers; nullptr: the layer is not quantized. Throws Error if fused
/// linears have different algorithms.
const Json* find_mixed(const LayerMap& layers, const MixedRules& rules, const EngineLayer& layer);

/// One step of an engine's lookup. It returns nullopt if the next step decides.
using Step = std::function<std::optional<LookupResult>(const EngineLayer& layer)>;
/// Makes a lookup that takes the result of the first step that has one. A layer without a result is not
/// quantized.
std::unique_ptr<LoaderLookup> lookup_by(std::vector<Step> steps);

/// Makes a step that leaves the layers in the list unquantized.
Step leave(ModuleList list);
/// Makes a step that reads every layer in `format`.
Step read_as(Scheme format);
/// Makes a step that reads every layer in `format`, the format of ModelOpt's `algorithm`. A layer without a
/// loader for the algorithm is a limit.
Step read_algorithm(Loaders loaders, std::string algorithm, Scheme format);
/// Makes a step that reads each layer by the entry of quantized_layers that `find` returns. Layers in the
/// list are left out.
Step read_layers(Loaders loaders, std::function<const Json*(const EngineLayer&)> find,
                 std::optional<ModuleList> list = std::nullopt);
/// Makes a step that reads each layer by its group.
Step read_groups(const GroupRules& rules, TargetGroups groups);
/// Makes a step that returns a limit of the engine for layers of one kind.
Step limit_of(EngineLayer::Kind kind, std::string limit);
/// Makes a step that returns a limit of the engine for every layer.
Step stop(std::string why);

/// Returns the format of the first routed expert, by which engines choose the format of DeepSeek-V4's
/// experts; floats if there are no experts.
Scheme first_expert(const std::vector<LoadedModule>& modules);

/// A configuration of ModelOpt in either of its two forms: flat, or nested below "quantization".
struct ModelOptSettings {
  /// `ignore` has the keys of the flat form in which the engine looks for modules that are not quantized. It
  /// reads the first key that exists.
  ModelOptSettings(const Json& config, std::initializer_list<const char*> ignore);
  const Json& settings;               ///< the flat form, or "quantization" of the nested form
  std::string algorithm;              ///< the algorithm for all modules, in capitals
  std::vector<std::string> excluded;  ///< patterns of modules that are not quantized
  const Json& layers() const { return member(settings, "quantized_layers"); }
};

/// True if a quantization config is ModelOpt's.
bool is_modelopt(const Json& config);

/// Returns the quantization config that an engine reads if it looks into config.json first and into
/// hf_quant_config.json next.
const Json& inline_first(const LoadedConfig& config);

/// Returns the strings of all lists under `keys`, or only those of the first list that exists.
std::vector<std::string> strings_of_all(const Json& config, std::initializer_list<const char*> keys);
std::vector<std::string> strings_of_first(const Json& config, std::initializer_list<const char*> keys);

// These functions read a configuration by the rules of one engine. Each has its own file.
std::unique_ptr<LoaderLookup> read_vllm(const LoadedConfig& config, const std::vector<LoadedModule>& modules);
std::unique_ptr<LoaderLookup> read_sglang(const LoadedConfig& config,
                                          const std::vector<LoadedModule>& modules);
std::unique_ptr<LoaderLookup> read_tensorrt_llm(const LoadedConfig& config,
                                                const std::vector<LoadedModule>& modules);

}  // namespace twofour::lookups
