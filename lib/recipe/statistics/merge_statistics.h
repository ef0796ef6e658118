#pragma once
#include <filesystem>
#include <vector>

namespace twofour {

/// Merges the statistics of all files. Sums, counts and tokens are added. The largest of each amax is taken.
/// Throws Error if `structure`, `weights`, `weighting` or groups disagree, or, with target offsets,
/// `predecessor`. Also throws if an entry is not in all files with the same shapes, if a file is given twice,
/// on numbers that are not finite, on negative diagonals and on sums that overflow. The output appears
/// completely or not at all.
void merge_statistics(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out);

}  // namespace twofour
