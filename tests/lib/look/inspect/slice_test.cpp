#include "lib/look/inspect/slice.h"
#include "lib/recipe/artifact/open_unpacked.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/weights/stored_weights.h"

namespace slice_test {

using namespace twofour;

namespace {

const std::string kBlock = "model.layers.0.mlp.experts";

double weight(const Nvfp4Matrix& m, int64_t n, int64_t k) {
  const auto byte = m.codes[static_cast<size_t>(n * m.k / 2 + k / 2)];
  const auto scale = m.scales[static_cast<size_t>(n * m.k / 16 + k / 16)];
  return kSlowE2m1.value(byte >> (k % 2 * 4) & 15u) * kSlowE4m3.value(scale) * double{m.global};
}

std::string refusal(const Checkpoint& c, const std::string& text) {
  return message_of([&] { read_slice(c, text); });
}

using Dims = std::vector<int64_t>;

}  // namespace

TEST_CASE("a slice of weights is decoded, in every dialect, stacked or not") {
  constexpr int64_t kE = 3, kI = 32, kH = 48;
  for (const char* how :
       {"modelopt", "compressed-tensors", "stack", "stack, k outer", "stack, interleaved"}) {
    CAPTURE(how);
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, experts_stored_as(how, kBlock, kE, kI, kH));
    ExpertSet set = random_experts(kE, kI, kH, 7);
    const bool stacked = std::string(how).starts_with("stack");
    if (stacked) set.up[1].global = 1.5f;
    // Of a stack a name that no tensor has: the matrix of one expert.
    const SliceValues s = read_slice(c, kBlock + ".1.up_proj[4:6, 13:19]");
    CHECK(s.format == "NVFP4");
    CHECK((s.whole == Dims{kI, kH} && s.shape == Dims{2, 6}));
    REQUIRE(s.values.size() == 12);
    for (int64_t i = 0; i < 12; ++i) {
      CHECK(s.values[static_cast<size_t>(i)] == weight(set.up[1], 4 + i / 6, 13 + i % 6));
    }
    if (!stacked) continue;
    const bool turned = std::string(how).find("interleaved") != std::string::npos;
    const SliceValues whole = read_slice(c, kBlock + ".gate_up_proj[1, -1, :]");
    CHECK((whole.whole == Dims{kE, 2 * kI, kH} && whole.shape == Dims{kH}));
    for (int64_t k = 0; k < kH; ++k)
      CHECK(whole.values[static_cast<size_t>(k)] == weight(set.up[1], kI - 1, k));
    CHECK(read_slice(c, kBlock + ".gate_up_proj[:, 1, 0]").values[1] ==
          (turned ? weight(set.up[1], 0, 0) : 1.5 / 0.25 * weight(set.gate[1], 1, 0)));
  }
}

TEST_CASE("an artifact's weights are those that it stands for, its tensors those that it stores") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {experts_stored_as("modelopt", kBlock, 2, 32, 48)});
  for (const char* layout : {"g8", "v7"}) {
    OneRule recipe;
    recipe.to = layout;
    convert(scratch / "src", scratch / layout, recipe);
  }
  const Checkpoint source = Checkpoint::open(scratch / "src"), g8 = open_source(scratch / "g8"),
                   v7 = open_source(scratch / "v7");
  const std::string weights = kBlock + ".1.gate_proj[7]";
  CHECK(read_slice(g8, weights).values == read_slice(source, weights).values);
  const auto pruned = read_slice(v7, weights).values, all = read_slice(source, weights).values;
  CHECK(pruned != all);
  for (size_t k = 0; k < all.size(); ++k) CHECK((pruned[k] == all[k] || pruned[k] == 0));
  const SliceValues comp = read_slice(v7, kBlock + ".w13_comp[1, 0, :4]");
  CHECK(comp.format == "U8");
  CHECK(comp.whole == Dims{2, 12, 64});
  const auto bytes = read_tensors(scratch / "v7").at(kBlock + ".w13_comp").bytes;
  for (size_t i = 0; i < 4; ++i) CHECK(comp.values[i] == bytes[12 * 64 + i]);
}

TEST_CASE("elements of a tensor are sliced as NumPy does it") {
  std::vector<uint8_t> bytes;
  for (int16_t i = 0; i < 2 * 3 * 5; ++i) {
    const auto v = static_cast<uint16_t>(i - 10);
    bytes.insert(bytes.end(), {static_cast<uint8_t>(v), static_cast<uint8_t>(v >> 8)});
  }
  const Scratch scratch;
  const Checkpoint c =
      open_checkpoint(scratch, {{"t", DType::kI16, {2, 3, 5}, bytes},
                                {"s", DType::kBF16, {}, {0x80, 0xBF}},
                                {"none", DType::kF32, {0, 4}, {}},
                                {"big", DType::kU8, {1 << 9, 1 << 8}, std::vector<uint8_t>(1 << 17)}});
  const auto check = [&](const std::string& slice, const Dims& shape, const std::vector<double>& values) {
    CAPTURE(slice);
    const SliceValues s = read_slice(c, slice);
    CHECK((s.shape == shape && s.values == values));
  };
  check("t[0, 0]", {5}, {-10, -9, -8, -7, -6});
  check("t[1,2,3]", {}, {18});
  check("t[-1, 1:, -2:]", {2, 2}, {13, 14, 18, 19});
  check("t[:, 0:1, 4]", {2, 1}, {-6, 9});
  check("t[:, :1, 3:99]", {2, 1, 2}, {-7, -6, 8, 9});
  check("t[0, 2:1]", {0, 5}, {});
  check("s", {}, {-1});
  check("none", {0, 4}, {});
  CHECK(read_slice(c, "t").values.size() == 30);
  CHECK(refusal(c, "t[2]") == "t[2]: expected a number below 2, found '2'");
  CHECK(refusal(c, "t[-3]").ends_with("found '-3'"));
  CHECK(refusal(c, "t[0,0,0,0]").find("expected at most 3 dimensions") != std::string::npos);
  for (const char* bad : {"t[x]", "t[1:2:3]", "t[,]", "t[ ]", "t[99999999999999999999]"}) {
    CHECK(refusal(c, bad).find("expected numbers and begin:end") != std::string::npos);
  }
  CHECK(refusal(c, "big").find("expected a slice of at most 65536 values") != std::string::npos);
  CHECK(read_slice(c, "big[:256]").values.size() == 65'536);
  CHECK(refusal(c, "u[0]").starts_with("u: expected a module or a tensor, found none of that name"));
}

TEST_CASE("names that end in brackets are names, and can be sliced") {
  const Scratch scratch;
  const auto stored = [](const std::string& name, std::vector<uint8_t> bytes) {
    return TensorData{name, DType::kU8, {static_cast<int64_t>(bytes.size())}, bytes};
  };
  const Checkpoint c = open_checkpoint(scratch, {stored("t", {1, 2, 3}), stored("t[1]", {4, 5, 6}),
                                                 stored("a[x].b", {7, 8}), stored("[]", {9})});
  CHECK(read_slice(c, "t[1]").values == std::vector<double>{4, 5, 6});
  CHECK(read_slice(c, "t[1][2]").values == std::vector<double>{6});
  CHECK(read_slice(c, "t[2]").values == std::vector<double>{3});
  CHECK(read_slice(c, "a[x].b[1:]").values == std::vector<double>{8});
  CHECK(read_slice(c, "[]").values == std::vector<double>{9});
  CHECK(refusal(c, "u[1]").starts_with("u: expected a module or a tensor"));
}

}  // namespace slice_test
