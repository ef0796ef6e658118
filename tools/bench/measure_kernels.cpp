#include "tools/bench/measure_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/device.h"
#include "kernels/multiply/dense_multiply.h"
#include "tools/bench/inputs.h"

namespace twofour {
namespace {

using namespace cuda;

constexpr int kMostLaunches = 40;
constexpr const char* kMultiplyDense = "multiply g8";

std::string shape_text(int64_t n, int64_t k, int active, int rows) {
  return fmt::format("{} x {}, {} experts, {} rows", n, k, active, rows);
}

std::string layer_text(const MoeShape& s, int m) {
  return fmt::format("{}, {} of {} experts, M={}", s.model, s.topk, s.experts, m);
}

const char* layout_name(SparseLayout layout) {
  return layout == SparseLayout::planes ? KMajorPlanes::name : KMajorPacked::name;
}

std::string multiply_name(SparseLayout layout) { return fmt::format("multiply {}", layout_name(layout)); }

std::string moe_name(SparseLayout layout) { return fmt::format("moe {}", layout_name(layout)); }

std::string moe_name(bool quantized, bool fused) {
  return fmt::format("moe g8 {}{}", quantized ? "W4A4" : "W4A16", fused ? "" : ", unfused");
}

std::string multiply_name(Fp8Scaling scaling) {
  return fmt::format("multiply fp8, a scale a {}, by cuBLASLt",
                     scaling == Fp8Scaling::tensor ? "tensor" : "row");
}

/// The number of operations in products of `stored` weights with `rows` activations each. A product counts as
/// a multiplication and an addition.
double flops_of(int64_t stored, int64_t rows) {
  return 2.0 * static_cast<double>(stored) * static_cast<double>(rows);
}

/// Rows of activations. Each expert of a layer has the same number of rows.
struct Rows {
  int layers;
  DeviceMemory ids, x, out;
  ExpertRows all;

  Rows(int64_t bytes, int64_t n, int64_t k, int active, int per_expert)
      : layers(rotations(bytes)), x(random_bf16(active * per_expert * k, 5)) {
    std::vector<int32_t> list;
    for (int i = 0; i < active * per_expert; ++i) list.push_back(i / per_expert);
    ids = DeviceMemory(list);
    out = DeviceMemory(list.size() * static_cast<size_t>(n) * 4);
    all.rows = static_cast<int64_t>(list.size());
    all.x = x.as(), all.x_type = Float::bf16;
    all.ids = ids.as<int32_t>();
    all.out = out.as(), all.out_type = Float::bf16;
    all.distinct = per_expert == 1;
  }
  int launches() const { return std::min(layers, kMostLaunches); }
};

/// The tokens of several launches. Each launch has its own experts.
struct Tokens {
  int m, topk, launches;
  DeviceMemory ids, weights, hidden, out;
  double experts = 0;  ///< number of different experts of a launch

  Tokens(const MoeShape& s, int tokens, int launches_)
      : m(tokens),
        topk(s.topk),
        launches(launches_),
        weights(std::vector<float>(static_cast<size_t>(m * topk), 0.1f)) {
    std::mt19937 random(6);
    std::vector<int32_t> all;
    for (int launch = 0; launch < launches; ++launch) {
      const auto chosen = random_experts(random, s.experts, m, topk);
      experts += static_cast<double>(std::set<int32_t>(chosen.begin(), chosen.end()).size()) / launches;
      all.insert(all.end(), chosen.begin(), chosen.end());
    }
    ids = DeviceMemory(all);
    hidden = random_bf16(m * s.h, 7);
    out = DeviceMemory(static_cast<size_t>(m * s.h * 2));
  }
  MoeTokens of(int launch) const {
    MoeTokens t;
    t.m = m, t.topk = topk;
    t.hidden = hidden.as(), t.out = out.as();
    t.topk_ids = ids.as<int32_t>() + int64_t{launch} * m * topk;
    t.topk_weights = weights.as<float>();
    return t;
  }
};

/// The number of layers through which launches rotate. It is so large that a layer is no longer in the L2
/// cache at its next launch.
int layers_of(const MoeShape& s, const std::vector<int>& tokens, int64_t expert_bytes) {
  constexpr int64_t kMostCache = 128 << 20;
  const int fewest = *std::min_element(tokens.begin(), tokens.end());
  const int64_t touched = std::min(s.experts, fewest * s.topk) * expert_bytes;
  return std::max(rotations(expert_bytes * s.experts), static_cast<int>(kMostCache / touched) + 2);
}

const KernelBenchOptions& with_device(const KernelBenchOptions& options) {
  if (!cuda_device()) throw Error("bench kernels: expected a CUDA device, found none: " + no_cuda_reason());
  return options;
}

}  // namespace

KernelBenches::KernelBenches(const KernelBenchOptions& options) : options_(with_device(options)) {
  constexpr size_t kBytes = size_t{1} << 30;
  const DeviceMemory from = random_bytes(kBytes, any_byte, 9);
  DeviceMemory to(kBytes);
  const Spread seconds =
      time(4, [&](int, Stream stream) { copy_device(to.as(), from.as(), kBytes, stream); });
  copy_gb_s_ = 2e-9 * static_cast<double>(kBytes) / seconds.median;
}

Spread KernelBenches::time(int launches, const std::function<void(int, Stream)>& launch) const {
  const DeviceGraph graph(stream_, [&] {
    for (int i = 0; i < launches; ++i) launch(i, stream_.get());
  });
  std::vector<double> seconds;
  for (int round = 0; round < options_.rounds + 3; ++round) {
    const double s = device_seconds(stream_, [&] { graph.replay(stream_); });
    if (round >= 3) seconds.push_back(s / launches);
  }
  return spread_of(seconds);
}

std::vector<int> KernelBenches::wanted_tokens(const std::string& name, const MoeShape& s,
                                              std::span<const int> tokens) const {
  std::vector<int> ms;
  for (const int m : tokens)
    if (wanted(name, layer_text(s, m))) ms.push_back(m);
  return ms;
}

bool KernelBenches::wanted(const std::string& name, const std::string& shape) const {
  return (name + ", " + shape).find(options_.filter) != std::string::npos;
}

KernelBench KernelBenches::result(std::string name, std::string shape, Work work, Spread seconds) const {
  const double gb_s = 1e-9 * work.bytes / seconds.median;
  return {std::move(name),
          std::move(shape),
          work.bytes,
          {1e6 * seconds.min, 1e6 * seconds.median, 1e6 * seconds.max},
          gb_s,
          copy_gb_s_ > 0 ? gb_s / copy_gb_s_ : 0,
          1e-12 * work.flops / seconds.median};
}

KernelBench KernelBenches::sparse_multiply(SparseLayout layout, int64_t n, int64_t k, int active,
                                           int per_expert, const SparsePlan& plan) const {
  const int64_t bytes = sparse_bytes(n, k) * active;
  const Rows rows(bytes, n, k, active, per_expert);
  const RandomSparse weights(layout, int64_t{rows.layers} * active, n, k);
  DeviceMemory workspace(sparse_multiply_workspace(weights.of_layer(0, active), rows.all));
  const Spread seconds = time(rows.launches(), [&](int i, Stream stream) {
    cuda::sparse_multiply(weights.of_layer(i, active), rows.all, workspace.as(), workspace.bytes(), stream,
                          plan);
  });
  return result(multiply_name(layout), shape_text(n, k, active, active * per_expert),
                {static_cast<double>(bytes), flops_of(n * k / 2, rows.all.rows)}, seconds);
}

KernelBench KernelBenches::dense_multiply(int64_t n, int64_t k, int active, int per_expert) const {
  const int64_t bytes = dense_bytes(n, k) * active;
  const Rows rows(bytes, n, k, active, per_expert);
  const RandomDense weights(rows.layers, active, n, k, false);
  DeviceMemory workspace(dense_multiply_workspace(weights.of_layer(0), rows.all));
  const Spread seconds = time(rows.launches(), [&](int i, Stream stream) {
    cuda::dense_multiply(weights.of_layer(i), rows.all, workspace.as(), workspace.bytes(), stream);
  });
  return result(kMultiplyDense, shape_text(n, k, active, active * per_expert),
                {static_cast<double>(bytes), flops_of(n * k, rows.all.rows)}, seconds);
}

KernelBench KernelBenches::fp8_multiply(Fp8Scaling scaling, int64_t n, int64_t k, int active,
                                        int per_expert) const {
  const int64_t bytes = n * k * active, rows = int64_t{active} * per_expert;
  const int sets = rotations(bytes);
  const auto finite = [](uint32_t random) { return static_cast<uint8_t>(random >> 7 & 0xBF); };
  const DeviceMemory codes = random_bytes(sets * bytes, finite, 1), x = random_bytes(rows * k, finite, 2);
  const DeviceMemory scales(std::vector<float>(static_cast<size_t>(std::max(active * n, rows)), 0.5f));
  DeviceMemory out(static_cast<size_t>(rows * n * 2));
  const int batch = scaling == Fp8Scaling::tensor ? active : 1;
  const Fp8Multiply multiply({batch, per_expert, n, k, scaling});
  DeviceMemory workspace(multiply.workspace_bytes());
  const auto launch = [&](int i, Stream stream) {
    for (int64_t e = 0; e < active; e += batch) {
      multiply.run({codes.as<uint8_t>() + i * bytes + e * n * k, scales.as<float>()},
                   {x.as<uint8_t>() + e * per_expert * k, scales.as<float>()},
                   out.as<uint8_t>() + e * per_expert * n * 2, workspace.as(), stream);
    }
  };
  launch(0, stream_.get());  // loads the kernels, so that the capture need not wait for them
  stream_.synchronize();
  return result(multiply_name(scaling), shape_text(n, k, active, static_cast<int>(rows)),
                {static_cast<double>(bytes), flops_of(n * k, rows)}, time(std::min(sets, 40), launch));
}

void KernelBenches::add_sparse_layers(std::vector<KernelBench>& results, const MoeShape& s,
                                      SparseLayout layout, std::span<const int> tokens) const {
  const std::vector<int> ms = wanted_tokens(moe_name(layout), s, tokens);
  if (ms.empty()) return;
  const int64_t expert_bytes = sparse_bytes(2 * s.i, s.h) + sparse_bytes(s.h, s.i);
  const int layers = layers_of(s, ms, expert_bytes);
  const RandomSparse w13(layout, int64_t{layers} * s.experts, 2 * s.i, s.h),
      w2(layout, int64_t{layers} * s.experts, s.h, s.i);
  for (const int m : ms) {
    const Tokens in(s, m, kMostLaunches);
    const auto layer = [&](int l) {
      SparseMoe moe;
      moe.w13 = w13.of_layer(l, s.experts), moe.w2 = w2.of_layer(l, s.experts);
      return moe;
    };
    DeviceMemory workspace(sparse_moe_workspace(layer(0), m, s.topk));
    const Spread seconds = time(in.launches, [&](int i, Stream stream) {
      cuda::sparse_moe(layer(i % layers), in.of(i), workspace.as(), workspace.bytes(), stream);
    });
    results.push_back(result(
        moe_name(layout), layer_text(s, m),
        {in.experts * static_cast<double>(expert_bytes), flops_of(3 * s.h * s.i / 2, m * s.topk)}, seconds));
  }
}

void KernelBenches::add_dense_layers(std::vector<KernelBench>& results, const MoeShape& s, bool quantized,
                                     bool fused, std::span<const int> tokens) const {
  const std::vector<int> ms = wanted_tokens(moe_name(quantized, fused), s, tokens);
  if (ms.empty()) return;
  const int64_t expert_bytes = dense_bytes(2 * s.i, s.h) + dense_bytes(s.h, s.i);
  const int layers = layers_of(s, ms, expert_bytes);
  const RandomDense w13(layers, s.experts, 2 * s.i, s.h, true), w2(layers, s.experts, s.h, s.i, false);
  const DeviceMemory scale(std::vector<float>{0.01f});
  for (const int m : ms) {
    const Tokens in(s, m, kMostLaunches);
    const auto layer = [&](int l) {
      DenseMoe moe;
      moe.w13 = w13.of_layer(l), moe.w2 = w2.of_layer(l);
      if (quantized) moe.w13_input_scale = moe.w2_input_scale = scale.as<float>();
      moe.fused = fused;
      return moe;
    };
    DeviceMemory workspace(dense_moe_workspace(layer(0), m, s.topk));
    const Spread seconds = time(in.launches, [&](int i, Stream stream) {
      cuda::dense_moe(layer(i % layers), in.of(i), workspace.as(), workspace.bytes(), stream);
    });
    results.push_back(result(
        moe_name(quantized, fused), layer_text(s, m),
        {in.experts * static_cast<double>(expert_bytes), flops_of(3 * s.h * s.i, m * s.topk)}, seconds));
  }
}

std::vector<KernelBench> KernelBenches::run() {
  std::vector<KernelBench> results;
  const auto add = [&](const std::string& name, const std::string& shape, const auto& measure) {
    if (wanted(name, shape)) results.push_back(measure());
  };
  add_quantization_of_products(results);
  add_conversions(results, 1024, 2048, 128);
  struct Product {
    int64_t n, k;
    int active;
    std::vector<int> ours, fp8;  ///< numbers of rows of an expert
  };
  const bool has_cublaslt = no_cublaslt_reason().empty();
  const std::vector<int> one{1}, most{1, 8, 32, 128}, sweep{1, 8, 16, 32, 64, 128, 256, 512, 1024};
  for (const auto& [n, k, active, ours, fp8] :
       {Product{1024, 2048, 10, one, most}, Product{1024, 2048, 75, one, most},
        Product{1024, 2048, 240, one, most}, Product{2048, 512, 75, one, most},
        Product{6144, 7168, 6, sweep, sweep}, Product{6144, 7168, 24, one, most},
        Product{7168, 3072, 6, one, most}}) {
    for (const int rows : ours) {
      const std::string shape = shape_text(n, k, active, active * rows);
      add(kMultiplyDense, shape, [&] { return dense_multiply(n, k, active, rows); });
      for (const SparseLayout layout : {SparseLayout::planes, SparseLayout::packed})
        add(multiply_name(layout), shape, [&] { return sparse_multiply(layout, n, k, active, rows); });
    }
    for (const int rows : fp8) {
      for (const Fp8Scaling scaling : {Fp8Scaling::tensor, Fp8Scaling::row}) {
        // Scales of rows need one launch per expert. With many experts, the launches would dominate the time.
        if (!has_cublaslt || (scaling == Fp8Scaling::row && active > 10)) continue;
        add(multiply_name(scaling), shape_text(n, k, active, active * rows),
            [&] { return fp8_multiply(scaling, n, k, active, rows); });
      }
    }
  }
  const MoeShape qwen{"Qwen3-Next", 2048, 512, 512, 10}, deepseek{"DeepSeek-V4", 7168, 3072, 48, 6};
  const std::vector<int> few{1, 8, 32}, to_prefill{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
      to_2048{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}, w4a4{1, 32, 128};
  add_sparse_layers(results, qwen, SparseLayout::planes, to_prefill);
  add_sparse_layers(results, deepseek, SparseLayout::planes, to_2048);
  add_sparse_layers(results, qwen, SparseLayout::packed, few);
  add_dense_layers(results, qwen, false, true, to_prefill);
  add_dense_layers(results, deepseek, false, true, to_2048);
  add_dense_layers(results, qwen, true, true, w4a4);
  add_dense_layers(results, deepseek, true, true, w4a4);
  add_dense_layers(results, deepseek, true, false, std::vector<int>{128});
  if (results.empty())
    throw Error(
        fmt::format("bench kernels: expected part of a kernel's name or shape, found '{}'", options_.filter));
  return results;
}

}  // namespace twofour
