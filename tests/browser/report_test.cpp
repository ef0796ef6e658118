#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "tests/support/faults/faults.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/program.h"
#include "tests/support/report_page.h"

namespace report_test {

using namespace twofour;

TEST_CASE("the browser reports errors of a page's script") {
  if (browser().empty()) return;
  const Scratch scratch;
  std::ofstream(scratch / "bad.html") << "<!doctype html><body><script>nothing.at.all();</script>";
  CHECK(visit(scratch, scratch / "bad.html", "").console.find("nothing is not defined") != std::string::npos);
}

TEST_CASE("the report of a sound checkpoint draws its figures and no finding") {
  if (browser().empty()) return;
  const Scratch scratch;
  write_save(sound_checkpoint(), scratch / "sound");
  const fs::path page = scratch / "inspect.html";
  const Outcome run = run_program({"inspect", (scratch / "sound").string(), "--html", page.string()});
  REQUIRE(run.code == 0);
  const Visit v = visit(scratch, page, kLook + R"(
seen.distinct = seen.colors();
seen.tip = over(0, 0);
seen.codes = data.histograms.reduce((sum, h) => sum + h.codes.reduce((a, b) => a + b), 0);
seen.rows = Number(document.getElementById('module-table').dataset.rows);
seen.light = getComputedStyle(document.body).backgroundColor;
document.getElementById('theme').click();
seen.dark = getComputedStyle(document.body).backgroundColor;
seen.after = seen.colors();
)");
  INFO(v.console);
  CHECK(v.console.empty());
  REQUIRE(v.seen.is_object());
  CHECK(v.seen["ready"] == true);
  CHECK(v.seen["requests"] == 0);
  CHECK(v.seen["verdict"] == "good");
  CHECK(v.seen["cells"].get<int>() > 4);
  CHECK(v.seen["distinct"].get<int>() > 4);  // cells, the empty colour and the text
  CHECK(v.seen["bars"] == 16 + 127);
  CHECK(v.seen["curves"].get<int>() >= 3);
  CHECK(v.seen["rules"].empty());
  CHECK(v.seen["tip"].get<std::string>().find("zero codes") != std::string::npos);
  CHECK(v.seen["codes"].get<int64_t>() > 100'000);
  CHECK(v.seen["rows"].get<int>() > 40);
  CHECK(v.seen["light"] != v.seen["dark"]);
  CHECK(v.seen["after"].get<int>() > 4);
}

TEST_CASE("the report of a faulty checkpoint leads from a finding to its place") {
  if (browser().empty()) return;
  const Scratch scratch;
  const fs::path page = scratch / "lint.html";
  const Outcome run = run_program({"lint", write_faulty(scratch).string(), "--html", page.string()});
  REQUIRE(run.code == 1);
  const Visit v = visit(scratch, page, kLook + R"(
seen.before = Number(document.getElementById('module-table').dataset.rows);
seen.faulty = data.rows.figures[0].filter((n) => n > 0).length;
const rule = document.getElementById('rule-unequal-global-scales');
rule.open = true;
rule.dispatchEvent(new Event('toggle'));
const link = rule.querySelector('button.link');
seen.place = link.textContent;
link.click();
seen.selected = heat.selected;
seen.after = Number(document.getElementById('module-table').dataset.rows);
seen.shown = document.querySelector('#module-table td.name').textContent;
seen.nan = document.querySelector('#number-charts p.bad').textContent;
seen.ratios = document.querySelectorAll('#layer-charts rect.bad-mark').length;
)");
  INFO(v.console);
  CHECK(v.console.empty());
  REQUIRE(v.seen.is_object());
  CHECK(v.seen["verdict"] == "bad");
  CHECK(v.seen["rules"].size() >= 3);
  CHECK(v.seen["faulty"].get<int>() >= 3);
  CHECK(v.seen["before"].get<int>() > v.seen["after"].get<int>());
  CHECK(v.seen["after"] == 1);
  CHECK(v.seen["selected"]["column"] == 0);
  CHECK(v.seen["shown"].get<std::string>().starts_with(v.seen["place"].get<std::string>()));
  CHECK(v.seen["nan"].get<std::string>().find("NaN") != std::string::npos);
  CHECK(v.seen["ratios"].get<int>() >= 2);
}

TEST_CASE("the report of a proof shows the error of each layer and projection") {
  if (browser().empty()) return;
  const Scratch scratch;
  const std::string source = (scratch / "source").string(), artifact = (scratch / "artifact").string();
  write_save(sound_checkpoint(), source);
  REQUIRE(run_program({"convert", source, artifact, "--to", "v7", "--quiet"}).code == 0);
  const fs::path page = scratch / "validate.html";
  REQUIRE(run_program({"validate", artifact, "--source", source, "--html", page.string()}).code == 0);
  const Visit v = visit(scratch, page, kLook + R"(
seen.tip = over(0, 0);
seen.dashes = [...document.querySelectorAll('#layer-charts > div')].map((chart) =>
  [...chart.querySelectorAll('path.series')].map((line) => line.getAttribute('stroke-dasharray')));
seen.share = spanOf({ unit: 'share' }, 0.0863, 0.0872);
seen.spans = [spanOf({ unit: 'share' }, 0.99, 1), spanOf({ unit: 'share' }, 0.001, 0.0011), spanOf({ unit: 'share' }, 0, 0),
              spanOf({ unit: 'cosine' }, 0.9999, 1), spanOf({ unit: 'number' }, 5, 5), spanOf({ unit: 'number' }, 0, 0)];
seen.wide = spanOf({ unit: 'dB' }, 3, 9);
)");
  INFO(v.console);
  CHECK(v.console.empty());
  REQUIRE(v.seen.is_object());
  // Figures from 8.63 to 8.72 % take little of an axis and of a colour scale.
  CHECK(v.seen["share"][1].get<double>() - v.seen["share"][0].get<double>() > 0.049);
  CHECK(v.seen["share"][0].get<double>() < 0.0863);
  for (const Json& span : v.seen["spans"]) CHECK(span[0].get<double>() < span[1].get<double>());
  CHECK(v.seen["spans"][0][1].get<double>() == doctest::Approx(1));
  CHECK(v.seen["spans"][1][0].get<double>() >= 0);
  CHECK(v.seen["wide"] == Json{3, 9});
  bool several = false;
  for (const Json& chart : v.seen["dashes"]) {
    std::set<std::string> distinct;
    for (const Json& dash : chart) distinct.insert(dash.get<std::string>());
    CHECK(distinct.size() == chart.size());  // w2's line shows on top of w13's
    several = several || chart.size() > 1;
  }
  CHECK(several);
  CHECK(v.seen["cells"] == 2 * 3);  // two layers of w13, w2 and the layer's output
  CHECK(v.seen["tip"].get<std::string>().find("relative error") != std::string::npos);
}

TEST_CASE("the report of a comparison shows where two checkpoints differ") {
  if (browser().empty()) return;
  const Scratch scratch;
  write_save(sound_checkpoint(), scratch / "a");
  Save changed = sound_checkpoint();
  changed.at("model.layers.1.mlp.experts.3.up_proj.weight").bytes[5] ^= 0x70;
  write_save(changed, scratch / "b");
  const fs::path page = scratch / "diff.html";
  const Outcome run =
      run_program({"diff", (scratch / "a").string(), (scratch / "b").string(), "--html", page.string()});
  REQUIRE(run.code == 1);
  const Visit v = visit(scratch, page, kLook + R"(
const errors = data.metrics.findIndex((m) => m.id === 'relative_error');
seen.different = d3.range(rowCount).filter((row) => figure(errors, row) > 0).map(nameOf);
document.querySelector('#rules button.link').click();
seen.selected = heat.selected;
)");
  INFO(v.console);
  CHECK(v.console.empty());
  REQUIRE(v.seen.is_object());
  CHECK(v.seen["rules"] == Json{"rule-different"});
  CHECK(v.seen["different"] == Json{"model.layers.1.mlp.experts.3.up_proj"});
  CHECK(v.seen["selected"]["column"] == 1);
}

TEST_CASE("an infinite error has the colour of the worst, and its name") {
  if (browser().empty()) return;
  const Scratch scratch;
  Save zero = sound_checkpoint();
  std::vector<uint8_t>& codes = zero.at("model.layers.1.mlp.experts.3.up_proj.weight").bytes;
  std::fill(codes.begin(), codes.end(), uint8_t{0});
  write_save(zero, scratch / "a");
  write_save(sound_checkpoint(), scratch / "b");
  const fs::path page = scratch / "diff.html";
  REQUIRE(run_program({"diff", (scratch / "a").string(), (scratch / "b").string(), "--html", page.string()})
              .code == 1);
  const Visit v = visit(scratch, page, kLook + R"(
const row = byName.get('model.layers.1.mlp.experts.3.up_proj');
const errors = data.metrics.findIndex((m) => m.id === 'relative_error');
seen.text = figureText(data.metrics[errors], anyFigure(errors, row));
const y = heat.grid.keys.indexOf(data.rows.kind[row]), x = heat.grid.columnIndex.get(1), ratio = window.devicePixelRatio || 1;
const {width, height} = heat.canvas, all = heat.canvas.getContext('2d').getImageData(0, 0, width, height).data;
const pixel = (x, y) => {
  const left = Math.floor((heat.box.left + (x + 0.5) * heat.box.width) * ratio);
  const at = 4 * (Math.floor((y + 0.5) * heat.box.height * ratio) * width + left);
  return [...all.slice(at, at + 4)].join();
};
seen.same = pixel(x, y) === pixel(heat.grid.columnIndex.get(0), y);
seen.empty = pixel(x, y) === '0,0,0,0';
)");
  INFO(v.console);
  CHECK(v.console.empty());
  REQUIRE(v.seen.is_object());
  CHECK(v.seen["text"] == "infinite");
  CHECK(v.seen["same"] == false);
  CHECK(v.seen["empty"] == false);
}

TEST_CASE("the report of an evaluation draws its curves over layers and positions") {
  if (browser().empty()) return;
  const Scratch scratch;
  const DecoderGolden golden =
      read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", "qwen3_moe");
  write_decoder_checkpoint(golden, scratch / "model");
  const std::string model = (scratch / "model").string(), pruned = (scratch / "v7").string();
  REQUIRE(run_program({"convert", model, pruned, "--to", "v7", "-q"}).code == 0);
  TensorData tokens{"tokens", DType::kI32, {1, static_cast<int64_t>(golden.tokens.size())}, {}};
  for (const int32_t token : golden.tokens) {
    for (int i = 0; i < 4; ++i) tokens.bytes.push_back(i == 0 ? static_cast<uint8_t>(token) : uint8_t{0});
  }
  write_safetensors(scratch / "tokens.safetensors", {tokens});
  const fs::path page = scratch / "eval.html";
  REQUIRE(run_program({"eval", pruned, "--against", model, "--tokens",
                       (scratch / "tokens.safetensors").string(), "--html", page.string(), "-q"})
              .code == 0);
  const Visit v = visit(scratch, page, kLook + R"(
seen.points = [...document.querySelectorAll('#curve-charts > div')].map((chart) => chart.querySelectorAll('circle').length);
seen.titles = [...document.querySelectorAll('#curve-charts h3')].map((title) => title.textContent);
seen.layers = document.querySelectorAll('#layer-charts > div').length;
seen.perplexity = data.facts[0].text;
seen.words = [...document.querySelectorAll('#facts dd')].map((d) => d.className);
seen.map = document.getElementById('map-title').textContent;
)");
  INFO(v.console);
  CHECK(v.console.empty());
  REQUIRE(v.seen.is_object());
  // Two digits of the error, as large as the counts beside it; one row is no table of projections.
  const std::string perplexity = v.seen["perplexity"].get<std::string>();
  const size_t sign = perplexity.find(" ± ");
  REQUIRE(sign != perplexity.npos);
  CHECK(perplexity.find("+-") == perplexity.npos);
  CHECK(perplexity.size() - sign < 10);
  CHECK(v.seen["words"][0] == "");
  CHECK(v.seen["map"] == "Layers");
  check_fits(scratch, page);
  CHECK(v.seen["points"] == Json{16, 16, 16});
  CHECK(v.seen["titles"] == Json{"Loss, nats", "Divergence, nats", "Same most probable token"});
  CHECK(v.seen["layers"] == 2);
  CHECK(v.seen["cells"] == 3);
}

TEST_CASE("names in a report are text, whatever they say") {
  if (browser().empty()) return;
  const Scratch scratch;
  Save save = sound_checkpoint();
  const std::string hostile =
      "model.layers.0.</script><script>document.title='owned'</script><img src=x "
      "onerror=alert(1)><!--.\xE2\x80\xA8";
  save.add({hostile, DType::kF32, {1}, {0, 0, 0xC0, 0x7F}});  // NaN, so that lint tells of it too
  write_save(save, scratch / "hostile");
  for (const char* command : {"inspect", "lint"}) {
    const fs::path page = scratch / (std::string(command) + ".html");
    std::vector<std::string> words = {command, (scratch / "hostile").string(), "--html", page.string()};
    if (words[0] == "inspect") words.insert(words.end(), {"--tensor", "*onerror*"});
    run_program(words);
    const Visit v =
        visit(scratch, page, kLook + "seen.text = document.body.innerText.includes('onerror=alert(1)');");
    INFO(std::string(command), v.console);
    CHECK(v.console.empty());
    REQUIRE(v.seen.is_object());
    CHECK(v.seen["title"].get<std::string>().starts_with(std::string("twofour ") + command));
    CHECK(v.seen["images"] == 0);
    CHECK(v.seen["text"] == true);
  }
}

}  // namespace report_test
