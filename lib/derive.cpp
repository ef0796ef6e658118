#include "lib/derive.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "formats/e4m3.h"
#include "formats/half.h"
#include "kernels/device/check.h"
#include "kernels/numbers/dequantize.h"
#include "kernels/pack/prune.h"

namespace twofour {
namespace {

constexpr uint64_t kStep = 4u << 20;

const Nvfp4Module& module_of(const Checkpoint& source, const Plan& plan, const OutputTensor& t) {
  return source.nvfp4_modules()[plan.modules[t.module].module];
}

/// Outputs whose inputs are interleaved byte by byte: sixteen inputs of so many outputs lie together.
int64_t block_width(const Nvfp4Module& m) { return m.k_outer ? m.n : 1; }

float scalar_to_float(DType dtype, const uint8_t* from) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

}  // namespace

uint64_t derive_grain(const Checkpoint& source, const Plan& plan, const OutputTensor& t) {
  switch (t.op) {
    case Op::kPrune:
      return 8 * static_cast<uint64_t>(block_width(module_of(source, plan, t)));
    case Op::kDequantize:
      return 32 * static_cast<uint64_t>(block_width(module_of(source, plan, t)));
    default:
      return 4;
  }
}

uint64_t derive_step(const Checkpoint& source, const Plan& plan, const OutputTensor& t) {
  const uint64_t grain = derive_grain(source, plan, t);
  return std::max<uint64_t>(1, kStep / grain) * grain;
}

std::optional<BadScale> find_bad_scale(uint64_t begin, std::span<const uint8_t> scales) {
  // All that are none have the top bit or are 0x7F, so the largest tells whether there is one.
  uint8_t largest = 0;
  for (const uint8_t byte : scales) largest = std::max(largest, byte);
  if (e4m3_is_block_scale(largest)) return std::nullopt;
  const auto at =
      std::find_if(scales.begin(), scales.end(), [](uint8_t b) { return !e4m3_is_block_scale(b); });
  return BadScale{begin + static_cast<uint64_t>(at - scales.begin()), *at};
}

void Deriver::read(size_t tensor, uint64_t begin, std::span<uint8_t> out) {
  source_.read(tensor, begin, out);
  bytes_read_ += out.size();
}

std::span<const uint8_t> Deriver::read(size_t tensor, uint64_t begin, uint64_t bytes,
                                       std::vector<uint8_t>& buffer) {
  if (buffer.size() < bytes) buffer.resize(bytes);
  read(tensor, begin, {buffer.data(), bytes});
  return {buffer.data(), bytes};
}

void Deriver::derive(const OutputTensor& tensor, uint64_t begin, std::span<uint8_t> out) {
  check(tensor.kind == OutputTensor::Kind::kDerived, "a tensor that is derived");
  check(begin % derive_grain(source_, plan_, tensor) == 0, "a range at a multiple of the grain");
  codes_ = scales_ = {};
  stats_.clear();
  bad_scale_.reset();
  switch (tensor.op) {
    case Op::kBlockScales:
      read(tensor.source, begin, out);
      bad_scale_ = find_bad_scale(begin, out);
      return;
    case Op::kPrune:
      return prune(tensor, begin, out);
    case Op::kReciprocal:
    case Op::kToF32:
    case Op::kToBf16:
      return convert_scalars(tensor, begin, out);
    case Op::kDequantize:
      return dequantize(tensor, begin, out);
    case Op::kNone:
      check(false, "a way to derive the tensor");
  }
}

void Deriver::prune(const OutputTensor& tensor, uint64_t begin, std::span<uint8_t> out) {
  const Nvfp4Module& m = module_of(source_, plan_, tensor);
  codes_ = read(m.codes, begin, out.size(), codes_buffer_);
  // Their own tensor carries them on; here they only weigh the figures.
  const auto scales = read(m.block_scale, begin / 8, out.size() / 8, scales_buffer_);
  const int64_t n = block_width(m);
  const uint64_t expert_bytes = static_cast<uint64_t>(m.n * m.k / 2);
  const PrunePattern pattern = *prune_pattern_from_name(plan_.recipe.pattern);
  for (uint64_t at = begin; at < begin + out.size();) {
    const uint64_t e = at / expert_bytes, end = std::min(begin + out.size(), (e + 1) * expert_bytes);
    const CodeBlocks blocks{&codes_[at - begin], &scales[(at - begin) / 8],
                            static_cast<int64_t>(end - at) / (8 * n), n};
    stats_.push_back({static_cast<int64_t>(e), prune_codes(pattern, blocks, &out[at - begin])});
    at = end;
  }
}

void Deriver::dequantize(const OutputTensor& tensor, uint64_t begin, std::span<uint8_t> out) {
  const Nvfp4Module& m = module_of(source_, plan_, tensor);
  const uint64_t first = begin / 4, count = out.size() / 4;  // bytes of codes
  codes_ = read(m.codes, first, count, codes_buffer_);
  scales_ = read(m.block_scale, first / 8, count / 8, scales_buffer_);
  bad_scale_ = find_bad_scale(first / 8, scales_);
  const int64_t n = block_width(m);
  const uint64_t expert_bytes = static_cast<uint64_t>(m.n * m.k / 2);
  for (uint64_t at = first; at < first + count;) {
    const uint64_t e = at / expert_bytes, end = std::min(first + count, (e + 1) * expert_bytes);
    const CodeBlocks blocks{&codes_[at - first], &scales_[(at - first) / 8],
                            static_cast<int64_t>(end - at) / (8 * n), n};
    dequantize_bf16(blocks, plan_.modules[tensor.module].multipliers[e], &out[4 * (at - first)]);
    at = end;
  }
}

void Deriver::convert_scalars(const OutputTensor& tensor, uint64_t begin, std::span<uint8_t> out) {
  const DType from = source_.tensors()[tensor.source].dtype;
  const auto width = [](DType dtype) { return static_cast<uint64_t>(dtype_bits(dtype)) / 8; };
  const uint64_t to_bytes = width(tensor.info.dtype), from_bytes = width(from);
  const uint64_t first = begin / to_bytes, count = out.size() / to_bytes;
  const auto bytes = read(tensor.source, first * from_bytes, count * from_bytes, codes_buffer_);
  for (uint64_t i = 0; i < count; ++i) {
    float value = scalar_to_float(from, &bytes[i * from_bytes]);
    if (tensor.op == Op::kReciprocal) {
      value = tensor.remembered_bits != 0 ? std::bit_cast<float>(tensor.remembered_bits) : 1.0f / value;
    }
    if (tensor.op == Op::kToBf16) {
      const uint16_t rounded = bf16_from_float(value);
      std::memcpy(&out[i * to_bytes], &rounded, sizeof(rounded));
    } else {
      std::memcpy(&out[i * to_bytes], &value, sizeof(value));
    }
  }
}

}  // namespace twofour
