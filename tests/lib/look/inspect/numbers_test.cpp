#include "lib/look/inspect/numbers.h"

#include <doctest/doctest.h>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xview.hpp>

#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/weights/stored_weights.h"

namespace numbers_test {

using namespace twofour;

namespace {

/// [n, k]
xt::xtensor<float, 2> weights_of(const Nvfp4Matrix& m) {
  auto out = xt::xtensor<float, 2>::from_shape({static_cast<size_t>(m.n), static_cast<size_t>(m.k)});
  for (size_t i = 0; i < out.size(); ++i)
    out.flat(i) = static_cast<float>(kSlowE2m1.value(m.codes[i / 2] >> (i % 2 * 4) & 15u) *
                                     kSlowE4m3.value(m.scales[i / 16]) * double{m.global});
  return out;
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
    const auto expected = weights_of(experts.up[e]);
    const auto found = numbers.find("model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj");
    REQUIRE(found);
    CHECK(found->format == "NVFP4");
    CHECK(found->shape == std::vector<int64_t>{kI, kH});
    for (const std::vector<SliceRange>& ranges : {std::vector<SliceRange>{{0, kI}, {0, kH}},
                                                  {{3, 94}, {17, 8190}},
                                                  {{95, 96}, {0, 1}},
                                                  {{5, 5}, {0, kH}}}) {
      const xt::xtensor<float, 2> want = xt::view(expected, xt::range(ranges[0].begin, ranges[0].end),
                                                  xt::range(ranges[1].begin, ranges[1].end));
      xt::xtensor<float, 2> values = -xt::ones_like(want);
      numbers.read(*found, ranges, values);
      CHECK((values == want));
    }
  }
}

TEST_CASE("elements of a tensor are read along every dimension") {
  const Scratch scratch;
  TensorData cube{"cube", DType::kI32, {3, 4, 5}, std::vector<uint8_t>(60 * 4)};
  for (size_t i = 0; i < 60; ++i) cube.bytes[4 * i] = static_cast<uint8_t>(i);
  write_checkpoint(scratch / "c", {{cube}});
  const Checkpoint c = Checkpoint::open(scratch / "c");
  const auto at = c.find("cube");
  REQUIRE(at);
  const std::vector<SliceRange> ranges{{1, 3}, {2, 4}, {1, 3}};
  CHECK(read_elements(c, *at, ranges) == std::vector<double>{31, 32, 36, 37, 51, 52, 56, 57});
  CHECK(read_elements(c, *at, std::vector<SliceRange>{{1, 1}, {0, 4}, {0, 5}}).empty());
}

}  // namespace numbers_test
