#include <doctest/doctest.h>

#include <vector>

#include "lib/source/linears/linears.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_weights.h"

namespace made_up_format_test {

using namespace twofour;

namespace {

// A made-up format: all that one consists of, as CONTRIBUTING.md has it under "To add".

/// Halves: a byte is twice the number, signed.
constexpr WeightFormatRow kHalves = {
    .name = "halves", .key = "halves", .coded = true, .tiles = true, .number = [](uint8_t byte) {
      return static_cast<float>(static_cast<int8_t>(byte)) / 2;
    }};

/// The dialects with that of its producer.
std::vector<WeightDialect> dialects() {
  std::vector<WeightDialect> all(weight_dialects().begin(), weight_dialects().end());
  all.push_back({"Made-up", WeightFormat(kHalves), ".weight", DType::kI8, ".weight_step", DType::kF32,
                 nullptr, ".bias", false});
  return all;
}

}  // namespace

TEST_CASE("a format is a row: its tensors are found, its weights read and derived without further code") {
  Tensors tensors = {{"m.weight", DType::kI8, {2, 4}, {2, 4, 0xFE, 0, 1, 3, 0x80, 0x7F}}};
  tensors.push_back({"m.weight_step", DType::kF32, {2}, {0, 0, 0, 0x3F, 0, 0, 0, 0x40}});  // 0.5, 2
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  Problems problems;
  const Linear m = only(find_weight_modules(c, problems, dialects()));
  CHECK(problems.empty());
  CHECK((m.name == "m" && m.n == 2 && m.k == 4 && m.scale_rows == 1 && m.scale_cols == 4));
  CHECK(m.format->name == std::string_view("halves"));
  std::vector<float> out(8);
  WeightReader(c).read_rows(m, 0, 0, 2, out);
  const std::vector<float> exact = {0.5f, 1, -0.5f, 0, 1, 3, -128, 127};
  CHECK(out == exact);
  check_values(c, m, [&](int64_t, int64_t n, int64_t k) { return exact[static_cast<size_t>(4 * n + k)]; });
  CHECK(find_weight_modules(c).empty());
}

}  // namespace made_up_format_test
