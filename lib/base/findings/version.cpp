#include "lib/base/findings/version.h"

namespace twofour {

const char* version() { return TWOFOUR_VERSION; }
const char* version_commit() { return TWOFOUR_COMMIT; }
const char* compiler() { return TWOFOUR_COMPILER; }
const char* cuda_build() { return TWOFOUR_CUDA_BUILD; }
const char* library_versions() { return TWOFOUR_LIBRARIES; }

}  // namespace twofour
