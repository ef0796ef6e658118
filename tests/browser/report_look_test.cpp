#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "tests/support/faults/faults.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/program.h"
#include "tests/support/report_page.h"

namespace report_look_test {

using namespace twofour;

TEST_CASE("every report fits 390, 800 and 1400 pixels, light and dark") {
  if (browser().empty()) return;
  const Scratch scratch;
  const auto at = [&](const char* name) { return (scratch / name).string(); };
  const auto page = [&](const std::vector<std::string>& words) {
    std::vector<std::string> with = words;
    with.insert(with.end(), {"--html", at("page.html")});
    const Outcome o = run_program(with);
    CHECK_MESSAGE(o.code < 2, o.err);
    check_fits(scratch, scratch / "page.html");
  };
  const fs::path faulty = write_faulty(scratch);
  page({"lint", faulty.string()});
  page({"inspect", faulty.string(), "--stats"});
  write_save(sound_checkpoint(), scratch / "source");
  REQUIRE(run_program({"convert", at("source"), at("v7"), "--to", "v7", "-q"}).code == 0);
  page({"validate", at("v7"), "--source", at("source")});
  page({"diff", at("source"), at("v7")});
}

TEST_CASE("the report of compress has layers, groups, losses before and after, and held-out figures") {
  if (browser().empty()) return;
  const Scratch scratch;
  write_decoder_checkpoint(read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", "llama"),
                           scratch / "model");
  TensorData tokens{"tokens", DType::kI32, {6, 16}, {}};
  for (int i = 0; i < 96; ++i)
    tokens.bytes.insert(tokens.bytes.end(), {static_cast<uint8_t>(i * 37 % 41), 0, 0, 0});
  write_safetensors(scratch / "tokens.safetensors", {tokens});
  const std::string model = (scratch / "model").string(), out = (scratch / "out").string();
  const fs::path page = scratch / "compress.html";
  std::vector<std::string> words = {
      "compress",    model,   out,       "--tokens", (scratch / "tokens.safetensors").string(),
      "--to",        "nvfp4", "--limit", "4",        "--html",
      page.string(), "-q"};
  REQUIRE(run_program(words).code == 0);
  const Visit v = visit(scratch, page, kLook + R"(
seen.facts = Object.fromEntries(data.facts.map((f) => [f.label, f.text || f.number]));
seen.metrics = data.metrics.map((m) => m.id);
seen.pairs = d3.range(rowCount).map((row) => [figure(0, row), figure(1, row)]);
seen.table = data.tables[0];
seen.layers = document.querySelectorAll('#layer-charts > div').length;
)");
  INFO(v.console);
  CHECK(v.console.empty());
  REQUIRE(v.seen.is_object());
  CHECK(v.seen["metrics"] == Json{"output_error", "rounded_error", "relative_error", "output_share"});
  double chosen = 0, rounded = 0;
  for (const Json& pair : v.seen["pairs"]) {
    chosen += pair[0].get<double>();
    rounded += pair[1].get<double>();
  }
  CHECK(chosen > 0);
  CHECK(chosen < rounded);
  CHECK(v.seen["facts"]["tokens"] == 64);
  CHECK(v.seen["facts"]["held-out perplexity"].get<std::string>().find(" ± ") != std::string::npos);
  CHECK(v.seen["facts"].contains("held-out ratio"));
  std::set<std::string> groups;
  for (const Json& row : v.seen["table"]["rows"]) groups.insert(row[0].get<std::string>());
  CHECK(groups.contains("q_proj"));
  CHECK(groups.contains("down_proj"));
  CHECK(v.seen["layers"].get<int>() > 0);
  check_fits(scratch, page);
  // The report changes no byte of the artifact.
  words = {"compress",
           model,
           (scratch / "plain").string(),
           "--tokens",
           (scratch / "tokens.safetensors").string(),
           "--to",
           "nvfp4",
           "--limit",
           "4",
           "-q"};
  REQUIRE(run_program(words).code == 0);
  for (const auto& entry : fs::directory_iterator(scratch / "plain"))
    CHECK(file_text(entry.path()) == file_text(scratch / "out" / entry.path().filename()));
}

TEST_CASE(
    "a report of a dense model has scales that start at its figures, means of what differs, and no expert") {
  if (browser().empty()) return;
  const Scratch scratch;
  write_decoder_checkpoint(read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", "llama"),
                           scratch / "model");
  const std::string model = (scratch / "model").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"quantize", model, out, "-q"}).code == 0);
  const fs::path page = scratch / "diff.html";
  REQUIRE(run_program({"diff", model, out, "--html", page.string()}).code == 1);
  const Visit v = visit(scratch, page, kLook + R"(
const metric = data.metrics.findIndex((m) => m.id === 'relative_error');
const errors = d3.range(rowCount).map((row) => figure(metric, row)).filter((e) => e !== null && e > 0);
seen.zeros = d3.range(rowCount).some((row) => figure(metric, row) === 0);
seen.least = d3.min(errors);
seen.most = d3.max(errors);
heat.metric = metric;
drawHeat();
seen.legend = document.querySelector('#legend span').textContent;
seen.means = byLayer(metric, null).map((p) => p.sum / p.count);
seen.title = document.getElementById('map-title').textContent;
seen.text = JSON.stringify(data).includes('expert 0');
seen.single = (() => {
  const box = document.createElement('div');
  document.body.append(box);
  layerText(box, 'one', [{ metric, label: 'a', points: [{ layer: 3, low: 0.1, high: 0.1, sum: 0.1, count: 1 }] }]);
  return [box.querySelectorAll('svg').length, box.textContent];
})();
)");
  INFO(v.console);
  CHECK(v.console.empty());
  REQUIRE(v.seen.is_object());
  CHECK(v.seen["zeros"] == true);
  // The legend begins at the least error, not at the norms, which nothing touched.
  const double begin = std::stod(v.seen["legend"].get<std::string>()) / 100;
  CHECK(begin == doctest::Approx(v.seen["least"].get<double>()).epsilon(0.01));
  for (const Json& mean : v.seen["means"]) CHECK(mean.get<double>() >= v.seen["least"].get<double>());
  CHECK(v.seen["title"] == "Layers × projections");
  CHECK(v.seen["text"] == false);
  CHECK(v.seen["single"][0] == 0);
  CHECK(v.seen["single"][1].get<std::string>().find("layer 3: 10.00 %") != std::string::npos);
}

}  // namespace report_look_test
