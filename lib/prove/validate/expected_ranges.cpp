#include <algorithm>
#include <bit>

#include "formats/atom.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/half.h"
#include "lib/prove/expected/rederive.h"
#include "lib/write/methods/module_rewrite.h"
#include "lib/write/plan/tensor_rewrite.h"

// The expected ranges of tensors. There is one class for each way of rewriting a tensor.

namespace twofour {
namespace {

uint64_t width_of(DType dtype) { return static_cast<uint64_t>(dtype_bits(dtype)) / 8; }

/// A range of bytes of a tensor of the source.
class SourceBytes {
 public:
  SourceBytes(const Checkpoint& source, size_t tensor) : source_(source), tensor_(tensor) {}
  void load(uint64_t begin, uint64_t end) {
    first_ = begin;
    bytes_.resize(std::min(end, source_.tensors()[tensor_].bytes()) - begin);
    source_.read(tensor_, begin, bytes_);
  }
  uint8_t operator[](uint64_t i) const { return bytes_[i - first_]; }

 private:
  const Checkpoint& source_;
  size_t tensor_;
  uint64_t first_ = 0;
  std::vector<uint8_t> bytes_;
};

class ExpectedCopy : public ExpectedRange {
 public:
  ExpectedCopy(const Checkpoint& source, size_t tensor) : bytes_(source, tensor) {}
  void load(uint64_t begin, uint64_t end) override { bytes_.load(begin, end); }
  uint8_t byte_at(uint64_t i) const override { return bytes_[i]; }

 private:
  SourceBytes bytes_;
};

/// Codes after pruning, chunk by chunk. Chunks are consecutive along K. A quad of 2:4 has two bytes, and an
/// octet of 4:8-paired has four.
class ExpectedPruned : public ExpectedRange {
 public:
  ExpectedPruned(const Checkpoint& source, const Nvfp4Linear& m, bool pairs)
      : module_(m),
        pairs_(pairs),
        line_(m.k_outer ? static_cast<uint64_t>(m.n) : 1),
        codes_(source, m.codes),
        scales_(source, m.block_scale) {}

  void load(uint64_t begin, uint64_t end) override {
    // Sixteen inputs of some outputs occupy eight lines of codes and one line of scales.
    const uint64_t block = 8 * line_, first = begin / block, last = (end + block - 1) / block;
    codes_.load(first * block, last * block);
    scales_.load(first * line_, last * line_);
  }
  uint8_t byte_at(uint64_t i) const override {
    const Chunk chunk = chunk_at(i);
    return static_cast<uint8_t>(kept_of(chunk) >> 8 * chunk.place);
  }
  size_t expert_at(uint64_t i) const override {
    return static_cast<size_t>(i / static_cast<uint64_t>(module_.n * module_.k / 2));
  }
  unsigned zeros_at(uint64_t i) const override {
    return unsigned{(codes_[i] & 0x07) == 0} + unsigned{(codes_[i] & 0x70) == 0};
  }
  PruneStats stats_at(uint64_t i) const override {
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

 private:
  struct Chunk {
    uint32_t codes;
    int place, bytes;  ///< the place of a byte in the chunk, and the chunk's size in bytes
  };
  Chunk chunk_at(uint64_t i) const {
    const uint64_t line = i / line_, column = i % line_, lines = pairs_ ? 4 : 2;
    const uint64_t first = line / lines * lines;
    Chunk chunk{0, static_cast<int>(line - first), static_cast<int>(lines)};
    for (uint64_t j = 0; j < lines; ++j)
      chunk.codes |= uint32_t{codes_[(first + j) * line_ + column]} << 8 * j;
    return chunk;
  }
  uint32_t kept_of(const Chunk& chunk) const {
    return pairs_ ? mask_4_8(chunk.codes, select_4_8(chunk.codes)) : expand_2_4(select_2_4(chunk.codes));
  }

  const Nvfp4Linear& module_;
  bool pairs_;
  uint64_t line_;
  SourceBytes codes_, scales_;
};

class ExpectedWeights : public ExpectedRange {
 public:
  ExpectedWeights(const Checkpoint& source, const Nvfp4Linear& m, const std::vector<float>& multipliers)
      : module_(m),
        multipliers_(multipliers),
        line_(m.k_outer ? static_cast<uint64_t>(m.n) : 1),
        codes_(source, m.codes),
        scales_(source, m.block_scale) {}

  void load(uint64_t begin, uint64_t end) override {
    // Sixteen inputs of some outputs occupy sixteen lines of weights, eight lines of codes and one line of
    // scales.
    const uint64_t block = 32 * line_, first = begin / block, last = (end + block - 1) / block;
    codes_.load(first * 8 * line_, last * 8 * line_);
    scales_.load(first * line_, last * line_);
  }
  uint8_t byte_at(uint64_t at) const override {
    const uint64_t i = at / 2, line = i / line_, column = i % line_;
    const unsigned code = codes_[line / 2 * line_ + column] >> 4 * (line % 2) & 15u;
    const uint8_t scale = scales_[line / 16 * line_ + column];
    const auto e = static_cast<size_t>(i / static_cast<uint64_t>(module_.n * module_.k));
    const uint16_t bits = bf16_from_float(e2m1_to_float(code) * e4m3_to_float(scale) * multipliers_[e]);
    return static_cast<uint8_t>(bits >> 8 * (at % 2));
  }

 private:
  const Nvfp4Linear& module_;
  const std::vector<float>& multipliers_;
  uint64_t line_;
  SourceBytes codes_, scales_;
};

class ExpectedScalars : public ExpectedRange {
 public:
  ExpectedScalars(const Checkpoint& source, size_t tensor, DType from, DType to, bool reciprocal,
                  uint32_t remembered_bits)
      : bytes_(source, tensor), from_(from), to_(to), reciprocal_(reciprocal), remembered_(remembered_bits) {}

  void load(uint64_t begin, uint64_t end) override {
    const uint64_t to = width_of(to_), from = width_of(from_);
    bytes_.load(begin / to * from, (end + to - 1) / to * from);
  }
  uint8_t byte_at(uint64_t i) const override {
    const uint64_t width = width_of(to_);
    const float value = scalar_at(i / width);
    uint32_t bits = std::bit_cast<uint32_t>(value);
    if (reciprocal_) bits = remembered_ != 0 ? remembered_ : std::bit_cast<uint32_t>(1.0f / value);
    if (to_ == DType::kBF16) bits = bf16_from_float(value);
    if (to_ == DType::kF8E8M0) bits = bits >> 23;  // the exponent; it is 0 for the subnormal 2^-127
    return static_cast<uint8_t>(bits >> 8 * (i % width));
  }

 private:
  float scalar_at(uint64_t i) const {
    uint32_t bits = 0;
    for (uint64_t j = 0; j < width_of(from_); ++j) bits |= uint32_t{bytes_[i * width_of(from_) + j]} << 8 * j;
    if (from_ == DType::kF32) return std::bit_cast<float>(bits);
    if (width_of(from_) == 1) return e8m0_to_float(static_cast<uint8_t>(bits));
    const auto half = static_cast<uint16_t>(bits);
    return from_ == DType::kBF16 ? bf16_to_float(half) : fp16_to_float(half);
  }

  SourceBytes bytes_;
  DType from_, to_;
  bool reciprocal_;
  uint32_t remembered_;
};

/// BF16 weights of a linear in any format. They are derived some rows at a time, or one expert at a time if K
/// is the outer dimension.
class ExpectedWidened : public ExpectedRange {
 public:
  ExpectedWidened(const Checkpoint& source, const Linear& m) : source_(source), module_(m), reader_(source) {}

  void load(uint64_t begin, uint64_t end) override {
    first_ = begin / 2;
    weights_.clear();
    const auto k = static_cast<uint64_t>(module_.k), n = static_cast<uint64_t>(module_.n);
    for (uint64_t at = begin / 2; at < end / 2;) {
      const uint64_t e = at / (n * k), stop = std::min(end / 2, (e + 1) * n * k);
      const auto row = [&](uint64_t i) { return static_cast<int64_t>((i - e * n * k) / k); };
      const std::vector<float> some =
          derive_weights(source_, reader_, module_, static_cast<int64_t>(e), row(at), row(stop));
      weights_.insert(weights_.end(), some.begin(), some.end());
      at = stop;
    }
    hasher_.update({reinterpret_cast<const uint8_t*>(weights_.data()), weights_.size() * sizeof(float)});
  }
  uint8_t byte_at(uint64_t at) const override {
    uint64_t i = at / 2 - first_;
    if (module_.k_outer) {
      const auto n = static_cast<uint64_t>(module_.n), k = static_cast<uint64_t>(module_.k);
      const uint64_t within = i % (n * k);
      i += within % n * k + within / n - within;
    }
    return static_cast<uint8_t>(bf16_from_float(weights_[i]) >> 8 * (at % 2));
  }
  std::string source_hash() override { return hasher_.digest().hex(); }

 private:
  const Checkpoint& source_;
  const Linear& module_;
  WeightReader reader_;
  uint64_t first_ = 0;
  std::vector<float> weights_;
  Hasher hasher_;
};

class ExpectedConstant : public ExpectedRange {
 public:
  explicit ExpectedConstant(float value) : bits_(std::bit_cast<uint32_t>(value)) {}
  void load(uint64_t, uint64_t) override {}
  uint8_t byte_at(uint64_t i) const override { return static_cast<uint8_t>(bits_ >> 8 * i); }

 private:
  uint32_t bits_;
};

class ExpectedRows : public ExpectedRange {
 public:
  ExpectedRows(const Checkpoint& source, size_t tensor, uint64_t row_bytes, uint64_t first, uint64_t step)
      : bytes_(source, tensor), row_bytes_(row_bytes), first_(first), step_(step) {}
  void load(uint64_t begin, uint64_t end) override { bytes_.load(place(begin), place(end - 1) + 1); }
  uint8_t byte_at(uint64_t i) const override { return bytes_[place(i)]; }

 private:
  uint64_t place(uint64_t i) const { return first_ + i / row_bytes_ * step_ + i % row_bytes_; }

  SourceBytes bytes_;
  uint64_t row_bytes_, first_, step_;
};

}  // namespace

std::unique_ptr<ExpectedRange> CopiedTensor::expect(const Checkpoint& source) const {
  return std::make_unique<ExpectedCopy>(source, tensor_);
}

std::unique_ptr<ExpectedRange> PrunedCodes::expect(const Checkpoint& source) const {
  return std::make_unique<ExpectedPruned>(source, module_, pattern_ == PrunePattern::k4of8Paired);
}

std::unique_ptr<ExpectedRange> DequantizedWeights::expect(const Checkpoint& source) const {
  return std::make_unique<ExpectedWeights>(source, module_, multipliers_);
}

std::unique_ptr<ExpectedRange> ConvertedScalars::expect(const Checkpoint& source) const {
  return std::make_unique<ExpectedScalars>(source, tensor_, from_, to_, reciprocal_, remembered_bits_);
}

std::unique_ptr<ExpectedRange> ConstantScalar::expect(const Checkpoint&) const {
  return std::make_unique<ExpectedConstant>(value_);
}

std::unique_ptr<ExpectedRange> WidenedWeights::expect(const Checkpoint& source) const {
  return std::make_unique<ExpectedWidened>(source, module_);
}

std::unique_ptr<ExpectedRange> GatheredRows::expect(const Checkpoint& source) const {
  return std::make_unique<ExpectedRows>(source, tensor_, row_bytes_, first_, step_);
}

}  // namespace twofour
