#pragma once

namespace twofour {

/// "0.1.0"
const char* version();
/// The git commit this was built from, or "unknown".
const char* version_commit();

}  // namespace twofour
