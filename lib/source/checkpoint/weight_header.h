#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "formats/safetensors.h"
#include "lib/base/io/file.h"

namespace twofour {

class Checkpoint;

/// Reads and validates the header of a weight file. Returns the bytes before the data, too. Throws Error if
/// it is invalid or does not fit the file's size.
std::pair<SafetensorsHeader, std::string> read_weight_header(const InputFile& file);

/// Returns what is wrong with the header of a weight file or with its size. Empty: nothing.
std::string fault_of_weight_file(const std::filesystem::path& file);

/// The tensors that an index in the checkpoint's directory names and that the checkpoint does not have.
/// Empty without a usable index.
std::set<std::string> lost_tensors(const Checkpoint& checkpoint, const std::string& index);

}  // namespace twofour
