#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lib/recipe/selection/input_scales.h"
#include "lib/source/linears/linears.h"
#include "lib/write/plan/tensor_rewrite.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// A module that stays a module with the model's own names. It is rewritten tensor by tensor.
class PartedRewrite : public Transformation {
 public:
  struct Part {
    TensorInfo info;
    size_t source;  ///< the main tensor of the source from which it is made
    std::unique_ptr<const TensorRewrite> rewrite;
    bool changes = false;  ///< it is more than a copy; for --dry-run
  };
  /// `becomes` is the value of Rule::to. `tolerance` is as in ValueComparison.
  PartedRewrite(std::string becomes, std::optional<double> tolerance)
      : becomes_(std::move(becomes)), tolerance_(tolerance) {
    set_rule("belongs to a module to convert");
  }
  /// Adds the next part.
  void add(Part part) { parts_.push_back(std::move(part)); }
  /// Adds a tensor of the source that part 0 is made from, or that is dropped.
  void consume(size_t tensor) { consumed_.push_back(tensor); }
  bool drop(size_t tensor) override {
    consume(tensor);
    return true;
  }
  const std::vector<Part>& parts() const { return parts_; }
  const std::string& becomes() const { return becomes_; }
  /// True if a tensor of the source is written unchanged, byte for byte.
  bool passes(size_t tensor) const;
  /// True if a tensor of the source is written with another type.
  bool converts(const Checkpoint& source, size_t tensor) const;

  std::vector<TensorInfo> outputs(const Checkpoint& source) const override;
  std::vector<size_t> sources() const override;
  std::vector<Unit> units(const Checkpoint& source) const override;
  uint64_t worker_bytes() const override;
  std::string decision(int part) const override;
  std::string origin(const Checkpoint& source, int part) const override;
  std::optional<ValueComparison> value_comparison() const override { return ValueComparison{tolerance_}; }

 protected:
  /// The entries of the parts. They have the names of the source's tensors if these differ.
  Json part_entries(const Checkpoint& source, const std::vector<Json>& tensors) const;

 private:
  std::string becomes_;
  std::optional<double> tolerance_;
  std::vector<Part> parts_;
  std::vector<size_t> consumed_;
};

/// The choice of a rule for the input scale of a module. `rule` is null if there is no choice.
struct InputScaleChoice {
  std::shared_ptr<const InputScaleRule> rule = {};
  ChosenInputScale scale = {};
};

/// An NVFP4 module that is pruned, written in another dialect, or widened to BF16. Part 0 is made from the
/// codes.
class ModuleRewrite : public PartedRewrite {
 public:
  struct Scales {
    std::vector<uint32_t> raw_bits;  ///< float32 bits of the global scales: one for the module, or one per
                                     ///< expert
    std::vector<float> multipliers;  ///< one for each expert
    uint32_t input_scale_bits = 0;   ///< bits of the input scale if it is replaced, otherwise 0
  };

  /// `prunes` is true if part 0 holds pruned codes.
  ModuleRewrite(const Nvfp4Linear& module, std::string becomes, Scales scales, bool prunes,
                std::optional<double> tolerance);
  /// Sets the input scale that a rule chose. `part` is the part that holds it, or -1 if there is none.
  void choose_input_scale(InputScaleChoice choice, int part) {
    input_scale_ = std::move(choice);
    input_scale_part_ = part;
  }
  const Scales& scales() const { return scales_; }
  const Nvfp4Linear& module() const { return module_; }
  /// True if part 0 holds the weights in BF16.
  bool dequantizes() const { return becomes() == "bf16"; }

  std::string name(const Checkpoint&) const override { return module_.name; }
  std::unique_ptr<Work> begin() const override;
  Json prove(Proof& proof) const override;
  Json empty_result() const override;
  void check_result(const Json& result) const override;
  Json entries(const Checkpoint& source, const Json& result, const std::vector<Json>& tensors) const override;
  std::string content(const Json& result, std::span<const Hash128> outputs) const override;
  std::vector<StoredScale> stored_scales() const override;
  std::vector<ModuleReport> report(const Checkpoint& source, const Json& result) const override;

 private:
  void prove_input_scale(Proof& proof) const;

  const Nvfp4Linear& module_;
  Scales scales_;
  bool prunes_;
  InputScaleChoice input_scale_;
  int input_scale_part_ = -1;
};

/// A linear in a format other than NVFP4, written in a dialect's spelling or as BF16.
class LinearRewrite : public PartedRewrite {
 public:
  LinearRewrite(Linear module, std::string becomes, std::optional<double> tolerance)
      : PartedRewrite(std::move(becomes), tolerance), module_(std::move(module)) {}
  const Linear& module() const { return module_; }
  /// True if part 0 holds the weights in BF16. The result is then the hash of the source's weights in
  /// float32.
  bool widens() const { return becomes() == "bf16"; }

  std::string name(const Checkpoint&) const override { return module_.name; }
  std::unique_ptr<Work> begin() const override;
  Json prove(Proof& proof) const override;
  Json empty_result() const override;
  void check_result(const Json& result) const override;
  Json entries(const Checkpoint& source, const Json& result, const std::vector<Json>& tensors) const override;
  std::string content(const Json& result, std::span<const Hash128> outputs) const override;
  std::vector<ModuleReport> report(const Checkpoint& source, const Json& result) const override;

 private:
  Linear module_;
};

/// The weights of a linear in any format as BF16. They are computed in float32, with each product rounded
/// once, and then rounded to the nearest BF16, ties to even.
class WidenedWeights : public TensorRewrite {
 public:
  explicit WidenedWeights(const Linear& module) : module_(module) {}
  uint64_t grain() const override;
  uint64_t read_bytes(uint64_t bytes) const override;
  void make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
            RangeResult& result) const override;
  std::unique_ptr<ExpectedRange> expect(const Checkpoint& source) const override;

 private:
  Linear module_;
};

/// A copy of some rows of one expert of a stack, byte for byte.
class GatheredRows : public TensorRewrite {
 public:
  /// Row i consists of `row_bytes` bytes of the tensor, from byte `first + i * step` on.
  GatheredRows(size_t tensor, uint64_t row_bytes, uint64_t first, uint64_t step)
      : tensor_(tensor), row_bytes_(row_bytes), first_(first), step_(step) {}
  uint64_t grain() const override { return row_bytes_; }
  uint64_t read_bytes(uint64_t bytes) const override { return bytes; }
  void make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
            RangeResult& result) const override;
  std::unique_ptr<ExpectedRange> expect(const Checkpoint& source) const override;

 private:
  size_t tensor_;
  uint64_t row_bytes_, first_, step_;
};

}  // namespace twofour
