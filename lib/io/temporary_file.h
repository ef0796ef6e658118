#pragma once
#include <filesystem>

namespace twofour {

/// Creates a file under its temporary name and locks it until its descriptor is closed. A file that is there
/// and that no process has locked was left by one that was killed, and goes. Throws Error where another
/// process holds it, or where it is a link or no regular file. File systems without locks refuse what is
/// there.
int create_temporary(const std::filesystem::path& temporary);

/// Closes a temporary file and gives it its name, which replaces what had that name; no other process can
/// take it in between. If that fails, or another file has the temporary name by now, removes its own and
/// throws Error. Takes `fd` in any case.
void commit_temporary(int fd, const std::filesystem::path& temporary, const std::filesystem::path& path);

/// Closes and removes a temporary file; another one that has its name by now stays.
void discard_temporary(int fd, const std::filesystem::path& temporary);

}  // namespace twofour
