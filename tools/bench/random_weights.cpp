#include "tools/bench/inputs.h"

#include <algorithm>
#include <numeric>

#include "formats/layouts/gate_up_interleaved8.h"

namespace twofour {

using namespace cuda;

int rotations(int64_t bytes) {
  return static_cast<int>(std::max<int64_t>(2, (kRotation + bytes - 1) / bytes));
}

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

DeviceMemory random_bf16(int64_t count, unsigned seed) {
  return random_bytes(
      2 * count,
      [i = 0](uint32_t r) mutable { return static_cast<uint8_t>(i++ % 2 ? (r & 0x80) | 0x3F : r >> 8); },
      seed);
}

RandomSparse::RandomSparse(SparseLayout layout, int64_t e, int64_t n, int64_t k)
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

SparseExperts RandomSparse::of_layer(int64_t l, int64_t e) const {
  SparseExperts w = experts;
  for (size_t p = 0; p < parts.size(); ++p)
    w.parts[p] += l * e * (static_cast<int64_t>(parts[p].bytes()) / experts.e);
  w.e = e;
  return w;
}

RandomDense::RandomDense(int64_t layers, int64_t e, int64_t n, int64_t k, bool gated)
    : global_scale(std::vector<float>(static_cast<size_t>(e), 0.001f)),
      code_bytes(e * n * k / 2),
      scale_bytes(e * GateUpInterleaved8::part(1, {1, n, k}).bytes()) {
  codes = random_bytes(layers * code_bytes, any_byte, 1);
  scales = random_bytes(layers * scale_bytes, scale_byte, 2);
  weights = {DenseLayout::g8, nullptr, nullptr, e, n, k, gated, global_scale.as<float>()};
}

DenseWeights RandomDense::of_layer(int64_t l) const {
  DenseWeights w = weights;
  w.codes = codes.as<uint8_t>() + l * code_bytes, w.scales = scales.as<uint8_t>() + l * scale_bytes;
  return w;
}

std::vector<int32_t> random_experts(std::mt19937& random, int experts, int tokens, int topk) {
  std::vector<int32_t> ids, all(static_cast<size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  for (int token = 0; token < tokens; ++token) {
    std::shuffle(all.begin(), all.end(), random);
    ids.insert(ids.end(), all.begin(), all.begin() + topk);
  }
  return ids;
}

}  // namespace twofour
