#include "formats/atom.h"
#include "formats/weight_dialect.h"
#include "lib/synth/formats.h"

// Formats of public checkpoints.

namespace twofour {
namespace {

using enum DType;
using enum SynthCodes;
using enum SynthEncoding;

/// NVFP4 with ModelOpt's tensor names.
constexpr SynthFormat nvfp4(SynthEncoding encoding, const char* input, const char* algorithm) {
  return {.encoding = encoding,
          .codes = kNibbles,
          .weight = ".weight",
          .weight_type = kU8,
          .scale = ".weight_scale",
          .scale_type = kF8E4M3,
          .rows = 1,
          .columns = kGroup,
          .global = ".weight_scale_2",
          .input = input,
          .algorithm = algorithm};
}
/// FP8 with a scale for each tile of `size` rows and `size` columns. If `size` is 0, there is a single scale.
constexpr SynthFormat fp8(const char* scale, DType scale_type, int64_t size, const char* algorithm) {
  return {.encoding = kFp8,
          .codes = kBytes,
          .weight = ".weight",
          .weight_type = kF8E4M3,
          .scale = scale,
          .scale_type = scale_type,
          .rows = size,
          .columns = size,
          .algorithm = algorithm};
}
constexpr SynthFormat with_input(SynthFormat f, const char* input) { return f.input = input, f; }
constexpr SynthFormat with_shared_scale(SynthFormat f) { return f.shared = true, f; }
constexpr SynthFormat fp8_powers(const char* scale, DType scale_type) {
  SynthFormat f = fp8(scale, scale_type, kFp8Block, nullptr);
  f.powers_of_two = true;
  return f;
}

}  // namespace

const SynthFormat kModelOptNvfp4 = nvfp4(kNvfp4, ".input_scale", "NVFP4");
const SynthFormat kModelOptNvfp4WeightOnly = nvfp4(kNvfp4, nullptr, "W4A16_NVFP4");
const SynthFormat kModelOptNvfp4FourOverSix = nvfp4(kNvfp4FourOverSix, ".input_scale", "NVFP4");
const SynthFormat kModelOptNvfp4FourOverSixWeightOnly = nvfp4(kNvfp4FourOverSix, nullptr, "W4A16_NVFP4");
const SynthFormat kQuarkNvfp4 = nvfp4(kNvfp4, ".input_scale_2", nullptr);
const SynthFormat kCtNvfp4 = {.encoding = kNvfp4,
                              .codes = kNibbles,
                              .weight = ".weight_packed",
                              .weight_type = kU8,
                              .scale = ".weight_scale",
                              .scale_type = kF8E4M3,
                              .rows = 1,
                              .columns = kGroup,
                              .global = ".weight_global_scale",
                              .input = ".input_global_scale",
                              .scalar_rank = 1,
                              .divides = true};
const SynthFormat kModelOptFp8 = with_input(fp8(".weight_scale", kF32, 0, "FP8"), ".input_scale");
const SynthFormat kModelOptFp8Table = with_shared_scale(fp8(".weight_scale", kBF16, 0, "FP8"));
const SynthFormat kModelOptFp8Mtp = fp8(".weight_scale_inv", kBF16, kFp8Block, "FP8_BLOCK_SCALES");
const SynthFormat kModelOptFp8Pb = fp8(".weight_scale_inv", kF32, kFp8Block, "FP8_PB");
const SynthFormat kModelOptMxfp8 = {.encoding = kMxfp8,
                                    .codes = kBytes,
                                    .weight = ".weight",
                                    .weight_type = kF8E4M3,
                                    .scale = ".weight_scale_inv",
                                    .scale_type = kU8,
                                    .rows = 1,
                                    .columns = kMxGroup,
                                    .algorithm = "MXFP8"};
const SynthFormat kVendorMxfp8 = {kMxfp8, kBytes, ".weight", kF8E4M3, ".weight_scale_inv", kU8, 1, kMxGroup};
const SynthFormat kDeepSeekFp8 = fp8(".weight_scale_inv", kF32, kFp8Block, nullptr);
const SynthFormat kDeepSeekV4Fp8 = fp8_powers(".scale", kF8E8M0);
const SynthFormat kDeepSeekV4BaseFp8 = fp8_powers(".scale", kF32);
const SynthFormat kLingFp8 = fp8_powers(".weight_scale_inv", kF32);
const SynthFormat kCtFp8Row = {kFp8, kBytes, ".weight", kF8E4M3, ".weight_scale", kBF16, 1, 0};
const SynthFormat kCtFp8Block = fp8(".weight_scale", kBF16, kFp8Block, nullptr);
const SynthFormat kGptOssMxfp4 = {kMxfp4, kBlocks, "_blocks", kU8, "_scales", kU8, 1, kMxGroup};
const SynthFormat kDeepSeekV4Mxfp4 = {kMxfp4, kNibbles, ".weight", kI8, ".scale", kF8E8M0, 1, kMxGroup};
const SynthFormat kLingMxfp4 = {kMxfp4, kNibbles, ".weight", kU8, ".weight_scale_inv", kU8, 1, kMxGroup};
const SynthFormat kCtMxfp4 = {kMxfp4, kNibbles, ".weight_packed", kU8, ".weight_scale", kU8, 1, kMxGroup};
const SynthFormat kCtInt4G32 = {kInt4, kPacked, ".weight_packed", kI32, ".weight_scale", kBF16, 1, 32};
const SynthFormat kCtInt4G128 = {kInt4, kPacked, ".weight_packed", kI32, ".weight_scale", kBF16, 1, 128};
const SynthFormat kAwqInt4 = {kUint4, kAwq, ".qweight", kI32, ".scales", kF16, 1, 128};
const SynthFormat kGptqInt4 = {kInt4, kGptq, ".qweight", kI32, ".scales", kF16, 1, 128};

}  // namespace twofour
