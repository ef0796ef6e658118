#pragma once
#include <cstdio>

#include "kernels/device/device.h"

/// Ends a test where there is no GPU; ctest then shows the area as skipped.
inline bool no_gpu() {
  if (twofour::cuda_device()) return false;
  std::printf("skipped: no CUDA device (%s)\n", twofour::no_cuda_reason().c_str());
  return true;
}
