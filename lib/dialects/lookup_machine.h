#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/dialects/loader_lookup.h"
#include "lib/names/lookup_parts.h"

/// The machine that finds the format of a layer in a configuration. An engine is what it is fed with: rows
/// that say how it asks lists, maps and groups, and the steps by which it reads each method.
namespace twofour::lookups {

/// Whether a name matches a text of a list; empty where we cannot follow the text.
using NameTest = std::function<bool(const std::string& name)>;

/// How an engine asks a list of what is not quantized. One row each.
struct ListRules {
  const char* engine;
  /// Whether a text takes the name of a linear, or of a part of what is fused, of which all or none must be
  /// taken; nullptr: texts are patterns alone.
  bool (*takes)(std::string_view text, std::string_view name);
  bool takes_fused = false;    ///< the name of what is fused is asked before those of its parts
  bool takes_experts = false;  ///< a text with "experts" takes the blocks that it has the name of
  /// What a text matches as a pattern; nullptr: nothing.
  NameTest (*pattern)(const std::string& text) = nullptr;
  /// The names that patterns are asked by.
  std::vector<std::string> (*names)(const EngineLayer& layer) = nullptr;
  bool experts_by_pattern = false;  ///< blocks of experts are asked by patterns alone
};

/// A list, asked by such rules, which outlive it.
class ModuleList {
 public:
  ModuleList(const ListRules& rules, std::vector<std::string> texts);
  bool has(const EngineLayer& layer) const;
  /// Whether all patterns can be followed.
  bool all_known() const { return all_known_; }

 private:
  bool has_name(const EngineLayer& layer) const;
  const ListRules& rules_;
  std::vector<std::string> texts_;
  std::vector<NameTest> patterns_;
  bool all_known_ = true;
};

/// Which loaders an engine has in a kind of configuration, by algorithms or, of groups, by what formats are
/// called.
struct Loaders {
  std::span<const std::string_view> linears, experts;
};

/// How an engine asks the groups of compressed-tensors. One row each.
struct GroupRules {
  const char* engine;
  std::string (*name_of)(const EngineLayer& layer);  ///< what it calls a layer
  const char* head_class;                            ///< nullptr: a head is quantized by a target alone
  const char* experts_class;                         ///< beside "Linear"
  bool class_first;    ///< the class of what is fused counts before targets of its parts
  bool files_names;    ///< an expert's matrices are asked by what the files call them
  bool ignores_ends;   ///< entries of `ignore` are ends of names, too
  bool needs_a_group;  ///< it stops at a linear that has none
  Loaders loaders;
};

/// How an engine finds a layer in quantized_layers: its own name, the names of what is fused, the first name
/// below.
struct MixedRules {
  const char* engine;
  bool tries_model_prefix;  ///< "model.layers" also for "model.language_model.layers" and back
  bool asks_parent;         ///< experts also take the first name beside them
};
/// nullptr: it is not quantized. Throws Error where fused linears have several algorithms.
const Json* find_mixed(const LayerMap& layers, const MixedRules& rules, const EngineLayer& layer);

/// One thing that an engine does with a layer; empty: it goes on to the next.
using Step = std::function<std::optional<LookupResult>(const EngineLayer& layer)>;
/// The first step that answers counts. What none answers is not quantized.
std::unique_ptr<LoaderLookup> lookup_by(std::vector<Step> steps);

/// Leaves what the list has as floats.
Step leave(ModuleList list);
/// Reads every layer so.
Step read_as(Scheme format);
/// The same of what ModelOpt calls `algorithm`, as far as there are loaders for it.
Step read_algorithm(Loaders loaders, std::string algorithm, Scheme format);
/// Reads what `find` finds in quantized_layers and the list does not have.
Step read_layers(Loaders loaders, std::function<const Json*(const EngineLayer&)> find,
                 std::optional<ModuleList> list = std::nullopt);
/// Reads what groups say.
Step read_groups(const GroupRules& rules, TargetGroups groups);
/// Answers with a limit of the engine for layers of a kind.
Step limit_of(EngineLayer::Kind kind, std::string limit);
/// Answers with it for all.
Step stop(std::string why);

/// The format of the first routed expert, by which engines know DeepSeek-V4's; floats where there is none.
Scheme first_expert(const std::vector<LoadedModule>& modules);

/// What ModelOpt says, in either of its two forms.
struct ModelOptWords {
  /// `ignore`: the keys of the flat form that an engine reads for what is not quantized, the first counts.
  ModelOptWords(const Json& config, std::initializer_list<const char*> ignore);
  const Json& words;                  ///< the flat form, or "quantization" of the other
  std::string algorithm;              ///< in capitals
  std::vector<std::string> excluded;  ///< patterns
  const Json& layers() const { return member(words, "quantized_layers"); }
};

/// Whether config.json's words, or the other file's where these are none, are ModelOpt's.
bool is_modelopt(const Json& config);

/// The words that an engine reads which looks into config.json first.
const Json& inline_first(const LoadedConfig& config);

/// The strings of all these lists, or of the first that is there.
std::vector<std::string> strings_of_all(const Json& config, std::initializer_list<const char*> keys);
std::vector<std::string> strings_of_first(const Json& config, std::initializer_list<const char*> keys);

// The rows of engines(), each in a file of its own.
std::unique_ptr<LoaderLookup> read_vllm(const LoadedConfig& config, const std::vector<LoadedModule>& modules);
std::unique_ptr<LoaderLookup> read_sglang(const LoadedConfig& config,
                                          const std::vector<LoadedModule>& modules);
std::unique_ptr<LoaderLookup> read_tensorrt_llm(const LoadedConfig& config,
                                                const std::vector<LoadedModule>& modules);

}  // namespace twofour::lookups
