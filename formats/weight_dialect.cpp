#include "formats/weight_dialect.h"

namespace twofour {
namespace {

constexpr WeightFormat kFloat = WeightFormat::kFloat, kFp8 = WeightFormat::kFp8,
                       kMxfp4 = WeightFormat::kMxfp4, kMxfp6 = WeightFormat::kMxfp6,
                       kNvfp4Bs32 = WeightFormat::kNvfp4Bs32, kInt4 = WeightFormat::kInt4;
constexpr DTypes kNone{}, kFloats{DType::kBF16, DType::kF16, DType::kF32}, kF8{DType::kF8E4M3},
    kU8{DType::kU8}, kI8{DType::kI8}, kI32{DType::kI32}, kPowers{DType::kF8E8M0, DType::kU8},
    kAnyScales{DType::kBF16, DType::kF16, DType::kF32, DType::kF8E8M0, DType::kU8};

// A row matches a tensor if the tensor has the row's weight suffix and type, and a tensor with the row's
// scale suffix and type exists, too. The number of codes a scale tells rows apart that differ in nothing
// else.
constexpr WeightDialect kWeightDialects[] = {
    {"gpt-oss", kMxfp4, "_blocks", kU8, "_scales", kPowers, nullptr, "_bias", false},
    {"compressed-tensors", kMxfp4, ".weight_packed", kU8, ".weight_scale", kPowers, nullptr, ".bias", false},
    {"compressed-tensors", kMxfp6, ".weight_packed", kU8, ".weight_scale", kPowers, nullptr, ".bias", false},
    {"ModelOpt", kMxfp4, ".weight", kU8, ".weight_scale", kPowers, ".input_scale", ".bias", false},
    {"Ling", kMxfp4, ".weight", kU8, ".weight_scale_inv", kPowers, nullptr, ".bias", false},
    {"DeepSeek-V4", kMxfp4, ".weight", kI8, ".scale", kPowers, nullptr, ".bias", false},
    {"ModelOpt", kNvfp4Bs32, ".weight", kU8, ".weight_scale", kF8, ".input_scale", ".bias", false, nullptr,
     nullptr, nullptr, ".weight_scale_2"},
    {"DeepSeek-V4", kFp8, ".weight", kF8, ".scale", kAnyScales, ".input_scale", ".bias", false},
    {"DeepSeek-V3, Qwen3, MiniMax-M3, transformers", kFp8, ".weight", kF8, ".weight_scale_inv", kAnyScales,
     ".input_scale", ".bias", false},
    {"ModelOpt, compressed-tensors", kFp8, ".weight", kF8, ".weight_scale", kAnyScales, ".input_scale",
     ".bias", false},
    {"transformers, stacks", kFp8, "", kF8, "_scale_inv", kAnyScales, "_input_scale", "_bias", true},
    {"ModelOpt, stacks", kFp8, "", kF8, "_weight_scale", kAnyScales, "_input_scale", "_bias", true},
    {"compressed-tensors", kInt4, ".weight_packed", kI32, ".weight_scale", kFloats, nullptr, ".bias", false,
     ".weight_zero_point", ".weight_g_idx", ".weight_shape"},
    {"AWQ, GPTQ", kInt4, ".qweight", kI32, ".scales", kFloats, nullptr, ".bias", false, ".qzeros", ".g_idx"},
    {"transformers", kFloat, ".weight", kFloats, nullptr, kNone, nullptr, ".bias", false},
    {"transformers, stacks", kFloat, "", kFloats, nullptr, kNone, nullptr, "_bias", true},
};

}  // namespace

std::span<const WeightDialect> weight_dialects() { return kWeightDialects; }

namespace {

bool has_bytes_of(WeightFormat format, std::span<const int64_t> codes, std::span<const int64_t> scales) {
  const int64_t bytes = format->code_bytes(format->group);
  return codes.size() == scales.size() && !codes.empty() && codes.back() > 0 && codes.back() % bytes == 0 &&
         codes.back() / bytes == scales.back();
}

}  // namespace

bool are_sixes(std::span<const int64_t> codes, std::span<const int64_t> scales) {
  return codes.size() == 2 && has_bytes_of(kMxfp6, codes, scales);
}

bool fits_scales(const WeightDialect& d, std::span<const int64_t> codes, std::span<const int64_t> scales) {
  if (d.format == kMxfp6) return are_sixes(codes, scales);
  if (d.format == kNvfp4Bs32) return has_bytes_of(d.format, codes, scales);
  return d.format != kMxfp4 || std::string_view(d.weight) != ".weight_packed" || !are_sixes(codes, scales);
}

}  // namespace twofour
