#include "lib/rederive_rewrite.h"

#include <bit>

#include "formats/atom.h"
#include "formats/e4m3.h"
#include "formats/half.h"

namespace twofour {
namespace {

uint64_t width_of(DType dtype) { return static_cast<uint64_t>(dtype_bits(dtype)) / 8; }

}  // namespace

SlowDeriver::SlowDeriver(const Checkpoint& source, const Plan& plan, const OutputTensor& tensor)
    : source_(source), tensor_(tensor), pairs_(plan.recipe.pattern == "4:8-paired") {
  if (tensor.module == OutputTensor::kNoModule) return;
  plan_ = &plan.modules[tensor.module];
  module_ = &source.nvfp4_modules()[plan_->module];
  if (module_->k_outer) line_ = static_cast<uint64_t>(module_->n);
}

void SlowDeriver::load(Window& window, size_t tensor, uint64_t begin, uint64_t end) {
  window.first = begin;
  window.bytes.resize(std::min(end, source_.tensors()[tensor].bytes()) - begin);
  source_.read(tensor, begin, window.bytes);
}

void SlowDeriver::load(uint64_t begin, uint64_t end) {
  switch (tensor_.op) {
    case Op::kPrune: {
      // Sixteen inputs of some outputs are eight lines of codes and one of scales.
      const uint64_t block = 8 * line_, first = begin / block, last = (end + block - 1) / block;
      load(main_, module_->codes, first * block, last * block);
      load(scales_, module_->block_scale, first * line_, last * line_);
      return;
    }
    case Op::kDequantize: {
      // Sixteen inputs of some outputs are sixteen lines of weights, eight of codes and one of scales.
      const uint64_t block = 32 * line_, first = begin / block, last = (end + block - 1) / block;
      load(main_, module_->codes, first * 8 * line_, last * 8 * line_);
      load(scales_, module_->block_scale, first * line_, last * line_);
      return;
    }
    case Op::kReciprocal:
    case Op::kToF32:
    case Op::kToBf16:
      return load(main_, tensor_.source, 0, source_.tensors()[tensor_.source].bytes());
    default:
      return load(main_, tensor_.source, begin, end);
  }
}

SlowDeriver::Chunk SlowDeriver::chunk_at(uint64_t i) const {
  const uint64_t line = i / line_, column = i % line_, lines = pairs_ ? 4 : 2;
  const uint64_t first = line / lines * lines;
  Chunk chunk{0, static_cast<int>(line - first), static_cast<int>(lines)};
  for (uint64_t j = 0; j < lines; ++j) chunk.codes |= uint32_t{main_[(first + j) * line_ + column]} << 8 * j;
  return chunk;
}

uint32_t SlowDeriver::kept_of(const Chunk& chunk) const {
  return pairs_ ? mask_4_8(chunk.codes, select_4_8(chunk.codes)) : expand_2_4(select_2_4(chunk.codes));
}

float SlowDeriver::scalar_at(uint64_t i) const {
  const DType dtype = source_.tensors()[tensor_.source].dtype;
  uint32_t bits = 0;
  for (uint64_t j = 0; j < width_of(dtype); ++j) bits |= uint32_t{main_[i * width_of(dtype) + j]} << 8 * j;
  if (dtype == DType::kF32) return std::bit_cast<float>(bits);
  const auto half = static_cast<uint16_t>(bits);
  return dtype == DType::kBF16 ? bf16_to_float(half) : fp16_to_float(half);
}

uint16_t SlowDeriver::weight_at(uint64_t i) const {
  const uint64_t line = i / line_, column = i % line_;
  const unsigned code = main_[line / 2 * line_ + column] >> 4 * (line % 2) & 15u;
  const uint8_t scale = scales_[line / 16 * line_ + column];
  const auto e = static_cast<size_t>(i / static_cast<uint64_t>(module_->n * module_->k));
  return bf16_from_float(e2m1_to_float(code) * e4m3_to_float(scale) * plan_->multipliers[e]);
}

uint8_t SlowDeriver::byte_at(uint64_t i) const {
  const uint64_t width = width_of(tensor_.info.dtype);
  uint32_t bits = 0;
  switch (tensor_.op) {
    case Op::kPrune: {
      const Chunk chunk = chunk_at(i);
      return static_cast<uint8_t>(kept_of(chunk) >> 8 * chunk.place);
    }
    case Op::kDequantize:
      bits = weight_at(i / width);
      break;
    case Op::kReciprocal:
      bits = tensor_.remembered_bits;
      if (bits == 0) bits = std::bit_cast<uint32_t>(1.0f / scalar_at(i / width));
      break;
    case Op::kToF32:
      bits = std::bit_cast<uint32_t>(scalar_at(i / width));
      break;
    case Op::kToBf16:
      bits = bf16_from_float(scalar_at(i / width));
      break;
    default:
      return main_[i];
  }
  return static_cast<uint8_t>(bits >> 8 * (i % width));
}

PruneStats SlowDeriver::stats_at(uint64_t i) const {
  const Chunk chunk = chunk_at(i);
  PruneStats stats;
  if (chunk.place != 0) return stats;
  const uint32_t kept = kept_of(chunk);
  const uint64_t units = e4m3_units(scales_[i / line_ / 8 * line_ + i % line_]);
  uint64_t all = 0, left = 0;
  for (int k = 0; k < 2 * chunk.bytes; ++k) {
    const auto a = static_cast<uint64_t>(e2m1_halves((chunk.codes >> 4 * k) & 15u));
    const auto b = static_cast<uint64_t>(e2m1_halves((kept >> 4 * k) & 15u));
    all += a * a;
    left += b * b;
  }
  stats.quads = 1;
  stats.tied = pairs_ ? is_tied_4_8(chunk.codes) : is_tied_2_4(chunk.codes);
  stats.energy = static_cast<unsigned __int128>(units * units) * all;
  stats.kept_energy = static_cast<unsigned __int128>(units * units) * left;
  return stats;
}

unsigned SlowDeriver::zeros_at(uint64_t i) const {
  return unsigned{(main_[i] & 0x07) == 0} + unsigned{(main_[i] & 0x70) == 0};
}

size_t SlowDeriver::expert_at(uint64_t i) const {
  return static_cast<size_t>(i / static_cast<uint64_t>(module_->n * module_->k / 2));
}

}  // namespace twofour
