#include "lib/lint/content/scaled_groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "formats/weight_dialect.h"
#include "lib/lint/bytes/checks.h"

namespace twofour {
namespace {

/// The codes of one matrix and their scales [rows, columns] of groups.
class Groups {
 public:
  Groups(const LintInput& s, const Member& m)
      : s_(s), m_(m), codes_(s.tensors[m.figures->tensor]), scales_(s.tensors[m.scale]) {}

  /// Sets the sizes. Returns false for other shapes.
  bool open() {
    if (codes_.shape.size() != 2 || scales_.shape.empty() || scales_.shape.size() > 2) return false;
    rows_ = static_cast<size_t>(scales_.shape[0]);
    columns_ = scales_.shape.size() == 2 ? static_cast<size_t>(scales_.shape[1]) : 1;
    const auto a = static_cast<size_t>(codes_.shape[0]), b = static_cast<size_t>(codes_.shape[1]);
    if (rows_ == 0 || columns_ == 0 || a == 0 || b == 0) return false;
    if (m_.figures->plan.kind == NumberKind::kE4m3) {
      rows_each_ = (a + rows_ - 1) / rows_;
      columns_each_ = (b + columns_ - 1) / columns_;
      return true;
    }
    if (m_.figures->plan.kind != NumberKind::kInt4) return false;
    if (!codes_.name.ends_with(".qweight")) {  // words [N, K/8]
      rows_each_ = 1;
      columns_each_ = b * kPack / columns_;
      return rows_ == a && columns_each_ > 0 && columns_each_ * columns_ == b * kPack;
    }
    const bool along_n = b * kPack == columns_;
    down_ = along_n ? 1 : kPack;  // rows of weights in a row of words
    if (!along_n && b != columns_) return false;
    columns_each_ = 1;
    rows_each_ = a * down_ / rows_;
    if (rows_each_ * rows_ != a * down_) return false;
    return read_order(a * down_);
  }

  size_t rows_each() const { return rows_each_; }  ///< number of rows of weights that share a scale

  /// For each scale, true if its codes are all the same one, or zeros of either sign.
  std::vector<bool> alike() const {
    const auto lines = static_cast<size_t>(codes_.shape[0]), words = static_cast<size_t>(codes_.shape[1]);
    const bool fp8 = m_.figures->plan.kind == NumberKind::kE4m3;
    const size_t line = words * (fp8 ? 1 : 4);
    constexpr uint8_t kNone = 0xFF;
    std::vector<uint8_t> first(rows_ * columns_, kNone), bytes(line);
    std::vector<bool> alike(rows_ * columns_, true);
    const auto take = [&](size_t row, size_t column, uint8_t code) {
      const size_t at = row * columns_ + column;
      if (first[at] == kNone) first[at] = code;
      if (first[at] != code) alike[at] = false;
    };
    for (size_t i = 0; i < lines; ++i) {
      s_.read(m_.figures->tensor, i * line, bytes);
      if (fp8) {
        for (size_t k = 0; k < words; ++k)
          if ((bytes[k] & 0x7F) != 0) alike[i / rows_each_ * columns_ + k / columns_each_] = false;
        continue;
      }
      for (size_t x = 0; x < words * kPack; ++x) {
        const auto code = static_cast<uint8_t>(bytes[x / 2] >> (4 * (x % 2)) & 15);
        const size_t word = x / kPack, nibble = x % kPack;
        if (rows_each_ == 1 && order_.empty()) {
          take(i, x / columns_each_, code);
        } else if (down_ == 1) {
          take(order_[i], word * kPack + kAwq[nibble], code);
        } else {
          take(order_[i * kPack + nibble], word, code);
        }
      }
    }
    return alike;
  }

 private:
  /// Reads the group of each input.
  bool read_order(size_t inputs) {
    order_.resize(inputs);
    for (size_t k = 0; k < inputs; ++k) order_[k] = k / rows_each_;
    const auto index = s_.find(m_.module + ".g_idx");
    if (!index) return true;
    if (!s_.whole[*index] || s_.tensors[*index].dtype != DType::kI32 ||
        s_.tensors[*index].bytes() != 4 * inputs)
      return false;
    std::vector<int32_t> groups(inputs);
    s_.read(*index, 0, {reinterpret_cast<uint8_t*>(groups.data()), 4 * inputs});
    if (std::ranges::any_of(groups, [&](int32_t g) { return g < 0 || static_cast<size_t>(g) >= rows_; }))
      return false;
    for (size_t k = 0; k < inputs; ++k) order_[k] = static_cast<size_t>(groups[k]);
    return true;
  }

  static constexpr size_t kPack = kInt4Pack;
  /// The column that each nibble of AWQ holds. Source: AutoAWQ, awq/modules/linear/gemm.py.
  static constexpr size_t kAwq[kPack] = {0, 2, 4, 6, 1, 3, 5, 7};
  const LintInput& s_;
  const Member& m_;
  const TensorInfo &codes_, &scales_;
  size_t rows_ = 0, columns_ = 0, rows_each_ = 1, columns_each_ = 1, down_ = 1;
  std::vector<size_t> order_;  ///< for GPTQ and AWQ: the group of each input
};

}  // namespace

bool has_unused_scales(const LintInput& s, const Member& m, double octaves) {
  if (m.scale_figures == nullptr || m.figures->expert >= 0 || !std::isfinite(m.scale_figures->log2_mean))
    return false;
  const std::vector<float> scales = read_scales(s, m.scale);
  Groups groups(s, m);
  if (scales.empty() || !groups.open()) return false;
  std::vector<size_t> far;
  for (size_t i = 0; i < scales.size(); ++i)
    if (std::log2(double{scales[i]}) - m.scale_figures->log2_mean > octaves) far.push_back(i);
  if (far.empty()) return false;
  const std::vector<bool> alike = groups.alike();
  return std::ranges::all_of(far, [&](size_t i) { return i < alike.size() && alike[i]; });
}

size_t count_zero_scales(const LintInput& s, const Member& m) {
  if (m.scale_figures == nullptr || m.figures->expert >= 0 || m.figures->plan.kind != NumberKind::kInt4 ||
      m.scale_figures->zero_share <= 0)
    return 0;
  const std::vector<float> scales = read_scales(s, m.scale);
  Groups groups(s, m);
  if (scales.empty() || !groups.open()) return 0;
  const std::vector<bool> alike = groups.alike();
  size_t count = 0;
  for (size_t i = 0; i < std::min(scales.size(), alike.size()); ++i) count += scales[i] == 0 && !alike[i];
  return count;
}

size_t count_lost_scales(const LintInput& s, const Member& m, double octaves) {
  if (m.scale_figures == nullptr || m.figures->expert >= 0 || m.figures->plan.kind != NumberKind::kE4m3 ||
      m.scale_figures->plan.scale_columns < 2 || !std::isfinite(m.scale_figures->log2_mean))
    return 0;
  const std::vector<float> scales = read_scales(s, m.scale);
  const auto least = static_cast<float>(std::exp2(m.scale_figures->log2_mean - octaves));
  const auto far = [&](float x) { return x > 0 && x < least; };
  Groups groups(s, m);
  constexpr size_t kFewRows = 32;
  if (std::ranges::none_of(scales, far) || !groups.open() || groups.rows_each() < kFewRows) return 0;
  const std::vector<bool> alike = groups.alike();
  size_t count = 0;
  for (size_t i = 0; i < std::min(scales.size(), alike.size()); ++i) count += far(scales[i]) && !alike[i];
  return count;
}

}  // namespace twofour
