#include "lib/source/hub/placeholder_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <string>

#include "lib/base/io/descriptor.h"
#include "lib/base/io/file.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBegin = "twofour-remote-";
/// The age in seconds up to which an unlocked folder may be new. A folder is locked some moments after it is
/// created.
constexpr std::time_t kYoungSeconds = 60;

/// Opens and locks a folder of this user that nobody has locked. -1 for any other path.
int lock_folder(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat st {};
  if (::fstat(fd, &st) == 0 && st.st_uid == ::geteuid() && lock_file(fd) == LockState::kHeld) return fd;
  ::close(fd);
  return -1;
}

bool is_young(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) != 0 || st.st_mtime + kYoungSeconds > std::time(nullptr);
}

/// Removes the folders that killed runs left.
void remove_left(const fs::path& temporary) {
  std::error_code error;
  for (fs::directory_iterator it(temporary, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with(kBegin)) continue;
    const int fd = lock_folder(it->path());
    if (fd < 0) continue;
    std::error_code ignored;
    if (!is_young(fd)) fs::remove_all(it->path(), ignored);
    ::close(fd);
  }
}

}  // namespace

PlaceholderFolder::PlaceholderFolder() {
  const fs::path temporary = temporary_folder();
  remove_left(temporary);
  std::string name = (temporary / (std::string(kBegin) + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) throw_io_error(name, "create", errno);
  path_ = fs::canonical(name);
  lock_ = lock_folder(path_);
}

PlaceholderFolder::~PlaceholderFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace twofour
