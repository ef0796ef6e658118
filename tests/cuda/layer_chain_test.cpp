#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernels/floats/device_vectors.h"
#include "kernels/moe/dense_moe.h"
#include "kernels/moe/device_router.h"
#include "tests/support/device/dense_on_device.h"
#include "tests/support/device/device.h"
#include "tests/support/device/device_experts.h"
#include "tests/support/device/drawn_floats.h"

/// Kernels start while those before them end. Here each reads what the kernel just before it has written:
/// the rows of tokens, their experts, a layer's results, and a workspace that two layers share.

namespace layer_chain_test {

using namespace twofour;
using namespace twofour::cuda;

namespace {

constexpr int64_t kExperts = 32, kH = 1024, kI = 512, kTopk = 4;

/// A layer's call, and the workspace that it wants for `m` tokens.
struct Calls {
  std::function<void(const MoeTokens&, const DeviceMemory& workspace, Stream)> layer;
  std::function<size_t(int64_t m)> workspace;
};

/// Gathers rows, chooses their experts, and runs a layer twice: the second time on its own results.
class Chain {
 public:
  Chain(const Calls& calls, int64_t m, Float type)
      : calls_(calls),
        m_(m),
        type_(type),
        all_rows_(2 * bytes()),
        order_(static_cast<size_t>(m) * sizeof(int32_t)),
        rows_(bytes()),
        logits_(static_cast<size_t>(m * kExperts) * sizeof(float)),
        ids_(static_cast<size_t>(m * kTopk) * sizeof(int32_t)),
        weights_(static_cast<size_t>(m * kTopk) * sizeof(float)),
        error_(std::vector<int32_t>{0}),
        middle_(bytes()),
        out_(bytes()),
        workspace_(calls.workspace(m)) {
    rule_.experts = kExperts, rule_.top_k = kTopk;
    rule_.renormalized = true;
    workspace_.fill(0xFF);
  }

  /// New tokens in the same memory.
  void draw_tokens(unsigned seed) {
    const auto upload = [](DeviceMemory& to, const auto& values) { to.upload(values.data(), to.bytes()); };
    upload(all_rows_, Activations::to_bits(draw(2 * m_ * kH, seed), type_));
    upload(logits_, draw(m_ * kExperts, seed + 1, 3));
    std::vector<int32_t> order(static_cast<size_t>(m_));
    std::mt19937 random(seed);
    for (int32_t& row : order) row = static_cast<int32_t>(random() % static_cast<unsigned>(2 * m_));
    upload(order_, order);
  }

  /// `between` is called behind each step.
  void launch(
      Stream stream, const std::function<void()>& between = [] {}) {
    // As words, whatever their numbers are
    gather_rows(all_rows_.as<float>(), order_.as<int32_t>(), m_, kH * size_of(type_) / 4, rows_.as<float>(),
                stream);
    between();
    choose_experts(rule_, logits_.as<float>(), m_, ids_.as<int32_t>(), weights_.as<float>(),
                   error_.as<int32_t>(), stream);
    between();
    calls_.layer(tokens(rows_, middle_), workspace_, stream);
    between();
    calls_.layer(tokens(middle_, out_), workspace_, stream);
    between();
  }

  std::vector<float> result() const {
    CHECK(error_.download<int32_t>()[0] == 0);
    return Activations::from_bits(out_.download<uint8_t>(), type_);
  }

 private:
  size_t bytes() const { return static_cast<size_t>(m_ * kH * size_of(type_)); }

  MoeTokens tokens(const DeviceMemory& hidden, const DeviceMemory& out) const {
    return {m_,
            kTopk,
            type_,
            hidden.as(),
            ids_.as<int32_t>(),
            weights_.as<float>(),
            out.as(),
            error_.as<int32_t>()};
  }

  Calls calls_;
  int64_t m_;
  Float type_;
  cuda::RouterRule rule_;
  DeviceMemory all_rows_, order_, rows_, logits_, ids_, weights_, error_, middle_, out_, workspace_;
};

/// Holds a graph, and launches one behind another, against the same calls that wait for each other.
void check_chain(const Calls& calls, int64_t m, Float type) {
  CAPTURE(m);
  CAPTURE(type);
  const DeviceStream stream;
  Chain chain(calls, m, type);
  chain.draw_tokens(1);
  const DeviceGraph graph(stream, [&] { chain.launch(stream.get()); });
  int different = 0;
  std::vector<float> last;
  for (unsigned round = 0; round < 30; ++round) {
    chain.draw_tokens(10 + 2 * round);
    if (round % 2 == 0) {
      graph.replay(stream);
    } else {
      chain.launch(stream.get());
    }
    stream.synchronize();
    const auto found = chain.result();
    chain.launch(stream.get(), [&] { stream.synchronize(); });
    const auto expected = chain.result();
    different += found != expected;
    REQUIRE(std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
    REQUIRE(expected != last);
    last = expected;
  }
  CHECK(different == 0);
}

/// One token and few, some that share experts, and some with many rows of an expert. BF16 is read as it is,
/// F32 is prepared first.
void check_chains(const Calls& calls) {
  for (const Float type : {Float::f32, Float::bf16})
    for (const int64_t m : {1, 2, 8, 24, 120, 300, 1500}) check_chain(calls, m, type);
}

TEST_CASE("g8 layers read what the kernel just before them wrote") {
  if (no_gpu()) return;
  const DenseOnDevice w13(DenseExperts(kExperts, 2 * kI, kH, 1), true, true),
      w2(DenseExperts(kExperts, kH, kI, 2), true, false);
  DenseMoe moe;
  moe.w13 = w13.device, moe.w2 = w2.device;
  const DeviceMemory hidden_scale(std::vector<float>{0.0013f}), active_scale(std::vector<float>{0.02f});
  for (const bool is_quantized : {false, true}) {
    CAPTURE(is_quantized);
    moe.w13_input_scale = is_quantized ? hidden_scale.as<float>() : nullptr;
    moe.w2_input_scale = is_quantized ? active_scale.as<float>() : nullptr;
    const Calls calls{[&](const MoeTokens& tokens, const DeviceMemory& workspace, Stream stream) {
                        dense_moe(moe, tokens, workspace.as(), workspace.bytes(), stream);
                      },
                      [&](int64_t m) { return dense_moe_workspace(moe, m, kTopk); }};
    check_chains(calls);
  }
}

TEST_CASE("2:4 layers read what the kernel just before them wrote") {
  if (no_gpu()) return;
  const SparseOnDevice<KMajorPlanes> w13(DenseExperts(kExperts, 2 * kI, kH, 1)),
      w2(DenseExperts(kExperts, kH, kI, 2));
  SparseMoe moe;
  moe.w13 = w13.experts(), moe.w2 = w2.experts();
  const Calls calls{[&](const MoeTokens& tokens, const DeviceMemory& workspace, Stream stream) {
                      sparse_moe(moe, tokens, workspace.as(), workspace.bytes(), stream);
                    },
                    [&](int64_t m) { return sparse_moe_workspace(moe, m, kTopk); }};
  check_chains(calls);
}

}  // namespace
}  // namespace layer_chain_test
