#pragma once
#include <cstdint>
#include <vector>

#include "lib/source/dialects/output_dialect.h"

namespace twofour {

/// These functions return the rows of output_dialects(). Each row has its own file.
const OutputDialect& modelopt_dialect();
const OutputDialect& compressed_tensors_dialect();
const OutputDialect& deepseek_dialect();
const OutputDialect& deepseek_v4_dialect();

/// Returns the row of formats/dialect.h with that name for linears that are not stacked.
const Nvfp4Dialect* single_nvfp4_dialect(std::string_view name);

/// Number of blocks of size `block` that cover `n`.
constexpr int64_t count_blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

/// Returns the shape of the scales of an FP8 matrix [n, k], always with two axes: [n, 1], or [blocks of n,
/// blocks of k].
std::vector<int64_t> two_axis_scale_shape(int64_t n, int64_t k, const Scheme& scheme);

/// The suffix of FP8 block scales that DeepSeek-V3 and transformers write.
inline constexpr const char* kScaleInverse = ".weight_scale_inv";

}  // namespace twofour
