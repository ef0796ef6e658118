#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/dtype.h"
#include "formats/weight_dialect.h"
#include "kernels/numbers/nvfp4_choices.h"
#include "kernels/pack/prune.h"
#include "lib/recipe/settings/chosen.h"
#include "lib/recipe/statistics/solving.h"

/// The values of rule settings. Only this code compares the words for them, except for the proof, which has
/// its own code for that.

namespace twofour {

/// The size of a block of weights that share an FP8 scale, in rows (outputs) and columns (inputs).
struct WeightBlock {
  int64_t rows, cols;
  bool operator==(const WeightBlock&) const = default;
};

/// The treatment of quantized sources. With kBest, the new format preserves values if it can. With kStrict,
/// every value must be preserved. With kOff, values are quantized as floats.
enum class Exact { kBest, kStrict, kOff };

/// The treatment of linears whose N or K is not a multiple of the FP8 block. With kRefuse, they are errors.
/// With kKeep, they stay. With kWrite, they are written like DeepSeek's, for loaders that accept them.
enum class OddBlocks { kRefuse, kKeep, kWrite };

/// The treatment of different global scales of gate and up. With kLarger, they are folded to the larger, and
/// harm is an error. With kStrict, different scales are an error. With kAny, they are folded at any cost.
enum class Fold { kLarger, kStrict, kAny };

/// The treatment of routed experts in layers that predict further tokens. With kKeep, they stay as they are.
/// With kCast, they are chosen like other experts. By default, a name can choose them, but the role of
/// experts does not.
enum class DraftExperts { kKeep, kCast };

template <>
inline constexpr auto kNamedValues<PrunePattern> = std::to_array<NamedValue<PrunePattern>>(
    {{"2:4", PrunePattern::k2of4}, {"4:8-paired", PrunePattern::k4of8Paired}});
template <>
inline constexpr auto kNamedValues<Granularity> = std::to_array<NamedValue<Granularity>>(
    {{"tensor", Granularity::kTensor}, {"row", Granularity::kRow}, {"block", Granularity::kBlock}});
template <>
inline constexpr auto kNamedValues<WeightBlock> = std::to_array<NamedValue<WeightBlock>>(
    {{"128x128", {128, 128}}, {"32x32", {32, 32}}, {"1x128", {1, 128}}});
/// The words for types of FP8 scales.
template <>
inline constexpr auto kNamedValues<DType> = std::to_array<NamedValue<DType>>({{"f32", DType::kF32},
                                                                              {"bf16", DType::kBF16},
                                                                              {"e8m0", DType::kF8E8M0}});
template <>
inline constexpr auto kNamedValues<OddBlocks> = std::to_array<NamedValue<OddBlocks>>(
    {{"refuse", OddBlocks::kRefuse}, {"keep", OddBlocks::kKeep}, {"write", OddBlocks::kWrite}});
template <>
inline constexpr auto kNamedValues<Exact> = std::to_array<NamedValue<Exact>>({{"best", Exact::kBest},
                                                                              {"strict", Exact::kStrict},
                                                                              {"off", Exact::kOff}});
template <>
inline constexpr auto kNamedValues<Arithmetic> = std::to_array<NamedValue<Arithmetic>>(
    {{"modelopt", Arithmetic::modelopt}, {"compressed-tensors", Arithmetic::compressed_tensors}});
template <>
inline constexpr auto kNamedValues<BlockScale> = std::to_array<NamedValue<BlockScale>>(
    {{"max", BlockScale::max}, {"mse", BlockScale::mse}, {"four-over-six", BlockScale::four_over_six}});
template <>
inline constexpr auto kNamedValues<ZeroBlock> =
    std::to_array<NamedValue<ZeroBlock>>({{"producer", ZeroBlock::producer}, {"zero", ZeroBlock::zero}});
template <>
inline constexpr auto kNamedValues<SolveBy> =
    std::to_array<NamedValue<SolveBy>>({{"joint", SolveBy::kJoint},
                                        {"gptq", SolveBy::kGptq},
                                        {"wanda", SolveBy::kWanda},
                                        {"rtn", SolveBy::kRtn},
                                        {"magnitude", SolveBy::kMagnitude},
                                        {"sparsegpt", SolveBy::kSparseGpt}});
template <>
inline constexpr auto kNamedValues<Fold> = std::to_array<NamedValue<Fold>>({{"larger", Fold::kLarger},
                                                                            {"strict", Fold::kStrict},
                                                                            {"any", Fold::kAny}});
template <>
inline constexpr auto kNamedValues<DraftExperts> =
    std::to_array<NamedValue<DraftExperts>>({{"keep", DraftExperts::kKeep}, {"cast", DraftExperts::kCast}});

/// The source of input scales: "keep", "none", "constant", "constant=0.5", "neighbours" or "from FILE". "from
/// FILE" becomes "given" when the file has been read.
class InputScale {
 public:
  enum class Kind { kUnset, kKeep, kNone, kConstant, kNeighbours, kFile, kGiven };
  InputScale() = default;
  /// Parses one of the words above. An empty word leaves the setting unset. Throws Error on other words.
  template <std::convertible_to<std::string_view> Word>
  InputScale(const Word& text) {  // NOLINT: a word stands for its value
    read(text);
  }
  /// Parses one of the words above. Empty for other words.
  static std::optional<InputScale> parse(std::string_view word);
  /// The expected values, for a message about an unknown word.
  static std::string expected(std::string_view word);

  Kind kind() const { return kind_; }
  bool empty() const { return kind_ == Kind::kUnset; }
  float constant() const { return constant_; }  ///< the multiplier of a constant
  /// The FILE of "from FILE".
  std::string file() const;
  /// The text as it was written.
  const std::string& text() const { return text_; }
  bool operator==(const InputScale&) const = default;

 private:
  void read(std::string_view word);

  Kind kind_ = Kind::kUnset;
  float constant_ = 1;
  std::string text_;
};

}  // namespace twofour
