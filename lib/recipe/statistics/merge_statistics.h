#pragma once
#include <filesystem>
#include <vector>

namespace twofour {

/// Merges the statistics of all files: sums, counts and tokens are added; of amax the largest is taken.
/// Throws Error if structure, weights, weighting or groups disagree; if an entry is not in all files with the
/// same shapes; with target offsets, if `predecessor` disagrees; if a file comes twice; on numbers that are
/// not finite, negative diagonals, and sums that overflow. The output appears completely or not at all.
void merge_statistics(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out);

}  // namespace twofour
