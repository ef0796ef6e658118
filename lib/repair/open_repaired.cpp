#include "lib/repair/open_repaired.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/hash.h"
#include "lib/graft/open_edited.h"
#include "lib/lint/family/family.h"
#include "lib/lint/lint.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/source/checkpoint/weight_header.h"
#include "lib/source/linears/weight_terms.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

/// Rules whose findings leave a checkpoint that cannot be read.
constexpr std::string_view kUnreadable[] = {"unfinished-output", "not-downloaded", "unfinished-download",
                                            "unreadable-file",   "bad-header",     "file-size",
                                            "data-holes",        "unknown-layout"};

/// Those of a weight file whose tensors a donor may have.
constexpr std::string_view kBroken[] = {"not-downloaded", "bad-header", "file-size", "data-holes"};

bool is_of_broken_file(const LintFinding& f, const RepairSettings& settings) {
  const std::string rule = lint_rules()[f.rule].id;
  return std::ranges::find(kBroken, rule) != std::end(kBroken) && f.file.ends_with(".safetensors") &&
         (settings.only.empty() || settings.only.contains(rule));
}

/// Adds the findings of what cannot be read to `problems`, and the weight files whose tensors come from a
/// donor to `broken`.
void sort_unreadable(const fs::path& path, const std::vector<LintFinding>& findings, bool has_donor,
                     const RepairSettings& settings, Problems& problems, std::set<std::string>& broken) {
  for (const LintFinding& f : findings) {
    sort_unreadable(path, f.consequences, has_donor, settings, problems, broken);
    const std::string_view rule = lint_rules()[f.rule].id;
    const bool is_config = f.file.ends_with(".json");
    if (std::ranges::find(kUnreadable, rule) == std::end(kUnreadable) || is_config) continue;
    if (has_donor && is_of_broken_file(f, settings)) {
      broken.insert(f.file);
    } else {
      problems.add("{}: {} ({}): it is beyond repair; {}", (path / f.where()).string(), f.message, rule,
                   lint_rules()[f.rule].fix);
    }
  }
}

/// Throws Error if tensors cannot be read, which no mend can change. Returns the weight files whose tensors
/// come from the donor.
std::set<std::string> refuse_unreadable(const fs::path& path, const LintReport& report, bool has_donor,
                                        const RepairSettings& settings) {
  std::set<std::string> broken;
  Problems problems;
  sort_unreadable(path, report.findings, has_donor, settings, problems, broken);
  problems.refuse();
  return broken;
}

/// Throws Error if tensors of files that cannot be read are in no other file and not in the donor.
void refuse_lost(const Repair& r, const std::vector<MendRecord>& mends) {
  if (r.broken.empty()) return;
  const auto is_there = [&](const std::string& name) {
    return std::any_of(r.edited.tensors.begin(), r.edited.tensors.end(), [&](const EditedTensor& t) {
      return t.info.name == name || t.info.name == unwrapped(name);
    });
  };
  const auto lost = std::find_if_not(r.lost.begin(), r.lost.end(), is_there);
  const auto taken =
      std::find_if(mends.begin(), mends.end(), [](const MendRecord& m) { return m.mend == "donor-tensors"; });
  const std::string& file = *r.broken.begin();
  if (lost == r.lost.end() && taken != mends.end() && taken->files.contains(file)) return;
  throw Error(fmt::format("{}; expected its tensors in {}, found {}",
                          fault_of_weight_file(r.source.path() / file), r.donor->path().string(),
                          lost == r.lost.end() ? "none that the checkpoint lacks" : "no " + *lost));
}

LintReport lint_by_headers(const fs::path& path) {
  LintOptions options{.headers_only = true};
  // A rule that is off by default: a donor may have the template.
  options.levels["no-chat-template"] = Severity::kNote;
  Progress progress;
  return lint(path, options, progress);
}

/// The hash of the donor's headers and of the files that were taken from it.
std::string donor_hash(const Repair& r, const std::vector<MendRecord>& mends) {
  Hasher hasher;
  std::vector<std::string> lines;
  for (const Shard& s : r.donor->shards())
    lines.push_back(fmt::format("{} {}\n", s.name, s.header_hash.hex()));
  std::sort(lines.begin(), lines.end());
  for (const std::string& line : lines) hasher.update(line);
  for (const MendRecord& mend : mends) {
    if (mend.mend != "donor-files") continue;
    for (const std::string& name : mend.files) {
      const auto at = r.edited.texts.find(name);
      if (at != r.edited.texts.end())
        hasher.update(fmt::format("{} {}\n", name, hash_text(at->second).hex()));
    }
  }
  return hasher.digest().hex();
}

/// The texts of configs that could not be read stay as they are, unless a mend wrote them.
void keep_unreadable_texts(const Checkpoint& source, const LooseFiles& loose, Edited& edited) {
  for (const char* name : kConfigNames) {
    const Json& now = name == kConfigNames[0] ? edited.config : edited.hf_quant;
    if (loose.unreadable.contains(name) && now.is_null() && !edited.texts.contains(name))
      edited.texts[name] = read_text(source.open_again(name));
  }
}

}  // namespace

const std::vector<Mend>& mends() {
  static const std::vector<Mend> all = {
      {"files",
       {"duplicate-tensor", "leftover-file", "missing-shard", "bad-index", "no-index", "index-stale-tensor",
        "index-wrong-file", "index-incomplete", "index-total-size"},
       mend_files},
      {"donor-files",
       {"no-tokenizer", "bad-tokenizer", "tokenizer-size", "token-ids", "missing-token", "tokenizer-steps",
        "token-flags", "bad-chat-template", "template-gap", "two-chat-templates", "no-chat-template",
        "no-config", "bad-config", "missing-sidecar", "not-downloaded"},
       mend_from_donor_files},
      {"names", {"name-prefix"}, mend_names},
      {"sizes",
       {"config-shape", "padded-vocabulary", "layers-extra", "config-switch", "experts-extra",
        "layers-missing", "layer-kind", "odd-setting", "impossible-setting"},
       mend_sizes},
      {"donor-tensors",
       {"incomplete-module", "module-shape", "tensor-type", "gate-up-shape", "experts-missing",
        "expert-shape", "layers-missing", "mtp-missing", "tensor-missing", "head-missing", "quantized-router",
        "quantized-head", "bad-global-scale", "not-downloaded", "bad-header", "file-size", "data-holes"},
       mend_from_donor_tensors},
      {"donor-bytes",
       {"not-finite",        "bad-block-scale", "mxfp4-nan-scale", "zero-scale",          "saturated-scales",
        "subnormal-scales",  "amax-mismatch",   "zero-weights",    "implausible-weights", "expert-outlier",
        "layer-outlier",     "odd-region",      "outlier-weight",  "uneven-parts",        "cut-off-weights",
        "identical-weights", "odd-codes",       "odd-numbers",     "zero-regions",        "repeated-rows",
        "scale-order"},
       mend_from_donor_bytes},
      {"generation", {"odd-setting", "impossible-setting"}, mend_generation},
      {"reciprocals", {"suspicious-scale"}, mend_reciprocals},
      {"fold", {"unequal-global-scales"}, mend_folds},
      {"input-scales", {"missing-input-scale", "unequal-input-scales", "bad-input-scale"}, mend_input_scales},
      {"kv-scales", {"bad-input-scale", "missing-kv-scale"}, mend_cache_scales},
      {"quantization",
       {"no-quantization-config", "config-disagrees", "config-dtype", "config-format", "config-inputs",
        "config-cache", "engine-lookup", "config-group-size", "unquantized-not-ignored", "unused-pattern",
        "unreadable-pattern", "missing-input-scale", "bad-config"},
       mend_quantization}};
  return all;
}

Repaired open_repaired(const fs::path& path, const fs::path& donor_path, const RepairSettings& settings,
                       Io io) {
  if (find_unfinished(path) != nullptr) Checkpoint::open(path);  // the Error states the remedy
  const LintReport report = lint_by_headers(path);
  const std::set<std::string> broken = refuse_unreadable(path, report, !donor_path.empty(), settings);
  LooseFiles loose;
  loose.unreadable = broken;
  Checkpoint source = Checkpoint::open_loosely(path, io, loose);
  if (holds_layout(source)) {
    throw Error(
        fmt::format("{}: expected a checkpoint, found an artifact in a layout; repair the checkpoint "
                    "that it was made from and convert that",
                    path.string()));
  }
  refuse_described_codes(source);
  std::optional<Checkpoint> donor;
  if (!donor_path.empty()) donor = open_editable(donor_path, io);
  Repair repair(source, loose, donor ? &*donor : nullptr, settings, report);
  repair.broken = broken;
  repair.lost = lost_tensors(repair.source, loose.index);
  std::vector<MendRecord> done;
  for (const Mend& mend : mends()) {
    // Files are always decided, since all tensors are written once.
    const bool is_wanted =
        mend.apply == mend_files ||
        std::any_of(mend.rules.begin(), mend.rules.end(), [&](auto rule) { return repair.wants(rule); });
    MendRecord record;
    record.mend = mend.name;
    if (is_wanted && mend.apply(repair, record)) done.push_back(std::move(record));
  }
  if (std::all_of(done.begin(), done.end(), [](const MendRecord& m) { return m.rules.empty(); }))
    done.clear();
  refuse_lost(repair, done);
  Json note = {{"mends", Json::array()}};
  for (const MendRecord& record : done) note["mends"].push_back(mend_to_json(record));
  const bool takes =
      std::any_of(done.begin(), done.end(), [](const MendRecord& m) { return m.takes_from_donor; });
  if (takes) note["donor"] = {{"fingerprint", donor_hash(repair, done)}};
  const size_t own = source.shards().size();
  const bool takes_tensors = std::any_of(repair.edited.tensors.begin(), repair.edited.tensors.end(),
                                         [&](const EditedTensor& t) { return t.shard >= own; });
  Edited edited = std::move(repair.edited);
  edited.note = std::move(note);
  keep_unreadable_texts(source, loose, edited);
  Findings unmended = std::move(repair.unmended);
  if (!takes_tensors) donor.reset();
  return {view_of(std::move(source), std::move(donor), std::move(edited)), std::move(done),
          std::move(unmended), report.findings};
}

}  // namespace twofour
