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
#include "lib/artifact/recipe.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/io/hash.h"
#include "lib/threads/progress.h"

namespace twofour {

/// Changes when a reader of older manifests would misunderstand a newer one. A word of rules is none: readers
/// refuse those that they do not know.
inline constexpr int kManifestFormat = 4;
/// The oldest that is read: one rule in the recipe, no shapes of scalars.
inline constexpr int kOldestManifestFormat = 2;
/// Since then the text of a manifest follows from source and recipe.
inline constexpr int kFirstDerivedFormat = 3;
/// Since then unknown keys of what decides bytes are refused.
inline constexpr int kFirstStrictFormat = 4;

/// A manifest ends with the hash of the text before it. Returns an empty string if that hash matches,
/// otherwise what was expected and found: then no field of the manifest can be trusted.
std::string integrity_error(const InputFile& file);
/// The end of a manifest: the hash of the text before it.
std::string manifest_seal(const Hash128& hash);

/// What a graft notes of its base in twofour.json, where nothing of it was replaced: a drop of all that came
/// gives the base back.
struct GraftBase {
  Hash128 tensors;                           ///< hash_descriptions() of the base
  std::map<std::string, std::string> texts;  ///< its config files, byte for byte
};
/// Over names, types and shapes.
Hash128 hash_descriptions(std::span<const TensorInfo> tensors);
/// As it is under "source", for read_manifest.
Json graft_base_to_json(const GraftBase& base);

/// What validation needs of a manifest.
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
  std::string source_content;           ///< hash over all that was read
  Json remote;                          ///< where the source was, if behind a URL; or null
  std::optional<GraftBase> graft_base;  ///< of a graft that replaced nothing
  std::vector<uint32_t> raw_bits;       ///< of the source's global scales: of its targets, then modules
  /// A module as the source stored it: bits of its scales, 0 of an input scale where none became a
  /// reciprocal.
  struct Original {
    std::string dialect;
    uint32_t global_scale = 0, input_scale = 0;
    std::optional<std::vector<int64_t>> global_scale_shape = {}, input_scale_shape = {};  ///< since format 3
  };
  /// Types that scales of a linear in another format than NVFP4 had, where they were converted.
  struct ScaleTypes {
    std::optional<DType> scale = {}, input_scale = {};
  };
  std::map<std::string, ScaleTypes> scale_types;  ///< by rewritten linear
  std::map<std::string, Original> originals;      ///< by rewritten module that has one global scale
  std::map<std::string, Output> outputs;          ///< by tensor
  std::map<std::string, Hash128> files;           ///< as in ConversionRecord
  size_t folds = 0;                               ///< matrices with folded global scales
  std::map<std::string, Shape> shapes;         ///< by target, rewritten module or quantized matrix: "P.w13"
  std::map<std::string, std::string> layouts;  ///< likewise; of a module in no layout its method
};

/// Reads the manifest of an artifact of `tensors` tensors. Throws Error as parse_manifest_text does, and if
/// layouts that it names disagree or are unknown (check_layout_names). A damaged manifest is read, so that
/// what it says can be reported.
Manifest read_manifest(const std::filesystem::path& path, size_t tensors);

/// Parses a twofour.json of an artifact of that many tensors piece by piece, so that it needs no memory but
/// for what `keep` keeps. Returns the rest, with the result of integrity_error(). Throws
/// Error naming the file where it is longer than such an artifact's can be, has too many objects that are not
/// kept, is not JSON, is of a format or has a recipe that this version does not read; Json::exception where
/// it is no manifest; passes on what `keep` throws.
struct ManifestText {
  Json json;
  std::string integrity_error;
  int format;
  Recipe recipe;
  /// Of other keys than the recipe's that decide bytes.
  UnknownKeys unknown_keys;
};
ManifestText parse_manifest_text(const std::filesystem::path& path, size_t tensors, const KeepJson& keep);

/// The bits of a float32, from eight hexadecimal digits. Throws Error naming `where` on
/// anything else.
uint32_t parse_bits(std::string_view where, const Json& json);

/// Compares the tensors of an artifact with names that begin with `prefix` (empty: all of them) with the
/// hashes of its twofour.json, on all threads. Throws Error on the first by name that differs, where
/// twofour.json itself was changed, and where `path` is no artifact.
void check_tensor_hashes(const std::filesystem::path& path, const std::string& prefix, Progress& progress);

}  // namespace twofour
