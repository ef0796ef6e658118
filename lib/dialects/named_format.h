#pragma once
#include <cstdint>
#include <string>

#include "formats/json.h"
#include "lib/dialects/scheme.h"

namespace twofour {

/// A number format, as far as configurations tell formats apart.
struct NamedFormat {
  enum class Kind : uint8_t {
    kFloat,
    kNvfp4,            ///< with input scales
    kNvfp4WeightOnly,  ///< without
    kFp8Tensor,
    kFp8Row,
    kFp8Blocks,
    kMxfp8,
    kMxfp4,
    kInt4,
    kOther,  ///< a format by a name that says nothing to us
  };
  Kind kind = Kind::kFloat;
  int64_t rows = 0, cols = 0;  ///< of kFp8Blocks; 0: not said
  bool one_block = false;      ///< of kFp8Tensor: the one scale may be that of the only block
  bool operator==(const NamedFormat&) const = default;
};

/// The format of tensors.
NamedFormat format_of(const Scheme& scheme);
/// The same of a linear of a checkpoint.
NamedFormat format_of(const Checkpoint& checkpoint, const Linear& linear);

/// The format that an entry of any configuration names: of quantized_layers, of config_groups, of the "fp8"
/// method or of DeepSeek-V4's. Null names floats.
NamedFormat format_of_entry(const Json& entry);

/// Whether a matrix [n, k] is no larger than a block of FP8.
constexpr bool fits_one_block(int64_t n, int64_t k) { return n <= kFp8Block && k <= kFp8Block; }

/// Whether a loader that expects `promised` reads what is stored.
bool is_read_as(const NamedFormat& stored, const NamedFormat& promised);

/// For people and for tables of what engines have: "unquantized", "NVFP4", "NVFP4 without input scales".
std::string describe(const NamedFormat& format);

}  // namespace twofour
