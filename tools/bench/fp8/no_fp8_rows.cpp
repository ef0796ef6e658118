#include "formats/error.h"
#include "tools/bench/fp8/fp8_multiply.h"

// Functions of the FP8 route for builds without CUDA.

namespace twofour::cuda {

void fp8_scales_of_weights(const DenseMatrices&, const float*, Fp8Scaling, float*, Stream) {
  throw Error("fp8_scales_of_weights: expected a CUDA device, found a build without CUDA");
}
void quantize_to_fp8(const QuantizeToFp8&, Stream) {
  throw Error("quantize_to_fp8: expected a CUDA device, found a build without CUDA");
}

}  // namespace twofour::cuda
