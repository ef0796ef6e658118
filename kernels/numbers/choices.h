#pragma once

/// What whoever quantizes to NVFP4 chooses. The proof may read it: it has no code.

namespace twofour {

/// Whose arithmetic. Both give codes e2m1_rne(x / step), where a block's step is a code's 1.0; both take the
/// sign of x / step < 0, so that -0 gives 0x0 and a tiny negative 0x8. They differ in steps:
///   modelopt            step = s * g, g = a / 2688. NVIDIA ModelOpt 0.45 or later.
///   compressed_tensors  step = s / G, G = 2688 / a. 1 / a, G and b / 6 are rounded to the weights' type.
///                       llm-compressor with its default observer of weights, round to nearest.
///
/// Here a is the largest magnitude of all blocks that share a global scale, b that of a block, s its block
/// scale. Both as on CPU, where division is IEEE; on CUDA torch divides by a constant through its reciprocal.
enum class Arithmetic { modelopt, compressed_tensors };

/// How a block's scale is chosen.
///   max            b becomes the largest code.
///   mse            Of all 126 positive block scales the one with the least squared error; of equal ones
///                  the smallest. ModelOpt's static NVFP4 with `fp8_scale_sweep`.
///   four_over_six  b becomes 6, or 4 where that has the smaller squared error. The global scale is
///                  a / 1536, so that the block scales of 4 fit. ModelOpt 0.46 or later.
///
/// With compressed_tensors only max is a producer's; the others are the same choices, over its steps. An
/// error is a sum of float32 squares: with p[j] the sum of those of weights j and j + 8,
/// ((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7)). A GPU's order may choose otherwise where errors differ
/// in the last bits.
enum class BlockScale { max, mse, four_over_six };

/// What is written for a block if its scale rounds to zero.
///   producer  ModelOpt: 2^-9, the smallest; for a block of zeros 0x38 with max, 0x01 with mse, and with
///             four_over_six what 1.0 is in units of the global scale, mostly 0x7E.
///             compressed-tensors: 0.125 (0x20), unless mse finds better for weights that are not all zero.
///   zero      Scale 0x00 and codes 0x0, as TransformerEngine and FlashInfer do.
enum class ZeroBlock { producer, zero };

}  // namespace twofour
