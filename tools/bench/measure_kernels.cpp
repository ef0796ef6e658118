#include "tools/bench/measure_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/device.h"
#include "kernels/multiply/dense_multiply.h"
#include "tools/bench/inputs.h"

namespace twofour {
namespace {

using namespace cuda;

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

/// Operations of products with `stored` weights by `rows` activations each: a multiplication and an addition.
double flops_of(int64_t stored, int64_t rows) {
  return 2.0 * static_cast<double>(stored) * static_cast<double>(rows);
}

/// Rows of activations and which experts they go to, other experts for every set.
struct Rows {
  int sets, rows;
  DeviceMemory ids, x, out;
  ExpertRows all;

  Rows(int64_t bytes, int64_t n, int64_t k, int active, int per_expert)
      : sets(rotations(bytes)), rows(active * per_expert), x(random_bf16(rows * k, 5)) {
    std::vector<int32_t> list;
    for (int i = 0; i < sets * rows; ++i) list.push_back(i / per_expert);
    ids = DeviceMemory(list);
    out = DeviceMemory(static_cast<size_t>(rows * n * 4));
    all.rows = rows;
    all.x = x.as(), all.x_type = Float::bf16;
    all.out = out.as();
    all.distinct = per_expert == 1;
  }
  int launches() const { return std::min(sets, 40); }
  ExpertRows set(int i) const {
    ExpertRows r = all;
    r.ids = ids.as<int32_t>() + int64_t{i} * rows;
    return r;
  }
};

/// Tokens of several launches, each with experts of its own, and how many layers they go to in turn: as many
/// as it takes until the L2 cache has lost what the last launch on a layer left there.
struct Tokens {
  static constexpr int kLaunches = 40;
  int m, topk, layers;
  DeviceMemory ids, weights, hidden, out;
  double experts = 0;  ///< different ones, of a launch

  Tokens(const MoeShape& s, int tokens, int64_t expert_bytes)
      : m(tokens), topk(s.topk), weights(std::vector<float>(static_cast<size_t>(m * topk), 0.1f)) {
    constexpr int64_t kMostCache = 128 << 20;
    layers = static_cast<int>(kMostCache / (std::min(s.experts, m * topk) * expert_bytes)) + 2;
    std::mt19937 random(6);
    std::vector<int32_t> all;
    for (int launch = 0; launch < kLaunches; ++launch) {
      const auto chosen = random_experts(random, s.experts, m, topk);
      experts += static_cast<double>(std::set<int32_t>(chosen.begin(), chosen.end()).size()) / kLaunches;
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
  const RandomSparse weights(layout, int64_t{rows.sets} * active, n, k);
  DeviceMemory workspace(sparse_multiply_workspace(weights.experts, rows.all));
  const Spread seconds = time(rows.launches(), [&](int i, Stream stream) {
    cuda::sparse_multiply(weights.experts, rows.set(i), workspace.as(), workspace.bytes(), stream, plan);
  });
  return result(multiply_name(layout), shape_text(n, k, active, rows.rows),
                {static_cast<double>(bytes), flops_of(n * k / 2, rows.rows)}, seconds);
}

KernelBench KernelBenches::dense_multiply(int64_t n, int64_t k, int active, int per_expert) const {
  const int64_t bytes = dense_bytes(n, k) * active;
  const Rows rows(bytes, n, k, active, per_expert);
  const int64_t experts = int64_t{rows.sets} * active;
  const DeviceMemory codes = random_bytes(experts * n * k / 2, any_byte, 1);
  const DeviceMemory scales = random_bytes(experts * n * k / 16, scale_byte, 2);
  const DeviceMemory global(std::vector<float>(static_cast<size_t>(experts), 0.001f));
  DenseWeights w;
  w.codes = codes.as<uint8_t>(), w.scales = scales.as<uint8_t>();
  w.e = experts, w.n = n, w.k = k;
  w.global_scale = global.as<float>();
  DeviceMemory workspace(dense_multiply_workspace(w, rows.all));
  const Spread seconds = time(rows.launches(), [&](int i, Stream stream) {
    cuda::dense_multiply(w, rows.set(i), workspace.as(), workspace.bytes(), stream);
  });
  return result("multiply nvfp4", shape_text(n, k, active, rows.rows),
                {static_cast<double>(bytes), flops_of(n * k, rows.rows)}, seconds);
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
  launch(0, stream_.get());  // loads its kernels, which a capture should not wait for
  stream_.synchronize();
  return result(multiply_name(scaling), shape_text(n, k, active, static_cast<int>(rows)),
                {static_cast<double>(bytes), flops_of(n * k, rows)}, time(std::min(sets, 40), launch));
}

KernelBench KernelBenches::sparse_moe(const MoeShape& s, SparseLayout layout, int m,
                                      const SparseMoePlan& plan) const {
  const int64_t expert_bytes = sparse_bytes(2 * s.i, s.h) + sparse_bytes(s.h, s.i);
  const Tokens tokens(s, m, expert_bytes);
  const RandomSparse w13(layout, int64_t{tokens.layers} * s.experts, 2 * s.i, s.h),
      w2(layout, int64_t{tokens.layers} * s.experts, s.h, s.i);
  const auto layer = [&](int l) {
    SparseMoe moe;
    moe.w13 = w13.of_layer(l, s.experts), moe.w2 = w2.of_layer(l, s.experts);
    return moe;
  };
  DeviceMemory workspace(sparse_moe_workspace(layer(0), m, s.topk));
  const Spread seconds = time(Tokens::kLaunches, [&](int i, Stream stream) {
    cuda::sparse_moe(layer(i % tokens.layers), tokens.of(i), workspace.as(), workspace.bytes(), stream, plan);
  });
  return result(moe_name(layout), layer_text(s, m),
                {tokens.experts * static_cast<double>(expert_bytes), flops_of(3 * s.h * s.i / 2, m * s.topk)},
                seconds);
}

KernelBench KernelBenches::dense_moe(const MoeShape& s, int m, bool quantized, bool fused) const {
  struct Random {
    DeviceMemory codes, scales, global_scale;
    DenseWeights weights;
    int64_t code_bytes, scale_bytes;
    Random(int64_t layers, int64_t e, int64_t n, int64_t k, bool gated)
        : global_scale(std::vector<float>(static_cast<size_t>(e), 0.001f)),
          code_bytes(e * n * k / 2),
          scale_bytes(e * GateUpInterleaved8::part(1, {1, n, k}).bytes()) {
      codes = random_bytes(layers * code_bytes, any_byte, 1);
      scales = random_bytes(layers * scale_bytes, scale_byte, 2);
      weights = {DenseLayout::g8, nullptr, nullptr, e, n, k, gated, global_scale.as<float>()};
    }
    DenseWeights of_layer(int l) const {
      DenseWeights w = weights;
      w.codes = codes.as<uint8_t>() + l * code_bytes, w.scales = scales.as<uint8_t>() + l * scale_bytes;
      return w;
    }
  };
  const int64_t expert_bytes = dense_bytes(2 * s.i, s.h) + dense_bytes(s.h, s.i);
  const Tokens tokens(s, m, expert_bytes);
  const Random w13(tokens.layers, s.experts, 2 * s.i, s.h, true),
      w2(tokens.layers, s.experts, s.h, s.i, false);
  const DeviceMemory scale(std::vector<float>{0.01f});
  const auto layer = [&](int l) {
    DenseMoe moe;
    moe.w13 = w13.of_layer(l), moe.w2 = w2.of_layer(l);
    if (quantized) moe.w13_input_scale = moe.w2_input_scale = scale.as<float>();
    moe.fused = fused;
    return moe;
  };
  DeviceMemory workspace(dense_moe_workspace(layer(0), m, s.topk));
  const Spread seconds = time(std::min(Tokens::kLaunches, 2 * tokens.layers), [&](int i, Stream stream) {
    cuda::dense_moe(layer(i % tokens.layers), tokens.of(i), workspace.as(), workspace.bytes(), stream);
  });
  return result(moe_name(quantized, fused), layer_text(s, m),
                {tokens.experts * static_cast<double>(expert_bytes), flops_of(3 * s.h * s.i, m * s.topk)},
                seconds);
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
    std::vector<int> ours, fp8;  ///< rows of an expert
  };
  const bool has_cublaslt = no_cublaslt_reason().empty();
  const std::vector<int> one{1}, most{1, 8, 32, 128}, of_layer{16};  // 128 tokens at 6 of 48 experts
  for (const auto& [n, k, active, ours, fp8] :
       {Product{1024, 2048, 10, one, most}, Product{1024, 2048, 75, one, most},
        Product{1024, 2048, 240, one, most}, Product{2048, 512, 75, one, most},
        Product{6144, 7168, 6, most, most}, Product{6144, 7168, 24, one, most},
        Product{7168, 3072, 6, one, most}, Product{6144, 7168, 48, of_layer, of_layer},
        Product{7168, 3072, 48, of_layer, of_layer}}) {
    for (const int rows : ours) {
      const std::string shape = shape_text(n, k, active, active * rows);
      add("multiply nvfp4", shape, [&] { return dense_multiply(n, k, active, rows); });
      for (const SparseLayout layout : {SparseLayout::planes, SparseLayout::packed})
        add(multiply_name(layout), shape, [&] { return sparse_multiply(layout, n, k, active, rows); });
    }
    for (const int rows : fp8) {
      for (const Fp8Scaling scaling : {Fp8Scaling::tensor, Fp8Scaling::row}) {
        // A launch for each expert: of many, that is all one would see.
        if (!has_cublaslt || (scaling == Fp8Scaling::row && active > 10)) continue;
        add(multiply_name(scaling), shape_text(n, k, active, active * rows),
            [&] { return fp8_multiply(scaling, n, k, active, rows); });
      }
    }
  }
  const MoeShape qwen{"Qwen3-Next", 2048, 512, 512, 10}, deepseek{"DeepSeek-V4", 7168, 3072, 48, 6};
  struct Layer {
    const MoeShape& shape;
    std::vector<int> m;
  };
  for (const SparseLayout layout : {SparseLayout::planes, SparseLayout::packed}) {
    for (const auto& [shape, tokens] : {Layer{qwen, {1, 8, 32}}, Layer{deepseek, {1}}})
      for (const int m : tokens)
        add(moe_name(layout), layer_text(shape, m), [&] { return sparse_moe(shape, layout, m); });
  }
  for (const bool quantized : {false, true}) {
    for (const auto& [shape, tokens] : {Layer{qwen, {1, 32}}, Layer{deepseek, {1, 128}}})
      for (const int m : tokens)
        add(moe_name(quantized, true), layer_text(shape, m),
            [&] { return dense_moe(shape, m, quantized, true); });
  }
  add(moe_name(true, false), layer_text(deepseek, 128),
      [&] { return dense_moe(deepseek, 128, true, false); });
  if (results.empty())
    throw Error(
        fmt::format("bench kernels: expected part of a kernel's name or shape, found '{}'", options_.filter));
  return results;
}

}  // namespace twofour
