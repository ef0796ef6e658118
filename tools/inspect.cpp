#include "lib/inspect.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "tools/command.h"

namespace twofour {
namespace {

struct Options {
  std::string path, at;
  std::vector<std::string> tensors;
  bool stats = false;
};

/// Smallest and largest block scale that occur.
std::pair<float, float> scale_range(const WeightStats& s) {
  std::pair<float, float> range{0, 0};
  bool any = false;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (s.scales[byte] == 0 || e4m3_is_nan(byte)) continue;
    const float value = e4m3_to_float(byte);
    range = any ? std::pair{std::min(range.first, value), std::max(range.second, value)}
                : std::pair{value, value};
    any = true;
  }
  return range;
}

double share(uint64_t part, uint64_t all) {
  return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0;
}

Json stats_to_json(const WeightStats& s) {
  const auto [low, high] = scale_range(s);
  return {{"codes", s.codes},
          {"zero_share", s.zero_share()},
          {"share_2_4", share(s.quads_2_4, s.quads)},
          {"share_4_8_paired", share(s.octets_4_8_paired, s.octets)},
          {"block_scale_min", low},
          {"block_scale_max", high},
          {"block_scales_nan", s.scales[0x7F] + s.scales[0xFF]},
          {"global_scale_min", s.global_min},
          {"global_scale_max", s.global_max}};
}

Json report_to_json(const InspectReport& r) {
  Json tensors = Json::array(), modules = Json::array();
  for (const TensorGroup& g : r.tensors) {
    tensors.push_back({{"name", g.name},
                       {"dtype", dtype_name(g.dtype)},
                       {"shape", g.shape},
                       {"count", g.count},
                       {"bytes", g.bytes}});
  }
  for (const ModuleGroup& m : r.modules) {
    Json json = {{"name", m.name},
                 {"dialect", m.dialect},
                 {"shape", {m.e, m.n, m.k}},
                 {"count", m.count},
                 {"bytes", m.bytes}};
    if (m.stats) json["stats"] = stats_to_json(*m.stats);
    modules.push_back(std::move(json));
  }
  return {{"what", r.what},
          {"files", r.file_count},
          {"tensor_count", r.tensor_count},
          {"data_bytes", r.data_bytes},
          {"header_bytes", r.header_bytes},
          {"tensors", tensors},
          {"nvfp4_modules", modules},
          {"default_set_bytes", r.default_set_bytes},
          {"layout_bytes", r.layout_bytes},
          {"findings", findings_to_json(r.findings)}};
}

void print_stats(const WeightStats& s) {
  const auto [low, high] = scale_range(s);
  put("    codes  ");
  for (unsigned code = 0; code < 16; ++code) {
    put("{}{:g}: {:.2f} %", code ? "  " : "", e2m1_to_float(code), 100 * share(s.codes[code], s.weights()));
  }
  put("\n    zero {:.2f} %, quads already 2:4 {:.2f} %, octets already 4:8-paired {:.2f} %\n",
      100 * s.zero_share(), 100 * share(s.quads_2_4, s.quads), 100 * share(s.octets_4_8_paired, s.octets));
  put("    block scales {:g} to {:g}, global scales {:.6g} to {:.6g}\n", low, high, s.global_min,
      s.global_max);
}

void print_report(const InspectReport& r, const std::string& path) {
  put("{}: {}\n{} tensors in {} files\n\n", path, r.what, r.tensor_count, r.file_count);
  size_t width = 0;
  for (const TensorGroup& g : r.tensors) width = std::max(width, g.name.size());
  uint64_t shown = 0;
  for (const TensorGroup& g : r.tensors) {
    put("{:<{}}  {:<28}  {:>10}\n", printable(g.name), width, describe(g.dtype, g.shape),
        format_bytes(g.bytes));
    shown += g.bytes;
  }
  if (shown == r.data_bytes) {
    put("\n{} bytes of tensors + {} of headers = {} bytes of files\n", r.data_bytes, r.header_bytes,
        r.data_bytes + r.header_bytes);
  } else if (!r.tensors.empty()) {
    put("\n{} bytes of {} bytes of tensors\n", shown, r.data_bytes);
  }
  if (!r.modules.empty()) put("\nNVFP4 modules, [N, K] or [E, N, K]\n");
  for (const ModuleGroup& m : r.modules) {
    const std::string shape =
        m.e > 1 ? fmt::format("[{}, {}, {}]", m.e, m.n, m.k) : fmt::format("[{}, {}]", m.n, m.k);
    put("  {}  {}  {}  {}\n", m.name, shape, m.dialect, format_bytes(m.bytes));
    if (m.stats) print_stats(*m.stats);
  }
  if (!r.layout_bytes.empty()) {
    put("\nwhat convert takes by default: {} now", format_bytes(r.default_set_bytes));
    for (const auto& [layout, bytes] : r.layout_bytes) put(", {} as {}", format_bytes(bytes), layout);
    put("\n");
  }
}

int run(const Options& o, const Common& common) {
  check_device(common, "inspect");
  const Checkpoint checkpoint = Checkpoint::open(o.path);
  if (!o.at.empty()) {
    const size_t colon = o.at.rfind(':');
    const std::string digits = colon == std::string::npos ? "" : o.at.substr(colon + 1);
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) {
      throw Error(fmt::format("--at: expected TENSOR:OFFSET, found '{}'", o.at));
    }
    const std::string text = describe_byte(checkpoint, o.at.substr(0, colon), std::stoull(digits));
    if (common.json) {
      print_json({{"at", o.at}, {"text", text}});
    } else {
      put("{}\n", text);
    }
    return kDone;
  }
  const InspectReport report = inspect(checkpoint, parse_patterns(o.tensors), o.stats, common.jobs);
  print_findings(common, report.findings);
  if (common.json) {
    print_json(report_to_json(report));
  } else {
    print_report(report, o.path);
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_inspect(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  app.add_option("PATH", o->path, "Checkpoint or artifact directory, or one safetensors file")->required();
  app.add_option("--tensor", o->tensors, "Only these tensors and modules: name, glob or re:regex")
      ->take_all()
      ->allow_extra_args(false);
  app.add_flag("--stats", o->stats,
               "Read the weights: code histogram, zeros, 2:4 and 4:8 compliance, scale ranges");
  app.add_option("--at", o->at, "Say what one stored byte is: TENSOR:OFFSET");
  return [o, &common] { return run(*o, common); };
}

}  // namespace twofour
