#include "lib/findings/version.h"

namespace twofour {

const char* version() { return TWOFOUR_VERSION; }
const char* version_commit() { return TWOFOUR_COMMIT; }

}  // namespace twofour
