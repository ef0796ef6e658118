#include <fmt/format.h>

#include "kernels/pack/device_pack.h"
#include "tools/bench/inputs.h"
#include "tools/bench/measure_kernels.h"

namespace twofour {

using namespace cuda;

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
    results.push_back(result(name, shape, {bytes_a_weight * static_cast<double>(weights)},
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
  // The rows of 128 tokens with 6 experts each, in a DeepSeek-V4 layer.
  constexpr int64_t kRows = 768, kK = 3072;
  constexpr int kSets = 30;
  const DeviceMemory x = random_bf16(kSets * kRows * 2 * kK, 14), global(std::vector<float>{0.01f});
  DeviceMemory codes(kRows * kK / 2), scales(kRows * kK / 16);
  for (const bool interleaved : {true, false}) {
    const char* name = interleaved ? "de-interleave, SwiGLU and quantize" : "quantize bf16";
    const std::string shape = fmt::format("{} rows of {}", kRows, kK);
    if (!wanted(name, shape)) continue;
    const double bytes = static_cast<double>(kRows * kK) * ((interleaved ? 4 : 2) + 0.5625);
    results.push_back(result(name, shape, {bytes}, time(kSets, [&](int i, Stream stream) {
                               QuantizeActivations a;
                               a.x = x.as<uint16_t>() + i * kRows * kK * 2, a.m = kRows, a.k = kK;
                               a.interleaved = interleaved;
                               a.global_scale = global.as<float>();
                               a.codes = codes.as<uint8_t>(), a.scales = scales.as<uint8_t>();
                               quantize_activations(a, stream);
                             })));
  }
}

}  // namespace twofour
