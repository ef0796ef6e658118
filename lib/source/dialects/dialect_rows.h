#pragma once
#include <cstdint>
#include <vector>

#include "lib/source/dialects/output_dialect.h"

namespace twofour {

/// The rows of output_dialects(), each in a file of its own.
const OutputDialect& modelopt_dialect();
const OutputDialect& compressed_tensors_dialect();
const OutputDialect& deepseek_dialect();
const OutputDialect& deepseek_v4_dialect();

/// The row of formats/dialect.h for linears that are not stacked.
const Nvfp4Dialect* single_nvfp4_dialect(std::string_view name);

/// Number of blocks of size `block` that cover `n`.
constexpr int64_t count_blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

/// Shape of the scales of an FP8 matrix [n, k], with both axes: [n, 1] or [blocks of n, blocks of k].
std::vector<int64_t> two_axis_scale_shape(int64_t n, int64_t k, const Scheme& scheme);

/// Suffix of the scales of FP8 blocks that DeepSeek-V3 and transformers write.
inline constexpr const char* kScaleInverse = ".weight_scale_inv";

}  // namespace twofour
