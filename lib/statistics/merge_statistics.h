#pragma once
#include <filesystem>
#include <vector>

namespace twofour {

/// Writes the statistics of all files together: sums added, the larger amax, counts and tokens added. Throws
/// Error where structure, weights, weighting or groups disagree, where an entry is not in all files with the
/// same shapes, and, with target offsets, where `predecessor` disagrees; where a file comes twice; on numbers
/// that are not finite, negative diagonals, and sums that overflow. The output appears whole or not at all.
void merge_statistics(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out);

}  // namespace twofour
