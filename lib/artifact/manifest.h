#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/metrics/quality.h"
#include "lib/io/hash.h"
#include "lib/plan/plan.h"
#include "lib/quality.h"

namespace twofour {

/// Hashes of one source slice, the codes and block scales of one expert's matrix.
struct SliceHashes {
  Hash128 codes, scales;
  bool operator==(const SliceHashes&) const = default;
};

/// What a conversion learned while it ran; together with the plan all that twofour.json says.
struct ConversionRecord {
  std::vector<Hash128> outputs;                  ///< one a tensor of the plan
  std::vector<std::vector<SliceHashes>> slices;  ///< one a source of each target
  std::vector<SliceHashes> modules;              ///< one a rewritten module: its source
  std::vector<Quality> quality;                  ///< one a target or rewritten module
  std::vector<EncodedResult> matrices;           ///< one an encoded matrix
  std::map<std::string, Hash128> files;          ///< all other files; of weight files what is before the data
};

/// Changes when a reader of older manifests would misunderstand a newer one.
inline constexpr int kManifestFormat = 2;

/// A manifest ends with the hash of all that stands before it. Empty where that holds for a file, else what
/// was expected and found: then nothing in it can be believed.
std::string manifest_damage(const InputFile& file);

/// What a recipe says, as twofour.json and resume know it.
Json recipe_to_json(const Recipe& recipe);
Recipe recipe_from_json(std::string_view where, const Json& json);

/// The twofour that made an artifact.
struct Tool {
  std::string version, commit;
};

/// Hands the text of twofour.json to `put`, piece by piece, so that its size needs no memory.
void format_manifest(const Checkpoint& source, const Plan& plan, const ConversionRecord& record,
                     const Tool& tool, const std::function<void(std::string_view)>& put);

/// Writes twofour.json and returns the hash of what was written.
Hash128 write_manifest(const std::filesystem::path& path, const Checkpoint& source, const Plan& plan,
                       const ConversionRecord& record);

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
  std::string version, commit;
  std::string damage;  ///< see manifest_damage
  Recipe recipe;
  std::vector<SourceFile> sources;    ///< its weight files
  std::string source_content;         ///< hash over all that was read
  std::vector<uint32_t> stored_bits;  ///< of the source's global scales: of its targets, then modules
  /// A module as the source stored it: bits of its scales, 0 of an input scale where none became a
  /// reciprocal.
  struct Original {
    std::string dialect;
    uint32_t global_scale = 0, input_scale = 0;
  };
  std::map<std::string, Original> originals;  ///< by rewritten module that has one global scale
  std::map<std::string, Output> outputs;      ///< by tensor
  std::map<std::string, Hash128> files;       ///< as in ConversionRecord
  size_t folds = 0;                           ///< matrices whose global scales were folded
  std::map<std::string, Shape> shapes;        ///< by target, rewritten module or encoded matrix: "P.w13"
};

/// Reads that of an artifact of so many tensors. Throws Error where `path` is no manifest of ours, or more
/// than such an artifact's. One with damage is read, for the sake of what can be told.
Manifest read_manifest(const std::filesystem::path& path, size_t tensors);

/// A hash over the source's headers and all bytes read from it.
Hash128 content_hash(const Checkpoint& source, const Plan& plan, const ConversionRecord& record);

}  // namespace twofour
