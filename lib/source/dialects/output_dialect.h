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

/// The content of the config of a quantized checkpoint, independent of its dialect.
struct QuantizedConfig {
  /// Linears that are not quantized, as patterns in the dialect's syntax.
  std::vector<std::string> unquantized = {};
  bool fp8_kv_cache = false;
  std::vector<std::string> heads = {};  ///< names of quantized heads
};

/// The statements of a dialect in config.json, and in hf_quant_config.json beside it.
struct ConfigEntries {
  Json quantization_config;
  Json hf_quant_config = nullptr;  ///< content of hf_quant_config.json; null: the file is not written
  Json settings = Json::object();  ///< other members of config.json; null as a value: the member is removed
};

/// A linear of an output checkpoint and its entry in the configuration.
struct WrittenModule {
  std::string name;
  /// Position in WrittenModel::entries; nullopt: the linear is not quantized.
  std::optional<size_t> entry = {};
};

/// An output checkpoint with several schemes.
struct WrittenModel {
  std::vector<Json> entries = {};             ///< all different entries, in the dialect's form
  std::vector<WrittenModule> modules = {};    ///< all linears, in natural order
  std::vector<std::string> unquantized = {};  ///< linears that are not quantized, as globs or names
  bool fp8_kv_cache = false;
  const Checkpoint* source = nullptr;  ///< the source checkpoint; set before any dialect reads the model
  std::vector<Scheme> schemes = {};    ///< the schemes of `entries`, in the same order

  /// Adds a linear that is not quantized.
  void add(std::string name) { modules.push_back({std::move(name)}); }
  /// Adds a quantized linear, and its entry if that is new.
  void add(std::string name, const Scheme& scheme, Json entry);
  /// The names of quantized heads.
  std::vector<std::string> heads() const;
};

/// The names, types and shapes of the tensors of a quantized linear in one dialect.
struct Spelling {
  const char* weight;  ///< suffixes of the codes' and the scales' names
  DType weight_type;
  const char* scale;
  std::optional<DType> scale_type;     ///< nullopt: loaders accept several types, so the source's type stays
  std::vector<int64_t> scale_shape{};  ///< shape of the scales of one matrix
  /// Suffix of stored input scales; nullptr: the dialect stores none for this scheme.
  const char* input_scale = nullptr;
  bool needs_input_scale = false;  ///< true if loaders require an input scale
};

/// The dialect in which a producer writes checkpoints: names, shapes and config entries. The tensors of an
/// NVFP4 linear are listed in formats/dialect.h, which also serves readers. Each dialect is one row.
struct OutputDialect {
  std::string_view name;      ///< value of --dialect and, for a dialect with NVFP4, of --arithmetic
  const Nvfp4Dialect* nvfp4;  ///< tensors of NVFP4; nullptr: the dialect has no NVFP4
  size_t scalar_rank;         ///< rank of the scale if a matrix has only one: 0 for [], 1 for [1]
  /// Type of KV scales; nullopt: the config cannot express an FP8 KV cache.
  std::optional<DType> kv_scale_type;
  bool excludes_by_glob;  ///< true if the config excludes linears by globs, false if by regular expressions
  /// True if the config names unquantized latent attention by one glob. With a list of names, SGLang would
  /// apply the name of one of the four projections to that projection in every layer.
  bool (*attention_as_glob)(const std::vector<Json>& entries) = nullptr;
  /// Granularities of FP8 scales that the dialect has, the default first.
  std::span<const Granularity> fp8_granularities;
  /// Returns the entries for a checkpoint with only one scheme; null if only mixed_config() can express it.
  ConfigEntries (*config)(const QuantizedConfig& config, const Scheme& scheme);
  /// Returns the spelling of a scheme other than NVFP4 for a matrix [n, k]; nullopt if the dialect lacks the
  /// scheme.
  std::optional<Spelling> (*spelling)(const Scheme& scheme, int64_t n, int64_t k);
  /// Returns the scheme that routed experts have in place of `scheme`; nullptr: the same as other linears.
  Scheme (*of_experts)(Scheme scheme) = nullptr;
  /// Returns the entry for modules of a scheme; null if the dialect lacks the scheme.
  Json (*entry)(const Scheme& scheme);
  /// Returns the entries for a checkpoint with several schemes; nullptr: the dialect cannot express it.
  ConfigEntries (*mixed_config)(const WrittenModel& model);
  /// Returns members of config.json outside the entry that depend on the formats of modules; nullptr: there
  /// are none.
  Json (*settings)(const WrittenModel& model) = nullptr;
  /// Returns the type that loaders require for all FP8 scales, given the schemes of routed experts. nullptr:
  /// each scale has its own type.
  std::optional<DType> (*fp8_scale_type)(std::span<const Scheme> experts) = nullptr;

  std::vector<int64_t> scalar_shape() const { return std::vector<int64_t>(scalar_rank, 1); }
  /// Returns patterns in this dialect's syntax that match the same names as the globs.
  std::vector<std::string> patterns(const std::vector<std::string>& globs) const;
};

/// Returns all output dialects, the default first.
std::span<const OutputDialect> output_dialects();
/// Returns the names of all output dialects or, if `nvfp4_only`, of those with NVFP4.
std::vector<std::string> output_dialect_names(bool nvfp4_only);
/// Returns the row with that name. Throws Error if there is none or, with `with_nvfp4`, if it has no NVFP4.
const OutputDialect& output_dialect(std::string_view name, bool with_nvfp4);

/// Returns the row of the dialect in which a checkpoint's own configuration is written; nullptr: no row has
/// it.
const OutputDialect* source_dialect(const Checkpoint& source);
/// True if a checkpoint's configuration is in a dialect that has no row, such as Quark's.
bool is_foreign(const Checkpoint& source);

/// Translates a source's configuration to another dialect. The source must have no quantized format but
/// NVFP4. Throws Error if the other dialect cannot express the configuration.
QuantizedConfig translate_config(const Checkpoint& source, const OutputDialect& to);

/// Returns the names of linears that are not quantized. A block of experts without a quantized linear becomes
/// one glob, and so does latent attention if the dialect names it by one glob.
std::vector<std::string> unquantized_linears(const WrittenModel& model, const OutputDialect& to);

/// Returns the config files of a checkpoint, by file name, with `entries` in place of the source's entries.
std::map<std::string, std::string> config_texts(const Checkpoint& source, ConfigEntries entries);

}  // namespace twofour
