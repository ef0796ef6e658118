#pragma once
#include <filesystem>
#include <functional>

namespace twofour {

/// Throws Error unless a single result may be written to `file`: its folder exists and lies in no directory
/// that twofour wrote, and nothing is there but a regular file that `is_earlier` knows as an earlier result
/// of the kind that `what` names ("report"). So a mistyped path costs nobody a checkpoint, and a result
/// spoils no artifact.
void check_output_file(const std::filesystem::path& file, const char* what,
                       const std::function<bool(const std::filesystem::path&)>& is_earlier);

}  // namespace twofour
