#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "formats/half.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"
#include "tests/tools/commands/stats_model.h"

namespace cli_stats_test {

using namespace twofour;
using namespace stats_model;

TEST_CASE(
    "quantize --stats, every method and dialect: proven row by row, the same for any jobs, and better") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string();
  std::map<std::string, double> losses;
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {},
           {"--method", "rtn"},
           {"--pattern", "2:4"},
           {"--pattern", "2:4", "--method", "wanda"},
           {"--pattern", "2:4", "--sweeps", "0"},
           {"--pattern", "4:8-paired", "--dialect", "compressed-tensors"}}) {
    std::string name = "out";
    for (const std::string& w : words)
      name += w == "2:4" ? "24" : w == "4:8-paired" ? "48" : w.substr(w.find_last_of('-') + 1);
    const std::string out = (scratch / name).string();
    std::vector<std::string> command{"quantize", src, out, "--stats", stats, "-j", "1"};
    command.insert(command.end(), words.begin(), words.end());
    const Outcome made = run_program(command);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    CHECK(made.out.find("outputs of 7 of 7 matrices by their statistics") != std::string::npos);
    command[2] = out + "-again";
    command[6] = "5";
    REQUIRE(run_program(command).code == 0);
    CHECK(read_tree(out) == read_tree(out + "-again"));
    const Outcome proof = run_program({"validate", out, "--source", src, "--stats", stats});
    CHECK_MESSAGE(proof.code == 0, proof.out);
    CHECK(proof.out.find("rows that were solved by statistics") != std::string::npos);
    const Outcome all = run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"});
    CHECK_MESSAGE(all.code == 0, all.out);
    CHECK(all.out.find("every byte derived again from the source, equal\n") != std::string::npos);
    losses[name] = loss_of(out, kLayer + "mlp.down_proj");
    CHECK(losses[name] > 0);
  }
  CHECK(losses["out"] < losses["outmethodrtn"]);
  CHECK(losses["outpattern24"] < losses["outpattern24sweeps0"]);
  CHECK(losses["outpattern24sweeps0"] < losses["outpattern24methodwanda"]);
}

TEST_CASE(
    "an artifact of a method that is gone is read, converted and linted; its proof names the last version") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    out = (scratch / "out").string();
  const auto quantize = [&](const std::string& method) {
    return run_program({"quantize", src, out, "--pattern", "2:4", "--stats", stats, "--method", method});
  };
  CHECK(quantize("sparsegpt").err.find("expected joint, gptq, wanda, rtn, magnitude, found 'sparsegpt'") !=
        std::string::npos);
  REQUIRE(quantize("joint").code == 0);
  std::string manifest = read_text(scratch / "out/twofour.json");
  const std::string word = "\"joint\"";
  for (size_t at = manifest.find(word); at != manifest.npos; at = manifest.find(word, at))
    manifest.replace(at, word.size(), "\"sparsegpt\"");
  write_sealed(scratch / "out/twofour.json", manifest);
  CHECK(run_program({"validate", out}).code == 0);
  CHECK(run_program({"convert", out, out + "-v7", "--to", "v7"}).code == 0);
  CHECK(run_program({"lint", out}).code != 2);
  const Outcome proof = run_program({"validate", out, "--source", src, "--stats", stats});
  CHECK(proof.code == 2);
  CHECK(proof.err.find("found sparsegpt, which twofour 0.2.0 was the last to have") != std::string::npos);
}

TEST_CASE("output errors under held-out sums are reported beside those of calibration, and proven") {
  const Scratch scratch;
  write_model(scratch / "src");
  StatisticsBuilder b = statistics();
  const std::string down = kLayer + "mlp.down_proj", o = kLayer + "self_attn.o_proj";
  b.add_floats("heldout." + down + ".hessian", {80, 80}, StatisticsBuilder::sums(80, 300, 9));
  b.add_count("heldout." + down, 300);
  std::vector<float> squares;
  const std::vector<float> full = StatisticsBuilder::sums(96, 300, 10);
  for (size_t i = 0; i < 96; ++i) squares.push_back(full[i * 97]);
  b.add_floats("heldout." + o + ".sum_squares", {96}, squares);
  b.add_count("heldout." + o, 300);
  b.write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    out = (scratch / "out").string();
  const Outcome made = run_program({"quantize", src, out, "--pattern", "2:4", "--stats", stats, "-v"});
  REQUIRE_MESSAGE(made.code == 0, made.err);
  CHECK(made.out.find(", held out ") != std::string::npos);
  CHECK(run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"}).code == 0);
  const Json manifest = parse_json("twofour.json", read_text(scratch / "out/twofour.json"));
  for (const Json& m : manifest["modules"]) {
    const auto name = m["name"].get<std::string>();
    CHECK(m["quality"].contains("heldout_output_loss") == (name == down || name == o));
    if (name != down) continue;
    // In double, from the weights as they are read back.
    const ReadTensors plain = read_tensors(scratch / "src");
    REQUIRE(run_program({"convert", out, out + "-bf16", "--to", "bf16"}).code == 0);
    const auto value = [](const std::vector<uint8_t>& bytes, size_t i) {
      return bf16_to_float(static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8));
    };
    const ReadTensors widened = read_tensors(out + "-bf16");
    const auto &w = plain.at(down + ".weight").bytes, &q = widened.at(down + ".weight").bytes;
    const std::vector<float> h = StatisticsBuilder::sums(80, 300, 9);
    double loss = 0, energy = 0;
    for (size_t r = 0; r < 64; ++r) {
      for (size_t i = 0; i < 80; ++i) {
        for (size_t j = 0; j < 80; ++j) {
          const double a = value(w, r * 80 + i), b2 = value(w, r * 80 + j);
          loss += (a - value(q, r * 80 + i)) * (b2 - value(q, r * 80 + j)) * double{h[i * 80 + j]};
          energy += a * b2 * double{h[i * 80 + j]};
        }
      }
    }
    // Weights are read back in BF16 here.
    CHECK(m["quality"]["heldout_output_loss"].get<double>() == doctest::Approx(loss / energy).epsilon(0.02));
  }
}

TEST_CASE("tasks of a plan with statistics write what one run writes, and want the same file") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    alone = (scratch / "alone").string(), out = (scratch / "out").string(),
                    plan = (scratch / "plan.json").string();
  const std::vector<std::string> how = {"--pattern", "2:4", "--stats", stats, "--max-shard-size", "20kB"};
  const auto run = [&](std::vector<std::string> words, bool with_options) {
    if (with_options) words.insert(words.end(), how.begin(), how.end());
    const Outcome o = run_program(words);
    REQUIRE_MESSAGE(o.code == 0, o.err);
  };
  run({"quantize", src, alone}, true);
  run({"plan", src, out, "--to", "quantize", "-o", plan}, true);
  for (const char* task : {"1/2", "0/2"}) run({"convert", "--plan", plan, "--task", task}, false);
  run({"merge", out}, false);
  CHECK((read_tree(out) == read_tree(alone)));

  std::filesystem::rename(stats, stats + "2");
  StatisticsBuilder others;
  others.add({kLayer + "mlp.down_proj"}, 80, 500, "hessian", 5);
  others.write(stats);
  std::filesystem::remove_all(out);
  const Outcome other = run_program({"convert", "--plan", plan, "--task", "0/2"});
  CHECK(other.code == 2);
  CHECK_MESSAGE(other.err.find("expected the file of statistics") != std::string::npos, other.err);
}

TEST_CASE("a changed code is found in a row that is solved again") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    out = (scratch / "out").string();
  REQUIRE(run_program({"quantize", src, out, "--stats", stats}).code == 0);
  // Byte 0 of the first codes: the proof solves the row and does not rely on hashes.
  fs::path weights;
  for (const auto& f : fs::directory_iterator(scratch / "out")) {
    if (f.path().extension() == ".safetensors") weights = f.path();
  }
  const Checkpoint made = Checkpoint::open(weights);
  const size_t codes = made.find(kLayer + "mlp.down_proj.weight").value();
  flip_bit(weights, made.shard_of(codes).data_begin + made.tensors()[codes].begin + 79 * 32, 0);
  const Outcome proof =
      run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows", "--json"});
  CHECK(proof.code == 1);
  CHECK(proof.out.find("bytes differ from those derived from the source") != std::string::npos);
}

TEST_CASE(
    "a target offset of zeros gives the bytes of statistics without one, another other bytes, both proven") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string();
  const auto make = [&](const std::string& name, float offset) {
    StatisticsBuilder b;
    b.add({kLayer + "mlp.down_proj"}, 80, 500, "hessian", 4);
    if (offset >= 0) {
      std::vector<float> numbers;
      for (int i = 0; i < 64 * 80; ++i) numbers.push_back(offset * static_cast<float>(i % 11 - 5));
      b.add_floats(kLayer + "mlp.down_proj.target_offset", {64, 80}, numbers);
    }
    b.write(scratch / ("stats" + name));
    const std::string out = (scratch / name).string(), stats = (scratch / ("stats" + name)).string();
    const Outcome made = run_program({"quantize", src, out, "--stats", stats, "--include", "*down_proj"});
    REQUIRE_MESSAGE(made.code == 0, made.err);
    const Outcome proof = run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"});
    CHECK_MESSAGE(proof.code == 0, proof.out);
    return read_tensors(out);
  };
  const ReadTensors none = make("none", -1), zeros = make("zeros", 0), some = make("some", 3.0f);
  CHECK(none == zeros);
  CHECK(none != some);
}

TEST_CASE("linears of a group have targets of their own, and targets that fit none are refused") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string(), gate = kLayer + "mlp.gate_proj",
                    up = kLayer + "mlp.up_proj";
  const auto make = [&](const std::string& name, const std::string& linear, int64_t rows, float offset) {
    StatisticsBuilder b;
    b.add({gate, up}, 64, 500, "hessian", 4);
    std::vector<float> numbers;
    for (int64_t i = 0; i < rows * 64; ++i) numbers.push_back(offset * static_cast<float>(i % 11 - 5));
    if (!linear.empty()) b.add_floats(linear + ".target_offset", {rows, 64}, numbers);
    b.write(scratch / (name + ".stats"));
    return run_program({"quantize", src, (scratch / name).string(), "--stats",
                        (scratch / (name + ".stats")).string(), "--include", "*.gate_proj", "--include",
                        "*.up_proj"});
  };
  REQUIRE(make("none", "", 0, 0).code == 0);
  const Outcome one = make("one", up, 80, 1.0f);
  REQUIRE_MESSAGE(one.code == 0, one.err);
  const ReadTensors none = read_tensors(scratch / "none"), some = read_tensors(scratch / "one");
  CHECK(some.at(up + ".weight") != none.at(up + ".weight"));
  const Outcome proof = run_program({"validate", (scratch / "one").string(), "--source", src, "--stats",
                                     (scratch / "one.stats").string(), "--all-rows"});
  CHECK_MESSAGE(proof.code == 0, proof.out);
  const Outcome rows = make("rows", up, 79, 1.0f);
  CHECK(rows.code == 2);
  CHECK(rows.err.find("expected [80, 64]") != std::string::npos);
  const Outcome other = make("other", kLayer + "mlp.down_proj", 64, 1.0f);
  CHECK(other.code == 2);
  CHECK(other.err.find("expected an entry or a group that serves") != std::string::npos);
  CHECK(make("nan", up, 80, NAN).code == 2);
}

}  // namespace cli_stats_test
