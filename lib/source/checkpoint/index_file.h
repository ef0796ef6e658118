#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// A safetensors index: which file holds which tensor.
struct IndexFile {
  struct Entry {
    std::string tensor;
    uint32_t file;  ///< position in `files`
  };
  std::vector<std::string> files;  ///< sorted
  std::vector<Entry> entries;      ///< sorted by tensor
  std::optional<uint64_t> total_size;
  std::string odd_total_size{};  ///< as written, if it is no whole number of bytes
  bool has_mark = false;         ///< a byte order mark, otherwise ignored, is before the JSON
};

/// Parses an index by events, so that it takes only the memory of its names. Throws Error naming `where` on
/// anything that is not an index, on a tensor, weight_map or metadata that is named twice, on more than
/// 2,000,000 tensors or 65,536 files and on file names that leave the directory.
IndexFile parse_index_file(std::string_view where, std::string_view json);

/// The same for a regular file of at most 128 MB.
IndexFile read_index_file(const std::filesystem::path& path);

/// Throws Error naming `where` unless `name` is a plain file name: no directory, no "..".
void check_file_name(std::string_view where, std::string_view name);

}  // namespace twofour
