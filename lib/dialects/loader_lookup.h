#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/dialects/output_dialect.h"
#include "lib/dialects/said_scheme.h"

// How engines find the format of a module in a configuration, a row of engines() each, and what is wrong
// where one finds another format than the module has.
//
// What is written must be read alike: a configuration of ours is refused where any engine finds another
// format for a module than it has, or stops, though it has a loader for that format in that configuration.
// What an engine has no loader for, or is known to read wrongly whatever a configuration says, is a limit of
// that engine: never a reason to refuse, reported by lint as a note, and by formats/README.md in a table.
// Engines ask by names of their own. Here they ask by those of the files, and by the prefixes of language
// models that they try beside them; what else a model's class renames, it renames in the configuration, too.

namespace twofour {

/// A linear of a checkpoint and the scheme of its tensors, as_said().
struct LoadedModule {
  std::string name;
  Scheme scheme = {};
  bool one_block = false;  ///< of FP8 with a scale a tensor or a row: scales may be those of blocks as well
};
/// One of a matrix [n, k]: it is no larger than a block of FP8, or no longer than one of a row.
LoadedModule loaded_module(std::string name, const Scheme& stored, int64_t n, int64_t k);
LoadedModule loaded_module(const Checkpoint& checkpoint, const Linear& linear);

/// A configuration as engines get it.
struct LoadedConfig {
  Json quantization_config;        ///< of config.json; null: none
  Json hf_quant_config = nullptr;  ///< hf_quant_config.json; null: none
  bool deepseek_v4 = false;        ///< the model's type
  std::string expert_dtype = {};   ///< of config.json, which DeepSeek-V4 has
  bool lists_ends = false;         ///< the model's class reads lists as ends of names, as Ling's does
};
/// With what else of config.json they look at.
LoadedConfig loaded_config(const Json& config, ConfigEntries entries);

/// What an engine builds as one layer.
struct EngineLayer {
  enum class Kind { kLinear, kFused, kExperts, kHead };
  Kind kind = Kind::kLinear;
  std::string name;  ///< "model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.experts"
  /// Of kFused the linears of the files, in the order of their rows. Of kExperts what the files call an
  /// expert's gate, up and down.
  std::vector<std::string> parts = {};
  std::vector<const LoadedModule*> modules = {};  ///< that go into it
};
/// The layers that engines make of linears: fused ones, blocks of routed experts, the rest alone. `modules`
/// outlive them.
std::vector<EngineLayer> engine_layers(const std::vector<LoadedModule>& modules);

/// What an engine finds for a layer.
struct LookupResult {
  Scheme scheme = {};  ///< that it reads; floats where the layer is not quantized
  /// What the engine is known not to do with this layer: a limit of the engine and no fault of the
  /// configuration.
  std::string limit = {};
  /// The limit is that it has no loader for `scheme`; where another is stored, the configuration is wrong.
  bool lacks_loader = false;
};

/// An engine's rules for one configuration.
class LoaderLookup {
 public:
  virtual ~LoaderLookup() = default;
  /// Throws Error where the engine refuses the layer.
  virtual LookupResult find(const EngineLayer& layer) const = 0;
};

/// An engine. One row each.
struct Engine {
  std::string_view name;
  /// nullptr where the engine takes the configuration for something that we have no rules for. Throws Error
  /// where it refuses all of it. Both arguments outlive what is returned.
  std::unique_ptr<LoaderLookup> (*read)(const LoadedConfig& config, const std::vector<LoadedModule>& modules);
};
/// vLLM, SGLang, TensorRT-LLM.
std::span<const Engine> engines();

/// One place where an engine does not read what is stored.
struct LookupFinding {
  bool is_limit = false;    ///< of the engine; else a fault of the configuration
  bool is_split = false;    ///< modules of the layer differ, which no configuration can say
  std::string_view engine;  ///< its name
  std::string module;       ///< the first of the layer; empty: the whole configuration
  std::string message;      ///< "expected vLLM to read MXFP8, found unquantized"
};
/// Asks every engine for every layer.
std::vector<LookupFinding> check_lookups(const LoadedConfig& config, const std::vector<LoadedModule>& modules,
                                         std::span<const Engine> asked = engines());

/// The faults among these of a configuration to be written, as "MODULE: expected X, found Y"; of layers that
/// are split find_split_layers() tells.
std::vector<std::string> find_lookup_conflicts(const WrittenModel& model, const ConfigEntries& config);

/// The same of a checkpoint with a config.json and a hf_quant_config.json (null: none), which need not be its
/// own. Nothing where modules have tensors that disagree.
std::vector<std::string> find_lookup_conflicts(const Checkpoint& checkpoint, const Json& config,
                                               const Json& hf_quant_config);

/// Formats that no configuration can tell a loader apart: within what engines fuse, and within the experts of
/// a layer. As "MODULE: expected X, found Y", naming the rule.
std::vector<std::string> find_split_layers(const WrittenModel& model);

}  // namespace twofour
