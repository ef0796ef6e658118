#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"

namespace cli_solved_layout_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

std::string layer(int l) { return "model.layers." + std::to_string(l) + ".mlp."; }

/// Two layers with MLPs in BF16: rows beyond 64, so that a proof draws some of them, and norms. The linears
/// `zeros` are all zero.
void write_model(const fs::path& folder, const std::set<std::string>& zeros = {}) {
  Tensors t;
  unsigned seed = 1;
  const auto add = [&](const std::string& name, int64_t n, int64_t k) {
    auto weights = random_floats(n, k, ++seed);
    if (zeros.contains(name)) std::fill(weights.values.begin(), weights.values.end(), 0.0f);
    add_floats(t, name, weights);
  };
  for (const int l : {0, 1}) {
    for (const char* leaf : {"gate_proj", "up_proj"}) add(layer(l) + leaf, 96, 80);
    add(layer(l) + "down_proj", 80, 96);
  }
  add_bf16(t, "model.norm.weight", {80}, ++seed);
  write_checkpoint(folder, {t});
}

StatisticsBuilder statistics(int64_t tokens = 500) {
  StatisticsBuilder b;
  for (const int l : {0, 1}) {
    const auto seed = static_cast<unsigned>(10 * l);
    b.add({layer(l) + "gate_proj", layer(l) + "up_proj"}, 80, tokens, "hessian", seed + 1);
    b.add({layer(l) + "down_proj"}, 96, tokens, "packed", seed + 2);
  }
  return b;
}

struct Files {
  Files() {
    write_model(scratch / "bf16");
    statistics().write(scratch / "stats");
    run({"quantize", path("bf16"), path("nvfp4")});
  }
  std::string path(const std::string& name) const { return (scratch / name).string(); }
  static void run(const std::vector<std::string>& words) {
    const Outcome o = run_program(words);
    REQUIRE_MESSAGE(o.code == 0, o.err);
  }
  Scratch scratch;
};

/// Codes without the sign of zeros: packing keeps some of those that a mask keeps, and values do not tell.
std::vector<uint8_t> without_signs_of_zeros(std::vector<uint8_t> codes) {
  for (uint8_t& both : codes) {
    if ((both & 0x07) == 0) both &= 0xF0;
    if ((both & 0x70) == 0) both &= 0x0F;
  }
  return codes;
}

/// True if a proof and twofour.json say what choosing cost: no layer is as it was.
void hold_costs(const std::string& out, const std::string& proof) {
  CHECK_MESSAGE(proof.find("no energy lost") == std::string::npos, proof);
  CHECK_MESSAGE(proof.find("chosen by statistics or masks: relative error") != std::string::npos, proof);
  CHECK_MESSAGE(proof.find("cosine to the dense layer 1.0000") == std::string::npos, proof);
  const Json manifest = parse_json("twofour.json", read_text(fs::path(out) / "twofour.json"));
  for (const Json& m : manifest["modules"]) {
    CHECK(!m["quality"].contains("retained_energy"));
    CHECK(m["quality"]["relative_error"] > 0.05);
    double squares = 0;
    for (const Json& s : m["sources"]) {
      const auto error = s["quality"]["relative_error"].get<double>();
      squares += error * error / static_cast<double>(m["sources"].size());
    }
    // The sources are of equal size and spread.
    CHECK(m["quality"]["relative_error"].get<double>() == doctest::Approx(std::sqrt(squares)).epsilon(0.05));
  }
}

bool holds_codes(const std::string& tensor) {
  return tensor.ends_with("_comp") || tensor.ends_with("_weight");
}

}  // namespace

TEST_CASE("layouts straight from statistics hold what quantize or prune and then convert make") {
  const Files files;
  const std::string stats = files.path("stats");
  for (const std::string from : {"bf16", "nvfp4"}) {
    for (const std::string to : {"v7", "g8", "v7-packed"}) {
      if (from == "nvfp4" && to == "g8") continue;  // nothing to choose
      CAPTURE(from);
      CAPTURE(to);
      const std::string source = files.path(from), out = files.path(from + to),
                        twice = files.path(from + to + "2");
      std::vector<std::string> first = {from == "bf16" ? "quantize" : "prune", source, twice + "a", "--stats",
                                        stats};
      if (to != "g8") first.insert(first.end(), {"--pattern", "2:4"});
      Files::run(first);
      Files::run({"convert", twice + "a", twice, "--to", to});
      Files::run({"convert", source, out, "--to", to, "--stats", stats, "-j", "1"});
      Files::run({"convert", source, out + "-again", "--to", to, "--stats", stats, "-j", "5"});
      CHECK((read_tree(out) == read_tree(out + "-again")));
      const ReadTensors direct = read_tensors(out), by_steps = read_tensors(twice);
      REQUIRE(direct.size() == by_steps.size());
      for (const auto& [name, tensor] : direct) {
        CAPTURE(name);
        const auto &own = tensor.bytes, &other = by_steps.at(name).bytes;
        if (holds_codes(name)) {
          CHECK((without_signs_of_zeros(own) == without_signs_of_zeros(other)));
        } else if (!name.ends_with("_packed")) {
          CHECK((own == other));
        }
      }
      CHECK(run_program({"diff", out, twice}).code == 0);

      const Outcome proof = run_program({"validate", out, "--source", source, "--stats", stats});
      CHECK_MESSAGE(proof.code == 0, (proof.out + proof.err));
      CHECK(proof.out.find("rows that were solved by statistics") != std::string::npos);
      // What choosing weights cost stands in the proof and in twofour.json, and is no loss of packing.
      if (to != "g8" || from == "bf16") hold_costs(out, proof.out);
      const Outcome all = run_program({"validate", out, "--source", source, "--stats", stats, "--all-rows"});
      CHECK_MESSAGE(all.code == 0, (all.out + all.err));
      CHECK(all.out.find("every byte derived again from the source, equal\n") != std::string::npos);
      const Outcome without = run_program({"validate", out, "--source", source});
      CHECK_MESSAGE(without.code == 0, (without.out + without.err));
      CHECK(without.out.find("were not solved again") != std::string::npos);
      CHECK(run_program({"convert", source, out, "--to", to, "--stats", stats, "--resume"}).code == 0);
      CHECK((read_tree(out) == read_tree(out + "-again")));
    }
  }
}

TEST_CASE("linears of zeros are proven like others, alone and beside weights") {
  const Files files;
  const std::string stats = files.path("stats"), gate = layer(0) + "gate_proj", up = layer(0) + "up_proj",
                    down = layer(0) + "down_proj";
  int made = 0;
  for (const std::set<std::string>& zeros :
       {std::set{down}, std::set{up}, std::set{gate, up}, std::set{gate, up, down}}) {
    const std::string source = files.path("zeros" + std::to_string(++made));
    write_model(source, zeros);
    for (const std::vector<std::string>& how : {std::vector<std::string>{"convert", "--to", "v7"},
                                                {"convert", "--to", "g8"},
                                                {"quantize", "--pattern", "2:4"},
                                                {"quantize"}}) {
      CAPTURE(made);
      CAPTURE(how.back());
      const std::string out = source + how.front() + how.back();
      std::vector<std::string> words = how;
      words.insert(words.end(), {source, out, "--stats", stats});
      Files::run(words);
      const Outcome proof =
          run_program({"validate", out, "--source", source, "--stats", stats, "--all-rows"});
      CHECK_MESSAGE(proof.code == 0, (proof.out + proof.err));
    }
  }
}

TEST_CASE("statistics that are no sums of products are refused by the name of their entry") {
  const Files files;
  StatisticsBuilder b = statistics();
  for (TensorData& t : b.tensors) {
    if (t.name != layer(1) + "gate_proj.hessian") continue;
    const float large = 1e9f;  // beside the diagonal, on both sides
    std::memcpy(t.bytes.data() + sizeof(float), &large, sizeof(large));
    std::memcpy(t.bytes.data() + 80 * sizeof(float), &large, sizeof(large));
  }
  b.write(files.scratch / "indefinite");
  for (const char* to : {"v7", "g8"}) {
    const Outcome o = run_program(
        {"convert", files.path("bf16"), files.path("out"), "--to", to, "--stats", files.path("indefinite")});
    CHECK(o.code == 2);
    CHECK_MESSAGE(o.err.find(files.path("indefinite") + ": " + layer(1) +
                             "gate_proj.hessian: inputs 0 and 1:") != std::string::npos,
                  o.err);
  }
}

TEST_CASE("a code that the solver did not choose is found in a layout") {
  const Files files;
  const std::string out = files.path("out"), stats = files.path("stats"), source = files.path("bf16");
  Files::run({"convert", source, out, "--to", "v7", "--stats", stats});
  const fs::path shard = fs::path(out) / "model-00001-of-00001.safetensors";
  Tensors tensors;
  std::map<std::string, std::string> metadata = {{"format", "pt"}, {"twofour.layout", "v7"}};
  for (auto& [name, tensor] : read_tensors(out)) {
    if (name == layer(0) + "w2_comp") tensor.bytes[5] ^= 0x08;  // the sign of a code in quad 0
    tensors.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
  }
  fs::permissions(shard, fs::perms::owner_all);
  write_safetensors(shard, tensors, metadata);
  const Outcome found = run_program({"validate", out, "--source", source, "--stats", stats, "--all-rows"});
  CHECK(found.code == 1);
  CHECK_MESSAGE(found.out.find(layer(0) + "down_proj.weight") != std::string::npos, found.out);
}

TEST_CASE("rules of a recipe solve some layers for v7 and others for g8, by tasks, too") {
  const Files files;
  const std::string stats = files.path("stats"), source = files.path("bf16"),
                    recipe = files.path("mixed.yaml"), out = files.path("out"),
                    plan = files.path("plan.json"), tasks = files.path("tasks");
  std::ofstream(recipe) << "format: 1\nrules:\n"
                           "  - {match: 'model.layers.0.*', to: v7, method: wanda}\n"
                           "  - {match: mlp, to: g8, sweeps: 1}\n";
  Files::run({"convert", source, out, "--recipe", recipe, "--stats", stats});
  const Outcome proof = run_program({"validate", out, "--source", source, "--stats", stats, "--all-rows"});
  CHECK_MESSAGE(proof.code == 0, (proof.out + proof.err));
  const Json manifest = parse_json("twofour.json", read_text(fs::path(out) / "twofour.json"));
  std::map<std::string, std::string> methods;
  for (const Json& m : manifest["modules"]) {
    for (const Json& s : m["sources"])
      methods[s["module"].get<std::string>()] = s["solver"]["method"].get<std::string>();
  }
  CHECK(methods[layer(0) + "down_proj"] == "wanda");
  CHECK(methods[layer(1) + "down_proj"] == "gptq");
  Files::run({"run", out, "--layer", "0", "--random", "2", "-o", files.path("y0")});
  Files::run({"run", out, "--layer", "1", "--random", "2", "-o", files.path("y1")});

  const std::vector<std::string> how = {"--recipe", recipe, "--stats", stats, "--max-shard-size", "20kB"};
  const auto with_options = [&](std::vector<std::string> words) {
    words.insert(words.end(), how.begin(), how.end());
    Files::run(words);
  };
  with_options({"convert", source, files.path("alone")});
  with_options({"plan", source, tasks, "-o", plan});
  for (const char* task : {"1/2", "0/2"}) Files::run({"convert", "--plan", plan, "--task", task});
  Files::run({"merge", tasks});
  CHECK((read_tree(tasks) == read_tree(files.path("alone"))));
}

TEST_CASE("a budget puts the cheapest layers into v7 and the others into g8, whatever the source's format") {
  const Files files;
  StatisticsBuilder b = statistics();
  for (const int l : {0, 1}) {
    for (const char* leaf : {"gate_proj", "down_proj"}) {
      const int64_t k = std::string_view(leaf) == "down_proj" ? 96 : 80;
      std::vector<float> fisher = StatisticsBuilder::sums(k, 200, 70 + static_cast<unsigned>(l));
      for (float& x : fisher) x *= l == 0 ? 9.0f : 0.1f;  // layer 0 is the dear one
      b.add_floats(layer(l) + leaf + ".fisher_hessian", {k, k}, fisher);
    }
  }
  b.write(files.scratch / "fisher");
  const std::string stats = files.path("fisher");
  Files::run({"convert", files.path("bf16"), files.path("v7"), "--to", "v7", "--stats", stats});
  Files::run({"convert", files.path("bf16"), files.path("g8"), "--to", "g8", "--stats", stats});
  const std::string dense = layer(0) + "w13_weight", sparse = layer(1) + "w13_comp";
  for (const std::string from : {"bf16", "nvfp4"}) {
    CAPTURE(from);
    const std::string source = files.path(from), out = files.path("half" + from);
    const std::vector<std::string> words = {"convert", source, out,        "--to", "v7",
                                            "--stats", stats,  "--budget", "0.5"};
    std::vector<std::string> dry = words;
    dry.insert(dry.end(), {"--dry-run", "--json"});
    const Outcome planned = run_program(dry);
    REQUIRE_MESSAGE(planned.code == 0, planned.err);
    const Json units = parse_json("stdout", planned.out)["budget"]["units"];
    CHECK(!fs::exists(out));
    REQUIRE(units.size() == 2);
    CHECK(units[0]["name"] == "model.layers.1.mlp");
    CHECK(units[0]["modules"].size() == 3);
    CHECK(units[0]["pruned"] == true);
    CHECK(units[1]["pruned"] == false);
    CHECK((from == "nvfp4") == (units[1]["dense_loss"] == 0));
    std::vector<std::string> one = words;
    one.insert(one.end(), {"-j", "1", "--html", files.path("half.html")});
    Files::run(one);
    const ReadTensors found = read_tensors(out);
    REQUIRE(found.contains(dense));
    REQUIRE(found.contains(sparse));
    if (from == "bf16") {
      CHECK((found.at(dense) == read_tensors(files.path("g8")).at(dense)));
      CHECK((found.at(sparse) == read_tensors(files.path("v7")).at(sparse)));
    }
    const Outcome proof = run_program({"validate", out, "--source", source, "--stats", stats, "--all-rows"});
    CHECK_MESSAGE(proof.code == 0, (proof.out + proof.err));
    for (const char* l : {"0", "1"})
      Files::run({"run", out, "--layer", l, "--random", "3", "-o", files.path("y")});
    for (const auto& [share, tensor] : {std::pair{"0", dense}, std::pair{"1", sparse}}) {
      Files::run(
          {"convert", source, files.path(from + share), "--to", "v7", "--stats", stats, "--budget", share});
      const ReadTensors all = read_tensors(files.path(from + share));
      CHECK(all.contains(tensor));
      CHECK(!all.contains(tensor == dense ? sparse : dense));
    }
  }
  const Outcome unserved = run_program({"convert", files.path("bf16"), files.path("x"), "--to", "v7",
                                        "--stats", files.path("stats"), "--budget", "0.5"});
  CHECK(unserved.code == 2);
  CHECK_MESSAGE(unserved.err.find("expected fisher_hessian") != std::string::npos, unserved.err);
  const Outcome g8 = run_program(
      {"convert", files.path("bf16"), files.path("x"), "--to", "g8", "--stats", stats, "--budget", "0.5"});
  CHECK(g8.code == 2);
  CHECK_MESSAGE(g8.err.find("a layout that holds one") != std::string::npos, g8.err);
}

TEST_CASE("masks of others and NVFP4 with unequal scales go into v7; words that do not fit are refused") {
  const Files files;
  const std::string stats = files.path("stats");
  Tensors masks;
  for (const int l : {0, 1}) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = std::string_view(leaf) == "down_proj";
      std::vector<uint8_t> mask(96 * 80);
      for (size_t i = 0; i < mask.size(); ++i) mask[i] = i / 4 % 2 == 0 ? i % 2 == 0 : i % 4 < 2;
      masks.push_back({layer(l) + leaf + ".mask", DType::kU8,
                       down ? std::vector<int64_t>{80, 96} : std::vector<int64_t>{96, 80}, mask});
    }
  }
  write_safetensors(files.scratch / "masks", masks, {});
  for (const std::string from : {"bf16", "nvfp4"}) {
    for (const bool solved : {false, true}) {
      CAPTURE(from);
      CAPTURE(solved);
      const std::string out = files.path("masked" + from + (solved ? "s" : ""));
      std::vector<std::string> words = {"convert", files.path(from),   out, "--to", "v7",
                                        "--mask",  files.path("masks")};
      std::vector<std::string> proof = {"validate",       out,      "--source",
                                        files.path(from), "--mask", files.path("masks")};
      if (solved) {
        words.insert(words.end(), {"--stats", stats});
        proof.insert(proof.end(), {"--stats", stats, "--all-rows"});
      }
      Files::run(words);
      const Outcome proven = run_program(proof);
      CHECK_MESSAGE(proven.code == 0, (proven.out + proven.err));
      Files::run({"convert", out, out + "-back", "--to", "bf16"});
      const ReadTensors back = read_tensors(out + "-back");
      for (const TensorData& m : masks) {
        const auto& values = back.at(m.name.substr(0, m.name.find(".mask")) + ".weight").bytes;
        size_t wrong = 0;
        for (size_t i = 0; i < m.bytes.size(); ++i)
          wrong += m.bytes[i] == 0 && ((values[2 * i] | values[2 * i + 1]) & 0x7F) != 0;
        CHECK(wrong == 0);
      }
    }
  }
  const auto refused = [&](const std::vector<std::string>& more, const char* part) {
    std::vector<std::string> words = {"convert", files.path("bf16"), files.path("none")};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    CHECK_MESSAGE(o.err.find(part) != std::string::npos, o.err);
    CHECK(!fs::exists(files.path("none")));
  };
  refused({"--to", "g8", "--mask", files.path("masks")}, "--mask: expected a layout, rule or command");
  refused({"--to", "bf16", "--stats", stats}, "--stats: expected with --recipe, quantize, prune or --to");
  refused({"--to", "v7", "--stats", stats, "--method", "gptq"}, "--method: expected joint");
  refused({"--to", "g8", "--stats", stats, "--method", "joint"}, "--method: expected gptq or rtn");
  refused({"--to", "v7", "--method", "joint"}, "--method: expected --stats");
  refused({"--to", "v7", "--stats", stats, "--pattern", "4:8-paired"}, "--pattern");
  StatisticsBuilder other;
  other.add({"model.layers.7.mlp.down_proj"}, 80, 500);
  other.write(files.scratch / "other");
  refused({"--to", "v7", "--stats", files.path("other")}, "expected");
}

TEST_CASE("NVFP4 of unequal global scales is solved under the larger, which v7 stores") {
  const Files files;
  const std::string source = files.path("uneven"), out = files.path("out"), stats = files.path("stats");
  Tensors tensors;
  for (auto& [name, tensor] : read_tensors(files.path("nvfp4"))) {
    if (name == layer(0) + "up_proj.weight_scale_2") {
      float scale = 0;
      std::memcpy(&scale, tensor.bytes.data(), sizeof(scale));
      scale *= 0.75f;
      std::memcpy(tensor.bytes.data(), &scale, sizeof(scale));
    }
    tensors.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
  }
  fs::copy(files.path("nvfp4"), source);
  for (const auto& f : fs::directory_iterator(source)) {
    const bool weights = f.path().filename().string().starts_with("model");
    if (weights || f.path().filename() == "twofour.json") fs::remove(f.path());
  }
  write_safetensors(fs::path(source) / "model.safetensors", tensors, {{"format", "pt"}});
  Files::run({"convert", source, out, "--to", "v7", "--stats", stats});
  const Outcome proof = run_program({"validate", out, "--source", source, "--stats", stats, "--all-rows"});
  CHECK_MESSAGE(proof.code == 0, (proof.out + proof.err));
}

}  // namespace cli_solved_layout_test
