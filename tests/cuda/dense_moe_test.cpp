#include "kernels/moe/dense_moe.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "formats/error.h"
#include "kernels/numbers/quantize.h"
#include "tests/support/device/dense_on_device.h"
#include "tests/support/device/device.h"
#include "tests/support/device/device_tokens.h"
#include "tests/support/device/green_context.h"

namespace dense_moe_test {

using namespace twofour;
using namespace twofour::cuda;

namespace {

constexpr float kHiddenScale = 0.0013f, kActiveScale = 0.02f;

struct Case {
  int64_t e, h, i, m, topk;
  bool quantized, fused = true;
  double limit = 0;
  bool weight_on_input = false, mapped = false;
  Float type = Float::f32;
};

/// What a row is after it was quantized.
void requantize(std::span<float> row, float global_scale) {
  std::vector<uint8_t> codes(row.size() / 2), scales(row.size() / 16);
  quantize_nvfp4_row(row.data(), static_cast<int64_t>(row.size()), global_scale, codes.data(), scales.data());
  dequantize_nvfp4(Arithmetic::modelopt, global_scale, codes.data(), scales.data(), row);
}

/// A layer, tokens and the workspace, with what replaces them in a captured graph.
struct Layer : DeviceTokens {
  Case c;
  DenseExperts w13, w2;
  DenseOnDevice device_w13, device_w2;
  DeviceMemory hidden_scale, active_scale, workspace;
  ManyRowsUse many_rows = ManyRowsUse::chosen;
  DenseMoeLaunches launches = DenseMoeLaunches::chosen;

  explicit Layer(const Case& which)
      : DeviceTokens(which.e, which.h, which.m, which.topk, which.type),
        c(which),
        w13(c.e, 2 * c.i, c.h, 1),
        w2(c.e, c.h, c.i, 2),
        device_w13(w13, true, true),
        device_w2(w2, true, false),
        hidden_scale(std::vector<float>{kHiddenScale}),
        active_scale(std::vector<float>{kActiveScale}),
        workspace(dense_moe_workspace(moe(), c.m, c.topk)) {
    draw(4);
  }

  /// The tokens of topk 1 go to experts in turn, `counts` of them to each.
  void set_experts(const std::vector<int64_t>& counts) {
    std::mt19937 random(21);
    ids.clear(), topk_weights.clear();
    for (size_t e = 0; e < counts.size(); ++e) {
      for (int64_t r = 0; r < counts[e]; ++r) add_row(static_cast<int64_t>(e), random);
    }
    std::shuffle(ids.begin(), ids.end(), random);
    upload();
  }

  /// New tokens in the same memory.
  void draw(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    ids.clear(), topk_weights.clear();
    for (int64_t r = 0; r < c.m * c.topk; ++r)
      add_row(random() % static_cast<unsigned>(c.mapped ? 2 * c.e : c.e), random);
    for (float& x : hidden.values) x = bf16_to_float(bf16_from_float(normal(random)));
    upload();
    workspace.fill(0xFF);
  }

  DenseMoe moe() const {
    DenseMoe moe{options(c.mapped, c.weight_on_input, c.limit), device_w13.device, device_w2.device};
    if (c.quantized)
      moe.w13_input_scale = hidden_scale.as<float>(), moe.w2_input_scale = active_scale.as<float>();
    moe.fused = c.fused;
    moe.many_rows = many_rows;
    moe.launches = launches;
    return moe;
  }

  void launch(Stream stream) const { dense_moe(moe(), tokens(), workspace.as(), workspace.bytes(), stream); }

  std::vector<float> run() {
    poison();
    workspace.fill(0xFF);
    const DeviceStream stream;
    launch(stream.get());
    stream.synchronize();
    return result();
  }
  std::vector<float> result() const { return Activations::from_bits(out.download<uint8_t>(), c.type); }

  /// The layer in double over decoded values, with the roundings between its steps.
  std::vector<double> want() const {
    std::vector<double> sums(static_cast<size_t>(c.m * c.h));
    for (int64_t r = 0; r < c.m * c.topk; ++r) {
      const int64_t token = r / c.topk;
      int64_t e = ids[static_cast<size_t>(r)];
      if (c.mapped) e = map[static_cast<size_t>(e)];
      if (e < 0) continue;
      const float weight = topk_weights[static_cast<size_t>(r)];
      std::vector<float> x(hidden.values.begin() + token * c.h, hidden.values.begin() + (token + 1) * c.h);
      if (c.quantized) {
        if (c.weight_on_input)
          for (float& value : x) value *= weight;
        requantize(x, kHiddenScale);
      }
      const double on_product = c.weight_on_input && !c.quantized ? static_cast<double>(weight) : 1.0;
      const auto up = [&](int64_t n) {
        double sum = 0;
        for (int64_t k = 0; k < c.h; ++k)
          sum += weight_of(w13, e, n, k) * static_cast<double>(x[static_cast<size_t>(k)]);
        return sum * on_product;
      };
      std::vector<float> active(static_cast<size_t>(c.i));
      for (int64_t i = 0; i < c.i; ++i) {
        double gate = up(i), value = up(c.i + i);
        if (c.limit > 0) gate = std::min(gate, c.limit), value = std::clamp(value, -c.limit, c.limit);
        active[static_cast<size_t>(i)] =
            bf16_to_float(bf16_from_float(static_cast<float>(gate / (1 + std::exp(-gate)) * value)));
      }
      if (c.quantized) requantize(active, kActiveScale);
      for (int64_t n = 0; n < c.h; ++n) {
        double sum = 0;
        for (int64_t i = 0; i < c.i; ++i)
          sum += weight_of(w2, e, n, i) * static_cast<double>(active[static_cast<size_t>(i)]);
        sums[static_cast<size_t>(token * c.h + n)] +=
            c.weight_on_input ? sum : sum * static_cast<double>(weight);
      }
    }
    return sums;
  }
};

double cosine(std::span<const float> a, std::span<const double> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]);
    ab += x * b[i], aa += x * x, bb += b[i] * b[i];
  }
  if (aa == 0 && bb == 0) return 1;  // no token has an expert here
  return ab / std::sqrt(aa * bb);
}

/// Where a float32 sum and one in double round to different BF16 numbers, one place or 2^-8 between them,
/// W4A16 differs by that. W4A4 may then take the other of two E2M1 numbers, seldom: the angle is what is
/// bounded.
void check_layer(const Layer& layer, const std::vector<float>& got) {
  const auto want = layer.want();
  CHECK(cosine(got, want) > 0.9995);
  if (!layer.c.quantized)
    CHECK(relative_error(got, want) < tolerance(Float::bf16, 1) + tolerance(layer.c.type, 0));
  CHECK(layer.error.download<int32_t>()[0] == 0);
}

int in_one = 0;  // layers that went in one launch

void check_case(const Case& c) {
  CAPTURE(c.e);
  CAPTURE(c.h);
  CAPTURE(c.i);
  CAPTURE(c.m);
  CAPTURE(c.topk);
  CAPTURE(c.quantized);
  CAPTURE(c.fused);
  CAPTURE(c.weight_on_input);
  CAPTURE(c.mapped);
  Layer layer(c);
  layer.many_rows = ManyRowsUse::never;
  for (const auto launches : {DenseMoeLaunches::several, DenseMoeLaunches::one}) {
    const bool one = launches == DenseMoeLaunches::one;
    if (one && !dense_moe_in_one(layer.moe(), layer.tokens())) continue;
    CAPTURE(one);
    in_one += one;
    layer.launches = launches;
    const auto got = layer.run();
    check_layer(layer, got);
    CHECK(layer.run() == got);
  }
  layer.launches = DenseMoeLaunches::chosen;
  if (cuda_device()->capability != 90 || c.quantized || c.m == 1 || c.h % 64 != 0 || c.i % 64 != 0) return;
  const bool many_rows = true;
  CAPTURE(many_rows);
  layer.many_rows = ManyRowsUse::always;
  const auto got = layer.run();
  check_layer(layer, got);
  CHECK(layer.run() == got);
}

}  // namespace

TEST_CASE("the g8 layer equals products of decoded values") {
  if (no_gpu()) return;
  for (const bool quantized : {false, true}) {
    for (const int64_t m : {1, 3, 40}) {
      check_case({4, 320, 192, m, 2, quantized, true, 0, false, false, Float::bf16});
      check_case({4, 64, 48, m, 2, quantized});
      check_case({3, 256, 256, m, 2, quantized});
      check_case({3, 256, 128, m, 2, quantized, true, 0.05});
    }
  }
  check_case({3, 256, 256, 40, 2, true, false});
  check_case({4, 64, 48, 5, 2, true, false, 0.05});
}

TEST_CASE("the g8 layer of one token is right in one launch") {
  if (no_gpu()) return;
  in_one = 0;
  for (const Float type : {Float::f32, Float::bf16, Float::f16}) {
    check_case({6, 512, 128, 1, 3, false, true, 0, false, false, type});
    check_case({12, 1088, 320, 1, 9, false, true, 0.05, true, true, type});
    check_case({6, 2048, 512, 1, 6, false, true, 0, false, false, type});
  }
  check_case({32, 128, 64, 1, 32, false});
  check_case({3, 64, 1408, 1, 2, false});
  check_case({2, 7168, 192, 1, 1, false, true, 0, false, false, Float::bf16});
  MESSAGE(in_one, " layers went in one launch");
  if (cuda_device()->capability == 90) CHECK(in_one == 12);
}

TEST_CASE("a g8 layer of rows that hardly share experts is right") {
  if (no_gpu()) return;
  for (const Float type : {Float::f32, Float::bf16, Float::f16}) {
    check_case({64, 128, 192, 3, 4, false, true, 0, false, false, type});
    check_case({64, 192, 576, 5, 3, false, true, 0.05, true, true, type});
  }
  check_case({96, 320, 64, 12, 1, false, true, 0, false, true});
  check_case({64, 144, 80, 3, 3, false});
  check_case({64, 144, 192, 3, 4, false});
  check_case({64, 400, 128, 2, 5, false, true, 0, false, true});
  check_case({4, 192, 2368, 1, 4, false});  // a warp has more steps than stages
  check_case({64, 192, 2368, 3, 4, false});
  check_case({1, 64, 64, 1, 8, false});  // one token, eight times the same expert
  check_case({160, 64, 64, 1, 40, false});
}

TEST_CASE("a g8 layer has the same bits from a thousand replays") {
  if (no_gpu()) return;
  const auto replay_often = [](const Case& c) {
    CAPTURE(c.m);
    Layer layer(c);
    const auto first = layer.run();
    const DeviceStream stream;
    const DeviceGraph graph(stream, [&] { layer.launch(stream.get()); });
    int different = 0;
    for (int round = 0; round < 1000; ++round) {
      layer.out.fill(0xFF);
      graph.replay(stream);
      stream.synchronize();
      different += layer.result() != first;
    }
    CHECK(different == 0);
  };
  for (const int64_t m : {1, 3, 24, 90})
    replay_often({8, 512, 320, m, 4, false, true, 0, false, false, Float::bf16});
  // Experts of several records, and blocks that share K
  replay_often({2, 640, 128, 700, 1, false, true, 0, false, false, Float::bf16});
}

TEST_CASE("infinity and NaN in a token of a g8 layer stay with it") {
  if (no_gpu()) return;
  constexpr int64_t kH = 128;
  for (const auto& [use, count] :
       {std::pair{ManyRowsUse::never, 80}, {ManyRowsUse::always, 80}, {ManyRowsUse::always, 300}}) {
    if (use == ManyRowsUse::always && cuda_device()->capability != 90) continue;
    const Case c{2, kH, 64, count, 1, false, true, 0, false, false, Float::bf16};
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Layer layer(c);
      layer.many_rows = use;
      const auto whole = layer.run();
      layer.hidden.values[17 * kH + 5] = bad;
      layer.upload();
      const auto got = layer.run();
      for (int64_t m = 0; m < count; ++m) {
        const auto row = got.begin() + m * kH;
        if (m == 17) {
          CHECK(std::none_of(row, row + kH, [](float x) { return std::isfinite(x); }));
        } else {
          CHECK(std::equal(row, row + kH, whole.begin() + m * kH));
        }
      }
    }
  }
}

TEST_CASE("a stream with fewer multiprocessors than the device gets several launches of a g8 layer") {
  if (no_gpu()) return;
  Layer layer({16, 1024, 512, 1, 10, false});
  if (cuda_device()->capability == 90) REQUIRE(dense_moe_in_one(layer.moe(), layer.tokens()));
  const GreenContext few(16);
  const DeviceStream stream(few.stream());
  layer.poison();
  layer.launch(stream.get());
  stream.synchronize();
  check_layer(layer, layer.result());
  if (!dense_moe_in_one(layer.moe(), layer.tokens())) return;
  layer.launches = DenseMoeLaunches::one;
  CHECK_THROWS_WITH_AS(layer.launch(stream.get()), doctest::Contains("one launch that the stream takes"),
                       Error);
}

TEST_CASE("the g8 layer knows input weights and maps of experts") {
  if (no_gpu()) return;
  for (const bool quantized : {false, true}) {
    for (const int64_t m : {1, 6, 40}) {
      check_case({4, 64, 48, m, 1, quantized, true, 0, true});
      check_case({5, 256, 128, m, 3, quantized, true, 0.05, true});
      check_case({5, 256, 128, m, 4, quantized, true, 0, false, true});
      check_case({1, 64, 64, m, 2, quantized, true, 0, true, true});
    }
  }
  check_case({5, 256, 128, 6, 3, true, false, 0, true, true});
}

TEST_CASE("the g8 layer takes any number of tokens") {
  if (no_gpu()) return;
  for (const bool quantized : {false, true}) {
    check_case({3, 64, 32, 1025, 1, quantized});                        // more than are worked on at a time
    check_case({4, 16, 16, 1000, 70, quantized, true, 0, true, true});  // nor all their rows
  }
}

TEST_CASE("the g8 layer is right with many rows of an expert") {
  if (no_gpu()) return;
  check_case({3, 256, 128, 500, 2, false});
  check_case({2, 384, 256, 300, 1, false, true, 0.05, true});
  check_case({40, 128, 384, 90, 6, false, true, 0, false, true});
  check_case({1, 640, 128, 129, 1, false});
}

TEST_CASE("the g8 layer is right with hundreds of rows of an expert") {
  if (no_gpu()) return;
  // More than 128 on average: records of up to 256 rows, of pairs of blocks
  for (const auto& counts : {std::vector<int64_t>{300, 129, 256, 257, 0, 128, 192, 193, 511, 1},
                             std::vector<int64_t>{64, 65, 512, 513}, std::vector<int64_t>{0, 1100}}) {
    const auto e = static_cast<int64_t>(counts.size());
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    CAPTURE(rows);
    for (const Case& c :
         {Case{e, 192, 64, rows, 1, false}, Case{e, 320, 192, rows, 1, false, true, 0.05, true},
          Case{e, 640, 128, rows, 1, false, true, 0, false, false, Float::bf16}}) {
      CAPTURE(c.h);
      Layer layer(c);
      layer.set_experts(counts);
      const auto got = layer.run();
      check_layer(layer, got);
      CHECK(layer.run() == got);
    }
  }
  check_case({3, 128, 192, 260, 3, false, true, 0, false, true});
  check_case({6, 1280, 64, 300, 4, false});
  {
    // No row has an expert
    Layer layer({2, 128, 64, 300, 1, false, true, 0, false, true});
    layer.device_ids.upload(std::vector<int32_t>(300, -1).data(), 300 * 4);
    const auto got = layer.run();
    CHECK(std::all_of(got.begin(), got.end(), [](float x) { return x == 0; }));
  }
  const GreenContext few(16);
  const DeviceStream stream(few.stream());
  Layer layer({2, 640, 128, 700, 1, false});
  layer.poison();
  layer.launch(stream.get());
  stream.synchronize();
  check_layer(layer, layer.result());
}

TEST_CASE("the g8 layer is right where many experts have few rows each") {
  if (no_gpu()) return;
  // As many experts as it takes for records of 32 rows, of 48: 144 by 512 columns
  for (const auto& pattern : {std::vector<int64_t>{0, 1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 5, 6},
                              std::vector<int64_t>{0, 1, 8, 9, 16, 17, 25, 32, 33, 48, 49, 97}}) {
    std::vector<int64_t> counts;
    while (counts.size() < 144) counts.push_back(pattern[counts.size() % pattern.size()]);
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    CAPTURE(rows);
    Layer layer({144, 512, 256, rows, 1, false});
    layer.set_experts(counts);
    const auto got = layer.run();
    check_layer(layer, got);
    CHECK(layer.run() == got);
  }
}

TEST_CASE("with SwiGLU fused or not, the g8 layer gives the same") {
  if (no_gpu()) return;
  Layer fused({4, 512, 256, 33, 3, true}), plain({4, 512, 256, 33, 3, true, false});
  const auto a = fused.run(), b = plain.run();
  CHECK(cosine(a, std::vector<double>(b.begin(), b.end())) > 0.9995);
}

TEST_CASE("a captured g8 layer runs on new tokens") {
  if (no_gpu()) return;
  for (const bool quantized : {false, true}) {
    for (const int64_t m : {1, 5, 70}) {
      Layer layer({6, 256, 128, m, 3, quantized, true, 0, m == 5, m != 70});
      const DeviceStream stream;
      const DeviceGraph graph(stream, [&] { layer.launch(stream.get()); });
      for (unsigned seed = 100; seed < 103; ++seed) {
        layer.draw(seed);
        graph.replay(stream);
        stream.synchronize();
        check_layer(layer, layer.result());
      }
    }
  }
}

TEST_CASE("ids that a g8 layer does not have contribute nothing and raise the flag") {
  if (no_gpu()) return;
  for (const bool quantized : {false, true}) {
    for (const int64_t m : {1, 4, 90}) {
      for (const bool mapped : {false, true}) {
        Layer layer({4, 64, 64, m, 2, quantized, true, 0, false, mapped});
        const auto whole = layer.run();
        for (const int32_t bad : {-1, 8, 1 << 20}) {
          // Of the last token, so that the others stay as they were.
          auto ids = layer.ids;
          ids.back() = bad;
          layer.device_ids.upload(ids.data(), 4 * ids.size());
          const auto got = layer.run();
          CHECK(layer.error.download<int32_t>()[0] == 1);
          CHECK(std::equal(got.begin(), got.end() - 64, whole.begin()));
          for (const float x : got) CHECK(std::isfinite(x));
        }
      }
    }
  }
}

TEST_CASE("a map to experts that are not there raises the flag") {
  if (no_gpu()) return;
  Layer layer({4, 64, 64, 3, 2, false, true, 0, false, true});
  for (const int32_t bad : {4, -2}) {
    std::vector<int32_t> map(layer.map.size(), bad);
    layer.device_map.upload(map.data(), 4 * map.size());
    const auto got = layer.run();
    CHECK(layer.error.download<int32_t>()[0] == 1);
    for (const float x : got) CHECK(x == 0.0f);
  }
}

TEST_CASE("g8 layers that do not fit together are refused") {
  if (no_gpu()) return;
  Layer layer({2, 64, 48, 2, 1, false});
  DenseMoe moe = layer.moe();
  moe.w2.k = 32;
  CHECK_THROWS_AS(dense_moe(moe, {}, nullptr, 0, nullptr), Error);
  moe = layer.moe();
  moe.fused = false;
  CHECK_THROWS_AS(dense_moe(moe, {}, nullptr, 0, nullptr), Error);
  MoeTokens tokens = layer.tokens();
  tokens.topk = 512;
  CHECK_THROWS_WITH(dense_moe(layer.moe(), tokens, layer.workspace.as(), layer.workspace.bytes(), nullptr),
                    doctest::Contains("1 to 511 experts a token"));
}

}  // namespace dense_moe_test
