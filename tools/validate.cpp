#include "lib/prove/validate/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "formats/error.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/io/file.h"
#include "lib/report/report.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/conversion_options.h"
#include "tools/cli/option_values.h"
#include "tools/cli/source_options.h"
#include "tools/text/figures_text.h"
#include "tools/text/validate_text.h"

namespace twofour {
namespace {

struct ValidateArguments {
  std::string artifact, source, donor, html, statistics, masks, io = "buffered";
  std::optional<int64_t> tokens;
  uint64_t seed = 0;
  bool all_layers = false, all_rows = false;
  RemoteOptions remote;
};

/// The options of validate() that --tokens, --all-layers and --seed give, with defaults for omitted ones.
ValidateOptions validate_options(const ValidateArguments& o, const Common& common, Device device) {
  ValidateOptions options;
  options.jobs = common.jobs;
  options.seed = o.seed;
  options.device = device;
  options.io = parse_io(o.io);
  options.donor = o.donor;
  options.statistics = o.statistics;
  options.masks = o.masks;
  options.all_rows = o.all_rows;
  if (o.tokens) {
    options.tokens = *o.tokens;
    options.experts = 0;
  }
  if (o.all_layers) options.layers = 0;
  return options;
}

Json coverage_to_json(const LayerCoverage& c) {
  Json not_run = Json::array();
  for (const LayerCoverage::NotRun& l : c.not_run) not_run.push_back({{"name", l.block}, {"why", l.why}});
  return {{"found", c.found}, {"not_sampled", c.not_sampled}, {"not_run", not_run}};
}

/// The bounds of the sample of layers. Null stands for no bound.
Json sample_to_json(const ValidateOptions& o) {
  const auto bound = [](int64_t most) { return most == 0 ? Json(nullptr) : Json(most); };
  return {{"seed", o.seed}, {"tokens", o.tokens}, {"experts", bound(o.experts)}, {"layers", bound(o.layers)}};
}

Json device_layers_to_json(const std::vector<DeviceLayerReport>& layers) {
  Json list = Json::array();
  for (const DeviceLayerReport& l : layers) {
    list.push_back({{"name", l.block},
                    {"layout", l.layout},
                    {"tokens", l.tokens},
                    {"experts_used", l.experts_used},
                    {"cosine", l.cosine},
                    {"relative_error", l.relative_error},
                    {"beyond_tolerance", l.beyond},
                    {"worst",
                     {{"share_of_tolerance", l.worst.share},
                      {"token", l.worst.token},
                      {"column", l.worst.column},
                      {"expected", l.worst.expected},
                      {"found", l.worst.found}}}});
  }
  return list;
}

Json report_to_json(const ValidateReport& r, bool with_source, const ValidateOptions& options) {
  const Device device = options.device;
  Json weights = Json::array(), values = Json::array(), layers = Json::array();
  for (const WeightReport& w : r.weights) {
    weights.push_back({{"name", w.target},
                       {"shape", {w.shape.e, w.shape.n, w.shape.k}},
                       {"zero_share", w.zero_share},
                       {"quality", w.chosen ? encode_error_to_json(*w.chosen) : quality_to_json(w.quality)}});
  }
  for (const ValueReport& v : r.values) {
    values.push_back(
        {{"name", v.module}, {"shape", {v.e, v.n, v.k}}, {"error", value_error_to_json(v.error)}});
  }
  for (const LayerReport& l : r.layers) {
    Json layer = {{"name", l.block}, {"tokens", l.tokens}, {"experts_used", l.experts_used}};
    if (l.reference) layer["exact"] = l.exact;
    layer["cosine"] = l.cosine;
    layer["relative_error"] = l.relative_error;
    layers.push_back(std::move(layer));
  }
  Json json = {{"valid", r.differences.empty()},
               {"device", device_name(device)},
               {"tensors", r.tensors},
               {"bytes", r.bytes},
               {"seconds", r.seconds}};
  if (r.without_statistics) json["without_statistics"] = true;
  if (r.recovered > 0) json["recovered_tensors"] = r.recovered;
  if (r.solved_rows > 0) json["solved_rows"] = {{"all", r.solved_rows}, {"not_drawn", r.rows_not_drawn}};
  if (with_source) {
    json["source_tensors"] = r.source_tensors;
    json["source_bytes"] = r.source_bytes;
    json["weights"] = weights;
    json["values"] = values;
    json["layers"] = layers;
    json["layer_coverage"] = coverage_to_json(r.coverage);
  }
  if (device == Device::cuda) {
    json["device_layers"] = device_layers_to_json(r.device_layers);
    json["device_layer_coverage"] = coverage_to_json(r.device_coverage);
  }
  if (with_source || device == Device::cuda) json["sample"] = sample_to_json(options);
  if (!r.mends.empty()) json["mends"] = mends_to_json(r.mends);
  json["differences"] = findings_to_json(r.differences);
  json["notes"] = findings_to_json(r.notes);
  return json;
}

/// A text about the loss by pruning over all matrices.
std::string total_text(const ValidateReport& r) {
  Quality all;
  EncodeError chosen;
  size_t chosen_count = 0;
  double zeros = 0, weights = 0;
  for (const WeightReport& w : r.weights) {
    const auto count = static_cast<double>(w.shape.e * w.shape.n * w.shape.k);
    if (w.chosen) {
      chosen += *w.chosen;
      ++chosen_count;
    } else {
      all += w.quality;
    }
    zeros += w.zero_share * count;
    weights += count;
  }
  const std::string rest = chosen_count < r.weights.size() ? quality_text(all) : "";
  std::string of_chosen = chosen_count > 0 ? chosen_text(chosen) : "";
  if (!rest.empty() && !of_chosen.empty())
    of_chosen = fmt::format("; {} of them {}", chosen_count, of_chosen);
  return fmt::format("{}: zero codes {:.2f} %, {}{}", counted(r.weights.size(), "matrix", "matrices"),
                     100 * zeros / weights, rest, of_chosen);
}

/// A text about the difference of all modules together from the source's modules.
std::string total_text(const std::vector<ValueReport>& values) {
  ValueError all;
  for (const ValueReport& v : values) all += v.error;
  return fmt::format("{}: {}", counted(values.size(), "matrix", "matrices"), value_error_text(all));
}

/// A text about layers that were not run: ", 1 not run, 44 not in the sample". Empty if every layer was run.
std::string left_out_text(const LayerCoverage& c) {
  std::string text;
  if (!c.not_run.empty()) text += fmt::format(", {} not run", c.not_run.size());
  if (c.not_sampled > 0) text += fmt::format(", {} not in the sample", c.not_sampled);
  return text;
}

/// Prints the reasons why layers were not run, one per line.
void print_not_run(const LayerCoverage& c, bool all) {
  constexpr size_t kFewReasons = 3;
  std::vector<std::pair<const LayerCoverage::NotRun*, size_t>> reasons;
  for (const LayerCoverage::NotRun& l : c.not_run) {
    const auto same =
        std::find_if(reasons.begin(), reasons.end(), [&](auto& r) { return r.first->why == l.why; });
    if (same == reasons.end()) {
      reasons.emplace_back(&l, 0);
    } else {
      ++same->second;
    }
  }
  for (size_t i = 0; i < reasons.size(); ++i) {
    if (i == kFewReasons && !all) {
      print_stdout("not run: {} more reasons (--verbose shows all)\n", reasons.size() - i);
      return;
    }
    const auto& [first, more] = reasons[i];
    print_stdout("not run: {}{}: {}\n", first->block, and_more(more, " and {} more", 0), first->why);
  }
}

/// Prints the sample of layers, experts and tokens that was run.
void print_sample(const ValidateOptions& o) {
  const std::string experts =
      o.experts == 0 ? "the experts that its router may pick" : fmt::format("at most {} experts", o.experts);
  print_stdout("sample: {} a layer through {}, {}, seed {}{}\n",
               counted(static_cast<uint64_t>(o.tokens), "token"), experts,
               o.layers == 0 ? "all layers" : fmt::format("at most {} layers", o.layers), o.seed,
               o.experts == 0 && o.layers == 0 ? "" : "; --tokens N and --all-layers run more");
}

void print_layers(const ValidateReport& r, bool each) {
  double low = 1, high = -1;
  size_t exact = 0;
  for (const LayerReport& l : r.layers) {
    low = std::min(low, l.cosine);
    high = std::max(high, l.cosine);
    exact += l.exact;
    if (!each) continue;
    const std::string ran =
        fmt::format("{}: {} through {}", l.block, counted(static_cast<uint64_t>(l.tokens), "token"),
                    counted(static_cast<uint64_t>(l.experts_used), "expert"));
    if (l.reference) {
      print_stdout("{}: {}, cosine to the dense layer {:.4f}, relative error {:.2f} %\n", ran,
                   l.exact ? "equal to the reference" : "NOT equal to the reference", l.cosine,
                   100 * l.relative_error);
    } else {
      print_stdout("{}: cosine to the source's layer {:.4f}, relative error {:.3g} %\n", ran, l.cosine,
                   100 * l.relative_error);
    }
  }
  const std::string cosines =
      fmt::format("{:.4f}{}", low, r.layers.size() > 1 ? fmt::format(" to {:.4f}", high) : "");
  const LayerCoverage& c = r.coverage;
  if (r.layers.empty()) {
    print_stdout("0 of {} layers run{}\n", c.found, left_out_text(c));
  } else if (r.layers[0].reference) {
    print_stdout("{} of {} layers give the reference's output{}; cosine to the dense layers {}\n", exact,
                 c.found, left_out_text(c), cosines);
  } else {
    print_stdout("{} of {} layers run{}; cosine to the source's layers {}\n", r.layers.size(), c.found,
                 left_out_text(c), cosines);
  }
}

void print_device_layers(const ValidateReport& r, Device device, bool each) {
  size_t good = 0;
  double low = 1, worst = 0;
  for (const DeviceLayerReport& l : r.device_layers) {
    good += l.beyond == 0;
    low = std::min(low, l.cosine);
    worst = std::max(worst, l.worst.share);
    if (!each) continue;
    print_stdout(
        "{} ({}) on the device: cosine to the reference {:.8f}, relative error {:.2g}; worst number {:.3g} "
        "of its tolerance, at token {}, column {}: expected {:.6g}, found {:.6g}\n",
        l.block, l.layout, l.cosine, l.relative_error, l.worst.share, l.worst.token, l.worst.column,
        l.worst.expected, l.worst.found);
  }
  const LayerCoverage& c = r.device_coverage;
  if (r.device_layers.empty()) {
    print_stdout("{}: 0 of {} layers run{}\n", device_text(device), c.found, left_out_text(c));
    return;
  }
  print_stdout(
      "{}: {} of {} layers give the reference's output up to their roundings{}; cosine at least {:.8f}, "
      "worst number {:.3g} of its tolerance\n",
      device_text(device), good, c.found, left_out_text(c), low, worst);
}

void print_report(const ValidateArguments& o, const Common& common, const ValidateReport& r,
                  const ValidateOptions& options) {
  const Device device = options.device;
  constexpr size_t kFewRows = 6;  // more are printed one by one only with --verbose
  print_differences(r.differences, common.verbose);
  if (r.differences.empty()) print_mends(r.mends, common.verbose);
  for (const WeightReport& w : r.weights) {
    if (r.weights.size() > kFewRows && !common.verbose) break;
    print_stdout("{} [{}, {}, {}]: zero codes {:.2f} %, {}\n", w.target, w.shape.e, w.shape.n, w.shape.k,
                 100 * w.zero_share, w.chosen ? chosen_text(*w.chosen) : quality_text(w.quality));
  }
  if (!r.weights.empty()) print_stdout("{}\n", total_text(r));
  for (const ValueReport& v : r.values) {
    if (r.values.size() > kFewRows && !common.verbose) break;
    print_stdout("{} [{}, {}, {}]: {}\n", v.module, v.e, v.n, v.k, value_error_text(v.error));
  }
  if (!r.values.empty()) print_stdout("{}\n", total_text(r.values));
  if (r.coverage.found > 0) {
    print_layers(r, r.layers.size() <= kFewRows || common.verbose);
    print_not_run(r.coverage, common.verbose);
  }
  if (r.device_coverage.found > 0) {
    print_device_layers(r, device, r.device_layers.size() <= kFewRows || common.verbose);
    // With a source, most reasons are the same as the reasons for the layers on the CPU.
    if (r.coverage.found == 0) print_not_run(r.device_coverage, common.verbose);
  }
  if (!r.layers.empty() || !r.device_layers.empty()) print_sample(options);
  if (options.tokens == 0 && (!o.source.empty() || device == Device::cuda)) {
    print_stdout("no layer was run: --tokens 0\n");
  }
  if (!r.differences.empty()) {
    print_stdout("{}: {}\n", o.artifact, counted(r.differences.size(), "difference"));
    return;
  }
  print_stdout("{}: {}, {}: {}\n", o.artifact, counted(r.tensors, "tensor"), format_bytes(r.bytes),
               sound_verdict(r, !o.source.empty()));
  if (!o.source.empty()) {
    const std::string which = r.without_statistics    ? fmt::format("{} kept, all", r.source_tensors)
                              : r.source_tensors == 1 ? "its tensor"
                                                      : fmt::format("all {} tensors", r.source_tensors);
    print_stdout("{}: {} accounted for, {}\n", o.source, which, format_bytes(r.source_bytes));
  }
  print_stdout("{}, {:.2f} s: {:.2f} GB/s {}\n", device_text(common, device), r.seconds,
               static_cast<double>(r.bytes + r.source_bytes) / 1e9 / std::max(r.seconds, 1e-9),
               o.source.empty() ? "read" : "of artifact and source");
}

/// The path of an artifact's source. It is the given path, or its directory if the path is the only weight
/// file there and the artifact has the config of the directory.
std::string source_of(const std::string& artifact, const std::string& given) {
  const auto directory = directory_of_lone_shard(given);
  const std::filesystem::path config = std::filesystem::path(artifact) / "config.json";
  if (!directory || is_absent(config)) return given;
  const Json json = parse_json(config.string(), read_text(config));
  return json.is_object() && json.contains("model_type") ? directory->string() : given;
}

int run_validate(const ValidateArguments& given, const Common& common) {
  ValidateArguments o = given;
  if (!o.source.empty()) o.source = source_of(o.artifact, o.source);
  const Device device = choose_device(common);
  if (!o.html.empty()) check_report_file(o.html);
  if (!o.donor.empty() && o.source.empty())
    throw Error("--donor: expected with --source only, found without");
  if ((!o.statistics.empty() || o.all_rows) && o.source.empty())
    throw Error("--stats: expected with --source only, found without");
  if (!o.masks.empty() && o.source.empty()) throw Error("--mask: expected with --source only, found without");
  ValidateReport report;
  const ValidateOptions options = validate_options(o, common, device);
  refuse_remote(o.donor, "a donor is read from a directory");
  const std::string named = o.source;
  const auto cache = is_remote_address(o.source) ? std::optional(cache_of(o.remote)) : std::nullopt;
  if (cache) check_apart_from_cache(o.artifact, cache->folder);
  RemoteSource remote(o.source, cache);
  if (!o.source.empty()) o.source = remote.path().string();
  with_progress(common, [&](Progress& progress) {
    if (cache) remote.download_whole_files(&progress);
    report = o.source.empty() ? validate(o.artifact, options, progress)
                              : validate(o.artifact, o.source, options, progress);
  });
  remote.remove_downloads();
  o.source = named;
  sort_differences(report.differences);
  if (common.device == "auto" && device == Device::cpu) {
    report.notes.push_back({Severity::kNote, "no-device", "--device auto",
                            fmt::format("{}: checked on the CPU alone", no_cuda_reason())});
  }
  if (!o.html.empty()) write_report(o.html, validate_report(report, o.artifact, o.source));
  if (common.json) {
    print_json(report_to_json(report, !o.source.empty(), options));
  } else if (!common.quiet) {
    print_findings(common, report.notes);
    print_report(o, common, report, options);
  }
  return report.differences.empty() ? kDone : kFound;
}

}  // namespace

std::function<int()> setup_validate(Arguments& args, const Common& common) {
  auto o = std::make_shared<ValidateArguments>();
  args.option("DST", o->artifact, "Artifact to check").required().as_checkpoint();
  args.option("--source", o->source, or_url("Checkpoint that the artifact was made from"))
      .value_name("PATH")
      .as_checkpoint();
  args.option("--donor", o->donor,
              "With --source, of what graft or repair wrote: the checkpoint that modules came from")
      .value_name("PATH")
      .as_checkpoint();
  args.option("--stats", o->statistics, "With --source, of what quantize --stats wrote: the statistics file")
      .value_name("FILE")
      .default_text("none: rows that statistics chose are not solved again");
  args.option("--mask", o->masks, "With --source, of what --mask of other commands pruned: the file of masks")
      .value_name("FILE")
      .default_text("none");
  args.flag("--all-rows", o->all_rows, "With --stats, solve all rows again, not 64 of each matrix");
  args.option("--tokens", o->tokens,
              "Tokens to run through each layer, each through as many experts as the model picks; 0 runs no "
              "layer")
      .range(0, 4096)
      .default_text("2, through at most 4 experts");
  args.flag("--all-layers", o->all_layers, "Run every layer, not only the first, the last and 2 between");
  add_seed_option(args, o->seed, "Seed of the layers, experts, activations and routing that are run");
  add_io_option(args, o->io);
  add_cache_options(args, o->remote);
  add_html_option(args, o->html);
  args.footer(
      "Without --source, every byte is read and compared with the hashes in twofour.json. That finds damage, "
      "not a wrong conversion.\n"
      "With --source, every tensor of the source is accounted for, every byte is derived again by slow code "
      "that the converter does not use, and layers are run against a reference in double precision.\n"
      "Of what graft or drop wrote, --source is BASE or SRC: each tensor is traced back to its bytes, "
      "and counts, lists and quantization entries of the configs are compared with the tensors.");
  return [o, &common] { return run_validate(*o, common); };
}

}  // namespace twofour
