#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/pack/prune.h"
#include "lib/base/io/hash.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// A file of masks that another program, such as MaskLLM, chose. It is a safetensors file with a tensor
/// `M.mask` or `M`, U8 or BOOL [N, K], for each module M. A 1 keeps a weight, and a 0 prunes it. Reading is
/// safe from several threads.
class MaskFile {
 public:
  /// Opens a file of masks. Throws Error on other types and shapes, and on a module with two masks.
  static MaskFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// The XXH3-128 hash of the whole file.
  Hash128 hash() const;
  /// Throws Error if the file has been written to since it was opened.
  void check_unchanged() const { file_.check_unchanged(); }
  /// The position of a module's mask. Empty if the file has none.
  std::optional<size_t> find(std::string_view module) const;
  const TensorInfo& info(size_t mask) const { return file_.tensors()[mask]; }
  /// The names of all modules that have a mask.
  std::vector<std::string> modules() const;
  /// Reads rows [first, first + out.size() / K) of a mask.
  void read(size_t mask, int64_t first, std::span<uint8_t> out) const;
  /// Throws Error unless all values are 0 or 1 and the mask keeps exactly half of each group: two weights of
  /// four, or two aligned pairs of eight weights.
  void check(size_t mask, PrunePattern pattern) const;

 private:
  explicit MaskFile(const std::filesystem::path& path) : path_(path), file_(Checkpoint::open(path)) {}

  std::filesystem::path path_;
  Checkpoint file_;
  std::map<std::string, size_t, std::less<>> masks_;  ///< by module
};

}  // namespace twofour
