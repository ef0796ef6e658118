#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/base/io/file.h"

namespace twofour {

/// Bytes of a file, mapped for reading. Access to pages that the file has lost by truncation raises SIGBUS,
/// so call InputFile::check_unchanged() first.
class MappedBytes {
 public:
  MappedBytes() = default;
  /// Bytes [offset, offset + bytes). Throws Error if the file is shorter or cannot be mapped.
  MappedBytes(const InputFile& file, uint64_t offset, uint64_t bytes);
  MappedBytes(MappedBytes&& other) noexcept;
  MappedBytes& operator=(MappedBytes&& other) noexcept;
  ~MappedBytes();

  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  void* pages_ = nullptr;
  size_t length_ = 0;  ///< bytes that are mapped at pages_
  std::span<const uint8_t> bytes_;
};

}  // namespace twofour
