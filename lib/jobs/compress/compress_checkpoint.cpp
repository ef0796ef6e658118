#include "lib/jobs/compress/compress_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/error.h"
#include "lib/base/findings/finding.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/jobs/recover/recover.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/write/transform/open_to_convert.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

/// Copies statistics to the user's file, which may be on another file system.
void copy_statistics(const fs::path& from, const fs::path& to) {
  const InputFile in(from);
  AtomicFile out(to);
  read_in_pieces(
      in.size(), 1u << 20, [&](uint64_t at, std::span<uint8_t> piece) { in.read(at, piece); },
      [&](uint64_t at, std::span<const uint8_t> piece) { out.write(at, piece); });
  out.commit();
}

}  // namespace

fs::path work_folder_of(const fs::path& destination) {
  fs::path path = destination.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.parent_path() / (path.filename().string() + ".compressing");
}

CompressedCheckpoint::CompressedCheckpoint(const fs::path& source, const Destination& destination,
                                           Recipe recipe, CompressInput input, fs::path keep,
                                           const ConvertOptions& options)
    : source_(source),
      work_(work_folder_of(destination.path())),
      keep_(std::move(keep)),
      destination_(destination),
      recipe_(std::move(recipe)),
      options_(options),
      compression_(source, recipe_, std::move(input), compute(), options.jobs) {}

/// Prepares the work folder. A run that resumes uses the files of an earlier run. A run that replaces removes
/// them.
void CompressedCheckpoint::prepare_work() {
  if (!is_absent(work_) && !Compression::is_work_folder(work_))
    throw Error(fmt::format("{}: expected no folder, found one that twofour did not create", work_.string()));
  auto folder = std::make_unique<WorkFolder>(work_);
  if (destination_.existing() == Existing::kRefuse && Compression::layers_done(work_)) {
    throw Error(fmt::format(
        "{}: expected no folder, found statistics of an unfinished run; {} continues it, {} begins again",
        work_.string(), options::kResume, options::kForce));
  }
  if (destination_.existing() != Existing::kResume) folder->clear();
  folder_ = std::move(folder);
}

void CompressedCheckpoint::collect(Progress& progress) {
  const bool resumes = destination_.existing() == Existing::kResume;
  if (resumes && is_complete_output(destination_.path()) && is_absent(work_)) return;
  prepare_work();
  if (options_.device == Device::cuda) compression_.use_cuda();
  try {
    compression_.collect(work_, progress);
  } catch (const Interrupted& e) {
    throw Interrupted(fmt::format("{}\n{}: {} of {} are collected and kept; {} continues from there",
                                  e.what(), work_.string(), Compression::layers_done(work_).value_or(0),
                                  counted(static_cast<uint64_t>(compression_.layers()), "layer"),
                                  options::kResume));
  } catch (...) {
    // Without a complete layer there is nothing to resume.
    if (!Compression::layers_done(work_) && Compression::is_work_folder(work_)) folder_->remove();
    throw;
  }
}

/// The recipe with the collected statistics.
Recipe CompressedCheckpoint::solved_recipe() const {
  const auto statistics =
      std::make_shared<const Statistics>(Statistics::open(Compression::statistics_of(work_)));
  return with_statistics(recipe_, statistics, statistics->hash().hex(), Compression::encoded(work_));
}

void CompressedCheckpoint::recover(Progress& progress) {
  const CompressInput& input = compression_.input();
  if (input.recover_passes == 0 || folder_ == nullptr) return;
  const fs::path unrecovered = Compression::unrecovered_of(work_);
  const Recipe solved = solved_recipe();
  const MemoryLimits limits = limits_for(compute());
  {
    const Checkpoint source = open_to_convert(source_, solved, options_.io, limits, compute());
    if (options_.inputs != nullptr) options_.inputs->check_unchanged();
    ConvertOptions options = options_;
    options.existing = Existing::kResume;
    options.verify = false;  // the artifact is read back
    convert(source, make_plan(source, solved, limits), unrecovered, options, progress);
  }
  progress.done = progress.total = 0;
  try {
    recovery_ = twofour::recover(
        {source_, unrecovered, work_, input.windows, input.recover_passes, recipe_.zero_points}, progress);
  } catch (const Interrupted& e) {
    throw Interrupted(
        fmt::format("{}\n{}: the codes and complete passes of recovery are kept; {} goes on there", e.what(),
                    work_.string(), options::kResume));
  }
  if (options_.inputs != nullptr) options_.inputs->check_unchanged();
}

CompressedCheckpoint::Written CompressedCheckpoint::write(Progress& progress) {
  Recipe solved = folder_ == nullptr ? recipe_of_complete() : solved_recipe();
  if (recovery_) solved.recovery = recovery_;
  const MemoryLimits limits = limits_for(compute());
  const Checkpoint source = open_to_convert(source_, solved, options_.io, limits, compute());
  if (folder_ != nullptr && options_.inputs != nullptr) options_.inputs->check_unchanged();
  Written written{make_plan(source, solved, limits), {}};
  written.result = convert(source, written.plan, destination_, options_, progress);
  if (folder_ == nullptr) return written;
  if (!keep_.empty()) copy_statistics(Compression::statistics_of(work_), keep_);
  folder_->remove();
  folder_.reset();
  return written;
}

void CompressedCheckpoint::check_recovered(const Manifest& manifest) const {
  const int64_t asked = compression_.input().recover_passes;
  const int64_t found = manifest.recipe.recovery ? manifest.recipe.recovery->passes : 0;
  if (found == asked) return;
  throw Error(fmt::format("{}: expected an artifact with {} of recovery, found one with {}; {} begins again",
                          destination_.path().string(),
                          counted(static_cast<uint64_t>(asked), "pass", "passes"), found, options::kForce));
}

/// Throws Error unless the user's file has the artifact's statistics.
void CompressedCheckpoint::check_kept_hash(const Manifest& manifest) const {
  const std::string found = Statistics::open(keep_).hash().hex();
  for (const Rule& rule : manifest.recipe.rules) {
    if (rule.statistics_hash.empty() || rule.statistics_hash == found) continue;
    throw Error(fmt::format("{}: expected statistics of the complete {}, XXH3-128 {}, found others at {}, {}",
                            options::kKeepStats, destination_.path().string(), rule.statistics_hash,
                            keep_.string(), found));
  }
}

/// The recipe with the statistics that a complete artifact names. These must belong to this model and input.
Recipe CompressedCheckpoint::recipe_of_complete() const {
  const fs::path& artifact = destination_.path();
  if (!keep_.empty() && is_absent(keep_))
    throw Error(
        fmt::format("{}: expected statistics of the complete {}, found none at {}: {} collects them again",
                    options::kKeepStats, artifact.string(), keep_.string(), options::kForce));
  const Checkpoint complete = Checkpoint::open(artifact);
  const Manifest manifest = read_manifest(artifact / kManifestName, complete.tensors().size());
  if (!keep_.empty()) check_kept_hash(manifest);
  check_recovered(manifest);
  Recipe solved = compression_.linears().plan().recipe;
  solved.recovery = manifest.recipe.recovery;
  for (size_t i = 0; i < std::min(solved.rules.size(), manifest.recipe.rules.size()); ++i) {
    Rule& rule = solved.rules[i];
    const Rule& then = manifest.recipe.rules[i];
    if (rule.statistics_hash.empty() || then.statistics_hash.empty()) continue;
    if (!then.statistics_input.empty() && then.statistics_input != compression_.input_hash())
      throw Error(
          fmt::format("{}: expected an artifact of this model, these tokens, {} and {}, found a different "
                      "one; {} begins again",
                      artifact.string(), options::kTokenWeights, options::kSequential, options::kForce));
    rule.statistics_hash = then.statistics_hash, rule.statistics_from = then.statistics_from;
    rule.statistics_input = then.statistics_input;
  }
  return solved;
}

}  // namespace twofour
