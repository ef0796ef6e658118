#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/report/report.h"
#include "tests/support/faults/faults.h"
#include "tests/support/scratch.h"

namespace report_test {

using namespace twofour;
namespace fs = std::filesystem;

namespace {

/// The data of a page, as a browser reads them.
Json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return parse_json("page", page.substr(begin, page.find("</script>", begin) - begin));
}

std::string name_of(const Json& data, size_t row) {
  std::string name;
  const Json& parts = data["kinds"][data["rows"]["kind"][row].get<size_t>()];
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) name += std::to_string(data["rows"]["numbers"][row][i - 1].get<int64_t>());
    name += parts[i].get<std::string>();
  }
  return name;
}

LintReport lint_with_figures(const fs::path& path) {
  LintOptions options;
  options.jobs = 2;
  options.figures = true;
  Progress progress;
  return lint(path, options, progress);
}

}  // namespace

TEST_CASE("a page holds names and figures as they are") {
  Report report;
  report.metrics = {{"x", "x", ReportUnit::kNumber, ReportCell::kMean}};
  const std::vector<std::string> names = {"model.layers.10.mlp.experts.3.up_proj",
                                          "lm_head",
                                          "a.01.b",
                                          "7",
                                          "x.1234567890.y",
                                          "quote\"</script><!--\\",
                                          ""};
  for (size_t i = 0; i < names.size(); ++i)
    report.rows.push_back({names[i], {i == 1 ? NAN : 1.0 / 3 + double(i)}});
  const Json data = data_of(report_html(report));
  REQUIRE(data["rows"]["kind"].size() == names.size());
  for (size_t i = 0; i < names.size(); ++i) CHECK(name_of(data, i) == names[i]);
  CHECK(data["rows"]["figures"][0][1].is_null());
  CHECK(data["rows"]["figures"][0][0] == 0.3333);
}

TEST_CASE("a page begins and ends no script but its own") {
  Report report;
  report.subject = "</script><script>alert(1)</script>";
  const std::string page = report_html(report);
  size_t count = 0;
  for (size_t at = page.find("<script"); at != page.npos; at = page.find("<script", at + 1)) ++count;
  CHECK(count == 3);
  CHECK(page.find("http-equiv=\"Content-Security-Policy\"") != page.npos);
  CHECK(page.find("{{") == page.npos);
  CHECK(data_of(page)["subject"] == report.subject);
}

TEST_CASE("findings count where they are: a module, a tensor of it, or all below a name") {
  const Scratch scratch;
  Save save = sound_checkpoint();
  std::mt19937 random(3);
  for (const Fault& f : content_faults()) {
    if (std::string(f.rule) == "unequal-global-scales") f.spoil(save, random);
  }
  write_save(save, scratch / "faulty");
  const LintReport linted = lint_with_figures(scratch / "faulty");
  const Report report = lint_report(linted, scratch / "faulty");
  REQUIRE(report.metrics[0].id == "findings");
  REQUIRE(report.metrics[4].id == "fused_ratio");
  size_t counted = 0, unequal = 0;
  for (const ReportRow& row : report.rows) {
    counted += row.figures[0] > 0;
    unequal += row.figures[4] > 1;
    // A group of fused linears is named by what stands above them.
    if (row.figures[4] > 1) CHECK(row.figures[0] > 0);
  }
  CHECK(unequal >= 2);
  CHECK(counted >= unequal);
  CHECK(report.failed);
}

TEST_CASE("figures do not depend on the number of threads, and count every code") {
  const Scratch scratch;
  write_save(sound_checkpoint(), scratch / "sound");
  const Checkpoint c = Checkpoint::open(scratch / "sound");
  const InspectReport one = inspect(c, {}, true, 1), four = inspect(c, {}, true, 4);
  CHECK(report_html(inspect_report(one, "x")) == report_html(inspect_report(four, "x")));
  const Report report = inspect_report(one, "x");
  REQUIRE(report.rows.size() == c.nvfp4_modules().size());
  uint64_t codes = 0, weights = 0;
  for (const auto& [kind, stats] : report.histograms) codes += stats.weights();
  for (const Nvfp4Linear& m : c.nvfp4_modules()) weights += static_cast<uint64_t>(m.e * m.n * m.k);
  CHECK(codes == weights);
  REQUIRE(report.metrics[3].id == "fused_ratio");
  for (const ReportRow& row : report.rows) {
    INFO(row.name);
    const bool fused = row.name.ends_with("gate_proj") || row.name.ends_with("up_proj") ||
                       row.name.ends_with("q_proj") || row.name.ends_with("k_proj") ||
                       row.name.ends_with("v_proj");
    CHECK(std::isnan(row.figures[3]) == !fused);
    if (fused) CHECK(row.figures[3] == 1);
  }
}

TEST_CASE("a page of diff says what moved, in a table only then") {
  DiffResult diff;
  CHECK(diff_report(diff, 0).tables.empty());
  diff.moved = {{Moved::kRows, "model.layers.0.mlp.up_proj", "rows in another order"}};
  const Report report = diff_report(diff, 0);
  REQUIRE(report.tables.size() == 1);
  CHECK(report.tables[0].rows == std::vector<std::vector<std::string>>{
                                     {"model.layers.0.mlp.up_proj", "rows", "rows in another order"}});
}

TEST_CASE("a page of diff shows keys of configs that differ") {
  DiffResult diff;
  diff.config = {{"config.json", "rope_theta", "10000.0", "12345.0", true},
                 {"config.json", "transformers_version", "", "\"5.17\"", false}};
  const Report report = diff_report(diff, 1);
  REQUIRE(report.tables.size() == 1);
  CHECK(report.tables[0].rows == std::vector<std::vector<std::string>>{
                                     {"config.json", "rope_theta", "10000.0", "12345.0", "counts"},
                                     {"config.json", "transformers_version", "none", "\"5.17\"", ""}});
}

TEST_CASE("a report of an evaluation holds its layers, positions and worst predictions") {
  EvalFigures f;
  f.predictions = 2;
  f.loss = {std::log(20.0), 0.01};
  f.positions = {{0, 4, 1, 3.5, 0.25, 1}, {4, 8, 1, 2.5, 0.5, 0}};
  f.worst = {{0, 5, 7, 1, 2, 2.5, 2.0, 0.5}};
  CHECK(eval_report(f, "model", "", {}).curves.size() == 1);
  CHECK(eval_report(f, "model", "", {}).rows.empty());
  f.against = AgainstFigures{{3, 0}, {0, 0}, {0.375, 0.1}, 0.5, 0.5, {{1, 0}, {0.75, 0.5}}};
  const Report report = eval_report(f, "model", "other", {"'x' behind 'y'"});
  CHECK(report.subject == "model against other");
  CHECK(report.verdict == "perplexity 20.00 ± 0.20");
  REQUIRE(report.rows.size() == 2);
  CHECK(report.rows[1].name == "model.layers.1");
  CHECK(report.rows[1].figures == std::vector<double>{0.5, 0.75});
  REQUIRE(report.curves.size() == 3);
  CHECK(report.curves[0].x == std::vector<double>{1.5, 5.5});
  CHECK(report.curves[1].y == std::vector<double>{0.25, 0.5});
  REQUIRE(report.tables.size() == 1);
  CHECK(report.tables[0].rows[0] ==
        std::vector<std::string>{"0", "5", "7", "2.5", "2", "0.5", "'x' behind 'y'"});
  CHECK(data_of(report_html(report))["curves"][2]["unit"] == "share");
}

TEST_CASE("many places are counted, and the page stays small") {
  Report report;
  report.rules = {{Severity::kError, "rule", "", "", "", ""}};
  for (int i = 0; i < 100'000; ++i)
    report.findings.push_back(
        {0, Severity::kError, "file", "name" + std::to_string(i), std::string(60, 'x')});
  const std::string page = report_html(report);
  CHECK(page.size() < 1'000'000);
  CHECK(data_of(page)["rules"][0]["count"] == 100'000);
}

TEST_CASE("a report replaces only a report, and nothing is left of one that fails") {
  const Scratch scratch;
  const fs::path file = scratch / "report.html";
  write_report(file, {});
  const std::string first = read_text(file);
  Report second;
  second.command = "lint";
  write_report(file, second);
  CHECK(read_text(file) != first);
  write_text(scratch / "model.safetensors", "weights");
  CHECK_THROWS_WITH_AS(write_report(scratch / "model.safetensors", {}),
                       doctest::Contains("found something else"), Error);
  CHECK(read_text(scratch / "model.safetensors") == "weights");
  CHECK_THROWS_AS(check_report_file(scratch.path), Error);
  CHECK_THROWS_AS(check_report_file(scratch / "nowhere" / "report.html"), Error);
  fs::create_symlink(scratch / "model.safetensors", scratch / "link");
  CHECK_THROWS_AS(check_report_file(scratch / "link"), Error);
  CHECK(std::distance(fs::directory_iterator(scratch.path), {}) == 3);
}

}  // namespace report_test
