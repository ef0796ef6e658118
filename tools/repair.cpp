#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "formats/error.h"
#include "lib/jobs/convert/resume.h"
#include "lib/lint/lint.h"
#include "lib/lint/rules/levels.h"
#include "lib/lint/weights/written_weights.h"
#include "lib/recipe/selection/input_scales.h"
#include "lib/recipe/settings/values.h"
#include "lib/repair/open_repaired.h"
#include "lib/write/output/destination.h"
#include "tools/cli/arguments.h"
#include "tools/cli/conversion_options.h"
#include "tools/cli/lint_options.h"
#include "tools/cli/option_values.h"
#include "tools/cli/source_options.h"
#include "tools/text/lint_text.h"
#include "tools/text/mend_text.h"

namespace twofour {
namespace {

struct RepairArguments {
  ConversionOptions common;
  std::string donor, fold, input_scale, profile;
  std::vector<std::string> only;
};

RepairSettings settings_of(const RepairArguments& o) {
  RepairSettings settings;
  check_lint_globs("--only", o.only);
  for (const std::string& glob : o.only) {
    for (const size_t rule : matching_rules(glob)) settings.only.insert(lint_rules()[rule].id);
  }
  settings.folds = !o.fold.empty();
  if (o.input_scale.empty()) return settings;
  InputScale scale;
  scale = o.input_scale;
  using Kind = InputScale::Kind;
  if (scale.kind() == Kind::kNeighbours) return settings;
  if (scale.kind() == Kind::kConstant) {
    settings.input_scale = o.input_scale;
    return settings;
  }
  if (scale.kind() != Kind::kFile || scale.file().empty()) {
    throw Error(fmt::format("--input-scale: expected neighbours, constant=X or 'from FILE', found '{}'",
                            o.input_scale));
  }
  check_inputs_apart(o.common.destination, {{"--input-scale", scale.file()}});
  settings.input_scale = "given";
  for (const auto& one : read_amax_file(scale.file()).scales) settings.amax[one.name] = one.bits;
  return settings;
}

/// The severities of findings that are left.
LintLevels levels_for(const RepairArguments& o, const RepairSettings& settings) {
  return levels_of({o.profile, {}, {settings.only.begin(), settings.only.end()}, {}});
}

/// The findings that a dry run expects after the repair: findings in the result's headers and small scales,
/// in files that no mend writes, and findings that no mend can remove.
LintReport expected_report(const Repaired& repaired, const LintLevels& levels) {
  LintReport report = lint_outline(repaired.checkpoint, levels);
  std::set<std::string> rules, files;
  for (const MendRecord& m : repaired.mends) {
    rules.insert(m.rules.begin(), m.rules.end());
    files.insert(m.files.begin(), m.files.end());
  }
  const auto is_listed = [&](const LintFinding& f) {
    return std::any_of(report.findings.begin(), report.findings.end(), [&](const LintFinding& other) {
      return other.rule == f.rule && other.file == f.file && other.name == f.name;
    });
  };
  std::erase_if(report.findings, [&](const LintFinding& f) {
    return files.contains(f.file) && f.file != "config.json" && f.file != "hf_quant_config.json";
  });
  for (const LintFinding& f : repaired.found) {
    const std::string id = lint_rules()[f.rule].id;
    const auto level = levels.find(id);
    if (level == levels.end() ? lint_rules()[f.rule].opt_in : !level->second) continue;
    const bool is_config = f.file == "config.json" || f.file == "hf_quant_config.json";
    const bool is_of_files = f.file.ends_with(".json") || f.file.ends_with(".jinja") || f.name.empty();
    if (rules.contains(id) || files.contains(f.file) || is_config || !is_of_files || is_listed(f)) continue;
    report.findings.push_back(f);
    report.findings.back().severity = level != levels.end() && level->second ? *level->second : f.severity;
  }
  std::stable_sort(report.findings.begin(), report.findings.end(),
                   [](const LintFinding& a, const LintFinding& b) { return a.rule < b.rule; });
  return report;
}

/// The number of findings that a donor would mend. Notes do not count.
size_t count_for_donors(const LintReport& left) {
  return static_cast<size_t>(
      std::count_if(left.findings.begin(), left.findings.end(), [](const LintFinding& f) {
        return f.severity != Severity::kNote && lint_rules()[f.rule].mended == Mended::kDonor;
      }));
}

/// The findings of unmended files that no lint of the result can show.
bool lost_something(const Repaired& repaired) {
  return std::any_of(repaired.unmended.begin(), repaired.unmended.end(), [](const Finding& f) {
    return f.id == "missing-shard" || f.id == "index-stale-tensor";
  });
}

/// What became of the checkpoint, in words.
const char* outcome_of(const Repaired& repaired, const LintReport& left, bool is_mended) {
  const bool is_whole =
      is_mended && std::none_of(repaired.unmended.begin(), repaired.unmended.end(),
                                [](const Finding& f) { return f.severity != Severity::kNote; });
  if (!repaired.mends.empty()) return is_whole ? "mended" : "mended in part";
  return is_whole && !left.failed() ? "nothing to mend" : "nothing that can be mended";
}

Json left_json(const LintReport& left) {
  Json findings = Json::array();
  for (const LintFinding& f : left.findings) {
    findings.push_back({{"severity", severity_name(f.severity)},
                        {"rule", lint_rules()[f.rule].id},
                        {"where", f.where()},
                        {"message", f.message}});
  }
  return findings;
}

/// Lints what was written. Throws Error if a file differs from twofour.json. The directory may still have the
/// journal of its run.
LintReport read_back(const std::string& out, const WrittenWeights& written, LintLevels levels, int jobs,
                     Progress& progress) {
  // A written checkpoint has none of these faults.
  constexpr std::string_view kUnlike[] = {"manifest-hash", "bad-manifest", "bad-header",     "file-size",
                                          "data-holes",    "bad-index",    "unreadable-file"};
  for (const std::string_view rule : kUnlike) levels[std::string(rule)] = Severity::kError;
  levels["unfinished-output"] = std::nullopt;
  const uint64_t before = progress.done;
  LintReport report = lint(out, {.jobs = jobs, .levels = levels, .written = &written}, progress);
  report.bytes -= before;
  for (const LintFinding& f : report.findings) {
    if (std::ranges::find(kUnlike, lint_rules()[f.rule].id) != std::end(kUnlike))
      throw Error(fmt::format("{}: {}, when read back", (std::filesystem::path(out) / f.where()).string(),
                              f.message));
  }
  return report;
}

/// Writes the repaired checkpoint, reads it back and checks it into `left`. Prints the conversion, or returns
/// it as a document.
Json write_repaired(const ConversionOptions& o, const Repaired& repaired, Recipe recipe,
                    const LintLevels& levels, const Destination& destination, LintReport& left,
                    const Common& common) {
  recipe.links = parse_links(o.follow_links);
  recipe.readme = parse_readme(o.no_readme);
  if (o.resume) take_absent_settings(o.destination, recipe);
  const Plan plan = make_plan(repaired.checkpoint, recipe);
  ConvertResult result;
  ConvertOptions options = convert_options(o, Device::cpu, common);
  WrittenWeights written(repaired.checkpoint);
  options.written = &written;
  bool is_linted = false;
  const auto lint_output = [&](Progress& progress) {
    left = read_back(o.destination, written, levels, common.jobs, progress);
    is_linted = true;
  };
  options.before_end = lint_output;
  with_progress(common, [&](Progress& progress) {
    if (o.opened != nullptr) o.opened->download_whole_files(&progress);
    result = convert(repaired.checkpoint, plan, destination, options, progress);
  });
  if (!is_linted) with_progress(common, lint_output);
  left.bytes += result.bytes_verified;
  result.bytes_verified = left.bytes;
  if (!common.json) {
    print_conversion(o, plan, result, Device::cpu, common);
    return nullptr;
  }
  return {{"files", plan.files.size()},
          {"files_kept", result.files_kept},
          {"tensors", plan.tensors.size()},
          {"bytes_read", result.bytes_read},
          {"bytes_written", result.bytes_written},
          {"bytes_verified", result.bytes_verified},
          {"seconds", result.seconds},
          {"findings", findings_to_json(result.findings)}};
}

int run_repair(const RepairArguments& given, const Common& common) {
  RepairArguments all = given;
  ConversionOptions& o = all.common;
  const bool is_read = is_remote_address(o.source) && !o.dry_run;
  const auto cache = is_read ? std::optional(cache_of(o.remote)) : std::nullopt;
  if (cache) check_apart_from_cache(o.destination, cache->folder);
  refuse_remote(all.donor, "a donor is read from a directory");
  RemoteSource remote(o.source, cache);
  o.opened = &remote;
  o.source = remote.path().string();
  const RepairSettings settings = settings_of(all);
  const LintLevels levels = levels_for(all, settings);
  const Destination destination = claim_destination(o);
  if (!all.donor.empty()) check_apart_from_kept(o.destination, all.donor);
  if (cache) remote.download_whole_files();
  const Recipe recipe(Edit{.kind = Edit::Kind::kRepair, .repair = settings},
                      parse_size_option("--max-shard-size", o.max_shard_size));
  const Repaired repaired = open_repaired(o.source, all.donor, settings, parse_io(o.io));

  Json document = {{"mends", Json::array()}, {"unmended", findings_to_json(repaired.unmended)}};
  for (const MendRecord& m : repaired.mends) document["mends"].push_back(mend_json(m));
  if (!common.json && !common.quiet) {
    for (const MendRecord& m : repaired.mends) print_stdout("{}", Lines{mend_text(m)});
  }
  print_findings(common, repaired.unmended);

  LintReport left;
  std::string subject = o.source;
  const bool writes = !repaired.mends.empty() && !o.dry_run;
  if (writes) {
    const Json written = write_repaired(o, repaired, recipe, levels, destination, left, common);
    if (common.json) document["written"] = written;
  }
  if (writes) {
    subject = o.destination;
  } else if (repaired.mends.empty() && !is_remote_address(given.common.source)) {
    with_progress(common, [&](Progress& progress) {
      left = lint(subject, {.jobs = common.jobs, .levels = levels}, progress);
    });
  } else {
    left = expected_report(repaired, levels);
  }
  remote.remove_downloads();
  const bool is_mended = !left.failed() && !lost_something(repaired);
  document["left"] = left_json(left);
  document["mended"] = is_mended;
  const std::string outcome = outcome_of(repaired, left, is_mended);
  document["outcome"] = outcome;
  if (common.json) {
    print_json(document);
  } else if (!common.quiet) {
    const size_t waiting = given.donor.empty() ? count_for_donors(left) : 0;
    if (waiting > 0) {
      print_stdout("{}: {}; {} {} --donor, a checkpoint of the same model\n", o.source,
                   repaired.mends.empty() ? "nothing mended" : "not all mended", counted(waiting, "finding"),
                   waiting == 1 ? "needs" : "need");
    }
    const bool is_read_whole = repaired.mends.empty() && !is_remote_address(given.common.source);
    print_lint_report(common, left, subject,
                      writes          ? "read again"
                      : is_read_whole ? "all bytes read"
                                      : "as far as headers show");
    if (repaired.mends.empty()) {
      print_stdout("{}: nothing written to {}\n", outcome, o.destination);
    } else if (o.dry_run) {
      print_stdout("dry run: nothing written to {}\n", o.destination);
    }
  }
  return is_mended ? kDone : kFound;
}

}  // namespace

std::function<int()> setup_repair(Arguments& args, const Common& common) {
  auto o = std::make_shared<RepairArguments>();
  std::vector<std::string> mended;
  for (const LintRule& rule : lint_rules()) {
    if (rule.mended != Mended::kNo) mended.emplace_back(rule.id);
  }
  args.option("SRC", o->common.source, or_url("Hugging Face checkpoint directory")).required();
  args.option("OUT", o->common.destination, "Directory to write; absent or empty").required();
  args.option("--donor", o->donor,
              "Checkpoint of the same model that gives lost or broken modules, tokenizers and configs")
      .value_name("PATH");
  args.option("--only", o->only, "Mend only findings of these rules: ids or globs")
      .value_name("RULE")
      .suggest(mended)
      .default_text("all rules")
      .separated_by(',');
  args.option("--fold", o->fold, "Give fused linears the larger of unequal global scales, at a stated loss")
      .one_of({"larger"})
      .default_text("none is folded");
  args.option("--input-scale", o->input_scale,
              "Scales for linears without a valid one: of neighbours or the donor, constant=X "
              "(1.0 is an amax of 2688), or 'from FILE' with M.amax of each module")
      .value_name("WHICH")
      .default_text("neighbours");
  std::vector<std::string> profiles;
  for (const LintProfile& profile : lint_profiles()) profiles.push_back(profile.name);
  args.option("--profile", o->profile, "Severities of what is left, as of lint")
      .one_of(profiles)
      .default_text("those of the rules");
  o->common.max_shard_size = "5GB";
  add_shard_size_option(args, o->common.max_shard_size);
  add_writing_options(args, o->common, false, true);
  args.footer(
      "twofour lint --explain RULE says whether findings of a rule are mended. The order of mends is fixed, "
      "and each is applied whole or not. Exit code 1 where OUT keeps a warning or error. Where nothing is "
      "mended, nothing is written.\n"
      "twofour validate OUT --source SRC [--donor PATH] proves the result.");
  return [o, &common] { return run_repair(*o, common); };
}

}  // namespace twofour
