#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/options.h"
#include "lib/output/output_directory.h"
#include "lib/output/shard_record.h"
#include "lib/plan/plan.h"
#include "lib/threads/progress.h"
#include "lib/transform/reference_checkpoint.h"

namespace twofour {

/// What two runs must have in common for the files of one to be of use to the other: tool, recipe, and of
/// every file of the source its name, size, times of last change and, of weights, header. The same of the
/// reference checkpoint, if there is one. Times are recorded only in the journal of an unfinished directory
/// and in the plan of tasks, which see one file system.
Json fingerprint(const Checkpoint& source, const Plan& plan, const ReferenceCheckpoint* kept);

/// Whether another run can know that the weight files of the source are still the same, which it cannot of a
/// server that sends neither ETag nor Last-Modified.
bool is_pinned(const Checkpoint& source);
/// Throws Error unless it can.
void check_pinned(const Checkpoint& source);

/// Throws Error naming `where`, what changed first and what to do, unless both are the same.
void check_fingerprint(const std::string& where, const Json& then, const Json& now,
                       const std::string& advice = fmt::format("{} starts afresh", options::kForce));

/// Begins the journal of a run, or takes up that of an interrupted one: re-reads the files that it finished,
/// removes what else it left and returns the records of those that are sound. Throws Error where source,
/// recipe or tool are no longer the same, or if another program put files there; then nothing was removed.
std::vector<ShardRecord> begin_or_resume(OutputDirectory& directory, const Checkpoint& source,
                                         const Plan& plan, const ReferenceCheckpoint* kept,
                                         Progress& progress);

/// Compares a complete artifact with its manifest, and with source and recipe as far as headers and files
/// without weights show. Returns the bytes read. Throws Error if it is not what a run would write, or was
/// changed since.
uint64_t verify_complete(const std::filesystem::path& artifact, const Checkpoint& source, const Plan& plan,
                         int jobs, Progress& progress);

}  // namespace twofour
