#pragma once
#include <cstdint>
#include <string>

#include "formats/dtype.h"
#include "formats/weight_dialect.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"

namespace twofour {

/// How the weights of a module are quantized, as far as its tensors show it. Modules of one scheme have one
/// entry in a configuration.
struct Scheme {
  WeightFormat format = WeightFormat::kFloat;
  Granularity granularity = Granularity::kTensor;  ///< of FP8
  int64_t rows = 0, cols = 0;  ///< weights that share a scale, of blocks and groups; else 0
  DType scale_type = DType::kF32;
  std::string scale{};  ///< suffix of the scales, as FP8 of one kind has several: ".weight_scale_inv"
  bool has_input_scale = false;  ///< activations have a stored scale
  bool operator==(const Scheme&) const = default;
  /// Blocks of that size, of FP8.
  bool is_block(int64_t n, int64_t k) const {
    return format->tiles && granularity == Granularity::kBlock && rows == n && cols == k;
  }
  bool is_mxfp8() const {
    return format->tiles && (format->group == kMxGroup || (rows == 1 && cols == kMxGroup));
  }
};

/// The scheme of a linear as a checkpoint stores it.
Scheme scheme_of(const Checkpoint& checkpoint, const Linear& linear);

/// For people: "FP8 by blocks of 128 x 128", "NVFP4 with input scales".
std::string describe(const Scheme& scheme);

}  // namespace twofour
