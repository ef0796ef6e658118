#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

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

namespace cli_stats_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kLayer = "model.layers.0.";

/// A layer of linears in BF16: rows beyond 64, so that a proof draws some of them.
void write_model(const fs::path& folder) {
  Tensors t;
  unsigned seed = 1;
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    add_floats(t, kLayer + "self_attn." + leaf, random_floats(96, 64, ++seed));
  add_floats(t, kLayer + "self_attn.o_proj", random_floats(64, 96, ++seed));
  for (const char* leaf : {"gate_proj", "up_proj"})
    add_floats(t, kLayer + "mlp." + leaf, random_floats(80, 64, ++seed));
  add_floats(t, kLayer + "mlp.down_proj", random_floats(64, 80, ++seed));
  add_bf16(t, "model.norm.weight", {64}, ++seed);
  write_checkpoint(folder, {t});
}

StatisticsBuilder statistics(int64_t tokens = 500) {
  StatisticsBuilder b;
  b.add({kLayer + "self_attn.q_proj", kLayer + "self_attn.k_proj", kLayer + "self_attn.v_proj"}, 64, tokens,
        "hessian", 1);
  b.add({kLayer + "self_attn.o_proj"}, 96, tokens, "packed", 2);
  b.add({kLayer + "mlp.gate_proj", kLayer + "mlp.up_proj"}, 64, tokens, "hessian", 3);
  b.add({kLayer + "mlp.down_proj"}, 80, tokens, "hessian", 4);
  return b;
}

double loss_of(const fs::path& folder, const std::string& module) {
  const Json manifest = parse_json(
      "twofour.json",
      std::string(std::istreambuf_iterator<char>(std::ifstream(folder / "twofour.json").rdbuf()), {}));
  for (const Json& m : manifest["modules"]) {
    if (m["name"] == module) return m["quality"]["relative_output_loss"].get<double>();
  }
  return -1;
}

}  // namespace

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

TEST_CASE("a budget prunes what costs the model least a byte, and only quantizes the rest") {
  const Scratch scratch;
  write_model(scratch / "src");
  StatisticsBuilder b;
  unsigned seed = 20;
  const std::map<std::string, int64_t> linears = {
      {"self_attn.q_proj", 64}, {"self_attn.k_proj", 64}, {"self_attn.v_proj", 64}, {"self_attn.o_proj", 96},
      {"mlp.gate_proj", 64},    {"mlp.up_proj", 64},      {"mlp.down_proj", 80}};
  for (const auto& [leaf, k] : linears) {
    b.add({kLayer + leaf}, k, 500, "hessian", ++seed);
    std::vector<float> fisher = StatisticsBuilder::sums(k, 200, ++seed);
    // What is dear in sums of inputs is cheap here: q, k and v.
    const float weight = leaf == "mlp.down_proj" ? 50.0f : leaf == "self_attn.o_proj" ? 3.0f : 0.1f;
    for (float& x : fisher) x *= weight;
    b.add_floats(kLayer + leaf + ".fisher_hessian", {k, k}, fisher);
  }
  b.write(scratch / "stats");
  statistics().write(scratch / "plain");
  StatisticsBuilder partly;
  partly.add({kLayer + "mlp.down_proj"}, 80, 500, "hessian", 40);
  partly.add_floats(kLayer + "mlp.down_proj.fisher_hessian", {80, 80}, StatisticsBuilder::sums(80, 200, 41));
  partly.write(scratch / "partly");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string();
  const auto quantize = [&](const std::string& to, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"quantize", src, (scratch / to).string(), "--stats", stats};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  REQUIRE(quantize("all", {"--pattern", "2:4"}).code == 0);
  REQUIRE(quantize("none", {}).code == 0);
  // What each unit costs, from the reports of both runs.
  std::map<std::string, double> cost, bytes;
  const auto expected_of = [&](const std::string& run, double sign) {
    const Json manifest = parse_json("twofour.json", read_text(scratch / run / "twofour.json"));
    for (const Json& m : manifest["modules"]) {
      const auto name = m["name"].get<std::string>();
      const bool qkv = name.find("self_attn.") != name.npos && !name.ends_with("o_proj");
      const std::string unit = qkv                                                        ? "qkv"
                               : name.ends_with("gate_proj") || name.ends_with("up_proj") ? "gu"
                                                                                          : name;
      cost[unit] += sign * m["quality"]["expected_loss"].get<double>();
      bytes[unit] += 0.5625 / 2 *  // of two runs
                     m["shape"][1].get<double>() * m["shape"][2].get<double>();
    }
  };
  expected_of("all", 1);
  expected_of("none", -1);
  REQUIRE(cost.size() == 4);
  const Json curve =
      json_of(quantize("x", {"--pattern", "2:4", "--budget", "0.6", "--dry-run", "--json"}))["budget"];
  CHECK(!fs::exists(scratch / "x"));
  REQUIRE(curve["units"].size() == 4);
  double before = 0, share = 0, loss = 0;
  for (const Json& u : curve["units"]) {
    const auto first = u["modules"][0].get<std::string>();
    const std::string unit = u["modules"].size() == 3 ? "qkv" : u["modules"].size() == 2 ? "gu" : first;
    CHECK(u["pruned_loss"].get<double>() - u["dense_loss"].get<double>() ==
          doctest::Approx(cost.at(unit)).epsilon(1e-4));
    CHECK(u["bytes"].get<double>() == bytes.at(unit));
    const double a_byte = cost.at(unit) / bytes.at(unit);
    CHECK(a_byte >= before);
    before = a_byte;
    share += u["bytes"].get<double>();
    loss += cost.at(unit);
    CHECK(u["loss"].get<double>() == doctest::Approx(loss).epsilon(1e-4));
    const bool fits = u["share"].get<double>() <= 0.6;
    CHECK(u["pruned"].get<bool>() == fits);
  }
  CHECK(curve["units"].back()["share"].get<double>() == 1);
  CHECK(curve["units"].back()["name"] == kLayer + "mlp.down_proj");
  std::set<std::string> names;
  for (const Json& u : curve["units"]) names.insert(u["name"].get<std::string>());
  CHECK(names.contains(kLayer + "self_attn.k_proj+q_proj+v_proj"));
  CHECK(names.contains(kLayer + "mlp.gate_proj+up_proj"));

  // Pruned matrices are as where all are, the others as where none is; the same for any jobs.
  for (const char* jobs : {"1", "3"}) {
    const std::string out = std::string("out") + jobs;
    const Outcome made = quantize(out, {"--pattern", "2:4", "--budget", "0.6", "-j", jobs});
    REQUIRE_MESSAGE(made.code == 0, made.err);
    const ReadTensors all = read_tensors(scratch / "all"), none = read_tensors(scratch / "none"),
                      some = read_tensors(scratch / out);
    for (const Json& u : curve["units"]) {
      for (const Json& m : u["modules"]) {
        const std::string codes = m.get<std::string>() + ".weight";
        CAPTURE(codes);
        CHECK((some.at(codes) == (u["pruned"].get<bool>() ? all : none).at(codes)));
        CHECK((all.at(codes) != none.at(codes)));
      }
    }
    const Outcome proof =
        run_program({"validate", (scratch / out).string(), "--source", src, "--stats", stats, "--all-rows"});
    CHECK_MESSAGE(proof.code == 0, proof.out);
  }
  const double most = curve["units"][1]["loss"].get<double>();
  const auto by_loss = [&](double x) {
    const Json found = json_of(
        quantize("x", {"--pattern", "2:4", "--max-loss", fmt::format("{:.17g}", x), "--dry-run", "--json"}));
    size_t count = 0;
    for (const Json& u : found["budget"]["units"]) count += u["pruned"].get<bool>();
    return count;
  };
  CHECK(by_loss(most) == 2);
  CHECK(by_loss(most * 0.999) == 1);
  CHECK(by_loss(0) == 0);
  REQUIRE(quantize("nothing", {"--pattern", "2:4", "--budget", "0"}).code == 0);
  CHECK((read_tensors(scratch / "nothing") == read_tensors(scratch / "none")));
  REQUIRE(quantize("everything", {"--pattern", "2:4", "--budget", "1"}).code == 0);
  CHECK((read_tensors(scratch / "everything") == read_tensors(scratch / "all")));

  // prune leaves what the budget does not pay for.
  const auto prune = [&](const std::string& to, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"prune",
                                      (scratch / "none").string(),
                                      (scratch / to).string(),
                                      "--stats",
                                      stats,
                                      "--pattern",
                                      "2:4",
                                      "--also",
                                      "*.self_attn.*"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  const Outcome pruned = prune("pruned", {});
  REQUIRE_MESSAGE(pruned.code == 0, pruned.err);
  const Json units = json_of(prune("x", {"--budget", "0.6", "--dry-run", "--json"}))["budget"]["units"];
  const Outcome made = prune("some-pruned", {"--budget", "0.6"});
  REQUIRE_MESSAGE(made.code == 0, made.err);
  const ReadTensors whole = read_tensors(scratch / "pruned"), some = read_tensors(scratch / "some-pruned"),
                    none = read_tensors(scratch / "none");
  CHECK(units.size() == 3);  // the MLP is one
  size_t count = 0;
  for (const Json& u : units) {
    CHECK(u["dense_loss"] == 0);
    count += u["pruned"].get<bool>();
    for (const Json& m : u["modules"]) {
      const std::string codes = m.get<std::string>() + ".weight";
      CHECK((some.at(codes) == (u["pruned"].get<bool>() ? whole : none).at(codes)));
    }
  }
  CHECK(count > 0);
  CHECK(count < 3);
  const Outcome proof = run_program({"validate", (scratch / "some-pruned").string(), "--source",
                                     (scratch / "none").string(), "--stats", stats, "--all-rows"});
  CHECK_MESSAGE(proof.code == 0, proof.out);
  // The MLP alone, for which there are statistics of one linear in three.
  const Outcome unserved =
      run_program({"prune", (scratch / "none").string(), (scratch / "x").string(), "--stats",
                   (scratch / "partly").string(), "--pattern", "2:4", "--budget", "1"});
  CHECK(unserved.code == 2);
  CHECK_MESSAGE(
      unserved.err.find("expected statistics with tokens for all pruned matrices") != std::string::npos,
      unserved.err);
  const Outcome too_little = prune("x", {"--budget", "0"});
  CHECK(too_little.code == 2);
  CHECK(too_little.err.find("all would stay as it is") != std::string::npos);

  const auto refused = [&](const std::vector<std::string>& more) {
    const Outcome o = quantize("y", more);
    CHECK(o.code == 2);
    CHECK(!fs::exists(scratch / "y"));
    return o.err;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
  CHECK(
      has(refused({"--budget", "0.5"}), "--budget: expected --pattern or a layout that holds one beside it"));
  CHECK(has(refused({"--pattern", "2:4", "--budget", "1.5"}), "a share from 0 to 1"));
  CHECK(has(refused({"--pattern", "2:4", "--max-loss", "-1"}), "a finite number, 0 or more"));
  const Outcome plain = run_program({"quantize", src, (scratch / "y").string(), "--stats",
                                     (scratch / "plain").string(), "--pattern", "2:4", "--budget", "0.5"});
  CHECK(plain.code == 2);
  CHECK(has(plain.err, "expected fisher_hessian"));
  CHECK(has(plain.err, "stats collect --fisher makes such a file"));
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

TEST_CASE(
    "prune --stats solves NVFP4 again under its own scales and leaves all else; magnitude is as without") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string();
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    CAPTURE(dialect);
    const std::string nvfp4 = (scratch / dialect).string();
    REQUIRE(run_program({"quantize", src, nvfp4, "--dialect", dialect, "--input-scale", "constant"}).code ==
            0);
    const ReadTensors before = read_tensors(nvfp4);
    for (const std::string pattern : {"2:4", "4:8-paired"}) {
      CAPTURE(pattern);
      const std::string out = nvfp4 + pattern.substr(0, 1);
      const Outcome made = run_program({"prune", nvfp4, out, "--pattern", pattern, "--stats", stats});
      REQUIRE_MESSAGE(made.code == 0, made.err);
      CHECK(made.out.find("outputs of 3 of 3 matrices by their statistics") != std::string::npos);
      const ReadTensors after = read_tensors(out);
      REQUIRE(after.size() == before.size());
      size_t changed = 0;
      for (const auto& [name, t] : before) {
        CAPTURE(name);
        REQUIRE(after.contains(name));
        CHECK(after.at(name).dtype == t.dtype);
        CHECK((after.at(name).shape == t.shape));
        const bool solved = name.find("mlp.") != name.npos && t.bytes.size() > 4;
        if (!solved) CHECK((after.at(name) == t));
        changed += !(after.at(name) == t);
      }
      CHECK(changed == 6);
      CHECK(read_text(out + "/config.json") == read_text(nvfp4 + "/config.json"));
      const Outcome proof = run_program({"validate", out, "--source", nvfp4, "--stats", stats, "--all-rows"});
      CHECK_MESSAGE(proof.code == 0, proof.out);
      const double loss = loss_of(out, kLayer + "mlp.down_proj");
      CHECK(loss > 0);
      CHECK(loss < 0.2);
    }
    const std::string plain = nvfp4 + "-plain", same = nvfp4 + "-same";
    REQUIRE(run_program({"prune", nvfp4, plain}).code == 0);
    REQUIRE(run_program({"prune", nvfp4, same, "--stats", stats, "--method", "magnitude"}).code == 0);
    CHECK((read_tensors(plain) == read_tensors(same)));
  }
}

TEST_CASE("masks of others prune floats and NVFP4, with statistics and without; bad ones are refused") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string();
  REQUIRE(run_program({"quantize", src, (scratch / "nvfp4").string()}).code == 0);
  const std::map<std::string, std::pair<int64_t, int64_t>> mlp = {
      {"gate_proj", {80, 64}}, {"up_proj", {80, 64}}, {"down_proj", {64, 80}}};
  const auto write_masks = [&](const std::string& file, size_t group, bool boolean) {
    std::mt19937 random(7);
    Tensors masks;
    for (const auto& [leaf, shape] : mlp) {
      std::vector<uint8_t> mask(static_cast<size_t>(shape.first * shape.second));
      for (size_t i = 0; i < mask.size(); i += group) {
        std::array<uint8_t, 4> four = {1, 1, 0, 0};
        std::shuffle(four.begin(), four.end(), random);
        for (size_t j = 0; j < group; ++j) mask[i + j] = four[j * 4 / group];
      }
      masks.push_back({kLayer + "mlp." + leaf + (boolean ? "" : ".mask"),
                       boolean ? DType::kBool : DType::kU8,
                       {shape.first, shape.second},
                       mask});
    }
    write_safetensors(scratch / file, masks, {});
    return masks;
  };
  for (const bool pairs : {false, true}) {
    const std::string pattern = pairs ? "4:8-paired" : "2:4", file = pairs ? "masks8" : "masks4";
    const Tensors masks = write_masks(file, pairs ? 8 : 4, pairs);
    const std::string mask = (scratch / file).string();
    for (const std::string command : {"quantize", "prune"}) {
      for (const bool solved : {false, true}) {
        CAPTURE(pattern);
        CAPTURE(command);
        CAPTURE(solved);
        const std::string from = command == "prune" ? (scratch / "nvfp4").string() : src,
                          out = (scratch / (command + file + (solved ? "s" : ""))).string();
        std::vector<std::string> words = {command, from, out, "--pattern", pattern, "--mask", mask};
        if (command == "quantize") words.insert(words.end(), {"--include", "*.mlp.*"});
        if (solved) words.insert(words.end(), {"--stats", stats});
        const Outcome made = run_program(words);
        REQUIRE_MESSAGE(made.code == 0, made.err);
        const ReadTensors after = read_tensors(out), before = read_tensors(scratch / "nvfp4");
        for (const TensorData& m : masks) {
          const std::string module = m.name.substr(0, m.name.find(".mask"));
          const auto& codes = after.at(module + ".weight").bytes;
          const auto& old = before.at(module + ".weight").bytes;
          size_t dropped = 0, nonzero = 0, kept_as_before = 0, kept = 0;
          for (size_t i = 0; i < m.bytes.size(); ++i) {
            const unsigned code = codes[i / 2] >> i % 2 * 4 & 15u, was = old[i / 2] >> i % 2 * 4 & 15u;
            dropped += m.bytes[i] == 0 && (code & 7u) != 0;
            nonzero += m.bytes[i] == 1 && (code & 7u) != 0;
            kept += m.bytes[i] == 1;
            kept_as_before += m.bytes[i] == 1 && code == was;
          }
          CHECK(dropped == 0);
          CHECK(nonzero > kept / 2);
          if (command == "prune" && !solved) {
            CHECK(kept_as_before == kept);
            CHECK((after.at(module + ".weight_scale") == before.at(module + ".weight_scale")));
          }
        }
        std::vector<std::string> proof = {"validate", out, "--source", from, "--mask", mask};
        if (solved) proof.insert(proof.end(), {"--stats", stats, "--all-rows"});
        const Outcome proven = run_program(proof);
        CHECK_MESSAGE(proven.code == 0, (proven.out + proven.err));
        CHECK(run_program({"validate", out, "--source", from}).code == 2);
      }
    }
  }
  const auto refused = [&](const Tensors& masks, const std::vector<std::string>& more) {
    write_safetensors(scratch / "bad", masks, {});
    std::vector<std::string> words = {
        "quantize",  src,          (scratch / "none").string(), "--mask", (scratch / "bad").string(),
        "--include", "*.down_proj"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    CHECK(!fs::exists(scratch / "none"));
    return o.err;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
  const std::vector<std::string> prune = {"--pattern", "2:4"};
  const std::string down = kLayer + "mlp.down_proj.mask";
  std::vector<uint8_t> good(64 * 80);
  for (size_t i = 0; i < good.size(); ++i) good[i] = i % 4 < 2;
  CHECK(has(refused({{down, DType::kU8, {64, 80}, good}}, {}),
            "expected a layout, rule or command with a pattern"));
  CHECK(has(refused({{down, DType::kU8, {80, 64}, good}}, prune), "expected [64, 80], found U8 [80, 64]"));
  CHECK(has(refused({{down, DType::kF8E4M3, {64, 80}, good}}, prune), "expected a mask, U8 or BOOL [N, K]"));
  CHECK(has(refused({{kLayer + "mlp.up_proj", DType::kU8, {64, 80}, good}}, prune), "expected a mask of"));
  CHECK(has(refused({{"another", DType::kU8, {64, 80}, good}}, prune), "expected masks of linears of"));
  auto three = good;
  three[2] = 1;
  CHECK(has(refused({{down, DType::kU8, {64, 80}, three}}, prune),
            "row 0, k 0: expected two of four to stay, found 3 of 4"));
  auto two = good;
  two[83] = 2;
  CHECK(has(refused({{down, DType::kU8, {64, 80}, two}}, prune), "row 1, k 3: expected 0 or 1, found 2"));
  for (size_t i = 0; i < good.size(); ++i) good[i] = i % 2;
  CHECK(has(refused({{down, DType::kU8, {64, 80}, good}}, {"--pattern", "4:8-paired"}),
            "expected two pairs of four to stay, found 4 of 8, not in pairs"));
}

TEST_CASE("what says how statistics are used is refused without them") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string(), nvfp4 = (scratch / "nvfp4").string(),
                    none = (scratch / "none").string();
  REQUIRE(run_program({"quantize", src, nvfp4}).code == 0);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"prune", nvfp4, none, "--sweeps", "3"},
           {"prune", nvfp4, none, "--method", "joint"},
           {"prune", nvfp4, none, "--strict-stats"},
           {"prune", nvfp4, none, "--pattern", "4:8-paired", "--method", "wanda"},
           {"quantize", src, none, "--sweeps", "3"},
           {"quantize", src, none, "--shrink", "0.5"},
           {"quantize", src, none, "--scale-search", "7"},
           {"prune", nvfp4, none, "--shrink", "0.5"},
           {"prune", nvfp4, none, "--scale-search", "7"},
           {"quantize", src, none, "--method", "gptq"}}) {
    CAPTURE(words.back());
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    CHECK_MESSAGE(o.err.find("expected --stats beside") != std::string::npos, o.err);
    CHECK(!fs::exists(none));
  }
  CHECK(run_program({"prune", nvfp4, none, "--pattern", "4:8-paired", "--method", "magnitude"}).code == 0);
}

TEST_CASE(
    "statistics are shrunk and scales searched by default, as the recipe says, and a proof holds both") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string();
  const auto part = [](const std::string& text, const std::string& begin) {
    const size_t at = text.find(begin);
    return at == text.npos ? std::string()
                           : text.substr(at, text.find_first_of(",}", at + begin.size()) - at);
  };
  for (const std::string weighting : {"plain", "guided"}) {
    StatisticsBuilder b = statistics();
    b.metadata["weighting"] = weighting;
    b.write(scratch / "stats");
    const std::string stats = (scratch / "stats").string();
    for (const std::string pattern : {"", "2:4", "4:8-paired"}) {
      CAPTURE(weighting);
      CAPTURE(pattern);
      const std::string own = weighting == "guided" ? "0"
                              : pattern.empty()     ? "0.5"
                                                    : "0.1",
                        other = own == "0" ? "0.5" : "0";
      std::map<std::string, std::string> texts;
      const auto quantize = [&](const std::string& name, const std::vector<std::string>& more) {
        const std::string out = (scratch / (weighting + pattern + name)).string();
        std::vector<std::string> command{"quantize", src, out, "--stats", stats, "-j", "1"};
        if (!pattern.empty()) command.insert(command.end(), {"--pattern", pattern});
        command.insert(command.end(), more.begin(), more.end());
        const Outcome made = run_program(command);
        REQUIRE_MESSAGE(made.code == 0, made.err);
        texts[out] = read_text(fs::path(out) / "twofour.json");
        return out;
      };
      const auto proves = [&](const std::string& out) {
        return run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"}).code;
      };
      const std::string by_default = quantize("default", {}),
                        said = quantize("said", {"--shrink", own, "--scale-search", "7"}),
                        unshrunk = quantize("shrink", {"--shrink", other}),
                        narrow = quantize("narrow", {"--scale-search", "2"});
      CHECK((read_tensors(by_default) == read_tensors(said)));
      CHECK((read_tensors(by_default) != read_tensors(unshrunk)));
      CHECK((read_tensors(by_default) != read_tensors(narrow)));
      CHECK(part(texts[by_default], "\"scale_search\":") == "\"scale_search\":7");
      CHECK(std::stod(part(texts[by_default], "\"shrink\":").substr(9)) == std::stod(own));
      for (const std::string& out : {by_default, unshrunk, narrow}) CHECK(proves(out) == 0);
      // An artifact that says another shrink or search than it was made with.
      for (const auto& [out, key, value] : {std::tuple{unshrunk, "\"shrink\":", own},
                                            {by_default, "\"shrink\":", other},
                                            {narrow, "\"scale_search\":", std::string("7")},
                                            {by_default, "\"scale_search\":", std::string("2")}}) {
        std::string text = texts[out];
        const std::string then = part(text, key);
        REQUIRE(!then.empty());
        text.replace(text.find(then), then.size(), key + value);
        write_sealed(fs::path(out) / "twofour.json", text);
        CHECK(proves(out) == 1);
        write_text(fs::path(out) / "twofour.json", texts[out]);
      }
      // Without both words an artifact is what 0.2.0 would have made.
      const std::string old = quantize("old", {"--shrink", "0", "--scale-search", "2"});
      std::string text = texts[old];
      for (const char* key : {"\"shrink\":", "\"scale_search\":"}) {
        const std::string then = part(text, key) + ",";
        text.erase(text.find(then), then.size());
      }
      write_sealed(fs::path(old) / "twofour.json", text);
      CHECK(proves(old) == 0);
    }
  }
}

TEST_CASE("squares of inputs alone choose each weight for itself, by weights that are not damped") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string down = kLayer + "mlp.down_proj";
  StatisticsBuilder b;
  b.add({down}, 80, 1000, "sum_squares", 5);
  // Inputs 16 to 31 were never seen, nor was input 3.
  for (size_t i = 0; i < 80; ++i) {
    if (i == 3 || (i >= 16 && i < 32))
      std::fill_n(b.tensors[0].bytes.begin() + 4 * static_cast<int64_t>(i), 4, uint8_t{0});
  }
  b.write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    out = (scratch / "out").string(), none = (scratch / "none").string();
  REQUIRE(run_program({"quantize", src, out, "--stats", stats, "--include", down}).code == 0);
  CHECK(run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"}).code == 0);
  std::vector<float> squares(80);
  std::memcpy(squares.data(), b.tensors[0].bytes.data(), 320);
  const auto stored = read_tensors(scratch / "src").at(down + ".weight").bytes;  // BF16
  std::vector<float> weights;
  for (size_t i = 0; i < stored.size(); i += 2)
    weights.push_back(std::bit_cast<float>(static_cast<uint32_t>(stored[i] | stored[i + 1] << 8) << 16));
  const ReadTensors made = read_tensors(out);
  const auto& codes = made.at(down + ".weight").bytes;
  const auto& scales = made.at(down + ".weight_scale").bytes;
  float global = 0;
  std::memcpy(&global, made.at(down + ".weight_scale_2").bytes.data(), 4);
  constexpr double kUnits[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto value_of = [](unsigned code) {  // of E4M3
    return code < 8 ? std::ldexp(double(code), -9) : std::ldexp(8.0 + (code & 7), int(code >> 3) - 10);
  };
  size_t above = 0;
  for (size_t block = 0; block < 64 * 5; ++block) {
    const float* w = &weights[block * 16];
    double least = 1e300, largest = 0;
    const auto loss_of = [&](unsigned scale) {
      double sum = 0;
      for (size_t i = 0; i < 16; ++i) {
        const size_t column = block % 5 * 16 + i;
        const double step = value_of(scale) * double{global};
        double best = 1e300;
        for (const double unit : kUnits)
          best = std::min(best, std::abs(std::abs(double{w[i]}) - unit * step));
        sum += best * best * (block % 5 == 1 ? 1 : double{squares[column]} / 1000);
      }
      return sum;
    };
    for (size_t i = 0; i < 16; ++i) largest = std::max(largest, std::abs(double{w[i]}));
    unsigned base = 1;
    for (unsigned c = 1; c <= 126; ++c) {
      if (std::abs(value_of(c) * double{global} - largest / 6) <
          std::abs(value_of(base) * double{global} - largest / 6))
        base = c;
    }
    for (unsigned c = base < 13 ? 1 : base - 12; c <= std::min(126u, base + 7); ++c)
      least = std::min(least, loss_of(c));
    CAPTURE(block);
    REQUIRE(loss_of(scales[block]) <= least * (1 + 1e-5));
    above += scales[block] > base + 2;
    for (size_t i = 0; i < 16; ++i) {
      const unsigned code = codes[block * 8 + i / 2] >> 4 * (i % 2) & 7;
      const double step = value_of(scales[block]) * double{global},
                   own = std::abs(std::abs(double{w[i]}) - kUnits[code] * step);
      for (const double unit : kUnits)
        REQUIRE(own <= std::abs(std::abs(double{w[i]}) - unit * step) * (1 + 1e-5) + 1e-12);
    }
  }
  CHECK(above > 0);
}

TEST_CASE("rules take methods and sweeps for convert --stats, and make what the commands make") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    recipe = (scratch / "recipe.yaml").string();
  const auto run = [&](const std::string& rules, const std::string& from, const std::string& to) {
    std::ofstream(recipe) << "format: 1\ndialect: modelopt\nrules:\n" << rules;
    return run_program({"convert", from, to, "--recipe", recipe, "--stats", stats});
  };
  const std::string by_rules = (scratch / "rules").string(), by_flags = (scratch / "flags").string();
  const Outcome made = run(
      "  - {match: mlp, to: nvfp4, pattern: '2:4', method: joint, sweeps: 1, shrink: 0.3, scale_search: 4}\n"
      "  - {match: '*', to: nvfp4, method: rtn}\n",
      src, by_rules);
  REQUIRE_MESSAGE(made.code == 0, made.err);
  REQUIRE(run_program({"quantize", src, by_flags, "--pattern", "2:4", "--sweeps", "1", "--shrink", "0.3",
                       "--scale-search", "4", "--include", "*.mlp.*", "--stats", stats})
              .code == 0);
  const ReadTensors mixed = read_tensors(by_rules);
  for (const auto& [name, t] : read_tensors(by_flags)) {
    CAPTURE(name);
    if (name.find(".mlp.") != name.npos) CHECK((mixed.at(name) == t));
  }
  const Outcome proof = run_program({"validate", by_rules, "--source", src, "--stats", stats, "--all-rows"});
  CHECK_MESSAGE(proof.code == 0, proof.out);
  const std::string pruned = (scratch / "pruned").string();
  const std::string nvfp4 = (scratch / "nvfp4").string();
  REQUIRE(run_program({"quantize", src, nvfp4}).code == 0);
  REQUIRE(run("  - {match: mlp, to: keep, pattern: '4:8-paired'}\n", nvfp4, pruned).code == 0);
  REQUIRE(run_program({"prune", nvfp4, pruned + "2", "--pattern", "4:8-paired", "--stats", stats}).code == 0);
  CHECK((read_tensors(pruned) == read_tensors(pruned + "2")));

  const auto refused = [&](const std::string& rules) {
    const Outcome o = run(rules, src, (scratch / "none").string());
    CHECK(o.code == 2);
    CHECK(!fs::exists(scratch / "none"));
    return o.err;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
  CHECK(
      has(refused("  - {match: mlp, to: nvfp4, method: joint}\n"), "gptq, rtn or magnitude without pattern"));
  CHECK(has(refused("  - {match: mlp, to: nvfp4, sweeps: 65}\n"), "a whole number from 0 to 64"));
  CHECK(has(refused("  - {match: mlp, to: nvfp4, scale_search: 17}\n"), "a whole number from 0 to 16"));
  for (const char* shrink : {"-0.1", "1.01", "nan", "half", "0.5x"}) {
    CHECK(has(refused(fmt::format("  - {{match: mlp, to: nvfp4, shrink: {}}}\n", shrink)),
              "rules[0].shrink: expected a number from 0 to 1, found"));
    CHECK(run_program({"quantize", src, (scratch / "none").string(), "--stats", stats,
                       fmt::format("--shrink={}", shrink)})
              .code == 2);
  }
  CHECK(has(refused("  - {match: mlp, to: bf16, sweeps: 1}\n"),
            "expected it only with to: keep, fp8, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8"));
  CHECK(has(refused("  - {match: mlp, to: bf16}\n"),
            "--stats: expected a rule to: nvfp4, fp8, mxfp8, mxfp6, mxfp4, v7"));
  CHECK(has(refused("  - {match: mlp, to: keep, method: joint}\n"), "expected it only with pattern"));
  // Without statistics or masks nothing chooses pairs.
  const Outcome pairs =
      run_program({"quantize", src, (scratch / "none").string(), "--pattern", "4:8-paired"});
  CHECK(pairs.code == 2);
  CHECK(has(pairs.err, "expected --stats or --mask beside 4:8-paired, found neither"));
}

TEST_CASE("statistics that do not fit are refused before there is an output") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string();
  const auto refused = [&](StatisticsBuilder b, std::vector<std::string> more = {}) {
    b.write(scratch / "stats");
    std::vector<std::string> command{"quantize", src, out, "--stats", (scratch / "stats").string()};
    command.insert(command.end(), more.begin(), more.end());
    const Outcome o = run_program(command);
    CHECK(o.code == 2);
    CHECK(!fs::exists(scratch / "out"));
    return o.err;
  };
  StatisticsBuilder b;
  b.add({"model.layers.7.mlp.down_proj"}, 80, 500);
  CHECK(refused(b).find("statistics of another model?") != std::string::npos);
  b = {};
  b.add({kLayer + "mlp.down_proj"}, 64, 500);
  CHECK(refused(b).find("expected K of 80, found 64") != std::string::npos);
  b = statistics();
  b.metadata["weights"] = "of others";
  CHECK(refused(b, {"--strict-stats"}).find("found a different final norm") != std::string::npos);
  b = statistics();
  const float nan = std::nanf("");
  std::memcpy(&b.tensors[0].bytes[400], &nan, sizeof(nan));
  CHECK(refused(b).find("expected a finite number, found nan") != std::string::npos);
  CHECK(refused(statistics(), {"--method", "joint"})
            .find("expected gptq or rtn if weights are not pruned, found joint") != std::string::npos);
  CHECK(refused(statistics(), {"--pattern", "2:4", "--method", "gptq"})
            .find("expected joint, wanda or magnitude") != std::string::npos);
  CHECK(refused(statistics(), {"--block-scale", "mse"}).find("expected none beside --stats") !=
        std::string::npos);
  CHECK(refused(statistics(0), {"--pattern", "4:8-paired"}).find("expected statistics with tokens") !=
        std::string::npos);
  CHECK(run_program({"quantize", src, out, "--sweeps", "2"}).code == 2);
  CHECK(run_program({"quantize", src, out, "--method", "gptq"}).code == 2);
}

TEST_CASE("too few tokens fall back, counted, and statistics of other weights are a warning") {
  const Scratch scratch;
  write_model(scratch / "src");
  StatisticsBuilder b = statistics(70);
  b.metadata["weights"] = "of others";
  b.write(scratch / "stats");
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string(),
                    stats = (scratch / "stats").string();
  const Outcome made = run_program({"quantize", src, out, "--stats", stats, "--pattern", "2:4"});
  REQUIRE(made.code == 0);
  CHECK(made.err.find(
            "5 of 7 matrices are not chosen by a full Hessian with descent: fewer than 4 tokens an input") !=
        std::string::npos);
  CHECK(made.err.find(
            "2 of 7 matrices are not chosen by a full Hessian with descent: fewer tokens than inputs") !=
        std::string::npos);
  CHECK(made.err.find("[statistics-of-other-weights]") != std::string::npos);
  CHECK(run_program({"validate", out, "--source", src, "--stats", stats}).code == 0);
  const Outcome without = run_program({"validate", out, "--source", src});
  CHECK(without.code == 0);
  CHECK(without.out.find("rows that were solved by statistics were not solved again") != std::string::npos);
  statistics(71).write(scratch / "other");
  CHECK(run_program({"validate", out, "--source", src, "--stats", (scratch / "other").string()}).code == 2);
}

TEST_CASE("targets and sums beyond reason are refused or reported by what reads them, and by stats check") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string(),
                    stats = (scratch / "stats").string(), down = kLayer + "mlp.down_proj";
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const auto with_target = [&](float offset) {
    StatisticsBuilder b = statistics();
    std::vector<float> numbers(64 * 80);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = offset * static_cast<float>(i % 3);
    b.add_floats(down + ".target_offset", {64, 80}, numbers);
    b.write(scratch / "stats");
  };
  const std::string limit = down + ".target_offset: expected targets up to 1024 times the largest weight, ";
  for (const float offset : {1e8f, 1e38f}) {
    with_target(offset);
    for (const auto& more : std::vector<std::vector<std::string>>{
             {}, {"--pattern", "2:4"}, {"--dialect", "compressed-tensors"}}) {
      std::vector<std::string> command{"quantize", src, out, "--stats", stats};
      command.insert(command.end(), more.begin(), more.end());
      const Outcome o = run_program(command);
      CHECK(o.code == 2);
      CHECK_MESSAGE(has(o.err, limit), o.err);
      CHECK(!fs::exists(out));
    }
    const Outcome layout =
        run_program({"convert", src, out, "--to", "g8", "--also", "*.mlp", "--stats", stats});
    CHECK(layout.code == 2);
    CHECK_MESSAGE(has(layout.err, limit), layout.err);
    const Outcome checked = run_program({"stats", "check", stats, src});
    CHECK(checked.code == 2);
    CHECK_MESSAGE(has(checked.err, limit), checked.err);
  }
  // Nearer ones are taken, with a warning where little of the weights is left.
  for (const auto& [offset, is_far] : {std::pair{0.5f, false}, {500.0f, true}}) {
    with_target(offset);
    const Outcome o = run_program({"quantize", src, out, "--stats", stats, "--json", "--force"});
    REQUIRE_MESSAGE(o.code == 0, o.err);
    CHECK(has(o.out, "far-target") == is_far);
    CHECK(run_program({"stats", "check", stats, src}).code == 0);
    CHECK(run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"}).code == 0);
  }
  // Inputs of zeros, in 500 tokens.
  StatisticsBuilder zeros = statistics();
  for (auto& t : zeros.tensors) {
    if (t.name == down + ".hessian") std::fill(t.bytes.begin(), t.bytes.end(), uint8_t{0});
  }
  zeros.write(scratch / "stats");
  const Outcome o = run_program({"quantize", src, out, "--stats", stats, "--force"});
  REQUIRE_MESSAGE(o.code == 0, o.err);
  CHECK_MESSAGE(has(o.err,
                    "1 of 7 matrices are not chosen by a full Hessian with descent: inputs that are all 0 "
                    "(the first: " +
                        down + ": inputs that are all 0, in 500 tokens)"),
                o.err);
  CHECK(has(o.err, "[few-statistics]"));
  const Outcome checked = run_program({"stats", "check", stats, src, "--json"});
  CHECK(checked.code == 1);
  CHECK(parse_json("stdout", checked.out)["without_inputs"] == 1);
}

TEST_CASE("stats inspects, checks and merges") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "a");
  StatisticsBuilder few = statistics(70);
  few.write(scratch / "b");
  const std::string src = (scratch / "src").string(), a = (scratch / "a").string(),
                    b = (scratch / "b").string(), out = (scratch / "out").string();
  const Outcome shown = run_program({"stats", "inspect", a, "--json"});
  REQUIRE_MESSAGE(shown.code == 0, shown.err);
  CHECK(parse_json("stdout", shown.out)["entries"].size() == 4);
  CHECK(run_program({"stats", "check", a, src}).code == 0);
  const Outcome checked = run_program({"stats", "check", b, src, "--json"});
  CHECK(checked.code == 1);
  const Json counts = parse_json("stdout", checked.out);
  CHECK(counts["few_tokens"] == 5);
  CHECK(counts["fewer_tokens_than_inputs"] == 2);
  CHECK(run_program({"stats", "merge", out, a, b}).code == 0);
  CHECK(run_program({"stats", "check", out, src}).code == 0);
  CHECK(run_program({"stats", "merge", out + "2", a}).code == 2);
  CHECK(run_program({"stats", "inspect", a, b}).code == 2);
  CHECK(run_program({"stats", "inspect", src + "/model.safetensors"}).code == 2);
}

}  // namespace cli_stats_test
