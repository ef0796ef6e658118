#include "lib/write/output/file_batch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lib/base/io/descriptor.h"
#include "lib/base/io/file.h"
#include "lib/base/io/temporary_file.h"

namespace twofour {

namespace fs = std::filesystem;

UnflushedFile::UnflushedFile(const fs::path& path)
    : path_(path),
      temporary_(path.parent_path() / temporary_name(path.filename().string())),
      fd_(create_temporary(temporary_)) {}

UnflushedFile::~UnflushedFile() {
  if (fd_ >= 0) discard_temporary(fd_, temporary_);
}

void UnflushedFile::write(std::span<const uint8_t> bytes) {
  write_at(fd_, path_, size_, bytes);
  size_ += bytes.size();
}

void UnflushedFile::commit() { commit_temporary(std::exchange(fd_, -1), temporary_, path_); }

void flush_file_system(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_io_error(directory, "open", errno);
  const int result = ::syncfs(fd), error = errno;
  ::close(fd);
  if (result != 0) throw_io_error(directory, "flush", error);
}

}  // namespace twofour
