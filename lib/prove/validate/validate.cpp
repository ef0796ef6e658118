#include "lib/prove/validate/validate.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/file_states.h"
#include "lib/base/names/natural.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/graft/open_edited.h"
#include "lib/prove/expected/expected_rows.h"
#include "lib/prove/mends/prove_repair.h"
#include "lib/prove/origins/prove_edit.h"
#include "lib/prove/validate/check_layers.h"
#include "lib/prove/validate/check_on_device.h"
#include "lib/prove/validate/checks.h"
#include "lib/prove/validate/proof.h"
#include "lib/prove/validate/solved_group_proofs.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/repair/open_repaired.h"
#include "lib/write/plan/tensor_rewrite.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

void check_tensor(const Manifest& manifest, const TensorInfo& t, const Hash128& found,
                  ValidateReport& report) {
  const auto it = manifest.outputs.find(t.name);
  if (it == manifest.outputs.end()) {
    differ(report, "not-in-manifest", t.name, "expected it in twofour.json, found it only in the files");
    return;
  }
  const std::string type = describe(t.dtype, t.shape);
  if (it->second.type != type) {
    differ(report, "tensor", t.name,
           fmt::format("expected {} (twofour.json), found {}", it->second.type, type));
  }
  if (it->second.hash != found) {
    differ(report, "hash", t.name,
           fmt::format("expected {} (twofour.json), found {}", it->second.hash.hex(), found.hex()));
  }
}

/// True if the artifact has every tensor of the plan, as planned. Otherwise, nothing else can be compared.
bool check_tensors(const Checkpoint& artifact, const Plan& plan, ValidateReport& report) {
  bool sound = true;
  for (const OutputTensor& t : plan.tensors) {
    const auto at = artifact.find(t.info.name);
    const bool same =
        at && artifact.tensors()[*at].dtype == t.info.dtype && artifact.tensors()[*at].shape == t.info.shape;
    if (same) continue;
    sound = false;
    differ(report, "tensor", t.info.name,
           fmt::format("expected {}, found {}", describe(t.info.dtype, t.info.shape),
                       at ? describe(artifact.tensors()[*at].dtype, artifact.tensors()[*at].shape) : "none"));
  }
  return sound;
}

void account_for_source(const Checkpoint& source, const Plan& plan, ValidateReport& report) {
  std::vector<int> used(source.tensors().size());
  for (const auto& transformation : plan.transformations) {
    for (const size_t i : transformation->sources()) ++used[i];
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] == 1) {
      ++report.source_tensors;
      report.source_bytes += source.tensors()[i].bytes();
    } else {
      differ(report, "source-tensor", source.tensors()[i].name,
             fmt::format("expected once in the artifact, found {} times", used[i]));
    }
  }
}

void add_found(const ProofFindings& found, ValidateReport& report) {
  report.differences.insert(report.differences.end(), found.differences.begin(), found.differences.end());
  report.weights.insert(report.weights.end(), found.weights.begin(), found.weights.end());
  report.solved_rows += found.solved_rows;
  report.rows_not_drawn += found.rows_not_drawn;
}

/// Derives every byte again, and returns the results that the record must have. Several transformations run
/// at the same time if there are many of them and the promised memory has room. Otherwise they run one after
/// the other, since each of them uses all threads.
std::map<uint32_t, Json> prove_all(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                                   bool on_device, bool all_rows, Progress& progress,
                                   ValidateReport& report) {
  const auto hessians = std::make_shared<SolvedHessians>();
  constexpr uint64_t kCopies = 4;  // number of buffers of a unit's size: source, expected and found
  const size_t count = plan.transformations.size();
  const auto threads = static_cast<uint64_t>(omp_get_max_threads());
  std::vector<ProofFindings> found(count);
  std::vector<Json> results(count);
  ExpectedInputScales input_scales(source);
  const auto prove = [&](size_t t) {
    std::vector<const TensorInfo*> parts;
    for (const uint32_t i : plan.parts_of(t)) parts.push_back(&plan.tensors[i].info);
    Proof proof(source, artifact, std::move(parts), input_scales, progress, found[t]);
    proof.on_device = on_device;
    proof.all_rows = all_rows;
    proof.hessians = hessians;
    results[t] = plan.transformations[t]->prove(proof);
  };
  std::vector<size_t> together;
  for (size_t t = 0; t < count; ++t) {
    const uint64_t bytes = std::max(kRewriteStep, plan.transformations[t]->worker_bytes());
    uint64_t written = 0;
    for (const uint32_t i : plan.parts_of(t)) written += plan.tensors[i].info.bytes();
    // A transformation with much of the work would leave the other threads idle at the end.
    const bool is_much = 4 * threads * written > plan.data_bytes;
    const bool fits = !on_device && !is_much && kCopies * bytes * threads <= plan.limits.buffers;
    if (fits || plan.transformations[t]->keeps()) {
      together.push_back(t);
    } else {
      prove(t);
    }
  }
  if (together.size() < 2 * threads) {
    for (const size_t t : together) prove(t);
  } else {
    parallel_for(together.size(), [&](size_t i) { prove(together[i]); });
  }
  std::map<uint32_t, Json> all;
  for (size_t t = 0; t < count; ++t) {
    add_found(found[t], report);
    if (!results[t].is_null()) all.emplace(static_cast<uint32_t>(t), std::move(results[t]));
  }
  return all;
}

void check_hashes(const Checkpoint& artifact, const Manifest& manifest, Progress& progress,
                  ValidateReport& report) {
  std::vector<Hash128> found(artifact.tensors().size());
  // The largest come first, so that no thread begins a large one after the others have finished.
  std::vector<size_t> order(found.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return artifact.tensors()[a].bytes() > artifact.tensors()[b].bytes();
  });
  parallel_for(found.size(), [&](size_t i) {
    found[order[i]] = hash_tensor(artifact, order[i], 0, artifact.tensors()[order[i]].bytes(), progress);
  });
  for (size_t i = 0; i < found.size(); ++i) {
    check_tensor(manifest, artifact.tensors()[i], found[i], report);
    report.bytes += artifact.tensors()[i].bytes();
  }
  report.tensors = found.size();
}

Checkpoint open_artifact(const fs::path& path, Io io) {
  std::error_code error;
  if (fs::is_directory(path, error) && !fs::exists(path / kManifestName, error) && !error) {
    refuse_unfinished(path);
    throw Error(fmt::format("{}: expected a twofour artifact, found no {}", path.string(), kManifestName));
  }
  Checkpoint artifact = Checkpoint::open(path, io);
  refuse_unknown_layout(artifact);
  return artifact;
}

ProvenMend changes_of(const MendNote& note) {
  ProvenMend mend{
      note.mend, {note.tensors.begin(), note.tensors.end()}, {note.dropped.begin(), note.dropped.end()}};
  std::set<std::string> files = note.files;
  for (const MendNote::Setting& setting : note.settings) {
    mend.settings.push_back(fmt::format("{}: {}", setting.file, setting.key));
    files.erase(setting.file);
  }
  mend.files.assign(files.begin(), files.end());
  for (std::vector<std::string>* names : {&mend.tensors, &mend.dropped, &mend.settings})
    std::stable_sort(names->begin(), names->end(), natural_less);
  return mend;
}

/// Validates output of repair. The expected results of mends are derived from the source and the donor.
void validate_repair(const Checkpoint& artifact, const Manifest& manifest, const fs::path& source_path,
                     const ValidateOptions& options, Progress& progress, ValidateReport& report) {
  const RepairNote note = read_repair_note(artifact.path() / kManifestName, artifact.tensors().size());
  if (takes_from_donor(note) && options.donor.empty()) {
    throw Error(fmt::format("{}: expected {} PATH, the checkpoint that mends took from, found none",
                            artifact.path().string(), options::kDonor));
  }
  for (const TensorInfo& t : artifact.tensors()) progress.total += 3 * t.bytes();
  progress.phase = "hashing";
  check_hashes(artifact, manifest, progress, report);
  progress.phase = "deriving";
  {
    LooseFiles loose;
    loose.unreadable = files_of_donor(note);
    const Checkpoint source = Checkpoint::open_loosely(source_path, options.io, loose);
    std::optional<Checkpoint> donor;
    if (!options.donor.empty()) donor.emplace(Checkpoint::open(options.donor, options.io));
    RepairProof proof = prove_repair(artifact, manifest.recipe.edit.repair, note, source, loose,
                                     donor && takes_from_donor(note) ? &*donor : nullptr, progress);
    check_engines(artifact, nullptr, report);
    std::move(proof.differences.begin(), proof.differences.end(), std::back_inserter(report.differences));
    report.source_tensors = proof.source_tensors;
    report.source_bytes = proof.source_bytes;
    for (const MendNote& mend : note.mends) report.mends.push_back(changes_of(mend));
  }
  if (!report.differences.empty()) return;
  const Repaired repaired =
      open_repaired(source_path, options.donor, manifest.recipe.edit.repair, options.io);
  const Plan plan = make_plan(repaired.checkpoint, manifest.recipe);
  check_files(artifact, repaired.checkpoint, plan, manifest, report);
  if (report.differences.empty())
    check_manifest(artifact, repaired.checkpoint, plan, manifest, {}, progress, report);
}

/// Validates output of graft or drop. Tensors are compared with their origins. The other files are derived
/// again.
void validate_edit(const Checkpoint& artifact, const Manifest& manifest, const fs::path& source,
                   const ValidateOptions& options, Progress& progress, ValidateReport& report) {
  const Edit& edit = manifest.recipe.edit;
  if (edit.kind == Edit::Kind::kRepair)
    return validate_repair(artifact, manifest, source, options, progress, report);
  const bool grafts = edit.kind == Edit::Kind::kGraft;
  if (grafts && options.donor.empty()) {
    throw Error(fmt::format("{}: expected {} PATH, the checkpoint that modules were taken from, found none",
                            artifact.path().string(), options::kDonor));
  }
  for (const TensorInfo& t : artifact.tensors()) progress.total += 3 * t.bytes();
  progress.phase = "hashing";
  check_hashes(artifact, manifest, progress, report);
  progress.phase = "deriving";
  {
    const Checkpoint base = Checkpoint::open(source, options.io);
    std::optional<Checkpoint> donor;
    if (grafts) donor.emplace(Checkpoint::open(options.donor, options.io));
    EditProof proof = prove_edit(artifact, edit, base, donor ? &*donor : nullptr, progress);
    check_engines(artifact, &base, report);
    std::move(proof.differences.begin(), proof.differences.end(), std::back_inserter(report.differences));
    report.source_tensors = proof.source_tensors;
    report.source_bytes = proof.source_bytes;
  }
  const Checkpoint view = open_edited(source, options.donor, edit, options.io);
  const Plan plan = make_plan(view, manifest.recipe);
  check_files(artifact, view, plan, manifest, report);
  if (report.differences.empty()) check_manifest(artifact, view, plan, manifest, {}, progress, report);
}

std::string derived_verdict(const ValidateReport& report) {
  if (report.without_statistics) {
    return fmt::format(
        "all hashes match, unchanged tensors equal the source's, and codes follow their pattern and layout; "
        "rows that were solved by statistics were not solved again, which {} FILE does",
        options::kStats);
  }
  if (report.rows_not_drawn == 0) return "every byte derived again from the source, equal";
  return fmt::format(
      "every byte derived again from the source, equal, except {} of {} rows that were solved by statistics: "
      "their pattern and loss were checked",
      report.rows_not_drawn, report.solved_rows);
}

}  // namespace

std::string sound_verdict(const ValidateReport& report, bool with_source) {
  if (!with_source) return "all hashes match";
  std::string verdict = derived_verdict(report);
  if (report.recovered > 0)
    verdict += fmt::format("; {} that recovery learned {} held by hash", counted(report.recovered, "tensor"),
                           report.recovered == 1 ? "is" : "are");
  return verdict;
}

namespace {

ValidateReport check_by_hashes(const fs::path& path, const ValidateOptions& options, Progress& progress) {
  const Checkpoint artifact = open_artifact(path, options.io);
  const Manifest manifest = read_manifest(path / kManifestName, artifact.tensors().size());
  ValidateReport report;
  for (const TensorInfo& t : artifact.tensors()) progress.total += t.bytes();
  progress.phase = "hashing";
  if (!manifest.integrity_error.empty()) differ(report, "manifest", kManifestName, manifest.integrity_error);
  check_names(artifact, manifest, report);
  check_listed_files(artifact, manifest, report);
  check_hashes(artifact, manifest, progress, report);
  check_engines(artifact, nullptr, report);
  if (options.device == Device::cuda) {
    progress.phase = "running layers";
    check_layers_on_cuda(artifact, options, report);
  }
  return report;
}

ValidateReport check_by_source(const fs::path& path, const fs::path& source_path,
                               const ValidateOptions& options, Progress& progress) {
  const Checkpoint artifact = open_artifact(path, options.io);
  Manifest manifest = read_manifest(path / kManifestName, artifact.tensors().size());
  open_masks(manifest.recipe, options.masks);
  manifest.recipe.links = Links::kFollowed;  // nothing is written, and the conversion followed the user's
                                             // choice
  const bool is_solved = std::any_of(manifest.recipe.rules.begin(), manifest.recipe.rules.end(),
                                     [](const Rule& rule) { return !rule.statistics_hash.empty(); });
  if (is_solved && options.statistics.empty()) {
    ValidateReport report = check_by_hashes(path, options, progress);
    progress.phase = "comparing";
    check_recovered(artifact, Checkpoint::open(source_path, options.io), manifest, report);
    check_unsolved(path, source_path, manifest, options.io, progress, report);
    return report;
  }
  open_statistics(manifest.recipe, options.statistics);
  ValidateReport report;
  const Edit::Kind edit = manifest.recipe.edit.kind;
  if (edit != Edit::Kind::kGraft && edit != Edit::Kind::kRepair && !options.donor.empty()) {
    throw Error(
        fmt::format("{}: expected no {}, because neither graft nor repair wrote this artifact, found {}",
                    path.string(), options::kDonor, options.donor.string()));
  }
  if (manifest.recipe.edit) {
    check_names(artifact, manifest, report);
    check_listed_files(artifact, manifest, report);
    validate_edit(artifact, manifest, source_path, options, progress, report);
    return report;
  }
  const Checkpoint original =
      open_source(source_path, ReadPath::kReference, {}, options.io, manifest.recipe.zero_points);
  // All tensors are derived as they were before recovery tuned some of them.
  const auto before = check_recovered(artifact, original, manifest, report);
  const auto open_derived = [&] {
    Checkpoint stored = Checkpoint::open(path, options.io);
    return before ? with_substituted(std::move(stored), before) : std::move(stored);
  };
  const Checkpoint derived = open_derived();
  SolvedGroupProofs solved(path, open_derived, options.all_rows, progress);
  const Checkpoint source =
      open_quantized(
          open_source(source_path, ReadPath::kReference, {}, options.io, manifest.recipe.zero_points),
          manifest.recipe, expected_rows([&](const Checkpoint& from, const QuantizedGroup& group) {
            return solved.prove(from, group);
          }))
          .shown;
  const Plan plan = make_plan(source, manifest.recipe);
  progress.total = 2 * plan.data_bytes + plan.read_bytes;
  progress.phase = "hashing";
  check_names(artifact, manifest, report);
  check_listed_files(artifact, manifest, report);
  check_files(artifact, source, plan, manifest, report);
  check_hashes(artifact, manifest, progress, report);
  if (!check_tensors(artifact, plan, report)) return report;
  account_for_source(source, plan, report);

  progress.phase = "deriving";
  const bool on_device = options.device == Device::cuda;
  std::map<uint32_t, Json> results =
      prove_all(derived, source, plan, on_device, options.all_rows, progress, report);
  add_found(solved.findings(), report);
  if (on_device) check_dequantized_on_cuda(derived, source, plan, report);
  if (report.differences.empty()) {
    check_manifest(artifact, source, plan, manifest, std::move(results), progress, report);
  }
  check_values(derived, source, plan, options, progress, report);
  check_engines(artifact, &source, report);
  progress.phase = "running layers";
  if (options.tokens > 0) check_layers(derived, source, plan, original, options, report);
  if (options.device == Device::cuda) check_layers_on_cuda(artifact, options, report);
  return report;
}

/// Calls check(). Throws Error if one of the files changed during the call, since the report would mix two
/// states.
template <class Check>
ValidateReport check_one_state(std::vector<fs::path> files, Check&& check) {
  const Stopwatch watch;
  const FileStates states(std::move(files));
  ValidateReport report = check();
  states.check_unchanged();
  report.seconds = watch.seconds();
  return report;
}

}  // namespace

ValidateReport validate(const fs::path& path, const ValidateOptions& options, Progress& progress) {
  return check_one_state({path}, [&] { return check_by_hashes(path, options, progress); });
}

ValidateReport validate(const fs::path& path, const fs::path& source, const ValidateOptions& options,
                        Progress& progress) {
  return check_one_state({path, source, options.donor, options.statistics, options.masks},
                         [&] { return check_by_source(path, source, options, progress); });
}

}  // namespace twofour
