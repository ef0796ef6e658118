#include "lib/recipe/statistics/mask_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"

namespace twofour {
namespace {

constexpr std::string_view kSuffix = ".mask";
constexpr uint64_t kPiece = 1u << 20;

}  // namespace

MaskFile MaskFile::open(const std::filesystem::path& path) {
  MaskFile m(path);
  if (m.file_.is_directory())
    throw Error(fmt::format("{}: expected a regular file, found something else", path.string()));
  for (size_t i = 0; i < m.file_.tensors().size(); ++i) {
    const TensorInfo& t = m.info(i);
    if ((t.dtype != DType::kU8 && t.dtype != DType::kBool) || t.shape.size() != 2 || t.bytes() == 0) {
      throw Error(
          fmt::format("{}: expected a mask, U8 or BOOL [N, K], found {}", m.file_.where(i), describe(t)));
    }
    const std::string module(t.name, 0, t.name.size() - (t.name.ends_with(kSuffix) ? kSuffix.size() : 0));
    if (!m.masks_.emplace(module, i).second)
      throw Error(fmt::format("{}: {}: expected one mask, found two", path.string(), module));
  }
  if (m.masks_.empty()) throw Error(fmt::format("{}: expected masks, found none", path.string()));
  return m;
}

Hash128 MaskFile::hash() const {
  const InputFile& file = file_.shards().front().file;
  return hash_range(file, 0, file.size(), [](uint64_t) {});
}

std::optional<size_t> MaskFile::find(std::string_view module) const {
  const auto at = masks_.find(module);
  return at == masks_.end() ? std::nullopt : std::optional(at->second);
}

std::vector<std::string> MaskFile::modules() const {
  std::vector<std::string> names;
  for (const auto& [name, at] : masks_) names.push_back(name);
  return names;
}

void MaskFile::read(size_t mask, int64_t first, std::span<uint8_t> out) const {
  file_.read(mask, static_cast<uint64_t>(first * info(mask).shape[1]), out);
}

void MaskFile::check(size_t mask, PrunePattern pattern) const {
  const bool pairs = pattern == PrunePattern::k4of8Paired;
  const int64_t n = info(mask).shape[0], k = info(mask).shape[1], group = pairs ? 8 : 4;
  const auto place = [&](size_t at) {
    const auto i = static_cast<int64_t>(at);
    return fmt::format("{}: row {}, k {}", file_.where(mask), i / k, i % k);
  };
  if (k % group != 0)
    throw Error(fmt::format("{}: expected K a multiple of {}, found {}", file_.where(mask), group, k));
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kPiece) / k);
  std::vector<uint8_t> rows;
  for (int64_t row = 0; row < n; row += step) {
    const int64_t count = std::min(step, n - row);
    rows.resize(static_cast<size_t>(count * k));
    read(mask, row, rows);
    for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(group)) {
      const size_t at = static_cast<size_t>(row * k) + i;
      int kept = 0;
      bool fits = true;
      for (size_t j = i; j < i + static_cast<size_t>(group); ++j) {
        if (rows[j] > 1)
          throw Error(fmt::format("{}: expected 0 or 1, found {}", place(at + j - i), rows[j]));
        kept += rows[j];
        fits = fits && (!pairs || rows[j] == rows[j ^ 1]);
      }
      if (!fits || 2 * kept != group) {
        throw Error(fmt::format("{}: expected {} to stay, found {} of {}{}", place(at),
                                pairs ? "two pairs of four" : "two of four", kept, group,
                                fits ? "" : ", not in pairs"));
      }
    }
  }
}

}  // namespace twofour
