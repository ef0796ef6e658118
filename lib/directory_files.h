#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// Every regular file, or link to one, below a directory: relative names, with sizes. Links to directories
/// are not followed. Throws Error where something cannot be listed.
std::map<std::string, uint64_t> files_below(const std::filesystem::path& directory);

/// Names in a directory that end in `suffix` and do not begin with a dot, sorted; what cannot be opened is
/// found by who opens it. Throws Error where the directory cannot be listed.
std::vector<std::string> list_files(const std::filesystem::path& directory, std::string_view suffix);

}  // namespace twofour
