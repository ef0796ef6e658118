#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "lib/checkpoint/linears.h"
#include "lib/view/quantized_view.h"

namespace twofour {

/// Rows [begin, end) of a matrix to be quantized in float32, [rows, K], as derive_weights() has them.
std::vector<float> matrix_weights(const Checkpoint& source, WeightReader& reader, const EncodedMatrix& matrix,
                                  int64_t begin, int64_t end);
/// The same rows of a tensor of the source, `width` bytes each.
std::vector<uint8_t> matrix_bytes(const Checkpoint& source, const EncodedMatrix& matrix, size_t tensor,
                                  int64_t width, int64_t begin, int64_t end);
/// The codes of a matrix's rows in a format of four bits, and the scales of their blocks.
struct StoredCopy {
  std::vector<uint8_t> codes, scales;
};
StoredCopy matrix_fp4(WeightReader& reader, const EncodedMatrix& matrix, int64_t begin, int64_t end);
/// The type that compressed-tensors rounds to: the source's, if all of the group are stored in it.
DType matrix_weight_type(const Checkpoint& source, const std::vector<EncodedMatrix>& matrices);
/// Whether global scales of a dialect's linears are divisors.
bool divides_in(std::string_view dialect);

/// A group of a checkpoint whose weights statistics or masks chose.
using ExpectSolvedGroup = std::function<QuantizedRows(const Checkpoint& source, const QuantizedGroup& group)>;

/// Quantizes rows as the proof expects them: for the checkpoints that layouts are proven from.
MakeRowQuantizer expected_rows(ExpectSolvedGroup solved);

}  // namespace twofour
