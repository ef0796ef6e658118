#pragma once
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <span>

namespace twofour {

/// Of a time of a file, since 1970.
inline int64_t nanoseconds(const struct timespec& t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; }

/// Fills `out` from byte `offset` of an open file; `path` is for messages. Throws ReadError, and Error where
/// the file ends early.
void read_at(int fd, const std::filesystem::path& path, uint64_t offset, std::span<uint8_t> out);

/// Writes all of `bytes` to byte `offset` of an open file. Throws Error.
void write_at(int fd, const std::filesystem::path& path, uint64_t offset, std::span<const uint8_t> bytes);

/// Whether an open file still has this name. Links are not followed.
bool has_name(int fd, const std::filesystem::path& path);

}  // namespace twofour
