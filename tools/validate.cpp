#include "lib/validate/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "lib/report/report.h"
#include "tools/cli/command.h"
#include "tools/cli/conversion_options.h"
#include "tools/option_values.h"
#include "tools/cli/figures_text.h"

namespace twofour {
namespace {

struct Options {
  std::string artifact, source, html, io = "buffered";
  int64_t tokens = 4;
  uint64_t seed = 0;
};

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

Json report_to_json(const ValidateReport& r, bool with_source, Device device) {
  Json weights = Json::array(), values = Json::array(), layers = Json::array();
  for (const WeightReport& w : r.weights) {
    weights.push_back({{"name", w.target},
                       {"shape", {w.shape.e, w.shape.n, w.shape.k}},
                       {"zero_share", w.zero_share},
                       {"quality", quality_to_json(w.quality)}});
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
  if (with_source) {
    json["source_tensors"] = r.source_tensors;
    json["source_bytes"] = r.source_bytes;
    json["weights"] = weights;
    json["values"] = values;
    json["layers"] = layers;
  }
  if (device == Device::cuda) json["device_layers"] = device_layers_to_json(r.device_layers);
  json["differences"] = findings_to_json(r.differences);
  json["notes"] = findings_to_json(r.notes);
  return json;
}

/// What pruning cost all matrices together.
std::string total_text(const ValidateReport& r) {
  Quality all;
  double zeros = 0, weights = 0;
  for (const WeightReport& w : r.weights) {
    const auto count = static_cast<double>(w.shape.e * w.shape.n * w.shape.k);
    all += w.quality;
    zeros += w.zero_share * count;
    weights += count;
  }
  return fmt::format("{}: zero codes {:.2f} %, {}", counted(r.weights.size(), "matrix", "matrices"),
                     100 * zeros / weights, quality_text(all));
}

/// How far all modules together lie from the source's.
std::string total_text(const std::vector<ValueReport>& values) {
  ValueError all;
  for (const ValueReport& v : values) all += v.error;
  return fmt::format("{}: {}", counted(values.size(), "matrix", "matrices"), value_error_text(all));
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
      put("{}: {}, cosine to the dense layer {:.4f}, relative error {:.2f} %\n", ran,
          l.exact ? "equal to the reference" : "NOT equal to the reference", l.cosine,
          100 * l.relative_error);
    } else {
      put("{}: cosine to the source's layer {:.4f}, relative error {:.3g} %\n", ran, l.cosine,
          100 * l.relative_error);
    }
  }
  const std::string cosines =
      fmt::format("{:.4f}{}", low, r.layers.size() > 1 ? fmt::format(" to {:.4f}", high) : "");
  if (r.layers[0].reference) {
    put("{} of {} layers give the reference's output; cosine to the dense layers {}\n", exact,
        r.layers.size(), cosines);
  } else {
    put("layers run: {}; cosine to the source's layers {}\n", r.layers.size(), cosines);
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
    put("{} ({}) on the device: cosine to the reference {:.8f}, relative error {:.2g}; worst number {:.3g} "
        "of its tolerance, at token {}, column {}: expected {:.6g}, found {:.6g}\n",
        l.block, l.layout, l.cosine, l.relative_error, l.worst.share, l.worst.token, l.worst.column,
        l.worst.expected, l.worst.found);
  }
  put("{}: {} of {} layers give the reference's output up to their roundings; cosine at least {:.8f}, worst "
      "number {:.3g} of its tolerance\n",
      device_text(device), good, r.device_layers.size(), low, worst);
}

void print_report(const Options& o, const Common& common, const ValidateReport& r, Device device) {
  constexpr size_t kFewRows = 6;  // more are told one by one only with --verbose
  for (const Finding& f : r.differences) {
    put("{}: {}: {} [{}]\n", severity_name(f.severity), f.where, f.message, f.id);
  }
  for (const WeightReport& w : r.weights) {
    if (r.weights.size() > kFewRows && !common.verbose) break;
    put("{} [{}, {}, {}]: zero codes {:.2f} %, {}\n", w.target, w.shape.e, w.shape.n, w.shape.k,
        100 * w.zero_share, quality_text(w.quality));
  }
  if (!r.weights.empty()) put("{}\n", total_text(r));
  for (const ValueReport& v : r.values) {
    if (r.values.size() > kFewRows && !common.verbose) break;
    put("{} [{}, {}, {}]: {}\n", v.module, v.e, v.n, v.k, value_error_text(v.error));
  }
  if (!r.values.empty()) put("{}\n", total_text(r.values));
  if (!r.layers.empty()) print_layers(r, r.layers.size() <= kFewRows || common.verbose);
  if (!r.device_layers.empty())
    print_device_layers(r, device, r.device_layers.size() <= kFewRows || common.verbose);
  if (!r.differences.empty()) {
    put("{}: {}\n", o.artifact, counted(r.differences.size(), "difference"));
    return;
  }
  put("{}: {}, {}: {}\n", o.artifact, counted(r.tensors, "tensor"), format_bytes(r.bytes),
      sound_verdict(!o.source.empty()));
  if (!o.source.empty()) {
    put("{}: {} accounted for, {}\n", o.source,
        r.source_tensors == 1 ? "its tensor" : fmt::format("all {} tensors", r.source_tensors),
        format_bytes(r.source_bytes));
  }
  put("{}, {:.2f} s: {:.2f} GB/s {}\n", device_text(common, device), r.seconds,
      static_cast<double>(r.bytes + r.source_bytes) / 1e9 / std::max(r.seconds, 1e-9),
      o.source.empty() ? "read" : "of artifact and source");
}

int run(const Options& o, const Common& common) {
  const Device device = choose_device(common, Device::cuda);
  if (!o.html.empty()) check_report_file(o.html);
  ValidateReport report;
  with_progress(common, [&](Progress& progress) {
    const ValidateOptions options{common.jobs, o.tokens, o.seed, device, parse_io(o.io)};
    report = o.source.empty() ? validate(o.artifact, options, progress)
                              : validate(o.artifact, o.source, options, progress);
  });
  if (common.device == "auto" && device == Device::cpu) {
    report.notes.push_back({Severity::kNote, "no-device", "--device auto",
                            fmt::format("{}: checked on the CPU alone", no_cuda_reason())});
  }
  if (!o.html.empty()) write_report(o.html, validate_report(report, o.artifact, o.source));
  if (common.json) {
    print_json(report_to_json(report, !o.source.empty(), device));
  } else if (!common.quiet) {
    print_findings(common, report.notes);
    print_report(o, common, report, device);
  }
  return report.differences.empty() ? kDone : kFound;
}

}  // namespace

std::function<int()> setup_validate(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  app.add_option("DST", o->artifact, "Artifact to prove")->required();
  app.add_option("--source", o->source,
                 "The checkpoint it was made from; without it the manifest's hashes are checked")
      ->type_name("PATH");
  app.add_option("--tokens", o->tokens, "Tokens to run through each layer; 0: none")
      ->check(CLI::Range(0, 4096));
  add_seed_option(app, o->seed, "Of the activations and the routing");
  add_io_option(app, o->io);
  add_html_option(app, o->html);
  return [o, &common] { return run(*o, common); };
}

}  // namespace twofour
