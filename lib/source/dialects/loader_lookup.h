#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/source/dialects/output_dialect.h"
#include "lib/source/dialects/said_scheme.h"

// How engines find a module's format in a configuration, one row of engines() each, and the fault if an
// engine finds another format than the stored one.
//
// All engines must read an output alike. A configuration of ours is refused if an engine finds another format
// than a module has, or fails, although it has a loader for that format in that configuration. A format that
// an engine has no loader for, or reads wrongly with every configuration, is a limit of that engine. A limit
// is never a reason to refuse: lint reports it as a note, and formats/README.md lists it in a table. Engines
// look modules up by their own names. Here they use the names of the files and the prefixes of language
// models that they also try. A model's class applies its other renames to the configuration, too.

namespace twofour {

/// A linear of a checkpoint and the scheme of its tensors, as_said().
struct LoadedModule {
  std::string name;
  Scheme scheme = {};
  bool one_block = false;  ///< FP8 with a scale a tensor or a row, which may also be read as block scales
};
/// The module of a matrix [n, k]. `one_block` is set if the matrix is no larger than an FP8 block, or its
/// rows are no longer than a block of one row.
LoadedModule loaded_module(std::string name, const Scheme& stored, int64_t n, int64_t k);
LoadedModule loaded_module(const Checkpoint& checkpoint, const Linear& linear);

/// A configuration as engines read it.
struct LoadedConfig {
  Json quantization_config;        ///< entry of config.json; null: none
  Json hf_quant_config = nullptr;  ///< hf_quant_config.json; null: none
  bool deepseek_v4 = false;        ///< the model's type
  std::string expert_dtype = {};   ///< expert_dtype of config.json, for DeepSeek-V4
  bool lists_ends = false;         ///< the model's class matches lists with ends of names, as Ling's does
};
/// Adds the other settings of config.json that engines read.
LoadedConfig loaded_config(const Json& config, ConfigEntries entries);

/// A layer as an engine builds it.
struct EngineLayer {
  enum class Kind { kLinear, kFused, kExperts, kHead };
  Kind kind = Kind::kLinear;
  std::string name;  ///< "model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.experts"
  /// For kFused, the linears of the files in the order of their rows. For kExperts, the names of an expert's
  /// gate, up and down in the files.
  std::vector<std::string> parts = {};
  std::vector<const LoadedModule*> modules = {};  ///< the modules in the layer
};
/// The layers that engines build from linears: fused linears, blocks of routed experts, and single linears.
/// `modules` must outlive them.
std::vector<EngineLayer> engine_layers(const std::vector<LoadedModule>& modules);

/// The format that an engine finds for a layer.
struct LookupResult {
  Scheme scheme = {};  ///< the scheme that it reads; floats if the layer is not quantized
  /// What the engine cannot do with this layer: a limit of the engine, no fault of the configuration. Empty:
  /// none.
  std::string limit = {};
  /// The limit is a missing loader for `scheme`. If another scheme is stored, the configuration is wrong.
  bool lacks_loader = false;
};

/// An engine's rules for one configuration.
class LoaderLookup {
 public:
  virtual ~LoaderLookup() = default;
  /// Throws Error if the engine refuses the layer.
  virtual LookupResult find(const EngineLayer& layer) const = 0;
};

/// An engine. One row each.
struct Engine {
  std::string_view name;
  /// Returns nullptr if there are no rules for the engine's reading of the configuration. Throws Error if the
  /// engine refuses the whole configuration. Both arguments must outlive the result.
  std::unique_ptr<LoaderLookup> (*read)(const LoadedConfig& config, const std::vector<LoadedModule>& modules);
};
/// vLLM, SGLang, TensorRT-LLM.
std::span<const Engine> engines();

/// One place where an engine's reading differs from the stored format.
struct LookupFinding {
  bool is_limit = false;    ///< a limit of the engine; otherwise a fault of the configuration
  bool is_split = false;    ///< modules of the layer differ, which no configuration can express
  std::string_view engine;  ///< its name
  std::string module;       ///< the layer's first module; empty: the whole configuration
  std::string message;      ///< "expected vLLM to read MXFP8, found unquantized"
};
/// Looks every layer up in every engine.
std::vector<LookupFinding> check_lookups(const LoadedConfig& config, const std::vector<LoadedModule>& modules,
                                         std::span<const Engine> asked = engines());

/// The configuration faults among these for an output, as "MODULE: expected X, found Y". Split layers are
/// left to find_split_layers().
std::vector<std::string> find_lookup_conflicts(const WrittenModel& model, const ConfigEntries& config);

/// The same for a checkpoint with a config.json and a hf_quant_config.json (null: none), which need not be
/// its own. Empty if tensors of a module disagree.
std::vector<std::string> find_lookup_conflicts(const Checkpoint& checkpoint, const Json& config,
                                               const Json& hf_quant_config);

/// Mixed formats that no configuration can express: among linears that engines fuse, and among the experts of
/// a layer. Each is "MODULE: expected X, found Y" and names the rule.
std::vector<std::string> find_split_layers(const WrittenModel& model);

}  // namespace twofour
