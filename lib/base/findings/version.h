#pragma once

namespace twofour {

/// The version that project() in CMakeLists.txt gives: "MAJOR.MINOR.PATCH".
const char* version();
/// The git commit this was built from, or "unknown".
const char* version_commit();

/// The tools that it was built with: "GNU 12.2.0"; "nvcc 12.9 for sm 90" or "none"; "fmt 9.1.0, CLI11 2.1.2,
/// ...".
const char* compiler();
const char* cuda_build();
const char* library_versions();

}  // namespace twofour
