#include "lib/convert.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "formats/layouts.h"
#include "lib/output_directory.h"
#include "tools/command.h"
#include "tools/quality_text.h"

namespace twofour {
namespace {

struct Options {
  std::string source, destination, layout, fold = "larger", max_shard_size = "5GB";
  std::vector<std::string> include, exclude, also;
  bool dry_run = false, no_verify = false, force = false;
};

Recipe make_recipe(const Options& o) {
  Recipe recipe;
  recipe.layout = o.layout;
  recipe.selection = {parse_patterns(o.include), parse_patterns(o.exclude), parse_patterns(o.also)};
  recipe.fold = o.fold == "strict" ? Fold::kStrict : Fold::kLarger;
  recipe.max_shard_size = parse_size(o.max_shard_size);
  return recipe;
}

Json plan_to_json(const Checkpoint& source, const Plan& plan, int jobs) {
  Json files = Json::array(), tensors = Json::array(), sidecars = Json::array();
  for (const OutputFile& f : plan.files) files.push_back({{"name", f.name}, {"bytes", f.size()}});
  for (const auto& [name, bytes] : plan.sidecars) sidecars.push_back({{"name", name}, {"bytes", bytes}});
  for (const OutputTensor& t : plan.tensors) {
    const bool copied = t.kind == OutputTensor::Kind::kCopy;
    tensors.push_back({{"name", t.info.name},
                       {"dtype", dtype_name(t.info.dtype)},
                       {"shape", t.info.shape},
                       {"bytes", t.info.bytes()},
                       {"file", plan.files[t.file].name},
                       {"decision", copied ? "copy" : plan.recipe.layout},
                       {"rule", copied ? "passes through" : plan.targets[t.source].rule},
                       {"from", copied ? source.where(t.source) : plan.targets[t.source].block}});
  }
  return {{"dry_run", true},
          {"layout", plan.recipe.layout},
          {"bytes_read", plan.read_bytes},
          {"bytes_written", plan.data_bytes},
          {"workers", plan.workers(jobs)},
          {"peak_memory", plan.peak_memory(jobs)},
          {"files", files},
          {"sidecars", sidecars},
          {"tensors", tensors},
          {"findings", findings_to_json(plan.findings)}};
}

void print_plan(const Checkpoint& source, const Plan& plan, int jobs) {
  size_t copied = 0;
  uint64_t copied_bytes = 0;
  for (const OutputTensor& t : plan.tensors) {
    const bool copy = t.kind == OutputTensor::Kind::kCopy;
    copied += copy;
    copied_bytes += copy ? t.info.bytes() : 0;
    if (!copy)
      fmt::print("{:<10} {}  {}  {}\n", plan.recipe.layout, t.info.name, describe(t.info.dtype, t.info.shape),
                 format_bytes(t.info.bytes()));
  }
  for (const OutputTensor& t : plan.tensors) {
    if (t.kind == OutputTensor::Kind::kCopy) fmt::print("{:<10} {}\n", "copy", source.where(t.source));
  }
  for (const OutputFile& f : plan.files) fmt::print("{:<10} {}  {} bytes\n", "file", f.name, f.size());
  for (const auto& [name, bytes] : plan.sidecars) fmt::print("{:<10} {}  {} bytes\n", "sidecar", name, bytes);
  fmt::print(
      "would read {} and write {} in {} files ({} tensors copied, {}); peak memory at most {} with {} "
      "workers\n",
      format_bytes(plan.read_bytes), format_bytes(plan.data_bytes), plan.files.size(), copied,
      format_bytes(copied_bytes), format_bytes(plan.peak_memory(jobs)), plan.workers(jobs));
}

Json result_to_json(const Plan& plan, const ConvertResult& r) {
  Json modules = Json::array();
  for (size_t t = 0; t < plan.targets.size(); ++t) {
    const Shape& s = plan.targets[t].shape;
    modules.push_back({{"name", plan.targets[t].name},
                       {"shape", {s.e, s.n, s.k}},
                       {"quality", quality_to_json(r.quality[t])}});
  }
  return {{"layout", plan.recipe.layout},
          {"device", "cpu"},
          {"bytes_read", r.bytes_read},
          {"bytes_written", r.bytes_written},
          {"bytes_verified", r.bytes_verified},
          {"seconds", r.seconds},
          {"files", plan.files.size()},
          {"tensors", plan.tensors.size()},
          {"modules", modules},
          {"findings", findings_to_json(r.findings)}};
}

void print_result(const Options& o, const Plan& plan, const ConvertResult& r) {
  Quality all;
  for (const Quality& q : r.quality) all += q;
  fmt::print("{}: {} matrices in {}, {} files, {} (from {})\n", o.destination, plan.targets.size(),
             plan.recipe.layout, plan.files.size(), format_bytes(r.bytes_written),
             format_bytes(r.bytes_read));
  fmt::print("weights: {}\n", quality_text(all));
  fmt::print("cpu, {:.2f} s: {:.2f} GB/s read, {:.2f} GB/s written{}\n", r.seconds,
             static_cast<double>(r.bytes_read) / 1e9 / r.seconds,
             static_cast<double>(r.bytes_written) / 1e9 / r.seconds,
             o.no_verify ? ", not verified" : ", read back and verified");
}

int run(const Options& o, const Common& common) {
  check_device(common, "convert");
  const Recipe recipe = make_recipe(o);
  OutputDirectory::check(o.destination, o.source, o.force);
  const Checkpoint source = Checkpoint::open(o.source);
  const Plan plan = make_plan(source, recipe);
  if (o.dry_run) {
    print_findings(common, plan.findings);
    if (common.json) {
      print_json(plan_to_json(source, plan, common.jobs));
    } else {
      print_plan(source, plan, common.jobs);
    }
    return kDone;
  }
  ConvertResult result;
  with_progress(common, [&](Progress& progress) {
    result = convert(source, plan, o.destination, {common.jobs, !o.no_verify, o.force, best_isa()}, progress);
  });
  print_findings(common, result.findings);
  if (common.json) {
    print_json(result_to_json(plan, result));
  } else if (!common.quiet) {
    print_result(o, plan, result);
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_convert(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  std::vector<std::string> layouts;
  for_each_layout([&]<class L>() { layouts.push_back(L::name); });
  app.add_option("SRC", o->source, "Hugging Face checkpoint directory")->required();
  app.add_option("DST", o->destination, "Directory to write; absent or empty")->required();
  app.add_option("--to", o->layout, "Layout to write")->required()->check(CLI::IsMember(layouts));
  app.add_option("--include", o->include, "Convert only these modules: name, glob or re:regex")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--exclude", o->exclude, "Leave these modules as they are")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--also", o->also, "Convert these modules too: shared experts, single linears")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--fold", o->fold, "Unequal global scales of gate and up: to the larger, or refuse (strict)")
      ->check(CLI::IsMember({"larger", "strict"}));
  app.add_option("--max-shard-size", o->max_shard_size, "Bytes of data in a file, decimal: 5GB, 500MB");
  app.add_flag("--dry-run", o->dry_run, "Show what would be written, write nothing");
  app.add_flag("--no-verify", o->no_verify, "Do not read back what was written");
  app.add_flag("--force", o->force, "Replace DST if twofour wrote it");
  return [o, &common] { return run(*o, common); };
}

}  // namespace twofour
