#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "formats/json_events.h"
#include "formats/layouts/layout.h"
#include "formats/safetensors.h"
#include "lib/base/io/hash.h"
#include "lib/base/threads/progress.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Changes if a reader of older manifests would misunderstand a newer one. New settings of rules do not
/// change it: readers refuse unknown ones.
inline constexpr int kManifestFormat = 4;
/// The oldest format that is read: one rule in the recipe, no shapes of scalars.
inline constexpr int kOldestManifestFormat = 2;
/// Since this format, the text of a manifest follows from source and recipe.
inline constexpr int kFirstDerivedFormat = 3;
/// Since this format, unknown keys are refused in parts that decide bytes.
inline constexpr int kFirstStrictFormat = 4;

/// A manifest ends with the hash of the text before it. Returns an empty string if that hash matches,
/// otherwise the expected and the found hash: then no field of the manifest can be trusted.
std::string integrity_error(const InputFile& file);
/// The end of a manifest: the hash of the text before it.
std::string manifest_seal(const Hash128& hash);

/// The record of a graft's base in twofour.json, if nothing of it was replaced: dropping everything that came
/// restores the base.
struct GraftBase {
  Hash128 tensors;                           ///< hash_descriptions() of the base
  std::map<std::string, std::string> texts;  ///< its config files, byte for byte
};
/// The hash of names, types and shapes.
Hash128 hash_descriptions(std::span<const TensorInfo> tensors);
/// As stored under "source", for read_manifest.
Json graft_base_to_json(const GraftBase& base);

/// The parts of a manifest that validation needs.
struct Manifest {
  struct Output {
    Hash128 hash;
    std::string type;  ///< "U8 [4, 24, 96]"
  };
  struct SourceFile {
    std::string name;
    uint64_t bytes;
    Hash128 header;
  };
  int format = kManifestFormat;
  std::string version, commit;
  std::string integrity_error;  ///< see integrity_error
  Recipe recipe;
  std::vector<SourceFile> sources;      ///< its weight files
  std::string source_content;           ///< hash over all bytes that were read
  Json remote;                          ///< URL etc. of a remote source; null for others
  std::optional<GraftBase> graft_base;  ///< of a graft that replaced nothing
  std::vector<uint32_t> raw_bits;       ///< of the source's global scales: for targets, then modules
  /// A module as the source stored it: bits of its scales; 0 for an input scale if none became a reciprocal.
  struct Original {
    std::string dialect;
    uint32_t global_scale = 0, input_scale = 0;
    std::optional<std::vector<int64_t>> global_scale_shape = {}, input_scale_shape = {};  ///< since format 3
  };
  /// Original types of the scales of a linear in another format than NVFP4, if they were converted.
  struct ScaleTypes {
    std::optional<DType> scale = {}, input_scale = {};
  };
  std::map<std::string, ScaleTypes> scale_types;  ///< by rewritten linear
  std::map<std::string, Original> originals;      ///< by rewritten module that has one global scale
  std::map<std::string, Output> outputs;          ///< by tensor
  std::map<std::string, Hash128> files;           ///< as in ConversionRecord
  size_t folds = 0;                               ///< matrices with folded global scales
  std::map<std::string, Shape> shapes;         ///< by target, rewritten module or quantized matrix: "P.w13"
  std::map<std::string, std::string> layouts;  ///< likewise; the method of a module in no layout
};

/// Reads the manifest of an artifact of `tensors` tensors. Throws Error as parse_manifest_text does, and if
/// its layouts disagree or are unknown (check_layout_names). A damaged manifest is read, so that its contents
/// can be reported.
Manifest read_manifest(const std::filesystem::path& path, size_t tensors);

/// Parses a twofour.json of an artifact of that many tensors piece by piece, so that it needs memory only for
/// objects that `keep` accepts. Returns the rest, with the result of integrity_error(). Throws Error naming
/// the file if it is longer than any manifest of such an artifact, has too many other objects, is not JSON,
/// or has a format or a recipe that this version does not read; Json::exception if it is no manifest; passes
/// on exceptions of `keep`.
struct ManifestText {
  Json json;
  std::string integrity_error;
  int format;
  Recipe recipe;
  /// For keys outside of the recipe that decide bytes.
  UnknownKeys unknown_keys;
};
ManifestText parse_manifest_text(const std::filesystem::path& path, size_t tensors, const KeepJson& keep);

/// The bits of a float32, from eight hexadecimal digits. Throws Error naming `where` on anything else.
uint32_t parse_bits(std::string_view where, const Json& json);

/// Compares the tensors of an artifact whose names begin with `prefix` (empty: all of them) with the hashes
/// in its twofour.json, on all threads. Throws Error on the first difference by name, if twofour.json itself
/// was changed, and if `path` is no artifact.
void check_tensor_hashes(const std::filesystem::path& path, const std::string& prefix, Progress& progress);

}  // namespace twofour
