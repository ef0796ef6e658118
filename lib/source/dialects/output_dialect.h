#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dialect.h"
#include "formats/json.h"
#include "formats/weight_dialect.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/dialects/scheme.h"

namespace twofour {

/// The content of a quantized checkpoint's config, independent of the dialect.
struct QuantizedConfig {
  std::vector<std::string> unquantized = {};  ///< linears that are not quantized, as patterns of the dialect
  bool fp8_kv_cache = false;
  std::vector<std::string> heads = {};  ///< names of quantized heads
};

/// The entries that a dialect writes into config.json and beside it.
struct ConfigEntries {
  Json quantization_config;
  Json hf_quant_config = nullptr;  ///< null: there is no such file
  Json settings = Json::object();  ///< members of config.json beside the entry; null: there is none
};

/// A linear of an output checkpoint and its entry in the configuration.
struct WrittenModule {
  std::string name;
  std::optional<size_t> entry = {};  ///< in WrittenModel::entries; nullopt: not quantized
};

/// An output checkpoint with several schemes.
struct WrittenModel {
  std::vector<Json> entries = {};             ///< distinct entries of the dialect
  std::vector<WrittenModule> modules = {};    ///< all linears, in natural order
  std::vector<std::string> unquantized = {};  ///< linears that are not quantized, as globs and names
  bool fp8_kv_cache = false;
  const Checkpoint* source = nullptr;  ///< the source checkpoint; set before any dialect reads the model
};

/// How the tensors of a quantized linear are named and shaped.
struct Spelling {
  const char* weight;  ///< suffixes
  DType weight_type;
  const char* scale;
  std::optional<DType> scale_type;     ///< nullopt: any type that loaders accept, so it stays
  std::vector<int64_t> scale_shape{};  ///< of a matrix
  const char* input_scale = nullptr;   ///< suffix, if stored; nullptr: the dialect has none for the scheme
  bool needs_input_scale = false;      ///< loaders require it
};

/// How a producer's checkpoints are written: names, shapes and config entries. formats/dialect.h lists the
/// tensors of an NVFP4 linear, for readers, too. One row a dialect.
struct OutputDialect {
  std::string_view name;               ///< value of --dialect; for NVFP4 also of --arithmetic
  const Nvfp4Dialect* nvfp4;           ///< nullptr: it has no NVFP4
  size_t scalar_rank;                  ///< rank of a matrix's only scale: [] or [1]
  std::optional<DType> kv_scale_type;  ///< nullopt: its config cannot express an FP8 KV cache
  bool excludes_by_glob;               ///< excludes linears by globs; otherwise by regular expressions
  /// True if unquantized latent attention is listed as one glob: SGLang applies the listed name of one of its
  /// four projections to that projection of every layer.
  bool (*attention_as_glob)(const std::vector<Json>& entries) = nullptr;
  std::span<const Granularity> fp8_granularities;  ///< the default first
  /// The configuration of a checkpoint with one scheme; null if only mixed_config() can express it.
  ConfigEntries (*config)(const QuantizedConfig& config, const Scheme& scheme);
  /// The spelling of a scheme other than NVFP4 for a matrix [n, k]; nullopt: the dialect lacks the scheme.
  std::optional<Spelling> (*spelling)(const Scheme& scheme, int64_t n, int64_t k);
  /// The scheme for routed experts; nullptr: the same as for other linears.
  Scheme (*of_experts)(Scheme scheme) = nullptr;
  /// The entry for modules of a scheme; null: the dialect lacks the scheme.
  Json (*entry)(const Scheme& scheme);
  /// The configuration of several schemes; nullptr: the dialect cannot express it.
  ConfigEntries (*mixed_config)(const WrittenModel& model);
  /// Members of config.json beside its entry that depend on the formats of modules; nullptr: none.
  Json (*settings)(const WrittenModel& model) = nullptr;
  /// The type that loaders require for all FP8 scales, by the schemes of routed experts; nullptr: each has
  /// its own.
  std::optional<DType> (*fp8_scale_type)(std::span<const Scheme> experts) = nullptr;

  std::vector<int64_t> scalar_shape() const { return std::vector<int64_t>(scalar_rank, 1); }
  /// The globs as equivalent patterns of this dialect.
  std::vector<std::string> patterns(const std::vector<std::string>& globs) const;
};

/// Every output dialect, the default first.
std::span<const OutputDialect> output_dialects();
/// The names of all output dialects, or of those with NVFP4.
std::vector<std::string> output_dialect_names(bool nvfp4_only);
/// The row with that name. Throws Error if there is none, or none with NVFP4 if `with_nvfp4`.
const OutputDialect& output_dialect(std::string_view name, bool with_nvfp4);

/// The row of a checkpoint's own configuration; nullptr if there is none.
const OutputDialect* source_dialect(const Checkpoint& source);
/// True if a checkpoint's configuration is in a dialect without a row, such as Quark's.
bool is_foreign(const Checkpoint& source);

/// Translates the configuration of a source, whose only format is NVFP4, to another dialect. Throws Error if
/// that dialect cannot express it.
QuantizedConfig translate_config(const Checkpoint& source, const OutputDialect& to);

/// Linears that are not quantized, as names. Blocks of experts without any quantized linear are globs, and so
/// is latent attention if the dialect lists it as one.
std::vector<std::string> unquantized_linears(const WrittenModel& model, const OutputDialect& to);

/// The config files of a checkpoint, by name, with these entries instead of the source's.
std::map<std::string, std::string> config_texts(const Checkpoint& source, ConfigEntries entries);

}  // namespace twofour
