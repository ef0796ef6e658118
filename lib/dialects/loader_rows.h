#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/dialects/loader_lookup.h"
#include "lib/names/lookup_parts.h"

/// The rows of engines(), each in a file of its own, and the rules that two of them share.
namespace twofour::lookups {

std::unique_ptr<LoaderLookup> read_vllm(const LoadedConfig& config, const std::vector<LoadedModule>& modules);
std::unique_ptr<LoaderLookup> read_sglang(const LoadedConfig& config,
                                          const std::vector<LoadedModule>& modules);
std::unique_ptr<LoaderLookup> read_tensorrt_llm(const LoadedConfig& config,
                                                const std::vector<LoadedModule>& modules);

/// The format of the first routed expert, by which engines know DeepSeek-V4's; floats where there is none.
NamedFormat first_expert(const std::vector<LoadedModule>& modules);

/// What ModelOpt says, in either of its two forms.
struct ModelOptWords {
  /// `ignore`: the keys of the flat form that an engine reads for what is not quantized, the first counts.
  ModelOptWords(const Json& config, std::initializer_list<const char*> ignore);
  const Json& words;  ///< the flat form, or "quantization" of the other
  bool nested;
  std::string algorithm;              ///< in capitals
  std::vector<std::string> excluded;  ///< patterns
  const Json& layers() const { return member(words, "quantized_layers"); }
};

/// Whether config.json's words, or the other file's where these are none, are ModelOpt's.
bool is_modelopt(const Json& config);

/// The words that an engine reads which looks into config.json first.
const Json& inline_first(const LoadedConfig& config);

/// How vLLM and SGLang find a layer in quantized_layers: its own name, the names of what is fused, the first
/// name below.
struct MixedRules {
  const char* engine;
  bool tries_model_prefix;  ///< "model.layers" also for "model.language_model.layers" and back
  bool asks_parent;         ///< experts also take the first name beside them
};
/// nullptr: it is not quantized. Throws Error where fused linears have several algorithms.
const Json* find_mixed(const LayerMap& layers, const MixedRules& rules, const EngineLayer& layer);

/// Which loaders an engine has in a kind of configuration, by algorithms or, of groups, by what formats are
/// called.
struct Loaders {
  std::span<const std::string_view> linears, experts;
};
/// What comes of a layer with `format`, which `name` names: the format, or, without a loader for it, a limit.
LookupResult load(const Loaders& loaders, const EngineLayer& layer, const NamedFormat& format,
                  std::string_view name);

/// Throws Error where some of what is fused is listed and some is not.
bool all_or_none(const std::vector<bool>& listed, const EngineLayer& layer, const char* engine);

}  // namespace twofour::lookups
