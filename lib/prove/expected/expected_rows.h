#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "lib/source/linears/linears.h"
#include "lib/write/view/quantized_view.h"

namespace twofour {

/// Rows [begin, end) of a matrix that is to be quantized, in float32, [rows, K]. They come from
/// derive_weights().
std::vector<float> matrix_weights(const Checkpoint& source, WeightReader& reader, const EncodedMatrix& matrix,
                                  int64_t begin, int64_t end);
/// Rows [begin, end) of a matrix in a tensor of the source, whose rows have `width` bytes.
std::vector<uint8_t> matrix_bytes(const Checkpoint& source, const EncodedMatrix& matrix, size_t tensor,
                                  int64_t width, int64_t begin, int64_t end);
/// Codes of rows of a matrix in a four-bit format, and the scales of their blocks.
struct StoredCopy {
  std::vector<uint8_t> codes, scales;
};
StoredCopy matrix_fp4(WeightReader& reader, const EncodedMatrix& matrix, int64_t begin, int64_t end);
/// The type to which compressed-tensors rounds. It is the source's type if all matrices of the group have the
/// same type.
DType matrix_weight_type(const Checkpoint& source, const std::vector<EncodedMatrix>& matrices);
/// True if linears of a dialect store global scales as divisors.
bool divides_in(std::string_view dialect);

/// Returns a group of a checkpoint whose weights statistics or masks chose.
using ExpectSolvedGroup = std::function<QuantizedRows(const Checkpoint& source, const QuantizedGroup& group)>;

/// Makes quantizers that derive the expected rows. They serve the checkpoints from which layouts are proven.
MakeRowQuantizer expected_rows(ExpectSolvedGroup solved);

}  // namespace twofour
