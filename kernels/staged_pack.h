#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "formats/layouts/layout.h"
#include "kernels/pack/prune_pack.h"

namespace twofour::cuda {

/// What lies under each block-scale byte of some rows, as the source has it. Integers, from which PruneStats
/// and the loss of a fold follow exactly, whatever order the device counts in.
struct ScaleTally {
  std::array<uint64_t, 256> groups;  ///< of 16 weights
  std::array<uint64_t, 256> energy;  ///< sums of squared code halves
  std::array<uint64_t, 256> kept;    ///< the same of the two largest magnitudes of each quad
  uint64_t tied;                     ///< quads whose second and third largest magnitudes are equal
};

/// Rows [n0, n0 + count) of a matrix, which are tallied together.
struct TalliedRows {
  int64_t n0, count;
  const std::array<uint8_t, 256>* fold = nullptr;  ///< what each block scale becomes once it is tallied
};

/// Packs matrices on the device from host memory to host memory: rows are read into page-locked stages and
/// copied while the next are read. A stream of its own; one a thread. Throws Error with CUDA's words.
class StagedPacker {
 public:
  /// Stages that take turns: one is filled while the other is copied.
  static constexpr int kStages = 2;

  /// `layout` is one of formats/layouts.h.
  explicit StagedPacker(const std::string& layout);
  StagedPacker(const StagedPacker&) = delete;
  StagedPacker& operator=(const StagedPacker&) = delete;
  ~StagedPacker();

  /// Begins a matrix, `shape.e == 1`: rows gate then up where it is gated.
  void begin(Shape shape);
  /// The next stage, of at least `bytes` bytes, once what was added from it before is on the device.
  uint8_t* stage(size_t bytes);
  /// Copies rows, which lie in the last stage, to rows [n0, n0 + rows.n) of the matrix.
  void add(const DenseRows& rows, int64_t n0);
  /// Tallies, folds, packs and waits: `tallies` has one entry for each of `rows`. Bit-equal with prune_pack
  /// and dense_pack, padding zero.
  void finish(std::span<const TalliedRows> rows, std::span<ScaleTally> tallies);
  /// Part p of the packed matrix, valid until the next begin().
  std::span<const uint8_t> part(int p) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace twofour::cuda
