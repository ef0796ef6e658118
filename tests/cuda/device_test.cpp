#include "kernels/device.h"

#include <doctest/doctest.h>

#include <cstdio>

using namespace twofour;

TEST_CASE("a CUDA device says what it is, or why there is none") {
  const auto device = cuda_device();
  if (!device) {
    CHECK(!no_cuda_reason().empty());
    std::printf("skipped: no CUDA device (%s)\n", no_cuda_reason().c_str());
    return;
  }
  CHECK(no_cuda_reason().empty());
  CHECK(!device->name.empty());
  CHECK(device->capability >= 75);
  CHECK(device->multiprocessors > 0);
  CHECK(device->memory > 0);
}
