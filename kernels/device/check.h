#pragma once
#include <cstdio>
#include <cstdlib>
#include <source_location>

namespace twofour {

/// Stops the program on a bug in twofour, in every build, because a wrong byte in an artifact is worse than
/// an abort. Do not use it for errors in files or options; these throw Error.
inline void check(bool holds, const char* expectation,
                  std::source_location at = std::source_location::current()) {
  if (holds) [[likely]]
    return;
  std::fprintf(stderr, "%s:%u: bug in twofour: expected %s\n", at.file_name(),
               static_cast<unsigned>(at.line()), expectation);
  std::abort();
}

}  // namespace twofour
