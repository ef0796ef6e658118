#pragma once
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "formats/atom.h"
#include "lib/recipe/artifact/artifact_modules.h"
#include "lib/recipe/artifact/unpack.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Converts an artifact's parts to the bytes that a module stored, by the slow path. It goes byte by byte by
/// the layout's map. ArtifactUnpacker must give the same results.
class ReferenceUnpacker {
 public:
  ReferenceUnpacker(const Checkpoint& artifact, const ArtifactModules& modules, uint64_t bytes)
      : artifact_(artifact), modules_(modules), bytes_(static_cast<int64_t>(bytes)) {}

  /// Fills `out` with the bytes of expert `e`'s codes or block scales from byte `begin` on, as the module
  /// stores them. Throws Error if the artifact's bytes violate its layout. Safe from several threads, but
  /// calls run one at a time.
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
  // The cached groups [rows, width] of an expert of a matrix, in dense form. They are some rows or, for a
  // stack whose outermost dimension is K, all rows of some groups.
  size_t matrix_ = SIZE_MAX;
  int64_t e_ = 0, n0_ = 0, rows_ = 0, g0_ = 0, width_ = 0;
  std::vector<DenseGroup> groups_;
};

}  // namespace twofour
