#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  twofour::TWOFOUR_FUZZ_TARGET(data, size);
  return 0;
}
