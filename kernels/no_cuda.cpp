#include "kernels/device.h"

namespace twofour {

std::optional<CudaDevice> cuda_device() { return std::nullopt; }
std::string no_cuda_reason() { return "built without CUDA"; }

}  // namespace twofour
