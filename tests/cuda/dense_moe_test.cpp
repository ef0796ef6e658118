#include "kernels/dense_moe.h"

#include "formats/error.h"
#include "kernels/quantize.h"
#include "tests/support/dense_on_device.h"
#include "tests/support/device.h"

using namespace twofour;
using namespace twofour::cuda;

namespace {

constexpr float kHiddenScale = 0.0013f, kActiveScale = 0.02f;

struct Case {
  int64_t e, h, i, m, topk;
  bool quantized, fused = true;
  double limit = 0;
};

/// What a row is after it was quantized.
void requantize(std::span<float> row, float global_scale) {
  std::vector<uint8_t> codes(row.size() / 2), scales(row.size() / 16);
  quantize_nvfp4_row(row.data(), static_cast<int64_t>(row.size()), global_scale, codes.data(), scales.data());
  dequantize_nvfp4(Arithmetic::modelopt, global_scale, codes.data(), scales.data(), row);
}

struct Layer {
  Case c;
  DenseExperts w13, w2;
  DenseOnDevice device_w13, device_w2;
  Activations hidden;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  DeviceMemory device_ids, device_weights, hidden_scale, active_scale, out;

  explicit Layer(const Case& which)
      : c(which),
        w13(c.e, 2 * c.i, c.h, 1),
        w2(c.e, c.h, c.i, 2),
        device_w13(w13, true, true),
        device_w2(w2, true, false),
        hidden(static_cast<size_t>(c.m * c.h), Float::bf16, 3),
        hidden_scale(std::vector<float>{kHiddenScale}),
        active_scale(std::vector<float>{kActiveScale}),
        out(static_cast<size_t>(c.m * c.h * 4)) {
    std::mt19937 random(4);
    for (int64_t r = 0; r < c.m * c.topk; ++r) {
      ids.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(c.e)));
      weights.push_back(0.1f + static_cast<float>(random() % 100) / 100.0f);
    }
    device_ids = DeviceMemory(ids), device_weights = DeviceMemory(weights);
  }

  DenseMoe moe() const {
    DenseMoe moe;
    moe.w13 = device_w13.device, moe.w2 = device_w2.device;
    if (c.quantized)
      moe.w13_input_scale = hidden_scale.as<float>(), moe.w2_input_scale = active_scale.as<float>();
    moe.limit = static_cast<float>(c.limit);
    moe.fused = c.fused;
    return moe;
  }

  std::vector<float> run() {
    MoeTokens tokens;
    tokens.m = c.m, tokens.topk = c.topk, tokens.type = Float::f32;
    const DeviceMemory x = Activations::to_device(hidden.values, Float::f32);
    tokens.hidden = x.as();
    tokens.topk_ids = device_ids.as<int32_t>(), tokens.topk_weights = device_weights.as<float>();
    tokens.out = out.as();
    out.fill(0xFF);
    DeviceMemory workspace(dense_moe_workspace(moe(), c.m, c.topk));
    workspace.fill(0xFF);
    const DeviceStream stream;
    const DeviceGraph graph(
        stream, [&] { dense_moe(moe(), tokens, workspace.as(), workspace.bytes(), stream.get()); });
    graph.replay(stream);
    stream.synchronize();
    return out.download<float>();
  }

  /// The layer in double over decoded values, with the roundings between its steps.
  std::vector<double> want() const {
    std::vector<float> x = hidden.values;
    if (c.quantized) {
      for (int64_t m = 0; m < c.m; ++m)
        requantize(std::span(x).subspan(static_cast<size_t>(m * c.h), static_cast<size_t>(c.h)),
                   kHiddenScale);
    }
    std::vector<double> sums(static_cast<size_t>(c.m * c.h));
    for (int64_t r = 0; r < c.m * c.topk; ++r) {
      const int64_t m = r / c.topk, e = ids[static_cast<size_t>(r)];
      const auto up = [&](int64_t n) {
        double sum = 0;
        for (int64_t k = 0; k < c.h; ++k)
          sum += weight_of(w13, e, n, k) * static_cast<double>(x[static_cast<size_t>(m * c.h + k)]);
        return sum;
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
        sums[static_cast<size_t>(m * c.h + n)] += sum * static_cast<double>(weights[static_cast<size_t>(r)]);
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
  return ab / std::sqrt(aa * bb);
}

void check_case(const Case& c) {
  CAPTURE(c.e);
  CAPTURE(c.h);
  CAPTURE(c.i);
  CAPTURE(c.m);
  CAPTURE(c.quantized);
  CAPTURE(c.fused);
  Layer layer(c);
  CHECK(cosine(layer.run(), layer.want()) > 0.9995);
}

}  // namespace

TEST_CASE("the g8 layer equals products of decoded values") {
  if (no_gpu()) return;
  for (const bool quantized : {false, true}) {
    for (const int64_t m : {1, 3, 40}) {
      check_case({4, 64, 48, m, 2, quantized});
      check_case({3, 256, 256, m, 2, quantized});
      check_case({3, 256, 128, m, 2, quantized, true, 0.05});
    }
  }
  check_case({3, 256, 256, 40, 2, true, false});
  check_case({4, 64, 48, 5, 2, true, false, 0.05});
}

TEST_CASE("with SwiGLU fused or not, the g8 layer gives the same") {
  if (no_gpu()) return;
  Layer fused({4, 512, 256, 33, 3, true}), plain({4, 512, 256, 33, 3, true, false});
  const auto a = fused.run(), b = plain.run();
  CHECK(cosine(a, std::vector<double>(b.begin(), b.end())) > 0.9995);
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
}
