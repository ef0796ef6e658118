#pragma once
#include <cstdint>
#include <string>

#include "formats/dtype.h"
#include "formats/weight_dialect.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"

namespace twofour {

/// The quantization of a module's weights, as far as its tensors show it. Modules with one scheme share an
/// entry in a configuration.
struct Scheme {
  WeightFormat format = WeightFormat::kFloat;
  Granularity granularity = Granularity::kTensor;  ///< of FP8 scales
  int64_t rows = 0, cols = 0;  ///< weights that share a scale, for blocks and groups; otherwise 0
  DType scale_type = DType::kF32;
  std::string scale{};  ///< suffix of the scales, since one kind of FP8 has several: ".weight_scale_inv"
  bool has_input_scale = false;  ///< activations have a stored scale
  bool operator==(const Scheme&) const = default;
  /// True for FP8 blocks of that size.
  bool is_block(int64_t n, int64_t k) const {
    return format->tiles && granularity == Granularity::kBlock && rows == n && cols == k;
  }
  bool is_mxfp8() const {
    return format->tiles && (format->group == kMxGroup || (rows == 1 && cols == kMxGroup));
  }
};

/// The scheme of a linear as a checkpoint stores it.
Scheme scheme_of(const Checkpoint& checkpoint, const Linear& linear);

/// A scheme for people: "FP8 by blocks of 128 x 128", "NVFP4 with input scales".
std::string describe(const Scheme& scheme);

}  // namespace twofour
