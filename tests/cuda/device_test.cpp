#include "kernels/device/device.h"

#include <doctest/doctest.h>

#include <cstdio>

#include "formats/error.h"
#include "kernels/device/device_memory.h"
#include "tools/bench/fp8/fp8_multiply.h"

namespace device_test {

using namespace twofour;

TEST_CASE("a CUDA device says what it is, or why there is none") {
  const auto device = cuda_device();
  if (!device) {
    CHECK(!no_cuda_reason().empty());
    CHECK_THROWS_AS(cuda::DeviceStream(), Error);
    CHECK_THROWS_AS(cuda::Fp8Multiply({1, 1, 16, 32}), Error);
    std::printf("skipped: no CUDA device (%s)\n", no_cuda_reason().c_str());
    return;
  }
  CHECK(no_cuda_reason().empty());
  CHECK(!device->name.empty());
  CHECK(device->capability >= 75);
  CHECK(device->multiprocessors > 0);
  CHECK(device->memory > 0);
}

}  // namespace device_test
