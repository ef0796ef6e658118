#include "lib/directory_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"

namespace twofour {

namespace fs = std::filesystem;

std::map<std::string, uint64_t> files_below(const fs::path& directory) {
  std::map<std::string, uint64_t> files;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error), end;
  for (; !error && it != end; it.increment(error)) {
    std::error_code look;
    if (!it->is_regular_file(look)) continue;  // follows links
    const uint64_t size = it->file_size(look);
    if (look) throw Error(fmt::format("{}: cannot look at: {}", it->path().string(), look.message()));
    files[it->path().lexically_relative(directory).string()] = size;
  }
  if (error) throw Error(fmt::format("{}: cannot list: {}", directory.string(), error.message()));
  return files;
}

std::vector<std::string> list_files(const fs::path& directory, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(suffix) && !name.starts_with(".")) names.push_back(name);
  }
  if (error) throw Error(fmt::format("{}: cannot list: {}", directory.string(), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace twofour
