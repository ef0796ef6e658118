#include "tools/cli/conversion_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "lib/jobs/convert/convert.h"
#include "lib/jobs/convert/resume.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/recipe/selection/input_scales.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/output/destination.h"
#include "lib/write/transform/open_to_convert.h"
#include "tools/cli/arguments.h"
#include "tools/cli/option_values.h"
#include "tools/cli/source_options.h"
#include "tools/text/figures_text.h"
#include "tools/text/plan_text.h"

namespace twofour {

std::string weights_text(const ConvertResult& r, bool verbose) {
  std::string text = encoded_text(r.modules, verbose);
  std::optional<Quality> all;
  for (const ModuleReport& m : r.modules) {
    if (m.quality) (all ? *all : all.emplace()) += *m.quality;
  }
  return all ? text + fmt::format("weights: {}\n", quality_text(*all)) : text;
}

Json result_to_json(const Plan& plan, const ConvertResult& r, Device device) {
  Json modules = Json::array();
  for (const ModuleReport& m : r.modules) {
    Json module = {{"name", m.name}, {"shape", {m.shape.e, m.shape.n, m.shape.k}}};
    if (m.quality) module["quality"] = quality_to_json(*m.quality);
    if (m.encoded) module.update(encoded_to_json(m));
    modules.push_back(std::move(module));
  }
  Json json = {{"layout", plan.recipe.what()},
               {"device", device_name(device)},
               {"was_complete", r.was_complete},
               {"files_kept", r.files_kept},
               {"bytes_kept", r.bytes_kept},
               {"bytes_read", r.bytes_read},
               {"bytes_written", r.bytes_written},
               {"bytes_verified", r.bytes_verified},
               {"seconds", r.seconds},
               {"files", plan.files.size()},
               {"tensors", plan.tensors.size()},
               {"modules", modules},
               {"findings", findings_to_json(r.findings)}};
  if (const auto& recovery = plan.recipe.recovery) {
    json["recovery"] = {{"passes", recovery->passes},      {"kept_pass", recovery->kept},
                        {"tokens", recovery->tokens},      {"held_out_tokens", recovery->held_out},
                        {"loss_before", recovery->before}, {"loss_after", recovery->after},
                        {"device", recovery->device},      {"tensors", recovery->tuned.size()}};
  }
  return json;
}

void add_source_and_selection(Arguments& args, ConversionOptions& o, bool takes_urls) {
  const std::string source = "Hugging Face checkpoint directory";
  const ArgumentGroup group(args, "Choosing modules");
  args.option("SRC", o.source, takes_urls ? or_url(source) : source).required().as_checkpoint();
  args.option("DST", o.destination, "Directory to write; absent or empty").required();
  args.option("--include", o.include, "Convert only these modules: name, glob or re:regex")
      .value_name("PATTERN");
  args.option("--exclude", o.exclude, "Leave these modules as they are").value_name("PATTERN");
  args.option("--also", o.also, "Convert these modules too: shared experts, single linears")
      .value_name("PATTERN");
  add_shard_size_option(args, o.max_shard_size).default_text("5GB");
  add_zero_points_option(args, o.zero_points, "of SRC");
}

void add_readme_option(Arguments& args, bool& no_readme) {
  const ArgumentGroup group(args, "Writing");
  args.flag("--no-readme", no_readme,
            "Write no README.md about the output (TWOFOUR.md beside its author's README.md)");
}

void add_io_option(Arguments& args, std::string& io) {
  const ArgumentGroup group(args, "Writing");
  args.option(
          "--io", io,
          "How files are read and written. buffered: through the page cache, evicting only the pages that "
          "this run added. direct: past the page cache (O_DIRECT) where the file system supports it, with as "
          "many requests in flight as --jobs")
      .one_of({"buffered", "direct"});
}

void add_links_option(Arguments& args, bool& follow_links) {
  const ArgumentGroup group(args, "Writing");
  args.flag(
      "--follow-links", follow_links,
      "Copy files that links lead to outside of the checkpoint, too. Otherwise such links are refused: they "
      "could lead to a secret, and outputs are published");
}

void add_config_option(Arguments& args, bool& without_config) {
  const ArgumentGroup group(args, "Writing");
  args.flag("--without-config", without_config,
            "Take weights without config.json, too, which no engine loads");
}

void check_config(const Checkpoint& source, const ConversionOptions& o) {
  if (o.without_config || !source.config().is_null()) return;
  throw Error(fmt::format(
      "{}: expected config.json beside the weights, without which no engine loads what is written, found {}; "
      "--without-config goes on without it",
      o.source, source.is_directory() ? "none" : "a single file; take its directory"));
}

void take_whole_directory(ConversionOptions& o, const Common& common) {
  const auto directory = directory_of_lone_shard(o.source);
  if (!directory) return;
  if (!common.json && !common.quiet)
    print_stderr("{}: the only weight file there: taken with config.json and all other files beside it\n",
                 o.source);
  o.source = directory->string();
}

Links parse_links(bool follow_links) { return follow_links ? Links::kFollowed : Links::kInside; }

Readme parse_readme(bool no_readme) { return no_readme ? Readme::kLeftOut : Readme::kWritten; }

Io parse_io(const std::string& io) { return io == "direct" ? Io::kDirect : Io::kBuffered; }

void add_conversion_options(Arguments& args, ConversionOptions& o, bool takes_urls) {
  add_source_and_selection(args, o, takes_urls);
  add_writing_options(args, o, true, takes_urls);
}

void add_writing_options(Arguments& args, ConversionOptions& o, bool with_check, bool takes_urls) {
  const ArgumentGroup group(args, "Writing");
  args.flag("--dry-run", o.dry_run, "Show what would be written, write nothing");
  args.flag("--no-verify", o.no_verify, "Do not read back what was written");
  if (with_check) {
    args.flag("--check", o.check,
              "If SRC is an artifact, first compare every tensor with the hashes in its twofour.json");
  }
  if (takes_urls) add_cache_options(args, o.remote);
  add_links_option(args, o.follow_links);
  add_readme_option(args, o.no_readme);
  add_io_option(args, o.io);
  const std::string to = with_check ? "DST" : "OUT";
  args.flag("--force", o.force, "Replace " + to + " if twofour wrote it");
  args.flag("--resume", o.resume,
            "Continue a run into " + to +
                " that was interrupted, killed or failed: keep the finished weight files "
                "that match their hashes and write the rest again. A complete " +
                to + " is verified")
      .excludes("--force");
  args.footer(
      "A run that ends early keeps the weight files that it finished, and every command recognizes the "
      "directory as unfinished. A run that finished none, or that found a bad source, leaves nothing.");
}

namespace {

Recipe recipe_as_given(const RecipeOptions& options, const ConversionOptions& o) {
  Recipe recipe = options.recipe.empty() ? Recipe(make_rule(options)) : open_recipe(options);
  if (options.recipe.empty()) {
    Selection& selection = recipe.rules[0].selection;
    selection.include = parse_pattern_option("--include", o.include);
    selection.exclude = parse_pattern_option("--exclude", o.exclude);
    selection.also = parse_pattern_option("--also", o.also);
  }
  if (!o.max_shard_size.empty())
    recipe.max_shard_size = parse_size_option("--max-shard-size", o.max_shard_size);
  if (!o.zero_points.empty()) recipe.zero_points = parse_zero_points(o.zero_points);
  return recipe;
}

/// Reads the input scales of a rule from the file that the rule names.
void take_input_scales(Rule& rule, const std::string& destination) {
  using Kind = InputScale::Kind;
  const Kind kind = rule.input_scale.kind();
  const std::string name = rule.name(keys::kInputScale), file = rule.input_scale.file();
  if (kind == Kind::kGiven || (kind == Kind::kFile && file.empty()))
    throw Error(fmt::format("{}: expected from FILE, found '{}'", name, rule.input_scale.text()));
  if (kind != Kind::kFile) return;
  check_inputs_apart(destination, {{name, file}});
  rule.input_scales = read_amax_file(file);
  rule.input_scale = "given";
}

void print_recovery(const Recovery& r) {
  if (r.kept == 0) {
    print_stdout(
        "recovery: changed nothing, since the KL divergence of {} held-out tokens did not fall below "
        "{:.4g}\n",
        r.held_out, r.before);
    return;
  }
  print_stdout(
      "recovery: {} of norms and global scales, learned in {} of {} passes; KL divergence of {} held-out "
      "tokens {:.4g}, before {:.4g}\n",
      counted(r.tuned.size(), "tensor"), r.kept, r.passes, r.held_out, r.after, r.before);
}

void print_result(const ConversionOptions& o, const Plan& plan, const ConvertResult& r, Device device,
                  bool verbose) {
  if (r.was_complete) {
    print_stdout("{}: was complete; {} read and verified, {:.2f} GB/s\n", o.destination,
                 format_bytes(r.bytes_verified), static_cast<double>(r.bytes_verified) / 1e9 / r.seconds);
    return;
  }
  if (o.resume && r.files_kept > 0) {
    print_stdout("{}: kept {} of {}, {}\n", o.destination, r.files_kept,
                 counted(plan.files.size(), "weight file"), format_bytes(r.bytes_kept));
  } else if (o.resume) {
    print_stdout(
        "{}: began anew, because no weight file was finished before; smaller ones (--max-shard-size) let a "
        "later run keep more\n",
        o.destination);
  }
  print_stdout("{}: {} {} {}, {}, {} (from {})\n", o.destination,
               plan.recipe.edit ? counted(plan.tensors.size(), "tensor")
                                : counted(r.modules.size(), "matrix", "matrices"),
               plan.recipe.edit ? "after" : "in", plan.summary, counted(plan.files.size(), "file"),
               format_bytes(r.bytes_written + r.bytes_kept), format_bytes(r.source_bytes));
  print_stdout("{}", Lines{weights_text(r, verbose)});
  if (plan.recipe.recovery) print_recovery(*plan.recipe.recovery);
  print_stdout("{}", Lines{speed_text(device, r.seconds, r.bytes_read, r.bytes_written, !o.no_verify)});
}

}  // namespace

Recipe make_recipe(const RecipeOptions& options, const ConversionOptions& o) {
  check_inputs_apart(
      o.destination,
      {{"--stats", options.statistics}, {"--mask", options.mask}, {"--recipe", options.recipe}});
  Recipe recipe = recipe_as_given(options, o);
  for (Rule& rule : recipe.rules) take_input_scales(rule, o.destination);
  recipe.links = parse_links(o.follow_links);
  if (options.recipe.empty() || o.no_readme) recipe.readme = parse_readme(o.no_readme);
  if (o.resume) take_absent_settings(o.destination, recipe);
  return recipe;
}

std::unique_ptr<const ReferenceCheckpoint> keep_global_scales(Recipe& recipe) {
  if (recipe.rules.empty() || recipe.rules[0].keep_global_scale.empty()) return nullptr;
  Rule& rule = recipe.rules[0];
  auto kept = std::make_unique<const ReferenceCheckpoint>(open_source(rule.keep_global_scale));
  rule.kept = kept->scales();
  rule.keep_global_scale.clear();
  return kept;
}

Compute solver_of(const Common& common, Device device) { return {best_isa(), device, common.jobs}; }

void check_inputs_apart(const std::string& destination, const std::vector<InputOption>& inputs) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path to = fs::weakly_canonical(fs::absolute(destination), error);
  if (!to.has_filename()) to = to.parent_path();
  for (const auto& [option, file] : inputs) {
    if (file.empty() || !fs::exists(fs::symlink_status(file, error))) continue;
    // A link in the directory would also be removed.
    const fs::path given = fs::absolute(file, error);
    if (is_within(fs::weakly_canonical(given, error), to) ||
        is_within(fs::weakly_canonical(given.parent_path(), error) / given.filename(), to)) {
      throw Error(fmt::format("{}: expected a file outside of {}, which is to be written, found {}", option,
                              destination, file));
    }
  }
}

Destination claim_destination(const ConversionOptions& o) {
  const Existing existing = o.resume ? Existing::kResume : o.force ? Existing::kReplace : Existing::kRefuse;
  return {o.destination, o.source, existing};
}

namespace {

/// Says what quantize does with a source that is quantized in part: it quantizes the rest.
void note_the_rest(const Checkpoint& source, const Plan& plan, const Common& common) {
  if (common.command != "quantize" || source.nvfp4_modules().empty()) return;
  size_t count = 0;
  std::string first;
  for (const auto* group : plan.transformations.of<QuantizedGroup>()) {
    for (const EncodedMatrix& m : group->matrices()) {
      if (count++ == 0) first = m.name;
    }
  }
  if (count == 0) return;
  print_findings(common, {{Severity::kWarning, "quantizes-the-rest", source.path().string(),
                           fmt::format("{} in NVFP4 already, which stay; {} in other formats, the first {}, "
                                       "become NVFP4 too; --exclude leaves them as they are",
                                       counted(source.nvfp4_modules().size(), "module"),
                                       counted(count, "matrix", "matrices"), first)}});
}

}  // namespace

int run_conversion(const ConversionOptions& given, const RecipeOptions& recipe_options,
                   const Common& common) {
  ConversionOptions o = given;
  take_whole_directory(o, common);
  const bool is_read = is_remote_address(given.source) && !given.dry_run;
  const auto cache = is_read ? std::optional(cache_of(given.remote)) : std::nullopt;
  if (cache) check_apart_from_cache(given.destination, cache->folder);
  RemoteSource remote(o.source, cache);
  o.opened = &remote;
  o.source = remote.path().string();
  const Device device = choose_solver_device(common, !recipe_options.statistics.empty());
  const bool has_budget = recipe_options.budget.is_given();
  if (has_budget) {
    remote.download_whole_files();
    check_budget(recipe_options);
  } else if (!recipe_options.html.empty()) {
    throw Error("--html: expected with --budget or --max-loss, found without");
  }
  Recipe recipe = make_recipe(recipe_options, o);
  if (const std::string kept_path = recipe_options.text(keys::kKeepGlobalScale); !kept_path.empty())
    check_apart_from_kept(o.destination, kept_path);
  const Destination destination = claim_destination(o);
  const Compute compute = solver_of(common, device);
  std::optional<FileStates> states;
  std::optional<BudgetChoice> choice;
  if (has_budget) {
    states.emplace(std::vector<std::filesystem::path>{o.source}).leave_out(recipe_options.html);
    choice = take_budget(o, recipe_options, device, common, recipe);
  }
  const Checkpoint source = open_to_convert(o.source, recipe, parse_io(o.io), limits_for(compute), compute);
  check_config(source, o);
  if (states) states->check_unchanged();
  const auto kept = keep_global_scales(recipe);
  Plan plan = make_plan(source, recipe, limits_for(compute));
  note_the_rest(source, plan, common);
  if (choice) {
    std::ranges::move(choice->warnings(), std::back_inserter(plan.findings));
    if (o.dry_run) return show_budget(source, plan, *choice, device, common);
    if (!common.json && !common.quiet) print_stdout("{}\n", budget_summary(*choice));
  }
  return write_checkpoint(destination, o, source, plan, kept.get(), common);
}

std::function<int()> add_conversion(Arguments& args, const Common& common, const char* to,
                                    RuleCommand command) {
  auto o = std::make_shared<std::pair<ConversionOptions, RecipeOptions>>();
  o->second.layout = to;
  add_conversion_options(args, o->first);
  add_config_option(args, o->first.without_config);
  add_recipe_options(args, o->second, command);
  add_statistics_options(args, o->second, command);
  add_mask_option(args, o->second, command);
  add_budget_options(args, o->second, command);
  return [o, &common] { return run_conversion(o->first, o->second, common); };
}

ConvertOptions convert_options(const ConversionOptions& o, Device device, const Common& common) {
  return {.jobs = common.jobs,
          .verify = !o.no_verify,
          .isa = best_isa(),
          .device = device,
          .io = parse_io(o.io),
          .inputs = o.inputs};
}

void check_hashes(const ConversionOptions& o, Progress& progress) {
  progress.phase = "checking";
  check_tensor_hashes(o.source, "", progress);
}

void print_conversion(const ConversionOptions& o, const Plan& plan, const ConvertResult& result,
                      Device device, const Common& common) {
  print_findings(common, result.findings);
  if (common.json) {
    print_json(result_to_json(plan, result, device));
  } else if (!common.quiet) {
    print_result(o, plan, result, device, common.verbose);
  }
}

int write_checkpoint(const Destination& destination, const ConversionOptions& o, const Checkpoint& source,
                     const Plan& plan, const ReferenceCheckpoint* kept, const Common& common) {
  const Device device = choose_solver_device(common, plan.solves);
  if (o.dry_run) {
    print_planned(o.destination, source, plan, device, common);
    return kDone;
  }
  ConvertOptions options = convert_options(o, device, common);
  options.kept = kept;
  ConvertResult result;
  with_progress(common, [&](Progress& progress) {
    if (o.opened != nullptr) o.opened->download_whole_files(&progress);
    if (o.check) check_hashes(o, progress);
    result = convert(source, plan, destination, options, progress);
  });
  if (o.opened != nullptr) o.opened->remove_downloads();
  print_conversion(o, plan, result, device, common);
  return kDone;
}

}  // namespace twofour
