#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/dtype.h"
#include "lib/checkpoint.h"

namespace twofour {

/// The number format of a linear's weights.
enum class WeightFormat { kFloat, kFp8, kMxfp4, kNvfp4 };

/// One linear layer, or a stack of them, [E, N, K], in any number format that twofour reads. Tensors are
/// positions in Checkpoint::tensors().
struct WeightModule {
  std::string name;  ///< without the suffix of its format: "model.layers.0.mlp.down_proj"
  WeightFormat format;
  size_t weight;                ///< values or codes
  std::optional<size_t> scale;  ///< of FP8; of MXFP4 and NVFP4 the block scales
  std::optional<size_t> global_scale, input_scale;
  std::optional<size_t> bias;  ///< goes with the module, never changes
  int64_t e = 1, n = 0, k = 0;
  bool stacked = false;
  bool k_outer = false;  ///< stored [E, K, N]
  /// FP8: rows and columns of weights that share a scale: {n, k}, {1, k} or {128, 128}.
  int64_t scale_rows = 0, scale_cols = 0;
};

/// Every linear of a checkpoint by its tensors' names, types and shapes, in natural order of names. Matrices
/// that are no linears (embeddings, norms, convolutions) are not among them, routers and heads are. Throws
/// Error where tensors of a module disagree.
std::vector<WeightModule> find_weight_modules(const Checkpoint& checkpoint);

/// Reads weights of any format as float32, exactly: every product that a format stands for is rounded once.
/// One a thread.
class WeightReader {
 public:
  explicit WeightReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  /// Rows [n0, n1) of expert `e`, [n1 - n0, K], row after row. Throws Error on scales that are none.
  void read_rows(const WeightModule& module, int64_t e, int64_t n0, int64_t n1, std::span<float> out);
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  const Checkpoint& checkpoint_;
  std::vector<uint8_t> weights_, scales_;
  uint64_t bytes_read_ = 0;
};

}  // namespace twofour
