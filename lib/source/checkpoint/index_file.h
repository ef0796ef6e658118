#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// The content of a safetensors index, which names the file of each tensor.
struct IndexFile {
  struct Entry {
    std::string tensor;
    uint32_t file;  ///< position in `files`
  };
  std::vector<std::string> files;  ///< sorted
  std::vector<Entry> entries;      ///< sorted by the tensors' names
  std::optional<uint64_t> total_size;
  std::string odd_total_size{};  ///< total_size as written, if it is not a whole number of bytes
  bool has_mark = false;         ///< the file begins with a byte order mark, which is otherwise ignored
};

/// Parses an index by events, so that it takes only the memory of its names. Throws Error naming `where` on
/// anything that is not an index, if a tensor, weight_map or metadata occurs twice, on more than 2,000,000
/// tensors or 65,536 files, and on a file name that leaves the directory.
IndexFile parse_index_file(std::string_view where, std::string_view json);

/// Reads and parses an index. It must be a regular file of at most 128 MB.
IndexFile read_index_file(const std::filesystem::path& path);

/// Throws Error naming `where` unless `name` is a plain file name, without a directory and "..".
void check_file_name(std::string_view where, std::string_view name);

}  // namespace twofour
