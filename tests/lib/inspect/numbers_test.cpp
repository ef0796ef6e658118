#include "lib/inspect/numbers.h"

#include <doctest/doctest.h>

#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/stored_weights.h"

namespace numbers_test {

using namespace twofour;

namespace {

float weight(const Nvfp4Matrix& m, int64_t n, int64_t k) {
  const auto byte = m.codes[static_cast<size_t>(n * m.k / 2 + k / 2)];
  const auto scale = m.scales[static_cast<size_t>(n * m.k / 16 + k / 16)];
  return static_cast<float>(kSlowE2m1.value(byte >> (k % 2 * 4) & 15u) * kSlowE4m3.value(scale) *
                            double{m.global});
}

}  // namespace

TEST_CASE("ranges that are read in several pieces have every value in its place") {
  const Scratch scratch;
  constexpr int64_t kI = 96, kH = 8192;  // 32 rows of H make a piece
  const ExpertSet experts = random_experts(2, kI, kH);
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", experts);
  write_checkpoint(scratch / "c", {tensors});
  const Checkpoint c = Checkpoint::open(scratch / "c");
  const NamedNumbers numbers(c);
  CHECK(!numbers.find("model.layers.0.mlp.experts.2.up_proj"));
  for (size_t e = 0; e < 2; ++e) {
    const auto found = numbers.find("model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj");
    REQUIRE(found);
    CHECK(found->format == "NVFP4");
    CHECK(found->shape == std::vector<int64_t>{kI, kH});
    for (const std::vector<SliceRange>& ranges : {std::vector<SliceRange>{{0, kI}, {0, kH}},
                                                  {{3, 94}, {17, 8190}},
                                                  {{95, 96}, {0, 1}},
                                                  {{5, 5}, {0, kH}}}) {
      const int64_t rows = ranges[0].end - ranges[0].begin, columns = ranges[1].end - ranges[1].begin;
      std::vector<float> values(static_cast<size_t>(rows * columns), -1.0f);
      numbers.read(*found, ranges, values);
      size_t wrong = 0;
      for (int64_t n = 0; n < rows; ++n) {
        for (int64_t k = 0; k < columns; ++k)
          wrong += values[static_cast<size_t>(n * columns + k)] !=
                   weight(experts.up[e], ranges[0].begin + n, ranges[1].begin + k);
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("elements of a tensor are read along every dimension") {
  const Scratch scratch;
  TensorData cube{"cube", DType::kI32, {3, 4, 5}, {}};
  for (int i = 0; i < 60; ++i) {
    for (int byte = 0; byte < 4; ++byte) cube.bytes.push_back(static_cast<uint8_t>(byte == 0 ? i : 0));
  }
  write_checkpoint(scratch / "c", {{cube}});
  const Checkpoint c = Checkpoint::open(scratch / "c");
  const auto at = c.find("cube");
  REQUIRE(at);
  const std::vector<SliceRange> ranges{{1, 3}, {2, 4}, {1, 3}};
  CHECK(read_elements(c, *at, ranges) == std::vector<double>{31, 32, 36, 37, 51, 52, 56, 57});
  CHECK(read_elements(c, *at, std::vector<SliceRange>{{1, 1}, {0, 4}, {0, 5}}).empty());
}

}  // namespace numbers_test
