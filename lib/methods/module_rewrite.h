#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lib/plan/tensor_rewrite.h"
#include "lib/plan/transformation.h"

namespace twofour {

/// An NVFP4 module that stays a module under the model's own names: pruned, in another dialect or in BF16,
/// tensor by tensor.
class ModuleRewrite : public Transformation {
 public:
  struct Part {
    TensorInfo info;
    size_t source;  ///< tensor of the source that it is made from, first of all
    std::unique_ptr<const TensorRewrite> rewrite;
    bool changes = false;  ///< it is more than a copy, for --dry-run
  };
  struct Scales {
    std::vector<uint32_t> raw_bits;  ///< float32 bits of the global scales, one or one an expert
    std::vector<float> multipliers;  ///< one an expert
    uint32_t input_scale_bits = 0;   ///< of the input scale, where it becomes its reciprocal
  };

  /// `becomes` is the rule's `to`. `prunes`: part 0 are pruned codes. `tolerance`: as value_tolerance().
  ModuleRewrite(const Nvfp4Linear& module, std::string becomes, Scales scales, bool prunes,
                std::optional<double> tolerance);
  /// Adds part after part; part 0 is made from the codes.
  void add(Part part) { parts_.push_back(std::move(part)); }
  /// A tensor of the source that goes into part 0 or is dropped.
  void consume(size_t tensor) { consumed_.push_back(tensor); }
  const Scales& scales() const { return scales_; }
  const Nvfp4Linear& module() const { return module_; }
  const std::vector<Part>& parts() const { return parts_; }
  /// Whether part 0 holds the weights in BF16.
  bool dequantizes() const { return becomes_ == "bf16"; }
  /// Whether a tensor of the source is written byte for byte.
  bool passes(size_t tensor) const;

  std::string name(const Checkpoint&) const override { return module_.name; }
  std::vector<TensorInfo> outputs(const Checkpoint& source) const override;
  std::vector<size_t> sources() const override;
  std::vector<Unit> units(const Checkpoint& source) const override;
  uint64_t worker_bytes() const override;
  std::string decision(int part) const override;
  std::string origin(const Checkpoint& source, int part) const override;
  std::unique_ptr<Work> begin() const override;
  Json prove(Proof& proof) const override;
  Json empty_result() const override;
  void check_result(const Json& result) const override;
  Json entries(const Checkpoint& source, const Json& result, const std::vector<Json>& tensors) const override;
  std::string content(const Json& result, std::span<const Hash128> outputs) const override;
  std::vector<StoredScale> stored_scales() const override;
  std::vector<ModuleReport> report(const Checkpoint& source, const Json& result) const override;
  bool value_comparison() const override { return true; }
  std::optional<double> value_tolerance() const override { return tolerance_; }

 private:
  const Nvfp4Linear& module_;
  std::string becomes_;
  Scales scales_;
  bool prunes_;
  std::optional<double> tolerance_;
  std::vector<Part> parts_;
  std::vector<size_t> consumed_;
};

/// A tensor outside any module that changes its type: KV scales.
class ConvertedTensor : public Transformation {
 public:
  ConvertedTensor(size_t tensor, TensorInfo info, DType from);

  std::string name(const Checkpoint& source) const override;
  std::vector<TensorInfo> outputs(const Checkpoint&) const override { return {info_}; }
  std::vector<size_t> sources() const override { return {tensor_}; }
  std::vector<Unit> units(const Checkpoint& source) const override;
  bool keeps() const override { return true; }
  std::string decision(int) const override { return "cast"; }
  std::string origin(const Checkpoint& source, int part) const override;
  std::unique_ptr<Work> begin() const override;
  Json prove(Proof& proof) const override;
  Json entries(const Checkpoint& source, const Json& result, const std::vector<Json>& tensors) const override;
  std::string content(const Json& result, std::span<const Hash128> outputs) const override;

 private:
  size_t tensor_;
  TensorInfo info_;
  ConvertedScalars rewrite_;
};

}  // namespace twofour
