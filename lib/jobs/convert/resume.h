#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/findings/options.h"
#include "lib/base/threads/progress.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/output/output_directory.h"
#include "lib/write/output/shard_record.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/reference_checkpoint.h"

namespace twofour {

/// The data that must be equal in two runs so that one can use the other's files: tool, recipe, and for every
/// file of the source its name, size, times of last change and, for weights, header. The same for the
/// reference checkpoint, if there is one. Times are recorded only in the journal of an unfinished directory
/// and in the plan of tasks, which see one file system.
Json fingerprint(const Checkpoint& source, const Plan& plan, const ReferenceCheckpoint* kept);

/// True if another run can know that the source's weight files are unchanged. It cannot if a server sends
/// neither ETag nor Last-Modified.
bool is_pinned(const Checkpoint& source);
/// Throws Error unless is_pinned().
void check_pinned(const Checkpoint& source);

/// Throws Error naming `where`, the first change and what to do, unless both are the same.
void check_fingerprint(const std::string& where, const Json& then, const Json& now,
                       const std::string& advice = fmt::format("{} starts afresh", options::kForce));

/// Begins the journal of a run, or resumes an interrupted one: re-reads the files that it finished, removes
/// its other files and returns the records of the sound ones. Throws Error if source, recipe or tool have
/// changed, or if another program put files there; then nothing was removed.
std::vector<ShardRecord> begin_or_resume(OutputDirectory& directory, const Checkpoint& source,
                                         const Plan& plan, const ReferenceCheckpoint* kept,
                                         Progress& progress);

/// Compares a complete artifact with its manifest, and with source and recipe by headers and files without
/// weights. Returns the bytes read. Throws Error if a run would write another artifact, or if it was changed
/// since.
uint64_t verify_complete(const std::filesystem::path& artifact, const Checkpoint& source, const Plan& plan,
                         int jobs, Progress& progress);

}  // namespace twofour
