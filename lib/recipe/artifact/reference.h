#pragma once
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "formats/atom.h"
#include "lib/recipe/artifact/modules.h"
#include "lib/recipe/artifact/unpack.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The slow path from an artifact's parts to the bytes that a module stored, byte by byte through the
/// layout's map. ArtifactUnpacker must give equal results.
class ReferenceUnpacker {
 public:
  ReferenceUnpacker(const Checkpoint& artifact, const ArtifactModules& modules, uint64_t bytes)
      : artifact_(artifact), modules_(modules), bytes_(static_cast<int64_t>(bytes)) {}

  /// Fills `out` with bytes from `begin` on of expert `e`'s codes or block scales, as the module stores them.
  /// Throws Error if the artifact's bytes violate its layout. Safe from several threads, which run one at a
  /// time.
  void read(const SourceLinear& module, Field field, int64_t e, int64_t begin, std::span<uint8_t> out);

 private:
  void load(const SourceLinear& module, int64_t e, int64_t n, int64_t group);
  bool holds(int64_t n, int64_t group) const {
    return n >= n0_ && n < n0_ + rows_ && group >= g0_ && group < g0_ + width_;
  }
  template <class L>
  void load_block();
  template <class L>
  void check_piece(const std::vector<std::span<const uint8_t>>& parts, Shape shape,
                   const std::vector<int64_t>& first_rows) const;

  const Checkpoint& artifact_;
  const ArtifactModules& modules_;
  int64_t bytes_;
  std::mutex mutex_;
  // Some rows of an expert of a matrix or, for a stack with K outermost, all rows of some groups; dense,
  // [rows, width].
  size_t matrix_ = SIZE_MAX;
  int64_t e_ = 0, n0_ = 0, rows_ = 0, g0_ = 0, width_ = 0;
  std::vector<DenseGroup> groups_;
};

}  // namespace twofour
