#pragma once

namespace twofour {

/// The version that project() in CMakeLists.txt gives: "MAJOR.MINOR.PATCH".
const char* version();
/// The git commit that the program was built from, or "unknown".
const char* version_commit();

/// The tools that the program was built with. compiler() returns "GNU 12.2.0", cuda_build() returns "nvcc
/// 12.9 for sm 90" or "none", and library_versions() returns "fmt 9.1.0, CLI11 2.1.2, ...".
const char* compiler();
const char* cuda_build();
const char* library_versions();

}  // namespace twofour
