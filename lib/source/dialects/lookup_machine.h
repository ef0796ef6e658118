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

/// True if a name matches an entry of a list; empty if the entry is no pattern that we can evaluate.
using NameTest = std::function<bool(const std::string& name)>;

/// How an engine searches a list of modules that are not quantized. One row each.
struct ListRules {
  const char* engine;
  /// True if an entry matches the name of a linear or of a part of a fused layer, whose parts must all match
  /// or none. nullptr: entries are only patterns.
  bool (*takes)(std::string_view text, std::string_view name);
  bool takes_fused = false;    ///< a fused layer's name is tried before its parts' names
  bool takes_experts = false;  ///< an entry with "experts" matches the blocks that it names
  /// The test for an entry as a pattern; nullptr: entries are no patterns.
  NameTest (*pattern)(const std::string& text) = nullptr;
  /// The names that are matched with patterns.
  std::vector<std::string> (*names)(const EngineLayer& layer) = nullptr;
  bool experts_by_pattern = false;  ///< blocks of experts are matched only with patterns
};

/// A list that is searched by such rules, which must outlive it.
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

/// An engine's loaders in a kind of configuration, by names of algorithms or, for groups, of formats.
struct Loaders {
  std::span<const std::string_view> linears, experts;
};

/// How an engine searches the groups of compressed-tensors. One row each.
struct GroupRules {
  const char* engine;
  std::string (*name_of)(const EngineLayer& layer);  ///< its name of a layer
  const char* head_class;                            ///< nullptr: only a target quantizes a head
  const char* experts_class;                         ///< class in addition to "Linear"
  bool class_first;    ///< a fused layer's class goes before targets of its parts
  bool files_names;    ///< an expert's matrices are looked up by their names in the files
  bool ignores_ends;   ///< entries of `ignore` also match ends of names
  bool needs_a_group;  ///< it fails at a linear without a group
  Loaders loaders;
};

/// How an engine finds a layer in quantized_layers: by its own name, the names of its fused parts, or the
/// first name below it.
struct MixedRules {
  const char* engine;
  bool tries_model_prefix;  ///< "model.layers" also for "model.language_model.layers" and back
  bool asks_parent;         ///< experts also use the first name beside them
};
/// Returns nullptr if the layer is not quantized. Throws Error if fused linears have several algorithms.
const Json* find_mixed(const LayerMap& layers, const MixedRules& rules, const EngineLayer& layer);

/// One step of an engine's lookup; an empty result: it goes on to the next step.
using Step = std::function<std::optional<LookupResult>(const EngineLayer& layer)>;
/// The lookup by the first step with a result. A layer without a result is not quantized.
std::unique_ptr<LoaderLookup> lookup_by(std::vector<Step> steps);

/// Leaves the list's layers as floats.
Step leave(ModuleList list);
/// Reads every layer in that format.
Step read_as(Scheme format);
/// The same for ModelOpt's `algorithm`, as far as there are loaders for it.
Step read_algorithm(Loaders loaders, std::string algorithm, Scheme format);
/// Reads the layers that `find` finds in quantized_layers, except the list's.
Step read_layers(Loaders loaders, std::function<const Json*(const EngineLayer&)> find,
                 std::optional<ModuleList> list = std::nullopt);
/// Reads layers by their groups.
Step read_groups(const GroupRules& rules, TargetGroups groups);
/// Returns a limit of the engine for layers of a kind.
Step limit_of(EngineLayer::Kind kind, std::string limit);
/// Returns the limit for all layers.
Step stop(std::string why);

/// The format of the first routed expert, by which engines choose DeepSeek-V4's; floats if there is none.
Scheme first_expert(const std::vector<LoadedModule>& modules);

/// A configuration of ModelOpt, in either of its two forms.
struct ModelOptWords {
  /// `ignore`: the flat form's keys that an engine reads for modules that are not quantized. The first
  /// counts.
  ModelOptWords(const Json& config, std::initializer_list<const char*> ignore);
  const Json& words;                  ///< the flat form, or "quantization" of the other
  std::string algorithm;              ///< in capitals
  std::vector<std::string> excluded;  ///< patterns
  const Json& layers() const { return member(words, "quantized_layers"); }
};

/// True if config.json's entry, or the other file's if there is none, is ModelOpt's.
bool is_modelopt(const Json& config);

/// The entry that an engine reads if it looks into config.json first.
const Json& inline_first(const LoadedConfig& config);

/// The strings of all these lists, or of the first list that exists.
std::vector<std::string> strings_of_all(const Json& config, std::initializer_list<const char*> keys);
std::vector<std::string> strings_of_first(const Json& config, std::initializer_list<const char*> keys);

// The rows of engines(), each in a file of its own.
std::unique_ptr<LoaderLookup> read_vllm(const LoadedConfig& config, const std::vector<LoadedModule>& modules);
std::unique_ptr<LoaderLookup> read_sglang(const LoadedConfig& config,
                                          const std::vector<LoadedModule>& modules);
std::unique_ptr<LoaderLookup> read_tensorrt_llm(const LoadedConfig& config,
                                                const std::vector<LoadedModule>& modules);

}  // namespace twofour::lookups
