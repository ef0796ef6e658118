#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/pack/prune_pack.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/plan/plan.h"

namespace twofour {

/// Bytes of an output tensor that only come together: a range that is derived begins at a multiple of them
/// and ends at one or with the tensor.
uint64_t derive_grain(const Checkpoint& source, const Plan& plan, const OutputTensor& tensor);

/// How many bytes of a tensor to derive at once: about as many as are copied at once.
uint64_t derive_step(const Checkpoint& source, const Plan& plan, const OutputTensor& tensor);

/// A block scale that is none.
struct BadScale {
  uint64_t at;  ///< in the source's tensor
  uint8_t byte;
};

/// The first of bytes [begin, begin + scales.size()) of a tensor of block scales that is none.
std::optional<BadScale> find_bad_scale(uint64_t begin, std::span<const uint8_t> scales);

/// Derives any range of any rewritten tensor from the source, by bounded reads. One a thread.
class Deriver {
 public:
  Deriver(const Checkpoint& source, const Plan& plan) : source_(source), plan_(plan) {}

  /// Fills `out` with bytes [begin, begin + out.size()) of a tensor whose kind is kDerived.
  void derive(const OutputTensor& tensor, uint64_t begin, std::span<uint8_t> out);

  // What the last range came from and what it showed:
  std::span<const uint8_t> codes() const { return codes_; }    ///< where codes were made into something else
  std::span<const uint8_t> scales() const { return scales_; }  ///< where block scales were
  struct ExpertStats {
    int64_t e;
    PruneStats stats;
  };
  std::span<const ExpertStats> stats() const { return stats_; }  ///< kPrune: what it did, expert by expert
  const std::optional<BadScale>& bad_scale() const { return bad_scale_; }
  uint64_t bytes_read() const { return bytes_read_; }  ///< by all ranges

 private:
  void read(size_t tensor, uint64_t begin, std::span<uint8_t> out);
  std::span<const uint8_t> read(size_t tensor, uint64_t begin, uint64_t bytes, std::vector<uint8_t>& buffer);
  void prune(const OutputTensor& tensor, uint64_t begin, std::span<uint8_t> out);
  void dequantize(const OutputTensor& tensor, uint64_t begin, std::span<uint8_t> out);
  void convert_scalars(const OutputTensor& tensor, uint64_t begin, std::span<uint8_t> out);

  const Checkpoint& source_;
  const Plan& plan_;
  std::vector<uint8_t> codes_buffer_, scales_buffer_;
  std::span<const uint8_t> codes_, scales_;
  std::vector<ExpertStats> stats_;
  std::optional<BadScale> bad_scale_;
  uint64_t bytes_read_ = 0;
};

}  // namespace twofour
