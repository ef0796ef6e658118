#include "lib/recipe/statistics/check_statistics.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "lib/recipe/statistics/merge_statistics.h"
#include "lib/recipe/statistics/solving.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"

namespace check_statistics_test {

using namespace twofour;

namespace {

const std::string kMlp = "model.layers.0.mlp.", kExperts = kMlp + "experts.";

/// A down projection [32, 16] and a norm.
Checkpoint write_down(const Scratch& scratch) {
  Tensors t;
  add_floats(t, kMlp + "down_proj", random_floats(32, 16, 3));
  add_bf16(t, "model.norm.weight", {32}, 4);
  write_checkpoint(scratch / "c", {t});
  return Checkpoint::open(scratch / "c");
}

/// Statistics of it with held-out sums, a Fisher matrix, a target and all single numbers.
StatisticsBuilder whole() {
  StatisticsBuilder b;
  const std::string down = kMlp + "down_proj";
  b.add({down}, 16, 100);
  b.add_floats("heldout." + down + ".hessian", {16, 16}, StatisticsBuilder::sums(16, 40, 5));
  b.add_count("heldout." + down, 40);
  b.add_floats(down + ".fisher_hessian", {16, 16}, StatisticsBuilder::sums(16, 30, 6));
  b.add_floats(down + ".target_offset", {32, 16}, std::vector<float>(512, 0.5f));
  b.add_floats(down + ".amax", {}, {3});
  b.add_floats(kMlp + "saliency", {4}, {1, 2, 3, 4});
  return b;
}

/// Element `at` of a tensor becomes `number`.
StatisticsBuilder with(const std::string& tensor, size_t at, float number) {
  StatisticsBuilder b = whole();
  for (auto& t : b.tensors) {
    if (t.name == tensor) std::memcpy(&t.bytes[at * sizeof(number)], &number, sizeof(number));
  }
  return b;
}

}  // namespace

TEST_CASE("every sum of a file is read, and what no solver could use is a problem with its place") {
  const Scratch scratch;
  const Checkpoint c = write_down(scratch);
  const auto refusal = [&](StatisticsBuilder b) {
    b.write(scratch / "s");
    return message_of([&] { cover(Statistics::open(scratch / "s"), c); });
  };
  const std::string down = kMlp + "down_proj", heldout = "heldout." + down;
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  CHECK(refusal(whole()) == "");
  for (const std::string& tensor : {down + ".hessian", heldout + ".hessian", down + ".fisher_hessian"})
    CHECK(
        contains(refusal(with(tensor, 3, 1e8f)),
                 tensor + ": inputs 0 and 3: expected a sum of products up to the root of those of squares"));
  CHECK(contains(refusal(with(heldout + ".hessian", 7, nan)), heldout + ".hessian: element 7: expected"));
  CHECK(contains(refusal(with(down + ".target_offset", 17, inf)), ".target_offset: element 1"));
  CHECK(contains(refusal(with(kMlp + "saliency", 2, nan)), "saliency: element 2: expected a finite number"));
  CHECK(contains(refusal(with(down + ".amax", 0, nan)), ".amax: expected a finite number from 0, found nan"));
  CHECK(contains(refusal(with(down + ".amax", 0, -1)), ".amax: expected a finite number from 0, found -1"));
  StatisticsBuilder b = whole();
  std::vector<uint8_t> bytes(sizeof(double), 0xFF);  // a NaN
  b.tensors.push_back({down + ".sum_squared_weights", DType::kF64, {}, bytes});
  CHECK(contains(refusal(b), ".sum_squared_weights: expected a finite number from 0"));
  // All of them at once.
  b = with(heldout + ".hessian", 0, -1);
  std::memcpy(&b.tensors[0].bytes[4], &inf, sizeof(inf));
  const std::string both = refusal(b);
  CHECK(contains(both, heldout + ".hessian: diagonal 0: expected a sum of squares, found -1"));
  CHECK(contains(both, down + ".hessian: element 1: expected a finite number, found inf"));
}

TEST_CASE("a Hessian of few tokens, of rank one or of zeros is a sum of products") {
  const Scratch scratch;
  const Checkpoint c = write_down(scratch);
  for (const int64_t tokens : {0, 1, 5, 20}) {
    StatisticsBuilder b;
    b.add({kMlp + "down_proj"}, 16, tokens);
    b.write(scratch / "s");
    CHECK(cover(Statistics::open(scratch / "s"), c).linears == 1);
  }
}

TEST_CASE("products that two squares allow, and three do not, are no sum of products either") {
  const Scratch scratch;
  const Checkpoint c = write_down(scratch);
  StatisticsBuilder b;
  std::vector<float> sums(256, -0.9f * 100);
  for (size_t i = 0; i < 16; ++i) sums[i * 17] = 100;
  b.linears[kMlp + "down_proj"] = 16;
  b.add_floats(kMlp + "down_proj.hessian", {16, 16}, sums);
  b.add_count(kMlp + "down_proj", 100);
  b.write(scratch / "s");
  CHECK(contains(message_of([&] { cover(Statistics::open(scratch / "s"), c); }),
                 "expected a positive definite Hessian"));
}

TEST_CASE("a product may be beyond the root of its squares by what sums in float32 round") {
  const Scratch scratch;
  const Checkpoint c = write_down(scratch);
  for (const auto& [excess, is_sound] : {std::pair{1.0f, true}, {1.1f, true}, {1.15f, false}}) {
    for (const float unit : {1.0f, 1e-30f, 1e30f}) {
      CAPTURE(excess);
      CAPTURE(unit);
      StatisticsBuilder b;
      std::vector<float> sums(256);
      for (size_t i = 0; i < 16; ++i) sums[i * 17] = 100 * unit * static_cast<float>(i + 1);
      sums[2 * 16 + 9] = sums[9 * 16 + 2] = -excess * 100 * unit * std::sqrt(30.0f);
      b.linears[kMlp + "down_proj"] = 16;
      b.add_floats(kMlp + "down_proj.hessian", {16, 16}, sums);
      b.add_count(kMlp + "down_proj", 1000);
      b.write(scratch / "s");
      const Statistics s = Statistics::open(scratch / "s");
      CHECK(message_of([&] { s.read_hessian(s.entries()[0]); }).empty() == is_sound);
    }
  }
}

TEST_CASE("a target may be a thousand times the weights, and no further") {
  const Scratch scratch;
  const Checkpoint c = write_down(scratch);
  const std::string down = kMlp + "down_proj", tensor = down + ".target_offset";
  const auto refusal = [&](float offset, bool zero_weights = false, size_t row = 31) {
    StatisticsBuilder b;
    b.add({down}, 16, 100);
    std::vector<float> numbers(512);
    for (size_t k = 0; k < 16; ++k) numbers[row * 16 + k] = offset * static_cast<float>(k % 3);
    b.add_floats(tensor, {32, 16}, numbers);
    b.write(scratch / "s");
    if (!zero_weights) return message_of([&] { cover(Statistics::open(scratch / "s"), c); });
    Tensors t;
    add_floats(t, down, {32, 16, std::vector<float>(512)});
    write_checkpoint(scratch / "zeros", {t});
    return message_of([&] { cover(Statistics::open(scratch / "s"), Checkpoint::open(scratch / "zeros")); });
  };
  for (const size_t row : {size_t{0}, size_t{31}}) {
    CHECK(refusal(0, false, row) == "");
    CHECK(refusal(1, false, row) == "");
    for (const float beyond : {1e6f, 1e20f, 1e38f, -1e38f}) {
      CAPTURE(beyond);
      const std::string configured = refusal(beyond, false, row);
      CHECK(contains(configured, tensor + ": expected targets up to 1024 times the largest weight, 0.19"));
    }
  }
  // Weights that are all 0 say nothing of a target, which has to be finite.
  CHECK(refusal(1e20f, true) == "");
  // By the extent itself: the limit is included, and NaN is beyond any.
  const auto excess = [](float weight, float target) {
    TargetExtent extent;
    const std::vector<float> weights{0, -weight}, targets{target, weight};
    extent.add(weights, targets);
    return extent.find_excess();
  };
  CHECK(excess(0.5f, 512) == "");
  CHECK(excess(0.5f, std::nextafter(512.0f, 600.0f)) != "");
  CHECK(excess(0x1p-140f, 0x1p-130f) == "");
  CHECK(excess(0, 3) == "");
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    CHECK(excess(1, bad) == "expected targets within float32, found a larger one");
    CHECK(excess(0, bad) == "expected targets within float32, found a larger one");
  }
  TargetExtent extent;
  extent.add(std::vector<float>{3, 4}, std::vector<float>{3, 14});
  CHECK(extent.relative_change() == doctest::Approx(2));
}

TEST_CASE("targets of experts in a stack are held against their own rows") {
  const Scratch scratch;
  for (const bool in_turn : {false, true}) {
    Tensors t;
    std::vector<FloatMatrix> both;
    for (unsigned e = 0; e < 2; ++e) {
      FloatMatrix gate = random_floats(16, 32, e + 1), up = random_floats(16, 32, e + 5);
      for (float& x : up.values) x *= 0x1p-14f;  // a target that gate may have is none for up
      both.push_back(join_rows(gate, up, in_turn));
    }
    add_float_stack(t, kExperts + "gate_up_proj", both, false);
    if (in_turn)
      t.push_back({kExperts + "gate_up_proj_bias", DType::kBF16, {2, 32}, std::vector<uint8_t>(128)});
    add_float_stack(t, kExperts + "down_proj", {random_floats(32, 16, 9), random_floats(32, 16, 10)}, false);
    write_checkpoint(scratch / "c", {t},
                     fmt::format(R"({{"model_type": "{}"}})", in_turn ? "gpt_oss" : "qwen3_moe"));
    for (const std::string leaf : {"gate_proj", "up_proj"}) {
      CAPTURE(leaf);
      CAPTURE(in_turn);
      StatisticsBuilder b;
      const std::string linear = kExperts + "1." + leaf;
      b.add({linear}, 32, 500);
      b.add_floats(linear + ".target_offset", {16, 32}, std::vector<float>(512, 1e5f));
      b.write(scratch / "s");
      const std::string configured =
          message_of([&] { cover(Statistics::open(scratch / "s"), Checkpoint::open(scratch / "c")); });
      CHECK((configured.find("times the largest weight") != configured.npos) == (leaf == "up_proj"));
    }
  }
}

TEST_CASE("sums that are all 0 are counted apart, in each form of them") {
  const Scratch scratch;
  const Checkpoint c = write_down(scratch);
  for (const std::string kind : {"hessian", "packed", "hessian_blocks", "sum_squares"}) {
    for (const int last : {0, 1}) {  // whether the last number of the diagonal is not 0
      CAPTURE(kind);
      StatisticsBuilder b;
      b.add({kMlp + "down_proj"}, 16, 100, kind);
      std::vector<uint8_t>& bytes = b.tensors[0].bytes;
      std::fill(bytes.begin(), bytes.end(), uint8_t{0});
      if (last == 1) bytes[bytes.size() - 2] = 0x80, bytes[bytes.size() - 1] = 0x3F;
      b.write(scratch / "s");
      const StatisticsCoverage found = cover(Statistics::open(scratch / "s"), c);
      CHECK(found.without_inputs == 1 - static_cast<size_t>(last));
      CHECK(found.served == static_cast<size_t>(last));
    }
  }
}

TEST_CASE("held-out sums and target offsets are held against the linears that they are of") {
  const Scratch scratch;
  const Checkpoint c = write_down(scratch);
  const auto refusal = [&](const std::function<void(StatisticsBuilder&)>& change) {
    StatisticsBuilder b;
    b.add({kMlp + "down_proj"}, 16, 100);
    change(b);
    b.write(scratch / "s");
    return message_of([&] { cover(Statistics::open(scratch / "s"), c); });
  };
  CHECK(contains(
      refusal([](StatisticsBuilder& b) {
        b.add_floats("heldout." + kMlp + "down_proj.hessian", {32, 32}, StatisticsBuilder::sums(32, 40, 5));
        b.add_count("heldout." + kMlp + "down_proj", 40);
      }),
      "heldout." + kMlp + "down_proj: expected K of 16, found 32"));
  CHECK(contains(refusal([](StatisticsBuilder& b) {
                   b.add_floats("heldout.other.sum_squares", {16}, std::vector<float>(16, 1.0f));
                   b.add_count("heldout.other", 40);
                 }),
                 "heldout.other: expected a linear of"));
  CHECK(contains(
      refusal([](StatisticsBuilder& b) {
        b.add_floats(kMlp + "down_proj.target_offset", {31, 16}, std::vector<float>(31 * 16));
      }),
      kMlp + "down_proj.target_offset: expected [32, 16] (as in " + kMlp + "down_proj), found F32 [31, 16]"));
}

TEST_CASE("each expert of a stack counts as it does where experts are apart") {
  const Scratch scratch;
  std::vector<FloatMatrix> gate, up, down, both;
  Tensors apart, stacked;
  for (unsigned e = 0; e < 4; ++e) {
    const std::string expert = kExperts + std::to_string(e) + ".";
    gate.push_back(random_floats(16, 32, 10 * e + 1));
    up.push_back(random_floats(16, 32, 10 * e + 2));
    down.push_back(random_floats(32, 16, 10 * e + 3));
    both.push_back(join_rows(gate[e], up[e], false));
    add_floats(apart, expert + "gate_proj", gate[e]);
    add_floats(apart, expert + "up_proj", up[e]);
    add_floats(apart, expert + "down_proj", down[e]);
  }
  add_float_stack(stacked, kExperts + "gate_up_proj", both, false);
  add_float_stack(stacked, kExperts + "down_proj", down, false);
  for (auto* t : {&apart, &stacked}) add_bf16(*t, "model.norm.weight", {32}, 4);
  write_checkpoint(scratch / "apart", {apart});
  write_checkpoint(scratch / "stacked", {stacked}, R"({"model_type": "qwen3_moe"})");
  StatisticsBuilder b;  // of gate and up one entry a layer; of down: enough, few, none, and no entry
  std::vector<std::string> members;
  for (const char* e : {"0", "1", "2", "3"}) {
    members.push_back(kExperts + e + ".gate_proj");
    members.push_back(kExperts + e + ".up_proj");
  }
  b.add(members, 32, 500);
  b.add({kExperts + "0.down_proj"}, 16, 100);
  b.add({kExperts + "1.down_proj"}, 16, 20);
  b.add({kExperts + "2.down_proj"}, 16, 0);
  b.write(scratch / "s");
  for (const char* which : {"apart", "stacked"}) {
    CAPTURE(which);
    const StatisticsCoverage found =
        cover(Statistics::open(scratch / "s"), Checkpoint::open(scratch / which));
    CHECK(found.linears == 12);
    CHECK(found.served == 10);
    CHECK(found.full == 9);
    CHECK(found.few == 1);
    CHECK(found.without_tokens == 1);
    CHECK(found.missing == std::vector<std::string>{kExperts + "3.down_proj"});
  }
  // An entry of the stack as a whole serves the experts that have none with tokens.
  b.add({kExperts + "down_proj"}, 16, 100);
  b.metadata.erase("structure");
  b.write(scratch / "s");
  const StatisticsCoverage found =
      cover(Statistics::open(scratch / "s"), Checkpoint::open(scratch / "stacked"));
  CHECK(found.full == 11);
  CHECK(found.few == 1);
  CHECK(found.missing.empty());
}

TEST_CASE("strict statistics say of which weights they are, and the checkpoint says which it has") {
  const Scratch scratch;
  const Checkpoint c = write_down(scratch);
  Tensors t;
  add_floats(t, kMlp + "down_proj", random_floats(32, 16, 3));
  write_checkpoint(scratch / "bare", {t});
  const auto reason = [&](const std::string& weights, const Checkpoint& of, bool strict) {
    StatisticsBuilder b = whole();
    b.metadata["weights"] = weights;
    b.write(scratch / "s");
    return other_weights(Statistics::open(scratch / "s"), of, strict);
  };
  const std::string own = final_norm_hash(c);
  CHECK(reason(own, c, true) == "");
  CHECK(reason("", c, false) == "");
  CHECK(contains(reason("other", c, false), "found a different final norm"));
  CHECK(contains(reason("other", c, true), "found a different final norm (--strict-stats)"));
  CHECK(contains(reason("", c, true),
                 "found none, so the weights of these statistics are unknown (--strict-stats)"));
  const Checkpoint bare = Checkpoint::open(scratch / "bare");
  CHECK(reason(own, bare, false) == "");
  CHECK(contains(reason(own, bare, true), "expected a norm before the head"));
}

TEST_CASE("merging refuses a file that comes twice, numbers that are none, and sums that overflow") {
  const Scratch scratch;
  whole().write(scratch / "1");
  std::filesystem::copy_file(scratch / "1", scratch / "copy");
  std::filesystem::create_symlink(scratch / "1", scratch / "link");
  const auto refusal = [&](const char* a, const char* b) {
    const std::string message = message_of([&] {
      merge_statistics({scratch / a, scratch / b}, scratch / "out");
    });
    CHECK(!std::filesystem::exists(scratch / "out"));
    CHECK(!std::filesystem::exists(scratch / ".out.unfinished"));
    return message;
  };
  for (const char* same : {"1", "copy", "link"}) {
    CHECK(contains(refusal("1", same), "expected statistics of other tokens than"));
  }
  const std::string down = kMlp + "down_proj";
  with(down + ".hessian", 5, std::nanf("")).write(scratch / "2");
  CHECK(
      contains(refusal("1", "2"), "2: " + down + ".hessian: element 5: expected a finite number, found nan"));
  with("heldout." + down + ".hessian", 0, -4).write(scratch / "2");
  CHECK(contains(refusal("1", "2"), "heldout." + down + ".hessian: diagonal 0: expected a sum of squares"));
  with(down + ".target_offset", 9, 3e38f).write(scratch / "2");
  with(down + ".target_offset", 9, 2e38f).write(scratch / "3");
  CHECK(contains(refusal("2", "3"), down + ".target_offset: element 9: expected a sum over all files"));
  const int64_t most = std::numeric_limits<int64_t>::max();
  StatisticsBuilder b = whole();
  std::memcpy(b.tensors[1].bytes.data(), &most, sizeof(most));
  b.write(scratch / "2");
  CHECK(contains(refusal("1", "2"), down + ".count: element 0: expected a sum over all files"));
}

}  // namespace check_statistics_test
