#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"

namespace statistics_files_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kMlp = "model.layers.0.mlp.";

/// An MLP in BF16, weights times 2^power.
void write_model(const fs::path& folder, int power = 0) {
  Tensors t;
  unsigned seed = 1;
  const auto add = [&](const char* leaf, int64_t n, int64_t k) {
    FloatMatrix m = random_floats(n, k, ++seed);
    for (float& x : m.values) x = std::abs(x) < 1e-6f ? 0.0f : std::ldexp(x, power);
    add_floats(t, kMlp + leaf, m);
  };
  add("gate_proj", 80, 64);
  add("up_proj", 80, 64);
  add("down_proj", 64, 80);
  add_bf16(t, "model.norm.weight", {64}, 9);
  write_checkpoint(folder, {t});
}

/// Its statistics, all sums times 2^power.
StatisticsBuilder statistics(int power = 0, const std::string& kind = "hessian") {
  StatisticsBuilder b;
  b.add({kMlp + "gate_proj", kMlp + "up_proj"}, 64, 500, kind, 3);
  b.add({kMlp + "down_proj"}, 80, 500, kind, 4);
  b.add_floats("heldout." + kMlp + "down_proj.hessian", {80, 80}, StatisticsBuilder::sums(80, 300, 9));
  b.add_count("heldout." + kMlp + "down_proj", 300);
  b.add_floats(kMlp + "down_proj.target_offset", {64, 80}, std::vector<float>(64 * 80, 2.0f));
  for (auto& t : b.tensors) {
    for (size_t i = 0; t.dtype == DType::kF32 && i < t.bytes.size(); i += sizeof(float)) {
      float x = 0;
      std::memcpy(&x, &t.bytes[i], sizeof(x));
      x = std::ldexp(x, power);
      std::memcpy(&t.bytes[i], &x, sizeof(x));
    }
  }
  return b;
}

std::string text_of(const fs::path& file) { return read_text(file); }

}  // namespace

TEST_CASE("stats merge and import replace no file, but an earlier result with --force, and never an input") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "a");
  statistics(1).write(scratch / "b");
  statistics(2).write(scratch / "c");
  const std::string a = (scratch / "a").string(), b = (scratch / "b").string(), c = (scratch / "c").string(),
                    weights = (scratch / "src/model.safetensors").string();
  const auto refused = [&](const std::vector<std::string>& words, const std::string& part) {
    const auto before = read_tree(scratch / "");
    std::vector<std::string> command{"stats"};
    command.insert(command.end(), words.begin(), words.end());
    check_one_line(run_program(command), part);
    CHECK(read_tree(scratch / "") == before);
  };
  refused({"merge", weights, a, b}, "expected no file or an earlier statistics file, found something else");
  refused({"merge", weights, a, b, "--force"}, "expected no file or an earlier statistics file");
  refused({"merge", a, b, c}, "a: expected no file, found a statistics file; stats merge writes its first");
  refused({"merge", a, a, b, "--force"}, "expected an output that is no input");
  refused({"merge", (scratch / "src/../a").string(), b, a, "--force"}, "expected an output that is no input");
  refused({"merge", (scratch / "none").string(), a, a}, "expected statistics of other tokens than");
  refused({"import", weights, a, (scratch / "src").string()},
          "expected no file or an earlier statistics file");
  refused({"import", a, b, (scratch / "src").string()}, "a: expected no file, found a statistics file");
  refused({"inspect", a, "--force"}, "--force: expected with collect, merge or import, found with inspect");
  const std::string out = (scratch / "out").string();
  CHECK(run_program({"stats", "merge", out, a, b}).code == 0);
  const std::string first = text_of(out);
  refused({"merge", out, a, c}, "--force replaces it");
  CHECK(run_program({"stats", "merge", out, a, c, "--force"}).code == 0);
  CHECK(text_of(out) != first);
  // One that fails leaves what was there.
  StatisticsBuilder huge = statistics();
  const float most = 3e38f;
  std::memcpy(huge.tensors[0].bytes.data(), &most, sizeof(most));
  huge.write(scratch / "d");
  huge.metadata["text"] = "another";
  huge.write(scratch / "e");
  refused({"merge", out, (scratch / "d").string(), (scratch / "e").string(), "--force"},
          "gate_proj.hessian: element 0: expected a sum over all files that fits its type");
}

TEST_CASE("--force removes no file that the run reads") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  std::ofstream(scratch / "recipe.yaml") << "rules:\n  - {match: mlp, to: nvfp4}\n";
  const std::string src = (scratch / "src").string(), dst = (scratch / "dst").string(),
                    stats = (scratch / "stats").string();
  REQUIRE(run_program({"quantize", src, dst}).code == 0);
  for (const char* name : {"stats", "recipe.yaml"}) fs::copy_file(scratch / name, scratch / "dst" / name);
  fs::create_symlink(scratch / "stats", scratch / "dst/link");
  fs::create_symlink(scratch / "dst/stats", scratch / "outer");
  const auto before = read_tree(dst);
  const auto refused = [&](std::vector<std::string> words, const std::string& option) {
    for (const bool dry : {false, true}) {
      words.push_back(dry ? "--dry-run" : "--force");
      check_one_line(run_program(words), option + ": expected a file outside of " + dst);
      CHECK(read_tree(dst) == before);
    }
  };
  refused({"quantize", src, dst, "--stats", dst + "/stats"}, "--stats");
  refused({"quantize", src, dst, "--stats", dst + "/link"}, "--stats");
  refused({"quantize", src, dst, "--stats", (scratch / "outer").string()}, "--stats");
  refused({"quantize", src, dst, "--pattern", "2:4", "--mask", dst + "/stats"}, "--mask");
  refused({"quantize", src, dst, "--input-scale", "from " + dst + "/stats"}, "--input-scale");
  refused({"convert", src, dst + "/", "--recipe", dst + "/recipe.yaml"}, "--recipe");
  refused({"drop", src, dst, "--experts", dst + "/stats"}, "--experts");
  refused({"drop", src, dst, "--experts", "2", "--by", dst + "/stats"}, "--by");
  CHECK(run_program({"quantize", src, dst, "--stats", stats, "--force"}).code == 0);
}

TEST_CASE("every faulty entry of a statistics file is reported, whatever the command") {
  const Scratch scratch;
  write_model(scratch / "src");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    nvfp4 = (scratch / "nvfp4").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"quantize", src, nvfp4}).code == 0);
  for (const float number : {std::nanf(""), 1e9f}) {  // no number, and no sum of products
    StatisticsBuilder b = statistics();
    for (auto& t : b.tensors) {
      if (t.name.ends_with("proj.hessian") && !t.name.starts_with("heldout."))
        std::memcpy(&t.bytes[5 * sizeof(float)], &number, sizeof(number));
    }
    b.write(stats);
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"quantize", src, out},
                                               {"quantize", src, out, "--pattern", "2:4"},
                                               {"prune", nvfp4, out},
                                               {"convert", src, out, "--to", "v7"},
                                               {"convert", nvfp4, out, "--to", "v7"}}) {
      CAPTURE(words[0]);
      std::vector<std::string> command = words;
      for (const char* more : {"--stats", stats.c_str(), "-j", "1"}) command.emplace_back(more);
      const Outcome o = run_program(command);
      CHECK(o.code == 2);
      CHECK(contains(o.err, kMlp + "gate_proj.hessian: "));
      CHECK(contains(o.err, kMlp + "down_proj.hessian: "));
      CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 2);
      CHECK(!fs::exists(out));
    }
  }
}

TEST_CASE("weights that are chosen do not depend on the units of statistics and of weights, and are proven") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const auto codes_of = [&](const std::string& name, const std::string& src, const std::string& stats,
                            const std::vector<std::string>& more) {
    const std::string out = (scratch / name).string();
    std::vector<std::string> words{"quantize", (scratch / src).string(), out, "--stats",
                                   (scratch / stats).string()};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome made = run_program(words);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    const Outcome proof = run_program({"validate", out, "--source", (scratch / src).string(), "--stats",
                                       (scratch / stats).string(), "--all-rows"});
    CHECK_MESSAGE(proof.code == 0, proof.out);
    ReadTensors all = read_tensors(out);
    std::erase_if(all, [](const auto& t) {
      return !t.first.ends_with("proj.weight") && !t.first.ends_with("weight_packed") &&
             !t.first.ends_with("weight_scale");
    });
    CHECK(all.size() == 6);
    fs::remove_all(out);
    return all;
  };
  const std::vector<std::vector<std::string>> ways = {{},
                                                      {"--pattern", "2:4"},
                                                      {"--pattern", "2:4", "--method", "wanda"},
                                                      {"--dialect", "compressed-tensors"}};
  StatisticsBuilder plain = statistics();  // a target is in the unit of weights
  std::erase_if(plain.tensors, [](const auto& t) { return t.name.ends_with(".target_offset"); });
  plain.write(scratch / "plain");
  for (const int power : {-96, 100}) write_model(scratch / std::to_string(power), power);
  for (size_t way = 0; way < ways.size(); ++way) {
    CAPTURE(way);
    const ReadTensors expected = codes_of("x", "src", "stats", ways[way]);
    for (const int power : {-116, -60, 60, 108}) {
      CAPTURE(power);
      statistics(power).write(scratch / "other");
      CHECK((codes_of("y", "src", "other", ways[way]) == expected));
    }
    const ReadTensors without_target = codes_of("x", "src", "plain", ways[way]);
    for (const int power : {-96, 100}) {
      CAPTURE(power);
      CHECK((codes_of("y", std::to_string(power), "plain", ways[way]) == without_target));
    }
  }
}

TEST_CASE("weights too small for a solver are quantized without it, which is reported and proven") {
  const Scratch scratch;
  write_model(scratch / "src", -125);
  StatisticsBuilder b = statistics();
  std::erase_if(b.tensors, [](const auto& t) { return t.name.ends_with(".target_offset"); });
  b.write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    out = (scratch / "out").string();
  const Outcome made = run_program({"quantize", src, out, "--stats", stats});
  REQUIRE_MESSAGE(made.code == 0, made.err);
  CHECK(contains(made.err, kMlp + "down_proj: weights up to "));
  CHECK(contains(made.err, "[not-solved]"));
  CHECK(run_program({"validate", out, "--source", src, "--stats", stats, "--all-rows"}).code == 0);
  REQUIRE(run_program({"quantize", src, out + "2"}).code == 0);
  CHECK((read_tensors(out) == read_tensors(out + "2")));
}

}  // namespace statistics_files_test
