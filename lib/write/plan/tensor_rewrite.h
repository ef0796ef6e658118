#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/dialect.h"
#include "kernels/pack/prune.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// The approximate number of bytes of a tensor that are copied or rewritten in one go.
inline constexpr uint64_t kRewriteStep = 4u << 20;

/// The result of making one range of a tensor.
struct RangeResult {
  std::vector<uint8_t> buffers[2];    ///< memory that the spans refer to; each range reuses it
  std::span<const uint8_t> codes{};   ///< codes of the source that were converted
  std::span<const uint8_t> scales{};  ///< block scales of the source that were converted
  uint64_t read = 0;                  ///< number of bytes read from the source
  std::optional<BadScale> bad_scale{};
  struct ExpertStats {
    int64_t e;
    PruneStats stats;
  };
  std::vector<ExpertStats> stats{};  ///< statistics of pruning, for each expert
};

/// The expected bytes of a range of a tensor. They are derived byte by byte, without code of
/// TensorRewrite::make().
class ExpectedRange {
 public:
  virtual ~ExpectedRange() = default;
  /// Reads the part of the source from which bytes [begin, end) are made.
  virtual void load(uint64_t begin, uint64_t end) = 0;
  /// Returns byte i of the tensor, in the last range that was loaded. Safe to call from several threads.
  virtual uint8_t byte_at(uint64_t i) const = 0;
  /// These three functions are for pruning. They return the expert of byte i, the number of its codes with
  /// magnitude 0, and the figures of the chunk that begins with it. The figures are zero if no chunk begins
  /// there.
  virtual size_t expert_at(uint64_t) const { return 0; }
  virtual unsigned zeros_at(uint64_t) const { return 0; }
  virtual PruneStats stats_at(uint64_t) const { return {}; }
  /// The hash of the source of all ranges, which were loaded one after the other. Empty if twofour.json has
  /// no such hash.
  virtual std::string source_hash() { return {}; }
};

/// Makes any range of one tensor from the source, by bounded reads.
class TensorRewrite {
 public:
  virtual ~TensorRewrite() = default;
  /// The number of bytes that are made together. A range begins at a multiple of it, and ends at a multiple
  /// of it or at the end of the tensor.
  virtual uint64_t grain() const { return 4; }
  /// The number of bytes of the source from which `bytes` bytes of the tensor are made.
  virtual uint64_t read_bytes(uint64_t bytes) const = 0;
  /// Makes bytes [begin, begin + out.size()) of the tensor in `out`.
  virtual void make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
                    RangeResult& result) const = 0;
  virtual std::unique_ptr<ExpectedRange> expect(const Checkpoint& source) const = 0;

  /// The size of a range in bytes. It is a multiple of grain(), about kRewriteStep.
  uint64_t step() const { return std::max<uint64_t>(1, kRewriteStep / grain()) * grain(); }
  /// The units of work for a part that has `bytes` bytes.
  std::vector<Unit> units(int part, uint64_t bytes) const;
};

/// A copy, byte for byte. Invalid block scales are refused.
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

/// Codes that are pruned by a sparsity pattern. Dropped codes become 0x0.
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
  /// `multipliers` has one global scale per expert and must outlive this object.
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

/// Scalars that are converted to another type. F32, BF16, F16 and E8M0 (also as U8) become F32 or BF16.
/// Powers of two may also become E8M0. With `reciprocal`, F32 values become 1/x.
class ConvertedScalars : public TensorRewrite {
 public:
  /// `remembered_bits` are the bits of the float32 whose reciprocal the source stores. 0 if they are not
  /// known.
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

/// A float32 constant that the source does not store.
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

/// A tensor outside of all modules that change. It is copied byte for byte, with a check of block scales, or
/// it is converted to another type, as KV scales are.
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
  /// The conversion to another type. Null if the type stays.
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

/// The entry of a tensor that is written. It has the name of the source's tensor if that differs.
Json with_origin(const Checkpoint& source, size_t from, Json tensor);

}  // namespace twofour
