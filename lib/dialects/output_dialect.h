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
#include "lib/checkpoint/checkpoint.h"
#include "lib/dialects/scheme.h"

namespace twofour {

/// What a quantized checkpoint tells its loader, apart from how each dialect puts it.
struct QuantizedConfig {
  std::vector<std::string> unquantized = {};  ///< linears that are not quantized, as the dialect's patterns
  bool fp8_kv_cache = false;
  std::vector<std::string> heads = {};  ///< that are quantized, by name
};

/// What a dialect writes into config.json and beside it.
struct ConfigEntries {
  Json quantization_config;
  Json hf_quant_config = nullptr;  ///< null: there is no such file
  Json settings = Json::object();  ///< members of config.json beside the entry; null: there is none
};

/// A linear of a checkpoint that is written, and what its configuration says of it.
struct WrittenModule {
  std::string name;
  std::optional<size_t> entry = {};  ///< in WrittenModel::entries; nothing: it is not quantized
};

/// A checkpoint of several schemes.
struct WrittenModel {
  std::vector<Json> entries = {};             ///< that differ, in the dialect's words
  std::vector<WrittenModule> modules = {};    ///< all linears, in natural order
  std::vector<std::string> unquantized = {};  ///< as globs and names
  bool fp8_kv_cache = false;
  const Checkpoint* source = nullptr;  ///< that it is made from; set before any dialect reads the model
};

/// How the tensors of a quantized linear are named and shaped.
struct Spelling {
  const char* weight;  ///< suffixes
  DType weight_type;
  const char* scale;
  std::optional<DType> scale_type;     ///< nothing: any that loaders take, so that it stays
  std::vector<int64_t> scale_shape{};  ///< of a matrix
  const char* input_scale = nullptr;   ///< where there is one; nullptr: the dialect has none for the scheme
  bool needs_input_scale = false;      ///< loaders want it
};

/// How a producer's checkpoints are written: names, shapes and words. Which tensors an NVFP4 linear has is in
/// formats/dialect.h, which reads them, too. One row a dialect.
struct OutputDialect {
  std::string_view name;               ///< --dialect; of NVFP4 also --arithmetic
  const Nvfp4Dialect* nvfp4;           ///< nullptr: it has no NVFP4
  size_t scalar_rank;                  ///< of the one scale of a matrix: [] or [1]
  std::optional<DType> kv_scale_type;  ///< nothing: its config has no words for an FP8 KV cache
  bool excludes_by_glob;               ///< of linears that are not quantized; else regular expressions
  /// Whether latent attention that is not quantized is one glob: SGLang takes the listed name of one of its
  /// four projections for that projection of every layer.
  bool (*attention_as_glob)(const std::vector<Json>& entries) = nullptr;
  std::span<const Granularity> fp8_granularities;  ///< the default first
  /// The configuration of a checkpoint with one scheme; null where mixed_config() alone says it.
  ConfigEntries (*config)(const QuantizedConfig& config, const Scheme& scheme);
  /// How it spells a scheme of a matrix [n, k], other than NVFP4; nothing: it cannot hold it.
  std::optional<Spelling> (*spelling)(const Scheme& scheme, int64_t n, int64_t k);
  /// The scheme as routed experts have it; nullptr: as other linears.
  Scheme (*of_experts)(Scheme scheme) = nullptr;
  /// What its configuration says of modules of a scheme; null: it cannot hold it.
  Json (*entry)(const Scheme& scheme);
  /// The configuration of several schemes; nullptr: it has no words for that.
  ConfigEntries (*mixed_config)(const WrittenModel& model);
  /// Members of config.json beside its entry that the formats of modules decide; nullptr: none.
  Json (*settings)(const WrittenModel& model) = nullptr;
  /// The type that loaders want of all FP8 scales, by the schemes of the routed experts; nullptr: each its
  /// own.
  std::optional<DType> (*fp8_scale_type)(std::span<const Scheme> experts) = nullptr;

  std::vector<int64_t> scalar_shape() const { return std::vector<int64_t>(scalar_rank, 1); }
  /// Patterns of this dialect that match what globs match.
  std::vector<std::string> patterns(const std::vector<std::string>& globs) const;
};

/// Every dialect that is written, the default first.
std::span<const OutputDialect> output_dialects();
/// Their names, of all or of those that have NVFP4.
std::vector<std::string> output_dialect_names(bool nvfp4_only);
/// Throws Error where no row, or none that has NVFP4, has that name.
const OutputDialect& output_dialect(std::string_view name, bool with_nvfp4);

/// The row that a checkpoint's own configuration belongs to; nullptr where none does.
const OutputDialect* source_dialect(const Checkpoint& source);
/// Whether a checkpoint's configuration is in words of others, as Quark's is.
bool is_foreign(const Checkpoint& source);

/// What the source's configuration says, in the dialect it is converted to, where NVFP4 is its only format.
/// Throws Error where the other dialect has no words for it.
QuantizedConfig translate_config(const Checkpoint& source, const OutputDialect& to);

/// Linears that are not quantized, as names, and as globs blocks of experts that are not as a whole, and
/// latent attention where the dialect says so.
std::vector<std::string> unquantized_linears(const WrittenModel& model, const OutputDialect& to);

/// The config files of a checkpoint with these entries in place of the source's own, by name.
std::map<std::string, std::string> config_texts(const Checkpoint& source, ConfigEntries entries);

}  // namespace twofour
