#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/source/dialects/configured_scheme.h"
#include "lib/source/dialects/output_dialect.h"

// The search of inference engines for a module's format in a configuration. Each engine is a row of
// engines(). A check reports an engine that finds another format than the stored one.
//
// All engines must read an output alike. If an engine has a loader for a module's format in a
// configuration of ours, but finds another format there or fails, then the configuration is at fault and is
// refused. If an engine has no loader for a format, or reads it wrongly with every configuration, then this
// is a limit of the engine. A limit is never a reason to refuse: lint reports it as a note, and
// formats/README.md lists it in a table. Engines look modules up by their own names. The code here uses the
// names in the files, and the prefixes of language models that engines also try. A model's class applies its
// other renames to the configuration, too.

namespace twofour {

/// A linear of a checkpoint, and the scheme of its tensors as as_configured() returns it.
struct LoadedModule {
  std::string name;
  Scheme scheme = {};
  bool one_block = false;  ///< FP8 with one scale for a tensor or row that may also be read as block scales
};
/// Returns the module of a matrix [n, k]. `one_block` is set if the matrix is not larger than an FP8 block,
/// or if its rows are not longer than a block of one row.
LoadedModule loaded_module(std::string name, const Scheme& stored, int64_t n, int64_t k);
LoadedModule loaded_module(const Checkpoint& checkpoint, const Linear& linear);

/// A configuration as engines read it.
struct LoadedConfig {
  Json quantization_config;        ///< entry of config.json; null: there is none
  Json hf_quant_config = nullptr;  ///< content of hf_quant_config.json; null: there is none
  bool deepseek_v4 = false;        ///< the model is a DeepSeek-V4
  std::string expert_dtype = {};   ///< expert_dtype of config.json, for DeepSeek-V4
  /// The model's class compares entries of lists with the ends of names, as Ling's does.
  bool lists_ends = false;
};
/// Returns the configuration with `entries` and the other settings of config.json that engines read.
LoadedConfig loaded_config(const Json& config, ConfigEntries entries);

/// A layer as an engine builds it.
struct EngineLayer {
  enum class Kind { kLinear, kFused, kExperts, kHead };
  Kind kind = Kind::kLinear;
  std::string name;  ///< "model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.experts"
  /// For kFused: the linears of the files, in the order of their rows. For kExperts: the names in the files
  /// of an expert's gate, up and down.
  std::vector<std::string> parts = {};
  std::vector<const LoadedModule*> modules = {};  ///< the modules in the layer
};
/// Returns the layers that engines build from linears: fused linears, blocks of routed experts, and single
/// linears. `modules` must outlive the layers.
std::vector<EngineLayer> engine_layers(const std::vector<LoadedModule>& modules);

/// The format that an engine finds for a layer.
struct LookupResult {
  Scheme scheme = {};  ///< the scheme that the engine reads; floats if it treats the layer as not quantized
  /// The ability that the engine lacks for this layer. It is a limit of the engine and no fault of the
  /// configuration. Empty: there is no limit.
  std::string limit = {};
  /// True if the limit is a missing loader for `scheme`. The configuration is then still wrong if another
  /// scheme is stored.
  bool lacks_loader = false;
  bool takes_any = false;  ///< the engine loads the layer in any scheme, by code of its own
};

/// An engine's rules for one configuration.
class LoaderLookup {
 public:
  virtual ~LoaderLookup() = default;
  /// Returns the format that the engine finds for a layer. Throws Error if the engine refuses the layer.
  virtual LookupResult find(const EngineLayer& layer) const = 0;
};

/// An inference engine and its rules.
struct Engine {
  std::string_view name;
  /// Reads a configuration by the engine's rules. Returns nullptr if no rules here cover how the engine reads
  /// it. Throws Error if the engine refuses the whole configuration. Both arguments must outlive the result.
  std::unique_ptr<LoaderLookup> (*read)(const LoadedConfig& config, const std::vector<LoadedModule>& modules);
};
/// The rows of all engines: vLLM, SGLang, TensorRT-LLM.
std::span<const Engine> engines();

/// Returns a format that a quantization entry of config.json, or a hf_quant_config.json, states and vLLM has
/// no loader for, whatever the module. Empty if there is none, or if no rules here cover the entry.
std::string find_unloaded_by_vllm(const Json& quantization_config);

/// A place where an engine reads another format than the stored one.
struct LookupFinding {
  bool is_limit = false;  ///< true for a limit of the engine, false for a fault of the configuration
  bool is_split = false;  ///< the layer's modules have different formats, which no configuration can express
  std::string_view engine;  ///< its name
  std::string module;   ///< first module of the layer; empty: the finding is about the whole configuration
  std::string message;  ///< "expected vLLM to read MXFP8, found unquantized"
};
/// Looks up every layer in every engine of `asked`. Returns the differences.
std::vector<LookupFinding> check_lookups(const LoadedConfig& config, const std::vector<LoadedModule>& modules,
                                         std::span<const Engine> asked = engines());

/// Returns the faults of a configuration for an output, each as "MODULE: expected X, found Y". Split layers
/// are left out; find_split_layers() finds them.
std::vector<std::string> find_lookup_conflicts(const WrittenModel& model, const ConfigEntries& config);

/// Returns the faults of a config.json and a hf_quant_config.json (null: there is none) for a checkpoint.
/// They need not be the checkpoint's own files. Empty also if tensors of a module disagree.
std::vector<std::string> find_lookup_conflicts(const Checkpoint& checkpoint, const Json& config,
                                               const Json& hf_quant_config);

/// Returns the mixed formats of an output that no configuration can express: different formats among linears
/// that engines fuse, or among the experts of a layer. Each is "MODULE: expected X, found Y" and names the
/// engines' rule.
std::vector<std::string> find_split_layers(const WrittenModel& model);

}  // namespace twofour
