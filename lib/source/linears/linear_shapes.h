#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/contradictions.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/linears.h"

namespace twofour {

/// Fills in the fields of a module that follow from its tensors' shapes: E, N, K, which weights share a
/// scale, and how codes are packed. Each function returns false and adds one problem if the tensors disagree
/// or are not supported.
class LinearShapes {
 public:
  LinearShapes(const Checkpoint& checkpoint, Problems& problems);

  /// True if codes and scales, whose names and types fit `dialect`, are of its format. The config decides or,
  /// if it states no width, the shapes.
  bool is_of(const std::string& module, const WeightDialect& dialect, size_t codes, size_t scale) const;
  /// Reads the shapes of codes of MXFP4, MXFP6 or NVFP4 with scales for 32, [N, bytes of K], [E, N, K/2] or
  /// [E, N, K/32, 16], and of their scales.
  bool read_grouped(Linear& module);
  /// Reads the shape of the scales of a module with known E, N and K. There may be one scale, one for each
  /// row, or one for each block: [N/b, K/b] or [N/b, 1, K/b, 1], with b the block's size along N or K. The
  /// configuration states the block size. If it states none, a size that known checkpoints have must fit.
  bool read_fp8_scale(Linear& module);
  /// Reads the shapes of four-bit codes, zero points and the order of groups in compressed-tensors, AWQ and
  /// GPTQ.
  bool read_int4(Linear& module);
  /// Returns how the config contradicts a module's format: "config.json: KEY: expected X as M has, found Y".
  std::string contradiction_of(const Linear& module) {
    const std::string found = twofour::contradiction_of(configured_.configured(), module.name, module.format);
    return found.empty() ? found : quantization_place(c_, found) + " (" + c_.where(module.weight) + ")";
  }

 private:
  const TensorInfo& tensor(size_t i) const { return c_.tensors()[i]; }
  bool refuse(size_t i, const std::string& expected);
  bool expect_shape(size_t i, DType dtype, const std::vector<int64_t>& shape);
  bool read_packed(Linear& module);
  bool read_gptq_or_awq(Linear& module);
  bool read_stated_shape(Linear& module);
  /// Returns a key's value in the config's exception for a module; null: there is none.
  const Json& exception_of(const Linear& module, std::string_view key) const;
  bool check_bits(const Linear& module, int64_t bits);
  bool check_method(Linear& module);
  bool read_group_size(Linear& module, int64_t groups);

  void read_side();
  void read_zero_points(Linear& module);
  /// True if the module's group in a compressed-tensors config agrees with the stored tensors.
  bool check_group(const Linear& module);
  bool check_fp8_words(const Linear& module);
  bool check_global_scale(const Linear& module);

  const Checkpoint& c_;
  Problems& problems_;
  StatedStorage stated_;
  SourceGroups configured_;
  /// The entries of files beside config.json, with the file's name.
  std::vector<std::pair<std::string, SourceGroups>> configured_beside_;
  bool has_read_side_ = false;
  std::string side_;  ///< why a file beside config.json contradicts the entry; empty: no file does
};

/// Returns "expected X, found F64 [N, K]: Y" for a linear or stack in F64, which is not read; otherwise "".
std::string wide_linear(const TensorInfo& tensor);

/// Returns "expected F8_E4M3 because of X beside it, found BF16 [N, K]" if a scale of codes lies beside the
/// float weights of a linear or stack, since loaders would differ on it. Empty: there is no scale.
std::string scale_beside_floats(std::span<const TensorInfo> tensors, size_t weight, const std::string& linear,
                                bool is_stack);

}  // namespace twofour
