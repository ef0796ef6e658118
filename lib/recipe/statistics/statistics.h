#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"

namespace twofour {

/// The format of a file in its metadata, and the format of a file that its run has not filled yet: equally
/// long, so that one can replace the other.
inline constexpr std::string_view kStatisticsFormat = "twofour statistics 1";
inline constexpr std::string_view kUnfinishedStatistics = "twofour statistics 0";
static_assert(kStatisticsFormat.size() == kUnfinishedStatistics.size());

/// The part of sum(x x') that an entry holds.
enum class StatisticsKind { kFull, kBlocks, kDiagonal };

/// "hessian", "hessian_blocks" or "sum_squares".
std::string_view statistics_kind_name(StatisticsKind kind);

/// The sums of one input, or of one linear; README.md describes its tensors.
struct StatisticsEntry {
  std::string name;
  std::vector<std::string> members;  ///< linears that it serves, in the file's order
  StatisticsKind kind = StatisticsKind::kFull;
  int64_t k = 0;
  int64_t block = 0;  ///< order of kBlocks
  int64_t count = 0;  ///< tokens
  size_t sums = 0;    ///< position in Statistics::tensors()
  std::optional<size_t> fisher{};
};

/// An open statistics file. Opening reads and validates the header, the counts and all other single numbers.
/// Sums are read on demand; a number that is NaN or infinite, a negative diagonal, and a product beyond the
/// root of its two squares are Errors then. Reading is safe from several threads.
class Statistics {
 public:
  /// Throws Error on a file that is no valid statistics file: names, types, shapes, counts, groups,
  /// structure.
  static Statistics open(const std::filesystem::path& path) { return open(path, false); }
  /// Also opens a file that its run may not have filled yet; for that run.
  static Statistics open_unfinished(const std::filesystem::path& path) { return open(path, true); }

  const std::filesystem::path& path() const { return file_->path(); }
  const InputFile& file() const { return *file_; }
  uint64_t data_begin() const { return data_begin_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// A value of the metadata; empty if it is absent.
  std::string metadata(const std::string& key) const;
  /// The machine that collected it, if the file states it: "cpu, avx512".
  std::string collected_on() const;
  /// XXH3-128 of the whole file, by bounded reads.
  Hash128 hash() const;

  /// In order of their names; entries under `heldout.` are separate.
  const std::vector<StatisticsEntry>& entries() const { return entries_; }
  const std::vector<StatisticsEntry>& heldout_entries() const { return heldout_; }
  /// The entry that serves a linear: among several, the first with tokens, its own name before others.
  /// nullptr: none.
  const StatisticsEntry* find(std::string_view linear) const { return find_in(served_, entries_, linear); }
  const StatisticsEntry* find_heldout(std::string_view linear) const {
    return find_in(heldout_served_, heldout_, linear);
  }

  /// The mean over tokens of x x' [k, k], for a kFull entry, or for kBlocks with zeros outside of the blocks.
  std::vector<float> read_hessian(const StatisticsEntry& entry) const;
  /// The mean of e x x', for an entry with `fisher`.
  std::vector<float> read_fisher(const StatisticsEntry& entry) const;
  /// The mean over tokens of x^2 [k], for any entry.
  std::vector<float> read_diagonal(const StatisticsEntry& entry) const;
  /// True if the sums of an entry are all 0, judged by their diagonal: no input was there. Reads up to the
  /// first number that is not 0. False for a file that its run has not filled.
  bool is_zero(const StatisticsEntry& entry) const;
  /// The position in tensors() of a linear's C; none: its target is its weights.
  std::optional<size_t> target_offset(std::string_view linear) const;
  /// C / count for rows [first, first + out.size() / k), from a tensor of a linear that `entry` serves.
  void read_target_offset(size_t tensor, const StatisticsEntry& entry, int64_t first,
                          std::span<float> out) const;
  /// Elements [first, first + out.size()) of an F32 tensor. A number that is not finite is an Error.
  void read(size_t tensor, uint64_t first, std::span<float> out) const;

 private:
  using Served = std::map<std::string, std::vector<size_t>, std::less<>>;

  static Statistics open(const std::filesystem::path& path, bool takes_unfinished);
  std::vector<StatisticsEntry> read_entries(std::string_view prefix);
  void read_groups();
  template <class T>
  T read_number(const TensorInfo& t) const;
  Served serve(const std::vector<StatisticsEntry>& entries) const;
  void check_target_offsets() const;
  void check_structure() const;
  std::vector<float> read_square(size_t tensor, int64_t k, int64_t count) const;
  void check_products(const std::vector<float>& square, size_t tensor, int64_t k) const;
  std::string where(size_t tensor) const;
  static const StatisticsEntry* find_in(const Served& served, const std::vector<StatisticsEntry>& entries,
                                        std::string_view linear);

  std::shared_ptr<InputFile> file_;
  uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, std::vector<std::string>> groups_;
  std::vector<StatisticsEntry> entries_, heldout_;
  Served served_, heldout_served_;
  std::map<std::string, size_t, std::less<>> target_offsets_;  ///< by linear
};

/// True if a file claims to be a statistics file, valid or not.
bool is_statistics_file(const std::filesystem::path& path);

/// The value of `structure`: a hash of the linears by name, with their K.
std::string structure_of(const std::map<std::string, int64_t>& linears);

}  // namespace twofour
