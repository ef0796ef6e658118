#include "lib/recipe/statistics/statistics.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "formats/error.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "lib/recipe/statistics/merge_statistics.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"

namespace statistics_test {

using namespace twofour;

namespace {

std::string refusal(const Scratch& scratch, StatisticsBuilder builder) {
  builder.write(scratch / "s.safetensors");
  const std::string message = message_of([&] { Statistics::open(scratch / "s.safetensors"); });
  const std::string place = (scratch / "s.safetensors").string() + ": ";
  return message.starts_with(place) ? message.substr(place.size()) : message;
}

StatisticsBuilder one(const std::string& kind = "hessian") {
  StatisticsBuilder b;
  b.add({"m.a", "m.b"}, 32, 200, kind);
  return b;
}

}  // namespace

TEST_CASE("the same sums are read from a square, a triangle and, within blocks, from blocks") {
  const Scratch scratch;
  const std::vector<float> sums = StatisticsBuilder::sums(32, 200, 1);
  for (const char* kind : {"hessian", "packed", "hessian_blocks", "sum_squares"}) {
    one(kind).write(scratch / "s.safetensors");
    const Statistics s = Statistics::open(scratch / "s.safetensors");
    REQUIRE(s.entries().size() == 1);
    const StatisticsEntry& e = s.entries()[0];
    CHECK(e.k == 32);
    CHECK(e.count == 200);
    CHECK(s.find("m.b") == &e);
    CHECK(s.find("m.c") == nullptr);
    const std::vector<float> diagonal = s.read_diagonal(e);
    for (size_t i = 0; i < 32; ++i) CHECK(diagonal[i] == static_cast<float>(double{sums[i * 33]} / 200));
    if (e.kind == StatisticsKind::kDiagonal) continue;
    const std::vector<float> h = s.read_hessian(e);
    for (size_t i = 0; i < 32; ++i) {
      for (size_t j = 0; j < 32; ++j) {
        const bool inside = e.kind == StatisticsKind::kFull || i / 16 == j / 16;
        const float sum = sums[std::min(i, j) * 32 + std::max(i, j)];
        REQUIRE(h[i * 32 + j] == (inside ? static_cast<float>(double{sum} / 200) : 0.0f));
      }
    }
  }
}

TEST_CASE(
    "a linear's own entry goes before a shared one, unless it saw no tokens; held-out sums stand apart") {
  const Scratch scratch;
  StatisticsBuilder b;
  b.add({"all", "e.0", "e.1", "e.2"}, 16, 100);
  b.add({"e.0"}, 16, 50);
  b.add({"e.1"}, 16, 0);
  b.add_floats("heldout.all.hessian", {16, 16}, StatisticsBuilder::sums(16, 7, 9));
  b.add_count("heldout.all", 7);
  b.write(scratch / "s.safetensors");
  const Statistics s = Statistics::open(scratch / "s.safetensors");
  CHECK(s.find("e.0")->name == "e.0");
  CHECK(s.find("e.1")->name == "all");
  CHECK(s.find("e.2")->name == "all");
  CHECK(s.entries().size() == 3);
  CHECK(s.heldout_entries().size() == 1);
  CHECK(s.find_heldout("e.2")->count == 7);
}

TEST_CASE("files that are no statistics are refused, with their place") {
  const Scratch scratch;
  CHECK(refusal(scratch, one()) == "");
  StatisticsBuilder b = one();
  b.metadata["format"] = "pt";
  CHECK(refusal(scratch, b).starts_with("expected metadata with format"));
  b = one();
  b.metadata["structure"] = std::string(32, '0');
  CHECK(refusal(scratch, b).starts_with("metadata structure: expected "));
  b = one();
  b.tensors.pop_back();
  CHECK(refusal(scratch, b) ==
        "m.a: expected one of hessian, hessian_blocks and sum_squares, and count, found 1 and 0");
  b = one();
  b.add_floats("m.a.sum_squares", {32}, std::vector<float>(32));
  CHECK(refusal(scratch, b).find("found 2 and 1") != std::string::npos);
  b = one();
  b.add_floats("m.a.target_offset", {4, 16}, std::vector<float>(64));
  CHECK(refusal(scratch, b) ==
        "m.a.target_offset: expected K of 32 (as in its other tensors), found F32 [4, 16]");
  b = one();
  b.tensors[0].shape = {16, 64};
  CHECK(refusal(scratch, b) == "m.a.hessian: expected [K, K] or [K (K + 1) / 2], found F32 [16, 64]");
  b = one();
  b.tensors[0].dtype = DType::kI32;
  CHECK(refusal(scratch, b) == "m.a.hessian: expected F32, found I32 [32, 32]");
  b = one();
  b.add_floats("m.a.weight", {1}, {0});
  CHECK(refusal(scratch, b).starts_with("m.a.weight: expected M.hessian, M.count or another"));
  b = one();
  b.groups["m.z"] = {"m.y"};
  CHECK(refusal(scratch, b) == "metadata groups: expected an entry m.z, found none");
  b = one();
  b.groups["m.a"] = {"m.a", "m.a"};
  CHECK(refusal(scratch, b) ==
        "metadata groups: m.a: expected names of linears, each once, found something else");
  b = one();
  b.tensors[1].bytes.back() = 0x80;
  CHECK(refusal(scratch, b).find("expected a number of tokens, found -") != std::string::npos);
  CHECK(refusal(scratch, StatisticsBuilder()).ends_with("expected statistics of linears, found none"));
  one().write(scratch / "cut.safetensors");
  std::filesystem::resize_file(scratch / "cut.safetensors",
                               std::filesystem::file_size(scratch / "cut.safetensors") - 1);
  CHECK_THROWS_AS(Statistics::open(scratch / "cut.safetensors"), Error);
}

TEST_CASE("sums that are NaN or infinite, and negative diagonals, are refused as they are read") {
  const Scratch scratch;
  const auto broken = [&](const char* kind, size_t at, float number) {
    StatisticsBuilder b = one(kind);
    std::memcpy(&b.tensors[0].bytes[4 * at], &number, sizeof(number));
    b.write(scratch / "s.safetensors");
    const Statistics s = Statistics::open(scratch / "s.safetensors");
    const std::string diagonal = message_of([&] { s.read_diagonal(s.entries()[0]); });
    return std::string(kind) == "sum_squares" ? diagonal
                                              : message_of([&] { s.read_hessian(s.entries()[0]); });
  };
  CHECK(broken("hessian", 40, NAN).find("element 40: expected a finite number, found nan") !=
        std::string::npos);
  CHECK(broken("packed", 1, INFINITY).find("element 1: expected a finite number, found inf") !=
        std::string::npos);
  CHECK(broken("hessian", 33, -1).find("diagonal 1: expected a sum of squares, found -1") !=
        std::string::npos);
  CHECK(broken("sum_squares", 3, -1).find("diagonal 3: expected a sum of squares, found -1") !=
        std::string::npos);
  CHECK(broken("hessian_blocks", 256, NAN).find("expected a finite number") != std::string::npos);
}

TEST_CASE("merging adds sums and counts, keeps the larger amax, and refuses what does not belong together") {
  const Scratch scratch;
  const auto make = [&](const char* name, unsigned seed, float amax, const std::string& weights = "w") {
    StatisticsBuilder b;
    b.add({"m.a", "m.b"}, 32, 100, "hessian", seed);
    b.add_floats("m.a.amax", {}, {amax});
    b.metadata["weights"] = weights;
    b.metadata["tokens"] = "100";
    b.write(scratch / name);
  };
  make("1", 1, 3);
  make("2", 2, 5);
  merge_statistics({scratch / "1", scratch / "2"}, scratch / "out");
  const Statistics a = Statistics::open(scratch / "1"), b = Statistics::open(scratch / "2"),
                   out = Statistics::open(scratch / "out");
  CHECK(out.entries()[0].count == 200);
  CHECK(out.metadata("tokens") == "200");
  CHECK(out.metadata("text") == "test, test");
  std::vector<float> x(1024), y(1024), z(1024);
  a.read(a.entries()[0].sums, 0, x);
  b.read(b.entries()[0].sums, 0, y);
  out.read(out.entries()[0].sums, 0, z);
  for (size_t i = 0; i < z.size(); ++i) REQUIRE(z[i] == static_cast<float>(double{x[i]} + double{y[i]}));
  for (size_t i = 0; i < out.tensors().size(); ++i) {
    if (!out.tensors()[i].name.ends_with(".amax")) continue;
    float amax = 0;
    out.read(i, 0, {&amax, 1});
    CHECK(amax == 5);
  }
  make("3", 3, 1, "others");
  CHECK(message_of([&] {
          merge_statistics({scratch / "1", scratch / "3"}, scratch / "no");
        }).find("metadata weights: expected w (as in") != std::string::npos);
  StatisticsBuilder other;
  other.add({"m.a", "m.b"}, 32, 100, "packed");
  other.metadata["weights"] = "w";
  other.write(scratch / "4");
  CHECK_THROWS_AS(merge_statistics({scratch / "1", scratch / "4"}, scratch / "no"), Error);
  CHECK_THROWS_AS(merge_statistics({scratch / "1"}, scratch / "no"), Error);
  CHECK_THROWS_AS(merge_statistics({scratch / "1", scratch / "2"}, scratch / "1"), Error);
  CHECK(!std::filesystem::exists(scratch / "no"));
}

TEST_CASE("sequential files merge only after the same predecessor") {
  const Scratch scratch;
  const auto make = [&](const char* name, const char* predecessor) {
    StatisticsBuilder b;
    b.add({"m.a"}, 16, 100 + *name);
    b.add_floats("m.a.target_offset", {2, 16}, std::vector<float>(32, 1.0f));
    b.metadata["predecessor"] = predecessor;
    b.metadata["input"] = name;
    b.write(scratch / name);
  };
  make("1", "x");
  make("2", "x");
  make("3", "y");
  merge_statistics({scratch / "1", scratch / "2"}, scratch / "out");
  CHECK(Statistics::open(scratch / "out").metadata("input") != "1");
  CHECK(message_of([&] {
          merge_statistics({scratch / "1", scratch / "3"}, scratch / "no");
        }).find("metadata predecessor: expected x") != std::string::npos);
}

TEST_CASE("a file is held against a checkpoint's linears and final norm") {
  const Scratch scratch;
  Tensors t;
  add_floats(t, "model.layers.0.mlp.gate_proj", random_floats(16, 32, 1));
  add_floats(t, "model.layers.0.mlp.up_proj", random_floats(16, 32, 2));
  add_floats(t, "model.layers.0.mlp.down_proj", random_floats(32, 16, 3));
  add_bf16(t, "model.norm.weight", {32}, 4);
  write_checkpoint(scratch / "c", {t});
  const Checkpoint c = Checkpoint::open(scratch / "c");
  StatisticsBuilder b;
  b.add({"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"}, 32, 128);
  b.metadata["weights"] = final_norm_hash(c);
  b.write(scratch / "s");
  StatisticsCoverage found = cover(Statistics::open(scratch / "s"), c);
  CHECK(found.linears == 3);
  CHECK(found.served == 2);
  CHECK(found.full == 2);
  CHECK(found.missing == std::vector<std::string>{"model.layers.0.mlp.down_proj"});
  CHECK(found.knows_weights);
  CHECK(found.same_weights);
  b = {};
  b.add({"model.layers.0.mlp.down_proj"}, 32, 100);
  b.add({"model.layers.1.mlp.down_proj"}, 16, 100);
  b.write(scratch / "s");
  const std::string message = message_of([&] { cover(Statistics::open(scratch / "s"), c); });
  CHECK(message.find("model.layers.0.mlp.down_proj: expected K of 16, found 32") != std::string::npos);
  CHECK(message.find("model.layers.1.mlp.down_proj: expected a linear of") != std::string::npos);
}

}  // namespace statistics_test
