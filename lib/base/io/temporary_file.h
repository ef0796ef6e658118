#pragma once
#include <filesystem>

namespace twofour {

/// Creates a file under its temporary name and locks it until its descriptor is closed. An existing file that
/// no process has locked was left by a killed process. It is removed. Throws Error if another process holds
/// the lock, or if the file is a link or not a regular file. On file systems without locks, any existing file
/// is refused.
int create_temporary(const std::filesystem::path& temporary);

/// Closes a temporary file and gives it its final name, replacing any file of that name. No other process can
/// take the file in between. If that fails, or if another file has the temporary name by now, removes its own
/// file and throws Error. Closes `fd` in any case.
void commit_temporary(int fd, const std::filesystem::path& temporary, const std::filesystem::path& path);

/// Closes and removes a temporary file. If another file has the temporary name by now, that file stays.
void discard_temporary(int fd, const std::filesystem::path& temporary);

}  // namespace twofour
