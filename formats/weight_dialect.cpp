#include "formats/weight_dialect.h"

#include <algorithm>

namespace twofour {
namespace {

constexpr WeightFormat kFloat = WeightFormat::kFloat, kFp8 = WeightFormat::kFp8,
                       kMxfp4 = WeightFormat::kMxfp4;
constexpr DTypes kNone{}, kFloats{DType::kBF16, DType::kF16, DType::kF32}, kF8{DType::kF8E4M3},
    kU8{DType::kU8}, kI8{DType::kI8}, kE8m0{DType::kF8E8M0};
constexpr DTypes kAnyScales{DType::kBF16, DType::kF16, DType::kF32, DType::kF8E8M0, DType::kU8};

// A row fits a tensor of its weight's suffix and type that has a scale of its suffix and type beside it.
constexpr WeightDialect kWeightDialects[] = {
    {"gpt-oss", kMxfp4, "_blocks", kU8, "_scales", kU8, nullptr, "_bias", false},
    {"compressed-tensors", kMxfp4, ".weight_packed", kU8, ".weight_scale", kU8, nullptr, ".bias", false},
    {"DeepSeek-V4", kMxfp4, ".weight", kI8, ".scale", kE8m0, nullptr, ".bias", false},
    {"DeepSeek-V4", kFp8, ".weight", kF8, ".scale", kE8m0, nullptr, ".bias", false},
    {"DeepSeek-V3, Qwen3, transformers", kFp8, ".weight", kF8, ".weight_scale_inv", kAnyScales,
     ".input_scale", ".bias", false},
    {"ModelOpt, compressed-tensors", kFp8, ".weight", kF8, ".weight_scale", kAnyScales, ".input_scale",
     ".bias", false},
    {"transformers, stacks", kFp8, "", kF8, "_scale_inv", kAnyScales, "_input_scale", "_bias", true},
    {"transformers", kFloat, ".weight", kFloats, nullptr, kNone, nullptr, ".bias", false},
    {"transformers, stacks", kFloat, "", kFloats, nullptr, kNone, nullptr, "_bias", true},
};

// Source: Hugging Face transformers, models.
constexpr std::string_view kEmbeddings[] = {
    "embed",
    "embed_in",
    "embed_positions",
    "embed_tokens",
    "embed_tokens_per_layer",
    "embedding",
    "embeddings",
    "pos_embed",
    "position_embedding",
    "position_embeddings",
    "token_embedding",
    "tok_embeddings",
    "token_type_embeddings",
    "word_embeddings",
    "wpe",
    "wte",
};
constexpr std::string_view kConvolutions[] = {"conv", "conv1d", "conv2d", "conv3d"};

}  // namespace

const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFloat:
      return "floats";
    case WeightFormat::kFp8:
      return "FP8";
    case WeightFormat::kMxfp4:
      return "MXFP4";
    case WeightFormat::kNvfp4:
      return "NVFP4";
  }
  return "";
}

const char* weight_format_key(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8:
      return "fp8";
    case WeightFormat::kMxfp4:
      return "mxfp4";
    case WeightFormat::kNvfp4:
      return "nvfp4";
    default:
      return "float";
  }
}

std::span<const WeightDialect> weight_dialects() { return kWeightDialects; }

bool is_linear_name(std::string_view module) {
  const std::string_view leaf = module.substr(module.rfind('.') + 1);  // all of it where there is no dot
  const auto is_leaf = [&](std::string_view name) { return leaf == name; };
  const auto ends_leaf = [&](std::string_view name) { return leaf.ends_with(name); };
  return std::none_of(std::begin(kEmbeddings), std::end(kEmbeddings), is_leaf) &&
         std::none_of(std::begin(kConvolutions), std::end(kConvolutions), ends_leaf) &&
         leaf.find("norm") == std::string_view::npos;
}

}  // namespace twofour
