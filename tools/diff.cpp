#include "lib/look/diff/diff.h"
#include "formats/error.h"
#include "lib/recipe/artifact/open_unpacked.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "lib/look/diff/gate.h"
#include "lib/look/inspect/inspect.h"
#include "lib/report/report.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/option_values.h"
#include "tools/cli/source_options.h"
#include "tools/text/figures_text.h"

namespace twofour {
namespace {

struct DiffArguments {
  std::string a, b, html, zero_points, config;
  std::vector<std::string> include, exclude, fail_on;
  double tolerance = 0;
  bool headers_only = false;
};

Json counts_to_json(const std::array<uint64_t, kDiffClasses>& counts) {
  Json json;
  for (size_t i = 0; i < kDiffClasses; ++i) json[diff_class_name(static_cast<DiffClass>(i))] = counts[i];
  return json;
}

/// The values in A and B at the first difference. They are exact even if floats would round them.
std::array<ElementValue, 2> values_of(const WeightDifference& at, const FirstValues& first) {
  return first.value_or(std::array<ElementValue, 2>{double{at.expected}, double{at.found}});
}

Json value_to_json(const ElementValue& value) {
  if (const double* number = std::get_if<double>(&value)) return figure_to_json(*number);
  return std::visit([](auto v) { return Json(v); }, value);
}

/// A value with as many digits as distinguish it from all other values of its type.
std::string value_text(const ElementValue& value, bool exact) {
  const double* number = std::get_if<double>(&value);
  if (number && !exact) return fmt::format("{}", static_cast<float>(*number));
  return std::visit([](auto v) { return fmt::format("{}", v); }, value);
}

Json error_to_json(const ValueError& e, const FirstValues& first) {
  Json json = {{"values", e.weights},
               {"different", e.beyond},
               {"cosine", figure_to_json(e.cosine())},
               {"snr_db", figure_to_json(e.snr_db())},
               {"relative_error", figure_to_json(e.relative_error())},
               {"max_abs", figure_to_json(e.max_abs)}};
  if (e.first.e >= 0) {
    const auto [a, b] = values_of(e.first, first);
    json["first"] = {{"expert", e.first.e},
                     {"n", e.first.n},
                     {"k", e.first.k},
                     {"a", value_to_json(a)},
                     {"b", value_to_json(b)}};
  }
  return json;
}

Json side_to_json(const DiffSide& side) {
  if (!side.is_there()) return nullptr;
  return {{"tensor", side.tensor}, {"format", side.format}, {"shape", side.shape}};
}

Json entry_to_json(const DiffResult& r, const DiffEntry& e) {
  Json json = {{"name", e.name},
               {"kind", diff_kind_name(e.kind)},
               {"class", diff_class_name(e.cls)},
               {"layer", r.rows[e.row].layer},
               {"projection", r.rows[e.row].projection},
               {"expert", e.expert < 0 ? Json(nullptr) : Json(e.expert)},
               {"renamed", e.renamed()},
               {"same_bytes", e.same_bytes},
               {"a", side_to_json(e.a)},
               {"b", side_to_json(e.b)}};
  if (e.has_figures()) json["figures"] = error_to_json(e.error, e.first);
  if (!e.message.empty()) json["message"] = e.message;
  return json;
}

const char* state_name(DiffFile::State state) {
  switch (state) {
    case DiffFile::State::kSame:
      return "same";
    case DiffFile::State::kDifferent:
      return "different";
    case DiffFile::State::kOnlyA:
      return "only in A";
    case DiffFile::State::kOnlyB:
      return "only in B";
  }
  return "";
}

void print_result_json(const DiffResult& r, uint64_t failed) {
  Json rows = Json::array(), files = Json::array();
  for (const DiffRow& row : r.rows) {
    Json json = {
        {"layer", row.layer}, {"projection", row.projection}, {"counts", counts_to_json(row.counts)}};
    if (row.error.weights > 0) {
      json["figures"] = error_to_json(row.error, row.first);
      json["worst"] = r.entries[row.worst].name;
    }
    rows.push_back(std::move(json));
  }
  for (const DiffFile& f : r.files) files.push_back({{"name", f.name}, {"state", state_name(f.state)}});
  Json config = Json::array();
  for (const ConfigDifference& d : r.config) {
    config.push_back({{"file", d.file},
                      {"key", d.key},
                      {"a", d.a.empty() ? Json(nullptr) : Json(d.a)},
                      {"b", d.b.empty() ? Json(nullptr) : Json(d.b)},
                      {"counts", d.counts}});
  }
  Json moved = Json::array();
  for (const MovedWeights& m : r.moved) {
    Json pairs = Json::array();
    for (const auto& [a, b] : m.pairs) pairs.push_back({{"a", a}, {"b", b}});
    moved.push_back({{"how", moved_name(m.how)}, {"name", m.name}, {"message", m.text}, {"pairs", pairs}});
  }
  const Json head = {{"a", {{"path", r.a}, {"what", r.a_what}, {"tensors", r.a_tensors}}},
                     {"b", {{"path", r.b}, {"what", r.b_what}, {"tensors", r.b_tensors}}},
                     {"tolerance", r.tolerance},
                     {"headers_only", r.headers_only},
                     {"failed", failed},
                     {"counts", counts_to_json(r.counts)},
                     {"renamed", r.renamed},
                     {"same_bytes", r.same_bytes},
                     {"rows", rows},
                     {"files", files},
                     {"config", config},
                     {"moved", moved},
                     {"findings", findings_to_json(r.findings)}};
  const auto entry = [&](size_t i) { return entry_to_json(r, r.entries[i]); };
  print_json(head, {{"entries", r.entries.size(), entry}});
}

std::string figures_text(const ValueError& e) {
  return fmt::format("cosine {:.6g}, SNR {:.2f} dB, max abs {:.4g}", e.cosine(), e.snr_db(), e.max_abs);
}

std::string shape_text(const DiffSide& side) {
  return fmt::format("{} [{}]", side.format, fmt::join(side.shape, ", "));
}

std::string entry_text(const DiffEntry& e) {
  std::string text = fmt::format("{}: ", e.name);
  if (e.cls == DiffClass::kUnreadable) return text + e.message;
  if (e.cls == DiffClass::kShape || e.cls == DiffClass::kType) {
    return text + fmt::format("{}: {} against {}", e.message, shape_text(e.a), shape_text(e.b));
  }
  const ValueError& v = e.error;
  const std::string sides =
      e.a.format == e.b.format ? shape_text(e.a) : fmt::format("{} against {}", shape_text(e.a), e.b.format);
  if (v.beyond == 0) return text + fmt::format("{}, {}", sides, figures_text(v));
  const auto [a, b] = values_of(v.first, e.first);
  const std::string expert = e.expert >= 0 ? fmt::format("expert {}, ", v.first.e) : "";
  text += fmt::format("{} of {} values of {}, first at {}row {}, column {}: {} in A, {} in B", v.beyond,
                      v.weights, sides, expert, v.first.n, v.first.k, value_text(a, e.first.has_value()),
                      value_text(b, e.first.has_value()));
  return v.error > 0 ? fmt::format("{}; {}", text, figures_text(v)) : text;
}

/// Prints the entries of a class, at most `shown` lines. Removed and added entries are printed by folded
/// names, and entries of other classes one per line.
void print_class(const DiffResult& r, DiffClass cls, size_t shown) {
  std::vector<std::string> lines, names;
  for (const DiffEntry& e : r.entries) {
    if (e.cls != cls) continue;
    if (cls == DiffClass::kRemoved || cls == DiffClass::kAdded) {
      names.push_back(fmt::format("{}  {}", e.name, shape_text(cls == DiffClass::kAdded ? e.b : e.a)));
    } else if (lines.size() < shown) {
      lines.push_back(entry_text(e));
    }
  }
  for (const auto& [name, members] : fold_names(names)) {
    lines.push_back(members.size() > 1 ? fmt::format("{}  ({})", name, members.size()) : name);
  }
  const uint64_t all = names.empty() ? r.count(cls) : lines.size();
  if (all == 0) return;
  print_stdout("{}\n", diff_class_name(cls));
  for (size_t i = 0; i < std::min(shown, lines.size()); ++i) print_stdout("  {}\n", lines[i]);
  if (all > shown) print_stdout("  ... and {} more (--verbose shows all)\n", all - shown);
  print_stdout("\n");
}

/// Prints the rows (layer and projection) that have figures, at most `shown`.
void print_rows(const DiffResult& r, size_t shown) {
  std::vector<const DiffRow*> rows;
  size_t width = 0;
  for (const DiffRow& row : r.rows) {
    if (row.error.weights == 0) continue;
    rows.push_back(&row);
    if (rows.size() <= shown) width = std::max(width, row.layer.size() + row.projection.size() + 1);
  }
  if (rows.size() < 2) return;
  print_stdout("by layer and projection, of what differs\n");
  for (size_t i = 0; i < std::min(shown, rows.size()); ++i) {
    const DiffRow& row = *rows[i];
    const std::string name =
        row.layer.empty() ? row.projection : fmt::format("{}.{}", row.layer, row.projection);
    const uint64_t count = row.count(DiffClass::kDifferent) + row.count(DiffClass::kWithin);
    print_stdout("  {:<{}}  {:>9}  {}\n", name, width, fmt::format("{}/{}", count, row.entries()),
                 figures_text(row.error));
  }
  if (rows.size() > shown) print_stdout("  ... and {} more (--verbose shows all)\n", rows.size() - shown);
  print_stdout("\n");
}

/// Prints the tensors that differ and whose content B has elsewhere, at most `shown`.
void print_moved(const DiffResult& r, size_t shown) {
  if (r.moved.empty()) return;
  print_stdout("elsewhere, or in another order, in B\n");
  for (size_t i = 0; i < std::min(shown, r.moved.size()); ++i)
    print_stdout("  {}: {}\n", r.moved[i].name, r.moved[i].text);
  if (r.moved.size() > shown)
    print_stdout("  ... and {} more (--verbose shows all)\n", r.moved.size() - shown);
  print_stdout("\n");
}

/// Prints the keys of configs that differ: first those that change what a model computes, at most `shown` of
/// each.
void print_config(const DiffResult& r, size_t shown) {
  for (const bool counts : {true, false}) {
    size_t all = 0;
    for (const ConfigDifference& d : r.config) {
      if (d.counts != counts || all++ >= shown) continue;
      if (all == 1) print_stdout("{}\n", counts ? "config" : "other keys of configs");
      const auto text = [](const std::string& value) { return value.empty() ? "nothing" : value.c_str(); };
      print_stdout("  {}: {}: {} against {}\n", d.file, d.key, text(d.a), text(d.b));
    }
    if (all > shown) print_stdout("  ... and {} more (--verbose shows all)\n", all - shown);
    if (all > 0) print_stdout("\n");
  }
}

void print_files(const DiffResult& r) {
  std::map<DiffFile::State, std::vector<std::string>> by_state;
  for (const DiffFile& f : r.files) by_state[f.state].push_back(f.name);
  for (const auto& [state, names] : by_state) {
    if (state == DiffFile::State::kSame) continue;
    print_stdout("other files, {}: {}\n", state_name(state), fmt::format("{}", fmt::join(names, ", ")));
  }
}

/// A hint if whatever differs has another format in B, as after a conversion that rounds. Empty otherwise.
std::string rounding_hint(const DiffResult& r) {
  const auto differs = [](const DiffEntry& e) { return e.cls == DiffClass::kDifferent; };
  const auto is_converted = [&](const DiffEntry& e) { return !differs(e) || e.a.format != e.b.format; };
  const auto first = std::ranges::find_if(r.entries, differs);
  if (first == r.entries.end() || !std::ranges::all_of(r.entries, is_converted)) return {};
  return fmt::format(
      "hint: all that differ have another format in B ({} against {}), as after a conversion that rounds; "
      "--fail-on "
      "'snr<20' judges how much, --tolerance each value\n",
      first->a.format, first->b.format);
}

void print_result(const Common& common, const DiffResult& r, uint64_t failed) {
  print_stdout("A  {}: {}, {}\nB  {}: {}, {}\n\n", r.a, r.a_what, counted(r.a_tensors, "tensor"), r.b,
               r.b_what, counted(r.b_tensors, "tensor"));
  constexpr size_t kFew = 10, kFewRows = 40;
  for (const DiffClass cls : {DiffClass::kDifferent, DiffClass::kShape, DiffClass::kType,
                              DiffClass::kUnreadable, DiffClass::kRemoved, DiffClass::kAdded}) {
    print_class(r, cls, common.verbose ? r.entries.size() : kFew);
  }
  if (common.verbose) print_class(r, DiffClass::kWithin, r.entries.size());
  print_moved(r, common.verbose ? r.moved.size() : kFewRows);
  print_rows(r, common.verbose ? r.rows.size() : kFewRows);
  print_config(r, common.verbose ? r.config.size() : kFewRows);
  print_files(r);
  std::string text = r.headers_only ? fmt::format("{} compared by headers, no weights read", r.entries.size())
                                    : fmt::format("{} compared: {} equal ({} byte for byte)",
                                                  r.entries.size(), r.count(DiffClass::kEqual), r.same_bytes);
  if (r.count(DiffClass::kReciprocal) > 0) {
    text += fmt::format(", {} equal up to a reciprocal's last bit", r.count(DiffClass::kReciprocal));
  }
  for (size_t i = static_cast<size_t>(DiffClass::kWithin); i < kDiffClasses; ++i) {
    if (r.counts[i] > 0) {
      text += fmt::format(", {} {}", r.counts[i], diff_class_name(static_cast<DiffClass>(i)));
    }
  }
  const auto keys = std::ranges::count_if(r.config, [](const ConfigDifference& d) { return d.counts; });
  if (keys > 0) text += fmt::format(", {} of configs", counted(static_cast<uint64_t>(keys), "key"));
  if (r.renamed > 0) text += fmt::format("; {} under other names", r.renamed);
  print_stdout("{}{}\n", text, failed > 0 ? fmt::format("; {} fail{}", failed, failed == 1 ? "s" : "") : "");
  if (failed > 0) print_stdout("{}", Lines{rounding_hint(r)});
}

int run_diff(const DiffArguments& o, const Common& common) {
  if (!o.html.empty()) check_report_file(o.html);
  const DiffGate gate = parse_diff_gate(o.fail_on);
  const DiffOptions options{parse_pattern_option("--include", o.include),
                            parse_pattern_option("--exclude", o.exclude), o.tolerance, o.headers_only,
                            o.config != "ignore"};
  if (!std::isfinite(o.tolerance))
    throw Error(fmt::format("--tolerance: expected a finite number, found {}", o.tolerance));
  if (o.headers_only && gate.asks_for_figures())
    throw Error(
        "--fail-on: expected classes with --headers-only, which has no figures, found a limit of one");
  for (const std::string& path : {o.a, o.b}) {
    if (!o.headers_only) refuse_remote(path, "diff reads all weights of it without --headers-only");
  }
  const RemoteSource first(o.a), second(o.b);
  const ZeroPoints zero_points = parse_zero_points(o.zero_points);
  const Checkpoint a = open_source(first.path(), ReadPath::kFast, {}, Io::kCached, zero_points);
  const Checkpoint b = open_source(second.path(), ReadPath::kFast, {}, Io::kCached, zero_points);
  DiffResult result;
  with_progress(common, [&](Progress& progress) { result = diff(a, b, options, progress); });
  for (const Checkpoint* c : {&a, &b}) c->check_same_files();
  result.a = o.a;  // a file's own name instead of its directory's
  result.b = o.b;
  const uint64_t failed = gate.count(result);
  if (!o.html.empty()) write_report(o.html, diff_report(result, failed));
  print_findings(common, result.findings);
  if (common.json) {
    print_result_json(result, failed);
  } else if (!common.quiet) {
    print_result(common, result, failed);
  }
  return failed > 0 ? kFound : kDone;
}

}  // namespace

std::function<int()> setup_diff(Arguments& args, const Common& common) {
  auto o = std::make_shared<DiffArguments>();
  args.option("A", o->a, or_url("Checkpoint or artifact, in any dialect or layout"))
      .required()
      .as_checkpoint();
  args.option("B", o->b, or_url("Checkpoint or artifact to compare with A")).required().as_checkpoint();
  args.option("--include", o->include, "Compare only these modules or tensors: name, glob or re:regex")
      .value_name("PATTERN");
  args.option("--exclude", o->exclude, "Do not compare these modules or tensors").value_name("PATTERN");
  args.flag("--headers-only", o->headers_only,
            "Compare names, shapes, formats and small files; read no weights")
      .excludes("--tolerance")
      .excludes("--html");
  add_zero_points_option(args, o->zero_points, "of A and B");
  args.option("--tolerance", o->tolerance, "Largest difference of a value that passes, relative to A's")
      .range(0.0, 1e30);
  args.option(
          "--fail-on", o->fail_on,
          "Differences that end with exit code 1: any, none, a class (config, different, removed, "
          "added, unlike-shape, unlike-type, unreadable, within-tolerance, reciprocal), cosine<X, snr<DB, "
          "max-abs>X. Commas separate several")
      .separated_by(',')
      .value_name("GATE")
      .default_text("any");
  args.option("--config", o->config, "Compare keys of configs that change what a model computes")
      .one_of({"compare", "ignore"})
      .default_text("compare, without --include");
  add_html_option(args, o->html);
  return [o, &common] { return run_diff(*o, common); };
}

}  // namespace twofour
