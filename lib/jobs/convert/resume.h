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

/// The data that must be equal in two runs so that one can use files of the other: the tool, the recipe, and
/// the files of the source. Each file of the source has its name, size and times of last change; a weight
/// file also has its header. The same applies to the reference checkpoint, if there is one. Times are stored
/// only in the journal of an unfinished directory and in the plan of tasks, whose runs see one file system.
Json fingerprint(const Checkpoint& source, const Plan& plan, const ReferenceCheckpoint* kept);

/// True if another run can find out whether the source's weight files are unchanged. That is impossible if a
/// server sends neither ETag nor Last-Modified.
bool is_pinned(const Checkpoint& source);
/// Throws Error unless is_pinned() is true.
void check_pinned(const Checkpoint& source);

/// Throws Error unless both fingerprints are equal. The Error names `where` and the first change, and gives
/// `advice`.
void check_fingerprint(const std::string& where, const Json& then, const Json& now,
                       const std::string& advice = fmt::format("{} begins again", options::kForce));

/// Begins the journal of a run, or resumes an interrupted run. To resume, it reads the finished files again,
/// removes the other files of that run, and returns the records of the undamaged files. Throws Error if
/// source, recipe or tool have changed, or if another program put files there. In these cases it removes
/// nothing.
std::vector<ShardRecord> begin_or_resume(OutputDirectory& directory, const Checkpoint& source,
                                         const Plan& plan, const ReferenceCheckpoint* kept,
                                         Progress& progress);

/// Prepares a recipe for a run that resumes. If `artifact` is complete and its recipe does not state a
/// readme, the run expects none. If its rules lack the settings that versions after 0.2.0 have, they keep
/// that meaning in rules that do not give them either.
void take_absent_settings(const std::filesystem::path& artifact, Recipe& recipe);

/// Compares a complete artifact with its manifest. Also compares it with source and recipe, by headers and
/// files without weights. Returns the number of bytes read. Throws Error if a run would write a different
/// artifact, or if the artifact was changed since.
uint64_t verify_complete(const std::filesystem::path& artifact, const Checkpoint& source, const Plan& plan,
                         int jobs, Progress& progress);

}  // namespace twofour
