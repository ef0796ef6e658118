#include "kernels/moe/sparse_moe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "formats/error.h"
#include "kernels/device/device.h"
#include "tests/support/device/device.h"
#include "tests/support/device/device_tokens.h"
#include "tests/support/device/green_context.h"

namespace sparse_moe_test {

using namespace twofour;
using namespace twofour::cuda;

namespace {

struct Case {
  int64_t e, h, i, m, topk;
  bool gated = true;
  Float type = Float::bf16;
  double limit = 0;
  bool weight_on_input = false, mapped = false;
};

/// A layer, tokens and the workspace, with what replaces them in a captured graph.
template <class Layout>
struct Layer : DeviceTokens {
  Case c;
  SparseOnDevice<Layout> w13, w2;
  DeviceMemory workspace;
  SparseMoePlan plan;

  explicit Layer(const Case& which)
      : DeviceTokens(which.e, which.h, which.m, which.topk, which.type),
        c(which),
        w13(DenseExperts(c.e, c.gated ? 2 * c.i : c.i, c.h, 11)),
        w2(DenseExperts(c.e, c.h, c.i, 12)),
        workspace(sparse_moe_workspace(moe(), c.m, c.topk)) {
    draw(14);
  }

  /// New tokens in the same memory.
  void draw(unsigned seed) {
    std::mt19937 random(seed);
    const int64_t known = c.mapped ? 2 * c.e : c.e;
    ids.clear(), topk_weights.clear();
    std::vector<int32_t> all(static_cast<size_t>(known));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t token = 0; token < c.m; ++token) {
      std::shuffle(all.begin(), all.end(), random);
      for (int64_t t = 0; t < c.topk; ++t)
        add_row(all[static_cast<size_t>(t % known)], random);  // twice the same where topk > known
    }
    hidden.values = Activations(hidden.values.size(), c.type, seed + 1).values;
    upload();
  }

  /// `counts[e]` tokens go to expert e alone.
  void set_experts(const std::vector<int64_t>& counts) {
    std::mt19937 random(21);
    ids.clear(), topk_weights.clear();
    std::vector<int64_t> all;
    for (size_t e = 0; e < counts.size(); ++e)
      all.insert(all.end(), static_cast<size_t>(counts[e]), static_cast<int64_t>(e));
    std::shuffle(all.begin(), all.end(), random);
    for (const int64_t e : all) add_row(e, random);
    upload();
  }

  SparseMoe moe() const {
    return {options(c.mapped, c.weight_on_input, c.limit), w13.experts(), w2.experts()};
  }

  void run(Stream stream) {
    out.fill(0xFF);
    workspace.fill(0xFF);
    launch(stream);
  }
  void launch(Stream stream) { sparse_moe(moe(), tokens(), workspace.as(), workspace.bytes(), stream, plan); }

  /// Largest relative error. The many-row kernel rounds to BF16: x, what is between the products and, for
  /// such results, the products of a row.
  double bound() const {
    if (plan.many_rows == ManyRowsUse::never || c.m == 1)
      return tolerance(c.type, c.type == Float::f32 ? 3 : 1);
    return tolerance(c.type, 0) + 2 * 0x1p-8;
  }

  void check() const {
    MoeInput in{c.m, c.h, c.topk, hidden.values, ids, topk_weights, {}, c.weight_on_input, c.limit};
    if (c.mapped) in.expert_map = map;
    const auto want = moe_reference(in, w13.rows(), w2.rows());
    CHECK(relative_error(Activations::from_bits(out.download<uint8_t>(), c.type), want) < bound());
    CHECK(error.download<int32_t>()[0] == 0);
  }
};

bool takes_many_rows(const Case& c) {
  return cuda_device()->capability == 90 && c.h % 64 == 0 && c.i % 64 == 0;
}

/// Calls `check` with a layer for every way to start it that there is.
template <class Layout, class Check>
void for_each_way(const Case& c, const Check& check) {
  CAPTURE(Layout::name);
  CAPTURE(c.e);
  CAPTURE(c.h);
  CAPTURE(c.i);
  CAPTURE(c.m);
  CAPTURE(c.topk);
  CAPTURE(c.gated);
  CAPTURE(c.mapped);
  Layer<Layout> layer(c);
  layer.plan.many_rows = ManyRowsUse::never;
  for (const auto launches : {SparseMoeLaunches::several, SparseMoeLaunches::one}) {
    const bool one = launches == SparseMoeLaunches::one;
    if (one && !sparse_moe_in_one(layer.moe(), layer.tokens())) continue;
    CAPTURE(one);
    layer.plan.launches = launches;
    check(layer);
  }
  if (c.m == 1 || !takes_many_rows(c)) return;
  const bool many_rows = true;
  CAPTURE(many_rows);
  layer.plan.launches = SparseMoeLaunches::chosen;
  layer.plan.many_rows = ManyRowsUse::always;
  check(layer);
}

template <class Layout>
void check_case(const Case& c) {
  for_each_way<Layout>(c, [](Layer<Layout>& layer) {
    const DeviceStream stream;
    layer.run(stream.get());
    stream.synchronize();
    layer.check();
    const auto first = layer.out.template download<uint8_t>();
    layer.out.fill(0xFF);
    layer.launch(stream.get());  // in the workspace as it was left
    stream.synchronize();
    CHECK(layer.out.template download<uint8_t>() == first);
  });
}

void check_both(const Case& c) {
  check_case<KMajorPlanes>(c);
  check_case<KMajorPacked>(c);
}

}  // namespace

TEST_CASE("the fused MoE layer equals the reference for odd shapes") {
  if (no_gpu()) return;
  for (const int64_t m : {1, 3}) {
    check_both({4, 16, 16, m, 2});
    check_both({4, 32, 48, m, 3});
    check_both({1, 80, 16, m, 1});
    check_both({7, 272, 144, m, 4});
    check_both({2, 64, 64, m, 5});  // a token names an expert more than once
  }
}

TEST_CASE("the fused MoE layer equals the reference for any number of tokens") {
  if (no_gpu()) return;
  for (const int64_t m : {1, 2, 4, 8, 16, 31, 32, 64}) check_both({8, 128, 64, m, 2});
  for (const int64_t m : {2, 3, 5}) check_both({64, 144, 80, m, 3});  // few enough to go unsorted
  check_both({1, 256, 128, 64, 1});                                   // a dense MLP
  check_both({33, 128, 64, 100, 6});  // more rows than blocks sort out by themselves
  check_both({3, 64, 64, 1500, 1});   // more tokens than are worked on at a time
}

TEST_CASE("the fused MoE layer knows limits, input weights, maps, types and experts without a gate") {
  if (no_gpu()) return;
  for (const auto& [e, m] : {std::pair<int64_t, int64_t>{6, 1}, {6, 6}, {96, 6}}) {
    check_both({e, 192, 96, m, 3, true, Float::f16});
    check_both({e, 192, 96, m, 3, true, Float::f32});
    check_both({e, 192, 96, m, 3, true, Float::bf16, 0.05});
    check_both({e, 192, 96, m, 1, true, Float::bf16, 0, true});
    check_both({e, 192, 96, m, 4, true, Float::f32, 0, false, true});
    check_both({e, 192, 96, m, 3, false, Float::f32});
    check_both({e, 192, 144, m, 3, false, Float::bf16, 0, true, true});
  }
  check_both({40, 128, 64, 128, 5, true, Float::f32, 0, false, true});
}

TEST_CASE("the fused MoE layer is right for any number of rows of an expert") {
  if (no_gpu()) return;
  const std::vector<int64_t> all{0, 1, 7, 8, 9, 63, 64, 65, 255, 256, 257, 0}, on_one{0, 700, 0};
  std::vector<int64_t> few = all;  // on average
  for (int64_t e = 0; e < 60; ++e) few.push_back(e % 4);
  for (const bool gated : {true, false}) {
    for (const auto& [h, i] : {std::pair<int64_t, int64_t>{192, 64}, {64, 320}, {640, 192}}) {
      for (const auto& counts : {all, on_one, few}) {
        const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        const auto check_counts = [&]<class Layout>() {
          for_each_way<Layout>({static_cast<int64_t>(counts.size()), h, i, rows, 1, gated}, [&](auto& layer) {
            const DeviceStream stream;
            layer.set_experts(counts);
            layer.run(stream.get());
            stream.synchronize();
            layer.check();
          });
        };
        check_counts.template operator()<KMajorPlanes>();
        check_counts.template operator()<KMajorPacked>();
      }
    }
  }
}

TEST_CASE("the fused MoE layer is right where many experts have few rows each") {
  if (no_gpu()) return;
  // As many experts as it takes for records of 32 rows, of 48: 144 by 512 columns
  const std::vector<int64_t> narrow{0, 1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 5, 6},
      middle{0, 1, 8, 9, 16, 17, 25, 32, 33, 48, 49, 97};
  for (Case c : {Case{144, 512, 256, 0, 1}, Case{144, 832, 320, 0, 1}, Case{144, 512, 576, 0, 1, false}}) {
    for (const auto& pattern : {narrow, middle}) {
      std::vector<int64_t> counts;
      while (counts.size() < 144) counts.push_back(pattern[counts.size() % pattern.size()]);
      c.m = std::accumulate(counts.begin(), counts.end(), int64_t{0});
      CAPTURE(c.h);
      CAPTURE(c.gated);
      CAPTURE(c.m);
      Layer<KMajorPlanes> layer(c);
      layer.set_experts(counts);
      const DeviceStream stream;
      layer.run(stream.get());
      stream.synchronize();
      layer.check();
    }
  }
}

TEST_CASE("the fused MoE layer is right with hundreds of rows of an expert") {
  if (no_gpu()) return;
  // More than 128 on average: experts of several records
  const std::vector<std::vector<int64_t>> patterns{
      {300, 129, 256, 257, 0, 128, 192, 193, 511, 1}, {64, 65, 512, 513}, {0, 1100}};
  const std::vector<Case> cases{{0, 192, 64, 0, 1},
                                {0, 64, 320, 0, 1, true, Float::f16, 0.05},
                                {0, 320, 192, 0, 1, true, Float::f32, 0, true},
                                {0, 640, 128, 0, 1, false}};
  for (const auto& counts : patterns) {
    for (Case c : cases) {
      c.e = static_cast<int64_t>(counts.size());
      c.m = std::accumulate(counts.begin(), counts.end(), int64_t{0});
      for_each_way<KMajorPlanes>(c, [&](auto& layer) {
        const DeviceStream stream;
        layer.set_experts(counts);
        layer.run(stream.get());
        stream.synchronize();
        layer.check();
        const auto first = layer.out.template download<uint8_t>();
        layer.run(stream.get());
        stream.synchronize();
        CHECK(layer.out.template download<uint8_t>() == first);
      });
    }
  }
  check_both({2, 128, 192, 260, 3, true, Float::bf16, 0, false, true});
  check_case<KMajorPlanes>({6, 1280, 64, 300, 4});
}

TEST_CASE("the layer takes the many-row kernel by itself, in pieces of tokens too") {
  if (no_gpu()) return;
  for (const auto& [h, i] : {std::pair<int64_t, int64_t>{64, 64}, {80, 48}}) {
    // One token never does, of however few experts
    for (const Case& c : {Case{2, h, i, 16'384 + 3, 1}, Case{1, h, i, 1, 8}}) {
      Layer<KMajorPlanes> layer(c);
      const DeviceStream stream;
      layer.run(stream.get());
      stream.synchronize();
      layer.check();
    }
  }
}

TEST_CASE("infinity and NaN in a token stay with it among many rows of an expert") {
  if (no_gpu()) return;
  constexpr int64_t kH = 128;
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const auto check_layer = [&](auto& layer) {
      const DeviceStream stream;
      layer.draw(14);
      layer.run(stream.get());
      stream.synchronize();
      const auto whole = layer.out.template download<float>();
      auto& hidden = layer.hidden.values;
      hidden[17 * kH + 5] = bad;
      layer.upload();
      layer.launch(stream.get());
      stream.synchronize();
      const auto got = layer.out.template download<float>();
      for (int64_t m = 0; m < layer.c.m; ++m) {
        const auto row = got.begin() + m * kH;
        if (m == 17) {
          CHECK(std::none_of(row, row + kH, [](float x) { return std::isfinite(x); }));
        } else {
          CHECK(std::equal(row, row + kH, whole.begin() + m * kH));
        }
      }
    };
    for (const int64_t m : {80, 300})
      for_each_way<KMajorPlanes>({2, kH, 64, m, 1, true, Float::f32}, check_layer);
  }
}

TEST_CASE("the fused MoE layer is right for the shapes of models") {
  if (no_gpu()) return;
  check_case<KMajorPlanes>({16, 2048, 512, 1, 10});
  check_case<KMajorPlanes>({16, 2048, 512, 8, 10});
  check_case<KMajorPacked>({16, 2048, 512, 8, 10});
  check_case<KMajorPlanes>({6, 1792, 768, 1, 6});
  check_both({80, 512, 256, 4, 5});
}

TEST_CASE("the fused MoE layer of one token is right in one launch") {
  if (no_gpu()) return;
  int in_one = 0;
  const auto check_one = [&](const Case& c) {
    Layer<KMajorPlanes> layer(c);
    in_one += sparse_moe_in_one(layer.moe(), layer.tokens()) ? 1 : 0;
    check_both(c);
  };
  check_one({4, 128, 64, 1, 2});
  check_one({3, 128, 64, 1, 1});
  check_one({2, 128, 192, 1, 5});   // a token names an expert more than once
  check_one({9, 640, 128, 1, 5});   // fewer steps of K than blocks, then of two a block
  check_one({40, 256, 64, 1, 32});  // as many experts as a warp has lanes
  check_one({5, 384, 1024, 1, 3});  // more strips than blocks of a cluster
  check_one({16, 2048, 512, 1, 10});
  for (const Float type : {Float::f16, Float::f32}) check_one({6, 512, 128, 1, 3, true, type});
  check_one({6, 512, 128, 1, 3, true, Float::f32, 0.05});
  check_one({6, 512, 128, 1, 1, true, Float::f32, 0, true});
  check_one({6, 512, 192, 1, 6, true, Float::f32, 0, false, true});
  check_one({12, 1024, 256, 1, 9, true, Float::bf16, 0, true, true});
  MESSAGE(in_one, " layers went in one launch");
  if (cuda_device()->capability == 90) CHECK(in_one > 0);
}

TEST_CASE("one launch is right however it is cut") {
  if (no_gpu()) return;
  Layer<KMajorPlanes> layer({7, 1152, 320, 1, 5, true, Float::f32});
  const DeviceStream stream;
  for (const int warps_k : {1, 2, 4, 8}) {
    for (const int warps_n : {1, 2, 3}) {
      CAPTURE(warps_k);
      CAPTURE(warps_n);
      layer.plan.launches = SparseMoeLaunches::one;
      layer.plan.one = {warps_k, warps_n, 0, 0};
      if (!sparse_moe_in_one(layer.moe(), layer.tokens(), layer.plan.one)) continue;
      layer.run(stream.get());
      stream.synchronize();
      layer.check();
    }
  }
}

TEST_CASE("a stream with fewer multiprocessors than the device gets several launches, captured or not") {
  if (no_gpu()) return;
  Layer<KMajorPlanes> layer({16, 2048, 512, 1, 10, true, Float::f32});
  if (cuda_device()->capability == 90) REQUIRE(sparse_moe_in_one(layer.moe(), layer.tokens()));
  const GreenContext few(16);
  REQUIRE(few.multiprocessors() < static_cast<unsigned>(cuda_device()->multiprocessors));
  const DeviceStream stream(few.stream());
  layer.run(stream.get());
  stream.synchronize();
  layer.check();
  {
    const DeviceGraph graph(stream, [&] { layer.launch(stream.get()); });
    layer.draw(15);
    layer.workspace.fill(0xFF);
    graph.replay(stream);
    stream.synchronize();
    layer.check();
  }
  if (!sparse_moe_in_one(layer.moe(), layer.tokens())) return;
  layer.plan.launches = SparseMoeLaunches::one;
  CHECK_THROWS_WITH_AS(layer.launch(stream.get()), doctest::Contains("one launch that the stream takes"),
                       Error);
  const DeviceStream whole;  // the refusal leaves nothing behind
  layer.run(whole.get());
  whole.synchronize();
  layer.check();
  const DeviceGraph graph(whole, [&] { layer.launch(whole.get()); });  // keeps the device that it was given
  layer.draw(16);
  graph.replay(stream);
  stream.synchronize();
  layer.check();
}

TEST_CASE("a captured layer runs on new tokens") {
  if (no_gpu()) return;
  for (const auto& [e, m] : {std::pair<int64_t, int64_t>{12, 1}, {12, 5}, {12, 120}, {100, 5}}) {
    for_each_way<KMajorPlanes>({e, 256, 128, m, 5, true, Float::bf16, 0, false, true}, [](auto& layer) {
      const DeviceStream stream;
      layer.workspace.fill(0xFF);
      const DeviceGraph graph(stream, [&] { layer.launch(stream.get()); });
      for (unsigned seed = 100; seed < 104; ++seed) {
        layer.draw(seed);
        graph.replay(stream);
        graph.replay(stream);
        stream.synchronize();
        layer.check();
      }
    });
  }
}

TEST_CASE("replays of a captured layer give the same bytes") {
  if (no_gpu()) return;
  const auto replay_often = [](auto& layer) {
    const DeviceStream stream;
    const DeviceGraph graph(stream, [&] { layer.launch(stream.get()); });
    layer.run(stream.get());
    stream.synchronize();
    const auto first = layer.out.template download<uint8_t>();
    int different = 0;
    for (int round = 0; round < 1000; ++round) {
      if (round % 10 == 0) layer.out.fill(0xFF);
      graph.replay(stream);
      stream.synchronize();
      different += layer.out.template download<uint8_t>() == first ? 0 : 1;
    }
    CHECK(different == 0);
  };
  for_each_way<KMajorPlanes>({32, 2048, 512, 1, 10}, replay_often);
  for_each_way<KMajorPlanes>({5, 256, 128, 400, 2}, replay_often);
  for_each_way<KMajorPlanes>({4, 2048, 256, 64, 2}, replay_often);  // blocks share the K of columns
  for_each_way<KMajorPlanes>({2, 640, 128, 700, 1}, replay_often);  // and an expert has several records
}

TEST_CASE("ids out of range contribute nothing and raise the flag") {
  if (no_gpu()) return;
  for (const auto& [e, m] : {std::pair<int64_t, int64_t>{4, 1}, {4, 4}, {4, 300}, {32, 4}}) {
    for (const bool mapped : {false, true}) {
      for_each_way<KMajorPlanes>({e, 128, 64, m, 2, true, Float::f32, 0, false, mapped}, [&](auto& layer) {
        const DeviceStream stream;
        layer.draw(14);
        layer.run(stream.get());
        stream.synchronize();
        const auto whole = layer.out.template download<float>();
        for (const int32_t bad : {-1, 1 << 20}) {
          for (const size_t how_many : {1, 2}) {
            auto ids = layer.ids;
            std::fill(ids.end() - static_cast<ptrdiff_t>(how_many), ids.end(), bad);
            layer.device_ids.upload(ids.data(), ids.size() * 4);
            layer.error.fill(0);
            layer.run(stream.get());
            stream.synchronize();
            CHECK(layer.error.template download<int32_t>()[0] == 1);
            const auto got = layer.out.template download<float>();
            CHECK(std::equal(got.begin(), got.end() - 128, whole.begin()));
            for (const float x : got) CHECK(std::isfinite(x));
            if (how_many == 2) CHECK(std::all_of(got.end() - 128, got.end(), [](float x) { return x == 0; }));
          }
        }
      });
    }
  }
}

TEST_CASE("a token of NaN gives NaN, which no limit and no relu hides, and leaves the others alone") {
  if (no_gpu()) return;
  for (const auto& [gated, limit] : {std::pair{true, 0.0}, {true, 0.05}, {false, 0.0}}) {
    for (const int64_t m : {1, 3, 40}) {
      for_each_way<KMajorPlanes>({6, 256, 128, m, 3, gated, Float::f32, limit}, [&](auto& layer) {
        const DeviceStream stream;
        layer.draw(14);
        layer.run(stream.get());
        stream.synchronize();
        const auto whole = layer.out.template download<float>();
        auto& hidden = layer.hidden.values;
        std::fill(hidden.end() - 256, hidden.end(), std::numeric_limits<float>::quiet_NaN());
        layer.upload();
        layer.launch(stream.get());
        stream.synchronize();
        const auto got = layer.out.template download<float>();
        CHECK(std::equal(got.begin(), got.end() - 256, whole.begin()));
        // Poison is NaN too, but of other bits than a sum has.
        CHECK(std::all_of(got.end() - 256, got.end(), [](float x) {
          return std::isnan(x) && std::bit_cast<uint32_t>(x) != 0xFFFFFFFFu;
        }));
      });
    }
  }
}

TEST_CASE("a layer that does not fit together is refused") {
  if (no_gpu()) return;
  Layer<KMajorPlanes> layer({2, 64, 64, 2, 1});
  MoeTokens tokens;
  tokens.m = 2, tokens.topk = 1;
  tokens.hidden = layer.hidden.device.as();
  tokens.topk_ids = layer.device_ids.as<int32_t>(), tokens.topk_weights = layer.device_weights.as<float>();
  tokens.out = layer.out.as();
  SparseMoe moe = layer.moe();
  CHECK_THROWS_AS(sparse_moe(moe, tokens, layer.workspace.as(), 16, nullptr), Error);
  moe.w2.n = 32;
  CHECK_THROWS_AS(sparse_moe(moe, tokens, layer.workspace.as(), layer.workspace.bytes(), nullptr), Error);
  moe.w2.n = 64;
  tokens.hidden = layer.hidden.device.as<uint16_t>() + 1;
  CHECK_THROWS_WITH_AS(sparse_moe(moe, tokens, layer.workspace.as(), layer.workspace.bytes(), nullptr),
                       doctest::Contains("hidden on a multiple of 4 bytes"), Error);
}

}  // namespace sparse_moe_test
