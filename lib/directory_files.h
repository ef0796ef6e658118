#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace twofour {

/// Every regular file, or link to one, below a directory: relative names, with sizes. Links to directories
/// are not followed. Throws Error where something cannot be listed.
std::map<std::string, uint64_t> files_below(const std::filesystem::path& directory);

}  // namespace twofour
