#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/base/io/hash.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// The results of a conversion. The plan and these results determine twofour.json completely.
struct ConversionRecord {
  std::vector<Hash128> outputs;          ///< one hash for each tensor of the plan
  std::map<uint32_t, Json> results;      ///< results by index in Plan::transformations; transformations
                                         ///< without a result are absent
  std::map<std::string, Hash128> files;  ///< hashes of all other files by name; for a weight file, the hash
                                         ///< of the bytes before its data
  Json remote;  ///< the source's URL as RemoteFolder notes it, or null if the source is local

  const Json& result(size_t transformation) const;
  /// The hashes of the parts of a transformation.
  std::vector<Hash128> parts(const Plan& plan, size_t transformation) const;
};

/// The version of twofour that made an artifact, and the format of its twofour.json. The format is
/// kFirstDerivedFormat or later.
struct Tool {
  std::string version, commit;
  int format = kManifestFormat;
};

/// The text of the file that describes the artifact (Plan::readme). Its length does not depend on results.
std::string artifact_readme(const Checkpoint& source, const Plan& plan, const ConversionRecord& record);

/// Passes the text of twofour.json to `put` piece by piece, so that the whole text is never in memory.
void format_manifest(const Checkpoint& source, const Plan& plan, const ConversionRecord& record,
                     const Tool& tool, const std::function<void(std::string_view)>& put);

/// Writes twofour.json and returns the hash of its bytes.
Hash128 write_manifest(const std::filesystem::path& path, const Checkpoint& source, const Plan& plan,
                       const ConversionRecord& record);

/// A hash of the source's headers and of all bytes read from the source.
Hash128 content_hash(const Checkpoint& source, const Plan& plan, const ConversionRecord& record);

}  // namespace twofour
