#include "kernels/moe/moe_cpu.h"

#include <omp.h>

#include "formats/error.h"
#include "tests/support/device/device_experts.h"
#include "tests/support/weights/stored_experts.h"

namespace moe_cpu_test {

using namespace twofour;
using cuda::Float;

namespace {

struct Case {
  int64_t e, h, i, m, topk;
  bool gated = true;
  Float type = Float::f32;
  float limit = 0;
  bool weight_on_input = false, mapped = false;
};

/// A layer with tokens of which every number is what `type` represents.
template <class Layout>
struct Layer {
  Case c;
  StoredExperts<Layout> w13, w2;
  std::vector<float> hidden, weights;
  std::vector<int32_t> ids, map;
  std::vector<uint8_t> hidden_bytes;

  explicit Layer(const Case& which)
      : c(which), w13({c.e, c.gated ? 2 * c.i : c.i, c.h, c.gated}, 1), w2({c.e, c.h, c.i}, 2) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> drawn(static_cast<size_t>(c.m * c.h));
    for (float& x : drawn) x = normal(random);
    hidden_bytes = Activations::to_bits(drawn, c.type);
    hidden = Activations::from_bits(hidden_bytes, c.type);
    // Every other of twice as many experts in the world is here.
    const int64_t known = c.mapped ? 2 * c.e : c.e;
    for (int64_t e = 0; c.mapped && e < known; ++e)
      map.push_back(e % 2 == 1 ? static_cast<int32_t>(c.e - 1 - e / 2) : -1);
    for (int64_t j = 0; j < c.m * c.topk; ++j) {
      ids.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(known)));
      weights.push_back(0.1f + static_cast<float>(random() % 100) / 100.0f);
    }
  }

  std::vector<uint8_t> run(Isa isa) const {
    const MoeOptions options{map.empty() ? nullptr : map.data(), static_cast<int64_t>(map.size()),
                             c.weight_on_input, c.limit};
    const cpu::Moe layer{options, w13.experts(), w2.experts()};
    std::vector<uint8_t> out(hidden_bytes.size(), 0xFF);
    cuda::MoeTokens tokens;
    tokens.m = c.m, tokens.topk = c.topk, tokens.type = c.type;
    tokens.hidden = hidden_bytes.data(), tokens.topk_ids = ids.data(), tokens.topk_weights = weights.data();
    tokens.out = out.data();
    cpu::moe(layer, tokens, isa);
    return out;
  }

  std::vector<double> reference() const {
    return moe_reference(
        {c.m, c.h, c.topk, hidden, ids, weights, map, c.weight_on_input, static_cast<double>(c.limit)},
        w13.rows(), w2.rows());
  }
};

template <class Layout>
void check_layout(const Case& c) {
  const Layer<Layout> layer(c);
  const auto want = layer.reference();
  std::vector<uint8_t> first;
  for (const Isa isa : available_isas()) {
    CAPTURE(Layout::name);
    CAPTURE(isa_name(isa));
    CAPTURE(c.e);
    CAPTURE(c.h);
    CAPTURE(c.i);
    CAPTURE(c.m);
    const auto got = layer.run(isa);
    CHECK(relative_error(Activations::from_bits(got, c.type), want) < tolerance(c.type, 0));
    if (first.empty()) first = got;
    CHECK(got == first);
  }
}

void check_all(const Case& c) {
  check_layout<KMajorPlanes>(c);
  check_layout<KMajorPacked>(c);
  check_layout<GateUpInterleaved8>(c);
}

}  // namespace

TEST_CASE("the MoE layer on the CPU equals the reference for odd shapes, in every layout") {
  for (const int64_t m : {1, 3}) {
    check_all({4, 16, 16, m, 2});
    check_all({1, 80, 16, m, 1});
    check_all({4, 32, 48, m, 3});
    check_all({7, 272, 144, m, 4});
    check_all({2, 64, 80, m, 5});  // a token names an expert more than once
  }
}

TEST_CASE("the MoE layer on the CPU equals the reference for any number of tokens") {
  for (const int64_t m : {1, 2, 8, 31, 64, 65}) check_all({8, 128, 64, m, 2});
  check_all({1, 96, 64, 64, 1});    // a dense MLP
  check_all({1, 32, 16, 1100, 1});  // more tokens than are worked on at a time, and than a strip takes
  check_all({64, 32, 16, 2, 2});    // experts that nobody chose
}

TEST_CASE("the MoE layer on the CPU knows limits, input weights, maps, types and experts without a gate") {
  for (const int64_t m : {1, 6}) {
    check_all({6, 192, 96, m, 3, true, Float::f16});
    check_all({6, 192, 96, m, 3, true, Float::bf16});
    check_all({6, 192, 96, m, 3, true, Float::f32, 0.05f});
    check_all({6, 192, 96, m, 1, true, Float::f32, 0, true});
    check_all({6, 192, 96, m, 4, true, Float::f32, 0, false, true});
    check_all({6, 192, 144, m, 3, false, Float::f32, 0, true, true});
  }
}

TEST_CASE("the MoE layer on the CPU gives the same floats for any number of threads") {
  const Layer<KMajorPlanes> layer({8, 256, 192, 20, 3});
  const int threads = omp_get_max_threads();
  std::vector<std::vector<uint8_t>> outs;
  for (const int n : {1, 2, 5}) {
    omp_set_num_threads(n);
    outs.push_back(layer.run(best_isa()));
  }
  omp_set_num_threads(threads);
  CHECK(outs[0] == outs[1]);
  CHECK(outs[0] == outs[2]);
}

TEST_CASE("without tokens, or where no expert is here, nothing or zeros come out") {
  Layer<KMajorPlanes> layer({4, 32, 16, 3, 2, true, Float::f32, 0, false, true});
  std::fill(layer.map.begin(), layer.map.end(), -1);
  CHECK(layer.run(best_isa()) == std::vector<uint8_t>(layer.hidden_bytes.size()));
  CHECK(Layer<KMajorPlanes>({4, 32, 16, 0, 2}).run(best_isa()).empty());
}

TEST_CASE("ids out of range and layers that do not fit together are refused") {
  for (const int32_t bad : {-1, 4, 1 << 30}) {
    Layer<GateUpInterleaved8> layer({4, 32, 16, 3, 2});
    layer.ids[5] = bad;
    CHECK_THROWS_WITH_AS(layer.run(best_isa()),
                         doctest::Contains("topk_ids[2, 1]: expected an expert from 0 to 3, found"), Error);
  }
  Layer<KMajorPlanes> mapped({4, 32, 16, 3, 2, true, Float::f32, 0, false, true});
  std::fill(mapped.map.begin(), mapped.map.end(), 4);
  CHECK_THROWS_WITH_AS(mapped.run(best_isa()), doctest::Contains("expert_map: expected -1 to 3, found 4"),
                       Error);
  Layer<KMajorPlanes> shapes({4, 32, 16, 3, 2});
  shapes.w2.shape.k = 32;
  CHECK_THROWS_WITH_AS(shapes.run(best_isa()), doctest::Contains("expected w13 [E, 2I, H]"), Error);
}

}  // namespace moe_cpu_test
