#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "lib/checkpoint/checkpoint.h"
#include "lib/hub/remote_source.h"
#include "lib/io/hash.h"
#include "lib/io/links.h"
#include "lib/plan/plan.h"
#include "lib/transform/reference_checkpoint.h"

namespace twofour {

/// A conversion that tasks on several machines share, as plan.json says it. Each task plans again, from the
/// source's headers and the recipe; that it comes to the same is what the rest is for.
struct TaskFile {
  /// Absolute; a source behind a URL is its address, of the Hub with the commit.
  std::filesystem::path source, destination;
  std::filesystem::path kept;               ///< quantize: the reference checkpoint; empty if none
  std::filesystem::path donor;              ///< of a graft; empty if none
  std::filesystem::path statistics, masks;  ///< files that weights are chosen by; empty if none
  std::string fingerprint;  ///< of tool, recipe and source, a line of JSON: see lib/convert/resume.h
  Hash128 outputs;          ///< over all files to write, their names and headers, and over the global scales
  size_t files = 0;
  Links links = Links::kInside;  ///< as Recipe::links
  /// What a record of a finished file carries, so that those of another plan are known.
  Hash128 id() const;
};

/// Of a conversion that was planned here, with the codes to compare with or nullptr, and the donor of a
/// graft. Relative paths become absolute ones. Throws Error as check_pinned().
TaskFile make_task_plan(const Checkpoint& source, const Plan& plan, const std::filesystem::path& destination,
                        const ReferenceCheckpoint* kept = nullptr, const std::filesystem::path& donor = {});

/// As plan.json holds it. It ends with the hash of the text before it.
std::string format_task_plan(const TaskFile& plan);
/// The end of a plan: the hash of `before`, the text before it.
std::string plan_seal(std::string_view before);
/// Throws Error naming `where` on what is no plan, one of another format, or one that was edited or cut.
TaskFile parse_task_plan(std::string_view where, std::string_view text);

/// Throws Error naming `where` and what differs first unless both lead to the same bytes.
void check_same_plan(const std::string& where, const TaskFile& planned, const TaskFile& found);

/// The source that a plan names, planned again.
struct PlannedSource {
  std::unique_ptr<RemoteSource> opened;
  Checkpoint source;
  Plan plan;
  std::unique_ptr<const ReferenceCheckpoint> kept;  ///< nullptr where the plan names none
};
/// Throws Error naming `where` if source, recipe or tool are not those of the plan. `compute` as
/// open_to_convert() has it; `cache` as RemoteSource has it.
PlannedSource open_planned(const std::string& where, const TaskFile& plan, Io io = Io::kCached,
                           const Compute& compute = {best_isa()},
                           const std::optional<CacheOptions>& cache = std::nullopt);

}  // namespace twofour
