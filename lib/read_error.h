#pragma once
#include <filesystem>

#include "formats/error.h"

namespace twofour {

/// The system could not open or read a file that is there. Tells nothing of what is in it: who makes do with
/// a file that is damaged must not do so with this.
struct ReadError : Error {
  /// "PATH: cannot read: input/output error", from errno.
  ReadError(const std::filesystem::path& path, int error, const char* doing = "read");
};

}  // namespace twofour
