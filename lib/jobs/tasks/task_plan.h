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

/// A conversion that tasks on several machines share, as plan.json describes it. Each task plans again, from
/// the source's headers and the recipe; the other fields prove that its plan is the same.
struct TaskFile {
  /// Absolute paths. A source behind a URL is its address, with the commit for the Hub.
  std::filesystem::path source, destination;
  std::filesystem::path kept;               ///< quantize: the reference checkpoint; empty if none
  std::filesystem::path donor;              ///< of a graft; empty if none
  std::filesystem::path statistics, masks;  ///< files by which weights are chosen; empty if none
  std::string fingerprint;  ///< of tool, recipe and source, a line of JSON: see lib/jobs/convert/resume.h
  Hash128 outputs;          ///< over the names and headers of all files to write, and over the global scales
  size_t files = 0;
  Links links = Links::kInside;  ///< as Recipe::links
  /// The mark in a record of a finished file, by which records of another plan are recognized.
  Hash128 id() const;
};

/// The task plan of a conversion that was planned here, with the codes to compare with or nullptr, and the
/// donor of a graft. Relative paths become absolute. Throws Error like check_pinned().
TaskFile make_task_plan(const Checkpoint& source, const Plan& plan, const std::filesystem::path& destination,
                        const ReferenceCheckpoint* kept = nullptr, const std::filesystem::path& donor = {});

/// The text of plan.json. It ends with the hash of the text before it.
std::string format_task_plan(const TaskFile& plan);
/// The end of a plan: the hash of `before`, the text before it.
std::string plan_seal(std::string_view before);
/// Throws Error naming `where` if the text is no plan, of another format, edited or cut.
TaskFile parse_task_plan(std::string_view where, std::string_view text);

/// Throws Error naming `where` and the first difference unless both plans give the same bytes.
void check_same_plan(const std::string& where, const TaskFile& planned, const TaskFile& found);

/// The source that a plan names, planned again.
struct PlannedSource {
  std::unique_ptr<RemoteSource> opened;
  Checkpoint source;
  Plan plan;
  std::unique_ptr<const ReferenceCheckpoint> kept;  ///< nullptr if the plan names none
};
/// Throws Error naming `where` if source, recipe or tool are not those of the plan. `compute` as for
/// open_to_convert(); `cache` as for RemoteSource.
PlannedSource open_planned(const std::string& where, const TaskFile& plan, Io io = Io::kCached,
                           const Compute& compute = {best_isa()},
                           const std::optional<CacheOptions>& cache = std::nullopt);

}  // namespace twofour
