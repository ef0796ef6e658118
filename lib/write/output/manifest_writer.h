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

/// The results of a conversion; with the plan they are the whole content of twofour.json.
struct ConversionRecord {
  std::vector<Hash128> outputs;          ///< one for each tensor of the plan
  std::map<uint32_t, Json> results;      ///< by transformation of the plan, if it has a result
  std::map<std::string, Hash128> files;  ///< all other files; for weight files, the bytes before the data
  Json remote;  ///< if the source was behind a URL, as RemoteFolder notes it; or null

  const Json& result(size_t transformation) const;
  /// The hashes of a transformation's parts.
  std::vector<Hash128> parts(const Plan& plan, size_t transformation) const;
};

/// The twofour that made an artifact, and the format of its twofour.json: from kFirstDerivedFormat on.
struct Tool {
  std::string version, commit;
  int format = kManifestFormat;
};

/// Passes the text of twofour.json to `put`, piece by piece, so that the whole text is never in memory.
void format_manifest(const Checkpoint& source, const Plan& plan, const ConversionRecord& record,
                     const Tool& tool, const std::function<void(std::string_view)>& put);

/// Writes twofour.json and returns the hash of its bytes.
Hash128 write_manifest(const std::filesystem::path& path, const Checkpoint& source, const Plan& plan,
                       const ConversionRecord& record);

/// A hash over the source's headers and all bytes read from it.
Hash128 content_hash(const Checkpoint& source, const Plan& plan, const ConversionRecord& record);

}  // namespace twofour
