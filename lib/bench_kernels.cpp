#include "lib/bench_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "formats/error.h"
#include "formats/layouts.h"
#include "kernels/dense_multiply.h"
#include "kernels/device.h"
#include "kernels/device_pack.h"

namespace twofour {
namespace {

using namespace cuda;

/// Beyond the L2 cache of any device, several times.
constexpr int64_t kRotation = 600'000'000;

/// Random bytes of a kind, a pattern repeated: no cache line is near its like.
DeviceMemory random_bytes(int64_t bytes, const std::function<uint8_t(uint32_t)>& byte, unsigned seed) {
  constexpr int64_t kPattern = (8 << 20) + 4096;
  std::mt19937 random(seed);
  std::vector<uint8_t> pattern(static_cast<size_t>(std::min(bytes, kPattern)));
  for (uint8_t& b : pattern) b = byte(static_cast<uint32_t>(random()));
  DeviceMemory memory(static_cast<size_t>(bytes));
  for (int64_t at = 0; at < bytes; at += kPattern)
    memory.upload(pattern.data(), static_cast<size_t>(std::min(kPattern, bytes - at)),
                  static_cast<size_t>(at));
  return memory;
}

uint8_t any_byte(uint32_t random) { return static_cast<uint8_t>(random >> 7); }
uint8_t scale_byte(uint32_t random) { return static_cast<uint8_t>(0x30 + (random >> 9) % 24); }
uint8_t legal_meta(uint32_t random) {
  constexpr uint8_t kLegal[] = {0x4, 0x8, 0xC, 0x9, 0xD, 0xE};
  return static_cast<uint8_t>(kLegal[(random >> 3) % 6] | kLegal[(random >> 13) % 6] << 4);
}

/// Random experts in device memory. Rows of v7-packed are drawn as if all of it were metadata, which is legal
/// as any of its four kinds of bytes.
struct RandomSparse {
  std::vector<DeviceMemory> parts;
  DeviceMemory global_scale;
  SparseExperts experts;

  RandomSparse(SparseLayout layout, int64_t e, int64_t n, int64_t k)
      : global_scale(std::vector<float>(static_cast<size_t>(e), 0.001f)) {
    if (layout == SparseLayout::planes) {
      parts.push_back(random_bytes(e * n * k / 4, any_byte, 1));
      parts.push_back(random_bytes(e * n * k / 8, legal_meta, 2));
      parts.push_back(random_bytes(e * n * k / 16, scale_byte, 3));
    } else {
      parts.push_back(random_bytes(e * n * k / 2, legal_meta, 4));
    }
    experts.layout = layout;
    for (size_t p = 0; p < parts.size(); ++p) experts.parts[p] = parts[p].as<uint8_t>();
    experts.e = e, experts.n = n, experts.k = k;
    experts.global_scale = global_scale.as<float>();
  }
};

/// Bytes of one expert that a multiplication reads: 7 for 16 weights, in both layouts.
int64_t sparse_bytes(int64_t n, int64_t k) { return n * k / 16 * 7; }

DeviceMemory random_bf16(int64_t count, unsigned seed) {
  return random_bytes(
      2 * count,
      [i = 0](uint32_t r) mutable { return static_cast<uint8_t>(i++ % 2 ? (r & 0x80) | 0x3F : r >> 8); },
      seed);
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

bool KernelBenches::wanted(const std::string& name, const std::string& shape) const {
  return (name + " " + shape).find(options_.filter) != std::string::npos;
}

KernelBench KernelBenches::result(std::string name, std::string shape, double bytes, Spread seconds) const {
  const double gb_s = 1e-9 * bytes / seconds.median;
  return {std::move(name),
          std::move(shape),
          bytes,
          {1e6 * seconds.min, 1e6 * seconds.median, 1e6 * seconds.max},
          gb_s,
          copy_gb_s_ > 0 ? gb_s / copy_gb_s_ : 0};
}

KernelBench KernelBenches::sparse_multiply(SparseLayout layout, int64_t n, int64_t k, int active,
                                           int per_expert, const SparsePlan& plan) const {
  const int64_t bytes = sparse_bytes(n, k) * active;
  const int sets = static_cast<int>(std::max<int64_t>(2, (kRotation + bytes - 1) / bytes));
  const RandomSparse weights(layout, int64_t{sets} * active, n, k);
  std::vector<int32_t> ids;
  for (int i = 0; i < sets * active * per_expert; ++i) ids.push_back(i / per_expert);
  const DeviceMemory device_ids(ids);
  const int rows = active * per_expert;
  const DeviceMemory x = random_bf16(rows * k, 5);
  DeviceMemory out(static_cast<size_t>(rows * n * 4));
  const int launches = std::min(sets, 40);
  ExpertRows r;
  r.rows = rows;
  r.x = x.as(), r.x_type = Float::bf16;
  r.out = out.as();
  r.distinct = per_expert == 1;
  DeviceMemory workspace(sparse_multiply_workspace(weights.experts, r));
  const Spread seconds = time(launches, [&](int i, Stream stream) {
    r.ids = device_ids.as<int32_t>() + int64_t{i} * rows;
    cuda::sparse_multiply(weights.experts, r, workspace.as(), workspace.bytes(), stream, plan);
  });
  return result(layout == SparseLayout::planes ? "multiply v7" : "multiply v7-packed",
                fmt::format("{} x {}, {} experts, {} rows", n, k, active, rows), static_cast<double>(bytes),
                seconds);
}

KernelBench KernelBenches::dense_multiply(int64_t n, int64_t k, int active, int per_expert) const {
  const int64_t bytes = n * k / 16 * 9 * active;
  const int sets = static_cast<int>(std::max<int64_t>(2, (kRotation + bytes - 1) / bytes)),
            rows = active * per_expert;
  const int64_t experts = int64_t{sets} * active;
  const DeviceMemory codes = random_bytes(experts * n * k / 2, any_byte, 1);
  const DeviceMemory scales = random_bytes(experts * n * k / 16, scale_byte, 2);
  const DeviceMemory global(std::vector<float>(static_cast<size_t>(experts), 0.001f));
  std::vector<int32_t> ids;
  for (int i = 0; i < sets * rows; ++i) ids.push_back(i / per_expert);
  const DeviceMemory device_ids(ids), x = random_bf16(rows * k, 5);
  DeviceMemory out(static_cast<size_t>(rows * n * 4));
  DenseWeights w;
  w.codes = codes.as<uint8_t>(), w.scales = scales.as<uint8_t>();
  w.e = experts, w.n = n, w.k = k;
  w.global_scale = global.as<float>();
  ExpertRows r;
  r.rows = rows;
  r.x = x.as(), r.x_type = Float::bf16;
  r.out = out.as();
  r.distinct = per_expert == 1;
  DeviceMemory workspace(dense_multiply_workspace(w, r));
  const Spread seconds = time(std::min(sets, 40), [&](int i, Stream stream) {
    r.ids = device_ids.as<int32_t>() + int64_t{i} * rows;
    cuda::dense_multiply(w, r, workspace.as(), workspace.bytes(), stream);
  });
  return result("multiply nvfp4", fmt::format("{} x {}, {} experts, {} rows", n, k, active, rows),
                static_cast<double>(bytes), seconds);
}

KernelBench KernelBenches::sparse_moe(const std::string& model, int64_t h, int64_t i, int experts, int topk,
                                      int m, const SparseMoePlan& plan) const {
  const RandomSparse w13(SparseLayout::planes, experts, 2 * i, h), w2(SparseLayout::planes, experts, h, i);
  SparseMoe moe;
  moe.w13 = w13.experts, moe.w2 = w2.experts;
  // Tokens of different launches choose differently, so that all experts are read in turn.
  constexpr int kLaunches = 40;
  std::mt19937 random(6);
  std::vector<int32_t> ids, all(static_cast<size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  size_t read = 0;
  for (int launch = 0; launch < kLaunches; ++launch) {
    std::set<int32_t> chosen;
    for (int token = 0; token < m; ++token) {
      std::shuffle(all.begin(), all.end(), random);
      ids.insert(ids.end(), all.begin(), all.begin() + topk);
      chosen.insert(all.begin(), all.begin() + topk);
    }
    read += chosen.size();
  }
  const DeviceMemory device_ids(ids), weights(std::vector<float>(static_cast<size_t>(m * topk), 0.1f));
  const DeviceMemory hidden = random_bf16(m * h, 7);
  DeviceMemory out(static_cast<size_t>(m * h * 2)), workspace(sparse_moe_workspace(moe, m, topk));
  const Spread seconds = time(kLaunches, [&](int launch, Stream stream) {
    MoeTokens tokens;
    tokens.m = m, tokens.topk = topk;
    tokens.hidden = hidden.as(), tokens.out = out.as();
    tokens.topk_ids = device_ids.as<int32_t>() + int64_t{launch} * m * topk;
    tokens.topk_weights = weights.as<float>();
    cuda::sparse_moe(moe, tokens, workspace.as(), workspace.bytes(), stream, plan);
  });
  const double bytes = static_cast<double>(read) / kLaunches *
                       static_cast<double>(sparse_bytes(2 * i, h) + sparse_bytes(h, i));
  return result("moe v7", fmt::format("{}, {} of {} experts, M={}", model, topk, experts, m), bytes, seconds);
}

KernelBench KernelBenches::dense_moe(int64_t h, int64_t i, int experts, int topk, int m, bool fused) const {
  struct Random {
    DeviceMemory codes, scales, global_scale;
    DenseWeights weights;
    Random(int64_t e, int64_t n, int64_t k, bool gated)
        : codes(random_bytes(e * n * k / 2, any_byte, 1)),
          scales(random_bytes(e * GateUpInterleaved8::part(1, {1, n, k}).bytes(), scale_byte, 2)),
          global_scale(std::vector<float>(static_cast<size_t>(e), 0.001f)),
          weights{DenseLayout::g8, codes.as<uint8_t>(),     scales.as<uint8_t>(), e, n, k,
                  gated,           global_scale.as<float>()} {}
  };
  const Random w13(experts, 2 * i, h, true), w2(experts, h, i, false);
  const DeviceMemory scale(std::vector<float>{0.01f}),
      weights(std::vector<float>(static_cast<size_t>(m * topk), 0.1f));
  std::mt19937 random(6);
  std::vector<int32_t> ids, all(static_cast<size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  for (int token = 0; token < m; ++token) {
    std::shuffle(all.begin(), all.end(), random);
    ids.insert(ids.end(), all.begin(), all.begin() + topk);
  }
  const DeviceMemory device_ids(ids), hidden = random_bf16(m * h, 7);
  DenseMoe moe;
  moe.w13 = w13.weights, moe.w2 = w2.weights;
  moe.w13_input_scale = moe.w2_input_scale = scale.as<float>();
  moe.fused = fused;
  DeviceMemory out(static_cast<size_t>(m * h * 2)), workspace(dense_moe_workspace(moe, m, topk));
  MoeTokens tokens;
  tokens.m = m, tokens.topk = topk;
  tokens.hidden = hidden.as(), tokens.out = out.as();
  tokens.topk_ids = device_ids.as<int32_t>(), tokens.topk_weights = weights.as<float>();
  const Spread seconds = time(4, [&](int, Stream stream) {
    cuda::dense_moe(moe, tokens, workspace.as(), workspace.bytes(), stream);
  });
  const std::set<int32_t> chosen(ids.begin(), ids.end());
  return result(fused ? "moe g8 W4A4, fused" : "moe g8 W4A4, unfused",
                fmt::format("H {}, I {}, {} of {} experts, M={}", h, i, topk, experts, m),
                static_cast<double>(chosen.size()) * static_cast<double>(3 * h * i / 16 * 9), seconds);
}

void KernelBenches::add_conversions(std::vector<KernelBench>& results, int64_t n, int64_t k,
                                    int experts) const {
  constexpr int kSets = 3;
  const std::string shape = fmt::format("{} x {}, {} experts", n, k, experts);
  const int64_t weights = n * k * experts;
  const DeviceMemory codes = random_bytes(kSets * weights / 2, any_byte, 11);
  const DeviceMemory scales = random_bytes(kSets * weights / 16, scale_byte, 12);
  DeviceMemory out(static_cast<size_t>(kSets * weights * 2));
  const DeviceMemory global(std::vector<float>(static_cast<size_t>(experts), 0.001f));
  const DeviceMemory row_scale(std::vector<float>(static_cast<size_t>(experts * n), 0.01f));
  const auto dense = [&](int set) {
    return DenseMatrices{codes.as<uint8_t>() + set * weights / 2, scales.as<uint8_t>() + set * weights / 16,
                         experts, n, k};
  };
  const auto to = [&](int set) { return out.as<uint8_t>() + set * weights * 2; };
  const auto add = [&](const char* name, double bytes_a_weight,
                       const std::function<void(int, Stream)>& launch) {
    if (!wanted(name, shape)) return;
    results.push_back(result(name, shape, bytes_a_weight * static_cast<double>(weights),
                             time(12, [&](int i, Stream stream) { launch(i % kSets, stream); })));
  };
  add("prune and pack v7", 0.5625 + 0.4375, [&](int set, Stream stream) {
    prune_pack(dense(set), SparseLayout::planes, {to(set), to(set) + weights / 4, to(set) + weights / 8 * 3},
               stream);
  });
  add("prune and pack v7-packed", 0.5625 + 0.5, [&](int set, Stream stream) {
    prune_pack(dense(set), SparseLayout::packed, {to(set), nullptr, nullptr}, stream);
  });
  add("pack g8", 2 * 0.5625,
      [&](int set, Stream stream) { pack_g8(dense(set), true, to(set), to(set) + weights / 2, stream); });
  add("dequantize to bf16", 2.5625,
      [&](int set, Stream stream) { dequantize_to_bf16(dense(set), global.as<float>(), to(set), stream); });
  add("dequantize to fp8", 1.5625, [&](int set, Stream stream) {
    dequantize_to_fp8(dense(set), global.as<float>(), row_scale.as<float>(), to(set), stream);
  });
  for (const ScaleOrder order : {ScaleOrder::rows, ScaleOrder::tiles}) {
    DeviceMemory x = random_bf16(weights, 13), to_codes(static_cast<size_t>(weights / 2));
    DeviceMemory to_scales(static_cast<size_t>(weights / 16));
    add(order == ScaleOrder::rows ? "quantize bf16" : "quantize bf16, scales 128x4", 2.5625,
        [&](int, Stream stream) {
          QuantizeActivations a;
          a.x = x.as(), a.m = n * experts, a.k = k;
          a.global_scale = global.as<float>();
          a.order = order;
          a.codes = to_codes.as<uint8_t>(), a.scales = to_scales.as<uint8_t>();
          quantize_activations(a, stream);
        });
  }
}

void KernelBenches::add_quantization_of_products(std::vector<KernelBench>& results) const {
  // 128 tokens at 6 experts of a DeepSeek-V4 layer
  constexpr int64_t kRows = 768, kK = 3072;
  constexpr int kSets = 30;
  const DeviceMemory x = random_bf16(kSets * kRows * 2 * kK, 14), global(std::vector<float>{0.01f});
  DeviceMemory codes(kRows * kK / 2), scales(kRows * kK / 16);
  for (const bool interleaved : {true, false}) {
    const char* name = interleaved ? "de-interleave, SwiGLU and quantize" : "quantize bf16";
    const std::string shape = fmt::format("{} rows of {}", kRows, kK);
    if (!wanted(name, shape)) continue;
    const double bytes = static_cast<double>(kRows * kK) * ((interleaved ? 4 : 2) + 0.5625);
    results.push_back(result(name, shape, bytes, time(kSets, [&](int i, Stream stream) {
                               QuantizeActivations a;
                               a.x = x.as<uint16_t>() + i * kRows * kK * 2, a.m = kRows, a.k = kK;
                               a.interleaved = interleaved;
                               a.global_scale = global.as<float>();
                               a.codes = codes.as<uint8_t>(), a.scales = scales.as<uint8_t>();
                               quantize_activations(a, stream);
                             })));
  }
}

std::vector<KernelBench> KernelBenches::run() {
  std::vector<KernelBench> results;
  add_quantization_of_products(results);
  add_conversions(results, 1024, 2048, 128);
  struct Work {
    int64_t n, k;
    int active, per_expert;
  };
  for (const auto& [n, k, active, per_expert] :
       {Work{1024, 2048, 10, 1}, Work{1024, 2048, 75, 1}, Work{1024, 2048, 240, 1}, Work{2048, 512, 75, 1},
        Work{6144, 7168, 6, 1}, Work{6144, 7168, 6, 8}, Work{6144, 7168, 24, 1}, Work{7168, 3072, 6, 1}}) {
    const std::string shape = fmt::format("{} x {}", n, k);
    if (wanted("multiply nvfp4", shape)) results.push_back(dense_multiply(n, k, active, per_expert));
    if (wanted("multiply v7", shape))
      results.push_back(sparse_multiply(SparseLayout::planes, n, k, active, per_expert));
    if (wanted("multiply v7-packed", shape))
      results.push_back(sparse_multiply(SparseLayout::packed, n, k, active, per_expert));
  }
  for (const int m : {1, 8, 32}) {
    if (wanted("moe v7", "Qwen3-Next")) results.push_back(sparse_moe("Qwen3-Next", 2048, 512, 512, 10, m));
  }
  if (wanted("moe v7", "DeepSeek-V4")) results.push_back(sparse_moe("DeepSeek-V4", 7168, 3072, 48, 6, 1));
  for (const bool fused : {true, false}) {
    if (wanted("moe g8", "")) results.push_back(dense_moe(7168, 3072, 48, 6, 128, fused));
  }
  return results;
}

}  // namespace twofour
