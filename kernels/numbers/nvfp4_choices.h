#pragma once

/// The choices of a quantizer to NVFP4. The proof may include this file, because it contains no code.

namespace twofour {

/// The producer whose arithmetic is used. Both give codes e2m1_rne(x / step), with a block's step the value
/// of code 1.0. Both take the sign from x / step < 0, so -0 gives 0x0 and a tiny negative number gives 0x8.
/// They differ in steps:
///   modelopt            step = s * g, g = a / 2688. NVIDIA ModelOpt 0.45 or later.
///   compressed_tensors  step = s / G, G = 2688 / a. 1 / a, G and b / 6 are rounded to the weights' type.
///                       llm-compressor with its default observer of weights, round to nearest.
///
/// Here a is the largest magnitude of all blocks that share a global scale. For a block, b is the largest
/// magnitude and s the block scale. Both producers are as on CPU, with IEEE division; on CUDA, torch divides
/// by a constant through its reciprocal.
enum class Arithmetic { modelopt, compressed_tensors };

/// The rule by which the scale of a block is chosen.
///   max            b becomes the largest code.
///   mse            The one of all 126 positive block scales with the least squared error. If errors are
///                  equal, the smallest scale is chosen. ModelOpt's static NVFP4 with `fp8_scale_sweep`.
///   four_over_six  b becomes 6, or 4 if that has the smaller squared error. The global scale is
///                  a / 1536, so that the block scales for 4 fit. ModelOpt 0.46 or later.
///
/// A producer with the arithmetic of compressed_tensors offers only max. The other choices then use its
/// steps. An error is a sum of float32 squares, ((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7)), with p[j]
/// the sum of the squares of weights j and j + 8. If errors differ only in the last bits, the order of
/// additions on a GPU may give another choice.
enum class BlockScale { max, mse, four_over_six };

/// The output for a block whose scale rounds to zero.
///   producer  ModelOpt: the smallest scale, 2^-9. A block of zeros gets 0x38 with max, 0x01 with
///             mse, and with four_over_six 1.0 in units of the global scale, mostly 0x7E.
///             compressed-tensors: 0.125 (0x20), unless mse finds a better scale for weights that are not
///             all zero.
///   zero      Scale 0x00 and codes 0x0, as in TransformerEngine and FlashInfer.
enum class ZeroBlock { producer, zero };

}  // namespace twofour
