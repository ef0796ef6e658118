#include "lib/base/io/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "formats/error.h"

namespace twofour {

MappedBytes::MappedBytes(const InputFile& file, uint64_t offset, uint64_t bytes) {
  if (offset > file.size() || bytes > file.size() - offset) {
    throw Error(fmt::format("{}: expected {} bytes at {}, found a file of {}", file.path().string(), bytes,
                            offset, file.size()));
  }
  if (file.is_remote()) {
    throw Error(fmt::format("{}: expected a file on this machine, found one behind a URL; download it first",
                            file.path().string()));
  }
  file.check_unchanged();
  if (bytes == 0) return;
  const uint64_t before = offset % static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  length_ = static_cast<size_t>(before + bytes);
  void* pages =
      ::mmap(nullptr, length_, PROT_READ, MAP_SHARED, file.descriptor(), static_cast<off_t>(offset - before));
  if (pages == MAP_FAILED)
    throw Error(fmt::format("{}: cannot map: {}", file.path().string(), system_message(errno)));
  pages_ = pages;
  bytes_ = {static_cast<const uint8_t*>(pages) + before, static_cast<size_t>(bytes)};
}

MappedBytes::MappedBytes(MappedBytes&& other) noexcept
    : pages_(std::exchange(other.pages_, nullptr)),
      length_(std::exchange(other.length_, 0)),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedBytes& MappedBytes::operator=(MappedBytes&& other) noexcept {
  std::swap(pages_, other.pages_);
  std::swap(length_, other.length_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedBytes::~MappedBytes() {
  if (pages_ != nullptr) ::munmap(pages_, length_);
}

}  // namespace twofour
