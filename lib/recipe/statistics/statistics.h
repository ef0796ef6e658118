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

/// The format that the metadata of a complete file states, and the format of a file that its run has not
/// filled yet. Both have the same length, so that one can replace the other in place.
inline constexpr std::string_view kStatisticsFormat = "twofour statistics 1";
inline constexpr std::string_view kUnfinishedStatistics = "twofour statistics 0";
static_assert(kStatisticsFormat.size() == kUnfinishedStatistics.size());

/// The part of sum(x x') that an entry holds: the whole matrix, blocks on its diagonal, or its diagonal. The
/// sum is over tokens, and x is the input of a linear.
enum class StatisticsKind { kFull, kBlocks, kDiagonal };

/// The name of a kind in the file: "hessian", "hessian_blocks" or "sum_squares".
std::string_view statistics_kind_name(StatisticsKind kind);

/// The sums of one input or of one linear. README.md describes the tensors.
struct StatisticsEntry {
  std::string name;
  std::vector<std::string> members;  ///< linears that it serves, in the file's order
  StatisticsKind kind = StatisticsKind::kFull;
  int64_t k = 0;
  int64_t block = 0;  ///< order of a block, for kBlocks
  int64_t count = 0;  ///< tokens
  size_t sums = 0;    ///< position in Statistics::tensors()
  std::optional<size_t> fisher{};
};

/// An open statistics file. Opening reads and validates the header, the counts and all other single numbers.
/// Sums are read on demand. A read throws Error on a number that is NaN or infinite, on a negative diagonal,
/// and on a product that exceeds the root of its two squares. Reading is safe from several threads.
class Statistics {
 public:
  /// Throws Error on invalid names, types, shapes, counts, groups and `structure`.
  static Statistics open(const std::filesystem::path& path) { return open(path, false); }
  /// Also opens a file that is not filled yet. Only the run that fills it uses this.
  static Statistics open_unfinished(const std::filesystem::path& path) { return open(path, true); }

  const std::filesystem::path& path() const { return file_->path(); }
  const InputFile& file() const { return *file_; }
  uint64_t data_begin() const { return data_begin_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// A value of the metadata. Empty if it is absent.
  std::string metadata(const std::string& key) const;
  /// The machine that collected the sums, if the file states it: "cpu, avx512".
  std::string collected_on() const;
  /// The XXH3-128 hash of the whole file, by bounded reads.
  Hash128 hash() const;

  /// All entries in the order of their names. Entries of held-out tokens, under `heldout.`, are in a separate
  /// list.
  const std::vector<StatisticsEntry>& entries() const { return entries_; }
  const std::vector<StatisticsEntry>& heldout_entries() const { return heldout_; }
  /// The entry that serves a linear. Null if there is none. Entries with tokens take precedence over entries
  /// without, and among them the linear's own entry over others.
  const StatisticsEntry* find(std::string_view linear) const { return find_in(served_, entries_, linear); }
  const StatisticsEntry* find_heldout(std::string_view linear) const {
    return find_in(heldout_served_, heldout_, linear);
  }

  /// The mean over tokens of x x' [k, k], for a kFull or kBlocks entry. For kBlocks, all numbers outside of
  /// the blocks are 0.
  std::vector<float> read_hessian(const StatisticsEntry& entry) const;
  /// The mean over tokens of e x x' [k, k], where e is the mean over outputs of the squared gradient, for an
  /// entry with `fisher`.
  std::vector<float> read_fisher(const StatisticsEntry& entry) const;
  /// The mean over tokens of x^2 [k], for any entry.
  std::vector<float> read_diagonal(const StatisticsEntry& entry) const;
  /// True if the diagonal of an entry's sums is 0, so that all its inputs were 0. Reads up to the first
  /// number that is not 0. False for a file that its run has not filled.
  bool is_zero(const StatisticsEntry& entry) const;
  /// The position in tensors() of a linear's target offset C. Empty if the linear's target is its own
  /// weights.
  std::optional<size_t> target_offset(std::string_view linear) const;
  /// Reads C / count for rows [first, first + out.size() / k). `tensor` is the target offset of a linear that
  /// `entry` serves.
  void read_target_offset(size_t tensor, const StatisticsEntry& entry, int64_t first,
                          std::span<float> out) const;
  /// Reads elements [first, first + out.size()) of an F32 tensor. Throws Error on a number that is not
  /// finite.
  void read(size_t tensor, uint64_t first, std::span<float> out) const;

 private:
  using Served = std::map<std::string, std::vector<size_t>, std::less<>>;

  static Statistics open(const std::filesystem::path& path, bool takes_unfinished);
  struct EntryTensors;
  std::vector<StatisticsEntry> read_entries(std::string_view prefix);
  /// Reads a tensor of a linear that is of no entry. False: an entry has it.
  bool read_apart(size_t tensor, std::string_view linear, std::string_view leaf, bool is_heldout);
  void read_tensor(size_t tensor, std::string_view leaf, EntryTensors& to) const;
  [[noreturn]] void refuse(size_t tensor, std::string_view expected) const;
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

/// The value of `structure` in the metadata, which is a hash of the names of the linears and their K.
std::string structure_of(const std::map<std::string, int64_t>& linears);

}  // namespace twofour
