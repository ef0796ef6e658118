#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "lib/base/io/hash.h"
#include "lib/base/io/links.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/hub/remote_source.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/reference_checkpoint.h"

namespace twofour {

/// A conversion that tasks on several machines share, as plan.json describes it. Each task makes the plan
/// again from the source's headers and the recipe. The other fields prove that its plan is the same.
struct TaskFile {
  /// Absolute paths. For a remote source it is the URL; for a source on the Hub, the URL includes the commit.
  std::filesystem::path source, destination;
  std::filesystem::path kept;               ///< for quantize, the reference checkpoint; otherwise empty
  std::filesystem::path donor;              ///< the donor of a graft, or empty
  std::filesystem::path statistics, masks;  ///< the files by which weights are chosen, or empty
  std::string fingerprint;                  ///< identifies tool, recipe and source; a line of JSON, see
                                            ///< lib/jobs/convert/resume.h
  Hash128 outputs;  ///< hash of the names and headers of all files to write, and of the global scales
  size_t files = 0;
  Links links = Links::kInside;  ///< the value of Recipe::links
  /// The mark in records of finished files. It distinguishes them from records of other plans.
  Hash128 id() const;
};

/// Makes the task plan of a conversion. `kept` is the reference checkpoint to compare codes with, or null.
/// `donor` is the donor of a graft. Relative paths become absolute. Throws Error like check_pinned().
TaskFile make_task_plan(const Checkpoint& source, const Plan& plan, const std::filesystem::path& destination,
                        const ReferenceCheckpoint* kept = nullptr, const std::filesystem::path& donor = {});

/// The text of plan.json. It ends with the hash of the preceding text.
std::string format_task_plan(const TaskFile& plan);
/// The end of a plan's text, which is the hash of the preceding text `before`.
std::string plan_seal(std::string_view before);
/// Throws Error, which names `where`, if the text is not a task plan, has a different format, or was edited
/// or cut.
TaskFile parse_task_plan(std::string_view where, std::string_view text);

/// Throws Error unless both plans give the same bytes. The Error names `where` and the first difference.
void check_same_plan(const std::string& where, const TaskFile& planned, const TaskFile& found);

/// The source that a plan names, and its plan, which was made again.
struct PlannedSource {
  std::unique_ptr<RemoteSource> opened;
  Checkpoint source;
  Plan plan;
  std::unique_ptr<const ReferenceCheckpoint> kept;  ///< null if the plan names no reference checkpoint
};
/// Opens the source of a plan and makes the plan again. Throws Error, which names `where`, if source, recipe
/// or tool differ from the plan's. `compute` is as in open_to_convert(), `cache` as in RemoteSource.
PlannedSource open_planned(const std::string& where, const TaskFile& plan, Io io = Io::kCached,
                           const Compute& compute = {best_isa()},
                           const std::optional<CacheOptions>& cache = std::nullopt);

}  // namespace twofour
