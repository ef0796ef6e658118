#pragma once
#include <cstdint>
#include <string>

#include "formats/dtype.h"
#include "formats/weight_dialect.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"

namespace twofour {

/// The quantization of a module's weights, as far as the module's tensors show it. Modules with the same
/// scheme share an entry in a configuration.
struct Scheme {
  WeightFormat format = WeightFormat::kFloat;
  /// Weights that share an FP8 scale: a tensor, a row or a block.
  Granularity granularity = Granularity::kTensor;
  int64_t rows = 0, cols = 0;  ///< size of blocks or groups that share a scale; otherwise 0
  DType scale_type = DType::kF32;
  /// Suffix of the scales' name, since one kind of FP8 has several: ".weight_scale_inv".
  std::string scale{};
  bool has_input_scale = false;  ///< a scale for the inputs is stored
  bool operator==(const Scheme&) const = default;
  /// True for FP8 in blocks of n x k weights.
  bool is_block(int64_t n, int64_t k) const {
    return format->tiles && granularity == Granularity::kBlock && rows == n && cols == k;
  }
  bool is_mxfp8() const {
    return format->tiles && (format->group == kMxGroup || (rows == 1 && cols == kMxGroup));
  }
};

/// Returns the scheme of a linear as the checkpoint stores it.
Scheme scheme_of(const Checkpoint& checkpoint, const Linear& linear);

/// Returns a scheme as text for messages: "FP8 by blocks of 128 x 128", "NVFP4 with input scales".
std::string describe(const Scheme& scheme);

}  // namespace twofour
