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

/// The format of manifests. It increases if a reader of older manifests would misunderstand a newer manifest.
/// New settings of rules do not change it, since readers refuse unknown settings.
inline constexpr int kManifestFormat = 4;
/// The oldest format that is read. Its recipe is one rule, and it has no shapes of scalars.
inline constexpr int kOldestManifestFormat = 2;
/// Since this format, the text of a manifest follows from source and recipe.
inline constexpr int kFirstDerivedFormat = 3;
/// Since this format, unknown keys are refused in parts that decide bytes.
inline constexpr int kFirstStrictFormat = 4;

/// Checks the hash at the end of a manifest, which is the hash of the text before it. Returns an empty string
/// if the hash matches. Otherwise returns the expected and the found hash, and no field of the manifest can
/// be trusted.
std::string integrity_error(const InputFile& file);
/// The end of a manifest, which is the hash of the text before it.
std::string manifest_seal(const Hash128& hash);

/// The record of a graft's base in twofour.json, for a graft that replaced nothing of the base. Dropping
/// everything that the graft added restores the base.
struct GraftBase {
  Hash128 tensors;                           ///< hash_descriptions() of the base
  std::map<std::string, std::string> texts;  ///< the base's config files, by name
};
/// The hash of the names, types and shapes of tensors.
Hash128 hash_descriptions(std::span<const TensorInfo> tensors);
/// The JSON of a base that is stored under "source" and that read_manifest() reads.
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
  std::vector<SourceFile> sources;      ///< weight files of the source
  std::string source_content;           ///< hash over all bytes that were read
  Json remote;                          ///< URL and so on of a remote source; otherwise null
  std::optional<GraftBase> graft_base;  ///< for a graft that replaced nothing
  std::vector<uint32_t> raw_bits;       ///< float32 bits of the source's global scales: targets, then modules
  /// A module as the source stored it, with the float32 bits of its scales. The input scale is 0 if no input
  /// scale became a reciprocal.
  struct Original {
    std::string dialect;
    uint32_t global_scale = 0, input_scale = 0;
    std::optional<std::vector<int64_t>> global_scale_shape = {}, input_scale_shape = {};  ///< since format 3
  };
  /// The original types of the scales of a linear in a format other than NVFP4, if they were converted.
  struct ScaleTypes {
    std::optional<DType> scale = {}, input_scale = {};
  };
  std::map<std::string, ScaleTypes> scale_types;  ///< by rewritten linear
  std::map<std::string, Original> originals;      ///< by rewritten module that has one global scale
  std::map<std::string, Output> outputs;          ///< by tensor
  std::map<std::string, Hash128> files;           ///< as in ConversionRecord
  std::string readme;                             ///< name of the file that describes the artifact, or empty
  size_t folds = 0;                               ///< matrices with folded global scales
  std::map<std::string, Shape> shapes;            ///< for targets, rewritten modules and quantized matrices
  std::map<std::string, std::string> layouts;     ///< by the same names; a method if it is not in a layout
};

/// Reads the manifest of an artifact with `tensors` tensors. Throws Error like parse_manifest_text(), and if
/// layouts disagree or are unknown (see check_layout_names()). It reads even a damaged manifest, so that the
/// contents can be reported.
Manifest read_manifest(const std::filesystem::path& path, size_t tensors);

/// The result of parse_manifest_text(), which parses the twofour.json of an artifact with `tensors` tensors
/// piece by piece. It needs memory only for objects that `keep` accepts, and returns these with the result of
/// integrity_error(). Throws Error that names the file if the file is longer than any manifest with so many
/// tensors, has too many other objects, is not JSON, or has a format or a recipe that this version does not
/// read. Throws Json::exception if the file is not a manifest. Passes on the exceptions of `keep`.
struct ManifestText {
  Json json;
  std::string integrity_error;
  int format;
  Recipe recipe;
  /// The treatment of unknown keys outside of the recipe, in parts that decide bytes.
  UnknownKeys unknown_keys;
};
ManifestText parse_manifest_text(const std::filesystem::path& path, size_t tensors, const KeepJson& keep);

/// The names of the file in which an artifact describes itself.
inline constexpr const char *kReadmeName = "README.md", *kBesideReadmeName = "TWOFOUR.md";

/// The name of the README.md or TWOFOUR.md in `directory` that twofour wrote: twofour.json names it and has
/// its hash. Empty if there is none, or if it was changed since. `tensors` is the number of stored tensors.
std::string own_readme(const std::filesystem::path& directory, size_t tensors);

/// Parses the bits of a float32 from eight hexadecimal digits. Throws Error that names `where` on anything
/// else.
uint32_t parse_bits(std::string_view where, const Json& json);

/// Compares the tensors of an artifact with the hashes in its twofour.json, on all threads. Only tensors
/// whose names begin with `prefix` are compared. An empty `prefix` selects all. Throws Error that names the
/// first tensor, by name, that differs. Also throws Error if twofour.json itself was changed, and if `path`
/// is not an artifact.
void check_tensor_hashes(const std::filesystem::path& path, const std::string& prefix, Progress& progress);

}  // namespace twofour
