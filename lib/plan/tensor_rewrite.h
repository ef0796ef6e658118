#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/dialect.h"
#include "kernels/pack/prune.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/plan/transformation.h"

namespace twofour {

/// Bytes of a tensor that are copied or rewritten at once, about.
inline constexpr uint64_t kRewriteStep = 4u << 20;

/// What making one range of a tensor showed.
struct RangeResult {
  std::vector<uint8_t> buffers[2];    ///< what the spans refer to; kept from range to range
  std::span<const uint8_t> codes{};   ///< codes of the source that became something else
  std::span<const uint8_t> scales{};  ///< block scales likewise
  uint64_t read = 0;                  ///< bytes of the source
  std::optional<BadScale> bad_scale{};
  struct ExpertStats {
    int64_t e;
    PruneStats stats;
  };
  std::vector<ExpertStats> stats{};  ///< of pruning
};

/// A range of a tensor as it must be, derived byte by byte and by no code of TensorRewrite::make().
class ExpectedRange {
 public:
  virtual ~ExpectedRange() = default;
  /// Reads what bytes [begin, end) come from.
  virtual void load(uint64_t begin, uint64_t end) = 0;
  /// A byte of the last range that was loaded. Safe from several threads.
  virtual uint8_t byte_at(uint64_t i) const = 0;
  /// Of pruning: the expert of a byte, its codes of magnitude 0, and the figures of the chunk that begins
  /// with it, else none.
  virtual size_t expert_at(uint64_t) const { return 0; }
  virtual unsigned zeros_at(uint64_t) const { return 0; }
  virtual PruneStats stats_at(uint64_t) const { return {}; }
  /// The hash of what all ranges came from, loaded one after the other, where twofour.json has it.
  virtual std::string source_hash() { return {}; }
};

/// How any range of one tensor comes from the source, by bounded reads.
class TensorRewrite {
 public:
  virtual ~TensorRewrite() = default;
  /// Bytes that only come together: a range begins at a multiple of them and ends at one or with the tensor.
  virtual uint64_t grain() const { return 4; }
  /// Bytes of the source that `bytes` of the tensor are made from.
  virtual uint64_t read_bytes(uint64_t bytes) const = 0;
  /// Fills `out` with bytes [begin, begin + out.size()).
  virtual void make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
                    RangeResult& result) const = 0;
  virtual std::unique_ptr<ExpectedRange> expect(const Checkpoint& source) const = 0;

  /// Bytes of a range: about kRewriteStep, a multiple of the grain.
  uint64_t step() const { return std::max<uint64_t>(1, kRewriteStep / grain()) * grain(); }
  /// The units of a part of so many bytes.
  std::vector<Unit> units(int part, uint64_t bytes) const;
};

/// Byte for byte; block scales are refused where they are not valid.
class CopiedTensor : public TensorRewrite {
 public:
  CopiedTensor(size_t tensor, bool is_block_scale) : tensor_(tensor), is_block_scale_(is_block_scale) {}
  uint64_t read_bytes(uint64_t bytes) const override { return bytes; }
  void make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
            RangeResult& result) const override;
  std::unique_ptr<ExpectedRange> expect(const Checkpoint& source) const override;

 private:
  size_t tensor_;
  bool is_block_scale_;
};

/// Codes by a sparsity pattern: those that are dropped become 0x0.
class PrunedCodes : public TensorRewrite {
 public:
  PrunedCodes(const Nvfp4Linear& module, PrunePattern pattern) : module_(module), pattern_(pattern) {}
  uint64_t grain() const override;
  uint64_t read_bytes(uint64_t bytes) const override { return bytes + bytes / 8; }
  void make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
            RangeResult& result) const override;
  std::unique_ptr<ExpectedRange> expect(const Checkpoint& source) const override;

 private:
  const Nvfp4Linear& module_;
  PrunePattern pattern_;
};

/// Weights in BF16.
class DequantizedWeights : public TensorRewrite {
 public:
  /// `multipliers` has a global scale an expert and outlives this.
  DequantizedWeights(const Nvfp4Linear& module, const std::vector<float>& multipliers)
      : module_(module), multipliers_(multipliers) {}
  uint64_t grain() const override;
  uint64_t read_bytes(uint64_t bytes) const override { return bytes / 4 + bytes / 32; }
  void make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
            RangeResult& result) const override;
  std::unique_ptr<ExpectedRange> expect(const Checkpoint& source) const override;

 private:
  const Nvfp4Linear& module_;
  const std::vector<float>& multipliers_;
};

/// Scalars in F32, BF16, F16 or E8M0 (U8 too) as F32 or BF16, or powers of two as E8M0; or, with
/// `reciprocal`, 1/x as F32.
class ConvertedScalars : public TensorRewrite {
 public:
  /// `remembered_bits`: of the float32 that the source is the reciprocal of and was made from; 0: not known.
  ConvertedScalars(size_t tensor, DType from, DType to, bool reciprocal, uint32_t remembered_bits = 0)
      : tensor_(tensor), from_(from), to_(to), reciprocal_(reciprocal), remembered_bits_(remembered_bits) {}
  uint64_t read_bytes(uint64_t bytes) const override;
  void make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
            RangeResult& result) const override;
  std::unique_ptr<ExpectedRange> expect(const Checkpoint& source) const override;

 private:
  size_t tensor_;
  DType from_, to_;
  bool reciprocal_;
  uint32_t remembered_bits_;
};

/// A float32 that the source lacks.
class ConstantScalar : public TensorRewrite {
 public:
  explicit ConstantScalar(float value) : value_(value) {}
  uint64_t read_bytes(uint64_t) const override { return 0; }
  void make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
            RangeResult& result) const override;
  std::unique_ptr<ExpectedRange> expect(const Checkpoint& source) const override;

 private:
  float value_;
};

/// A tensor outside of any module that changes: byte for byte what it is, block scales being looked at as
/// they pass, or in another type, as KV scales are.
class KeptTensor : public Transformation {
 public:
  KeptTensor(size_t tensor, bool is_block_scale);
  KeptTensor(size_t tensor, TensorInfo as, DType from);

  std::string name(const Checkpoint& source) const override {
    return cast_ ? cast_->info.name : source.tensors()[tensor_].name;
  }
  std::vector<TensorInfo> outputs(const Checkpoint& source) const override;
  std::vector<size_t> sources() const override { return {tensor_}; }
  std::vector<Unit> units(const Checkpoint& source) const override;
  bool keeps() const override { return true; }
  std::string decision(int) const override { return cast_ ? "cast" : "copy"; }
  std::string origin(const Checkpoint& source, int part) const override;
  std::unique_ptr<Work> begin() const override;
  Json prove(Proof& proof) const override;
  Json entries(const Checkpoint& source, const Json& result, const std::vector<Json>& tensors) const override;
  std::string content(const Json& result, std::span<const Hash128> outputs) const override;
  /// How it gets its type; nullptr where it keeps it.
  const TensorRewrite* cast() const { return cast_ ? &cast_->rewrite : nullptr; }

 private:
  struct Cast {
    TensorInfo info;
    ConvertedScalars rewrite;
  };
  size_t tensor_;
  bool is_block_scale_ = false;
  std::unique_ptr<const Cast> cast_;
};

/// The entry of a tensor that is written, with the name that it was made from where that is another.
Json with_origin(const Checkpoint& source, size_t from, Json tensor);

}  // namespace twofour
