#include "formats/atom.h"
#include "formats/weight_dialect.h"
#include "lib/synth/formats.h"

// Formats as public checkpoints have them.

namespace twofour {
namespace {

using enum DType;
using enum SynthCodes;
using enum SynthEncoding;

}  // namespace

const SynthFormat kModelOptNvfp4 = {.encoding = kNvfp4,
                                    .codes = kNibbles,
                                    .weight = ".weight",
                                    .weight_type = kU8,
                                    .scale = ".weight_scale",
                                    .scale_type = kF8E4M3,
                                    .rows = 1,
                                    .columns = kGroup,
                                    .global = ".weight_scale_2",
                                    .input = ".input_scale",
                                    .algorithm = "NVFP4"};
const SynthFormat kModelOptNvfp4WeightOnly = {.encoding = kNvfp4,
                                              .codes = kNibbles,
                                              .weight = ".weight",
                                              .weight_type = kU8,
                                              .scale = ".weight_scale",
                                              .scale_type = kF8E4M3,
                                              .rows = 1,
                                              .columns = kGroup,
                                              .global = ".weight_scale_2",
                                              .algorithm = "W4A16_NVFP4"};
const SynthFormat kModelOptNvfp4FourOverSix = {.encoding = kNvfp4FourOverSix,
                                               .codes = kNibbles,
                                               .weight = ".weight",
                                               .weight_type = kU8,
                                               .scale = ".weight_scale",
                                               .scale_type = kF8E4M3,
                                               .rows = 1,
                                               .columns = kGroup,
                                               .global = ".weight_scale_2",
                                               .input = ".input_scale",
                                               .algorithm = "NVFP4"};
const SynthFormat kModelOptNvfp4FourOverSixWeightOnly = {.encoding = kNvfp4FourOverSix,
                                                         .codes = kNibbles,
                                                         .weight = ".weight",
                                                         .weight_type = kU8,
                                                         .scale = ".weight_scale",
                                                         .scale_type = kF8E4M3,
                                                         .rows = 1,
                                                         .columns = kGroup,
                                                         .global = ".weight_scale_2",
                                                         .algorithm = "W4A16_NVFP4"};
const SynthFormat kQuarkNvfp4 = {.encoding = kNvfp4,
                                 .codes = kNibbles,
                                 .weight = ".weight",
                                 .weight_type = kU8,
                                 .scale = ".weight_scale",
                                 .scale_type = kF8E4M3,
                                 .rows = 1,
                                 .columns = kGroup,
                                 .global = ".weight_scale_2",
                                 .input = ".input_scale_2"};
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
const SynthFormat kModelOptFp8 = {.encoding = kFp8,
                                  .codes = kBytes,
                                  .weight = ".weight",
                                  .weight_type = kF8E4M3,
                                  .scale = ".weight_scale",
                                  .scale_type = kF32,
                                  .rows = 0,
                                  .columns = 0,
                                  .input = ".input_scale",
                                  .algorithm = "FP8"};
const SynthFormat kModelOptFp8Table = {.encoding = kFp8,
                                       .codes = kBytes,
                                       .weight = ".weight",
                                       .weight_type = kF8E4M3,
                                       .scale = ".weight_scale",
                                       .scale_type = kBF16,
                                       .rows = 0,
                                       .columns = 0,
                                       .shared = true,
                                       .algorithm = "FP8"};
const SynthFormat kModelOptFp8Mtp = {.encoding = kFp8,
                                     .codes = kBytes,
                                     .weight = ".weight",
                                     .weight_type = kF8E4M3,
                                     .scale = ".weight_scale_inv",
                                     .scale_type = kBF16,
                                     .rows = kFp8Block,
                                     .columns = kFp8Block,
                                     .algorithm = "FP8_BLOCK_SCALES"};
const SynthFormat kModelOptFp8Pb = {.encoding = kFp8,
                                    .codes = kBytes,
                                    .weight = ".weight",
                                    .weight_type = kF8E4M3,
                                    .scale = ".weight_scale_inv",
                                    .scale_type = kF32,
                                    .rows = kFp8Block,
                                    .columns = kFp8Block,
                                    .algorithm = "FP8_PB"};
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
const SynthFormat kDeepSeekFp8 = {kFp8, kBytes,    ".weight", kF8E4M3, ".weight_scale_inv",
                                  kF32, kFp8Block, kFp8Block};
const SynthFormat kDeepSeekV4Fp8 = {.encoding = kFp8,
                                    .codes = kBytes,
                                    .weight = ".weight",
                                    .weight_type = kF8E4M3,
                                    .scale = ".scale",
                                    .scale_type = kF8E8M0,
                                    .rows = kFp8Block,
                                    .columns = kFp8Block,
                                    .powers_of_two = true};
const SynthFormat kDeepSeekV4BaseFp8 = {.encoding = kFp8,
                                        .codes = kBytes,
                                        .weight = ".weight",
                                        .weight_type = kF8E4M3,
                                        .scale = ".scale",
                                        .scale_type = kF32,
                                        .rows = kFp8Block,
                                        .columns = kFp8Block,
                                        .powers_of_two = true};
const SynthFormat kLingFp8 = {.encoding = kFp8,
                              .codes = kBytes,
                              .weight = ".weight",
                              .weight_type = kF8E4M3,
                              .scale = ".weight_scale_inv",
                              .scale_type = kF32,
                              .rows = kFp8Block,
                              .columns = kFp8Block,
                              .powers_of_two = true};
const SynthFormat kCtFp8Row = {kFp8, kBytes, ".weight", kF8E4M3, ".weight_scale", kBF16, 1, 0};
const SynthFormat kCtFp8Block = {kFp8,  kBytes,    ".weight", kF8E4M3, ".weight_scale",
                                 kBF16, kFp8Block, kFp8Block};
const SynthFormat kGptOssMxfp4 = {kMxfp4, kBlocks, "_blocks", kU8, "_scales", kU8, 1, kMxGroup};
const SynthFormat kDeepSeekV4Mxfp4 = {kMxfp4, kNibbles, ".weight", kI8, ".scale", kF8E8M0, 1, kMxGroup};
const SynthFormat kLingMxfp4 = {kMxfp4, kNibbles, ".weight", kU8, ".weight_scale_inv", kU8, 1, kMxGroup};
const SynthFormat kCtMxfp4 = {kMxfp4, kNibbles, ".weight_packed", kU8, ".weight_scale", kU8, 1, kMxGroup};
const SynthFormat kCtInt4G32 = {kInt4, kPacked, ".weight_packed", kI32, ".weight_scale", kBF16, 1, 32};
const SynthFormat kCtInt4G128 = {kInt4, kPacked, ".weight_packed", kI32, ".weight_scale", kBF16, 1, 128};
const SynthFormat kAwqInt4 = {kUint4, kAwq, ".qweight", kI32, ".scales", kF16, 1, 128};
const SynthFormat kGptqInt4 = {kInt4, kGptq, ".qweight", kI32, ".scales", kF16, 1, 128};

}  // namespace twofour
