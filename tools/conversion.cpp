#include "tools/cli/conversion_options.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/convert/convert.h"
#include "lib/output/output_directory.h"
#include "tools/encoded_text.h"
#include "tools/option_values.h"
#include "tools/cli/figures_text.h"

namespace twofour {
namespace {

/// How a tensor comes to be, in a word.
std::string decision(const Plan& plan, const OutputTensor& t) {
  if (t.kind == OutputTensor::Kind::kCopy) return "copy";
  if (t.kind == OutputTensor::Kind::kEncoded && t.part == static_cast<int>(EncodedPart::kBias)) return "copy";
  if (t.kind != OutputTensor::Kind::kDerived) return plan.recipe.layout;
  return t.op == Op::kBlockScales ? "copy" : plan.recipe.layout;
}

/// What a tensor comes from.
std::string origin(const Checkpoint& source, const Plan& plan, const OutputTensor& t) {
  const bool part = t.kind == OutputTensor::Kind::kPart || t.kind == OutputTensor::Kind::kGlobalScale;
  if (t.kind == OutputTensor::Kind::kEncoded) {
    return source.where(plan.weights[plan.matrices[t.source].module].weight);
  }
  return part ? plan.targets[t.source].block : source.where(t.source);
}

/// Why that is done with it.
std::string rule(const Plan& plan, const OutputTensor& t) {
  const bool part = t.kind == OutputTensor::Kind::kPart || t.kind == OutputTensor::Kind::kGlobalScale;
  if (part) return plan.targets[t.source].rule;
  if (t.kind == OutputTensor::Kind::kEncoded) return "belongs to a linear to encode";
  return t.module != OutputTensor::kNoModule ? "belongs to a module to convert" : "passes through";
}

Json plan_to_json(const Checkpoint& source, const Plan& plan, int jobs, Device device) {
  Json files = Json::array(), tensors = Json::array(), others = Json::array();
  uint64_t written = 0;
  for (const OutputFile& f : plan.files) {
    files.push_back({{"name", f.name}, {"bytes", f.size()}});
    written += f.size();
  }
  for (const PlannedFile& f : planned_files(source, plan)) {
    others.push_back({{"name", f.name}, {"bytes", f.bytes}, {"exact", f.exact}});
  }
  for (const OutputTensor& t : plan.tensors) {
    tensors.push_back({{"name", t.info.name},
                       {"dtype", dtype_name(t.info.dtype)},
                       {"shape", t.info.shape},
                       {"bytes", t.info.bytes()},
                       {"file", plan.files[t.file].name},
                       {"decision", decision(plan, t)},
                       {"rule", rule(plan, t)},
                       {"from", origin(source, plan, t)}});
  }
  return {{"dry_run", true},
          {"layout", plan.recipe.layout},
          {"device", device_name(device)},
          {"bytes_read", plan.read_bytes},
          {"bytes_written", written},
          {"workers", plan.workers(jobs, device)},
          {"peak_memory", plan.peak_memory(jobs, device)},
          {"files", files},
          {"other_files", others},
          {"tensors", tensors},
          {"findings", findings_to_json(plan.findings)}};
}

void print_plan(const Checkpoint& source, const Plan& plan, int jobs, Device device) {
  size_t copied = 0;
  uint64_t copied_bytes = 0;
  for (const OutputTensor& t : plan.tensors) {
    const bool copy = decision(plan, t) == "copy";
    copied += copy;
    copied_bytes += copy ? t.info.bytes() : 0;
    if (!copy)
      put("{:<10} {}  {}  {}\n", plan.recipe.layout, t.info.name, describe(t.info.dtype, t.info.shape),
          format_bytes(t.info.bytes()));
  }
  for (const OutputTensor& t : plan.tensors) {
    if (decision(plan, t) == "copy")
      put("{:<10} {}\n", "copy",
          t.kind == OutputTensor::Kind::kEncoded ? t.info.name : source.where(t.source));
  }
  uint64_t written = 0;
  for (const OutputFile& f : plan.files) {
    put("{:<10} {}  {} bytes\n", "file", f.name, f.size());
    written += f.size();
  }
  for (const PlannedFile& f : planned_files(source, plan)) {
    put("{:<10} {}  {}{} bytes\n", "other", f.name, f.exact ? "" : "about ", f.bytes);
    written += f.bytes;
  }
  fmt::print(
      "would read {} and write {}, the weights in {} ({} copied, {}); peak memory at most {} "
      "with {} on {}\n",
      format_bytes(plan.read_bytes), format_bytes(written), counted(plan.files.size(), "file"),
      counted(copied, "tensor"), format_bytes(copied_bytes), format_bytes(plan.peak_memory(jobs, device)),
      counted(static_cast<uint64_t>(plan.workers(jobs, device)), "worker"), device_text(device));
}

/// What was written, in a few words.
std::string format_text(const Recipe& r) {
  const bool nvfp4 = rewrite_of(r.layout) == Rewrite::kQuantize;
  if (!nvfp4 && r.layout != "fp8") return r.pattern.empty() ? r.layout : r.pattern;
  return fmt::format("{}{} ({}{})", r.pattern.empty() ? "" : r.pattern + " ", nvfp4 ? "NVFP4" : "FP8",
                     r.dialect, nvfp4 ? "" : ", a scale per " + r.granularity);
}

void print_result(const ConversionOptions& o, const Plan& plan, const ConvertResult& r, Device device,
                  bool verbose) {
  if (r.was_complete) {
    put("{}: was complete; {} read and verified, {:.2f} GB/s\n", o.destination,
        format_bytes(r.bytes_verified), static_cast<double>(r.bytes_verified) / 1e9 / r.seconds);
    return;
  }
  if (o.resume) {
    put("{}: kept {} of {}, {}\n", o.destination, r.files_kept, counted(plan.files.size(), "weight file"),
        format_bytes(r.bytes_kept));
  }
  put("{}: {} in {}, {}, {} (from {})\n", o.destination, counted(r.modules.size(), "matrix", "matrices"),
      format_text(plan.recipe), counted(plan.files.size(), "file"), format_bytes(r.bytes_written),
      format_bytes(r.bytes_read));
  put("{}", Lines{weights_text(plan, r, verbose)});
  put("{}", Lines{speed_text(device, r.seconds, r.bytes_read, r.bytes_written, !o.no_verify)});
}

}  // namespace

std::string speed_text(Device device, double seconds, uint64_t read, uint64_t written, bool verified) {
  return fmt::format("{}, {:.2f} s: {:.2f} GB/s read, {:.2f} GB/s written, {}\n", device_text(device),
                     seconds, static_cast<double>(read) / 1e9 / seconds,
                     static_cast<double>(written) / 1e9 / seconds,
                     verified ? "read back and verified" : "not verified");
}

std::string weights_text(const Plan& plan, const ConvertResult& r, bool verbose) {
  std::string text;
  if (!r.encoded.empty()) text += encoded_text(plan, r.encoded, verbose);
  const bool exact = plan.targets.empty() && rewrite_of(plan.recipe.layout) != Rewrite::kPrune;
  if (exact) return text;
  Quality all;
  for (const Quality& q : r.quality) all += q;
  return text + fmt::format("weights: {}\n", quality_text(all));
}

Json result_to_json(const Plan& plan, const ConvertResult& r, Device device) {
  Json modules = Json::array();
  const bool pruned = !plan.targets.empty() || rewrite_of(plan.recipe.layout) == Rewrite::kPrune;
  for (size_t i = 0; i < r.modules.size(); ++i) {
    const auto& [name, shape] = r.modules[i];
    Json module = {{"name", name}, {"shape", {shape.e, shape.n, shape.k}}};
    if (pruned) module["quality"] = quality_to_json(r.quality[i]);
    if (!r.encoded.empty()) module.update(encoded_to_json(plan, r.encoded[i]));
    modules.push_back(std::move(module));
  }
  return {{"layout", plan.recipe.layout},
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
}

void add_source_and_selection(CLI::App& app, ConversionOptions& o) {
  app.add_option("SRC", o.source, "Hugging Face checkpoint directory")->required();
  app.add_option("DST", o.destination, "Directory to write; absent or empty")->required();
  app.add_option("--include", o.include, "Convert only these modules: name, glob or re:regex")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--exclude", o.exclude, "Leave these modules as they are")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--also", o.also, "Convert these modules too: shared experts, single linears")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--max-shard-size", o.max_shard_size, "Bytes of data in a file, decimal: 5GB, 500MB");
}

void add_io_option(CLI::App& app, std::string& io) {
  app.add_option(
         "--io", io,
         "How files pass: buffered (default), through the page cache, which is left as it was found; "
         "direct, past it (O_DIRECT) where the file system can; -j is how many requests are in flight")
      ->check(CLI::IsMember({"buffered", "direct"}));
}

Io parse_io(const std::string& io) { return io == "direct" ? Io::kDirect : Io::kBuffered; }

void add_conversion_options(CLI::App& app, ConversionOptions& o) {
  add_source_and_selection(app, o);
  app.add_flag("--dry-run", o.dry_run, "Show what would be written, write nothing");
  app.add_flag("--no-verify", o.no_verify, "Do not read back what was written");
  add_io_option(app, o.io);
  CLI::Option* force = app.add_flag("--force", o.force, "Replace DST if twofour wrote it");
  app.add_flag("--resume", o.resume,
               "Go on with a run into DST that was interrupted, killed or failed: keep the weight files that "
               "it finished and their hashes prove, redo the rest. A complete DST is verified")
      ->excludes(force);
  app.footer(
      "A run that ends early leaves the weight files that it finished, in a directory that every command "
      "knows as unfinished; of a run that finished none, and of a bad source, it leaves nothing.");
}

Recipe with_selection(Recipe recipe, const ConversionOptions& o) {
  recipe.selection = {parse_pattern_option("--include", o.include),
                      parse_pattern_option("--exclude", o.exclude), parse_pattern_option("--also", o.also)};
  recipe.max_shard_size = parse_size_option("--max-shard-size", o.max_shard_size);
  return recipe;
}

std::unique_ptr<const KeptCodes> keep_global_scales(const RecipeOptions& o, Recipe& recipe) {
  if (o.keep_global_scale.empty()) return nullptr;
  auto kept = std::make_unique<const KeptCodes>(Checkpoint::open_source(o.keep_global_scale));
  recipe.kept = kept->scales();
  return kept;
}

Device conversion_device(const Common& common, const Recipe& recipe) {
  const Rewrite rewrite = rewrite_of(recipe.layout);
  const bool is_command = rewrite == Rewrite::kPrune || rewrite == Rewrite::kQuantize;
  if (rewrite != Rewrite::kNone)
    check_device(common, is_command ? recipe.layout : "convert --to " + recipe.layout);
  // From file to file the CPU is faster, so it is what auto takes.
  return choose_device(common, Device::cpu);
}

int run_conversion(const ConversionOptions& o, const RecipeOptions& recipe_options, const Common& common) {
  Recipe recipe = with_selection(make_recipe(recipe_options), o);
  const Device device = conversion_device(common, recipe);
  const Existing existing = o.resume ? Existing::kResume : o.force ? Existing::kReplace : Existing::kRefuse;
  if (!recipe_options.keep_global_scale.empty())
    OutputDirectory::check_apart_from_kept(o.destination, recipe_options.keep_global_scale);
  OutputDirectory::check(o.destination, o.source, existing);
  const Io io = parse_io(o.io);
  const Checkpoint source = Checkpoint::open_source(o.source, ReadPath::kFast, {}, io);
  const auto kept = keep_global_scales(recipe_options, recipe);
  const Plan plan = make_plan(source, recipe);
  if (o.dry_run) {
    print_findings(common, plan.findings);
    if (common.json) {
      print_json(plan_to_json(source, plan, common.jobs, device));
    } else {
      print_plan(source, plan, common.jobs, device);
    }
    return kDone;
  }
  ConvertResult result;
  with_progress(common, [&](Progress& progress) {
    const ConvertOptions options{common.jobs, !o.no_verify, existing, best_isa(), device, io, kept.get()};
    result = convert(source, plan, o.destination, options, progress);
  });
  print_findings(common, result.findings);
  if (common.json) {
    print_json(result_to_json(plan, result, device));
  } else if (!common.quiet) {
    print_result(o, plan, result, device, common.verbose);
  }
  return kDone;
}

}  // namespace twofour
