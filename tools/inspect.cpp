#include "lib/look/inspect/inspect.h"
#include "lib/recipe/artifact/open_unpacked.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "formats/e2m1.h"
#include "formats/error.h"
#include "lib/base/names/name_tree.h"
#include "lib/look/inspect/slice.h"
#include "lib/report/report.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/option_values.h"
#include "tools/cli/source_options.h"

namespace twofour {
namespace {

struct InspectArguments {
  std::string path, at, values, html, zero_points;
  std::vector<std::string> tensors;
  bool stats = false;
};

Json stats_to_json(const WeightStats& s) {
  const auto [low, high] = s.scale_range();
  return {{"codes", s.codes},
          {"zero_share", s.zero_share()},
          {"share_2_4", s.share_2_4()},
          {"share_4_8_paired", s.share_4_8_paired()},
          {"block_scale_min", low},
          {"block_scale_max", high},
          {"block_scales_nan", s.nan_scales()},
          {"global_scale_min", s.global_min},
          {"global_scale_max", s.global_max}};
}

Json member_to_json(const ModuleStats& s) {
  return {{"name", s.name},
          {"zero_share", s.zero_share},
          {"share_2_4", s.share_2_4},
          {"share_4_8_paired", s.share_4_8_paired},
          {"block_scale_min", s.scale_min},
          {"block_scale_max", s.scale_max},
          {"block_scales_nan", s.nan_scales},
          {"global_scale_min", s.global_min},
          {"global_scale_max", s.global_max}};
}

Json group_to_json(const TensorGroup& g) {
  return {{"name", g.name},
          {"dtype", dtype_name(g.dtype)},
          {"shape", g.shape},
          {"count", g.count},
          {"bytes", g.bytes}};
}

Json group_to_json(const ModuleGroup& m) {
  Json json = {{"name", m.name},
               {"dialect", m.dialect},
               {"shape", {m.e, m.n, m.k}},
               {"count", m.count},
               {"bytes", m.bytes}};
  if (m.stats) json["stats"] = stats_to_json(*m.stats);
  for (const ModuleStats& x : m.members) json["members"].push_back(member_to_json(x));
  return json;
}

/// Prints the document with one group per line. As one document in memory, the groups would take several
/// times the report's memory.
void print_report_json(const InspectReport& r) {
  const Json head = {{"what", r.what},
                     {"files", r.file_count},
                     {"tensor_count", r.tensor_count},
                     {"data_bytes", r.data_bytes},
                     {"header_bytes", r.header_bytes},
                     {"other_files", r.other_files},
                     {"total_bytes", r.data_bytes + r.header_bytes + r.other_bytes()},
                     {"default_set_bytes", r.default_set_bytes},
                     {"layout_bytes", r.layout_bytes},
                     {"formats", r.formats},
                     {"findings", findings_to_json(r.findings)}};
  const auto list = [](const char* name, const auto& groups) -> JsonList {
    return {name, groups.size(), [&groups](size_t i) { return group_to_json(groups[i]); }};
  };
  print_json(head, {list("tensors", r.tensors), list("nvfp4_modules", r.modules),
                    list("other_modules", r.other_modules)});
}

void print_stats(const WeightStats& s) {
  const auto [low, high] = s.scale_range();
  print_stdout("    codes  ");
  for (unsigned code = 0; code < 16; ++code) {
    const double share = static_cast<double>(s.codes[code]) / static_cast<double>(s.weights());
    print_stdout("{}{:g}: {:.2f} %", code ? "  " : "", e2m1_to_float(code), 100 * share);
  }
  print_stdout("\n    zero {:.2f} %, quads already 2:4 {:.2f} %, octets already 4:8-paired {:.2f} %\n",
               100 * s.zero_share(), 100 * s.share_2_4(), 100 * s.share_4_8_paired());
  print_stdout("    block scales {:g} to {:g}, global scales {:.6g} to {:.6g}\n", low, high, s.global_min,
               s.global_max);
}

/// Prints tensors as a tree. Returns the number of bytes of the tensors in it.
uint64_t print_tree(const InspectReport& r) {
  std::vector<std::pair<std::string, uint64_t>> names;
  for (const TensorGroup& g : r.tensors) names.emplace_back(g.name, g.bytes);
  const std::vector<TreeLine> lines = name_tree(names);
  const auto indented = [](const TreeLine& l) {
    return std::string(2 * l.depth, ' ') + printable_line(l.label);
  };
  size_t width = 0;
  for (const TreeLine& l : lines) width = std::max(width, indented(l).size());
  uint64_t shown = 0;
  for (const TreeLine& l : lines) {
    std::string what, count;
    if (l.leaf) {
      const TensorGroup& g = r.tensors[*l.leaf];
      what = describe(g.dtype, g.shape);
      if (g.count > 1) count = fmt::format("{} x", g.count);
    }
    print_stdout("{:<{}}  {:>9} {:<24}  {:>10}\n", indented(l), width, count, what, format_bytes(l.bytes));
    if (l.depth == 0) shown += l.bytes;
  }
  return shown;
}

void print_totals(const InspectReport& r, uint64_t shown) {
  if (shown != r.data_bytes) {
    if (!r.tensors.empty()) print_stdout("\n{} bytes of {} bytes of tensors\n", shown, r.data_bytes);
    return;
  }
  const uint64_t files = r.data_bytes + r.header_bytes;
  print_stdout("\n{} bytes of tensors + {} of headers = {} bytes of files\n", r.data_bytes, r.header_bytes,
               files);
  if (r.other_files.empty()) return;
  print_stdout("{} bytes of {}; {} in all\n", r.other_bytes(), counted(r.other_files.size(), "other file"),
               files + r.other_bytes());
}

void print_member(const ModuleStats& s) {
  print_stdout(
      "      {}  zero {:.2f} %, 2:4 {:.2f} %, 4:8-paired {:.2f} %, block scales {:g} to {:g}, global "
      "{:.6g}\n",
      s.name, 100 * s.zero_share, 100 * s.share_2_4, 100 * s.share_4_8_paired, s.scale_min, s.scale_max,
      s.global_max);
}

std::string shape_text(const ModuleGroup& m) {
  return m.e > 1 ? fmt::format("[{}, {}, {}]", m.e, m.n, m.k) : fmt::format("[{}, {}]", m.n, m.k);
}

void print_report(const Common& common, const InspectReport& r, const std::string& path) {
  print_stdout("{}: {}\n{} in {}\n\n", path, r.what, counted(r.tensor_count, "tensor"),
               counted(r.file_count, "file"));
  print_totals(r, print_tree(r));
  if (common.verbose) {
    for (const auto& [name, bytes] : r.other_files) print_stdout("  {}  {}\n", name, format_bytes(bytes));
  }
  if (!r.modules.empty()) print_stdout("\nNVFP4 modules, [N, K] or [E, N, K]\n");
  for (const ModuleGroup& m : r.modules) {
    print_stdout("  {}  {}  {}  {}\n", m.name, shape_text(m), m.dialect, format_bytes(m.bytes));
    if (m.stats) print_stats(*m.stats);
    if (!common.verbose || m.members.size() < 2) continue;
    for (const ModuleStats& member : m.members) print_member(member);
  }
  if (!r.other_modules.empty()) {
    print_stdout("\nmodules in other formats, [N, K] or [E, N, K]\n");
    for (const ModuleGroup& m : r.other_modules)
      print_stdout("  {}  {}  {}  {}\n", m.name, shape_text(m), m.dialect, format_bytes(m.bytes));
  }
  if (!r.layout_bytes.empty()) {
    print_stdout("\nwhat convert takes by default: {} now", format_bytes(r.default_set_bytes));
    for (const auto& [layout, bytes] : r.layout_bytes)
      print_stdout(", {} as {}", format_bytes(bytes), layout);
    print_stdout("\n");
  }
}

/// Prints the values of dimension `depth`, from value `next` on, in brackets like NumPy, with one line per
/// innermost row.
void print_values(const SliceValues& s, size_t depth, size_t width, size_t& next) {
  if (depth == s.shape.size()) {
    print_stdout("{:>{}}", fmt::format("{:g}", s.values[next++]), depth == 0 ? 0 : width);
    return;
  }
  const bool row = depth + 1 == s.shape.size();
  print_stdout("[");
  for (int64_t i = 0; i < s.shape[depth]; ++i) {
    if (i > 0) print_stdout("{}", Lines{row ? " " : "\n" + std::string(depth + 1, ' ')});
    print_values(s, depth + 1, width, next);
  }
  print_stdout("]");
}

Json values_to_json(const SliceValues& s) {
  Json values = Json::array();
  for (const double v : s.values) values.push_back(std::isfinite(v) ? Json(v) : Json(fmt::format("{}", v)));
  return {{"name", s.name}, {"format", s.format}, {"whole", s.whole}, {"shape", s.shape}, {"values", values}};
}

int run_values(const InspectArguments& o, const RemoteSource& source, const Common& common) {
  const Checkpoint checkpoint =
      open_source(source.path(), ReadPath::kFast, {}, Io::kCached, parse_zero_points(o.zero_points));
  const SliceValues slice = read_slice(checkpoint, o.values);
  checkpoint.check_same_files();
  if (common.json) {
    print_json(values_to_json(slice));
    return kDone;
  }
  size_t width = 0, next = 0;
  for (const double v : slice.values) width = std::max(width, fmt::format("{:g}", v).size());
  print_stdout("{}: {} [{}]\n", o.values, slice.format, fmt::join(slice.whole, ", "));
  print_values(slice, 0, width, next);
  print_stdout("\n");
  return kDone;
}

int run_inspect(const InspectArguments& o, const Common& common) {
  if (o.stats || !o.html.empty()) refuse_remote(o.path, "--stats and --html read all weights");
  const RemoteSource source(o.path);
  if (!o.values.empty()) return run_values(o, source, common);
  const Checkpoint checkpoint = Checkpoint::open(source.path());
  if (!o.at.empty()) {
    const size_t colon = o.at.rfind(':');
    const std::string digits = colon == std::string::npos ? "" : o.at.substr(colon + 1);
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) {
      throw Error(fmt::format("--at: expected TENSOR:OFFSET, found '{}'", o.at));
    }
    const std::string text = describe_byte(checkpoint, o.at.substr(0, colon), std::stoull(digits));
    checkpoint.check_same_files();
    if (common.json) {
      print_json({{"at", o.at}, {"text", text}});
    } else {
      print_stdout("{}\n", text);
    }
    return kDone;
  }
  if (!o.html.empty()) check_report_file(o.html);
  const bool stats = o.stats || !o.html.empty();
  const InspectReport report =
      inspect(checkpoint, parse_pattern_option("--tensor", o.tensors), stats, common.jobs);
  checkpoint.check_same_files();
  if (!o.html.empty()) write_report(o.html, inspect_report(report, o.path));
  print_findings(common, report.findings);
  if (common.json) {
    print_report_json(report);
  } else {
    print_report(common, report, o.path);
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_inspect(Arguments& args, const Common& common) {
  auto o = std::make_shared<InspectArguments>();
  args.option("PATH", o->path, or_url("Checkpoint or artifact directory, or one safetensors file"))
      .required()
      .as_checkpoint();
  args.option("--tensor", o->tensors, "Show only these tensors and modules: name, glob or re:regex")
      .value_name("PATTERN");
  args.flag("--stats", o->stats,
            "Read the weights: code histogram, zeros, 2:4 and 4:8 compliance, scale ranges");
  args.option("--at", o->at, "Explain one stored byte").value_name("TENSOR:OFFSET");
  args.option(
          "--values", o->values,
          "Print weights or elements as numbers: NAME or NAME[e, n, k0:k1]. A module's name prints decoded "
          "weights, a tensor's name what it stores")
      .value_name("NAME")
      .excludes("--at");
  add_zero_points_option(args, o->zero_points, "that --values prints");
  add_html_option(args, o->html).excludes("--at").excludes("--values");
  return [o, &common] { return run_inspect(*o, common); };
}

}  // namespace twofour
