#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "formats/json.h"
#include "lib/checkpoint.h"
#include "lib/output_directory.h"
#include "lib/plan.h"
#include "lib/progress.h"
#include "lib/shard_record.h"

namespace twofour {

/// What two runs must have in common for the files of one to be of use to the other: tool, recipe, and of
/// every file of the source its name, size, time of last change and, of weights, header. Times stand nowhere
/// but in the journal of an unfinished directory.
Json fingerprint(const Checkpoint& source, const Plan& plan);

/// Throws Error naming `where`, what changed first and what to do, unless both are the same.
void check_fingerprint(const std::string& where, const Json& then, const Json& now,
                       const char* advice = "--force starts afresh");

/// Begins the journal of a run, or takes up that of an interrupted one: re-reads the files that it finished,
/// removes all else and returns the records of those that are sound. Throws Error where source, recipe or
/// tool are no longer the same; then nothing was removed.
std::vector<ShardRecord> begin_or_resume(OutputDirectory& directory, const Checkpoint& source,
                                         const Plan& plan, Progress& progress);

/// Holds a complete artifact against its manifest, and the manifest against source and recipe. Returns the
/// bytes read. Throws Error where it is not what a run would write or not as it was written.
uint64_t verify_complete(const std::filesystem::path& artifact, const Checkpoint& source, const Plan& plan,
                         int jobs, Progress& progress);

}  // namespace twofour
