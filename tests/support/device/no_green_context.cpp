#include "formats/error.h"
#include "tests/support/device/green_context.h"

namespace twofour {

GreenContext::GreenContext(unsigned) {
  throw Error("green context: expected a build with CUDA, found one without");
}
GreenContext::~GreenContext() = default;
cuda::Stream GreenContext::stream() const { return nullptr; }

}  // namespace twofour
