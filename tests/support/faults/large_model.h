#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "lib/lint/lint.h"

namespace twofour {

/// A sound model whose matrices have the size of real ones, in one file: llama, 4 layers, hidden 1024, MLPs
/// of 2048, 1024 tokens. Rows differ in size as in trained models, and weights have heavy tails. Faults that
/// a tiny matrix shows as a whole are a small part of these.
///
/// `format` is what the weights of the linears are in: bf16, nvfp4, fp8, mxfp8, mxfp6 or mxfp4. Of "channels"
/// before it ("channels bf16"), the channels of the residual stream differ in size, in all layers alike.
class LargeModel {
 public:
  static const LargeModel& get(const std::string& format);

  /// A change of one tensor: its bytes, and those of a row.
  using Edit = std::function<void(std::span<uint8_t> bytes, size_t row, std::mt19937& random)>;
  /// Changes tensors, lints, and restores them. A name may have one *.
  LintReport lint_changed(const std::vector<std::pair<std::string, Edit>>& edits) const;
  /// Writes it to a directory, with changed tensors.
  void write_changed(const std::filesystem::path& directory,
                     const std::vector<std::pair<std::string, Edit>>& edits) const;

 private:
  explicit LargeModel(const std::string& format);
  std::string directory_;
};

/// All findings above a note, a line each: "odd-region: model.layers.1.mlp.up_proj: expected ...\n".
std::string lines_of(const LintReport& report);

}  // namespace twofour
