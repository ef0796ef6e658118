#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "lib/checkpoint/linears.h"

namespace twofour {

/// What a checkpoint's quantization entries say about the storage of weights, of all modules together.
struct StatedStorage {
  std::vector<std::pair<int64_t, int64_t>> blocks;  ///< of FP8, rows and columns
  std::vector<std::string> unread_blocks;           ///< as the entry has them
  std::vector<int64_t> group_sizes;                 ///< of integers
  std::set<int64_t> bits;                           ///< of integers
  std::string method;                               ///< quant_method: "awq", "gptq", "auto-round", ...
  std::string format;                               ///< checkpoint_format, version or packing_format
};
StatedStorage stated_storage(const Json& quantization);

/// Fills in what the shapes of a module's tensors say: E, N, K, which weights share a scale, how codes lie.
/// Each function returns false, with one problem, where tensors disagree or hold what is not read.
class LinearShapes {
 public:
  LinearShapes(const Checkpoint& checkpoint, Problems& problems);

  /// Codes [N, K/2], [E, N, K/2] or [E, N, K/32, 16], and their scales.
  bool read_mxfp4(Linear& module);
  /// The scales of a module of known E, N and K: one, one a row, or blocks [N/b, K/b], also [N/b, 1, K/b, 1].
  /// Blocks are as the configuration states them or, where it states none, of a known size.
  bool read_fp8_scale(Linear& module);
  /// Codes of four bits, zero points and the order of groups, of compressed-tensors, AWQ and GPTQ.
  bool read_int4(Linear& module);

 private:
  const TensorInfo& tensor(size_t i) const { return c_.tensors()[i]; }
  bool refuse(size_t i, const std::string& expected);
  bool expect_shape(size_t i, DType dtype, const std::vector<int64_t>& shape);
  bool read_packed(Linear& module);
  bool read_gptq_or_awq(Linear& module);
  bool read_stated_shape(Linear& module);
  bool check_bits(const Linear& module, int64_t bits);
  bool check_method(Linear& module);
  bool read_group_size(Linear& module, int64_t groups);

  void read_side();
  void read_zero_points(Linear& module);

  const Checkpoint& c_;
  Problems& problems_;
  StatedStorage stated_;
  StatedSymmetry symmetry_;
  bool has_read_side_ = false;
  std::string
      side_;  ///< why quantize_config.json or quant_config.json contradicts the entry; empty: it does not
};

}  // namespace twofour
